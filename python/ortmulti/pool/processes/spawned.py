"""The pool's side of a worker process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ortmulti._runtime.child_process import ChildProcess
from ortmulti.errors import DeviceError, Error, Fail
from ortmulti.interface.onnxruntime_errors import error_of
from ortmulti.interface.onnxruntime_sessions import SessionSpec
from ortmulti.pool.processes.ipc import Channel
from ortmulti.pool.processes.shm import Segment, place_all, space_for, take
from ortmulti.pool.processes.signature import Signature
from ortmulti.timeline import Timeline

__all__ = ["Line", "SpawnedSession"]

# A process that has closed its sockets is ending.
_PATIENCE = 10.0

_CODE = """import sys
sys.path[:] = {path!r}
from ortmulti.pool.processes.worker import main
main({data}, {control}, {parent})
"""


class Line:
    """The connection for one run at a time: a socket, and shared memory.

    This process owns the memory while it writes inputs and reads outputs; in between the other process owns it. Either
    side replaces it by larger memory as needed.

    Args:
        name: The device, or more, for messages.
        index: Index among the lines of the process.
        channel: The socket.
        control: The process's socket for messages that do not wait for a run.
    """

    def __init__(self, name: str, index: int, channel: Channel, control: Channel) -> None:
        self._name = name
        self._index = index
        self.channel = channel
        self._control = control
        self._using = threading.Lock()  # held by the thread that runs
        self._segment: Segment | None = None
        self._answered = False
        self._lock = threading.Lock()
        self._order = 0  # of the last run, among those of the line
        self._running = 0  # the number of the run that there is
        self._terminated = 0

    @property
    def busy(self) -> bool:
        """Whether it is used by a run."""
        return self._using.locked()

    @property
    def begun(self) -> bool:
        """Whether the process has begun the last run."""
        return self._segment is not None and self._segment.begun

    @property
    def has_run(self) -> bool:
        """Whether the process has ever begun a run."""
        return self._answered or self.begun

    def run(self, number: int, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run a request in the process and return the outputs.

        Args:
            number: Number for `terminate`; 0: the run cannot be terminated.

        Raises:
            EOFError: The process has ended.
            Error: The run failed, or was terminated.
        """
        with self._using:
            try:
                self._send(number, names, feed)
                what, *content = self._receive()
            finally:
                with self._lock:
                    self._running = 0
            self._answered = True
            if what == "done":
                return self._take(*content)
            raise error_of(*content)

    def _send(self, number: int, names: Sequence[str], feed: Mapping[str, Any]) -> None:
        descriptor = None
        try:
            values = list(feed.values())
            end = space_for(values)
            if self._segment is None or end > self._segment.size:
                self._segment, descriptor = Segment.make(end)
            self._segment.begun = False
            places = place_all(self._segment, values)
            with self._lock:
                if number and number == self._terminated:
                    raise Error("the request was cancelled")
                self._order += 1
                self._running = number
            message = ("run", self._order, names, list(zip(feed, places, strict=True)), end, descriptor is not None)
            try:
                self.channel.send(message, [] if descriptor is None else [descriptor])
            except OSError:  # it has ended, or ends now: how much was sent is unknown
                self.channel.shut_down()
                raise EOFError from None
        except BaseException as problem:
            if descriptor is not None:
                self._segment = None  # which the process does not have
            if isinstance(problem, Error | EOFError) or not isinstance(problem, Exception):
                raise
            raise Fail(f"{self._name}: the request cannot be sent: {problem}") from problem
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _receive(self) -> Any:
        try:
            return self.channel.receive()
        except OSError:
            raise EOFError from None

    def _take(self, places: Sequence[Any], new: bool) -> list[Any]:
        try:
            if new:
                descriptor = self.channel.take_descriptor()
                try:
                    self._segment = Segment(descriptor)
                finally:
                    os.close(descriptor)
            assert self._segment is not None
            return [take(self._segment, place, copy=True) for place in places]
        except Exception as error:  # no memory, say
            raise error_of("OutOfMemory", f"{self._name}: the outputs cannot be taken: {error}") from error

    def terminate(self, number: int) -> None:
        """End the run with this number early, or prevent it. Nothing happens if it has ended."""
        with self._lock:
            self._terminated = number
            order = self._order if self._running == number else 0
        if order:
            with contextlib.suppress(OSError):  # the process has ended
                self._control.send(("cancel", self._index, order))

    def end_run(self) -> None:
        """End the present run, if it may be terminated."""
        if number := self._running:
            self.terminate(number)

    def close(self) -> None:
        """Close it after its last use. The process has ended."""
        self.channel.shut_down()
        with self._using:
            self.channel.close()


class SpawnedSession:
    """A process with one session. It is spawned, not forked, and without the caller's ``__main__``.

    The kernel ends the process with the thread that made this object.

    Args:
        name: The device, or more, for messages.
        lines: Number of requests that it may have at a time; it runs one of them.
    """

    def __init__(self, name: str, lines: int = 1) -> None:
        self._name = name
        self.signature: Signature | None = None
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ends = []
            channels = []
            for _ in range(lines + 1):
                our_end, their_end = socket.socketpair()
                ends.append(theirs.enter_context(their_end))
                channels.append(Channel(our_end))
                ours.callback(channels[-1].close)
            self._control = channels.pop()
            self.lines = [Line(name, index, channel, self._control) for index, channel in enumerate(channels)]
            *data, control = [end.fileno() for end in ends]
            self._process = ChildProcess(
                _CODE.format(path=sys.path, data=data, control=control, parent=os.getpid()),
                flags=subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                descriptors=[*data, control],
            )
            ours.pop_all()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def has_run(self) -> bool:
        """Whether it has ever begun a run."""
        return any(line.has_run for line in self.lines)

    def call(self, when: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the process, before its session is created; all has to be picklable.

        Args:
            when: For the message if the process ends.

        Raises:
            Error: The function raised, or the process has ended.
        """
        self._answer_to(("call", function, arguments), [], when)

    def load(self, spec: SessionSpec, timeline: Timeline) -> None:
        """Create the session, add the spans, and return when it can run. It replaces an earlier session.

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
        channel = self.lines[0].channel
        try:
            channel.send(message, descriptors)
            answer, *content = channel.receive()
        except (EOFError, OSError):
            raise self.death(when) from None
        if answer == "failed":
            raise error_of(*content)
        return list(content)

    def end(self) -> None:
        """End the process after its present runs."""
        with contextlib.suppress(OSError):  # it has ended
            self.lines[0].channel.send(("end",))

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._control.shut_down()
        for line in self.lines:
            line.channel.shut_down()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the process has ended, so many seconds at most, and return whether it has."""
        return self._process.wait(seconds)

    def death(self, when: str) -> DeviceError:
        """Wait until the process has ended, and say how."""
        if not self.wait(_PATIENCE):
            self._process.kill()
            self._process.wait()
        return DeviceError(f"{self._name}: the worker process {self.pid} {self._process.ending()} {when}")

    def close(self) -> None:
        """Close the sockets. The process has ended; callers that still wait for an answer get EOFError."""
        for line in self.lines:
            line.close()
        self._control.close()
