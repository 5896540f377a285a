"""One load of a model for a pool: its sessions are warmed up and handed on as they become ready."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ortmulti import _core, _shared
from ortmulti.devices import Device
from ortmulti.errors import ClosedError
from ortmulti.options import RunOptions
from ortmulti.pool.warmup import Warmup, warm_up_one
from ortmulti.session import InferenceSession
from ortmulti.timeline import Timeline

__all__ = ["Loading", "Receiver", "Staged"]


class Receiver(Protocol):
    """Who gets the sessions of a load."""

    def targets(self, devices: Sequence[str]) -> None:
        """Called once it is known on which devices there will be sessions, one entry for each."""

    def ready(self, index: int, session: InferenceSession) -> None:
        """Called for each session when it is warm, from any thread; it is the receiver's to close."""

    def failed(self, index: int, error: BaseException) -> None:
        """Called for each session that failed beside others, where these keep going."""


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
    """

    def __init__(
        self,
        request: _shared.Request,
        receiver: Receiver,
        timeline: Timeline,
        warmup: Warmup | None,
        keep_going: bool,
    ) -> None:
        self._request = request
        self._receiver = receiver
        self._timeline = timeline
        self._warmup = warmup
        self._keep_going = keep_going
        self._feeds: list[Mapping[str, Any]] | None = None
        self._feeds_lock = threading.Lock()
        self._warming: list[threading.Thread] = []
        self._end_runs: RunOptions | None = None
        self._cancelled = False
        self._error: BaseException | None = None
        self._handed_on = False
        self._ended = threading.Event()
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
                _shared.create(dataclasses.replace(self._request, listener=self))
                self._join()
            except _Cancelled:
                pass
            except BaseException as error:
                self._error = self._error or error
                self.cancel()
            self._join()
        except BaseException:  # Ctrl-C, while it waited
            self.cancel()
            self._join()
            raise
        finally:
            self._ended.set()
        if self._error is not None and not (self._keep_going and self._handed_on and not self._cancelled):
            raise self._error
        if self._cancelled:
            raise ClosedError("the pool was closed while it was loading")

    def cancel(self) -> None:
        """Ends it soon: what has not begun does not begin, and what is ready and was not handed on is closed."""
        self._cancelled = True
        if self._end_runs is not None:
            self._end_runs.terminate = True

    def wait(self) -> None:
        """Waits until `run` has ended; returns at once in the thread that it runs in."""
        if self.thread != threading.get_ident():
            self._ended.wait()

    @property
    def keep_going(self) -> bool:
        return self._keep_going

    @property
    def timeline(self) -> Timeline:
        return self._timeline

    def targets(self, devices: Sequence[Device]) -> None:
        self._receiver.targets([str(device) for device in devices])

    def ready(self, index: int, core: _core.Session) -> None:
        session = InferenceSession._from_core(core, self._timeline, self._request.options)
        if self._cancelled:
            session.close()
        elif self._warmup is None:
            self._hand_on(index, session)
        else:
            if self._end_runs is None:
                self._end_runs = RunOptions()
                self._end_runs.terminate = self._cancelled
            thread = threading.Thread(
                target=self._warm_up, args=(index, session, self._warmup), name="ortmulti-warmup", daemon=True
            )
            try:
                thread.start()
            except BaseException:
                session.close()
                raise
            self._warming.append(thread)

    def failed(self, index: int, error: BaseException) -> None:
        self._error = self._error or error
        self._receiver.failed(index, error)

    def poll(self) -> None:
        if self._cancelled:
            raise _Cancelled

    def _warm_up(self, index: int, session: InferenceSession, warmup: Warmup) -> None:
        try:
            with self._feeds_lock:
                if self._feeds is None:
                    self._feeds = warmup.feeds(session)
            warm_up_one(session, self._feeds, warmup.runs, self._timeline, self._end_runs)
            self.poll()
            self._hand_on(index, session)
        except _Cancelled:
            session.close()
        except BaseException as error:
            session.close()
            if self._keep_going and not self._cancelled:
                self.failed(index, error)
            elif not self._cancelled:
                self._error = error
                self.cancel()

    def _hand_on(self, index: int, session: InferenceSession) -> None:
        self._handed_on = True
        self._receiver.ready(index, session)

    def _join(self) -> None:
        for thread in self._warming:
            thread.join()


class Staged:
    """Sessions that take no requests before all of them are there."""

    def __init__(self) -> None:
        self.sessions: dict[int, InferenceSession] = {}

    def targets(self, devices: Sequence[str]) -> None:
        pass

    def ready(self, index: int, session: InferenceSession) -> None:
        self.sessions[index] = session

    def failed(self, index: int, error: BaseException) -> None:
        pass

    def take(self) -> list[InferenceSession]:
        return [session for _, session in sorted(self.sessions.items())]

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
