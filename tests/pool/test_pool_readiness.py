"""Pools that take requests before all of their sessions are there, and those of which some fail."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import LoadProgress, Warmup
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.pool.member import MemberCreation
from tests.support import fake_driver, onnx_models
from tests.support.creations import break_session
from tests.support.pools import ENDLESS, HANG, endless_feed
from tests.support.processes import check_child, nothing_leaks, run_child

MODEL = onnx_models.matmul()
X = {"x": np.random.default_rng(3).standard_normal((3, 64), dtype=np.float32)}


def expected() -> np.ndarray:
    with onnx_models.cpu_session(MODEL) as session:
        return session.run(None, X)[0]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Loads begin when this is set."""
    begin, create = threading.Event(), ways.create

    def later(creation: Creation) -> None:
        while not begin.wait(0.01):
            creation.poll()
        create(creation)

    monkeypatch.setattr(ways, "create", later)
    yield begin
    begin.set()


def test_a_session_warms_up_while_others_are_created(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed, sessions = threading.Event(), []
    hand_over, let_in = Creation.hand_over, MemberCreation.let_in

    def noted(creation: Creation) -> None:
        sessions.extend(creation.waiting)
        assert len(sessions) == 1 or warmed.wait(60)
        hand_over(creation)

    def noted_let_in(loading: MemberCreation, *arguments: Any) -> None:
        let_in(loading, *arguments)
        warmed.set()

    monkeypatch.setattr(Creation, "hand_over", noted)
    monkeypatch.setattr(MemberCreation, "let_in", noted_let_in)
    with ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(strategy="native"), warmup=True) as pool:
        assert len(pool.sessions) == 2
    assert sorted(sessions) == [0, 1]


@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("wait", ["all", "first", "none"])
def test_every_way_to_wait_ends_with_all_sessions(wait: Any, warmup: bool) -> None:
    with nothing_leaks():
        with ortmulti.load(MODEL, "cpu", 3, loading=ortmulti.Loading(wait=wait), warmup=warmup) as pool:
            if wait == "all":
                assert len(pool.sessions) == 3
            if wait != "none":
                assert pool.ready == ["cpu"]
            np.testing.assert_array_equal(pool.run(None, X)[0], expected())
            assert pool.wait_ready(60) == ["cpu"]
            assert pool.wait_ready(60, "cpu") == ["cpu"]
            assert pool.devices == ["cpu"] * 3
            assert [span.name for span in pool.timeline.spans].count("warm up") == (3 if warmup else 0)
            assert "create session" in [span.name for span in pool.timeline.spans]
            [stats] = pool.stats().devices
            assert (stats.state, stats.sessions) == ("ready", 3)
        assert pool.closed


def test_requests_before_the_first_session_wait_for_it(held: threading.Event) -> None:
    with ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none")) as pool:
        assert repr(pool) == f"<Pool of a model of {len(MODEL)} bytes on no device yet>"
        assert pool.ready == pool.devices == []
        assert pool.stats().devices[0].state == "starting"
        assert not pool.closed
        feed: dict[str, Any] = dict(X)
        futures = [pool.submit(["y"], feed), pool.submit(None, feed, device="cpu"), pool.submit(None, feed)]
        feed["x"] = None  # the dict, as opposed to its arrays, may be changed
        assert futures[2].cancel()
        late = pool.submit(None, X, timeout=0.05)
        with pytest.raises(ortmulti.DeadlineExceeded):
            late.result(60)
        with pytest.raises(ortmulti.DeadlineExceeded):
            pool.run(None, X, timeout=0.05)
        with pytest.raises(ortmulti.DeadlineExceeded, match="cpu"):
            pool.wait_ready(0.001)
        with pytest.raises(ortmulti.InvalidArgument, match="no session on cuda:9"):
            pool.submit(None, X, device="cuda:9")
        with pytest.raises(ortmulti.InvalidType):
            pool.submit(None, [1])
        with pytest.raises(ortmulti.InvalidType):
            pool.submit(None, X, "options")
        wrong = [
            pool.submit(None, {"z": X["x"]}),
            pool.submit(None, {}),
            pool.submit(["q"], X),
            pool.submit(None, {"x": np.zeros((2, 64), np.int64)}),
        ]
        assert not any(future.done() for future in [*futures[:2], *wrong])
        held.set()
        for future in futures[:2]:
            np.testing.assert_array_equal(future.result(60)[0], expected())
        for future, message in zip(wrong, ("'z'", "'x'", "'q'", "int64"), strict=True):
            with pytest.raises(ortmulti.InvalidArgument, match=message):
                future.result(60)
        assert futures[2].cancelled()
        stats = pool.stats()
        assert (stats.cancelled_waiting, stats.failed_waiting) == (1, 2)
        assert sum(device.done for device in stats.devices) == 2


