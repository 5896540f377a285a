"""Processes that are forked after the library was used. Each test forks in a child interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import onnx_models
from tests.support.processes import check_child

# `in_fork(function)` runs it in a forked process that ends as an interpreter does, and says how it ended.
COMMON = """
    import os, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # newer Python's, about forks of processes with threads
    import numpy as np
    import ortmulti

    model = bytes.fromhex(sys.argv[1])
    CPU = ["CPUExecutionProvider"]
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)

    def session(threads=2, arena=True):
        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = threads
        # ONNX Runtime may hold their locks while another thread forks.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = arena
        return ortmulti.InferenceSession(model, options, providers=CPU)

    def in_fork(function):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            function()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("ended with", os.waitstatus_to_exitcode(status))
"""


def lines(code: str, model: bytes | None = None) -> list[str]:
    return check_child(COMMON + code, (model or onnx_models.matmul(8)).hex()).splitlines()


@pytest.mark.essential
def test_a_session_with_threads_gives_an_error_and_new_ones_work() -> None:
    assert lines(
        """
    inherited = session()
    expected = inherited.run(None, {"x": x})[0]

    def child():
        try:
            inherited.run(None, {"x": x})
        except ortmulti.ForkError as error:
            print(isinstance(error, RuntimeError), "forked" in str(error), "spawn" in str(error))
        with ortmulti.create_sessions(model, "cpu", 3) as new:
            print(*[(each.run(None, {"x": x})[0] == expected).all() for each in new])

    in_fork(child)
    print((inherited.run(None, {"x": x})[0] == expected).all())
    """
    ) == ["True True True", "True True True", "ended with 0", "True"]


def test_a_session_without_threads_goes_on() -> None:
    assert lines(
        """
    inherited = session(threads=1)
    expected = inherited.run(None, {"x": x})[0]
    in_fork(lambda: print((inherited.run(None, {"x": x})[0] == expected).all()))
    """
    ) == ["True", "ended with 0"]


@pytest.mark.parametrize("several", ["map", "as_completed"])
def test_the_answers_of_many_requests_go_to_the_parent(several: str) -> None:
    assert lines(
        f"""
    several = {several!r}
    """
        """
    def feed(count):
        return {"count": np.array(count), "x": np.zeros(1, np.float32)}

    def feeds():
        global child
        yield feed(2**62)
        child = os.fork()

    pool = ortmulti.load(model, "cpu")
    try:
        found = next(getattr(pool, several)(["y"], feeds(), timeout=2, lookahead=2))
        found[1].result()
    except ortmulti.ForkError as error:
        print("its answer goes to the parent" in str(error), flush=True)
        os._exit(0)
    except ortmulti.DeadlineExceeded:
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
        onnx_models.endless(),
    ) == ["True", "ended with 0"]


