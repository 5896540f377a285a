"""Lets a measurement see, from inside its process, what a strategy does and when."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmulti.timeline import Timeline


class Watcher:
    """Told by the strategies of its process what they are about to do; this one lets everything pass.

    Its methods are called by the thread that does what they are told of.
    """

    def importing(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around an import; `name` says of what."""
        return contextlib.nullcontext()

    def opening(self, name: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Around the opening of libraries; `name` says which."""
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


_watcher = Watcher()


def watcher() -> Watcher:
    """The process's watcher."""
    return _watcher


def watch(watcher: Watcher) -> None:
    """Gives the process another watcher."""
    global _watcher
    _watcher = watcher
