"""`ortmulti.optimize` and `ortmulti optimize`: models optimized ahead of the time when they are loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti.optimized import Cache, build, key_of
from ortmulti.optimized.comparison import Comparison, _why_other_names, compare, same_bits
from tests.support import command, onnx_models, optimized_models
from tests.support.cached_models import CPU
from tests.support.processes import check_child, check_children, nothing_leaks


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    ortmulti.RunOptions()  # starts the thread that emits the log
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "cache"))
    return Cache.default()


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(optimized_models.write(tmp_path / "model", optimized_models.with_folded_weights(), "external"))


def test_a_model_is_optimized_once(model: str, cache: Cache) -> None:
    with nothing_leaks():
        first = ortmulti.optimize(model, "cpu")
        again = ortmulti.optimize(model, "cpu")
    assert (first.made, first.device, first.compared, first.not_compared) == (True, "cpu", True, "")
    assert (first.own_bytes, first.shared, first.shared_bytes, first.left_out) == (4096, 2, 8192, ())
    assert 4096 < first.bytes < 8000
    assert (again.made, again.path, again.compared) == (False, first.path, None)
    assert [str(entry.folder) for entry in cache.entries()] == [first.path]


@pytest.mark.parametrize("name", optimized_models.PROTOS)
@pytest.mark.parametrize("how", ["external", "inline", "bytes"])
def test_every_kind_of_model_passes_the_comparison(tmp_path: Path, name: str, how: str) -> None:
    """Over sessions of ortmulti, on weights mapped from their files."""
    made = ortmulti.optimize(optimized_models.write(tmp_path / "model", optimized_models.PROTOS[name](), how), "cpu")
    assert (made.made, made.compared) == (True, True)


def test_other_options_are_another_model(model: str, cache: Cache) -> None:
    paths = {ortmulti.optimize(model, "cpu").path, ortmulti.optimize(model, "cpu", _basic()).path}
    assert len(paths) == len(cache.entries()) == 2


def test_what_is_made_of_a_private_model_is_private(model: str) -> None:
    made = Path(ortmulti.optimize(model, "cpu").path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (made, *made.iterdir())}
    assert modes == {
        made.name: 0o700,
        "manifest.json": 0o600,
        "model.onnx": 0o600,
        "shared": 0o600,
        "weights.bin": 0o600,
    }


def test_a_damaged_one_is_made_anew(model: str) -> None:
    first = ortmulti.optimize(model, "cpu")
    weights = Path(first.path) / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    again = ortmulti.optimize(model, "cpu")
    assert (again.made, again.compared, again.path) == (True, True, first.path)


def test_not_comparing_is_said(model: str) -> None:
    made = ortmulti.optimize(model, "cpu", compare=False)
    assert (made.compared, made.not_compared) == (None, "it was not asked for")


def test_inputs_grow_for_a_model_with_a_smallest_size(tmp_path: Path) -> None:
    model = tmp_path / "conv.onnx"
    model.write_bytes(onnx_models.at_least(400))
    assert ortmulti.optimize(model, "cpu").compared


def test_inputs_may_be_given(model: str) -> None:
    assert ortmulti.optimize(model, "cpu", inputs={"x": np.ones((2, 32), np.float32)}).compared
    with pytest.raises(ortmulti.InvalidArgument, match="'x'"):
        ortmulti.optimize(model, "cpu", _basic(), inputs={"other": np.ones(3)})


def _basic() -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def test_what_cannot_be_compared_is_said() -> None:
    picky = onnx_models.model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([7, 11]), "shape")],
    )
    made = ortmulti.optimize(picky.SerializeToString(), "cpu")
    assert made.compared is None
    assert "does not run with sample inputs" in made.not_compared
    assert ortmulti.optimize(picky.SerializeToString(), "cpu", _basic(), inputs={"x": np.ones(77, np.float32)}).compared


def test_other_values_are_not_published(tmp_path: Path, model: str, cache: Cache) -> None:
    """An entry with the weights of another model of the same shape."""
    other = optimized_models.with_folded_weights()
    values = np.random.default_rng(9).standard_normal((32, 32)).astype(np.float32)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(values, "w"))
    foreign = str(optimized_models.write(tmp_path / "other", other, "external"))
    with cache.stage(key_of(ortmulti.Model(foreign), CPU)) as staged:
        entry = build(staged, ortmulti.Model(foreign), CPU)
        assert compare(entry, ortmulti.Model(foreign), CPU) == Comparison(True)
        with nothing_leaks(), pytest.raises(ortmulti.NotOptimizable, match="computes other values of y"):
            compare(entry, ortmulti.Model(model), CPU)
    renamed = optimized_models.with_folded_weights()
    renamed.graph.output[0].name = renamed.graph.node[2].output[0] = "z"
    with cache.stage(key_of(ortmulti.Model(renamed.SerializeToString()), CPU)) as staged:
        entry = build(staged, ortmulti.Model(renamed.SerializeToString()), CPU)
        with pytest.raises(ortmulti.NotOptimizable, match="has the output 'z'"):
            compare(entry, ortmulti.Model(model), CPU)
        (staged.folder / "model.onnx").write_bytes(b"no model")
        with pytest.raises(ortmulti.NotOptimizable, match="cannot be loaded"):
            compare(entry, ortmulti.Model(renamed.SerializeToString()), CPU)


def test_bits_and_not_values_are_compared() -> None:
    zero, minus_zero, nan = (np.array([value], np.float32) for value in (0.0, -0.0, np.nan))
    words = np.array(["a", "b"], dtype=object)
    assert same_bits([zero, nan, words], [zero.copy(), nan.copy(), words.copy()])
    assert not same_bits([words], [words[:1]])
    for one, other in ((zero, minus_zero), (zero, zero.astype(np.float64)), (zero, zero.reshape(1, 1))):
        assert not same_bits([one], [other])
    assert not same_bits([zero], [])


def test_a_model_that_is_wrong_is_reported_as_when_it_is_loaded(tmp_path: Path, cache: Cache) -> None:
    model = str(optimized_models.write(tmp_path / "model", onnx_models.matmul_proto(), "external"))
    os.truncate(tmp_path / "model" / "model.data", 10)
    for wrong, error in ((model, ortmulti.Error), (b"no model", ortmulti.InvalidProtobuf)):
        with pytest.raises(ortmulti.Error) as loading:
            ortmulti.InferenceSession(wrong, providers=["CPUExecutionProvider"])
        with nothing_leaks(), pytest.raises(error) as raised:
            ortmulti.optimize(wrong, "cpu")
        assert type(raised.value) is type(loading.value)
    (tmp_path / "model" / "model.data").unlink()
    with pytest.raises(ortmulti.Error, match=r"model\.data"):
        ortmulti.optimize(model, "cpu")
    with pytest.raises(ortmulti.NoSuchFile):
        ortmulti.optimize(tmp_path / "none.onnx", "cpu")
    assert cache.entries() == []


def test_wrong_arguments_are_errors(model: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="the device is the CPU"):
        ortmulti.optimize(model, "cpu", provider_options={"use_tf32": "0"})
    with pytest.raises(ortmulti.InvalidType, match="provider_options is a dict"):
        ortmulti.optimize(model, "cpu", provider_options=["use_tf32"])
    with pytest.raises(ortmulti.InvalidType, match=r"SessionOptions, not dict"):
        ortmulti.optimize(model, "cpu", {})
    with pytest.raises(ortmulti.InvalidType, match="a model is a path or bytes"):
        ortmulti.optimize(3, "cpu")
    with pytest.raises(ortmulti.InvalidArgument):
        ortmulti.optimize(model, "tpu")


def test_without_a_cache_there_is_nothing_to_do(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "file"))
    with pytest.raises(ortmulti.Error, match="cannot be kept in the cache"):
        ortmulti.optimize(model, "cpu")
    assert "it cannot be written" in caplog.text


def test_processes_that_optimize_at_once_make_one(model: str, cache: Cache) -> None:
    code = """
        import dataclasses, json, sys
        import ortmulti
        ortmulti.RunOptions()
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(dataclasses.asdict(ortmulti.optimize(sys.argv[1], "cpu"))))
    """
    made = [json.loads(printed) for printed in check_children(code, *[[model]] * 3)]
    assert len({result["path"] for result in made}) == len(cache.entries()) == 1
    assert sum(result["made"] for result in made) >= 1
    assert all(result["compared"] for result in made if result["made"])
    assert not list((cache.folder / "staging").iterdir())


# --- The command -----------------------------------------------------------------------------------------------------


def as_json(*arguments: str) -> Any:
    ended = command.run("optimize", *arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_command_optimizes_lists_and_clears(model: str, cache: Cache) -> None:
    made = as_json(model, "--device", "cpu")
    assert (made["made"], made["compared"], made["device"]) == (True, True, "cpu")
    assert not as_json(model, "--device", "cpu")["made"]
    assert as_json(model, "--device", "cpu", "--level", "basic", "--no-compare")["compared"] is None
    listed = as_json("--list")
    assert (listed["folder"], len(listed["entries"]), listed["limit"]) == (str(cache.folder), 2, 20 * 10**9)
    assert made["path"] in [entry["path"] for entry in listed["entries"]]
    for entry in listed["entries"]:
        assert (entry["model"], entry["device"], entry["damaged"]) == (model, "cpu", False)
    cleared = as_json("--clear")
    assert cleared == {"folder": str(cache.folder), "entries": 2, "bytes": listed["bytes"], "in_use": 0}
    assert as_json("--list")["entries"] == []


def test_the_command_tells_people_what_it_did(model: str, cache: Cache) -> None:
    shown = command.run("optimize", model, "--device", "cpu")
    assert shown.returncode == 0, shown.stderr
    assert "made in" in shown.stdout
    assert (
        "4.1 kB are new tensors of the optimization; the sessions of a device share 8.19 kB of weights in 2 tensors"
        in shown.stdout
    )
    assert "bit for bit" in shown.stdout
    assert "was there already" in command.run("optimize", model, "--device", "cpu").stdout
    shown = command.run("optimize", "--list")
    assert model in shown.stdout
    assert "of at most 20 GB" in shown.stdout
    (cache.entries()[0].folder / "manifest.json").unlink()
    assert "damaged" in command.run("optimize", "--list").stdout
    assert "removed 1 of" in command.run("optimize", "--clear").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "mentions"),
    [
        ([], 2, "name one .onnx file"),
        (["a.onnx", "--list"], 2, "name one .onnx file"),
        (["none.onnx", "--device", "cpu"], 1, "no model file"),
        (["none.onnx", "--level", "most"], 2, "basic, extended, layout, all"),
        (["none.onnx", "--provider-option", "tf32"], 2, "NAME=VALUE"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], status: int, mentions: str) -> None:
    ended = command.run("optimize", *arguments)
    assert ended.returncode == status
    assert mentions in " ".join(ended.stderr.replace("│", " ").split())


def test_the_first_gpu_or_the_cpu_is_the_default(model: str) -> None:
    """In a process that sees no GPU."""
    printed = check_child(
        "import ortmulti, sys; print(ortmulti.optimize(sys.argv[1]).device)",
        model,
        environment={"ORTMULTI_CACHE": os.environ["ORTMULTI_CACHE"]},
    )
    assert printed == "cpu\n"


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, model: str) -> None:
    made = ortmulti.optimize(model, "cuda:0")
    assert (made.made, made.device, made.compared) == (True, "cuda:0", True)
    assert not ortmulti.optimize(model, 0).made
    half = str(optimized_models.write(tmp_path / "half", optimized_models.with_half_precision(), "external"))
    assert ortmulti.optimize(half, "cuda:0", provider_options={"use_tf32": "0"}).compared


def with_inputs_for_weights(ir_version: int) -> onnx.ModelProto:
    """y = x + a weight in another shape. Weights are inputs too, as up to IR version 3."""
    proto = onnx_models.parsed(
        "(float[2, 3] x) => (float[2, 3] y) { w = Reshape(flat, shape)  y = Add(x, w) }",
        numpy_helper.from_array(np.arange(6, dtype=np.float32), "flat"),
        numpy_helper.from_array(np.array([2, 3]), "shape"),
    )
    proto.ir_version = ir_version
    proto.opset_import[0].version = 8
    for name, kind, shape in (("flat", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])):
        proto.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return proto


@pytest.mark.parametrize("ir_version", [3, 4])
def test_an_old_model_whose_weights_are_inputs_is_optimized(ir_version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(with_inputs_for_weights(ir_version), path)
    found = ortmulti.optimize(path, "cpu")
    assert found.compared is True
    x = np.ones((2, 3), np.float32)
    with ortmulti.load(path, "cpu", loading=ortmulti.Loading(optimize="offline")) as pool:
        assert [one.name for one in pool.get_inputs()] == ["x"]
        assert pool.run(None, {"x": x})[0].tolist() == (x + np.arange(6).reshape(2, 3)).tolist()


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        (
            [[["x", "f"], ["a", "i"], ["b", "i"]], [["y", "f"]]],
            [[["x", "f"]], [["y", "f"]]],
            "has the input 'a' of type i and 1 more,",
        ),
        ([[["x", "f"]], []], [[["x", "f"]], [["y", "f"]]], "lacks the output 'y' of type f,"),
        ([[["x", "f"], ["z", "f"]], []], [[["z", "f"], ["x", "f"]], []], "in another order"),
    ],
)
def test_other_inputs_or_outputs_are_named(found: Any, expected: Any, said: str) -> None:
    assert said in _why_other_names(found, expected)
