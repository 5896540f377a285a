"""Processes that end with sessions open: exit status 0 and nothing on stderr."""

from __future__ import annotations

import pytest

from tests.support import onnx_models
from tests.support.processes import check_child, run_child

COMMON = """
    import sys, threading
    import numpy as np
    import ortmulti

    model = bytes.fromhex(sys.argv[1])
    x = np.ones((4, 64), np.float32)
"""

# What a process may leave behind it. `session.run` in threads: each has run once before the main thread goes on.
LEFT_OPEN = {
    "a global session": """
    session = ortmulti.InferenceSession(model)
    y = session.run(None, {"x": x})
    """,
    "several": """
    sessions = ortmulti.create_sessions(model, ["cpu", "cpu"], 2)
    ys = [s.run(None, {"x": x}) for s in sessions]
    """,
    "an output alone": """
    y = ortmulti.InferenceSession(model).run(None, {"x": x})
    """,
    "a reference cycle": """
    class Holder:
        pass
    holder = Holder()
    holder.itself = holder
    holder.session = ortmulti.InferenceSession(model)
    del holder
    """,
    "an attribute of a module": """
    sys.modules["json"] = type(sys)("json")
    sys.modules["json"].session = ortmulti.InferenceSession(model)
    """,
    "a default argument": """
    def f(session=ortmulti.InferenceSession(model)):
        return session
    """,
    "a thread-local": """
    local = threading.local()
    local.session = ortmulti.InferenceSession(model)
    """,
    "a timeline": """
    timeline = ortmulti.InferenceSession(model).timeline
    """,
    "a closed session": """
    session = ortmulti.InferenceSession(model)
    session.close()
    """,
    "options": """
    options, run_options = ortmulti.SessionOptions(), ortmulti.RunOptions()
    """,
    "a failed creation": """
    try:
        ortmulti.InferenceSession(b"no model")
    except ortmulti.Error as error:
        kept = error
    """,
    "threads that end after the main one": """
    session = ortmulti.InferenceSession(model)
    begun = threading.Barrier(3)
    def work():
        session.run(None, {"x": x})
        begun.wait()
        for _ in range(200):
            session.run(None, {"x": x})
    for _ in range(2):
        threading.Thread(target=work).start()
    begun.wait()
    """,
    "onnxruntime's session beside ours": """
    import onnxruntime
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    session = ortmulti.InferenceSession(model)
    ys = theirs.run(None, {"x": x}), session.run(None, {"x": x})
    """,
}


@pytest.mark.parametrize("what", list(LEFT_OPEN))
def test_sessions_may_be_left_open(what: str) -> None:
    assert check_child(COMMON + LEFT_OPEN[what] + "\n    print('end')", onnx_models.matmul().hex()) == "end\n"


DAEMONS = """
    sessions = ortmulti.create_sessions(model, "cpu", 2)
    begun = threading.Barrier(5)
    def work(session):
        session.run(None, {"x": x})
        begun.wait()
        while True:
            try:
                session.run(None, {"x": x})
            except ortmulti.ClosedError:
                return
    for i in range(4):
        threading.Thread(target=work, args=(sessions[i % 2],), daemon=True).start()
    begun.wait()
    print("end")
"""


@pytest.mark.essential
@pytest.mark.parametrize("_attempt", range(5))
def test_daemon_threads_may_be_running(_attempt: int) -> None:
    """More than once, since they are stopped wherever they happen to be."""
    assert check_child(COMMON + DAEMONS, onnx_models.matmul().hex()) == "end\n"


@pytest.mark.essential
def test_daemon_threads_may_be_creating() -> None:
    assert (
        check_child(
            COMMON
            + """
    begun = threading.Barrier(3)
    def work():
        ortmulti.InferenceSession(model)
        begun.wait()
        while True:
            ortmulti.create_sessions(model, "cpu", 2)
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    begun.wait()
    print("end")
    """,
            onnx_models.matmul().hex(),
        )
        == "end\n"
    )


@pytest.mark.essential
@pytest.mark.parametrize(("how", "status"), [("sys.exit(3)", 3), ("raise SystemExit(4)", 4), ("os._exit(5)", 5)])
def test_the_exit_status_is_kept(how: str, status: int) -> None:
    child = run_child(
        COMMON + f"\n    import os\n    session = ortmulti.InferenceSession(model)\n    {how}",
        onnx_models.matmul().hex(),
    )
    assert (child.returncode, child.stdout, child.stderr) == (status, "", "")


def test_an_error_that_nobody_catches_is_all_that_is_said() -> None:
    child = run_child(
        COMMON + "\n    session = ortmulti.InferenceSession(model)\n    session.run(None, {})",
        onnx_models.matmul().hex(),
    )
    assert child.returncode == 1
    assert child.stderr.startswith("Traceback")
    assert child.stderr.splitlines()[-1].startswith(
        "ortmulti.errors.InvalidArgument: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Required inputs (['x'])"
    )


def test_a_session_used_by_an_exit_handler_that_was_registered_first() -> None:
    """It runs after ours, with the sessions closed."""
    printed = check_child(
        """
        import atexit, sys
        import numpy as np
        import ortmulti

        def late():
            try:
                session.run(None, {"x": np.ones((1, 64), np.float32)})
            except ortmulti.ClosedError as error:
                print("closed")

        atexit.register(late)
        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]))
        """,
        onnx_models.matmul().hex(),
    )
    assert printed == "closed\n"


def test_an_exit_handler_may_create_a_session() -> None:
    printed = check_child(
        """
        import atexit, sys
        import numpy as np
        import ortmulti

        def late():
            global kept
            kept = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]))
            print(kept.run(None, {"x": np.ones((1, 64), np.float32)})[0].shape)

        atexit.register(late)
        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]))
        """,
        onnx_models.matmul().hex(),
    )
    assert printed == "(1, 64)\n"
