"""C++ threads: `ortmulti.create_sessions` with every session loading the model for itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from ._onnxruntime import run_session
from ._timeline import describe, session_seconds
from .base import Array, Creation, FirstRun, Strategy
from .watching import watcher


class Native(Strategy):
    """ortmulti's own sessions, created at once by C++ threads, each of which loads the model for itself."""

    name: ClassVar[str] = "native"
    _how: ClassVar[Literal["native", "shared"]] = "native"
    _threads: ThreadPoolExecutor | None = None
    _sessions: Any = None

    def start(self) -> float:
        begin = time.perf_counter()
        import ortmulti  # noqa: F401

        self._threads = ThreadPoolExecutor(max_workers=len(self.devices), thread_name_prefix="session")
        return time.perf_counter() - begin

    def create(self) -> Creation:
        """As `Strategy.create`. Details: what `_timeline.describe` takes from the timeline."""
        with watcher().importing("import ortmulti's sessions"):
            import ortmulti

            options, create_sessions = ortmulti.SessionOptions(), ortmulti.create_sessions
        options.intra_op_num_threads = self.settings.intra_op_num_threads
        for key, value in self.settings.config_entries.items():
            options.add_session_config_entry(key, value)
        for library in self.settings.custom_op_libraries:
            # Needs ONNX Runtime itself, and opens it.
            with watcher().opening("open custom operators"):
                options.register_custom_ops_library(library)
        watcher().options(options)
        on_cuda = any(device != "cpu" for device in self.devices)
        begin = time.monotonic_ns()
        sessions = create_sessions(
            self.model,
            list(self.devices),
            options=options,
            provider_options=dict(self.settings.provider_options) if on_cuda else None,
            strategy=self._how,
        )
        end = time.monotonic_ns()
        if self._sessions is not None:
            self._sessions.close()
        self._sessions = sessions
        timeline = sessions.timeline
        watcher().created(list(sessions), self.devices, timeline)
        own = session_seconds(timeline.spans, self.devices)
        return Creation((end - begin) / 1e9, own, describe(timeline, begin, end))

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
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None
