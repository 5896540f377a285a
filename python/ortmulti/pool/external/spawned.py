"""A worker's process as its pool sees it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ortmulti._create.onnxruntime_errors import error_of
from ortmulti._create.onnxruntime_sessions import SessionSpec
from ortmulti._runtime.child_process import ChildProcess
from ortmulti.errors import DeviceError, Error
from ortmulti.pool.external.ipc import Channel
from ortmulti.pool.external.shm import Segment, place_all, space_for, take
from ortmulti.pool.external.signature import Signature
from ortmulti.timeline import Timeline

__all__ = ["Answered", "SpawnedSession"]

# A process that has closed its socket is ending.
_PATIENCE = 10.0

_CODE = """import sys
sys.path[:] = {path!r}
from ortmulti.pool.external.worker import main
main({data}, {control}, {parent})
"""

Answered: TypeAlias = Callable[[list[Any] | Error | None, int, int], None]
"""Called as ``answered(outputs or error or None where it was skipped, started, ended)``."""


class SpawnedSession:
    """A process with one session. It is spawned, not forked, and without the caller's ``__main__``.

    It has so many slots, each with memory of its own that belongs to the pool while inputs are written and outputs are
    read, and to the process in between; a slot's memory is replaced by a larger one, from either side, as needed. One
    thread calls `send`, `cancel` and `end`, and one, which makes it and lives as long as the process, `receive`.

    Args:
        name: The device, or more, for messages.
        slots: How many requests it may have at a time, and one more, since a slot is free after its answer was told.
    """

    def __init__(self, name: str, slots: int) -> None:
        data, their_data = socket.socketpair()
        control, their_control = socket.socketpair()
        self._channel, self._control = Channel(data), Channel(control)
        self._name = name
        self._free = list(range(slots))
        self._segments: dict[int, Segment] = {}
        self._answered: dict[int, Answered] = {}
        self._slots: dict[int, int] = {}  # by the runs' numbers
        self._lock = threading.Lock()
        self._ended = ""  # how the process ended, once `close` was called
        self.signature: Signature | None = None
        code = _CODE.format(path=sys.path, data=their_data.fileno(), control=their_control.fileno(), parent=os.getpid())
        try:
            with their_data, their_control:
                self._process = ChildProcess(
                    code,
                    flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    descriptors=[their_data.fileno(), their_control.fileno()],
                )
        except BaseException:
            self._channel.close()
            self._control.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def call(self, when: str, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the process, before its session is created; all has to be picklable.

        Args:
            when: For the message if the process ends.

        Raises:
            Error: The function raised, or the process has ended.
        """
        self._answer_to(("call", function, arguments), [], when)

    def load(self, spec: SessionSpec, timeline: Timeline) -> None:
        """Has the session created, adds the spans, and returns when it can run. It replaces one from before.

        Raises:
            Error: It could not be created, or the process has ended.
        """
        with contextlib.ExitStack() as stack:
            message, descriptors = ("load", spec), []
            if isinstance(spec.model, bytes):
                file = stack.enter_context(os.fdopen(os.memfd_create("ortmulti-model", os.MFD_CLOEXEC), "wb"))
                file.write(spec.model)
                file.flush()
                message, descriptors = ("load", replace(spec, model=b"")), [file.fileno()]
            self.signature, spans = self._answer_to(message, descriptors, "while its session was created")
        timeline.add("start process", self._process.started, spans[0][1], str(spec.device))
        for name, start, end in spans:
            timeline.add(name, start, end, str(spec.device))

    def _answer_to(self, message: object, descriptors: Sequence[int], when: str) -> list[Any]:
        try:
            self._channel.send(message, descriptors)
            answer, *content = self._channel.receive()
        except (EOFError, OSError):
            raise self.death(when) from None
        if answer == "failed":
            raise error_of(*content)
        return list(content)

    def send(
        self,
        number: int,
        names: Sequence[str],
        feed: Mapping[str, Any],
        answered: Answered,
        filled: Callable[[Segment], object],
    ) -> None:
        """Has it run something; there must be a free slot.

        Args:
            number: By which it may be cancelled.
            answered: Called in the thread that receives; also when the process has ended.
            filled: Called before it may begin, with the memory that says whether it has.

        Raises:
            DeviceError: The process had ended before; then ``answered`` is not called.
        """
        with self._lock:
            slot = self._free.pop()
            segment = self._segments.get(slot)
        values = list(feed.values())
        end = space_for(values)
        descriptor = None
        try:
            if segment is None or end > segment.size:
                segment, descriptor = Segment.make(end)
            segment.begun = False
            places = place_all(segment, values)
            with self._lock:
                if self._ended:  # nobody is left to receive an answer
                    raise DeviceError(self._ended)
                self._segments[slot] = segment
                self._answered[number] = answered
                self._slots[number] = slot
            filled(segment)
            message = ("run", number, slot, names, list(zip(feed, places, strict=True)), end, descriptor is not None)
            try:
                self._channel.send(message, [] if descriptor is None else [descriptor])
            except OSError:
                return  # it has ended, as the thread that receives will find
        except BaseException:
            with self._lock:
                self._answered.pop(number, None)
                self._slots.pop(number, None)
                self._free.append(slot)
                self._segments.pop(slot, None)
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def cancel(self, number: int) -> None:
        """Has a run skipped, or ended early; nothing if it was answered."""
        with self._lock:
            slot = self._slots.get(number)
        if slot is not None:
            self._tell(self._control, "cancel", number, slot)

    def end(self) -> None:
        """Has the process end when it has done what it was sent."""
        self._tell(self._channel, "end")

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._channel.shut_down()
        self._control.shut_down()

    def receive(self) -> int:
        """Takes answers until the process has ended; returns how many runs it has done."""
        done = 0
        while (what := self.receive_one()) is not None:
            done += what != "skipped"
        return done

    def receive_one(self) -> str | None:
        """Takes the next answer: "done", "error" or "skipped"; None when the process has ended."""
        try:
            what, number, slot, *content = self._channel.receive()
        except EOFError:
            return None
        self._answer(what, number, slot, content)
        return str(what)

    def wait(self, seconds: float) -> bool:
        """Waits until the process has ended, so many seconds at most, and returns whether it has."""
        return self._process.wait(seconds)

    def death(self, when: str) -> DeviceError:
        """Waits until the process has ended, and says how."""
        if not self.wait(_PATIENCE):
            self._process.kill()
            self._process.wait()
        return DeviceError(f"{self._name}: the worker process {self.pid} {self._process.ending()} {when}")

    def close(self, error: Error) -> None:
        """Answers all that it still has with the error; the process has ended."""
        with self._lock:
            left, self._answered = self._answered, {}
            self._ended = str(error)
        now = time.monotonic_ns()
        for answered in left.values():
            answered(error, now, now)
        self._channel.close()
        self._control.close()

    @staticmethod
    def _tell(channel: Channel, *message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended
            channel.send(message)

    def _answer(self, what: str, number: int, slot: int, content: list[Any]) -> None:
        with self._lock:
            segment, answered = self._segments[slot], self._answered.pop(number)
            del self._slots[number]
        answer: list[Any] | Error | None = None
        started = ended = time.monotonic_ns()
        if what == "done":
            places, started, ended, new = content
            try:
                if new:
                    descriptor = self._channel.take_descriptor()
                    try:
                        segment = Segment(descriptor)
                    finally:
                        os.close(descriptor)
                answer = [take(segment, place, copy=True) for place in places]
            except Exception as error:  # no memory, say
                answer = error_of("OutOfMemory", f"{self._name}: the outputs cannot be taken: {error}")
        elif what == "error":
            kind, text, started, ended = content
            answer = error_of(kind, text)
        with self._lock:
            self._segments[slot] = segment
        answered(answer, started, ended)
        with self._lock:  # only now, since the slot says until then whether the run has begun
            self._free.append(slot)
