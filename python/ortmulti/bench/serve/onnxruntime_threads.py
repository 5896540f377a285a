"""onnxruntime in Python threads, as users write it without a pool."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ortmulti._runtime.closing import Closing
from ortmulti.interface.onnxruntime_sessions import SessionSpec, create_session, open_package


class OnnxruntimeThreads(Closing):
    """Sessions of onnxruntime, and a thread for each.

    Attributes:
        devices: the device of each session.
    """

    def __init__(self, specs: Sequence[SessionSpec]) -> None:
        onnxruntime = open_package([spec.device for spec in specs])
        self.devices = [str(spec.device) for spec in specs]
        self._sessions = [create_session(onnxruntime, spec) for spec in specs]
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for session in self._sessions:
            self._free.put(session)
        self._threads = ThreadPoolExecutor(len(specs), "session")

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        """Run a request and wait for its answer.

        The threads take requests in their order. Callers that took a free session themselves would not: who gives one
        back takes it again before a waiting thread has the GIL, and the others wait for ever.
        """
        return self.submit(names, feed).result()

    def submit(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> Future[list[Any]]:
        """Run a request in one of the threads."""
        return self._threads.submit(self._run, names, feed)

    def _run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        session = self._free.get()
        try:
            outputs: list[Any] = session.run(names, feed)
            return outputs
        finally:
            self._free.put(session)

    def run_each(self, feed: Mapping[str, Any]) -> list[list[Any]]:
        """Run a request on every session and return the answers."""
        return [session.run(None, feed) for session in self._sessions]

    def close(self) -> None:
        """End the threads after their present requests."""
        self._threads.shutdown(cancel_futures=True)
