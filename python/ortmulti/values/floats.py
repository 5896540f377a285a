"""Floating types, NumPy's and those of ml_dtypes: bfloat16 and float8, whose kind is that of bytes for NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_AS_BYTES = {"tensor(float8e4m3fn)": "float8_e4m3fn"}
"""Types whose arrays are uint8, as in onnxruntime, and their names in ml_dtypes."""


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
    name = _AS_BYTES.get(declared)
    if name is None or not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        return array
    try:
        return array.view(getattr(import_module("ml_dtypes"), name))
    except ImportError:
        return array


def dtype_of(declared: str) -> np.dtype[Any] | None:
    """Return the dtype of tensors of floats; None for other types, or where it needs ml_dtypes, which is missing."""
    name = declared.removeprefix("tensor(").removesuffix(")")
    plain = {"float16": np.float16, "float": np.float32, "double": np.float64}.get(name)
    if plain is not None:
        return np.dtype(plain)
    if not name.startswith(("bfloat16", "float8")):
        return None
    try:
        found = getattr(import_module("ml_dtypes"), name.replace("float8e", "float8_e"), None)
    except ImportError:
        return None
    return None if found is None else np.dtype(found)
