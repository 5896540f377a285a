"""C++ threads: `ortmulti.create_sessions`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from ._onnxruntime import run_session
from .base import Array, Creation, FirstRun, Strategy

# The timeline's name for what one thread does for its session.
_SESSION_SPAN = "create session"


class Native(Strategy):
    """ortmulti's own sessions, created at once by C++ threads.

    As in the strategies over the onnxruntime package, whose import opens it, ONNX Runtime's library is opened while
    starting; the CUDA libraries, which those open then too, are opened here as part of creation.
    """

    name: ClassVar[str] = "native"
    _ortmulti: Any = None
    _threads: ThreadPoolExecutor | None = None
    _sessions: Any = None

    def start(self) -> float:
        begin = time.perf_counter()
        import ortmulti

        ortmulti.get_available_providers()
        self._ortmulti = ortmulti
        self._threads = ThreadPoolExecutor(max_workers=len(self.devices), thread_name_prefix="session")
        return time.perf_counter() - begin

    def create(self) -> Creation:
        options = self._ortmulti.SessionOptions()
        options.intra_op_num_threads = self.settings.intra_op_num_threads
        for key, value in self.settings.config_entries.items():
            options.add_session_config_entry(key, value)
        on_cuda = any(device != "cpu" for device in self.devices)
        begin = time.perf_counter()
        self._sessions = self._ortmulti.create_sessions(
            self.model,
            list(self.devices),
            options=options,
            provider_options=dict(self.settings.provider_options) if on_cuda else None,
        )
        wall = time.perf_counter() - begin
        return Creation(wall, _session_seconds(self._sessions.timeline, self.devices))

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


def _session_seconds(timeline: Any, devices: tuple[str, ...]) -> tuple[float, ...]:
    """Each session's own seconds, in the order of `devices`; of one device's sessions, the one first done is first."""
    spans = [span for span in timeline.spans if span.name == _SESSION_SPAN]
    waiting = {device: [span.seconds for span in spans if span.device == device] for device in devices}
    return tuple(waiting[device].pop(0) for device in devices)
