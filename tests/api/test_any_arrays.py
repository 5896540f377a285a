"""Whatever an array is like, it gives onnxruntime's result, or onnxruntime's kind of error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

import ortmulti
from ortmulti import OrtValue
from tests.support import onnx_models
from tests.support.arrays import LAYOUTS, NUMERIC, SHAPES, Array, arrays, laid_out, native
from tests.support.values import assert_same, pair

OPEN: tuple[int | str, ...] = ("n", 3)


@cache
def models(element_type: int, shape: tuple[int | str, ...] | None = None) -> tuple[Any, ortmulti.InferenceSession]:
    """ "y" = "x", in onnxruntime and here; of any shape by default."""
    return pair(onnx_models.identity(element_type, shape))


def run(session: Any, array: Array) -> Array:
    [result] = session.run(None, {"x": array})
    return result


def bound_run(session: Any, array: Array) -> Array:
    binding = session.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    [result] = binding.copy_outputs_to_cpu()
    return result


def through_a_value(session: Any, array: Array) -> Array:
    make = (OrtValue if isinstance(session, ortmulti.InferenceSession) else onnxruntime.OrtValue).ortvalue_from_numpy
    [result] = session.run_with_ort_values(None, {"x": make(array)})
    return np.array(result.numpy())


WAYS = pytest.mark.parametrize("way", [run, bound_run, through_a_value])
Way = Callable[[Any, Array], Array]


@WAYS
@given(arrays())
def test_the_result_is_onnxruntimes(way: Way, typed: tuple[int, Array]) -> None:
    element_type, array = typed
    theirs, ours = models(element_type)
    before = array.tobytes()
    result = way(ours, array)
    assert_same(result, way(theirs, native(array)))
    assert array.tobytes() == before
    assert not np.shares_memory(result, array)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=3)))
def test_every_layout_is_met(layout: str, array: Array) -> None:
    """So that none of them is left out by chance, nor is what it should be by accident."""
    changed = LAYOUTS[layout](array)
    flags, order = changed.flags, changed.dtype.isnative
    assert {
        "contiguous": flags.c_contiguous and flags.aligned and order,
        "Fortran order": flags.f_contiguous and not flags.c_contiguous,
        "reversed": changed.strides[0] < 0,
        "strided": not flags.c_contiguous and not flags.f_contiguous,
        "misaligned": not flags.aligned,
        "read-only": not flags.writeable,
        "other byte order": not order,
        "broadcast": changed.strides[0] == 0,
    }[layout]
    theirs, ours = models(TensorProto.FLOAT)
    assert_same(run(ours, changed), run(theirs, native(changed)))


@given(st.data())
def test_a_binding_follows_what_is_bound_to_it(data: st.DataObject) -> None:
    element_type = data.draw(NUMERIC)
    session = models(element_type)[1]
    binding = session.io_binding()
    for _ in range(3):
        array = data.draw(laid_out(data.draw(hnp.arrays(onnx_models.NUMERIC[element_type], SHAPES))))
        binding.bind_cpu_input("x", array)
        binding.clear_binding_outputs()
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert_same(binding.copy_outputs_to_cpu()[0], native(array))


@given(arrays(), st.data())
def test_values_are_updated_as_onnxruntimes(typed: tuple[int, Array], data: st.DataObject) -> None:
    """From arrays and values of any layout and shape; both refuse another number of elements."""
    _, array = typed
    own_shape = st.just(array.shape)
    shape = data.draw(st.one_of(own_shape, own_shape.map(lambda s: s[::-1]), SHAPES))
    start = data.draw(hnp.arrays(array.dtype.newbyteorder("="), shape))
    ours, theirs = start.copy(), start.copy()
    make = OrtValue.ortvalue_from_numpy
    given_array = make(array) if data.draw(st.booleans()) else array
    actual = outcome(lambda: make(ours).update_inplace(given_array))
    source = np.ascontiguousarray(native(array)).reshape(array.shape)  # others, onnxruntime 1.23 takes as they lie
    expected = outcome(lambda: onnxruntime.OrtValue.ortvalue_from_numpy(theirs).update_inplace(source))
    if array.size == start.size:
        assert (actual, expected) == (None, None)
        assert_same(ours, theirs)
    else:
        assert isinstance(actual, ortmulti.InvalidArgument)
        assert_same(ours, start)


# --- What does not fit ------------------------------------------------------------------------------------------------

# Of dtypes for which onnxruntime has no word at all it raises RuntimeError, and when what is bound does not fit.
KINDS: dict[str, type[Exception]] = {
    "InvalidArgument": ortmulti.InvalidArgument,
    "RuntimeError": ortmulti.InvalidArgument,
    "TypeError": TypeError,
    "ValueError": ValueError,
}


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return error


def assert_same_outcome(actual: Any, expected: Any) -> None:
    if isinstance(expected, Exception):
        assert isinstance(actual, KINDS[type(expected).__name__]), (actual, expected)
    else:
        assert_same(actual, expected)


OTHERS = ["c8", "c16", "g", "M8[s]", "m8[s]", "U3", "S3", "O", "f4,i4", "V3"]
FEW_SHAPES = st.sampled_from([(2, 3), (3, 2), (3,), (0, 3), (1, 3), (2, 3, 1), (), (0,), (4, 0)])


@st.composite
def dtypes(draw: st.DrawFn) -> np.dtype[Any]:
    if draw(st.booleans()):
        return onnx_models.NUMERIC[draw(NUMERIC)]
    return np.dtype(draw(st.sampled_from(OTHERS)))


@pytest.mark.parametrize("way", [run, bound_run])
@given(NUMERIC, st.sampled_from([None, (2, 3), OPEN]), st.data())
def test_what_does_not_fit_is_onnxruntimes_kind_of_error(
    way: Way, declared: int, shape: tuple[int | str, ...] | None, data: st.DataObject
) -> None:
    right_type = data.draw(st.booleans())
    dtype = onnx_models.NUMERIC[declared] if right_type else data.draw(dtypes())
    array = data.draw(laid_out(np.ones(data.draw(FEW_SHAPES), dtype)))
    theirs, ours = models(declared, shape)
    assert_same_outcome(outcome(lambda: way(ours, array)), outcome(lambda: way(theirs, native(array))))
    assert_same(
        way(ours, np.ones((2, 3), onnx_models.NUMERIC[declared])), np.ones((2, 3), onnx_models.NUMERIC[declared])
    )


@pytest.mark.parametrize(
    "array",
    [
        np.array([b"A\0B\0", b"C\0D\0"], np.void),
        np.array(["é".encode(), b"\0"], "V4"),
        np.array([[b"ab", b"c"], [b"d", b"ef"]], "V2")[:, 0],
        np.array([b"ab", b"c", b"d"], "V2")[::2],
        np.array(b"a", "V3"),
        np.zeros(2, "V0"),
        np.zeros((0, 3), "V2"),
    ],
)
def test_void_arrays_are_strings_with_every_byte(array: Array) -> None:
    theirs, ours = models(TensorProto.STRING)
    assert_same(run(ours, array), run(theirs, array))
    assert through_a_value(ours, array).tolist() == run(theirs, array).tolist()


@pytest.mark.parametrize("dtype", ["i4,i4", "i8", ml_dtypes.bfloat16])
def test_fields_numbers_and_ml_dtypes_are_no_strings(dtype: Any) -> None:
    _, ours = models(TensorProto.STRING)
    with pytest.raises(ortmulti.InvalidType, match="takes an array of dtype str, bytes, object or void"):
        run(ours, np.ones(2, dtype))


@pytest.mark.parametrize("dtype", OTHERS)
def test_values_of_other_dtypes(dtype: str) -> None:
    array = np.zeros(3, dtype)
    if array.dtype.kind in "USO" or dtype == "V3":  # strings, which onnxruntime refuses
        assert OrtValue.ortvalue_from_numpy(array).data_type() == "tensor(string)"
    else:
        with pytest.raises(RuntimeError):
            onnxruntime.OrtValue.ortvalue_from_numpy(array)
        with pytest.raises(ortmulti.InvalidType, match="dtype"):
            OrtValue.ortvalue_from_numpy(array)
        with pytest.raises(ortmulti.InvalidType, match="dtype"):
            OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32)).update_inplace(array)
