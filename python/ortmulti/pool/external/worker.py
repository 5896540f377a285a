"""A worker's process: one onnxruntime session, fed through two sockets and shared memory.

The thread that runs reads one of the sockets by itself, so that no request changes threads here:

- ``("call", function, arguments)``, answered by ``("ready",)`` or ``("failed", kind, text)``;
- ``("load", spec)``, with the model's bytes as a file where it has no path, answered by ``("ready", signature, spans)``
  or ``("failed", kind, text)``, after which the process ends;
- ``("run", number, slot, names, inputs, end, new)``, with the slot's new memory if ``new``; numbers grow. Answered by
  ``("done", number, slot, outputs, started, ended, new)``, ``("error", number, slot, kind, text, started, ended)`` or
  ``("skipped", number, slot)``;
- ``("end",)``.

The other socket brings ``("cancel", number, slot)`` to another thread, which ends the process with that socket's end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ortmulti._create.onnxruntime_errors import translate, why_broken
from ortmulti._create.onnxruntime_sessions import SessionSpec, create_session, open_package
from ortmulti._create.session_observer import observer
from ortmulti.pool.external.ipc import Channel
from ortmulti.pool.external.shm import Place, Segment, place_all, space_for, take
from ortmulti.pool.external.signature import Signature

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


class _Server:
    """The session and who runs it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._spec: SessionSpec | None = None
        self._ort: Any = None
        self._session: Any = None
        self._segments: dict[int, Segment] = {}
        self._lock = threading.Lock()
        self._begun = -1  # the last run's number
        self._options: Any = None  # of the run that there is now
        self._skipped: set[int] = set()

    def _call(self, function: Callable[..., object], arguments: Sequence[object]) -> bool:
        try:
            function(*arguments)
        except Exception as error:
            self._channel.send(("failed", *translate(error, function.__name__)))
        else:
            self._channel.send(("ready",))
        return True

    def _load(self, spec: SessionSpec) -> bool:
        """Creates the session, says that it is ready or why not, and returns whether it is."""
        if spec.model == b"":
            with os.fdopen(self._channel.take_descriptor(), "rb") as file:
                file.seek(0)
                spec = replace(spec, model=file.read())
        try:
            start = time.monotonic_ns()
            self._ort = open_package([spec.device])
            imported = time.monotonic_ns()
            self._session = create_session(self._ort, spec)
            spans = [("import onnxruntime", start, imported), ("create session", imported, time.monotonic_ns())]
            self._channel.send(("ready", Signature.of(spec.text, self._session), spans))
        except Exception as error:
            self._channel.send(("failed", *translate(error, f"creating a session of {spec.text} on {spec.device}")))
            return False
        self._spec = replace(spec, model="")  # its bytes are not needed any more
        return True

    def listen(self, control: Channel) -> None:
        """Cancels what it is told to, until the pool is gone, and ends the process then."""
        with contextlib.suppress(EOFError):
            while True:
                _, number, slot = control.receive()
                with self._lock:
                    if number == self._begun and self._options is not None:
                        self._options.terminate = True
                    if number <= self._begun:
                        continue
                    self._skipped.add(number)
                self._answer(("skipped", number, slot))
        # At once, whatever runs: nobody is there to be answered.
        os._exit(0)

    def serve(self) -> None:
        """Runs what comes, until the pool wants no more or the device is of no use to this process."""
        steps: dict[str, Callable[..., bool]] = {
            "call": self._call,
            "load": self._load,
            "run": self._run,
            "end": self._end,
        }
        while True:
            what, *message = self._channel.receive()
            if not steps[what](*message):
                return

    def _end(self) -> bool:
        observer().finish()
        self._session = None
        return False

    def _run(
        self, number: int, slot: int, names: Sequence[str], inputs: Sequence[tuple[str, Place]], end: int, new: bool
    ) -> bool:
        if new:
            descriptor = self._channel.take_descriptor()
            self._segments[slot] = Segment(descriptor)
            os.close(descriptor)
        segment = self._segments[slot]
        options = self._ort.RunOptions()
        with self._lock:
            if number in self._skipped:
                self._skipped.remove(number)  # and its slot may have another's inputs already
                return True
            self._begun, self._options = number, options
            segment.begun = True
        made: int | None = None
        broken = ""
        started = time.monotonic_ns()
        try:
            feed = {name: take(segment, place, copy=False) for name, place in inputs}
            with observer().running(self._session):
                outputs = self._session.run(names, feed, options)
            full = space_for(outputs, end)
            if full > segment.size:
                segment, made = Segment.make(full)
                self._segments[slot] = segment
            places = place_all(segment, outputs, end)
            answer: tuple[Any, ...] = ("done", number, slot, places, started, time.monotonic_ns(), made is not None)
        except Exception as error:
            if made is not None:
                os.close(made)
                made = None
            assert self._spec is not None
            broken = why_broken(str(self._spec.device))
            kind, text = translate(error, f"running {self._spec.text} on {self._spec.device}")
            answer = ("error", number, slot, kind, text, started, time.monotonic_ns())
        with self._lock:
            self._options = None
        self._answer(answer, made)
        return not broken

    def _answer(self, message: tuple[Any, ...], descriptor: int | None = None) -> None:
        if descriptor is None:
            self._channel.send(message)
        else:
            self._channel.send(message, [descriptor])
            os.close(descriptor)


def main(data: int, control: int, parent: int) -> None:
    """Serves the pool at the other ends of these sockets, in the process ``parent``, until one of both is gone."""
    # Ctrl-C is the pool's matter. Where the pool's process is killed, and its ends of the sockets live on in a child
    # that it forked, this process ends too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    channel, cancelling = (Channel(socket.socket(fileno=descriptor)) for descriptor in (data, control))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        server = _Server(channel)
        threading.Thread(target=server.listen, args=[cancelling], name="listen", daemon=True).start()
        server.serve()
    sys.stdout.flush()
    os._exit(0)  # without what interpreters and CUDA do at their end: the pool waits for it
