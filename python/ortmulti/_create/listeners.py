"""What stands between a creation and who gets its sessions, where these must not be given out at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortmulti import _core
from ortmulti._create.creation import Listener
from ortmulti.devices import Device
from ortmulti.timeline import Timeline

__all__ = ["Held", "Kept"]


class _Between:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    @property
    def keep_going(self) -> bool:
        return self._listener.keep_going

    @property
    def timeline(self) -> Timeline:
        return self._listener.timeline

    def targets(self, devices: Sequence[Device]) -> None:
        self._listener.targets(devices)

    def poll(self) -> None:
        self._listener.poll()


class Held(_Between):
    """Gives sessions out once something has been found right. Failures are told from the first of these on: as long as
    there is none, they may be about what the sessions have in common.

    Args:
        listener: Who gets them.
        check: Waits until it is known; raises what is wrong.
    """

    def __init__(self, listener: Listener, check: Callable[[], object]) -> None:
        super().__init__(listener)
        self._check = check
        self._failures: list[tuple[int, BaseException]] = []
        self.given_out = False

    def ready(self, index: int, session: _core.Session) -> None:
        try:
            self._check()
        except BaseException:
            session.close()
            raise
        self.given_out = True
        self._listener.ready(index, session)
        for failure in self._failures:
            self._listener.failed(*failure)
        self._failures.clear()

    def failed(self, index: int, error: BaseException) -> None:
        if self.given_out:
            self._listener.failed(index, error)
        else:
            self._failures.append((index, error))


class Kept(_Between):
    """Keeps sessions, and failures, until all are there; whoever has it closes what is left of the sessions."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.sessions: dict[int, _core.Session] = {}
        self._failures: list[tuple[int, BaseException]] = []

    def ready(self, index: int, session: _core.Session) -> None:
        self.sessions[index] = session

    def failed(self, index: int, error: BaseException) -> None:
        self._failures.append((index, error))

    def give_out(self) -> None:
        """Gives everything to the listener."""
        for failure in self._failures:
            self._listener.failed(*failure)
        for index in list(self.sessions):
            self._listener.ready(index, self.sessions.pop(index))
