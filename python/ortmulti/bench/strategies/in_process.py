"""onnxruntime sessions in this process: one after the other, or one Python thread for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from ortmulti.interface.onnxruntime_sessions import create_session, open_package

from .base import Array, Creation, FirstRun, Strategy, run_session


class Sequential(Strategy):
    """onnxruntime sessions, created and run one after the other: the base of the comparison."""

    name: ClassVar[str] = "sequential"
    _sessions: tuple[Any, ...] = ()

    def start(self) -> float:
        return 0.0

    def create(self) -> Creation:
        """Same as `Strategy.create`. Details: "opening", the seconds until the libraries were open."""
        begin = time.perf_counter()
        specs = [self.settings.spec(self.model, device) for device in self.devices]
        onnxruntime = open_package([spec.device for spec in specs])
        opening = time.perf_counter() - begin

        def create(spec: Any) -> tuple[Any, float]:
            start = time.perf_counter()
            return create_session(onnxruntime, spec), time.perf_counter() - start

        created = self._map(create, specs)
        wall = time.perf_counter() - begin
        self._sessions = tuple(session for session, _ in created)
        return Creation(wall, tuple(seconds for _, seconds in created), {"opening": opening})

    def first_run(self, feeds: Mapping[str, Array]) -> FirstRun:
        begin = time.perf_counter()
        outputs = self._map(run_session, self._sessions, self.devices, [feeds] * len(self.devices))
        return FirstRun(time.perf_counter() - begin, tuple(outputs))

    def close(self) -> None:
        self._sessions = ()

    def _map(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return list(map(function, *arguments))


class Threads(Sequential):
    """onnxruntime sessions, created and run by as many Python threads.

    The longer onnxruntime holds the GIL, the less happens at the same time.
    """

    name: ClassVar[str] = "threads"
    _threads: ThreadPoolExecutor | None = None

    def start(self) -> float:
        begin = time.perf_counter()
        self._threads = ThreadPoolExecutor(max_workers=len(self.devices), thread_name_prefix="session")
        return time.perf_counter() - begin

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        super().close()

    def _map(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        assert self._threads is not None, "start() comes first"
        return list(self._threads.map(function, *arguments))
