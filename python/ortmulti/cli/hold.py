"""`ortmulti hold`: weights on GPUs that stay while services restart."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.markup import escape

from ortmulti import _core
from ortmulti.errors import Fail

from .options import device_names
from .output import say, size_text, steps

if TYPE_CHECKING:
    from ortmulti.pool.pool import Pool


def hold_command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models, as services load them.")],
    devices: Annotated[str, typer.Option(help="all: every GPU. Or a list: 0,1.")] = "all",
) -> None:
    """Keep the weights of models on GPUs until SIGTERM or Ctrl-C, and do nothing else.

    Services of this user that load these models with share="host" use the same memory, and may restart or crash. A
    second holder takes over from the first one, which may then end.
    """
    ends = (signal.SIGTERM, signal.SIGINT)
    before = [(each, signal.signal(each, signal.default_int_handler)) for each in ends]
    pools: list[Pool] = []
    try:
        with steps() as step:
            for place, model in enumerate(models):
                step(place, len(models), model)
                pools.append(_held(model, devices))
            step(len(models), len(models), "")
        names = {one.uuid: f"cuda:{one.index}" for one in _core.cuda_devices()}
        for one in _own():
            say(f"holding {escape(one.model)}: {size_text(one.bytes)} on {names.get(one.uuid, one.uuid)}")
        _tell_systemd("READY=1")
        _wait_for_signal()
    except KeyboardInterrupt:
        _tell_systemd("STOPPING=1")
    finally:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C ends it no faster
        for pool in pools:
            pool.close()
        for each, handler in before:
            signal.signal(each, handler)


def _wait_for_signal() -> NoReturn:
    """Wait until a signal's handler raises. A signal that comes just before the wait ends it, too."""
    received, written = socket.socketpair()
    with received, written:
        written.setblocking(False)
        before = signal.set_wakeup_fd(written.fileno())
        try:
            while True:
                received.recv(1)
        finally:
            signal.set_wakeup_fd(before)


def _held(model: str, devices: str) -> Pool:
    """Load a model, whose weights are offered then.

    Raises:
        Fail: They cannot be.
    """
    from ortmulti import load

    before = len(_own())
    pool = load(model, device_names(devices), share="host", cuda_graph=False)
    problems = [span.name for span in pool.timeline.spans if span.name.startswith("not shared")]
    if problems or len(_own()) == before:
        names = [*map(str, pool.devices)]
        pool.close()
        why = "weights on GPUs are held, and the device is the CPU" if "cpu" in names else "the model has none"
        raise Fail(f"the weights of {model!r} cannot be held: {problems[0] if problems else why}")
    return pool


def _own() -> list[_core.OfferedWeights]:
    return [one for one in _core.offered_weights() if one.process == os.getpid()]


def _tell_systemd(state: str) -> None:
    """Tell the service manager how far the service is, if it asks (Type=notify).

    Raises:
        Fail: It cannot be told.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.sendall(state.encode())
    except OSError as error:
        raise Fail(f"NOTIFY_SOCKET is {address!r}, and cannot be written to: {error}") from None
