"""Actors of Ray with real GPUs: sessions on the assigned ones, and memory that is free after `ray.kill`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.devices.nvml import Nvml
from tests.ray.conftest import get, running_cluster
from tests.support.gpus import needs_gpus
from tests.support.pools import HANG

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
pytestmark = [pytest.mark.gpu, pytest.mark.gpu_memory, pytest.mark.filterwarnings("ignore")]  # Ray has its own warnings


class Holder:
    """An actor with a pool."""

    def load(self, model: Any) -> tuple[list[str], str | None]:
        self.pool = ortmulti.ray.load_here(model)
        return self.pool.devices, os.environ.get("CUDA_VISIBLE_DEVICES")

    def run(self, x: np.ndarray) -> np.ndarray:
        [y] = self.pool.run({"x": x})
        return y


def used() -> list[int]:
    """The bytes in use on each GPU, by NVML, which makes no context."""
    nvml = Nvml.open()
    assert nvml is not None, "needs nvidia-ml-py"
    with nvml:
        return [gpu.memory_used or 0 for gpu in nvml.gpus()]


@pytest.fixture(scope="module")
def host() -> Iterator[None]:
    """A host with the GPUs of this machine."""
    with running_cluster(1, gpus=len(used()), CUDA_VISIBLE_DEVICES=",".join(map(str, range(len(used()))))):
        yield


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("weights", ["files", "broadcast"])
def test_sessions_are_on_the_assigned_gpus(weights: str, gpus: int, large_model: Path) -> None:
    needs_gpus(gpus)
    with ortmulti.load(large_model, 0) as pool:
        x = np.random.default_rng(0).random((8, int(pool.get_inputs()[0].shape[1])), np.float32)
        [expected] = pool.run({"x": x})
    before = used()
    given: Any = ortmulti.ray.broadcast(large_model) if weights == "broadcast" else large_model
    actors = [ray.remote(Holder).options(num_gpus=1).remote() for _ in range(gpus)]
    loaded = get([actor.load.remote(given) for actor in actors])
    assert [devices for devices, _ in loaded] == [["cuda:0"]] * gpus
    assert len({visible for _, visible in loaded}) == gpus
    for actor in actors:
        np.testing.assert_array_equal(get(actor.run.remote(x)), expected)
    assert sum(used()) - sum(before) >= gpus * large_model.with_suffix(".onnx.data").stat().st_size
    for actor in actors:
        ray.kill(actor)
    give_up = time.monotonic() + HANG
    while any(now > then + (64 << 20) for now, then in zip(used(), before, strict=True)):
        assert time.monotonic() < give_up, (before, used())


@pytest.mark.usefixtures("host")
def test_an_actor_without_gpus_is_refused_the_ones_of_others(large_model: Path) -> None:
    with pytest.raises(ortmulti.DeviceError, match="Ray has assigned no GPU to this actor, and the host has"):
        get(ray.remote(Holder).options(num_gpus=0).remote().load.remote(large_model))
