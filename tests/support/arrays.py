"""Arrays of every numeric type, rank and size, zero included, however their elements lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support import onnx_models

Array = np.ndarray[Any, np.dtype[Any]]

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NUMERIC = st.sampled_from(sorted(onnx_models.NUMERIC))


def misaligned(array: Array) -> Array:
    if array.dtype.hasobject:
        return array  # references are never misaligned
    memory = np.empty(array.nbytes + 1, np.uint8)
    moved = np.ndarray(array.shape, array.dtype, memory, offset=1)
    moved[...] = array
    return moved


def read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def strided(array: Array) -> Array:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]) if array.ndim else (), array.dtype)
    view = wide[..., ::2] if array.ndim else wide
    view[...] = array
    return view


def broadcast(array: Array) -> Array:
    """One more row, which is the same memory; read-only, as NumPy makes it."""
    return np.broadcast_to(array, (2, *array.shape))


# None but the last changes the shape.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1] if array.ndim else array,
    "strided": strided,
    "misaligned": misaligned,
    "read-only": read_only,
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "broadcast": broadcast,
}


@st.composite
def laid_out(draw: st.DrawFn, array: Array) -> Array:
    """The array's elements in another place, by up to three layouts one after the other."""
    for name in draw(st.lists(st.sampled_from(list(LAYOUTS)), max_size=3, unique=True)):
        array = LAYOUTS[name](array)
    return array


@st.composite
def arrays(draw: st.DrawFn, types: st.SearchStrategy[int] = NUMERIC, shapes: Any = SHAPES) -> tuple[int, Array]:
    """The number of an ONNX type, and an array of it."""
    element_type = draw(types)
    return element_type, draw(laid_out(draw(hnp.arrays(onnx_models.NUMERIC[element_type], shapes))))


def native(array: Array) -> Array:
    """In this machine's byte order: onnxruntime takes the bytes of others as they are."""
    return array.astype(array.dtype.newbyteorder("="))
