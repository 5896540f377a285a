"""How much memory bandwidth N threads have together, against one: copies of arrays that no cache holds."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

_BYTES = 64 << 20
_COPIES = 4


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Copies beside each other; NumPy releases the GIL meanwhile.

    Args:
        spec: "threads": N.

    Returns:
        Bytes copied in a second: "one" by one thread, "all" by N at once.
    """
    sources = [np.ones(_BYTES // 8) for _ in range(spec["threads"])]
    targets = [np.empty_like(source) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        np.copyto(target, source)  # the pages are there from now on
    return {"one": _rate(sources[:1], targets[:1]), "all": _rate(sources, targets)}


def _rate(sources: list[Any], targets: list[Any]) -> float:
    def copy(source: Any, target: Any) -> None:
        for _ in range(_COPIES):
            np.copyto(target, source)

    threads = [threading.Thread(target=copy, args=pair) for pair in zip(sources, targets, strict=True)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(sources) * _COPIES * _BYTES / (time.perf_counter() - begin)
