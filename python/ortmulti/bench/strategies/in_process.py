"""onnxruntime sessions in this process: one after the other, or one Python thread for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from ortmulti.interface.onnxruntime_sessions import create_session, open_package

from .base import Creation, Strategy


class Threads(Strategy):
    """onnxruntime sessions, created and run by as many Python threads.

    The longer onnxruntime holds the GIL, the less happens at the same time.
    """

    name: ClassVar[str] = "threads"

    def create(self) -> Creation:
        """Same as `Strategy.create`. Details: "opening", the seconds until the libraries were open."""
        begin = time.perf_counter()
        specs = [self.settings.spec(self.model, device) for device in self.devices]
        onnxruntime = open_package([spec.device for spec in specs])
        opening = time.perf_counter() - begin

        def create(spec: Any) -> tuple[Any, float]:
            start = time.perf_counter()
            return create_session(onnxruntime, spec), time.perf_counter() - start

        created = self._each(create, specs)
        wall = time.perf_counter() - begin
        self._sessions = tuple(session for session, _ in created)
        return Creation(wall, tuple(seconds for _, seconds in created), {"opening": opening})


class Sequential(Threads):
    """onnxruntime sessions, created and run one after the other: the base of the comparison."""

    name: ClassVar[str] = "sequential"

    def start(self) -> float:
        return 0.0

    def _each(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return list(map(function, *arguments))
