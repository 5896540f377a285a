"""Processes that use GPUs: how they end, are forked and interrupted, and create many sessions at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import concurrent_creation
from ortmulti import _core
from tests.support import onnx_models
from tests.support.gpus import VISIBLE, check_gpu_child, needs_gpus
from tests.support.processes import run_child

pytestmark = pytest.mark.gpu


def test_ctrl_c_while_cuda_starts_and_loads(large_model: Path) -> None:
    printed = check_gpu_child(
        """
        import os, signal, sys, threading
        import ortmulti

        ortmulti.RunOptions()
        known = set(os.listdir("/proc/self/task"))

        def interrupt():
            known.add(str(threading.get_native_id()))
            while not set(os.listdir("/proc/self/task")) - known:
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)

        ready = []
        watcher = threading.Thread(target=interrupt)
        watcher.start()
        try:
            in_turn = ortmulti.Loading(serialize="all")
            ortmulti.create_sessions(sys.argv[1], "all", 2, loading=in_turn, progress=lambda *call: ready.append(call))
        except KeyboardInterrupt:
            print("interrupted")
        watcher.join()
        with ortmulti.create_sessions(sys.argv[1], "all") as sessions:
            print(len(sessions) == ortmulti._core.cuda_device_count() > 0)
        """,
        large_model,
    )
    assert printed.splitlines() == ["interrupted", "True"]


# --- Exit and fork ----------------------------------------------------------------------------------------------------

LEFT_OPEN = {
    "global sessions and outputs": """
    sessions = ortmulti.create_sessions(model, "all", 2)
    ys = [session.run(None, {"x": x}) for session in sessions]
    """,
    "a session beside onnxruntime's": """
    import onnxruntime
    onnxruntime.preload_dlls()
    theirs = onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"])
    session = ortmulti.InferenceSession(model, providers=["CUDAExecutionProvider"])
    ys = theirs.run(None, {"x": x}), session.run(None, {"x": x})
    """,
    "an output alone": """
    y = ortmulti.InferenceSession(model).run(None, {"x": x})
    """,
    "a reference cycle": """
    class Holder:
        pass
    holder = Holder()
    holder.itself, holder.session = holder, ortmulti.InferenceSession(model)
    del holder
    """,
    "daemon threads that run": """
    sessions = ortmulti.create_sessions(model, "all", 2)
    begun = threading.Barrier(len(sessions) + 1)
    def work(session):
        session.run(None, {"x": x})
        begun.wait()
        while True:
            session.run(None, {"x": x})
    sys.stderr.flush()
    threading.excepthook = lambda _: None  # the sessions are closed under them
    for session in sessions:
        threading.Thread(target=work, args=(session,), daemon=True).start()
    begun.wait()
    """,
    "CUDA started and nothing else": """
    print(ortmulti._core.cuda_memory(0)[1] > 0)
    """,
}


@pytest.mark.parametrize("what", list(LEFT_OPEN))
def test_a_process_may_end_with_everything_open(what: str) -> None:
    check_gpu_child(
        """
    import sys, threading
    import numpy as np
    import ortmulti
    model, x = bytes.fromhex(sys.argv[1]), np.ones((2, 3, 16, 16), np.float32)
    """
        + LEFT_OPEN[what],
        onnx_models.convolution().hex(),
    )


def test_a_fork_after_cuda_gets_an_error_and_can_use_the_cpu() -> None:
    printed = check_gpu_child(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import numpy as np
        import ortmulti

        model, x = bytes.fromhex(sys.argv[1]), np.ones((1, 3, 16, 16), np.float32)
        inherited = ortmulti.InferenceSession(model, providers=["CUDAExecutionProvider"])
        expected = inherited.run(None, {"x": x})[0]
        child = os.fork()
        if child == 0:
            for use in (
                lambda: inherited.run(None, {"x": x}),
                lambda: ortmulti.InferenceSession(model, providers=["CUDAExecutionProvider"]),
                lambda: ortmulti.create_sessions(model, "all"),
                lambda: ortmulti.create_sessions(model, 0),
                lambda: ortmulti._core.cuda_memory(0),
            ):
                try:
                    use()
                except ortmulti.ForkError as error:
                    print("spawn" in str(error))
            print(ortmulti.create_sessions(model, "cpu")[0].run(None, {"x": x})[0].shape)
            inherited.close()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("ended with", os.waitstatus_to_exitcode(status))
        print((inherited.run(None, {"x": x})[0] == expected).all())
        """,
        onnx_models.convolution().hex(),
    )
    assert printed.splitlines() == ["True"] * 5 + ["(1, 8, 16, 16)", "ended with 0", "True"]


def test_a_fork_before_cuda_may_use_it() -> None:
    printed = check_gpu_child(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import ortmulti

        model = bytes.fromhex(sys.argv[1])
        ortmulti.RunOptions()
        child = os.fork()
        if child == 0:
            print(ortmulti.create_sessions(model, 0).devices)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        onnx_models.matmul().hex(),
    )
    assert printed.splitlines() == ["['cuda:0']", "0"]


def test_the_log_of_cuda_sessions_goes_to_logging() -> None:
    child = run_child(
        """
        import logging, sys
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
        import ortmulti
        options = ortmulti.SessionOptions()
        options.log_severity_level = 1
        ortmulti.create_sessions(
            bytes.fromhex(sys.argv[1]), "all", 2, options, loading=ortmulti.Loading(optimize="never")
        ).close()
        """,
        onnx_models.matmul(8).hex(),
        environment=VISIBLE,
    )
    assert child.returncode == 0
    assert child.stderr.count(" Session successfully initialized.") == 2 * _core.cuda_device_count()
    assert all(line.startswith("ortmulti") for line in child.stderr.splitlines() if " INFO " in line)


# --- Concurrent creation ----------------------------------------------------------------------------------------------


ROUNDS = [pytest.param(24, id="fast"), pytest.param(1000, id="1000 rounds", marks=pytest.mark.slow)]


def stress_creation(rounds: int, device: str, sessions: int) -> None:
    stress = concurrent_creation.Creation(devices=(device,), sessions=sessions, run_every=3, repeat=rounds // 4)
    document = stress.run()
    assert stress.failures(document) == []
    assert all(row["compared"] > 0 for row in document["rows"])


@pytest.mark.parametrize("rounds", ROUNDS)
def test_concurrent_creation_across_gpus(rounds: int) -> None:
    needs_gpus(2)
    stress_creation(rounds, "all", 1)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_concurrent_creation_within_a_gpu(rounds: int) -> None:
    """If a new release fails this, sessions of a GPU are to be created in turn with it (`why_in_turn`)."""
    stress_creation(rounds, "cuda:0", 4)
