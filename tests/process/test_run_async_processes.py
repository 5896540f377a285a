"""`InferenceSession.run_async` when its process ends or is forked, in child interpreters."""

from __future__ import annotations

import pytest

from tests.support import onnx_models
from tests.support.processes import check_child

CHILD = """
    import os, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy as np
    import ortmulti

    model = bytes.fromhex(sys.argv[1])
    x = np.ones((4, 8), np.float32)

    def session(threads=2):
        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False  # ONNX Runtime may hold their locks in a fork
        return ortmulti.InferenceSession(model, options, providers=["CPUExecutionProvider"])
"""


@pytest.mark.parametrize("_attempt", range(3))
def test_the_process_may_end_with_runs_under_way(_attempt: int) -> None:
    """Every callback is called before the interpreter ends, with results or the reason."""
    printed = check_child(
        CHILD
        + """
    told = []
    class Teller:
        def __call__(self, results, user_data, error):
            told.append(error)
    import atexit
    def report():
        print(len(told), set(told) <= {"", *(e for e in told if "closed before this run began" in e)})
    atexit.register(report)  # after ortmulti's, which is registered later
    s = session()
    for i in range(2000):
        s.run_async(None, {"x": x}, Teller(), i)
    """,
        onnx_models.matmul(8).hex(),
    )
    assert printed == "2000 True\n"


def test_the_process_may_end_with_a_callback_under_way() -> None:
    check_child(
        CHILD
        + """
    begun, s = threading.Event(), session()
    def slow(*_):
        begun.set()
        for i in range(10**6):
            pass
    for i in range(3):
        s.run_async(None, {"x": x}, slow, None)
    begun.wait()
    """,
        onnx_models.matmul(8).hex(),
    )


def test_daemon_threads_may_be_asking_at_the_end() -> None:
    for _ in range(3):
        check_child(
            CHILD
            + """
    s = session()
    begun = threading.Barrier(3)
    def ask():
        begun.wait()
        while True:
            try:
                s.run_async(None, {"x": x}, lambda *_: None, None)
            except ortmulti.ClosedError:
                return
    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()
    begun.wait()
    """,
            onnx_models.matmul(8).hex(),
        )


def test_forked_children() -> None:
    """A session without threads of its own goes on, with new threads for its runs; another raises ForkError."""
    assert check_child(
        CHILD
        + """
    one, two = session(1), session(2)
    for s in (one, two):
        done = threading.Event()
        s.run_async(None, {"x": x}, lambda *_: done.set(), None)
        done.wait()

    for _ in range(50):  # some are under way
        one.run_async(None, {"x": x}, lambda *_: None, None)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        got, done = [], threading.Event()
        def callback(results, user_data, error):
            got.append((results[0].shape, user_data, error))
            if len(got) == 10:
                done.set()
        for i in range(10):
            one.run_async(None, {"x": x}, callback, i)
        print(done.wait(30), got == [((4, 8), i, "") for i in range(10)])
        try:
            two.run_async(None, {"x": x}, callback, None)
        except ortmulti.ForkError as error:
            print("ForkError")
        two.close()
        one.close()
        sys.exit(0)
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
        onnx_models.matmul(8).hex(),
    ).splitlines() == ["True True", "ForkError", "ended with 0"]
