"""ResNet-50 beside PyTorch: the settings, the ratio, and a real comparison on the CPU where PyTorch is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import pytorch
from benchmarks.pytorch import TorchPlan, torch_ways
from benchmarks.pytorch.comparison import REPORT, _row
from ortmulti.bench import models
from ortmulti.bench.measure import results
from ortmulti.errors import InvalidArgument, LibraryError
from tests.support.onnx_models import cpu_session


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resnet50")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precisions": ("fp8",)}, "fp32, tf32, fp16, not fp8"),
        ({"batches": (0,)}, "positive"),
        ({"places": ("moon",)}, "host, device"),
        ({"compile_modes": ("fast",)}, "max-autotune"),
        ({"rounds": 0}, "positive"),
        ({"device": "cpu"}, "fp32 alone"),
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        TorchPlan(**changes)


def way(side: str, name: str, seconds: Sequence[float], **more: Any) -> dict[str, Any]:
    return {"side": side, "name": name, "seconds": list(seconds), "difference": 1e-6, "equal": True, **more}


def measurement(*ways: dict[str, Any], errors: Sequence[str] = ()) -> dict[str, Any]:
    setting = {"setting": "fp32, batch 1, host", "precision": "fp32", "batch": 1, "place": "host"}
    return {**setting, "torch": None, "ways": list(ways), "errors": list(errors)}


def test_ratio_is_of_the_fastest_of_each_side_in_the_same_round() -> None:
    """The machine is slower in the second round; one round of the slower way is its best of all."""
    row = _row(
        measurement(
            way("ortmulti", "pool", [2.0, 4.0, 2.0]),
            way("ortmulti", "bound", [1.0, 9.0, 9.0]),
            way("pytorch", "eager", [4.0, 8.0, 4.0]),
            way("pytorch", "graph", [5.0, 9.0, 5.0]),
        )
    )
    assert (row["ortmulti"]["name"], row["pytorch"]["name"]) == ("pool", "eager")
    assert (row["ratio"]["lowest"], row["ratio"]["highest"]) == (0.5, 0.5)


def document(*measurements: dict[str, Any], **more: Any) -> dict[str, Any]:
    rows = [_row(one) for one in measurements]
    settings = {"device": "cuda:0"}
    return {"settings": settings, "left_out": [], "measurements": [*measurements], "rows": rows, **more}


POOL, EAGER = way("ortmulti", "pool", [0.001]), way("pytorch", "eager", [0.002])
BROKEN = {"side": "pytorch", "name": "compile", "error": "no compiler"}


@pytest.mark.parametrize(
    ("measured", "more", "failures"),
    [
        (measurement(POOL, EAGER, BROKEN), {}, []),
        (measurement(POOL, BROKEN), {}, ["pytorch did not run: no compiler"]),
        (measurement({**POOL, "equal": False, "difference": 0.5}, EAGER), {}, ["ortmulti, pool differs by 0.5"]),
        (measurement(errors=["died"]), {}, ["fp32, batch 1, host: died"]),
        (measurement(POOL, EAGER), {"left_out": ["fp16, batch 1, host"]}, ["fp16, batch 1, host: left out"]),
    ],
)
def test_a_side_that_does_not_run_and_a_wrong_output_are_failures_and_one_way_of_several_is_not(
    measured: dict[str, Any], more: dict[str, Any], failures: list[str]
) -> None:
    found = pytorch.failures(document(measured, **more))
    assert [text in one for text, one in zip(failures, found, strict=True)] == [True] * len(failures)


def test_tables_have_every_setting_and_way() -> None:
    text = REPORT.markdown(document(measurement(POOL, EAGER, BROKEN)))
    assert text.count("\n| fp32, batch 1, host |") == 1 + 3
    assert "| fp32, batch 1, host | pool | eager | 1.00 | 2.00 | 0.50 |" in text
    assert "compile | - (failed) |" in text


def test_without_torch_the_error_comes_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(LibraryError, match="needs PyTorch, which is not installed: pip install torch"):
        pytorch.bench(TorchPlan(), tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_network_computes_what_the_model_does(precision: str, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    model = models.make("resnet50", folder, precision=precision)
    images = models.sample_inputs(model, batch=2)["input"]
    with cpu_session(model) as session:
        [expected] = session.run(None, {"input": images})
    with torch.inference_mode():
        made = torch_ways.make_network(torch, model)
        result = made(torch.from_numpy(images)).numpy()
    assert result.dtype == images.dtype
    assert not made.training
    tolerance = 1e-4 if precision == "fp32" else 0.05
    assert np.abs(result.astype(np.float64) - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.slow
def test_comparison_on_the_cpu(folder: Path) -> None:
    pytest.importorskip("torch")
    plan = TorchPlan("cpu", ("fp32",), (1, 2), ("host",), (), rounds=2, block_seconds=0.001, budget=0.0)
    result = pytorch.bench(plan, folder)
    assert result["left_out"] == ["fp32, batch 2, host"]
    assert len(pytorch.failures(result)) == 1
    assert (result["kind"], result["schema_version"]) == ("torch", results.SCHEMA_VERSION)
    json.dumps(result)
    for row in result["rows"]:
        assert row["ratio"]["median"] > 0
    for measured in result["measurements"]:
        names = {one["name"] for one in measured["ways"] if "error" not in one}
        assert {"eager", "eager, channels_last", "eager, no cudnn.benchmark"} <= names
        assert names & {"pool", "bound"}
        assert all(len(one["seconds"]) == 2 for one in measured["ways"] if "error" not in one)
