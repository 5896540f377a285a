"""One spawned process for each session, over onnxruntime; the processes live until the strategy is closed."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar

from ortmulti._runtime.exit_text import exit_text
from ortmulti.errors import Error

from ._onnxruntime import run_session, timed_creation, timed_import
from .base import Array, Creation, FirstRun, SessionSettings, Strategy, StrategyError, make_contexts
from .watching import Watcher, watch

# Once asked to end, a worker only has to free its session; past this it is ended by signals.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class _Worker:
    name: str
    process: SpawnProcess
    connection: Connection


class Processes(Strategy):
    """onnxruntime sessions, each in a process of its own that is fed through a pipe.

    Starting the interpreters is `start`; `create` finds them waiting, and each opens the libraries for itself. The
    first run includes the way of the inputs and outputs through the pipes.
    """

    name: ClassVar[str] = "processes"
    watcher: Callable[[int], Watcher] | None = None
    """Makes the watcher of each worker, from its number; it is called there, so that it has to be picklable."""
    _workers: tuple[_Worker, ...] = ()

    def start(self) -> float:
        begin = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        for number, device in enumerate(self.devices, 1):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, device, self.settings, number - 1, self.watcher),
                name=f"session-{device}",
                daemon=True,
            )
            process.start()
            theirs.close()  # so that the worker's end is the only one, and its death is the pipe's end
            self._workers += (_Worker(f"{device} (worker {number} of {len(self.devices)})", process, ours),)
        self._answers("starting")
        return time.perf_counter() - begin

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers' process ids, in the order of the devices."""
        return tuple(worker.process.pid for worker in self._workers if worker.process.pid is not None)

    def make_contexts(self) -> None:
        self._ask("contexts", None)
        self._answers("making the context")

    def create(self) -> Creation:
        """As `Strategy.create`. Details: "opening", the seconds until the libraries were open in the slowest worker."""
        begin = time.perf_counter()
        self._ask("create", self.model)
        answers = self._answers("creating the session")
        wall = time.perf_counter() - begin
        opening = max(opening for opening, _ in answers)
        return Creation(wall, tuple(seconds for _, seconds in answers), {"opening": opening})

    def first_run(self, feeds: Mapping[str, Array]) -> FirstRun:
        begin = time.perf_counter()
        self._ask("run", dict(feeds))
        outputs = self._answers("the first run")
        return FirstRun(time.perf_counter() - begin, tuple(outputs))

    def close(self) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.connection.close()  # the worker reads the end of the pipe and returns
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()

    def _ask(self, what: str, argument: Any) -> None:
        for worker in self._workers:
            # A worker that has died is reported by the answer it does not give.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.connection.send((what, argument))

    def _answers(self, doing: str) -> list[Any]:
        """One answer from each worker, in the order of the devices; the first failure, in time, is raised."""
        answers: dict[int, Any] = {}
        waiting = {worker.connection: index for index, worker in enumerate(self._workers)}
        while waiting:
            for ready in multiprocessing.connection.wait(list(waiting)):
                assert isinstance(ready, Connection)
                index = waiting.pop(ready)
                answers[index] = self._receive(self._workers[index], doing)
        return [answers[index] for index in range(len(self._workers))]

    @staticmethod
    def _receive(worker: _Worker, doing: str) -> Any:
        try:
            error, answer = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(_PATIENCE_SECONDS)
            how = exit_text(worker.process.exitcode)
            raise StrategyError(f"{worker.name}: the process {how} during {doing}") from None
        if error is not None:
            raise StrategyError(error)
        return answer


def _serve(
    connection: Connection,
    device: str,
    settings: SessionSettings,
    number: int,
    make_watcher: Callable[[int], Watcher] | None,
) -> None:
    """A worker's main function: answers each request with (error text or None, answer)."""
    if make_watcher is not None:
        watch(make_watcher(number))
    # Ctrl-C reaches the whole process group; the parent decides, and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session: Any = None
    request: tuple[str, Any] = ("start", None)
    with connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            what, argument = request
            answer: Any = None
            problem: str | None = None
            try:
                if what == "contexts":
                    make_contexts([device])
                elif what == "create":
                    onnxruntime, opening = timed_import([device])
                    session, seconds = timed_creation(onnxruntime, argument, device, settings)
                    answer = (opening, seconds)
                elif what == "run":
                    answer = run_session(session.run, device, argument)
            except Exception as error:
                problem = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            connection.send((problem, answer))
            request = connection.recv()
