"""Floating types, NumPy's and those of ml_dtypes: bfloat16 and float8, whose kind is that of bytes for NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether the elements are floats. Complex numbers are none."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def as_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Convert floats or integers to float64."""
    with np.errstate(invalid="ignore"):  # some of ml_dtypes' casts of NaN warn
        return np.asarray(array).astype(np.float64)


def rounding(dtype: np.dtype[Any]) -> float:
    """Return how far the next number above 1.0 is from it: 2**-7 for bfloat16."""
    one = np.array(1.0, dtype.newbyteorder("="))
    bits = one.view(f"u{one.itemsize}")
    return float(as_float64((bits + bits.dtype.type(1)).view(one.dtype))) - 1.0


def of_type(array: Any, declared: str) -> Any:
    """Return an output as the floats that the model declares, where its array has their bytes.

    Args:
        declared: The output's type, such as ``"tensor(float8e4m3fn)"``. Without the package ml_dtypes the bytes stay.
    """
    kind = _core.element_types.get(declared)
    if kind is None or not kind.returned_as_bytes or not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        return array
    dtype = dtype_of(declared)
    return array if dtype is None else array.view(dtype)


def dtype_of(declared: str) -> np.dtype[Any] | None:
    """Return the dtype of tensors of floats; None for other types, or where it needs ml_dtypes, which is missing."""
    kind = _core.element_types.get(declared)
    if kind is None or not (kind.is_float and kind.over_memory):
        return None
    if not kind.is_of_ml_dtypes:
        return np.dtype(kind.dtype)
    try:
        found = getattr(import_module("ml_dtypes"), kind.dtype, None)
    except ImportError:
        return None
    return None if found is None else np.dtype(found)