def test_every_kind_of_request_waits(held: threading.Event) -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(wait="none"), max_queue=20) as pool:
        with concurrent.futures.ThreadPoolExecutor() as threads:
            runs = [threads.submit(pool.run, None, X) for _ in range(3)]
            mapped = threads.submit(lambda: list(pool.map([X] * 5)))
            completed = threads.submit(lambda: [future.result() for _, future in pool.as_completed([X] * 5)])
            later = threads.submit(lambda: asyncio.run(pool.run_async(None, X)))
            ready = threads.submit(pool.wait_ready)
            inputs = threads.submit(pool.get_inputs)
            held.set()
            answers = [*[run.result() for run in runs], *mapped.result(), *completed.result(), later.result()]
            assert ready.result() == ["cpu"]
            assert [each.name for each in inputs.result()] == ["x"]
        for [y] in answers:
            np.testing.assert_array_equal(y, expected())
        assert len(answers) == 14


def test_the_queue_is_as_long_as_ever(held: threading.Event) -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(wait="none"), max_queue=1) as pool:
        first = pool.submit(None, X)
        with pytest.raises(ortmulti.QueueFull):
            pool.submit(None, X, when_full="reject")
        held.set()
        first.result(60)


def test_arrays_of_waiting_requests_are_held_no_longer_than_those(held: threading.Event) -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(wait="none")) as pool:
        x = X["x"].copy()
        before = sys.getrefcount(x)
        future = pool.submit(None, {"x": x})
        assert sys.getrefcount(x) > before
        held.set()
        future.result(60)
        del future
        gc.collect()
        assert sys.getrefcount(x) == before


def test_a_request_keeps_its_run_options_but_for_terminate(held: threading.Event) -> None:
    changed, ended = ortmulti.RunOptions(), ortmulti.RunOptions()
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(wait="none")) as pool:
        before = pool.submit(None, X, changed)
        to_end = pool.submit(None, X, ended)
        changed.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")  # a session on the CPU has none
        ended.logid = "changed"
        ended.terminate = True
        after = pool.submit(None, X, changed)
        held.set()
        np.testing.assert_array_equal(before.result(60)[0], expected())
        with pytest.raises(ortmulti.Error, match="arena"):
            after.result(60)
        with pytest.raises(ortmulti.Error, match="terminate"):
            to_end.result(60)


def test_the_first_session_answers_while_the_others_start() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def progress(_: LoadProgress) -> None:
        """Hold the load back at the news of its first session."""
        reached.set()
        go_on.wait()

    with ortmulti.load(
        MODEL, "cpu", 2, loading=ortmulti.Loading(strategy="native", wait="first", progress=progress)
    ) as pool:
        try:
            assert reached.wait(HANG)
            assert pool.ready == ["cpu"]
            np.testing.assert_array_equal(pool.run(None, X)[0], expected())
        finally:
            go_on.set()
        pool.wait_ready()
        assert len(pool.sessions) == 2


def test_the_first_session_of_a_device_warms_up_alone_where_others_are_not_waited_for() -> None:
    warmup = Warmup(samples=endless_feed(100_000))
    with ortmulti.load(ENDLESS, "cpu", 3, loading=ortmulti.Loading(wait="first"), warmup=warmup) as pool:
        pool.wait_ready()
        spans = [span for span in pool.timeline.spans if span.name == "warm up"]
    assert len(spans) == 3
    end = min(span.end_ns for span in spans)
    assert sum(span.start_ns < end for span in spans) == 1


