"""Threads that the system does not give: one error, nobody waits for them, and the next call works."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ortmulti._runtime.threads import BackgroundThread
from tests.support import fake_driver, onnx_models
from tests.support import faults as _faults
from tests.support.http_store import HttpStore
from tests.support.processes import check_child, run_child

COMMON = """
    import errno, os, sys, threading
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from ortmulti._runtime import callbacks, log, startup
    from ortmulti.loading import prewarm
    from tests.support.faults import failing

    model = bytes.fromhex(sys.argv[1])
    x = {"x": np.ones((1, 8), np.float32)}

    def fails(call, first=1, count=1):
        with failing("pthread_create", errno.EAGAIN, first, count) as faults:
            try:
                call()
            except ortmulti.RuntimeException as error:
                assert "thread" in str(error), error
            else:
                raise AssertionError("no error")
        assert faults.failures > 0
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _faults.build(tmp_path_factory.mktemp("faults"))


def check(code: str, environment: dict[str, str]) -> None:
    check_child(COMMON + code, onnx_models.matmul(8).hex(), environment=environment, timeout=15)


@pytest.mark.parametrize("wait", ["first", "none"])
def test_a_load_in_the_background(wait: str, faults: dict[str, str]) -> None:
    check(
        f"""
    ortmulti.load(model, "cpu").close()
    fails(lambda: ortmulti.load(model, "cpu", loading=ortmulti.Loading(wait={wait!r})))
    with ortmulti.load(model, "cpu", loading=ortmulti.Loading(wait={wait!r})) as pool:
        assert pool.run(None, x)[0].shape == (1, 8)
        """,
        faults,
    )


def test_a_load_of_a_repository(faults: dict[str, str]) -> None:
    check(
        """
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("there", model)
        [before] = repository.stats().devices
        failed, thread = [], 0
        while True:  # each thread of a load in turn
            thread += 1
            with failing("pthread_create", errno.EAGAIN, thread, 1) as faults:
                try:
                    repository.add("m", model)
                except ortmulti.Error as error:
                    failed.append(str(error))
                    assert list(repository) == ["there"]
                    assert repository.stats().devices == [before]
            if faults.failures == 0:
                break
            if "m" in repository:
                repository.remove("m")
        assert sum("for a model's memory" in each for each in failed) == 2, failed
        assert repository.run("m", x)[0].shape == (1, 8)
        """,
        faults,
    )


def test_contexts_in_the_background(faults: dict[str, str], tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    check(
        """
    fails(lambda: ortmulti.prewarm([0, 1]))
    assert ortmulti._core.cuda_device_count() == 3
    _core.prewarm([1])
    try:
        ortmulti.load(model, [0, 1])  # which this onnxruntime has no provider for
    except ortmulti.Error as error:
        assert "thread" not in str(error), error
        """,
        {**faults, **driver.environment},
    )
    assert "context 1" in driver.calls


def test_the_log(faults: dict[str, str]) -> None:
    check(
        """
    startup.ensure_library()
    _core.start_environment()  # ONNX Runtime may have threads of its own
    fails(lambda: ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"]))
    assert startup._closes_at_exit
    session = ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert "ortmulti-log" in {thread.name for thread in threading.enumerate()}
    session.run(None, x)
        """,
        faults,
    )


def test_callbacks(faults: dict[str, str]) -> None:
    check(
        """
    session = ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"])
    done = threading.Event()
    fails(lambda: session.run_async(None, x, lambda *_: done.set(), None))
    session.run_async(None, x, lambda *_: done.set(), None)
    assert done.wait(60)
        """,
        faults,
    )


def test_reading_from_a_store(faults: dict[str, str]) -> None:
    pytest.importorskip("obstore")
    with HttpStore().served() as store:
        url = store.put("model.onnx", onnx_models.matmul(8))
        check(
            f"""
    import obstore.store
    from ortmulti.remote import RemoteFile
    fails(lambda: RemoteFile({url!r}))
    assert RemoteFile({url!r}).size > 0
            """,
            faults,
        )
        # The second thread is obstore's, which panics and says so itself.
        code = f"""
    import obstore.store
    from ortmulti.remote import RemoteFile
    fails(lambda: ortmulti.load({url!r}, "cpu"), 3)
    try:
        RemoteFile({url!r})
    except ortmulti.RuntimeException as error:
        print(error)
        """
        child = run_child(COMMON + code, onnx_models.matmul(8).hex(), environment=faults, timeout=15)
    assert "start this process again" in child.stdout, child.stderr
    assert child.returncode == 0


def test_a_background_thread_that_has_failed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    begun, end = threading.Semaphore(0), threading.Event()

    def call() -> None:
        begun.release()
        end.wait()
        raise ValueError

    thread = BackgroundThread(call, "tried")
    assert thread.start()
    assert begun.acquire(timeout=30)
    [running] = [each for each in threading.enumerate() if each.name == "tried"]
    assert thread.start()  # not again while it runs
    end.set()
    running.join()
    assert thread.start()
    assert begun.acquire(timeout=30)
    thread.stop(lambda: None)
    assert not begun.acquire(blocking=False)
    assert not thread.start()
    assert len(failed) == 2
