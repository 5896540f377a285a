"""Ctrl-C while sessions are being created, and at random moments of other calls."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti._runtime import log
from ortmulti._runtime.regular_file import open_regular
from ortmulti._runtime.threads import Task
from ortmulti.bench import models
from ortmulti.pool.members import Members
from tests.support import onnx_models
from tests.support.interrupts import interrupted_at_each_place, interrupted_in
from tests.support.pools import ENDLESS, HANG, busy
from tests.support.processes import ROOT, check_child, child_environment, nothing_leaks, run_child

# `create_interrupted` sends its process SIGINT as soon as the creation has started its threads.
COMMON = """
    import os, signal, sys, threading, time
    import numpy as np
    import ortmulti

    large, small = sys.argv[1], bytes.fromhex(sys.argv[2])

    def tasks():
        return set(os.listdir("/proc/self/task"))

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def watch_for_creation(created):
        # Threads that start with the library are there before it looks.
        ortmulti.InferenceSession(small, providers=["CPUExecutionProvider"]).close()
        known = tasks()

        def interrupt():
            known.add(str(threading.get_native_id()))
            while not tasks() - known:
                if created.is_set():  # its threads were too short for this one, as on a busy machine
                    return
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        return watcher

    def create_interrupted(create):
        ready, created = [], threading.Event()
        watcher = watch_for_creation(created)
        try:
            try:
                create(lambda *call: ready.append(call))
            finally:
                created.set()
                watcher.join()  # the interrupt may come here, too
        except KeyboardInterrupt:
            print("interrupted,", len(ready), "ready")
            return True
        return False

    def several(progress):
        ortmulti.create_sessions(large, "cpu", 3, loading=ortmulti.Loading(serialize="all"), progress=progress)

    def one(progress):
        ortmulti.InferenceSession(large, providers=["CPUExecutionProvider"])