@pytest.mark.parametrize("require", ["all", "any"])
def test_gpus_do_not_wait_for_a_first_one_that_failed(tmp_path: Path, require: str) -> None:
    """The driver is one for tests, for which ONNX Runtime has no sessions here; its contexts are made all the same."""
    driver = fake_driver.build(tmp_path)
    code = """
        import sys
        import ortmulti
        from ortmulti import _core
        from tests.support import onnx_models

        try:
            loading = ortmulti.Loading(wait="first", require=sys.argv[1])
            ortmulti.load(onnx_models.matmul(), ["cuda:2", "cuda:0", "cuda:1"], loading=loading)
        except ortmulti.Error:
            pass
        for device in (0, 1):
            _core.cuda_memory(device)  # waits for its context
    """
    child = run_child(code, require, environment={**driver.environment, "ORTMULTI_CACHE": str(tmp_path / "cache")})
    assert child.returncode == 0, child.stderr
    made = [call for call in driver.calls if call.startswith("context")]
    assert made == ["context 2", "context 0", "context 1"]


# Failures.


def test_a_failure_closes_the_pool_and_is_what_everybody_gets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held: threading.Event
) -> None:
    break_session(monkeypatch, lambda _: True)
    pool = ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none"))
    future = pool.submit(None, X)
    held.set()
    requests = [future.result, lambda: pool.run(X), lambda: pool.submit(X)]
    for ask in (*requests, pool.wait_ready, pool.warmup, pool.get_inputs):
        with pytest.raises(ortmulti.InvalidArgument, match="NoSuchExecutionProvider"):
            ask()
    pool.close()
    assert pool.closed
    assert pool.stats().devices[0].state == "failed"
    assert [record.levelname for record in caplog.records if record.name == "ortmulti"] == ["ERROR"]


def test_one_failure_is_the_loads_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    break_session(monkeypatch, lambda index: index == 1)
    with nothing_leaks(), pytest.raises(ortmulti.InvalidArgument, match="NoSuchExecutionProvider"):
        ortmulti.load(MODEL, "cpu", 3, loading=ortmulti.Loading(strategy="native"))
    assert not [record for record in caplog.records if record.name == "ortmulti"]
    with (
        nothing_leaks(),
        ortmulti.load(MODEL, "cpu", 3, loading=ortmulti.Loading(strategy="native", require="any"), warmup=True) as pool,
    ):
        assert pool.wait_ready() == ["cpu"]
        assert len(pool.sessions) == 2
        [record] = [record for record in caplog.records if record.name == "ortmulti"]
        assert record.levelno == logging.WARNING
        assert "without a session on cpu" in record.getMessage()
        assert "NoSuchExecutionProvider" in record.getMessage()
        np.testing.assert_array_equal(pool.run(None, X)[0], expected())


@pytest.mark.parametrize("require", ["all", "any"])
@pytest.mark.parametrize("wait", ["all", "first"])
def test_if_all_fail_the_load_does(monkeypatch: pytest.MonkeyPatch, wait: Any, require: Any) -> None:
    break_session(monkeypatch, lambda _: True)
    with nothing_leaks(), pytest.raises(ortmulti.InvalidArgument, match="NoSuchExecutionProvider"):
        ortmulti.load(MODEL, "cpu", 3, loading=ortmulti.Loading(strategy="native", require=require, wait=wait))


@pytest.mark.parametrize("require", ["all", "any"])
@pytest.mark.parametrize("wait", ["all", "first"])
def test_a_warmup_that_fails_is_a_failure(wait: Any, require: Any) -> None:
    with nothing_leaks(), pytest.raises(ortmulti.InvalidArgument, match="'z'"):
        ortmulti.load(
            MODEL, "cpu", 2, warmup=Warmup(samples={"z": X["x"]}), loading=ortmulti.Loading(wait=wait, require=require)
        )


def test_ctrl_c_is_not_replaced_by_the_failure_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(creation: Creation) -> None:
        creation.failures.append((0, ortmulti.DeviceError("the first device failed")))
        creation.hand_over()
        raise KeyboardInterrupt

    monkeypatch.setattr(ways, "create", create)
    with pytest.raises(KeyboardInterrupt):
        ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(require="any"))


def test_nothing_keeps_a_pool_whose_load_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {id(found) for found in gc.get_objects() if type(found) is ortmulti.Pool}
    break_session(monkeypatch, lambda _: True)
    with pytest.raises(ortmulti.InvalidArgument):
        ortmulti.load(MODEL, "cpu")
    gc.collect()
    assert {id(found) for found in gc.get_objects() if type(found) is ortmulti.Pool} <= before


def test_an_error_in_progress_closes_the_pool() -> None:
    def progress(_: LoadProgress) -> None:
        raise LookupError("mine")

    pool = ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none", progress=progress))
    with pytest.raises(LookupError, match="mine"):
        pool.wait_ready()
    with pytest.raises(ortmulti.Error, match="LookupError: mine"):
        pool.run(None, X)


