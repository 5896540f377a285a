"""Which GPUs `load_here` takes, with a driver of three GPUs that needs no hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ortmulti
from tests.ray.conftest import get, running_cluster
from tests.support import fake_driver

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray has its own


def test_load_here_is_for_actors(tmp_path: Path) -> None:
    assert not ray.is_initialized()
    with pytest.raises(ortmulti.InvalidArgument, match=r"in a Ray actor or task: elsewhere call ortmulti\.load"):
        ortmulti.ray.load_here(tmp_path / "model.onnx")


def assigned() -> Any:
    """Return the devices of an actor, or the error."""
    try:
        return ortmulti.ray._assigned_devices()
    except ortmulti.DeviceError as error:
        return str(error)


@pytest.mark.parametrize("noset", ["0", "1"])
def test_gpus_are_named_as_cuda_numbers_them(noset: str, tmp_path: Path) -> None:
    """The driver shows three GPUs whatever the variable says, like one that was started too early."""
    driver = fake_driver.build(tmp_path).environment
    with running_cluster(1, gpus=3, **driver, RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES=noset):
        each = ray.remote(num_gpus=1, num_cpus=0)(assigned)
        some = ray.remote(num_gpus=2, num_cpus=0)(assigned)
        none = ray.remote(num_cpus=1)(assigned)
        found = get([each.remote(), some.remote(), none.remote()])
    if noset == "1":
        assert sorted([*found[0], *found[1]]) == ["cuda:0", "cuda:1", "cuda:2"]
    else:
        assert "and CUDA sees 3 GPUs (CUDA_VISIBLE_DEVICES='" in found[0]
    assert found[2].startswith("Ray has assigned no GPU to this actor, and the host has 3: give the actor num_gpus")
