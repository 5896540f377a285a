"""Processes that end with sessions open: exit status 0 and nothing on stderr."""

from __future__ import annotations

import pytest

from tests.support import onnx_models
from tests.support.processes import check_child, run_child

COMMON = """
    import atexit, os, sys, threading
    import numpy as np
    import ortmulti

    model = bytes.fromhex(sys.argv[1])
    x = np.ones((4, 64), np.float32)
"""


def printed_by(code: str) -> str:
    return check_child(COMMON + code, onnx_models.matmul().hex())


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
    assert printed_by(LEFT_OPEN[what] + "\n    print('end')") == "end\n"


@pytest.mark.essential
@pytest.mark.parametrize("_attempt", range(5))
def test_daemon_threads_may_be_running(_attempt: int) -> None:
    """More than once, since they are stopped wherever they happen to be."""
    assert (
        printed_by(
            """
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
        )
        == "end\n"
    )


@pytest.mark.essential
def test_daemon_threads_may_be_creating() -> None:
    assert (
        printed_by(
            """
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
    """
        )
        == "end\n"
    )


@pytest.mark.essential
@pytest.mark.parametrize(("how", "status"), [("sys.exit(3)", 3), ("raise SystemExit(4)", 4), ("os._exit(5)", 5)])
def test_the_exit_status_is_kept(how: str, status: int) -> None:
    child = run_child(
        COMMON + f"\n    session = ortmulti.InferenceSession(model)\n    {how}",
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
    printed = printed_by(
        """
    def late():
        try:
            session.run(None, {"x": x})
        except ortmulti.ClosedError as error:
            print("closed")

    atexit.register(late)
    session = ortmulti.InferenceSession(model)
    """
    )
    assert printed == "closed\n"


def test_an_exit_handler_may_create_a_session() -> None:
    printed = printed_by(
        """
    def late():
        global kept
        kept = ortmulti.InferenceSession(model)
        print(kept.run(None, {"x": x})[0].shape)

    atexit.register(late)
    session = ortmulti.InferenceSession(model)
    """
    )
    assert printed == "(4, 64)\n"


@pytest.mark.parametrize("_attempt", range(3))
def test_asynchronous_runs_may_be_under_way(_attempt: int) -> None:
    """Every callback is called before the interpreter ends, with results or the reason."""
    printed = printed_by(
        """
    told = []
    class Teller:
        def __call__(self, results, user_data, error):
            told.append(error)
    def report():
        print(len(told), set(told) <= {"", *(e for e in told if "closed before this run began" in e)})
    atexit.register(report)  # after ortmulti's, which is registered later
    session = ortmulti.InferenceSession(model)
    for i in range(2000):
        session.run_async(None, {"x": x}, Teller(), i)
    """
    )
    assert printed == "2000 True\n"


def test_a_callback_of_an_asynchronous_run_may_be_under_way() -> None:
    printed_by(
        """
    begun, session = threading.Event(), ortmulti.InferenceSession(model)
    def slow(*_):
        begun.set()
        for i in range(10**6):
            pass
    for i in range(3):
        session.run_async(None, {"x": x}, slow, None)
    begun.wait()
    """
    )


@pytest.mark.parametrize("_attempt", range(3))
def test_daemon_threads_may_be_asking_for_asynchronous_runs(_attempt: int) -> None:
    printed_by(
        """
    session = ortmulti.InferenceSession(model)
    begun = threading.Barrier(3)
    def ask():
        begun.wait()
        while True:
            try:
                session.run_async(None, {"x": x}, lambda *_: None, None)
            except ortmulti.ClosedError:
                return
    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()
    begun.wait()
    """
    )
