"""Runs with values, against onnxruntime's."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti import OrtValue
from tests.support import onnx_models, values
from tests.support.bindings import A, B, make
from tests.support.lifetimes import alive


@pytest.mark.parametrize("order", [["product", "sum"], None, []])
def test_runs_with_values_give_onnxruntimes_results(
    session: ortmulti.InferenceSession, theirs: Any, order: list[str] | None
) -> None:
    outputs = session.run_with_ort_values(order, {"b": make(B), "a": make(A)})
    ort = onnxruntime.OrtValue.ortvalue_from_numpy
    wanted = theirs.run_with_ort_values(order, {"b": ort(B), "a": ort(A)})
    assert len(outputs) == len(wanted)
    for ours, expected in zip(outputs, wanted, strict=True):
        assert isinstance(ours, OrtValue)
        np.testing.assert_array_equal(ours.numpy(), expected.numpy())
    for array, expected in zip(session.run(order, {"a": make(A), "b": B}), wanted, strict=True):
        np.testing.assert_array_equal(array, expected.numpy())


def test_values_between_runs_are_of_types_that_numpy_does_not_have() -> None:
    kind = TensorProto.BFLOAT16
    there, back = (onnx_models.cpu_session(values.casting(kind, back=each)) for each in (False, True))
    [made] = there.run_with_ort_values(None, {"x": make(np.array([1, 2], np.float32))})
    assert made.data_type() == "tensor(bfloat16)"
    given = OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80, 0x4000], np.uint16), kind)
    for value in (made, given):
        [result] = back.run_with_ort_values(None, {"x": value})
        assert result.numpy().tolist() == [1, 2]


def test_what_runs_return_is_fed_again() -> None:
    """Sequences, strings and optionals too, which have no form in DLPack."""
    number = values.tensor(TensorProto.FLOAT)
    sequence = values.sequence(number)
    construct = onnx_models.cpu_session(values.one("SequenceConstruct", number, sequence))
    length = onnx_models.cpu_session(values.one("SequenceLength", sequence, values.tensor(TensorProto.INT64)))
    [value] = construct.run_with_ort_values(None, {"x": make(A)})
    assert (value.data_type(), value.is_tensor_sequence(), value.is_tensor()) == ("seq(tensor(float))", True, False)
    assert repr(value) == "<OrtValue seq(tensor(float))>"
    with pytest.raises(ortmulti.InvalidType, match="no tensor"):
        value.numpy()
    with pytest.raises(ortmulti.InvalidType, match="no tensor"):
        value.shape()
    [found] = length.run_with_ort_values(None, {"x": value})
    assert found.numpy() == 1
    binding = length.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    length.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy() == 1
    with pytest.raises(ortmulti.InvalidType, match=r"'x' is seq\(tensor\(float\)\)"):
        binding.bind_cpu_input("x", A)
    [[array]] = onnx_models.cpu_session(values.same(sequence)).run(None, {"x": value})
    np.testing.assert_array_equal(array, A)
    strings = onnx_models.cpu_session(onnx_models.identity(TensorProto.STRING))
    [text] = strings.run_with_ort_values(None, {"x": make(np.array(["a", "bb"]))})
    assert strings.run(None, {"x": text})[0].tolist() == ["a", "bb"]
    optional = onnx_models.cpu_session(values.same(values.optional(number)))
    np.testing.assert_array_equal(optional.run(None, {"x": make(A)})[0], A)


@pytest.mark.parametrize("way", ["values", "binding"])
def test_an_output_that_is_an_input_keeps_its_memory(way: str) -> None:
    session = onnx_models.cpu_session(onnx_models.constant_outputs())
    array = np.full(1000, 7, np.float32)
    watched = weakref.ref(array)
    if way == "values":
        [output] = session.run_with_ort_values(["x"], {"x": make(array)})
    else:
        binding = session.io_binding()
        binding.bind_cpu_input("x", array)
        binding.bind_output("x")
        session.run_with_iobinding(binding)
        binding.clear_binding_inputs()
        [output] = binding.get_outputs()
        del binding
    shares = output.data_ptr() == array.ctypes.data
    del array
    assert alive(watched) == [shares]
    assert (output.numpy() == 7).all()
    del output
    assert alive(watched) == [False]


@pytest.mark.parametrize(
    ("names", "feed", "error", "message"),
    [
        (None, {"a": make(A)}, ortmulti.InvalidArgument, r"Required inputs .*'b'"),
        (None, {"a": make(A), "b": A}, ortmulti.InvalidType, "input 'b'"),
        (None, {"z": make(A)}, ortmulti.InvalidArgument, "unknown input 'z'"),
        ("sum", {}, ortmulti.InvalidType, "output_names"),
        ([3], {}, ortmulti.InvalidType, "output_names"),
        (None, {3: make(A)}, ortmulti.InvalidType, "type str, not 3"),
        (None, [make(A)], ortmulti.InvalidType, "dict"),
        (["z"], {"a": make(A), "b": make(B)}, ortmulti.InvalidArgument, "unknown output 'z'"),
        (None, {"a": make(A.T), "b": make(B)}, ortmulti.InvalidArgument, r"'a' has the shape \[any, 3\]"),
        (None, {"a": make(A.astype(int)), "b": make(B)}, ortmulti.InvalidType, "int64"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(
    session: ortmulti.InferenceSession, names: Any, feed: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        session.run_with_ort_values(names, feed)
