"""What IOBinding refuses, and what it does around closed sessions and forks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import IOBinding
from tests.support import onnx_models
from tests.support.arrays import read_only
from tests.support.bindings import A, B, bound, make


def test_outputs_before_a_run_are_empty(session: ortmulti.InferenceSession) -> None:
    binding = bound(session)
    [output] = binding.get_outputs()
    assert not output.has_value()
    assert repr(output) == "<OrtValue, empty>"
    for call in (output.shape, output.numpy, output.data_ptr, output.device_name, output.__dlpack__):
        with pytest.raises(ortmulti.InvalidType, match="empty"):
            call()
    with pytest.raises(ortmulti.InvalidType, match="there was no run"):
        binding.copy_outputs_to_cpu()
    for use in (lambda: binding.bind_ortvalue_input("a", output), lambda: session.run(None, {"a": output, "b": B})):
        with pytest.raises(ortmulti.InvalidArgument, match="empty"):
            use()
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda b: b.bind_cpu_input("z", A), ortmulti.InvalidArgument, "unknown input 'z'"),
        (lambda b: b.bind_cpu_input(3, A), ortmulti.InvalidType, "name is a str"),
        (lambda b: b.bind_cpu_input("a", [[1.0]]), ortmulti.InvalidType, "not list"),
        (lambda b: b.bind_cpu_input("a", A.astype(float)), ortmulti.InvalidType, r"tensor\(double\)"),
        (lambda b: b.bind_cpu_input("a", A.T), ortmulti.InvalidArgument, r"shape \[any, 3\]; .* \[3, 2\]"),
        (lambda b: b.bind_cpu_input("a", A[0]), ortmulti.InvalidArgument, "shape"),
        (lambda b: b.bind_ortvalue_input("a", A), ortmulti.InvalidType, "ortmulti.OrtValue, not ndarray"),
        (lambda b: b.bind_ortvalue_output("sum", A), ortmulti.InvalidType, "ortmulti.OrtValue, not ndarray"),
        (lambda b: b.bind_ortvalue_output("z", make(A)), ortmulti.InvalidArgument, "unknown output 'z'"),
        (lambda b: b.bind_ortvalue_output("sum", make(read_only(A))), ortmulti.InvalidArgument, "read-only"),
        (lambda b: b.bind_ortvalue_output("sum", make(A.astype(int))), ortmulti.InvalidType, "int64"),
        (lambda b: b.bind_output("z"), ortmulti.InvalidArgument, "unknown output 'z'"),
        (lambda b: b.bind_output("sum", "toaster"), ortmulti.InvalidArgument, "'toaster'"),
        (lambda b: b.bind_output("sum", "cuda", 9), ortmulti.DeviceError, "cuda:9"),
        (lambda b: b.bind_output("sum", buffer_ptr=64), ortmulti.InvalidArgument, "element_type and shape"),
        (lambda b: b.bind_output("sum", "cpu", 0, np.float32, [2, 3], "x"), ortmulti.InvalidType, "buffer_ptr"),
        (lambda b: b.bind_input("a", "cpu", 0, np.float32, [2, 3], 0), ortmulti.InvalidArgument, "address 0"),
        (lambda b: b.bind_input("a", "cpu", 0, np.float32, [2, 3], -8), ortmulti.InvalidArgument, "address"),
        (lambda b: b.bind_input("a", "cpu", 0, np.float32, [2, -3], 64), ortmulti.InvalidArgument, "negative"),
        (lambda b: b.bind_input("a", "cpu", 0, np.str_, [2, 3], 64), ortmulti.NotImplemented, "string"),
        (lambda b: b.bind_input("a", "cpu", 0, 16, [2, 3], 64), ortmulti.InvalidType, "bfloat16"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(
    session: ortmulti.InferenceSession, call: Any, error: type[Exception], message: str
) -> None:
    binding = bound(session)
    with pytest.raises(error, match=message):
        call(binding)
    session.run_with_iobinding(binding)  # nothing was changed
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], A + B)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.run_with_iobinding(3), ortmulti.InvalidType, "IOBinding, not int"),
        (lambda s: s.run_with_iobinding(s.io_binding()), ortmulti.InvalidArgument, "Required inputs .*'a', 'b'"),
        (
            lambda s: s.run_with_iobinding(bound(ortmulti.InferenceSession(onnx_models.add_mul(3)))),
            ortmulti.InvalidArgument,
            "session that created it",
        ),
        (lambda s: s.run_with_iobinding(bound(s, ())), ortmulti.InvalidArgument, "no output is bound"),
        (lambda s: IOBinding(s.get_inputs), ortmulti.InvalidType, "InferenceSession, not method"),
    ],
)
def test_what_is_no_binding_of_the_session_is_refused(
    session: ortmulti.InferenceSession, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(session)


def test_memory_of_another_shape_is_onnxruntimes_error(session: ortmulti.InferenceSession) -> None:
    binding = bound(session, ())
    binding.bind_ortvalue_output("sum", make(np.zeros((3, 2), np.float32)))
    with pytest.raises(ortmulti.Error, match="sum"):
        session.run_with_iobinding(binding)
