"""A worker's process: one onnxruntime session, fed through sockets and shared memory.

The running thread reads the sockets of the lines itself, so no request changes threads here:

- ``("call", function, arguments)``, answered by ``("ready",)`` or ``("failed", kind, text)``;
- ``("load", spec)``, with the model's bytes as a file where it has no path, answered by ``("ready", signature, spans)``
  or ``("failed", kind, text)``, after which the process ends;
- ``("run", order, names, inputs, end, new)``, with the line's new memory if ``new``; the orders of a line grow.
  Answered by ``("done", outputs, new)`` or ``("error", kind, text)``;
- ``("end",)``.

Another socket brings ``("cancel", line, order)`` to another thread, which ends the process with that socket's end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ortmulti.interface.onnxruntime_errors import translate, why_broken
from ortmulti.interface.onnxruntime_sessions import SessionSpec, create_session, open_package
from ortmulti.interface.session_observer import observer
from ortmulti.pool.processes.ipc import Channel
from ortmulti.pool.processes.shm import Place, Segment, place_all, space_for, take
from ortmulti.pool.processes.signature import Signature

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


class _Line:
    """One socket, and the memory that goes with it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.segment: Segment | None = None
        self.begun = 0  # the order of the last run
        self.skipped = 0  # the last that was cancelled before it was read, as were those before it


class _Server:
    """The session and its threads."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._lines = [_Line(channel) for channel in channels]
        self._spec: SessionSpec | None = None
        self._ort: Any = None
        self._session: Any = None
        self._lock = threading.Lock()
        self._running: _Line | None = None
        self._options: Any = None  # of the run that there is now

    def _call(self, line: _Line, function: Callable[..., object], arguments: Sequence[object]) -> bool:
        try:
            function(*arguments)
        except Exception as error:
            line.channel.send(("failed", *translate(error, function.__name__)))
        else:
            line.channel.send(("ready",))
        return True

    def _load(self, line: _Line, spec: SessionSpec) -> bool:
        """Create the session, says that it is ready or why not, and return whether it is."""
        if spec.model == b"":
            with os.fdopen(line.channel.take_descriptor(), "rb") as file:
                file.seek(0)
                spec = replace(spec, model=file.read())
        try:
            start = time.monotonic_ns()
            self._ort = open_package([spec.device])
            imported = time.monotonic_ns()
            self._session = create_session(self._ort, spec)
            spans = [("import onnxruntime", start, imported), ("create session", imported, time.monotonic_ns())]
            line.channel.send(("ready", Signature.of(spec.text, self._session), spans))
        except Exception as error:
            line.channel.send(("failed", *translate(error, f"creating a session of {spec.text} on {spec.device}")))
            return False
        self._spec = replace(spec, model="")  # its bytes are not needed any more
        return True

    def listen(self, control: Channel) -> None:
        """Cancel runs on request until the pool is gone, and end the process then."""
        with contextlib.suppress(EOFError):
            while True:
                _, index, order = control.receive()
                line = self._lines[index]
                with self._lock:
                    # Asked a second time, as by a deadline after a cancellation, it has its answer: one more would be
                    # the next run's.
                    answered = max(line.begun, line.skipped) >= order
                    if not answered:
                        line.skipped = order
                    elif line.begun == order and self._running is line:
                        self._options.terminate = True
                if answered:
                    continue
                line.channel.send(("error", "Error", "the request was cancelled"))
        # At once, also during a run: there is no receiver for an answer.
        os._exit(0)

    def serve(self) -> None:
        """Run what comes, until the pool wants no more or the device is of no use to this process."""
        steps: dict[str, Callable[..., bool]] = {
            "call": self._call,
            "load": self._load,
            "run": self._run,
            "end": self._end,
        }
        for line, (what, *message) in self._messages():
            if not steps[what](line, *message):
                return

    def _messages(self) -> Iterator[tuple[_Line, Any]]:
        if len(self._lines) == 1:
            [line] = self._lines
            while True:
                yield line, line.channel.receive()
        poll = select.poll()
        lines = {line.channel.fileno(): line for line in self._lines}
        for descriptor in lines:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                line = lines[descriptor]
                yield line, line.channel.receive()
                while line.channel.has_message:
                    yield line, line.channel.receive()

    def _end(self, _line: _Line) -> bool:
        observer().finish()
        self._session = None
        return False

    def _run(
        self, line: _Line, order: int, names: Sequence[str], inputs: Sequence[tuple[str, Place]], end: int, new: bool
    ) -> bool:
        if new:
            descriptor = line.channel.take_descriptor()
            line.segment = Segment(descriptor)
            os.close(descriptor)
        segment = line.segment
        assert segment is not None
        options = self._ort.RunOptions()
        with self._lock:
            if order <= line.skipped:
                return True  # and its memory may have another's inputs already
            line.begun, self._running, self._options = order, line, options
            segment.begun = True
        made: int | None = None
        broken = ""
        try:
            feed = {name: take(segment, place, copy=False) for name, place in inputs}
            with observer().running(self._session):
                outputs = self._session.run(names, feed, options)
            full = space_for(outputs, end)
            if full > segment.size:
                segment, made = Segment.make(full)
                line.segment = segment
            answer: tuple[Any, ...] = ("done", place_all(segment, outputs, end), made is not None)
        except Exception as error:
            if made is not None:
                os.close(made)
                made = None
            assert self._spec is not None
            broken = why_broken(str(self._spec.device))
            answer = ("error", *translate(error, f"running {self._spec.text} on {self._spec.device}"))
        with self._lock:
            self._running = self._options = None
        if made is None:
            line.channel.send(answer)
        else:
            line.channel.send(answer, [made])
            os.close(made)
        return not broken


def main(data: Sequence[int], control: int, parent: int) -> None:
    """Serve the pool at the other ends of these sockets, in the process ``parent``, until one of them is gone."""
    # The pool handles Ctrl-C. This process also ends if the pool's process is killed, even if a forked child keeps its
    # sockets open.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    *channels, cancelling = (Channel(socket.socket(fileno=descriptor)) for descriptor in (*data, control))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        server = _Server(channels)
        threading.Thread(target=server.listen, args=[cancelling], name="listen", daemon=True).start()
        server.serve()
    sys.stdout.flush()
    os._exit(0)  # without what interpreters and CUDA do at their end: the pool waits for it
