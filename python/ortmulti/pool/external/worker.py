"""A worker's process: one onnxruntime session, fed through two sockets and shared memory.

The thread that runs reads one of the sockets by itself, so that no request changes threads here: ``("load", order)``,
with the model's bytes as a file where it has no path; ``("run", number, slot, names, inputs, end, new)``, with the
slot's new memory if ``new``; ``("end",)``. Numbers grow. The other socket brings ``("cancel", number, slot)`` to
another thread, which ends the process with that socket's end. The pool gets, by the first, ``("ready", signature,
spans)`` or ``("failed", kind, text)``; then for each number ``("done", number, slot, outputs, started, ended, new)``,
``("error", number, slot, kind, text, started, ended)`` or ``("skipped", number, slot)``.
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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ortmulti.pool.external.ipc import Channel
from ortmulti.pool.external.onnxruntime_errors import translate, why_broken
from ortmulti.pool.external.shm import Place, Segment, place_all, space_for, take
from ortmulti.pool.external.signature import Signature
from ortmulti.pool.external.worker_spec import Order

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


class _Server:
    """The session and who runs it."""

    def __init__(self, channel: Channel, order: Order) -> None:
        self._channel = channel
        self._order = order
        self._ort: Any = None
        self._session: Any = None
        self._segments: dict[int, Segment] = {}
        self._lock = threading.Lock()
        self._begun = -1  # the last run's number
        self._options: Any = None  # of the run that there is now
        self._skipped: set[int] = set()

    def load(self) -> bool:
        """Creates the session, says that it is ready or why not, and returns whether it is."""
        from ortmulti._create import onnxruntime_sessions
        from ortmulti._runtime.onnxruntime_package import import_onnxruntime, open_cuda_libraries

        order = self._order
        spans = []
        try:
            start = time.monotonic_ns()
            self._ort = import_onnxruntime()
            open_cuda_libraries(self._ort, [order.device])
            imported = time.monotonic_ns()
            spans.append(("import onnxruntime", start, imported))
            options = onnxruntime_sessions.make_options(self._ort, order.options)
            self._session = onnxruntime_sessions.create(self._ort, order.model, options, order.device, order.providers)
            spans.append(("create session", imported, time.monotonic_ns()))
            message: tuple[Any, ...] = ("ready", Signature.of(order.text, self._session), spans)
        except Exception as error:
            message = ("failed", *translate(error, f"creating a session of {order.text} on {order.device}"))
        self._channel.send(message)
        return self._session is not None

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
        while True:
            what, *message = self._channel.receive()
            if what == "end":
                self._session = None
                return
            if not self._run(*message):
                return

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
            broken = why_broken(self._order.device)
            kind, text = translate(error, f"running {self._order.text} on {self._order.device}")
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
        _, order = channel.receive()
        if order.model == b"":
            with os.fdopen(channel.take_descriptor(), "rb") as file:
                file.seek(0)
                order = replace(order, model=file.read())
        server = _Server(channel, order)
        threading.Thread(target=server.listen, args=[cancelling], name="listen", daemon=True).start()
        if server.load():
            server.serve()
    sys.stdout.flush()
    os._exit(0)  # without what interpreters and CUDA do at their end: the pool waits for it
