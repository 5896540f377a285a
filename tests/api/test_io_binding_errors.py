"""What IOBinding refuses, and what it does around closed sessions and forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import IOBinding
from tests.support import onnx_models
from tests.support.bindings import A, B, bound, make
from tests.support.processes import check_child


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
    with pytest.raises(ortmulti.InvalidArgument, match="empty"):
        binding.bind_ortvalue_input("a", output)
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []


FROZEN = A.copy()
FROZEN.flags.writeable = False


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
        (lambda b: b.bind_ortvalue_output("sum", make(FROZEN)), ortmulti.InvalidArgument, "read-only"),
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


def test_a_closed_session_is_said() -> None:
    session = ortmulti.InferenceSession(onnx_models.add_mul(3))
    binding = bound(session)
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs()
    session.close()
    for call in (
        lambda: session.run_with_iobinding(binding),
        lambda: binding.bind_cpu_input("a", A),
        lambda: binding.bind_output("sum"),
        binding.get_outputs,
        binding.synchronize_inputs,
        binding.clear_binding_inputs,
        session.io_binding,
        lambda: session.run_with_ort_values(None, {"a": make(A), "b": make(B)}),
    ):
        with pytest.raises(ortmulti.ClosedError):
            call()
    np.testing.assert_array_equal(outputs[0].numpy(), A + B)


BOUND_RUN = """
        import os, sys
        import numpy as np
        import ortmulti

        session = ortmulti.InferenceSession(sys.argv[1])
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.ones((1, 64), np.float32))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
"""


def after_a_bound_run(code: str, folder: Path) -> str:
    """What a new process prints, which has run `binding` of `session` before `code`."""
    path = folder / "model.onnx"
    path.write_bytes(onnx_models.matmul(64, 1))
    return check_child(BOUND_RUN + code, path)


def test_bindings_stay_with_the_parent_after_a_fork(tmp_path: Path) -> None:
    code = """
        child = os.fork()
        if child == 0:
            try:
                session.run_with_iobinding(binding)
            except ortmulti.ForkError:
                del binding
                os._exit(0)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        session.run_with_iobinding(binding)
        print(status, binding.get_outputs()[0].shape())
    """
    assert after_a_bound_run(code, tmp_path) == "0 [1, 64]\n"


def test_bindings_and_values_that_live_to_the_end_do_not_crash(tmp_path: Path) -> None:
    code = """
        outputs = binding.get_outputs()
        capsule = outputs[0].__dlpack__()
        sys.kept = [session, binding, outputs, capsule]
        print("done")
    """
    assert after_a_bound_run(code, tmp_path) == "done\n"
