"""A Ray cluster on this machine: several hosts with pretended GPUs, and sessions on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.bench import models
from tests.support.pools import HANG
from tests.support.processes import child_environment


@contextmanager
def running_cluster(hosts: int, *, gpus: int = 4, cpus: int = 2, **variables: str) -> Iterator[Any]:
    """Start a head without GPUs and hosts with them, and connect to it. `variables` are all workers' environment."""
    import ray
    from ray.cluster_utils import Cluster

    # Workers find the tests, and print nothing into the tests' output.
    path = child_environment()["PYTHONPATH"]
    changes = {"PYTHONPATH": path, "RAY_SERVE_LOG_TO_STDERR": "0", "RAY_enable_open_telemetry": "0", **variables}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            for _ in range(hosts):
                cluster.add_node(num_cpus=cpus, num_gpus=gpus)
            ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two hosts with 4 pretended GPUs and 2 CPUs each, beside the head."""
    with running_cluster(2) as started:
        yield started


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input "x", float32 [batch, width]; output "y"; external data."""
    return models.make("matmul", tmp_path_factory.mktemp("ray"), megabytes=4)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `model`, with other weights."""
    return models.make("matmul", tmp_path_factory.mktemp("ray-other"), megabytes=4, seed=1)


def rows(model: Path, count: int = 8) -> np.ndarray:
    """Random inputs of the model."""
    [x] = ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    return np.random.default_rng(1).random((count, int(x.shape[1])), np.float32)


def plain(model: Path, x: np.ndarray, rows: int) -> np.ndarray:
    """What a loop over the onnxruntime package gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["y"], {"x": x[at : at + rows]})[0] for at in range(0, len(x), rows)])


def get(waited_for: Any) -> Any:
    """As `ray.get`, which waits for ever where an actor cannot start."""
    import ray

    return ray.get(waited_for, timeout=HANG)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lose_device(pool: Any) -> None:
    """Have the pool lose its only device, which `Pool.remove_devices` refuses."""
    pool._members.core.remove("cpu")
