"""Sessions that are closed, that a forked child inherits, and that are open at the end of the process."""

from __future__ import annotations

import numpy as np
import pytest

import ortmulti
from tests.support import onnx_models, values
from tests.support.bindings import A, B, bound
from tests.support.processes import check_child
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
        import os, sys
        from tests.support import onnx_models
        from tests.support.bindings import A, bound
        from tests.support.session_calls import RUNS, VALUES
        import ortmulti

        model = bytes.fromhex(sys.argv[1])
        session = onnx_models.cpu_session(model, onnx_models.options(intra_op_num_threads=2))
        binding = bound(session)
        value = session.create_ortvalue_from_shape_and_type([2, 3], "float32", "cpu")
        value.update_inplace(A)
        child = os.fork()
        if child == 0:
            for name, call in RUNS.items():
                try:
                    call(session, binding)
                except ortmulti.ForkError:
                    continue
                print(name)
            print(len(VALUES), (value.numpy() == A).all(), flush=True)
            del binding
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        for name in ("bound", "vector"):
            RUNS[name](session, binding)
        print(binding.get_outputs()[0].shape(), VALUES[0].shape())
    """
    assert check_child(code, MODEL.hex()).splitlines() == ["0 True", "0", "[2, 3] [2, 3]"]


def test_sessions_and_what_they_gave_may_live_to_the_end_of_the_process() -> None:
    code = """
        import sys
        import numpy as np
        from tests.support import onnx_models
        from tests.support.bindings import bound, make
        from tests.support.additions import MODEL, WEIGHT, X, value
        import ortmulti

        options = ortmulti.SessionOptions()
        options.add_initializer("weight0", value(WEIGHT))
        options.add_external_initializers_from_files_in_memory(["f"], [bytearray(8)], [8])
        with_values = onnx_models.cpu_session(MODEL, options)
        assert np.array_equal(with_values.run(None, {"x": X})[0], X @ WEIGHT)
        session = onnx_models.cpu_session(bytes.fromhex(sys.argv[1]))
        binding = bound(session)
        session.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        sys.kept = [options, with_values, session, binding, outputs, outputs[0].__dlpack__()]
        print("done")
    """
    assert check_child(code, MODEL.hex()) == "done\n"
