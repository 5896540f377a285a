"""Devices that are added to a pool and taken out of it, and models that are replaced, while it runs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import Batching, LoadProgress, Warmup, _core
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.pool.member import MemberCreation
from tests.support import onnx_models
from tests.support.pools import ENDLESS, busy, endless_feed
from tests.support.processes import check_child, nothing_leaks

MODEL = onnx_models.matmul()
X = {"x": np.random.default_rng(5).standard_normal((3, 64), dtype=np.float32)}
OTHER = onnx_models.add_mul()
AB = {"a": np.ones((2, 8), np.float32), "b": np.full((2, 8), 3, np.float32)}


@pytest.fixture
def pool() -> Iterator[ortmulti.Pool]:
    with ortmulti.load(MODEL, "cpu", 2) as made:
        yield made


def state(pool: ortmulti.Pool) -> dict[str, str]:
    return {device.device: device.state for device in pool.stats().devices}


def expected() -> np.ndarray:
    with onnx_models.cpu_session(MODEL) as session:
        return session.run(None, X)[0]


def test_the_last_device_stays(pool: ortmulti.Pool) -> None:
    for devices in ("cpu", ["cpu", "cpu"]):
        with pytest.raises(ortmulti.InvalidArgument, match="no device left"):
            pool.remove_devices(devices)
    with pytest.raises(ortmulti.InvalidArgument, match="close it"):
        pool.remove_devices("all")
    with pytest.raises(ortmulti.InvalidArgument, match="no session on cuda:3"):
        pool.remove_devices("cuda:3")
    with pytest.raises(ortmulti.InvalidArgument, match="in the pool already"):
        pool.add_devices("cpu")
    with pytest.raises(ortmulti.InvalidArgument, match="empty"):
        pool.add_devices([])
    for wrong in (1.5, None):
        with pytest.raises(ortmulti.InvalidType):
            pool.add_devices(wrong)
        with pytest.raises(ortmulti.InvalidType):
            pool.remove_devices(wrong)
    np.testing.assert_array_equal(pool.run(None, X)[0], expected())


def test_a_device_that_cannot_be_added_leaves_the_pool_as_it_was(pool: ortmulti.Pool) -> None:
    waiting: list[ortmulti.PoolFuture] = []
    create = ways.create

    def failing(creation: Creation) -> None:
        waiting.append(pool.submit(None, X, device="cuda:9"))
        assert state(pool) == {"cpu": "ready", "cuda:9": "starting"}
        create(creation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways, "create", failing)
        with pytest.raises(ortmulti.DeviceError, match="cuda:9"):
            pool.add_devices("cuda:9")
    with pytest.raises(ortmulti.DeviceError, match="cuda:9"):
        waiting[0].result(60)
    [cpu, failed] = pool.stats().devices
    assert (cpu.state, failed.state) == ("ready", "failed")
    assert "cuda:9" in failed.broken
    with pytest.raises(ortmulti.DeviceError, match=r"cuda:9 failed: .*cuda:9"):
        pool.wait_ready(devices="cuda:9")
    with pytest.raises(ortmulti.InvalidArgument, match="no session on cuda:8"):
        pool.wait_ready(devices=["cpu", "cuda:8"])
    assert pool.wait_ready() == pool.ready == ["cpu"]
    pool.remove_devices("cuda:9")
    assert state(pool) == {"cpu": "ready", "cuda:9": "removed"}
    np.testing.assert_array_equal(pool.run(None, X)[0], expected())


# Models.


def test_a_session_whose_device_is_removed_while_it_comes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    coming: list[ortmulti.InferenceSession] = []
    let_in = MemberCreation.let_in

    def let_in_and_remove(loading: MemberCreation, session: ortmulti.InferenceSession, core: _core.Pool) -> None:
        let_in(loading, session, core)
        coming.append(session)
        core.remove(session.device)

    monkeypatch.setattr(MemberCreation, "let_in", let_in_and_remove)
    pool = ortmulti.load(MODEL, "cpu")
    assert len(coming) == 1
    assert coming[0].closed
    assert pool.devices == []
    pool.close()


def test_another_model_takes_over(pool: ortmulti.Pool) -> None:
    old = pool.sessions
    former = pool.timeline
    before = pool.run(None, X)
    pool.replace_model(OTHER, same_interface=False)
    assert all(session.closed for session in old)
    assert [session.closed for session in pool.sessions] == [False, False]
    assert pool.timeline is not former
    assert "create session" in [span.name for span in pool.timeline.spans]
    total, product, first = pool.run(["sum", "product", "first"], AB)
    np.testing.assert_array_equal(total, AB["a"] + AB["b"])
    np.testing.assert_array_equal(product, AB["a"] * AB["b"])
    np.testing.assert_array_equal(first, AB["a"])
    with pytest.raises(ortmulti.InvalidArgument, match="'x'"):
        pool.submit(None, X)
    assert (pool.stats().devices[0].done, pool.stats().devices[0].total.count) == (2, 2)
    pool.replace_model(MODEL, warmup=True, same_interface=False)
    np.testing.assert_array_equal(pool.submit(None, X).result()[0], before[0])
    assert [span.name for span in pool.timeline.spans].count("warm up") == 2
    assert pool.stats().devices[0].done == 3
    assert pool.devices == ["cpu"] * 2
    assert repr(pool) == f"<Pool of a model of {len(MODEL)} bytes on cpu, cpu>"


def test_what_was_asked_before_is_answered_by_the_former_model() -> None:
    with ortmulti.load(ENDLESS, "cpu", max_queue=10) as pool:
        running = busy(pool)
        short = endless_feed(3)
        waiting = [pool.submit(None, short) for _ in range(5)]
        [wanted] = pool.sessions[0].run(None, short)
        replaced = threading.Thread(target=pool.replace_model, args=(MODEL,), kwargs={"same_interface": False})
        replaced.start()
        while pool.sessions[0].get_inputs()[0].shape != ["batch", 64] and len(pool.sessions[0].get_inputs()) != 1:
            pass  # until the new one has taken over
        np.testing.assert_array_equal(pool.run(None, X)[0], expected())
        assert not any(future.done() for future in [running, *waiting])
        assert pool.stats().waiting == 5
        assert running.cancel()
        for future in waiting:
            np.testing.assert_array_equal(future.result(60)[0], wanted)
        replaced.join()
        assert pool.stats().devices[0].cancelled == 1


def test_a_model_that_fails_changes_nothing(pool: ortmulti.Pool, tmp_path: Any) -> None:
    session = pool.sessions[0]
    with pytest.raises(ortmulti.NoSuchFile):
        pool.replace_model(tmp_path / "none.onnx")
    with pytest.raises(ortmulti.InvalidType):
        pool.replace_model(3)
    for wrong in ({"warmup": 3}, {"same_interface": None}, {"verify": 3}, {"version": 3}):
        with pytest.raises(ortmulti.InvalidType, match=f"{next(iter(wrong))} is .* not (3|None)"):
            pool.replace_model(MODEL, **wrong)
    with nothing_leaks():
        with pytest.raises(ortmulti.InvalidProtobuf):
            pool.replace_model(b"no model")
        with pytest.raises(ortmulti.InvalidArgument, match="'z'"):
            pool.replace_model(MODEL, warmup=Warmup(samples={"z": X["x"]}))
    assert pool.sessions[0] is session
    assert not session.closed
    np.testing.assert_array_equal(pool.run(None, X)[0], expected())


def declared(inputs: list[onnx_models.Value], outputs: list[onnx_models.Value]) -> bytes:
    """A model with the names of its own inputs and outputs."""
    nodes = [helper.make_node("Identity", [inputs[0][0]], [name]) for name, _, _ in outputs]
    return onnx_models.model(nodes, inputs, outputs).SerializeToString()


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X4: onnx_models.Value = ("x", FLOAT, ["n", 4])
Y4: onnx_models.Value = ("y", FLOAT, ["n", 4])
Z4: onnx_models.Value = ("z", FLOAT, ["n", 4])


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        ([X4], [Y4], ["output 'z' is missing"]),
        ([X4, ("b", FLOAT, ["n"])], [Y4, Z4], ["input 'b' is new"]),
        ([("w", FLOAT, ["n", 4])], [Y4, Z4], ["input 'x' is missing", "input 'w' is new"]),
        ([X4], [Z4, Y4], ["outputs come in the order z, y, not y, z"]),
        ([("x", INT64, ["n", 4])], [("y", INT64, ["n", 4]), ("z", INT64, ["n", 4])], [
            "input 'x' is tensor(int64), not tensor(float)",
            "output 'y' is tensor(int64), not tensor(float)",
            "output 'z' is tensor(int64), not tensor(float)",
        ]),
        ([("x", FLOAT, ["n", 5])], [("y", FLOAT, ["n", 5]), Z4], [
            "input 'x' has shape ['n', 5], not ['n', 4]",
            "output 'y' has shape ['n', 5], not ['n', 4]",
        ]),
        ([("x", FLOAT, [1, 4])], [Y4, Z4], ["input 'x' has shape [1, 4], not ['n', 4]"]),
        ([("x", FLOAT, ["n", 4, 1])], [Y4, Z4], ["input 'x' has shape ['n', 4, 1], not ['n', 4]"]),
    ],
)  # fmt: skip
def test_a_model_with_another_interface_is_refused(
    inputs: list[onnx_models.Value], outputs: list[onnx_models.Value], found: list[str]
) -> None:
    feed = {"x": np.ones((2, 4), np.float32)}
    with ortmulti.load(declared([X4], [Y4, Z4]), "cpu", 2) as pool:
        session = pool.sessions[0]
        with pytest.raises(ortmulti.InvalidArgument, match="another interface") as refused:
            pool.replace_model(declared(inputs, outputs), warmup=Warmup(samples=dict.fromkeys("xb", feed["x"])))
        assert all(difference in str(refused.value) for difference in found)
        assert pool.sessions[0] is session
        assert [y.tolist() for y in pool.run(feed)] == [feed["x"].tolist()] * 2


def test_a_model_that_takes_more_has_the_interface() -> None:
    fixed = declared([("x", FLOAT, ["n", 4])], [("y", FLOAT, [2, 4])])
    free = declared([("x", FLOAT, ["m", None])], [("y", FLOAT, ["m", "k"])])
    with ortmulti.load(fixed, "cpu") as other:
        other.replace_model(free)
        assert [each.shape for each in other.get_inputs()] == [["m", None]]


def test_the_new_model_is_verified_before_it_takes_over(pool: ortmulti.Pool) -> None:
    seen: list[object] = []
    other = onnx_models.matmul(seed=1)
    with onnx_models.cpu_session(other) as session:
        [wanted] = session.run(None, X)

    def verify(new: ortmulti.Pool) -> None:
        np.testing.assert_array_equal(pool.run(X)[0], expected())  # the former model still answers
        seen.append([span.name for span in new.timeline.spans].count("warm up"))
        seen.append([session.device for session in new.sessions])
        seen.append(new.wait_ready())
        np.testing.assert_array_equal(new.submit(X, timeout=60).result()[0], wanted)
        if len(seen) == 3:
            raise ValueError("not good enough")

    session = pool.sessions[0]
    with nothing_leaks(), pytest.raises(ValueError, match="not good enough"):
        pool.replace_model(other, warmup=True, verify=verify)
    assert seen == [2, ["cpu", "cpu"], ["cpu"]]
    assert pool.sessions[0] is session
    assert pool.stats().devices[0].done == 1
    np.testing.assert_array_equal(pool.run(X)[0], expected())
    pool.replace_model(other, warmup=True, verify=verify)
    np.testing.assert_array_equal(pool.run(X)[0], wanted)
    with pytest.raises(ortmulti.InvalidArgument, match="verify has returned False"):
        pool.replace_model(MODEL, verify=lambda _: False)
    with pytest.raises(ortmulti.InvalidArgument, match="verify has closed"):
        pool.replace_model(MODEL, verify=ortmulti.Pool.close)
    np.testing.assert_array_equal(pool.run(X)[0], wanted)


def test_closing_the_pool_while_the_new_model_is_verified_frees_both() -> None:
    def replace() -> None:
        pool = ortmulti.load(MODEL, "cpu")
        with pytest.raises(ortmulti.ClosedError):
            pool.replace_model(MODEL, verify=lambda _: pool.close())
        assert pool.closed

    with nothing_leaks():
        replace()
        gc.collect()


def test_memory_that_is_not_enough_for_both_is_said(pool: ortmulti.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(_: Creation) -> None:
        raise ortmulti.OutOfMemory("the weights take 9 GB")

    monkeypatch.setattr(ways, "create", too_large)
    with pytest.raises(ortmulti.OutOfMemory, match=r"take 9 GB; the sessions of .* stay until .* both must fit"):
        pool.replace_model(OTHER)
    np.testing.assert_array_equal(pool.run(None, X)[0], expected())


def test_no_request_is_lost_while_models_are_replaced_again_and_again() -> None:
    end = threading.Event()
    with ortmulti.load(MODEL, "cpu", 2, batching=Batching(9)) as pool, ThreadPoolExecutor(4) as threads:
        want = expected()

        def ask(number: int) -> int:
            answered = 0
            while not end.is_set():
                [y] = pool.run(None, X) if number % 2 else pool.submit(None, X).result()
                np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
                answered += 1
            return answered

        asking = [threads.submit(ask, number) for number in range(4)]
        try:
            for _ in range(15):
                pool.replace_model(MODEL)
        finally:
            end.set()
        answered = [each.result() for each in asking]
        assert all(answered)
        assert pool.stats().devices[0].done == sum(answered)


def test_models_that_were_replaced_leave_nothing() -> None:
    with nothing_leaks():
        pool = ortmulti.load(MODEL, "cpu", 2)
        for _ in range(5):
            pool.replace_model(MODEL)
            pool.run(None, X)
        pool.close()
        del pool
        gc.collect()


def test_a_replacement_waits_for_the_load_before_it() -> None:
    gate = threading.Event()

    def progress(_: LoadProgress) -> None:
        gate.wait()

    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(wait="none", progress=progress)) as pool:
        replaced = threading.Thread(target=pool.replace_model, args=(OTHER,), kwargs={"same_interface": False})
        replaced.start()
        gate.set()
        replaced.join()
        assert len(pool.run(None, AB)) == 3


def test_closing_ends_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def without_end(creation: Creation) -> None:
        begun.set()
        while True:
            creation.poll()

    with nothing_leaks():
        pool = ortmulti.load(MODEL, "cpu")
        monkeypatch.setattr(ways, "create", without_end)
        with ThreadPoolExecutor() as threads:
            replacing = threads.submit(pool.replace_model, OTHER)
            begun.wait()
            pool.close()
            with pytest.raises(ortmulti.ClosedError):
                replacing.result()
        with pytest.raises(ortmulti.ClosedError):
            pool.replace_model(MODEL)
        for change in (pool.add_devices, pool.remove_devices):
            with pytest.raises(ortmulti.ClosedError):
                change(0)
        del pool, change, replacing


def test_the_interpreter_may_end_while_a_former_model_is_busy() -> None:
    check_child(
        """
        import logging, threading
        import numpy as np
        import ortmulti
        from tests.support import onnx_models
        from tests.support.pools import ENDLESS, busy, endless_feed

        logging.disable()  # ONNX Runtime says that the run was ended

        pool = ortmulti.load(ENDLESS, "cpu")
        running = busy(pool)
        waiting = pool.submit(None, {"x": np.zeros(1, np.float32), "count": np.array(3)})
        replace = lambda: pool.replace_model(onnx_models.matmul(), same_interface=False)
        threading.Thread(target=replace, daemon=True).start()
        while len(pool.sessions[0].get_inputs()) != 1:
            pass
        running.cancel()
        """
    )


def test_a_session_that_joins_while_the_others_are_closed_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a second Ctrl-C, which ends the wait for sessions that still run their first inputs."""
    nothing: Any = None
    creation = MemberCreation(nothing, nothing, nothing, lambda *_: None)
    early, late, last = (ortmulti.InferenceSession(MODEL, providers=["CPUExecutionProvider"]) for _ in range(3))
    creation._have_joined(0, early)
    close = ortmulti.InferenceSession.close

    def close_and_join(session: ortmulti.InferenceSession) -> None:
        if session is early:
            creation._have_joined(1, late)
        close(session)

    monkeypatch.setattr(ortmulti.InferenceSession, "close", close_and_join)
    creation.close()
    creation._have_joined(2, last)
    for session in (early, late, last):
        with pytest.raises(ortmulti.ClosedError):
            session.run(None, X)
