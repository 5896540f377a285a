"""Runs with values, against onnxruntime's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import OrtValue
from tests.support import onnx_models
from tests.support.bindings import A, B, make

onnxruntime = pytest.importorskip("onnxruntime")


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
    session = ortmulti.InferenceSession(
        onnx_models.model(
            [
                helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16),
                helper.make_node("Cast", ["z"], ["w"], to=TensorProto.FLOAT),
            ],
            [("x", TensorProto.FLOAT, [2]), ("z", TensorProto.BFLOAT16, [2])],
            [("y", TensorProto.BFLOAT16, [2]), ("w", TensorProto.FLOAT, [2])],
        ).SerializeToString()
    )
    z = OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80, 0x4000], np.uint16), TensorProto.BFLOAT16)
    y, w = session.run_with_ort_values(None, {"x": make(np.array([1, 2], np.float32)), "z": z})
    assert (y.data_type(), w.numpy().tolist()) == ("tensor(bfloat16)", [1, 2])
    [again] = session.run_with_ort_values(["w"], {"x": make(np.zeros(2, np.float32)), "z": y})
    assert again.numpy().tolist() == [1, 2]


def test_sequences_can_be_passed_on() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    first = helper.make_graph([helper.make_node("SequenceConstruct", ["x", "x"], ["s"])], "g", [x], [sequence])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    second = helper.make_graph([helper.make_node("SequenceLength", ["s"], ["y"])], "g", [sequence], [y])
    opsets = [helper.make_opsetid("", 17)]
    sessions = [
        ortmulti.InferenceSession(helper.make_model(g, opset_imports=opsets, ir_version=8).SerializeToString())
        for g in (first, second)
    ]
    [value] = sessions[0].run_with_ort_values(None, {"x": make(np.ones(3, np.float32))})
    assert (value.data_type(), value.is_tensor_sequence(), value.is_tensor()) == ("seq(tensor(float))", True, False)
    assert repr(value) == "<OrtValue seq(tensor(float))>"
    with pytest.raises(ortmulti.InvalidType, match="no tensor"):
        value.numpy()
    with pytest.raises(ortmulti.InvalidType, match="no tensor"):
        value.shape()
    [length] = sessions[1].run_with_ort_values(None, {"s": value})
    assert length.numpy() == 2
    binding = sessions[1].io_binding()
    binding.bind_ortvalue_input("s", value)
    binding.bind_output("y")
    sessions[1].run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy() == 2
    with pytest.raises(ortmulti.InvalidType, match=r"'s' is seq\(tensor\(float\)\)"):
        binding.bind_cpu_input("s", np.ones(3, np.float32))


def passing() -> bytes:
    """ "x" is an input and an output, "y" = 2 * "x"."""
    value = ("x", TensorProto.FLOAT, ["n"])
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return onnx_models.model([node], [value], [value, ("y", TensorProto.FLOAT, ["n"])]).SerializeToString()


@pytest.mark.parametrize("way", ["values", "binding"])
def test_an_output_that_is_an_input_keeps_its_memory(way: str) -> None:
    session = ortmulti.InferenceSession(passing())
    array = np.full(1000, 7, np.float32)
    watched = weakref.ref(array)
    if way == "values":
        output, _ = session.run_with_ort_values(None, {"x": make(array)})
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
    gc.collect()
    assert (watched() is not None) == shares
    assert (output.numpy() == 7).all()
    del output
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.run_with_ort_values(None, {"a": make(A)}), ortmulti.InvalidArgument, r"Required inputs .*'b'"),
        (lambda s: s.run_with_ort_values(None, {"a": make(A), "b": A}), ortmulti.InvalidType, "input 'b'"),
        (lambda s: s.run_with_ort_values(None, {"z": make(A)}), ortmulti.InvalidArgument, "unknown input 'z'"),
        (lambda s: s.run_with_ort_values("sum", {}), ortmulti.InvalidType, "output_names"),
        (lambda s: s.run_with_ort_values([3], {}), ortmulti.InvalidType, "output_names"),
        (lambda s: s.run_with_ort_values(None, {3: make(A)}), ortmulti.InvalidType, "type str, not 3"),
        (lambda s: s.run_with_ort_values(None, [make(A)]), ortmulti.InvalidType, "dict"),
        (
            lambda s: s.run_with_ort_values(["z"], {"a": make(A), "b": make(B)}),
            ortmulti.InvalidArgument,
            "unknown output 'z'",
        ),
        (
            lambda s: s.run_with_ort_values(None, {"a": make(A.T), "b": make(B)}),
            ortmulti.InvalidArgument,
            r"'a' has the shape \[any, 3\]",
        ),
        (
            lambda s: s.run_with_ort_values(None, {"a": make(A.astype(int)), "b": make(B)}),
            ortmulti.InvalidType,
            "int64",
        ),
    ],
)
def test_what_is_wrong_is_said_before_the_run(
    session: ortmulti.InferenceSession, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(session)
