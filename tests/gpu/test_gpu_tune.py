"""`tune` on GPUs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from ortmulti import TuningWarning
from ortmulti.bench import models
from ortmulti.bench.tune import candidate
from ortmulti.loading.tuning import describe_machine

pytestmark = pytest.mark.gpu


def test_cuda_graphs_stay_for_many_small_kernels(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    result = ortmulti.tune(tiny, devices=0, only=["cuda_graph", "enable_mem_pattern"], budget=120, out=out)
    assert "cuda_graph" not in result.tuning.settings  # memory patterns may gain a percent beside it, or not
    [without] = [trial for trial in result.document["trials"] if trial["settings"] == {"cuda_graph": False}]
    assert without["ratio"]["median"] > 1.1  # times as long
    assert result.tuning.devices == ("cuda:0",)
    feed = models.sample_inputs(tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TuningWarning)
        with ortmulti.load(tiny, 0, loading=ortmulti.Loading(tuning=out)) as tuned, ortmulti.load(tiny, 0) as plain:
            for _ in range(4):
                [found] = tuned.run(None, feed)
            np.testing.assert_allclose(found, plain.run(None, feed)[0], rtol=1e-4, atol=1e-4)
    assert result.document["machine"]["gpus"]


def test_an_algorithm_search_that_costs_more_than_it_gives_is_found(resnet50: Path) -> None:
    result = ortmulti.tune(resnet50, "creation", devices=0, only=["cudnn_conv_algo_search"], budget=300)
    assert set(result.tuning.settings) <= {"cudnn_conv_algo_search"}
    assert all(trial["outputs"] is not None for trial in result.document["trials"])


@pytest.mark.gpu_memory
def test_memory_of_the_gpu_is_what_counts(resnet50: Path) -> None:
    result = ortmulti.tune(resnet50, "memory", devices=0, only=["arena_extend_strategy", "gpu_mem_limit"], budget=300)
    assert result.document["defaults"] > 100e6  # the weights
    assert result.document["unit"] == "bytes"


def test_tf32_that_is_off_changes_the_outputs(resnet50: Path) -> None:
    result = ortmulti.tune(resnet50, devices=0, only=["use_tf32"], tolerance=1e-9, budget=60)
    assert [one["why"] for one in result.document["rejected"]] == ["outputs"]
    assert result.tuning.settings == {}


@pytest.mark.parametrize("through", ["pool", "session"])
def test_a_candidate_gives_the_model_s_outputs(tiny: Path, tmp_path: Path, through: str) -> None:
    feed = models.sample_inputs(tiny, batch=2)
    np.savez(tmp_path / "feeds.npz", **feed)
    spec = {"model": str(tiny), "devices": ["cuda:0"], "options": {"use_tf32": False}, "through": through,
            "measure": "latency",
            "feeds": str(tmp_path / "feeds.npz")}  # fmt: skip
    with (
        candidate.prepared(spec) as run,
        ortmulti.InferenceSession(tiny, providers=["CPUExecutionProvider"]) as session,
    ):
        [found] = candidate.warm_up(spec, run)
        np.testing.assert_allclose(found, session.run(None, feed)[0], rtol=1e-3, atol=1e-3)
        assert candidate.latency(run, 0.01) > 0


def test_throughput_of_all_gpus(tiny: Path) -> None:
    result = ortmulti.tune(tiny, "throughput", only=["in_flight", "cuda_graph"], budget=120)
    assert len(result.tuning.devices) == len(ortmulti.parse_devices("all"))
    assert result.document["rejected"] == []


def test_what_it_holds_for_names_the_gpu() -> None:
    machine = describe_machine("cuda")
    assert machine["driver"]
    assert all(isinstance(name, str) for name in machine["gpus"])
