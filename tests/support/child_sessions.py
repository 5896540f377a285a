"""Names for code of child interpreters, by `processes.lines`; the model is in sys.argv[1]."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import numpy as np

import ortmulti as om
from tests.support.processes import threads, threads_called
from tests.support.session_options import options

__all__ = ["error_of", "forked", "model", "np", "om", "os", "session", "sys", "threads", "threads_called", "x"]

model = bytes.fromhex(sys.argv[1])
x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


def session(entries: Mapping[str, str] | None = None, **attributes: object) -> om.InferenceSession:
    """A session on the CPU, of options with these entries and attributes."""
    return om.InferenceSession(model, options(entries, **attributes), providers=["CPUExecutionProvider"])


def error_of(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """The error's class and message, or "none"."""
    try:
        call(*arguments, **named)
    except om.Error as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def forked(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does this and ends as programs do."""
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
