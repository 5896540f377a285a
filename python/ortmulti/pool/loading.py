"""One load of a model for a pool: its sessions are warmed up and handed on as they become ready."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ortmulti import _core
from ortmulti._create import shared
from ortmulti._runtime.threads import Task
from ortmulti.devices import Device
from ortmulti.errors import ClosedError
from ortmulti.options import RunOptions
from ortmulti.pool.configuration import Warmup
from ortmulti.session import InferenceSession
from ortmulti.timeline import Timeline

__all__ = ["Loading", "Receiver", "Serving", "Staged", "Warming"]


class Receiver(Protocol):
    """Who gets the sessions of a load."""

    def targets(self, devices: Sequence[str]) -> None:
        """Called once it is known on which devices there will be sessions, one entry for each."""

    def ready(self, index: int, session: InferenceSession, warming: Warming) -> None:
        """Called for each session, from any thread, to be warmed up; it is the receiver's to close, unless this
        raises."""

    def failed(self, index: int, error: BaseException) -> None:
        """Called for each session that failed beside others, where these keep going."""


@dataclasses.dataclass(frozen=True)
class Warming:
    """What a session runs before it takes requests.

    Attributes:
        feeds: The inputs of each run.
        runs: How often each is run.
        end: Ends the runs.
    """

    feeds: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    runs: int = 0
    end: RunOptions | None = None


@dataclasses.dataclass(frozen=True)
class Serving:
    """How a session serves requests.

    Attributes:
        in_flight: How many requests it has under way on a GPU.
        max_graphs: Of how many shapes CUDA graphs are kept; 0: none are captured.
    """

    in_flight: int = 1
    max_graphs: int = 0

    @property
    def warm_up_runs(self) -> int:
        """How often a sample is run: with CUDA graphs the second run captures."""
        return 2 if self.max_graphs else 1


class _Cancelled(Exception):  # noqa: N818  (no error, but the way out)
    pass


class Loading:
    """One load on its way. `run` does all of it; `cancel` may be called from any thread meanwhile.

    Args:
        request: What is loaded.
        receiver: Who gets the sessions.
        timeline: Where the spans go.
        warmup: What each session runs before it is handed on; None: nothing.
        keep_going: Whether one session's failure is only its own.
        runs: How often each sample is run, unless ``warmup`` says so.
        first: The GPU whose session comes first: the others' contexts wait until one session was handed on. None: all
            contexts are made at once.
    """

    def __init__(
        self,
        request: shared.Request,
        receiver: Receiver,
        timeline: Timeline,
        warmup: Warmup | None,
        keep_going: bool,
        runs: int = 1,
        first: int | None = None,
    ) -> None:
        self._request = request
        self._receiver = receiver
        self._timeline = timeline
        self._warmup = warmup
        self._keep_going = keep_going
        self._runs = runs
        self._hold = None if first is None else _core.ContextHold(first)
        self._feeds: list[Mapping[str, Any]] | None = None
        self._feeds_lock = threading.Lock()
        self._warming: list[tuple[Task, InferenceSession]] = []
        self._end_runs: RunOptions | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self._handed_on = False
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        self.thread: int | None = None
        """In which thread it runs."""

    def run(self) -> None:
        """Loads, and returns when every session was handed on or has failed.

        Raises:
            As `load`: the first failure, unless others keep going; then if all failed. What was not handed on is
            closed.
            ClosedError: It was cancelled.
        """
        self.thread = threading.get_ident()
        try:
            try:
                shared.create(dataclasses.replace(self._request, listener=self, hold=self._hold))
                self._join()
            except _Cancelled:
                pass
            except BaseException as error:
                self._note(error)
                self.cancel()
            self._join()
        except BaseException:  # Ctrl-C, while it waited
            self.cancel()
            self._join()
            raise
        finally:
            self._release()
            self._unfinished.release()
        if self._error is not None and not (self._keep_going and self._handed_on and not self._cancelled):
            raise self._error
        if self._cancelled:
            raise ClosedError("the pool was closed while it was loading")

    def cancel(self) -> None:
        """Ends it soon: what has not begun does not begin, and what is ready and was not handed on is closed."""
        self._cancelled = True
        self._release()
        if self._end_runs is not None:
            self._end_runs.terminate = True

    def wait(self) -> None:
        """Waits until `run` has ended; returns at once in the thread that it runs in."""
        if self.thread != threading.get_ident():
            with self._unfinished:
                pass

    @property
    def keep_going(self) -> bool:
        return self._keep_going

    @property
    def timeline(self) -> Timeline:
        return self._timeline

    def targets(self, devices: Sequence[Device]) -> None:
        self._receiver.targets([str(device) for device in devices])

    def ready(self, index: int, core: _core.Session) -> None:
        try:
            session = InferenceSession._from_core(core, self._timeline, self._request.options)
            if self._cancelled:
                session.close()
            elif self._warmup is None and session.device == "cpu":
                self._hand_on(index, session)
            else:
                if self._end_runs is None:
                    self._end_runs = RunOptions()
                    self._end_runs.terminate = self._cancelled
                task = Task(partial(self._hand_on, index, session), "ortmulti-warmup")
                self._warming.append((task, session))
                task.start()
        except BaseException:  # no thread, or Ctrl-C at any point of this
            self.cancel()  # before the session is closed: its thread may be running it
            core.close()
            raise

    def failed(self, index: int, error: BaseException) -> None:
        self._note(error)
        self._receiver.failed(index, error)

    def poll(self) -> None:
        if self._cancelled:
            raise _Cancelled

    def _hand_on(self, index: int, session: InferenceSession) -> None:
        try:
            warming = Warming()
            if self._warmup is not None:
                with self._feeds_lock:
                    if self._feeds is None:
                        self._feeds = self._warmup.feeds(session)
                warming = Warming(self._feeds, self._warmup.runs or self._runs, self._end_runs)
            self.poll()
            self._receiver.ready(index, session, warming)
            self._handed_on = True
        except _Cancelled:
            session.close()
        except BaseException as error:
            session.close()
            if self._cancelled:
                return
            if self._keep_going:
                self.failed(index, error)
            else:
                self._note(error)
                self.cancel()
        finally:
            self._release()

    def _note(self, error: BaseException) -> None:
        # The first error counts, but a KeyboardInterrupt is never replaced by a session's failure.
        if self._error is None or (isinstance(self._error, Exception) and not isinstance(error, Exception)):
            self._error = error

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _join(self) -> None:
        for task, session in self._warming:
            if self._cancelled and task.revoke():
                session.close()
            task.wait()


class Staged:
    """Sessions that are added to a pool of the core, and noted, by a change that may still fail.

    Args:
        add: Adds one.
    """

    def __init__(self, add: Callable[[InferenceSession, Warming], None]) -> None:
        self._add = add
        self.sessions: dict[int, InferenceSession] = {}

    def targets(self, devices: Sequence[str]) -> None:
        pass

    def ready(self, index: int, session: InferenceSession, warming: Warming) -> None:
        self._add(session, warming)
        self.sessions[index] = session

    def failed(self, index: int, error: BaseException) -> None:
        pass

    def take(self) -> list[InferenceSession]:
        return [session for _, session in sorted(self.sessions.items())]

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
