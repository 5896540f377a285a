"""How a process has ended, in words."""

from __future__ import annotations

import contextlib
import signal

__all__ = ["exit_text"]


def exit_text(code: int | None) -> str:
    """What follows "the process": for an exit code, for the negative number of a signal, or for none so far."""
    if code is None:
        return "closed its pipe"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by signal {-code} ({signal.Signals(-code).name})"
        return f"was ended by signal {-code}"
    return f"ended with exit code {code}"
