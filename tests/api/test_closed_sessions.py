"""Sessions that are closed, that a forked child inherits, and that are open at the end of the process."""

from __future__ import annotations

import numpy as np
import pytest

import ortmulti
from tests.support import onnx_models, values
from tests.support.bindings import A, B, bound
from tests.support.processes import lines
from tests.support.session_calls import OTHERS, RUNS

MODEL = onnx_models.add_mul(3)


@pytest.mark.parametrize("call", [*RUNS, *OTHERS])
def test_a_closed_session_is_said(call: str) -> None:
    session = onnx_models.cpu_session(MODEL)
    binding = bound(session)
    session.run_with_iobinding(binding)
    [output] = binding.get_outputs()
    session.close()
    with pytest.raises(ortmulti.ClosedError, match="on cpu is closed") as caught:
        (RUNS | OTHERS)[call](session, binding)
    assert isinstance(caught.value, ValueError)
    np.testing.assert_array_equal(output.numpy(), A + B)


def test_closed_sessions_of_a_creation_are_said() -> None:
    sessions = ortmulti.create_sessions(MODEL, "cpu", 2)
    sessions.close()
    for session in sessions:
        with pytest.raises(ortmulti.ClosedError):
            session.run(None, {"a": A, "b": B})


def test_a_closed_session_takes_no_list() -> None:
    session = onnx_models.cpu_session(values.same(values.sequence(values.tensor(1))))
    session.close()
    with pytest.raises(ortmulti.ClosedError):
        session.run(None, {"x": [A]})


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    code = """
        from tests.support.bindings import A, bound
        from tests.support.session_calls import RUNS, VALUES

        def child():
            print([name for name, call in RUNS.items() if not error_of(call, made, binding).startswith("ForkError: ")])
            print(len(VALUES), (value.numpy() == A).all(), flush=True)
            globals().pop("binding")
            os._exit(0)

        made = session(intra_op_num_threads=2)
        binding = bound(made)
        value = made.create_ortvalue_from_shape_and_type([2, 3], "float32", "cpu")
        value.update_inplace(A)
        print(forked(child), flush=True)
        for name in ("bound", "vector"):
            RUNS[name](made, binding)
        print(binding.get_outputs()[0].shape(), VALUES[0].shape())
    """
    assert lines(code, MODEL) == ["[]", "0 True", "0", "[2, 3] [2, 3]"]


def test_sessions_and_what_they_gave_may_live_to_the_end_of_the_process() -> None:
    code = """
        from tests.support import onnx_models
        from tests.support.bindings import bound
        from tests.support.additions import MODEL, WEIGHT, X, value

        options = om.SessionOptions()
        options.add_initializer("weight0", value(WEIGHT))
        options.add_external_initializers_from_files_in_memory(["f"], [bytearray(8)], [8])
        with_values = onnx_models.cpu_session(MODEL, options)
        assert np.array_equal(with_values.run(None, {"x": X})[0], X @ WEIGHT)
        made = session()
        binding = bound(made)
        made.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        sys.kept = [options, with_values, made, binding, outputs, outputs[0].__dlpack__()]
        print("done")
    """
    assert lines(code, MODEL) == ["done"]
