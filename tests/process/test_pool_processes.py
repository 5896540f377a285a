"""Pools whose sessions are in processes of their own: shared memory, and what becomes of processes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from ortmulti.interface.onnxruntime_sessions import session_specs
from ortmulti.pool.processes.session import ProcessSession
from ortmulti.pool.processes.spawned import SpawnedSession
from tests.support import onnx_models
from tests.support.backends import process_sessions, worker_pids
from tests.support.pools import endless_feed
from tests.support.processes import check_child, child_environment, nothing_leaks, run_child

X = {"x": np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)}
ENDLESS = endless_feed()


def load(model: bytes | Path, sessions: int = 1, **arguments: object) -> ortmulti.Pool:
    return ortmulti.load(model, "cpu", sessions, backend="processes", **arguments)


def runs(session: ProcessSession) -> bool:
    process = session.process
    return process is not None and any(line.busy and line.begun for line in process.lines)


def wait_for_restarts(pool: ortmulti.Pool, count: int) -> None:
    while pool.stats().devices[0].restarts < count:
        pass


def busy(pool: ortmulti.Pool, count: int = 1) -> None:
    while sum(map(runs, process_sessions(pool))) < count:
        pass


def test_a_frozen_program_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is the program then."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ortmulti.Fail, match=r"this program is frozen.*backend='core'"):
        load(onnx_models.matmul())


@pytest.fixture
def endless() -> Iterator[ortmulti.Pool]:
    options = ortmulti.SessionOptions()
    options.log_severity_level = 4
    with load(onnx_models.endless(), options=options) as pool:
        yield pool
        pool.close(cancel_pending=True)


def test_each_session_is_in_a_process_and_out_of_reach() -> None:
    with load(onnx_models.matmul(), 2) as pool:
        assert len(set(worker_pids(pool))) == 2
        assert os.getpid() not in worker_pids(pool)
        with pytest.raises(ortmulti.NotImplemented, match="in its workers' processes"):
            _ = pool.sessions
        assert "start process" in [span.name for span in pool.timeline.spans]


def test_requests_and_answers_of_growing_and_shrinking_size() -> None:
    model = onnx_models.add_mul(1024)
    with load(model) as pool, onnx_models.cpu_session(model) as session:
        for rows in (1, 1000, 7, 0, 5000, 1):
            feed = {name: np.full((rows, 1024), value, np.float32) for name, value in (("a", rows), ("b", 3))}
            for found, wanted in zip(pool.run(None, feed), session.run(None, feed), strict=True):
                np.testing.assert_array_equal(found, wanted)
        maps = Path("/proc/self/maps").read_text()
        assert "memfd:ortmulti" in maps
        assert "/dev/shm" not in maps
    assert "memfd:ortmulti" not in Path("/proc/self/maps").read_text()


def test_answers_outlive_the_pool() -> None:
    with load(onnx_models.identity()) as pool:
        array = np.arange(100_000, dtype=np.float32)
        [first] = pool.run(None, {"x": array})
        [second] = pool.run(None, {"x": array + 1})
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, array + 1)


@pytest.mark.essential
def test_workers_killed_under_load_lose_no_request() -> None:
    with load(onnx_models.matmul(), 2) as pool:
        [wanted] = pool.run(None, X)
        futures = []
        killed: set[int] = set()
        for number in range(900):
            if number % 300 == 150:
                while not (left := set(worker_pids(pool)) - killed):
                    pass
                os.kill(min(left), signal.SIGKILL)
                killed.add(min(left))
            futures.append(pool.submit(None, X))
        concurrent.futures.wait(futures, 60)
        failures = [error for future in futures if (error := future.exception(0)) is not None]
        for future in futures:
            if future.exception(0) is None:
                np.testing.assert_array_equal(future.result(0)[0], wanted)
        assert len(failures) <= 3
        assert all(isinstance(error, ortmulti.DeviceError) and "SIGKILL" in str(error) for error in failures)
        wait_for_restarts(pool, 3)
        np.testing.assert_array_equal(pool.run(None, X)[0], wanted)
        [device] = pool.stats().devices
        assert (device.done, device.failed, device.restarts) == (902 - len(failures), len(failures), 3)
        assert 'ortmulti_worker_restarts_total{device="cpu"} 3\n' in pool.stats().prometheus()


def test_a_run_whose_worker_dies_fails_where_there_is_no_other(endless: ortmulti.Pool) -> None:
    [pid] = worker_pids(endless)
    running = endless.submit(None, ENDLESS)
    busy(endless)
    waiting = endless.submit(None, endless_feed(3))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ortmulti.DeviceError, match=rf"cpu: the worker process {pid} was ended by signal 9 \(SIGKILL\)"):
        running.result(60)
    assert waiting.result(60)[0].tolist() == [3]
    assert worker_pids(endless) != [pid]


def test_a_run_whose_worker_dies_is_tried_elsewhere_once() -> None:
    options = ortmulti.SessionOptions()
    options.log_severity_level = 4
    with load(onnx_models.endless(), 2, options=options) as pool:
        running = pool.submit(None, ENDLESS)
        busy(pool)
        [first] = filter(runs, process_sessions(pool))
        assert first.process is not None
        os.kill(first.process.pid, signal.SIGKILL)
        wait_for_restarts(pool, 1)
        busy(pool)
        assert not running.done()
        assert pool.stats().devices[0].retried == 1
        while not (second := [*filter(runs, process_sessions(pool))]):
            pass
        assert second[0].process is not None
        os.kill(second[0].process.pid, signal.SIGSEGV)
        with pytest.raises(ortmulti.DeviceError, match=r"signal 11 \(SIGSEGV\)"):
            running.result(60)


def test_a_worker_that_dies_in_every_first_run_is_not_given_up(endless: ortmulti.Pool) -> None:
    for _ in range(3):  # so many starts without a run would give it up
        running = endless.submit(None, ENDLESS)
        busy(endless)
        os.kill(worker_pids(endless)[0], signal.SIGKILL)
        with pytest.raises(ortmulti.DeviceError, match="SIGKILL"):
            running.result(60)
    assert endless.run(None, endless_feed(2))[0].tolist() == [2]


def test_a_worker_that_cannot_be_started_again_is_given_up(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    with load(path) as pool:
        pool.run(None, X)
        path.unlink()
        os.kill(worker_pids(pool)[0], signal.SIGKILL)
        while not pool.stats().devices[0].broken:
            pass
        assert re.search(r"ended 3 times without a run: .*model\.onnx", pool.stats().devices[0].broken)
        with pytest.raises(ortmulti.DeviceError, match="no session left"):
            pool.run(None, X)


def test_one_worker_is_given_up_and_the_other_goes_on() -> None:
    with load(onnx_models.matmul(), 2) as pool:
        session = process_sessions(pool)[0]
        session._spec = dataclasses.replace(session._spec, model=b"junk")
        assert session.process is not None
        os.kill(session.process.pid, signal.SIGKILL)
        while pool.stats().devices[0].sessions == 2:
            pass
        for _ in range(5):
            pool.run(None, X)
        assert pool.stats().devices[0].broken == ""


def test_nothing_is_sent_to_a_worker_that_has_ended() -> None:
    [spec] = session_specs(ortmulti.Model(onnx_models.matmul()), "cpu", 1, None, None)
    with nothing_leaks():
        session = SpawnedSession("cpu")
        session.load(spec, ortmulti.Timeline())
        session.kill()
        assert "in a test" in str(session.death("in a test"))
        for _ in range(2):
            with pytest.raises(EOFError):
                session.lines[0].run(0, ["y"], X)
            assert not session.has_run
            session.close()


def test_lines_take_turns_and_what_waits_behind_a_run_is_skipped() -> None:
    [spec] = session_specs(ortmulti.Model(onnx_models.endless()), "cpu", 1, None, None)
    session = SpawnedSession("cpu", 3)
    session.load(dataclasses.replace(spec, options={"log_severity_level": 4}), ortmulti.Timeline())
    first, second, third = session.lines
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        running = threads.submit(first.run, 1, ["y"], ENDLESS)
        while not first.begun:
            pass
        for number in range(2, 52):
            waiting = threads.submit(second.run, number, ["y"], ENDLESS)
            while second._running != number:
                pass
            second.terminate(number)
            with pytest.raises(ortmulti.Error, match="cancelled"):
                waiting.result(60)
            assert not second.begun
        third.terminate(60)  # before it begins
        with pytest.raises(ortmulti.Error, match="cancelled"):
            third.run(60, ["y"], ENDLESS)
        third.terminate(60)  # which is over
        skipped = threads.submit(third.run, 61, ["y"], ENDLESS)
        while third._running != 61:
            pass
        for _ in range(2):  # as by its deadline after a cancellation: a second answer would be another's
            session._control.send(("cancel", 2, third._order))
        with pytest.raises(ortmulti.Error, match="cancelled"):
            skipped.result(60)
        behind = threads.submit(third.run, 62, ["y"], endless_feed(3))
        first.terminate(1)
        with pytest.raises(ortmulti.Error, match="terminate"):
            running.result(60)
        assert behind.result(60)[0].tolist() == [3]
    session.end()
    assert session.wait(60)
    session.close()


def test_cancelling_takes_back_what_the_worker_has_not_begun(endless: ortmulti.Pool) -> None:
    running = endless.submit(None, ENDLESS)
    busy(endless)
    for _ in range(50):  # each is given to the worker behind the one that runs
        waiting = endless.submit(None, ENDLESS)
        assert waiting.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(60)
    assert endless.stats().cancelled_waiting == 50
    assert running.cancel()
    assert endless.run(None, endless_feed(2))[0].tolist() == [2]


def test_signals_from_the_terminal_do_not_end_workers() -> None:
    with load(onnx_models.matmul()) as pool:
        [pid] = worker_pids(pool)
        for _ in range(3):
            os.kill(pid, signal.SIGINT)
            pool.run(None, X)
        assert worker_pids(pool) == [pid]
        assert os.getpgid(pid) != os.getpgid(0)


def test_workers_stay_when_the_thread_that_loaded_ends() -> None:
    made: list[ortmulti.Pool] = []
    thread = threading.Thread(target=lambda: made.append(load(onnx_models.matmul())))
    thread.start()
    thread.join()
    with made[0] as pool:
        for _ in range(5):
            pool.run(None, X)
        assert pool.stats().devices[0].restarts == 0


def test_workers_end_with_their_parent_when_that_is_killed() -> None:
    child = run_child(
        """
        import os
        import signal
        import time
        from tests.support import onnx_models
        from tests.process.test_pool_processes import ENDLESS, busy, load
        from tests.support.backends import worker_pids

        pool = load(onnx_models.endless(), 2)
        futures = [pool.submit(None, ENDLESS) for _ in range(2)]
        busy(pool, 2)
        print(*worker_pids(pool), flush=True)
        if os.fork() == 0:  # which keeps the sockets open
            os.close(1)
            os.close(2)
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert child.returncode == -signal.SIGKILL
    found = [int(pid) for pid in child.stdout.split()]
    assert len(found) == 2
    for pid in found:
        while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            os.sched_yield()


