"""Saves outputs to a file, and compares them with those of the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ortmulti.bench.files import write_arrays

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""By how much floats may differ, as a part of the largest magnitude of the defaults' output; others do not at all."""

TF32_TOLERANCE = 5e-3
"""For float32 on GPUs, where ONNX Runtime's defaults already multiply with TF32's ten bits."""


@dataclass(frozen=True)
class Difference:
    """The difference of an output.

    Attributes:
        error: The largest difference as a part of the largest magnitude; infinite if it is not numeric.
        text: Its description.
        allowed: Whether it is within the tolerance.
    """

    error: float
    text: str
    allowed: bool


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


def save(outputs: Any, path: Path) -> None:
    """Write the outputs of a run to an .npz file."""
    arrays = flatten(outputs)
    named = {f"output{number}": _storable(array) for number, array in enumerate(arrays)}
    write_arrays(path, {"dtypes": np.array([array.dtype.name for array in arrays], "U"), **named})


def compare(expected: Path, found: Path, tolerance: float | None, on_gpu: bool = False) -> Difference:
    """Return the largest difference of the outputs in two files.

    Args:
        expected: Those of the defaults.
        found: The others.
        tolerance: For all floats; None: `TOLERANCES`.
        on_gpu: Whether they come from a GPU.
    """
    with np.load(expected) as first, np.load(found) as second:
        names = list(first["dtypes"])
        if names != list(second["dtypes"]):
            return Difference(float("inf"), "other outputs", False)
        differences = [Difference(0.0, "equal", True)]
        for number, dtype in enumerate(names):
            arrays = first[f"output{number}"], second[f"output{number}"]
            differences.append(_compare(*arrays, dtype, number, tolerance, on_gpu))
    return max(differences, key=lambda one: (not one.allowed, one.error))


def _compare(
    expected: Array, found: Array, dtype: str, number: int, tolerance: float | None, on_gpu: bool
) -> Difference:
    def other(what: str) -> Difference:
        return Difference(float("inf"), f"output {number} {what}", False)

    if expected.shape != found.shape:
        return other(f"has the shape {found.shape}, not {expected.shape}")
    if not np.issubdtype(expected.dtype, np.floating):
        return Difference(0.0, "equal", True) if np.array_equal(expected, found) else other("is not equal")
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return other("is infinite or no number elsewhere")
    if not finite.any():
        return Difference(0.0, "equal", True)
    limit = tolerance
    if limit is None:  # other floats have eight bits
        limit = TF32_TOLERANCE if dtype == "float32" and on_gpu else TOLERANCES.get(dtype, 0.1)
    wide, found = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    error = float(np.abs(wide - found).max()) / (float(np.abs(wide).max()) or 1.0)
    text = f"output {number} ({dtype}) differs by {error:.2g} of its largest value, and {limit:.2g} is allowed"
    return Difference(error, text, error <= limit)


def _storable(array: Array) -> Array:
    """Return the array as an .npz file keeps it."""
    if array.dtype.hasobject:  # equal objects have equal texts, and a text has no NUL at its end
        return np.array([repr(one) for one in array.ravel().tolist()], "U").reshape(array.shape)
    # Files of NumPy's do not keep the dtypes of ml_dtypes.
    of_ml_dtypes = array.dtype.kind == "V" or ("float" in array.dtype.name and array.dtype.kind != "f")
    return array.astype(np.float32) if of_ml_dtypes else array
