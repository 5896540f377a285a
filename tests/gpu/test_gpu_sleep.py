"""Pools on a GPU that give the memory of their weights back and take it again."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from ortmulti._runtime import background
from ortmulti.bench import sleep
from ortmulti.optimized import Cache
from ortmulti.pool import graphs as pool_graphs
from tests.support import onnx_models
from tests.support.gpus import VISIBLE, check_gpu_child, check_memory_returns, free, needs_graphs
from tests.support.processes import check_child, run_child

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_memory]

MB = 1 << 20


def feed_of(pool: ortmulti.Pool) -> dict[str, np.ndarray]:
    width = pool.get_inputs()[0].shape[1]
    return {"x": np.random.default_rng(0).standard_normal((4, int(width or 0)), np.float32)}


@pytest.fixture(params=[False, True], ids=["runs", "graphs"])
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether runs are captured."""
    if request.param:
        needs_graphs()
        monkeypatch.setattr(pool_graphs, "waits_for_gpus", str)  # other tests of the process may have used PyTorch
    return bool(request.param)


@pytest.mark.parametrize("keep", [None, "pinned"])
def test_outputs_are_those_from_before(large_model: Path, keep: str | None, graphs: bool) -> None:
    with ortmulti.load(large_model, 0, cuda_graph=graphs) as pool:
        feed = feed_of(pool)
        pool.run(feed)
        background.wait()  # for a graph
        [expected] = pool.run(feed)
        assert bool(pool.stats().devices[0].graphs) == graphs
        awake = free()
        for _ in range(5):
            pool.sleep(keep=keep)
            assert free() > awake + 480 * MB
            assert pool.stats().devices[0].asleep == "weights"
            [y] = pool.run(feed)
            np.testing.assert_array_equal(y, expected)
        assert pool.stats().devices[0].wakes == 5
        assert abs(free() - awake) < 64 * MB


def test_nothing_stays_of_a_session_that_sleeps(large_model: Path, graphs: bool) -> None:
    with ortmulti.load(large_model, 0, cuda_graph=graphs) as first:  # kernels and libraries
        feed = feed_of(first)
        [expected] = first.run(feed)
        background.wait()  # for a graph
        first.run(feed)
    before = free()
    with ortmulti.load(large_model, 0, cuda_graph=graphs) as pool:
        for _ in range(3):
            pool.run(feed)
            background.wait()
            np.testing.assert_allclose(pool.run(feed)[0], expected, rtol=1e-3, atol=1e-3)
            pool.sleep()
            pool.sleep("session")
            assert before - free() < 10 * MB


def test_requests_of_many_threads_through_sleeps(large_model: Path) -> None:
    with ortmulti.load(large_model, 0) as pool:
        feed = feed_of(pool)
        [expected] = pool.run(feed)
        wrong: list[int] = []
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                if not np.array_equal(pool.run(feed)[0], expected):
                    wrong.append(1)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            pool.sleep(keep="pinned")
        over.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert pool.stats().devices[0].sleeps == 30
        assert sum(device.failed for device in pool.stats().devices) == 0


def test_a_session_of_a_sleeping_pool_is_an_error(large_model: Path) -> None:
    with ortmulti.load(large_model, 0) as pool:
        feed, [session] = feed_of(pool), pool.sessions
        [expected] = session.run(None, feed)
        pool.sleep()
        with pytest.raises(ortmulti.DeviceError, match="asleep on cuda:0"):
            session.run(None, feed)
        pool.wake()
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)


def test_others_take_the_memory_meanwhile(large_model: Path) -> None:
    printed = check_gpu_child(
        """
    import sys
    import numpy as np
    import ortmulti
    from tests.support.gpus import fill

    pool = ortmulti.load(sys.argv[1], 0)
    feed = {"x": np.ones((1, pool.get_inputs()[0].shape[1]), np.float32)}
    [expected] = pool.run(feed)
    pool.sleep()
    release = fill(0, 300 << 20)
    for call in (pool.wake, lambda: pool.run(feed)):
        try:
            call()
        except ortmulti.OutOfMemory as error:
            print("the weights take" in str(error), "free of" in str(error))
    release()
    print((pool.run(feed)[0] == expected).all())
    pool.sleep()  # and the process ends
    """,
        large_model,
    )
    assert printed.splitlines() == ["True True", "True True", "True"]


