"""Weights from sources that are written in Python: the core's threads read them."""

from __future__ import annotations

import gc
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from tests.support import fake_driver
from tests.support.processes import check_child, nothing_leaks
from tests.support.python_sources import Array, Filling, Stored, StoredModel


@pytest.fixture
def model(tmp_path: Path) -> StoredModel:
    return StoredModel(tmp_path)


@pytest.mark.parametrize("kind", [Stored, Filling, Array])
def test_sessions_over_a_source_are_those_over_the_file(kind: type[Stored], model: StoredModel) -> None:
    source = kind(model.store, "model.data")
    with nothing_leaks():
        sessions = model.sessions(source, 2)
        for session in sessions:
            model.check(session)
            assert session.weight_use() == (3, [])
            session.close()
        del sessions, session
    assert sum(size for _, size in source.ranges) == 3 * 64 * 64 * 4


def test_a_source_lives_as_long_as_its_list(model: StoredModel) -> None:
    source = Stored(model.store, "model.data")
    alive = weakref.ref(source)
    listed = model.listed(source)
    [found] = listed.sources
    assert (found.name, found.identity, found.size) == ("memory://model.data", "memory://model.data", 3 * 64 * 64 * 4)
    del source, listed
    gc.collect()
    assert alive() is not None
    assert found.read(4, 8).tobytes() == model.store["model.data"][4:12]
    del found
    gc.collect()
    assert alive() is None


def too_few(source: Stored, buffer: memoryview, offset: int) -> Any:
    return source.content[offset : offset + len(buffer) - 1]


def too_many(_: Stored, buffer: memoryview, __: int) -> Any:
    return len(buffer) + 1


def nothing(*_: object) -> Any:
    return None


def negative(*_: object) -> Any:
    return -1


def another(source: Stored, buffer: memoryview, _: int) -> Any:
    source.identity = "memory://other"
    return len(buffer)


def keeping(source: Stored, buffer: memoryview, _: int) -> Any:
    source.kept = np.asarray(buffer)  # type: ignore[attr-defined]
    return len(buffer)


def lost(_: Stored, buffer: memoryview, __: int) -> Any:
    array = np.asarray(buffer)  # is in the traceback
    raise ConnectionError(f"lost after {len(array) - len(buffer)} bytes")


def missing(*_: object) -> Any:
    raise ortmulti.NotFound("there is no such object")


@pytest.mark.parametrize(
    ("read_into", "error", "message"),
    [
        (too_few, ortmulti.WeightsError, "49151 bytes came instead of 49152"),
        (too_many, ortmulti.WeightsError, "49153 bytes came instead of 49152"),
        (nothing, ortmulti.Fail, "TypeError: a bytes-like object is required, not 'NoneType'"),
        (negative, ortmulti.Fail, "OverflowError: can't convert negative int to unsigned"),
        (another, ortmulti.WeightsError, "it was changed while it was loaded; load again"),
        (keeping, ortmulti.WeightsError, "read_into keeps its buffer, which is valid during the call only"),
        (lost, ortmulti.Fail, "ConnectionError: lost after 0 bytes"),
        (missing, ortmulti.NotFound, "there is no such object"),
    ],
)
def test_an_error_of_a_source_is_the_callers(
    read_into: Callable[..., Any], error: type[ortmulti.Error], message: str, model: StoredModel
) -> None:
    source = Stored(model.store, "model.data")
    source.read_into = lambda buffer, offset: read_into(source, buffer, offset)  # type: ignore[method-assign]
    with (
        nothing_leaks(),
        pytest.raises(error, match=f"reading 'memory://model.data' at byte 0 failed: {message}$") as raised,
    ):
        model.sessions(source)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"identity": b"bytes"}, ortmulti.InvalidType, "a source's identity is a str, not of bytes"),
        ({"size": -1}, OverflowError, "negative"),
        ({"size": "3"}, TypeError, "int"),
        ({"read_into": None}, None, None),
    ],
)
def test_what_is_no_source_is_refused(
    attributes: dict[str, Any], error: type[Exception] | None, message: str | None, model: StoredModel
) -> None:
    source = Stored(model.store, "model.data")
    for name, value in attributes.items():
        setattr(source, name, value)
    if error is None:
        with pytest.raises(ortmulti.Fail, match="'NoneType' object is not callable"):
            _core.WeightList([source]).sources[0].read(0, 1)
    else:
        with pytest.raises(error, match=message):
            _core.WeightList([source])
    with pytest.raises(ortmulti.InvalidType, match="a source has identity, size and read_into, unlike str"):
        _core.WeightList(["model.data"])  # type: ignore[list-item]


