"""Results beside each other, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def differences(expected: Any, found: Any, where: str = "result") -> Iterator[str]:
    """Where and how two results differ: lists, tuples, dicts, arrays and plain values of the same types and bits."""
    if type(expected) is not type(found):
        yield f"{where}: {type(expected).__name__} and {type(found).__name__}"
    elif isinstance(expected, dict):
        if list(expected) != list(found):
            yield f"{where}: keys {list(expected)} and {list(found)}"
        else:
            for key in expected:
                yield from differences(expected[key], found[key], f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        if len(expected) != len(found):
            yield f"{where}: {len(expected)} and {len(found)} items"
        else:
            for index, (one, other) in enumerate(zip(expected, found, strict=True)):
                yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(expected, np.ndarray):
        yield from _of_arrays(expected, found, where)
    elif isinstance(expected, float):
        if expected.hex() != found.hex():
            yield f"{where}: {expected!r} and {found!r}"
    elif isinstance(expected, np.generic):
        yield from _of_arrays(np.asarray(expected), np.asarray(found), where)
    elif isinstance(expected, str | bytes | int | None):
        if expected != found:
            yield f"{where}: {expected!r:.200} and {found!r:.200}"
    else:
        raise TypeError(f"{where} is a {type(expected).__name__}, which is not compared: return what it holds")


def count(result: Any) -> int:
    """How many numbers and strings a result has."""
    if isinstance(result, dict):
        return sum(map(count, result.values()))
    if isinstance(result, list | tuple):
        return sum(map(count, result))
    return result.size if isinstance(result, np.ndarray) else 1


def _of_arrays(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], where: str) -> Iterator[str]:
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        yield f"{where}: {expected.dtype}{expected.shape} and {found.dtype}{found.shape}"
    elif expected.dtype == object:
        yield from differences(expected.ravel().tolist(), found.ravel().tolist(), where)
    elif expected.tobytes() != found.tobytes():
        unequal = np.frombuffer(expected.tobytes(), f"V{expected.itemsize}") != np.frombuffer(
            found.tobytes(), f"V{found.itemsize}"
        )
        largest = ""
        if expected.dtype.kind == "f":
            with np.errstate(all="ignore"):
                largest = f", by {np.nanmax(np.abs(expected.astype(float) - found.astype(float))):.3g} at most"
        yield f"{where}: {int(unequal.sum())} of {expected.size} {expected.dtype} differ{largest}"
