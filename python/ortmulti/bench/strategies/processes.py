"""One process for each session, over onnxruntime: the worker program of a pool with backend="processes"."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from ortmulti.errors import ClosedError, Error
from ortmulti.interface.onnxruntime_sessions import SessionSpec
from ortmulti.interface.session_observer import SessionObserver, observe
from ortmulti.pool.processes.spawned import SpawnedSession
from ortmulti.timeline import Timeline

from .base import Array, Creation, Strategy, first_run_error, make_contexts

# Once notified, a worker only has to free its session; past this it is killed.
_PATIENCE_SECONDS = 10.0


class _Worker:
    """A process for one session. One thread at a time calls its methods, except `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._process: SpawnedSession | None = None

    @property
    def process(self) -> SpawnedSession:
        assert self._process is not None, "start() comes first"
        return self._process

    def start(self, make_observer: Callable[[int], SessionObserver] | None, number: int) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self._name}: closed before its process was started")
            self._process = SpawnedSession(self._name)
        self.process.call("while it was started", _observe, make_observer, number)

    def make_context(self, device: str) -> None:
        self.process.call("while its context was made", make_contexts, [device])

    def create(self, spec: SessionSpec) -> tuple[float, float]:
        """Return the seconds for opening the libraries, and for the session."""
        timeline = Timeline()
        self.process.load(spec, timeline)
        seconds = {span.name: span.seconds for span in timeline.spans}
        return seconds["import onnxruntime"], seconds["create session"]

    def run(self, _device: str, feeds: Mapping[str, Array]) -> list[Array]:
        signature = self.process.signature
        assert signature is not None, "create() comes first"
        try:
            return self.process.lines[0].run(0, [output.name for output in signature.outputs], feeds)
        except EOFError:
            raise self.process.death("during the first run") from None
        except Error as error:
            raise first_run_error(self._name, error) from None

    def end(self) -> None:
        """Tell the process to end."""
        with self._lock:
            self._closed = True
        if self._process is not None:
            self._process.end()

    def wait(self, deadline: float) -> None:
        """Wait until the process has ended; past the deadline it is killed."""
        if self._process is not None and not self._process.wait(max(0.0, deadline - time.monotonic())):
            self._process.kill()

    def close(self) -> None:
        if self._process is not None:
            self._process.death("when it was closed")  # which waits for its end
            self._process.close()


class Processes(Strategy):
    """onnxruntime sessions, each in its own process, with inputs in shared memory.

    `start` starts the interpreters. In `create` each opens the libraries by itself. The first run includes the transfer
    of inputs and outputs through shared memory.
    """

    name: ClassVar[str] = "processes"
    make_observer: Callable[[int], SessionObserver] | None = None
    """Makes the observer of each worker, from its number; the worker calls it, so that it has to be picklable."""
    _sessions: tuple[_Worker, ...] = ()
    # The kernel ends a worker when the thread ends that has started it. These threads live until `close`.

    def _start(self) -> None:
        count = len(self.devices)
        self._sessions = tuple(
            _Worker(f"{device} (worker {number} of {count})") for number, device in enumerate(self.devices, 1)
        )
        self._each(_Worker.start, self._sessions, [self.make_observer] * count, range(count))

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in the order of the devices."""
        return tuple(worker.process.pid for worker in self._sessions)

    def make_contexts(self) -> None:
        self._each(_Worker.make_context, self._sessions, self.devices)

    def create(self) -> Creation:
        """As `Strategy.create`. Details: "opening", the seconds until the libraries were open in the slowest worker."""
        begin = time.perf_counter()
        specs = [self.settings.spec(self.model, device) for device in self.devices]
        created = self._each(_Worker.create, self._sessions, specs)
        wall = time.perf_counter() - begin
        opening = max(opening for opening, _ in created)
        return Creation(wall, tuple(seconds for _, seconds in created), {"opening": opening})

    _run = staticmethod(_Worker.run)

    def close(self) -> None:
        workers = self._sessions
        for worker in workers:
            worker.end()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for worker in workers:
            worker.wait(deadline)
        super().close()
        for worker in workers:
            worker.close()


def _observe(make_observer: Callable[[int], SessionObserver] | None, number: int) -> None:
    if make_observer is not None:
        observe(make_observer(number))
