"""Pools that sleep without a GPU: their sessions are closed and made again. Weights sleep on a GPU alone."""

from __future__ import annotations

import concurrent.futures
import gc
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti.pool.sleep import SessionSleep
from tests.support import onnx_models
from tests.support.pools import HANG
from tests.support.processes import check_child

MODEL = onnx_models.matmul()
X = {"x": np.ones((2, 64), np.float32)}


@pytest.fixture
def pool() -> Iterator[ortmulti.Pool]:
    with ortmulti.load(MODEL, "cpu") as made:
        yield made


def test_weights_that_cannot_sleep_are_refused() -> None:
    reason = r"on cpu cannot sleep: they are the page cache's, or the session's own; level='session' closes"
    with ortmulti.load(MODEL, "cpu") as pool:
        [expected] = pool.run(X)
        for keep in (None, "pinned"):
            with pytest.raises(ortmulti.NotImplemented, match=reason):
                pool.sleep(keep=keep)
        np.testing.assert_array_equal(pool.run(X)[0], expected)
        [device] = pool.stats().devices
        assert (device.asleep, device.sleeps, device.wakes, device.wake.count) == ("", 0, 0, 0)


def test_a_request_makes_the_sessions_again() -> None:
    with ortmulti.load(MODEL, "cpu", sessions_per_device=2) as pool:
        [expected] = pool.run(X)
        pool.wake()  # it is awake
        pool.wake("cpu", timeout=0)
        for count in range(1, 4):
            pool.sleep("session")
            pool.sleep("session")
            [device] = pool.stats().devices
            assert (device.asleep, device.sleeps, device.wakes, device.sessions) == ("session", count, count - 1, 2)
            assert (pool.ready, pool.closed, pool.get_inputs()[0].name) == (["cpu"], False, "x")
            np.testing.assert_array_equal(pool.run(X)[0], expected)
        [device] = pool.stats().devices
        assert (device.asleep, device.wakes) == ("", 3)
        pool.sleep("session", auto_wake=False)
        with pytest.raises(ortmulti.DeviceError, match=r"cpu: it is asleep, and wakes with Pool\.wake"):
            pool.run(X)
        pool.wake()
        np.testing.assert_array_equal(pool.run(X)[0], expected)
    assert pool.closed


def test_sessions_are_closed_and_others_take_their_places() -> None:
    with ortmulti.load(MODEL, "cpu", sessions_per_device=2, warmup=True) as pool:
        before = pool.sessions
        pool.sleep("session")
        assert [session.closed for session in before] == [True, True]
        with pytest.raises(ortmulti.ClosedError, match="is closed: create it again"):
            before[0].run(None, X)
        pool.wake()
        assert [session.closed for session in pool.sessions] == [False, False]
        names = [span.name for span in pool.timeline.spans]
        assert (names.count("sleep"), names.count("create session"), names.count("warm up")) == (1, 2, 4)
        pool.sleep("session")
        for session in pool.sessions:
            session.close()
        assert not pool.closed


def test_requests_of_many_threads_through_sleeps() -> None:
    sleeps = 30
    with ortmulti.load(MODEL, "cpu", sessions_per_device=2) as pool:
        [expected] = pool.run(X)
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                np.testing.assert_array_equal(pool.run(X)[0], expected)

        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            clients = [threads.submit(client) for _ in range(3)]
            try:
                for _ in range(sleeps):
                    pool.sleep("session", timeout=HANG)
                    pool.wake(timeout=HANG)
            finally:
                over.set()
            for each in clients:
                each.result(HANG)
        [device] = pool.stats().devices
        assert (device.sleeps, device.wakes, device.failed) == (sleeps, sleeps, 0)


def test_nothing_is_left_of_earlier_sleeps() -> None:
    def left() -> int:
        gc.collect()
        return sum(type(each) is SessionSleep for each in gc.get_objects())

    with ortmulti.load(MODEL, "cpu") as pool:
        for _ in range(10):
            pool.sleep("session")
            pool.run(X)
        end = time.monotonic() + HANG
        while left() > 0 and time.monotonic() < end:  # freed by another thread
            pass
        assert left() == 0


@pytest.mark.parametrize("external", [False, True])
def test_a_file_that_changed_is_not_read(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load_from_string(MODEL), path, save_as_external_data=external, location="data", size_threshold=0)
    changed = tmp_path / "data" if external else path
    with ortmulti.load(path, "cpu") as pool:
        [expected] = pool.run(X)
        pool.sleep("session")
        changed.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(
                ortmulti.WeightsError, match=f"cannot wake: its file '{changed}' was changed or deleted"
            ):
                pool.run(X)
        assert pool.stats().devices[0].asleep == "session"
        (tmp_path / "away").rename(changed)
        np.testing.assert_array_equal(pool.run(X)[0], expected)
        path.write_bytes(onnx_models.matmul(seed=1))
        with pytest.raises(ortmulti.WeightsError, match=f"'{path}' cannot sleep: it was changed or deleted"):
            pool.sleep("session")
        assert pool.stats().devices[0].asleep == ""
        np.testing.assert_array_equal(pool.run(X)[0], expected)


