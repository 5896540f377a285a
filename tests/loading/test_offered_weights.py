"""What processes offer each other, and what others may put in its place."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ortmulti
from ortmulti import _core
from tests.support import onnx_models
from tests.support.command import COMMAND, invoke, run
from tests.support.http_store import Fault, HttpStore

MESSAGE = struct.Struct("24s40s64s512sQq")
KEY = "0123456789abcdef" * 2
NUMBERS = itertools.count()


def message(model: bytes = b"/models/encoder.onnx", *, form: bytes = b"ortmulti weights 1") -> bytes:
    return MESSAGE.pack(form, KEY.encode(), b"GPU-12", model, 1 << 20, 4321)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as above:  # pytest's paths are too long for sockets
        found = Path(above) / "share"
        monkeypatch.setenv("ORTMULTI_SHARE_DIR", str(found))
        yield found


class Offer:
    """A process's socket that answers each who connects with the same, once all parties of `together` were asked."""

    def __init__(
        self, folder: Path, answer: bytes, descriptors: int = 1, together: threading.Barrier | None = None
    ) -> None:
        self._together = together
        folder.mkdir(mode=0o700, exist_ok=True)
        self._answer = answer
        self._files = [os.open(os.devnull, os.O_RDONLY) for _ in range(descriptors)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(folder / f"{KEY}.{next(NUMBERS):x}.sock"))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._files))] if self._files else []
            with connected, contextlib.suppress(threading.BrokenBarrierError, BrokenPipeError):
                if self._together:
                    self._together.wait(60)
                connected.sendmsg([self._answer], rights)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for file in self._files:
            os.close(file)


@pytest.fixture
def offer(folder: Path) -> Iterator[Offer]:
    made = Offer(folder, message())
    yield made
    made.close()


def saved(folder: Path) -> Path:
    path = folder / "identity.onnx"
    path.write_bytes(onnx_models.identity())
    return path


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("offer")
def test_an_offer_is_found_and_listed() -> None:
    [found] = _core.offered_weights()
    assert (found.model, found.uuid, found.bytes, found.process) == ("/models/encoder.onnx", "GPU-12", 1 << 20, 4321)
    [listed] = json.loads(run("devices", "--json").stdout)["shared_weights"]
    assert listed == {"model": "/models/encoder.onnx", "device": "GPU-12", "bytes": 1 << 20, "process": 4321}
    table = run("devices").stdout
    assert "Weights that processes share" in table
    assert "4321" in table


def test_without_offers_no_folder_is_made(folder: Path) -> None:
    assert _core.offered_weights() == []
    assert not folder.exists()


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        pytest.param(message(), 0, id="no descriptor"),
        pytest.param(message(), 2, id="two"),
        pytest.param(message()[:-1], 1, id="short"),
        pytest.param(message() + b"x", 1, id="long"),
        pytest.param(b"", 1, id="empty"),
        pytest.param(message(form=b"ortmulti weights 2"), 1, id="another release's"),
    ],
)
def test_other_answers_are_no_offers(folder: Path, answer: bytes, count: int) -> None:
    before = descriptors()
    other = Offer(folder, answer, count)
    try:
        assert _core.offered_weights() == []
    finally:
        other.close()
    assert descriptors() == before


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.lists(st.tuples(st.integers(0, MESSAGE.size - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_messages_are_refused_or_read(folder: Path, change: list[tuple[int, int]]) -> None:
    changed = bytearray(message())
    for place, byte in change:
        changed[place] = byte
    other = Offer(folder, bytes(changed))
    try:
        found = [(os.fsencode(one.model), os.fsencode(one.uuid)) for one in _core.offered_weights()]
    finally:
        other.close()

    def text(begin: int, end: int) -> bytes:
        return bytes(changed[begin:end]).split(b"\0")[0]

    right_form = text(0, 24) == b"ortmulti weights 1"
    assert found == [(text(128, 640), text(64, 128))] * right_form


def test_processes_are_asked_at_the_same_time(folder: Path) -> None:
    """So one that is stopped does not hold up the others' answers."""
    before = descriptors()
    together = threading.Barrier(8)
    offers = [Offer(folder, message(), together=together) for _ in range(together.parties)]
    try:
        assert len(_core.offered_weights()) == together.parties
    finally:
        together.abort()
        for each in offers:
            each.close()
    assert descriptors() == before


def test_a_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)
    with pytest.raises(ortmulti.Fail, match="is not a folder of this user's alone"):
        _core.offered_weights()
    assert json.loads(run("devices", "--json").stdout)["shared_weights"] == []
    with ortmulti.load(saved(folder.parent), "cpu", share="host") as pool:
        assert len(pool.sessions) == 1


def test_share_is_checked(tmp_path: Path) -> None:
    model = saved(tmp_path)
    with pytest.raises(ortmulti.InvalidArgument, match="share is None or 'host', not 'all'"):
        ortmulti.load(model, "cpu", share="all")
    with pytest.raises(ortmulti.InvalidArgument, match="share='host' needs the strategy 'shared'"):
        ortmulti.create_sessions(model, "cpu", share="host", loading=ortmulti.Loading(strategy="native"))


def test_only_weights_on_gpus_are_held(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    done = invoke("hold", saved(tmp_path), "--devices", "cpu")
    assert done.returncode == 1
    assert "cannot be held: weights on GPUs are held, and the device is the CPU" in done.stderr
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_hold_while_it_loads(sent: signal.Signals) -> None:
    pytest.importorskip("obstore")
    asked = threading.Event()

    def stall(*_: object) -> Fault:
        asked.set()
        return Fault("stall")

    with HttpStore(fault=stall).served() as store:
        url = store.put("model.onnx", onnx_models.matmul(64, 4))
        with subprocess.Popen(
            [*COMMAND, "hold", url, "--devices", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as holder:
            try:
                assert asked.wait(60)
                holder.send_signal(sent)
                printed = holder.communicate(timeout=20)
                assert (holder.returncode, *printed) == (0, "", f"[1/1] {url}\n")
            finally:
                holder.kill()


def test_a_signal_ends_hold_while_it_waits() -> None:
    code = """
        import signal
        from ortmulti.cli import hold

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGUSR1, lambda *_: print("other", flush=True))
        try:
            print("ready", flush=True)
            hold._wait_for_signal()
        except KeyboardInterrupt:
            print("ended")
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGUSR1)
        assert child.stdout.readline() == "other\n"
        child.terminate()
        assert child.communicate(timeout=60)[0] == "ended\n"
