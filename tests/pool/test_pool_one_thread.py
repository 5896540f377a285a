"""A pool on the CPU tries runs of one thread, side by side, while requests wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from ortmulti.pool import one_thread
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, endless_feed
from tests.support.processes import nothing_leaks


def ask_until(
    pool: ortmulti.Pool | ortmulti.RepositoryModel, done: Callable[[ortmulti.DeviceStats], bool]
) -> ortmulti.DeviceStats:
    """Let requests wait until the statistics say so. All answers are right."""
    end = time.monotonic() + HANG
    while True:
        for outputs in pool.map([endless_feed(2000)] * 500):  # a millisecond or two each
            np.testing.assert_array_equal(outputs[0], np.float32([2000]))
        [device] = pool.stats().devices
        if done(device):
            return device
        assert time.monotonic() < end, device.why_in_flight


def test_runs_of_one_thread_are_tried_while_requests_wait() -> None:
    with nothing_leaks():
        with ortmulti.load(ENDLESS, "cpu") as pool:
            assert (pool.stats().devices[0].in_flight, pool.stats().devices[0].why_in_flight) == (1, "")
            device = ask_until(pool, lambda device: f" with {_core.usable_cores()}" in device.why_in_flight)
        assert "answers a second: " in device.why_in_flight
        assert device.sessions == 1


def test_without_its_session_the_pool_goes_on_as_before(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(ENDLESS)
    with ortmulti.load(path, "cpu") as pool:
        path.unlink()
        device = ask_until(pool, lambda device: "there is no session of one thread" in device.why_in_flight)
    assert device.in_flight == 1
    assert str(path) in device.why_in_flight


def test_models_that_keep_something_have_one_session() -> None:
    model = onnx_models.with_weights(
        "(float[n, 512] x) => (float[n, 512] y) { r = RandomNormalLike(x) m = MatMul(x, w) y = Add(m, r) }",
        w=np.ones((512, 512), np.float32),
    )
    with ortmulti.load(model, "cpu") as pool:
        feed = {"x": np.ones((64, 512), np.float32)}
        end = time.monotonic() + HANG
        while "there is no session" not in (why := pool.stats().devices[0].why_in_flight):
            assert time.monotonic() < end, why
            list(pool.map([feed] * 500, lookahead=32))
    assert "operator RandomNormalLike may keep something from run to run" in why


@pytest.mark.parametrize(("size", "made"), [("1GiB", True), (None, False)], ids=["large", "small"])
def test_a_model_of_a_repository_has_it_where_the_budget_has_room(size: str | None, made: bool) -> None:
    weights = onnx_models.with_weights(
        "(float[n, 1024] x) => (float[n, 1024] y) { y = MatMul(x, w) }", w=np.ones((1024, 1024), np.float32)
    )
    with ortmulti.ModelRepository("cpu", host_memory=size or 5 << 20) as models:
        models.add("model", weights)
        model = models["model"]
        feed = {"x": np.ones((32, 1024), np.float32)}
        end = time.monotonic() + HANG
        while not (why := model.stats().devices[0].why_in_flight):
            assert time.monotonic() < end
            list(model.map([feed] * 300, lookahead=32))
    assert (f" with {_core.usable_cores()}" in why) == made
    assert ("less than a quarter of the repository's budget is free" in why) != made


def test_it_is_not_made_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_thread, "available_memory", lambda: 1 << 20)
    with ortmulti.load(ENDLESS, "cpu") as pool:
        device = ask_until(pool, lambda device: "there is no session of one thread" in device.why_in_flight)
    assert "and 1048576 are free" in device.why_in_flight
    assert device.in_flight == 1


def test_a_pool_may_be_closed_at_any_moment_of_it() -> None:
    model = onnx_models.matmul(256, 8)
    feed = {"x": np.ones((64, 256), np.float32)}
    with nothing_leaks():
        for seconds in np.linspace(0.18, 0.3, 7):  # the session is asked for after 0.2 seconds
            pool = ortmulti.load(model, "cpu")
            futures = [pool.submit(feed) for _ in range(2000)]
            time.sleep(seconds)
            pool.close(cancel_pending=True)
            assert all(future.done() for future in futures)


def options(**settings: Any) -> ortmulti.SessionOptions:
    made = ortmulti.SessionOptions()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def spinning() -> ortmulti.SessionOptions:
    made = ortmulti.SessionOptions()
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        {"options": options(intra_op_num_threads=2)},
        {"options": spinning()},
        {"sessions_per_device": 2},
        {"in_flight": 1},
    ],
    ids=["threads", "spinning", "sessions", "in_flight"],
)
def test_settings_that_were_chosen_are_kept(arguments: Mapping[str, Any]) -> None:
    with ortmulti.load(ENDLESS, "cpu", **arguments) as pool:
        list(pool.map([endless_feed(2000)] * 500))
        [device] = pool.stats().devices
        assert (device.in_flight, device.why_in_flight) == (arguments.get("sessions_per_device", 1), "")
