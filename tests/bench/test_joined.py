"""The benchmarks of joined answers know which models may be joined, whatever a pool does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("onnxruntime")

from benchmarks import joined_graphs, joined_models, joined_nodes
from benchmarks.joined_parts import MIX, OTHER, Builder
from benchmarks.joined_random import SAFE, finish
from ortmulti.bench import script
from ortmulti.bench.script import Script

ROWS = {"zeros"}
"""The only outputs of `OTHER` that are rows, though their shape is computed."""


@pytest.fixture(scope="module")
def measurement() -> joined_graphs.Measurement:
    return joined_graphs.Measurement()


def measured(kind: type[Script[str]], folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a script, and return its exit status and its measurements."""
    status = script.main(kind, [*arguments, "--json", str(folder / "result.json")])
    return status, json.loads((folder / "result.json").read_text())["measurements"]


def truth(measurement: joined_graphs.Measurement, b: Builder, x: str, others: list) -> str:
    feeds = joined_graphs.make_feeds(["x"])
    return measurement.judge(finish(b, x, others, ["x"]), feeds, {"seed": 0, "parts": []})["truth"]


@pytest.mark.parametrize("name", MIX)
def test_rows_that_depend_on_each_other_are_seen(name: str, measurement: joined_graphs.Measurement) -> None:
    b = Builder(random.Random(0))
    assert truth(measurement, b, MIX[name](b, "x"), []) == "rows depend on each other"


@pytest.mark.parametrize("name", OTHER)
def test_outputs_that_are_not_rows_are_seen(name: str, measurement: joined_graphs.Measurement) -> None:
    b = Builder(random.Random(0))
    assert bool(truth(measurement, b, "x", [OTHER[name](b, "x")])) == (name not in ROWS)


@pytest.mark.parametrize("name", SAFE)
def test_rows_that_only_look_dependent_are_not_accused(name: str, measurement: joined_graphs.Measurement) -> None:
    b = Builder(random.Random(0))
    assert truth(measurement, b, SAFE[name](b, "x"), []) == ""


def test_failing_graphs_are_counted_and_can_be_replayed(tmp_path: Path, measurement: joined_graphs.Measurement) -> None:
    status, [found] = measured(joined_graphs.JoinedGraphs, tmp_path, "--graphs", "60", "--workers", "1")
    assert found["graphs"] == sum(found["truths"].values()) == 60
    assert found["truths"]["rows depend on each other"] > 10
    assert found["joined rightly"] > 10
    failing = [kind for fail in found["kinds"].values() for kind in fail.values()]
    assert status == bool(failing)
    for kind in failing:
        assert (measurement.take(kind["seed"])["truth"] or "may be joined") == kind["truth"]


def test_each_model_of_a_folder_is_told_apart(tmp_path: Path) -> None:
    for name, line in (("rows", "y = Tanh(x)"), ("mean", "m = ReduceMean(x) y = Sub(x, m)")):
        graph = onnx.parser.parse_graph(f"g (float[N, 4] x) => (float[N, 4] y) {{ {line} }}")
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    status, measurements = measured(joined_models.JoinedModels, tmp_path, "--folder", str(tmp_path), "--runs", "10")
    found = {one["case"]: one for one in measurements}
    assert found["rows.onnx"]["truth"] == "may be joined"
    assert found["mean.onnx"]["truth"] == "rows depend on each other"
    assert found["rows.onnx"]["requests_a_run"] > 1
    assert status == any(map(joined_models.JoinedModels.complaints, measurements))


@pytest.mark.slow
def test_the_rows_of_node_tests_are_opened(tmp_path: Path) -> None:
    _, [found] = measured(joined_nodes.JoinedNodes, tmp_path, "--tests", "test_softmax_axis_")
    assert found["truths"] == {"may be joined": 6, "rows depend on each other": 3}
