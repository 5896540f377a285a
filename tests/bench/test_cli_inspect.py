"""`ortmulti inspect` and `ortmulti run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests.support import onnx_models
from tests.support.command import invoke


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    return path


def facts(*arguments: str | Path) -> Any:
    shown = invoke(*arguments, "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def test_inspect_says_what_a_session_and_the_file_say(model: Path) -> None:
    found = facts("inspect", model)
    with onnx_models.cpu_session(model) as session:
        for key, declared in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert [(one["name"], one["type"], one["shape"]) for one in found[key]] == [
                (one.name, one.type, one.shape) for one in declared
            ]
    proto = onnx_models.matmul_proto()
    assert found["opsets"] == {"ai.onnx": proto.opset_import[0].version}
    assert found["ir_version"] == proto.ir_version
    assert found["dynamic_dimensions"] == ["n"]
    assert found["weights"]["tensors"] == len(proto.graph.initializer)
    assert found["weights"]["bytes"] == sum(len(one.raw_data) for one in proto.graph.initializer)
    shown = invoke("inspect", model).stdout
    assert "tensor(float)  (n, 64)" in shown
    assert "Dynamic dimensions of the inputs: n" in shown


def test_inspect_says_why_weights_are_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.one_node("Neg"))
    assert "the model has no weights" in invoke("inspect", path).stdout
    path.write_bytes(onnx_models.matmul(8))
    assert "Each one has its own copy, since each weight is smaller than 1 KiB." in invoke("inspect", path).stdout
    weight = numpy_helper.from_array(np.ones(512, np.float32), "w")
    chain = " ".join(f"v{number + 1} = Add(v{number}, w)" for number in range(4000))
    large = onnx_models.parsed(f"(float[512] v0) => (float[512] v4000) {{ {chain} }}", weight)
    path.write_bytes(large.SerializeToString())
    reason = "each session loads the model by itself: 0.0 MB of weights are too little to share for a graph of 4000 "
    assert reason in invoke("inspect", path).stdout


def test_inspect_shows_what_it_can_of_a_model_that_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    proto = onnx_models.matmul_proto()
    proto.ir_version = 99
    path.write_bytes(proto.SerializeToString())
    shown = invoke("inspect", path)
    assert shown.returncode == 0
    assert "IR version 99" in shown.stdout
    assert "install a newer ONNX Runtime" in shown.stderr
    path.write_bytes(proto.SerializeToString()[:-1])
    shown = invoke("inspect", path)
    assert shown.returncode == 1
    assert "Copy or download it again" in shown.stderr.splitlines()[0]


@pytest.mark.parametrize("given", ["x={}/x.npy", "{}/x.npy", "{}/x.npz"])
def test_run_takes_given_inputs_and_writes_the_outputs(given: str, model: Path, tmp_path: Path) -> None:
    x, out = np.arange(3 * 64, dtype=np.float32).reshape(3, 64), tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    with onnx_models.cpu_session(model) as session:
        [expected] = session.run(["y"], {"x": x})
    found = facts("run", model, "--input", given.format(tmp_path), "--device", "cpu", "--repeat", "2", "--output", out)
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [3, 64], "given": True}]
    assert found["seconds"]["runs"] == 2
    np.testing.assert_array_equal(np.load(out)["y"], expected)


def test_run_makes_inputs_of_the_sizes_asked_for(model: Path) -> None:
    options = ("--device", "cpu", "--repeat", "1")
    assert facts("run", model, *options, "--dim", "n=5")["inputs"][0]["shape"] == [5, 64]
    assert facts("run", model, *options, "--batch", "7")["outputs"][0]["shape"][0] == 7
    shown = invoke("run", model, *options)
    assert "on cpu: a run takes" in shown.stdout
    assert shown.stderr == ""  # no progress where nobody looks
    assert "random" in shown.stdout


def test_run_makes_larger_inputs_for_a_model_with_a_smallest_size(tmp_path: Path) -> None:
    path = tmp_path / "conv.onnx"
    path.write_bytes(onnx_models.at_least(400))
    assert facts("run", path, "--device", "cpu", "--repeat", "1")["inputs"][0]["shape"] == [1, 1, 512]
    shown = invoke("run", path, "--device", "cpu", "--sequence", "399")
    assert shown.returncode == 1
    assert "Invalid input shape: {399}" in shown.stderr
