"""One Python thread for each session, over onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from ._onnxruntime import run_session, timed_creation, timed_import
from .base import Array, Creation, FirstRun, Strategy


class Threads(Strategy):
    """onnxruntime sessions, created and run at once by as many Python threads; how much of that is at once is decided
    by how long onnxruntime holds the GIL."""

    name: ClassVar[str] = "threads"
    _threads: ThreadPoolExecutor | None = None
    _sessions: tuple[Any, ...] = ()

    def start(self) -> float:
        begin = time.perf_counter()
        self._threads = ThreadPoolExecutor(max_workers=len(self.devices), thread_name_prefix="session")
        return time.perf_counter() - begin

    def create(self) -> Creation:
        """As `Strategy.create`. Details: "opening", the seconds until the libraries were open."""
        assert self._threads is not None, "start() comes first"
        begin = time.perf_counter()
        onnxruntime, opening = timed_import(self.devices)
        futures = [
            self._threads.submit(timed_creation, onnxruntime, self.model, device, self.settings)
            for device in self.devices
        ]
        created = [future.result() for future in futures]
        wall = time.perf_counter() - begin
        self._sessions = tuple(session for session, _ in created)
        return Creation(wall, tuple(seconds for _, seconds in created), {"opening": opening})

    def first_run(self, feeds: Mapping[str, Array]) -> FirstRun:
        assert self._threads is not None, "start() comes first"
        begin = time.perf_counter()
        runs = [session.run for session in self._sessions]
        outputs = tuple(self._threads.map(run_session, runs, self.devices, [feeds] * len(runs)))
        return FirstRun(time.perf_counter() - begin, outputs)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._sessions = ()
