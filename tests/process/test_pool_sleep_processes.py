"""Processes that are forked or killed while a pool sleeps or wakes, at level "session"."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil

import ortmulti
from tests.support import onnx_models
from tests.support.pools import HANG
from tests.support.processes import FORKS_AT_EASE, check_child, child_environment

X = {"x": np.ones((2, 64), np.float32)}

# `stop_at(number, stop)` has the threads that are started from now on call `stop` at their Python call of this number.
# So a wake stops where the test wants it, and nothing of it is replaced.
COMMON = """
    import itertools, os, sys, threading
    import numpy as np
    import ortmulti
    from tests.support import onnx_models

    X = {"x": np.ones((2, 64), np.float32)}
    process = os.getpid()

    def stop_at(number, stop):
        calls = itertools.count(1)

        def profile(frame, event, argument):
            if event == "call" and os.getpid() == process and next(calls) == number:
                stop()

        threading.setprofile(profile)
"""

# Python calls between the moments of a wake at which it is stopped: about six of them.
STEPS = 17


def test_a_child_forked_during_sleep_or_wake_has_errors_and_the_parent_goes_on() -> None:
    printed = check_child(
        COMMON
        + """
    pool = ortmulti.load(onnx_models.matmul(), "cpu")
    [expected] = pool.run(X)

    def errors_of_a_child():
        child = os.fork()
        if child == 0:
            refused = 0
            calls = [lambda: pool.run(X), lambda: pool.submit(X), pool.wake, lambda: pool.sleep("session"), pool.stats]
            for call in calls:
                try:
                    call()
                except ortmulti.ForkError as error:
                    refused += "made before this process was forked" in str(error)
            pool.close()
            os._exit(refused)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    pool.sleep("session")
    print("asleep", errors_of_a_child())
    for number in range(1, 100_000, int(sys.argv[1])):
        pool.sleep("session")
        go_on, moments = threading.Event(), []
        reached = threading.Semaphore(0)

        def stop():
            moments.append(number)
            reached.release()
            go_on.wait()

        stop_at(number, stop)
        future = pool.submit(X)
        future.add_done_callback(lambda _: reached.release())
        reached.acquire()
        threading.setprofile(None)
        print("waking" if moments else "woke", errors_of_a_child())
        go_on.set()
        assert (future.result(60)[0] == expected).all()
        if not moments:
            break
    """,
        STEPS,
    )
    first, *waking, last = printed.splitlines()
    assert (first, set(waking), last) == ("asleep 5", {"waking 5"}, "woke 5")
    assert len(waking) >= 3


def test_a_process_killed_while_it_wakes_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.matmul())
    folders = {"TMPDIR": tmp_path / "temporary", "ORTMULTI_CACHE": tmp_path / "cache"}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    code = textwrap.dedent(
        COMMON
        + """
    pool = ortmulti.load(sys.argv[1], "cpu")
    pool.run(X)
    pool.sleep("session")

    def stop():
        os.write(1, b"waking\\n")
        while True:
            os.read(0, 1)

    stop_at(int(sys.argv[2]), stop)
    pool.run(X)
    os.write(1, b"woke\\n")
    stop()
    """
    )
    with ortmulti.load(model, "cpu") as pool:
        [expected] = pool.run(X)
    said: list[str] = []
    while said[-1:] != ["woke"]:
        arguments = [str(model), str(1 + len(said) * STEPS)]
        with subprocess.Popen(
            [sys.executable, *FORKS_AT_EASE, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment({name: str(folder) for name, folder in folders.items()}),
        ) as child:
            assert child.stdout is not None
            said.append(child.stdout.readline().strip())
            workers = psutil.Process(child.pid).children(recursive=True)
            child.kill()
        assert said[-1] in ("waking", "woke")
        assert psutil.wait_procs(workers, timeout=HANG)[1] == []
        files = [file.name for folder in folders.values() for file in folder.rglob("*") if file.is_file()]
        assert set(files) <= {".ses"}  # ONNX Runtime's own, which a process with an ordinary session leaves, too
        with ortmulti.load(model, "cpu") as pool:
            pool.sleep("session")
            np.testing.assert_array_equal(pool.run(X)[0], expected)
    assert len(said) >= 4
