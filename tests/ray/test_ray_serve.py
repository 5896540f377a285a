"""`deployment` in Ray Serve: answers, streams, limits, another model under load, and replicas without devices."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from tests.ray.conftest import get, lose_device, plain, rows, running_cluster
from tests.support.pools import HANG

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
pytestmark = [pytest.mark.usefixtures("served"), pytest.mark.filterwarnings("ignore")]  # Ray has its own warnings


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[None]:
    """Serve on a cluster of one host."""
    from ray import serve

    with running_cluster(1, RAY_TEST_MODEL=str(model)):
        yield
        serve.shutdown()


def start(deployment: Any) -> Any:
    from ray import serve

    return serve.run(deployment.bind(), route_prefix=None)


def replicas() -> set[int]:
    """The processes of the replicas."""
    import psutil

    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any(part.startswith("ray::ServeReplica:default:ortmulti") for part in process.info["cmdline"] or ()):
            found.add(process.pid)
    return found


def test_a_handle_gets_answers_streams_and_errors(model: Path) -> None:
    x = rows(model)
    handle = start(ortmulti.ray.deployment(model, gpus=4, devices="cpu", warmup=True))
    answer = handle.infer.remote({"x": x}).result(timeout_s=HANG)
    assert list(answer) == ["y"]
    np.testing.assert_array_equal(answer["y"], plain(model, x, 8))
    feeds = [{"x": x[row : row + 1]} for row in [*range(8)] * 20]
    streamed = [each["y"] for each in handle.options(stream=True).stream.remote(feeds, ["y"])]
    np.testing.assert_array_equal(np.concatenate(streamed), np.concatenate([plain(model, x, 1)] * 20))
    with pytest.raises(ortmulti.InvalidArgument, match="unknown input 'z'"):
        handle.infer.remote({"z": x}).result(timeout_s=HANG)
    with pytest.raises(ortmulti.DeadlineExceeded):
        handle.infer.remote({"x": x}, timeout=0).result(timeout_s=HANG)


def test_limits_follow_from_gpus_sessions_and_batches(model: Path) -> None:
    made = ortmulti.ray.deployment(model, name="other", sessions_per_device=2, in_flight=3)
    assert made.name == "other"
    assert made.ray_actor_options["num_gpus"] == 4
    assert made.max_ongoing_requests == 2 * 4 * 2 * 3
    made = ortmulti.ray.deployment(model, devices="cpu", cpus=2, batching=ortmulti.Batching(16))
    assert made.max_ongoing_requests == 2 * 16
    assert made.ray_actor_options == {"num_gpus": 0, "num_cpus": 2}
    made = ortmulti.ray.deployment(model, gpus=8, in_flight=2, autoscaling_config={"max_replicas": 3})
    assert made._deployment_config.autoscaling_config.target_ongoing_requests == 16
    assert made._deployment_config.autoscaling_config.max_replicas == 3


def config(model: Path, version: str) -> Any:
    from ray.serve.schema import ServeDeploySchema

    changes = {"name": "ortmulti", "user_config": {"model": str(model), "version": version}}
    return ServeDeploySchema.model_validate(
        {"applications": [{"import_path": "tests.ray.served_app:app", "route_prefix": None, "deployments": [changes]}]}
    )


def test_another_model_under_load_drops_and_mixes_nothing(model: Path, other_model: Path) -> None:
    """As `serve deploy` does it, with another user_config: the replica keeps its process."""
    from ray import serve
    from ray.serve.context import _get_global_client

    serve.start()
    serve.delete("default")
    client = _get_global_client()
    client.deploy_apps(config(model, "0"), _blocking=True)
    before, handle, x = replicas(), serve.get_app_handle("default"), rows(model)
    expected = [plain(each, x, 8) for each in (model, other_model)]
    answered = [0, 0]

    async def infer() -> np.ndarray:
        return (await asyncio.wait_for(handle.infer.remote({"x": x}), HANG))["y"]

    async def ask(until: asyncio.Event) -> None:
        while not until.is_set():
            y = await infer()
            [which] = [index for index, each in enumerate(expected) if np.array_equal(y, each)]
            answered[which] += 1

    async def replace() -> None:
        until = asyncio.Event()
        clients = [asyncio.create_task(ask(until)) for _ in range(16)]
        try:
            for version, wanted in enumerate((other_model, model, other_model), 1):
                await asyncio.to_thread(client.deploy_apps, config(wanted, str(version)), True)
                give_up = time.monotonic() + HANG
                while not np.array_equal(await infer(), expected[version % 2]):
                    assert time.monotonic() < give_up
        finally:
            until.set()
            await asyncio.gather(*clients)

    asyncio.run(replace())
    assert min(answered) > 0
    np.testing.assert_array_equal(handle.infer.remote({"x": x}).result(timeout_s=HANG)["y"], expected[1])
    assert len(before) == 1
    assert replicas() == before


@pytest.mark.parametrize(
    ("user_config", "message"),
    [({"modle": "m"}, "'modle' is no key, only 'model', 'version'"), ({"version": "2"}, "has no 'model'")],
)
def test_a_wrong_user_config_is_an_error(user_config: Any, message: str, model: Path) -> None:
    replica = ortmulti.ray.deployment(model, devices="cpu", cpus=1).func_or_class
    actor = ray.remote(replica).options(num_cpus=1).remote()
    with pytest.raises(ortmulti.InvalidArgument, match=re.escape(message)):
        get(actor.reconfigure.remote(user_config))


@pytest.mark.parametrize("asked", [True, False], ids=["a request ends it", "health ends it"])
def test_a_replica_without_devices_is_replaced(asked: bool, model: Path) -> None:
    x = rows(model)
    made = ortmulti.ray.deployment(model, gpus=4, devices="cpu")

    class Breakable(made.func_or_class):  # type: ignore[name-defined, misc]
        def break_devices(self) -> None:
            lose_device(self._pool)

    handle = start(made.options(func_or_class=Breakable, health_check_period_s=0.2))
    [before] = replicas()
    handle.break_devices.remote().result(timeout_s=HANG)
    if asked:
        with pytest.raises(ray.exceptions.RayError):
            handle.infer.remote({"x": x}).result(timeout_s=HANG)
    give_up = time.monotonic() + HANG
    while before in replicas():
        assert time.monotonic() < give_up
    np.testing.assert_array_equal(handle.infer.remote({"x": x}).result(timeout_s=HANG)["y"], plain(model, x, 8))