def test_other_rights_and_links_of_the_file_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    with ortmulti.load(path, "cpu") as pool:
        path.chmod(0o600)
        pool.sleep("session")
        (tmp_path / "link").hardlink_to(path)
        pool.run(X)
        assert pool.stats().devices[0].asleep == ""


def test_a_sleep_of_the_weights_during_a_wake_begins_after_it() -> None:
    feed = {"x": np.ones(1, np.float32), "count": np.array(200_000)}  # a wake that takes some time
    with ortmulti.load(onnx_models.endless(), "cpu", warmup=ortmulti.Warmup([feed])) as pool:
        pool.sleep("session")
        pool.sleep("weights")  # it gave back more already
        future = pool.submit({**feed, "count": np.array(1)})
        with pytest.raises(ortmulti.NotImplemented, match="cannot sleep"):
            pool.sleep("weights")
        future.result(HANG)


def test_a_sleeping_pool_gets_another_model() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        [before] = pool.run(X)
        pool.sleep("session", auto_wake=False)
        pool.replace_model(onnx_models.matmul(seed=1))
        [after] = pool.run(X)
        assert not np.array_equal(before, after)
        pool.sleep("session")
        np.testing.assert_array_equal(pool.run(X)[0], after)


def test_what_waits_for_a_wake_is_answered_before_the_pool_closes() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        [expected] = pool.run(X)
        pool.sleep("session")
        futures = [pool.submit(X) for _ in range(3)]
    for future in futures:
        np.testing.assert_array_equal(future.result(0)[0], expected)


def test_a_pool_without_references_ends_while_it_wakes() -> None:
    for _ in range(5):
        pool = ortmulti.load(MODEL, "cpu")
        core = weakref.ref(pool._members.core)
        pool.sleep("session")
        future = pool.submit(X)
        del pool
        concurrent.futures.wait([future], HANG)
        assert future.done()
        del future
        end = time.monotonic() + HANG
        while core() is not None and time.monotonic() < end:
            gc.collect()
        assert core() is None


@pytest.mark.essential
@pytest.mark.process
def test_a_process_ends_with_pools_that_sleep_and_wake() -> None:
    printed = check_child(
        """
    import numpy as np
    import ortmulti
    from tests.support import onnx_models

    pools = [ortmulti.load(onnx_models.matmul(), "cpu") for _ in range(2)]
    for pool in pools:
        pool.sleep("session")
    future = pools[0].submit({"x": np.zeros((2, 64), np.float32)})
    print("end")
    """
    )
    assert printed == "end\n"


MISTAKES: dict[str, Callable[[ortmulti.Pool], object]] = {
    "level is 'weights' or 'session', not 'disk'": lambda pool: pool.sleep("disk"),
    "level is 'weights' or 'session', not None": lambda pool: pool.sleep(None),
    "keep='pinned' is for level='weights'": lambda pool: pool.sleep("session", keep="pinned"),
    "keep is 'pinned' or None, not 'disk'": lambda pool: pool.sleep(keep="disk"),
    "keep is 'pinned' or None, not True": lambda pool: pool.sleep(keep=True),
    "auto_wake is True or False, not 1": lambda pool: pool.sleep(auto_wake=1),
    "timeout is a number, not '1'": lambda pool: pool.sleep(timeout="1"),
    "timeout is 0 or more, not -1": lambda pool: pool.sleep(timeout=-1),
    "unknown device 'tpu'": lambda pool: pool.sleep(devices="tpu"),
    "the pool has no session on cuda:3: it has cpu": lambda pool: pool.sleep(devices=["cpu", "cuda:3"]),
    "timeout is a number, not []": lambda pool: pool.wake(timeout=[]),
    "timeout is a finite number of 0 or more, not inf": lambda pool: pool.wake(timeout=float("inf")),
    "no session on cuda:3: it has cpu": lambda pool: pool.wake("cuda:3"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_wrong_argument_is_one_clear_error(pool: ortmulti.Pool, message: str) -> None:
    with pytest.raises(ortmulti.Error, match=re.escape(message)):
        MISTAKES[message](pool)


def test_a_closed_pool_neither_sleeps_nor_wakes(pool: ortmulti.Pool) -> None:
    pool.close()
    for call in (pool.sleep, pool.wake):
        with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
            call()