def test_ctrl_c_while_loading_leaves_no_process() -> None:
    check_child(
        """
        import contextlib
        import os
        import signal
        import threading
        from pathlib import Path
        import ortmulti
        from tests.support import onnx_models

        def children():
            found = []
            for task in Path("/proc/self/task").iterdir():
                with contextlib.suppress(OSError):  # the thread has just ended
                    found += (task / "children").read_text().split()
            return found

        def interrupt():
            while not children():
                pass
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            ortmulti.load(onnx_models.matmul(), "cpu", 2, backend="processes")
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
        assert children() == []
        """
    )


@pytest.mark.parametrize("rounds", [1, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sessions", "cancel"), [(1, False), (1, True), (2, True)])
def test_closing_while_a_worker_is_started_again(sessions: int, cancel: bool, rounds: int) -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        pool.submit(None, X).result()  # starts the library's own threads
    with nothing_leaks():
        for _ in range(rounds):
            pool = load(onnx_models.matmul(), sessions)
            os.kill(worker_pids(pool)[0], signal.SIGKILL)
            futures = [pool.submit(None, X) for _ in range(20)]
            pool.close(cancel_pending=cancel)
            assert all(future.done() for future in futures)
            assert cancel or [future.result(0)[0].shape for future in futures] == [(3, 64)] * 20
        del pool, futures


def test_the_main_module_is_not_imported_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import numpy as np
            import ortmulti
            from tests.support import onnx_models

            print("imported", flush=True)
            if __name__ == "__main__":
                with ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool:
                    pool.run(None, {"x": np.zeros((2, 64), np.float32)})
            """
        )
    )
    out = subprocess.check_output([sys.executable, program], env=child_environment(), text=True, timeout=120)
    assert out == "imported\n"
