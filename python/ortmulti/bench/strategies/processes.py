"""One process for each session, over onnxruntime: the worker program of a pool with backend="processes"."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ortmulti.errors import Error
from ortmulti.interface.onnxruntime_sessions import SessionSpec
from ortmulti.interface.session_observer import SessionObserver, observe
from ortmulti.pool.processes.spawned import SpawnedSession
from ortmulti.timeline import Timeline

from .base import Array, Creation, Strategy, first_run_error, make_contexts


class Processes(Strategy):
    """onnxruntime sessions, each in its own process, with inputs in shared memory.

    `start` starts the interpreters. In `create` each opens the libraries by itself. The first run includes the transfer
    of inputs and outputs through shared memory.
    """

    make_observer: Callable[[int], SessionObserver] | None = None
    """Makes the observer of each worker, from its number; the worker calls it, so that it has to be picklable."""

    def _start(self) -> None:
        # The kernel ends a worker when the thread ends that has started it. These threads live until `close`.
        self._workers: dict[int, SpawnedSession] = {}
        self._each(self._spawn, range(len(self.devices)))
        self._sessions = [self._workers[number] for number in sorted(self._workers)]

    def _spawn(self, number: int) -> None:
        self._workers[number] = worker = SpawnedSession(self._name(number))
        worker.call("while it was started", _observe, self.make_observer, number)

    def _name(self, number: int) -> str:
        return f"{self.devices[number]} (worker {number + 1} of {len(self.devices)})"

    def make_contexts(self) -> None:
        self._each(
            lambda worker, device: worker.call("while its context was made", make_contexts, [device]),
            self._sessions,
            self.devices,
        )

    def create(self) -> Creation:
        """As `Strategy.create`. Details: "opening", the seconds until the libraries were open in the slowest worker."""

        def create(worker: SpawnedSession, spec: SessionSpec) -> tuple[float, float]:
            timeline = Timeline()
            worker.load(spec, timeline)
            seconds = {span.name: span.seconds for span in timeline.spans}
            return seconds["import onnxruntime"], seconds["create session"]

        begin = time.perf_counter()
        openings, seconds = zip(*self._each(create, self._sessions, self._specs()), strict=True)
        return Creation(time.perf_counter() - begin, seconds, {"opening": max(openings)})

    def _run(self, session: SpawnedSession, device: str, feeds: Mapping[str, Array]) -> list[Array]:  # noqa: ARG002
        assert session.signature is not None, "create() comes first"
        try:
            return session.lines[0].run(0, [output.name for output in session.signature.outputs], feeds)
        except EOFError:
            raise session.death("during the first run") from None
        except Error as error:
            raise first_run_error(self._name(self._sessions.index(session)), error) from None

    def close(self) -> None:
        if self._threads is None:
            return
        for worker in list(self._workers.values()):
            worker.end()
        for worker in list(self._workers.values()):
            worker.death("when it was closed")  # which waits for its end, but not forever
        super().close()
        for worker in self._workers.values():  # by now also those that were just being started
            worker.end()
            worker.death("when it was closed")
            worker.close()


def _observe(make_observer: Callable[[int], SessionObserver] | None, number: int) -> None:
    if make_observer is not None:
        observe(make_observer(number))
