"""Compares the outputs of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ortmulti.values import floats

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""By how much floats may differ, as a part of the largest magnitude of the defaults' output; others do not at all."""

TF32_TOLERANCE = 5e-3  # for float32 on GPUs, where ONNX Runtime's defaults already multiply with TF32's ten bits


class Difference(NamedTuple):
    """The difference of an output."""

    error: float  # the largest one as a part of the largest magnitude; infinite if it is not numeric
    text: str
    allowed: bool


_EQUAL = Difference(0.0, "equal", True)


def flatten(outputs: Any) -> list[Array]:
    """Return the arrays in a run's outputs, in order. Other values become arrays of texts."""
    if isinstance(outputs, np.ndarray):
        return [outputs]
    if isinstance(outputs, Mapping):
        return flatten([np.array(list(outputs), object), *outputs.values()])
    if isinstance(outputs, Sequence) and not isinstance(outputs, str):
        return [array for output in outputs for array in flatten(output)]
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [np.array(repr(outputs), object)]


def compare(
    expected: Sequence[Array], found: Sequence[Array], tolerance: float | None, on_gpu: bool = False
) -> Difference:
    """Return the largest difference of the outputs of two runs; a tolerance of None: `TOLERANCES`."""
    if [array.dtype for array in expected] != [array.dtype for array in found]:
        return Difference(float("inf"), "other outputs", False)
    limits = {**TOLERANCES, "float32": TF32_TOLERANCE} if on_gpu else TOLERANCES
    differences = [_EQUAL]
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        # Other floats have eight bits.
        limit = limits.get(one.dtype.name, 0.1) if tolerance is None else tolerance
        differences.append(_compare(one, other, f"output {number}", limit))
    return max(differences, key=lambda one: (not one.allowed, one.error))


def _compare(expected: Array, found: Array, name: str, limit: float) -> Difference:
    def other(what: str) -> Difference:
        return Difference(float("inf"), f"{name} {what}", False)

    if expected.shape != found.shape:
        return other(f"has the shape {found.shape}, not {expected.shape}")
    dtype = expected.dtype.name
    if not floats.is_floating(expected.dtype):
        return _EQUAL if np.array_equal(expected, found) else other("is not equal")
    expected, found = floats.as_float64(expected), floats.as_float64(found)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return other("is infinite or no number elsewhere")
    expected, found = expected[finite], found[finite]
    largest, apart = (float(np.abs(values).max(initial=0.0)) for values in (expected, expected - found))
    error = apart / (largest or 1.0)
    text = f"{name} ({dtype}) differs by {error:.2g} of its largest value, and {limit:.2g} is allowed"
    return Difference(error, text, error <= limit)