def test_what_remains_is_freed(large_model: Path) -> None:
    def cycle() -> None:
        with ortmulti.load(large_model, 0) as pool:
            pool.run(feed_of(pool))
            pool.sleep(keep="pinned")

    check_memory_returns(cycle)


def test_a_process_killed_while_it_wakes_leaves_nothing(large_model: Path, tmp_path: Path) -> None:
    environment = {**VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")}
    code = """
    import os, signal, sys
    import numpy as np
    import ortmulti
    from ortmulti.optimized import wait_for_entries

    pool = ortmulti.load(sys.argv[1], 0)
    wait_for_entries()
    feed = {"x": np.ones((1, pool.get_inputs()[0].shape[1]), np.float32)}
    [expected] = pool.run(feed)
    if sys.argv[2] != "none":
        pool.sleep(sys.argv[2])
        pool.submit(feed)
        os.kill(os.getpid(), signal.SIGKILL)
    pool.sleep()
    print((pool.run(feed)[0] == expected).all(), float(expected.sum()))
    """
    before = check_child(code, large_model, "none", environment=environment)
    assert before.startswith("True ")
    for level in ("weights", "session"):
        assert run_child(code, large_model, level, environment=environment).returncode == -signal.SIGKILL
        assert check_child(code, large_model, "none", environment=environment) == before
    cache = Cache(tmp_path / "cache")
    assert len(cache.entries()) == 1
    assert list((cache.folder / "staging").iterdir()) == []


@pytest.mark.parametrize("level", ["weights", "session"])
def test_a_child_forked_during_sleep_or_wake_has_errors_and_the_parent_goes_on(large_model: Path, level: str) -> None:
    printed = check_gpu_child(
        """
    import os, sys
    import numpy as np
    import ortmulti

    pool = ortmulti.load(sys.argv[1], 0)
    feed = {"x": np.ones((1, pool.get_inputs()[0].shape[1]), np.float32)}
    [expected] = pool.run(feed)

    def errors_of_a_child():
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (lambda: pool.run(feed), lambda: pool.submit(feed), pool.wake, pool.sleep, pool.stats):
                try:
                    call()
                except ortmulti.ForkError:
                    refused += 1
            pool.close()
            os._exit(refused)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for _ in range(3):
        pool.sleep(sys.argv[2])
        print(errors_of_a_child())
        future = pool.submit(feed)
        print(errors_of_a_child())
        print((future.result(60)[0] == expected).all())
    """,
        large_model,
        level,
    )
    assert printed.split() == ["5", "5", "True"] * 3


def test_bench_sleep(large_model: Path, graphs: bool) -> None:
    document = sleep.Sleep([large_model], "cuda:0", graphs=graphs, repeat=2, random=20).run()
    assert sleep.Sleep.failures(document) == []
    turns, *at_random = document["measurements"]
    assert turns["weights"] > 480 * MB
    rows = {row["kind"]: row for row in document["rows"]}
    assert list(rows) == ["shared", "awake", "files", "pinned", "session", "copy", "onnxruntime"]
    assert rows["session"]["memory"]["gpu"] < 10 * MB
    for kind in sleep.KINDS:
        assert len(turns["seconds"][kind]["wake"]) == 2
        assert rows[kind]["memory"]["gpu"] < rows["awake"]["memory"]["gpu"] - 480 * MB
        assert rows[kind]["equal"]
    assert [one["kinds"] for one in at_random] == [["files"], ["pinned"], ["session"]]
    assert all(one["answers"] > 0 and one["slept"] == one["woken"] == 20 for one in at_random)


def test_a_model_in_memory_wakes_after_its_first_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights lie in the cache's entry, which was made for the load, and moved to its place after it."""
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path))
    with ortmulti.load(onnx_models.matmul(seed=77), "cuda:0") as pool:
        given = {"x": np.ones((3, 64), np.float32)}
        [wanted] = pool.run(given)
        pool.sleep()
        np.testing.assert_array_equal(pool.run(given)[0], wanted)