def test_an_interrupt_in_the_thread_that_reads_is_raised(model: StoredModel) -> None:
    source = Stored(model.store, "model.data")

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    source.read_into = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        model.listed(source).sources[0].read(0, 1)


BLOCKING = """
    import _thread, sys, threading
    from pathlib import Path
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from tests.support.python_sources import Stored, StoredModel

    class Blocking(Stored):
        began, go_on = 0, threading.Event()

        def read_into(self, buffer, offset):
            self.began += 1
            _thread.interrupt_main()
            self.go_on.wait()
            return super().read_into(buffer, offset)
"""


def test_ctrl_c_does_not_wait_for_a_source(tmp_path: Path) -> None:
    code = """
        model = StoredModel(Path(sys.argv[1]))
        source = Blocking(model.store, "model.data")
        try:
            model.sessions(source)
        except KeyboardInterrupt:
            print("interrupted in", source.began, source.ranges)
        source.go_on.set()
        model.check(model.sessions(Stored(model.store, "model.data"))[0])
    """
    printed = check_child(textwrap.dedent(BLOCKING) + textwrap.dedent(code), tmp_path)
    assert printed == "interrupted in 1 []\n"


# --- On GPUs, whose memory is the host's ------------------------------------------------------------------------------

ON_GPUS = """
    import sys, threading
    from pathlib import Path
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from tests.support.processes import nothing_leaks
    from tests.support.python_sources import Array, Filling, Stored

    content = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()

    def load(source, devices=(0, 1)):
        weights = [_core.Weight(f"w{i}", 2, [1 << 16], 0, i << 16, 1 << 16) for i in range(16)]
        listed = _core.WeightList([source], weights)
        shared = _core.SharedWeights(listed, reader_threads=2, chunk_bytes=40_000, buffers_per_thread=2)
        return _core.load_weights(shared, list(devices))
"""


def on_gpus(code: str, folder: Path) -> str:
    environment = fake_driver.build(folder).environment
    return check_child(textwrap.dedent(ON_GPUS) + textwrap.dedent(code), environment=environment)


def test_reader_threads_read_a_source_at_the_same_time(tmp_path: Path) -> None:
    code = """
        import ctypes

        class Together(Stored):
            both = threading.Barrier(2)

            def read_into(self, buffer, offset):
                if offset < 80_000:  # each thread's first chunk
                    self.both.wait(60)
                return super().read_into(buffer, offset)

        for kind in (Together, Filling, Array):
            source = kind({"weights": content}, "weights")
            loaded = load(source)
            assert sorted(source.ranges)[0] == (0, 40_000) and sum(size for _, size in source.ranges) == len(content)
            for each in loaded:
                for i in range(16):
                    found = ctypes.string_at(each.address(i), 1 << 16)
                    assert found == content[i << 16 : (i + 1) << 16], (kind, i)
            del loaded, each
        print(ctypes.CDLL("libcuda.so.1").live())
    """
    assert on_gpus(code, tmp_path) == "0\n"


def test_a_source_that_fails_in_the_middle_of_a_load_leaves_nothing(tmp_path: Path) -> None:
    code = """
        class Failing(Stored):
            def read_into(self, buffer, offset):
                if offset >= 400_000:
                    raise ConnectionError("lost")
                return super().read_into(buffer, offset)

        load(Stored({"weights": content}, "weights"))
        with nothing_leaks():
            try:
                load(Failing({"weights": content}, "weights"))
            except ortmulti.Fail as error:
                print(error)
            load(Stored({"weights": content}, "weights"))
    """
    printed = on_gpus(code, tmp_path)
    failed = [
        f" : reading 'memory://weights' at byte {at} failed: ConnectionError: lost\n" for at in (400_000, 440_000)
    ]
    assert printed.endswith(tuple(failed)), printed  # either thread's