# The end.


@pytest.mark.usefixtures("held")
def test_closing_ends_a_load() -> None:
    with nothing_leaks():
        pool = ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none"))
        future = pool.submit(None, X)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(pool.wait_ready)
            pool.close()
            with pytest.raises(ortmulti.ClosedError):
                waiting.result()
        with pytest.raises(ortmulti.ClosedError, match="before it had a session"):
            future.result(60)
        with pytest.raises(ortmulti.ClosedError):
            pool.run(None, X)
        for ask in (pool.wait_ready, pool.warmup):
            with pytest.raises(ortmulti.ClosedError):
                ask()
        assert pool.devices == []
        pool.close()
        del pool, future, ask, waiting


def test_closing_ends_a_warmup() -> None:
    with nothing_leaks():
        pool = ortmulti.load(
            ENDLESS, "cpu", 2, loading=ortmulti.Loading(wait="none"), warmup=Warmup(samples=endless_feed())
        )
        future = pool.submit(None, endless_feed())
        while "create session" not in [span.name for span in pool.timeline.spans]:
            pass
        pool.close(cancel_pending=True)
        assert future.cancelled()
        del pool, future


def test_closing_where_progress_is_told_does_not_wait_for_itself() -> None:
    closed = threading.Event()
    pools: list[ortmulti.Pool] = []
    there = threading.Event()

    def progress(_: LoadProgress) -> None:
        there.wait()
        pools[0].close()
        closed.set()

    pools.append(ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none", progress=progress)))
    there.set()
    assert closed.wait(60)


@pytest.mark.usefixtures("held")
def test_a_pool_that_is_dropped_while_it_loads_ends() -> None:
    with nothing_leaks():
        pool = ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(wait="none"))
        del pool
        gc.collect()


@pytest.mark.parametrize("wait", ["none", "first"])
def test_the_interpreter_may_end_meanwhile(wait: str) -> None:
    check_child(
        """
        import sys
        import ortmulti
        from tests.support import onnx_models

        loading = ortmulti.Loading(wait=sys.argv[1])
        pools = [ortmulti.load(onnx_models.matmul(), "cpu", 3, loading=loading, warmup=True) for _ in range(5)]
        """,
        wait,
    )


def test_a_process_that_is_forked_meanwhile_has_errors() -> None:
    check_child(
        """
        import os, sys, threading
        import numpy as np
        import ortmulti
        from tests.support import onnx_models

        gate, reached = threading.Event(), threading.Event()
        def progress(news):
            reached.set()
            gate.wait()

        pool = ortmulti.load(onnx_models.matmul(), "cpu", 2, loading=ortmulti.Loading(wait="none", progress=progress))
        reached.wait()
        child = os.fork()
        if child == 0:
            feed = {"x": np.zeros((2, 64), np.float32)}
            refused = 0
            for call in (lambda: pool.run(None, feed), pool.wait_ready, pool.warmup, lambda: pool.add_devices("cpu"),
                         lambda: pool.remove_devices("cpu"), lambda: pool.replace_model(onnx_models.matmul()),
                         lambda: pool.ready, pool.stats):
                try:
                    call()
                except ortmulti.ForkError:
                    refused += 1
            pool.close()
            sys.exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
        gate.set()
        pool.wait_ready()
        pool.close()
        """
    )


@pytest.mark.parametrize("what", ["load", "run", "wait_ready"])
def test_ctrl_c_ends_the_wait(what: str) -> None:
    child = run_child(
        """
        import os, signal, sys, threading
        import numpy as np
        import ortmulti
        from tests.support import onnx_models
        from ortmulti.loading import ways

        def later(creation):
            if what == "load":
                os.kill(os.getpid(), signal.SIGINT)
            while True:
                creation.poll()
                threading.Event().wait(0.01)
        ways.create = later
        what = sys.argv[1]

        try:
            if what == "load":
                ortmulti.load(onnx_models.matmul(), "cpu", loading=ortmulti.Loading(wait="first"))
            pool = ortmulti.load(onnx_models.matmul(), "cpu", loading=ortmulti.Loading(wait="none"))
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            pool.wait_ready() if what == "wait_ready" else pool.run(None, {"x": np.zeros((2, 64), np.float32)})
        except KeyboardInterrupt:
            print("interrupted")
        """,
        what,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "interrupted\n", "")
