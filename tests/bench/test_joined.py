"""The benchmarks of joined answers know which models may be joined, whatever a pool does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import onnx
import pytest

pytest.importorskip("onnxruntime")

from benchmarks import joined_graphs, joined_models, joined_nodes
from benchmarks.joined_parts import MIX, OTHER, Builder
from benchmarks.joined_random import SAFE, finish

ROWS = {"zeros"}
"""The only outputs of `OTHER` that are rows, though their shape is computed."""


@pytest.fixture(scope="module")
def measurement() -> joined_graphs.Measurement:
    return joined_graphs.Measurement()


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
    path = tmp_path / "graphs.json"
    status = joined_graphs.main(["--graphs", "60", "--workers", "1", "--json", str(path)])
    found = json.loads(path.read_text())["results"]
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
    path = tmp_path / "models.json"
    joined_models.main([str(tmp_path), "--runs", "10", "--json", str(path)])
    found = json.loads(path.read_text())["results"]
    assert found["rows.onnx"]["truth"] == "may be joined"
    assert found["mean.onnx"]["truth"] == "rows depend on each other"
    assert found["rows.onnx"]["requests_a_run"] > 1
    assert joined_models.is_right(found["rows.onnx"])


@pytest.mark.slow
def test_the_rows_of_node_tests_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    joined_nodes.main(["--only", "test_softmax_axis_", "--json", str(path)])
    found = json.loads(path.read_text())
    assert found["truths"] == {"may be joined": 6, "rows depend on each other": 3}
