"""The part of pynvml that is used, where it stands in for hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeNvml:
    """NVML whose functions are given: each a value, or what takes its arguments. What gives None is not supported."""

    class NVMLError(Exception):
        pass

    nvmlMemory_v2 = 2  # noqa: N815 - NVML's name
    NVML_CLOCK_SM = 1

    def __init__(self, **functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*arguments: Any, **named: Any) -> Any:
            given = self._functions.get(name)
            found = given(*arguments, **named) if callable(given) else given
            if found is None and name not in ("nvmlInit", "nvmlShutdown"):
                raise self.NVMLError
            return found

        return answer