@pytest.mark.parametrize("threads", [1, 2])
def test_an_inherited_session_can_be_closed(threads: int) -> None:
    assert lines(
        f"""
    inherited = session(threads={threads})
    """
        """
    def child():
        inherited.close()
        print(inherited.closed)
        try:
            inherited.run(None, {"x": x})
        except (ortmulti.ClosedError, ortmulti.ForkError):
            print("refused")

    in_fork(child)
    print(inherited.closed, inherited.run(None, {"x": x})[0].shape)
    """
    ) == ["True", "refused", "ended with 0", "False (1, 8)"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_while_another_thread_runs_the_session_ends(threads: int) -> None:
    """The child has the session but not the thread that was using it."""
    assert lines(
        f"""
    inherited = session(threads={threads})
    """
        """
    stop = ortmulti.RunOptions()
    stop.logid = "a long run"
    running = threading.Event()

    import logging

    class Running(logging.Handler):
        def emit(self, record):
            if "a long run" in record.getMessage():
                running.set()

    logger = logging.getLogger("ortmulti.onnxruntime")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Running())
    options = ortmulti.SessionOptions()
    options.log_severity_level = 1
    options.intra_op_num_threads = 1
    endless = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]), options, providers=CPU)

    def run():
        try:
            endless.run(None, {"count": np.array(2**62), "x": np.ones(1, np.float32)}, stop)
        except ortmulti.Error:
            print("run ended")

    thread = threading.Thread(target=run)
    thread.start()
    running.wait()
    in_fork(endless.close)
    in_fork(lambda: None)
    stop.terminate = True
    thread.join()
    """,
        onnx_models.endless(),
    ) == ["ended with 0", "ended with 0", "run ended"]


def test_asynchronous_runs_go_on_without_threads_of_their_own() -> None:
    """With new threads of the library. A session that has threads raises ForkError."""
    assert lines(
        """
    one, two = session(1, arena=False), session(2, arena=False)
    for each in (one, two):
        done = threading.Event()
        each.run_async(None, {"x": x}, lambda *_: done.set(), None)
        done.wait()

    def child():
        got, done = [], threading.Event()
        def callback(results, user_data, error):
            got.append((results[0].shape, user_data, error))
            if len(got) == 10:
                done.set()
        for i in range(10):
            one.run_async(None, {"x": x}, callback, i)
        print(done.wait(30), got == [((1, 8), i, "") for i in range(10)])
        try:
            two.run_async(None, {"x": x}, callback, None)
        except ortmulti.ForkError as error:
            print("ForkError")
        two.close()
        one.close()

    for _ in range(50):  # some are under way
        one.run_async(None, {"x": x}, lambda *_: None, None)
    in_fork(child)
    """
    ) == ["True True", "ForkError", "ended with 0"]


def test_the_log_of_a_child_is_emitted_there() -> None:
    assert lines(
        """
    import logging

    inherited = session()

    class Printing(logging.Handler):
        def emit(self, record):
            if "successfully initialized" in record.getMessage():
                print(record.getMessage())

    logger = logging.getLogger("ortmulti.onnxruntime")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Printing())

    def child():
        options = ortmulti.SessionOptions()
        options.log_severity_level = 1
        ortmulti.InferenceSession(model, options, providers=CPU)

    in_fork(child)
    """
    ) == ["ONNX Runtime: Session successfully initialized.", "ended with 0"]


def test_a_fork_before_the_first_use_is_like_none() -> None:
    assert lines("""\n    in_fork(lambda: print(session().run(None, {"x": x})[0].shape))""") == [
        "(1, 8)",
        "ended with 0",
    ]


def test_a_fork_of_a_fork() -> None:
    assert lines(
        """
    inherited = session()

    def child():
        second = session()

        def grandchild():
            for old in (inherited, second):
                try:
                    old.run(None, {"x": x})
                except ortmulti.ForkError:
                    print("refused")
            print(session().run(None, {"x": x})[0].shape)

        in_fork(grandchild)
        print(second.run(None, {"x": x})[0].shape)

    in_fork(child)
    """
    ) == ["refused", "refused", "(1, 8)", "ended with 0", "(1, 8)", "ended with 0"]


def test_multiprocessings_fork_pool() -> None:
    assert lines(
        """
    import multiprocessing

    inherited = session()

    def work(scale):
        return float(session().run(None, {"x": scale * x})[0].sum())

    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(work, [np.float32(1), np.float32(1)])
    print(results[0] == results[1] == float(inherited.run(None, {"x": x})[0].sum()))
    """
    ) == ["True"]


def test_a_fork_behind_a_load_that_failed_at_once_finds_the_library_opened(tmp_path: Path) -> None:
    """The library is opened in the background of a load; a child would wait for ever for a thread of its parent."""
    (tmp_path / "model.onnx").write_bytes(onnx_models.matmul())
    code = """
        import os, sys
        import ortmulti

        for _ in range(2):
            try:
                ortmulti.load(sys.argv[1], "cuda:99")
            except ortmulti.Error:
                pass
            child = os.fork()
            if child == 0:
                with ortmulti.load(sys.argv[1], "cpu") as pool:
                    os._exit(len(pool.sessions) - 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    check_child(code, tmp_path / "model.onnx", timeout=60)
