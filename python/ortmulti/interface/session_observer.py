"""Reports the steps of creating and running sessions to a measurement in the same process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmulti.timeline import Timeline

__all__ = ["SessionObserver", "observe", "observer"]


class SessionObserver:
    """Receives each step, in the thread of the step. This class ignores all steps."""

    def importing(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around the import of ``name``."""
        return contextlib.nullcontext()

    def opening(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around the opening of the libraries ``name``."""
        return contextlib.nullcontext()

    def opened(self, onnxruntime: Any) -> None:
        """After the import of the onnxruntime package."""

    def options(self, options: Any) -> None:
        """Before ortmulti's sessions are created, with their options, which may be changed."""

    def creating(self, options: Any, device: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around the creation of one of onnxruntime's sessions, with its options, which may be changed."""
        return contextlib.nullcontext()

    def created(self, sessions: Sequence[Any], devices: Sequence[str], timeline: Timeline | None = None) -> None:
        """After sessions were created: one of onnxruntime's, or all of ortmulti's with their timeline."""

    def running(self, session: Any) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around a run of a session."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Before a worker process ends."""


_observer = SessionObserver()


def observer() -> SessionObserver:
    """Return the process's observer."""
    return _observer


def observe(new: SessionObserver) -> None:
    """Replace the process's observer."""
    global _observer
    _observer = new