"""


def printed_by(code: str, large: Path | str = "") -> list[str]:
    return check_child(COMMON + code, large, onnx_models.matmul(8).hex()).splitlines()


def test_interrupted_creations_keep_no_stacks_of_threads() -> None:
    printed = printed_by(
        """
    import resource

    size, _ = resource.getrlimit(resource.RLIMIT_STACK)

    def stacks():  # the memory of a thread's stack has this size, and what malloc maps for threads has not
        with open("/proc/self/maps") as file:
            ranges = [line.split()[0].split("-") for line in file if " rw-p " in line]
        return sum(int(end, 16) - int(begin, 16) == size for begin, end in ranges)

    def small_one(progress):
        ortmulti.InferenceSession(small, providers=["CPUExecutionProvider"])

    create_interrupted(small_one)
    assert stacks() > 0, size
    before = stacks()
    interrupted = 0
    while interrupted < 40:
        interrupted += create_interrupted(small_one)
    print("stacks:", before, stacks(), "too many:", stacks() > before + 20)
    """
    )
    assert printed[-1].endswith("too many: False"), printed


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose session takes some tenths of a second."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=320)


@pytest.mark.essential
@pytest.mark.parametrize("create", ["one", "several"])
def test_ctrl_c_returns_before_the_creation_ends_and_leaves_nothing(create: str, large: Path) -> None:
    printed = printed_by(
        f"""
    ortmulti.InferenceSession(small, providers=["CPUExecutionProvider"]).close()
    threads_before, memory_before = tasks(), resident()
    create_interrupted({create})
    deadline = time.monotonic() + 60
    while tasks() - threads_before and time.monotonic() < deadline:
        os.sched_yield()
    print(len(tasks() - threads_before), "threads left")
    print("memory kept:", resident() - memory_before > 200e6)
    session = ortmulti.InferenceSession(large, providers=["CPUExecutionProvider"])
    print(session.run(None, {{"x": np.zeros((1, session.get_inputs()[0].shape[1]), np.float32)}})[0].any())
    """,
        large,
    )
    assert printed == ["interrupted, 0 ready", "0 threads left", "memory kept: False", "False"]


@pytest.mark.parametrize("create", ["one", "several"])
def test_the_process_may_end_while_the_rest_is_still_created(create: str, large: Path) -> None:
    assert printed_by(f"\n    create_interrupted({create})", large) == ["interrupted, 0 ready"]


def test_ctrl_c_that_nobody_catches_ends_the_process_as_usual(large: Path) -> None:
    child = run_child(
        COMMON
        + """
    watch_for_creation(threading.Event())
    several(None)
    """,
        large,
        onnx_models.matmul(8).hex(),
    )
    assert child.returncode == -signal.SIGINT
    assert child.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_a_handler_that_raises_something_else(large: Path) -> None:
    printed = printed_by(
        """
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    signal.signal(signal.SIGINT, stop)
    try:
        create_interrupted(several)
    except Stop:
        print("stopped")
    """,
        large,
    )
    assert printed == ["stopped"]


# Attempts of the long test.
ATTEMPTS = int(os.environ.get("ORTMULTI_SIGINTS", "10000"))


@pytest.mark.parametrize("timeout", [-1, 60])
def test_an_interrupted_wait_for_a_task_ends_no_other_wait(timeout: float) -> None:
    for line in range(1, 6):  # at each line of `wait` in turn
        end = threading.Event()
        task = Task(end.wait, "task")
        task.start()
        left, interrupted = line, False

        def trace(frame: FrameType, event: str, _: Any, end: threading.Event = end) -> Any:
            nonlocal left, interrupted
            if frame.f_code is not Task.wait.__code__:
                return None
            left -= event == "line"
            if left <= 1:
                end.set()
            if event == "line" and left == 0:
                interrupted = True
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            task.wait(timeout)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        after = threading.Thread(target=task.wait, daemon=True)
        after.start()
        after.join(10)
        assert interrupted
        assert not after.is_alive(), f"interrupted at line {line} of the first wait"


@pytest.mark.parametrize("wait", ["task.wait()", "Change().wait()"])
def test_a_signal_that_does_not_wake_the_main_thread_ends_its_wait(wait: str) -> None:
    """As one that comes just before the wait. Here another thread receives it."""
    printed = check_child(
        f"""
        import os, signal, sys, threading, time
        from pathlib import Path
        from ortmulti._runtime.threads import Change, Task

        end, main = threading.Event(), threading.main_thread()

        def call():
            def waits():
                in_wait = sys._current_frames()[main.ident].f_code.co_name == "wait" and not starting
                return in_wait and Path(f"/proc/self/task/{{main.native_id}}/stat").read_text().split()[2] == "S"

            while not waits():
                os.sched_yield()
            global sent
            sent = time.monotonic()
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            end.wait()

        starting = True
        task = Task(call, "task")
        task.start()
        starting = False
        try:
            {wait}
        except KeyboardInterrupt:
            print("late:", time.monotonic() - sent > 0.5)
        end.set()
        """
    )
    assert printed == "late: False\n"


@pytest.mark.parametrize("attempts", [50, pytest.param(ATTEMPTS, marks=pytest.mark.slow, id="many")])
def test_ctrl_c_at_any_moment(attempts: int, tmp_path: Path) -> None:
    seed = random.randrange(2**31)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = child_environment({"ORTMULTI_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary)})
    command = [sys.executable, "-m", "tests.support.sigint", str(attempts), str(seed), str(tmp_path)]
    child = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60 + 2 * attempts, check=False
    )
    assert child.returncode == 0, f"seed {seed}: {child.stdout}{child.stderr}"
    outcomes = json.loads(child.stdout)
    print(f"seed {seed}: {outcomes}")
    assert sum(outcomes.values()) == attempts
    # The interpreter drops what a destructor raises.
    swallowed = sum(count for outcome, count in outcomes.items() if "swallowed" in outcome)
    assert swallowed <= 1 + attempts / 100, outcomes


@pytest.mark.parametrize("call", ["wait_ready", "add_devices"])
def test_a_lock_is_free_while_an_interrupt_is_handled(call: str) -> None:
    """The exception keeps its frames alive, and what these have taken."""
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        members: Any = pool._members
        calls: dict[str, Callable[[], object]] = {
            "wait_ready": pool.wait_ready,
            "add_devices": lambda: pool.add_devices("cpu"),
        }

        def free(taken: list[bool]) -> None:
            for lock in (members._changing, members._lock):
                taken.append(lock.acquire(timeout=1))
                if taken[-1]:
                    lock.release()

        places = 0
        for caught in interrupted_at_each_place(calls[call]):
            places += 1
            taken: list[bool] = []
            thread = threading.Thread(target=free, args=(taken,))
            thread.start()
            thread.join()
            assert taken == [True, True], "".join(traceback.format_exception(caught))
        assert places > 5  # Python 3.12 has fewer than 3.11


def test_an_interrupt_leaves_the_log_to_other_threads() -> None:
    def take() -> None:
        if log._emitting.acquire(timeout=HANG):
            log._emitting.release()
            taken.append(True)

    for caught in interrupted_at_each_place(log.flush):
        taken: list[bool] = []
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        assert taken, "".join(traceback.format_exception(caught))


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    with nothing_leaks():
        places = sum(1 for _ in interrupted_at_each_place(lambda: open_regular(path).close()))
    assert places > 3


FUTURES: dict[str, Callable[[ortmulti.PoolFuture], object]] = {
    "add_done_callback": lambda future: future.add_done_callback(lambda _: None),
    "cancel": lambda future: future.cancel(),
    "done": lambda future: future.done(),
    "exception": lambda future: future.exception(HANG),
    "result": lambda future: future.result(HANG),
    "running": lambda future: future.running(),
}


@pytest.mark.parametrize("call", FUTURES)
def test_an_interrupted_call_of_a_future_loses_no_answer_and_keeps_no_lock(call: str) -> None:
    x = {"x": np.ones((1, 64), np.float32)}
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        [expected] = pool.run(x)
        futures = [pool.submit(x)]
        for _ in interrupted_at_each_place(lambda: FUTURES[call](futures[-1])):
            called: SimpleQueue[ortmulti.PoolFuture] = SimpleQueue()
            threading.Thread(target=futures[-1].add_done_callback, args=(called.put,), daemon=True).start()
            assert called.get(timeout=HANG) is futures[-1], f"interrupted at place {len(futures)}"
            if not futures[-1].cancelled():
                np.testing.assert_array_equal(futures[-1].result(HANG)[0], expected)
            futures.append(pool.submit(x))
        assert len(futures) > 3


def test_an_interrupted_cancel_loses_no_callback() -> None:
    called: SimpleQueue[ortmulti.PoolFuture] = SimpleQueue()
    with ortmulti.load(ENDLESS, "cpu") as pool:
        future = busy(pool)
        future.add_done_callback(called.put)
        interrupted_in(ortmulti.PoolFuture._invoke_callbacks.__code__, future.cancel)
        future.cancel()  # the rest of it
        assert called.get(timeout=HANG) is future


def test_an_interrupted_replacement_closes_the_former_model() -> None:
    model = onnx_models.matmul()
    with ortmulti.load(model, "cpu") as pool:
        [former] = pool.sessions
        interrupted_in(Members._retire.__code__, lambda: pool.replace_model(model))
        assert former.closed
        pool.run({"x": np.ones((1, 64), np.float32)})
