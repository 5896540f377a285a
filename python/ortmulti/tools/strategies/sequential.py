"""One session after the other, in one thread: what the other strategies are compared with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ._onnxruntime import run_session, timed_creation, timed_import
from .base import Array, Creation, FirstRun, Strategy


class Sequential(Strategy):
    """onnxruntime sessions, created and run one after the other."""

    name: ClassVar[str] = "sequential"
    _sessions: tuple[Any, ...] = ()

    def start(self) -> float:
        return 0.0

    def create(self) -> Creation:
        """As `Strategy.create`. Details: "opening", the seconds until the libraries were open."""
        begin = time.perf_counter()
        onnxruntime, opening = timed_import(self.devices)
        created = [timed_creation(onnxruntime, self.model, device, self.settings) for device in self.devices]
        wall = time.perf_counter() - begin
        self._sessions = tuple(session for session, _ in created)
        return Creation(wall, tuple(seconds for _, seconds in created), {"opening": opening})

    def first_run(self, feeds: Mapping[str, Array]) -> FirstRun:
        begin = time.perf_counter()
        pairs = zip(self._sessions, self.devices, strict=True)
        outputs = tuple(run_session(session.run, device, feeds) for session, device in pairs)
        return FirstRun(time.perf_counter() - begin, outputs)

    def close(self) -> None:
        self._sessions = ()
