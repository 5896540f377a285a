"""The generated models: what they compute, their bytes, and how they are written: whole or not at all."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.models import phi3_mini
from ortmulti.bench.models._graph import ALIGNMENT, Graph
from ortmulti.errors import InvalidArgument, LibraryError
from tests.support import onnx_models
from tests.support.processes import run_child

TINY = phi3_mini.Dimensions(hidden=64, intermediate=96, heads=4, vocabulary=128, positions=32)


def run(model: Path, inputs: dict[str, Any] | None = None, seed: int = 0, **sizes: int) -> np.ndarray:
    """The output for these inputs, or for random ones."""
    with onnx_models.cpu_session(model) as session:
        [result] = session.run(None, inputs or models.sample_inputs(model, seed=seed, **sizes))
    return np.asarray(result)


def checked(directory: Path, name: str, **options: Any) -> Path:
    """Makes a model that ONNX's checker finds right."""
    path = models.make(name, directory, **options)
    onnx.checker.check_model(str(path), full_check=True)
    return path


def tiny_decoder(directory: Path, precision: str = "fp32", layers: int = 2) -> Path:
    return phi3_mini.build(layers, precision, TINY).write(directory)


def test_resnet50_has_the_published_parameters_and_its_outputs_vary(tmp_path: Path) -> None:
    path = checked(tmp_path, "resnet50")
    tensors = onnx.load(path).graph.initializer
    statistics = sum(math.prod(tensor.dims) for tensor in tensors if "running_" in tensor.name)
    assert sum(math.prod(tensor.dims) for tensor in tensors) - statistics == 25_557_032
    assert statistics == 53_120
    assert sorted(path.name for path in tmp_path.iterdir()) == ["resnet50.onnx"]
    inputs = models.sample_inputs(path, batch=3)
    outputs = run(path, inputs)
    assert outputs.shape == (3, 1000)
    assert outputs.dtype == np.float32
    assert np.isfinite(outputs).all()
    assert (np.abs(np.diff(outputs, axis=0)).max(axis=1) > 0.1).all()
    # In fp16 it is the same model, rounded.
    half = checked(tmp_path, "resnet50", precision="fp16")
    assert half.name == "resnet50-fp16.onnx"
    rounded = run(half, {"input": inputs["input"].astype(np.float16)})
    assert rounded.dtype == np.float16
    assert np.abs(rounded - outputs).max() < 0.05 * np.abs(outputs).max()


def test_phi3_mini_has_the_published_size() -> None:
    description = models.describe("phi3-mini")
    learned = {one.name: one.shape for one in description.weights if one.name.endswith(".weight")}
    assert sum(math.prod(shape) for shape in learned.values()) == 3_821_079_552
    assert learned["model.layers.31.mlp.gate_up_proj.weight"] == (3072, 16384)
    assert 7.642e9 < description.weight_bytes <= description.data_bytes + 1000 < 7.644e9


def test_decoder_computes_what_its_formulas_say(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path / "fp32")
    onnx.checker.check_model(str(path), full_check=True)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    inputs = models.sample_inputs(path, batch=2, sequence=9)
    logits = run(path, inputs)
    np.testing.assert_allclose(logits, reference_decoder(weights, inputs["input_ids"], layers=2), atol=1e-4)
    narrow = run(tiny_decoder(tmp_path / "fp16", "fp16"), inputs)
    assert narrow.dtype == np.float16
    np.testing.assert_allclose(narrow, logits, atol=0.05)


def reference_decoder(weights: dict[str, Any], ids: np.ndarray, layers: int) -> np.ndarray:
    """The decoder in float64, written from its description and not from the graph."""
    batch, length = ids.shape
    size = TINY.head_size

    def norm(value: np.ndarray, name: str) -> np.ndarray:
        return value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"]

    def rotate(value: np.ndarray) -> np.ndarray:
        rates = 1e4 ** (-np.arange(size // 2) * 2 / size)
        turned = (value[..., : size // 2] + 1j * value[..., size // 2 :]) * np.exp(
            1j * np.arange(length)[:, None] * rates
        )
        return np.concatenate([turned.real, turned.imag], axis=-1)

    hidden = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        qkv = norm(hidden, f"{name}.input_layernorm") @ weights[f"{name}.self_attn.qkv_proj.weight"]
        query, key, value = qkv.reshape(batch, length, 3, TINY.heads, size).transpose(2, 0, 3, 1, 4)
        scores = rotate(query) @ rotate(key).swapaxes(-1, -2) / np.sqrt(size)
        scores[..., np.triu(np.ones((length, length), bool), 1)] = -np.inf
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        mixed = (attention @ value).swapaxes(1, 2).reshape(batch, length, TINY.hidden)
        hidden = hidden + mixed @ weights[f"{name}.self_attn.o_proj.weight"]
        both = norm(hidden, f"{name}.post_attention_layernorm") @ weights[f"{name}.mlp.gate_up_proj.weight"]
        gate, up = np.split(both, 2, axis=-1)
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}.mlp.down_proj.weight"]
    return norm(hidden, "model.norm") @ weights["lm_head.weight"]


def test_tiny_kernels_stay_four_hundred_after_optimization(tmp_path: Path) -> None:
    path = checked(tmp_path, "tiny-kernels")
    options = ortmulti.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnx_models.cpu_session(path, options).close()
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert operators == ["MatMul", "Tanh", "Mul", "Add"] * 100
    first, second = run(path, seed=0), run(path, seed=1)
    assert first.shape == (1, 64)
    assert 0.1 < first.std() < 1
    assert np.abs(first - second).max() > 0.1


def test_identity_returns_its_input(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(checked(tmp_path, "identity"), {"x": values}), values)


def test_matmul_computes_with_every_layer(tmp_path: Path) -> None:
    path = checked(tmp_path, "matmul", megabytes=3)
    inputs = models.sample_inputs(path, batch=2)
    expected = inputs["x"].astype(np.float64)
    for tensor in onnx.load(path).graph.initializer:
        expected = np.maximum(expected @ numpy_helper.to_array(tensor), 0)
    output = run(path, inputs)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)
    assert output.std() > 0.1


@given(st.integers(1, 4000))
def test_matmul_has_the_size_that_was_asked_for(megabytes: int) -> None:
    description = models.describe("matmul", megabytes=megabytes)
    assert 0 <= megabytes * 10**6 - description.weight_bytes < 4 * 4096
    shapes = [one.shape for one in description.weights]
    assert [rows for rows, _ in shapes[1:]] == [columns for _, columns in shapes[:-1]]


# The bytes


@pytest.mark.parametrize(("name", "options"), [("identity", {}), ("tiny-kernels", {}), ("matmul", {"megabytes": 3})])
def test_a_seed_gives_the_same_bytes_again_and_another_one_others(
    name: str, options: dict[str, int], tmp_path: Path
) -> None:
    paths = [models.make(name, tmp_path / str(number), seed=max(7, number), **options) for number in (6, 7, 8)]
    assert paths[0].name == f"{models.describe(name, seed=7, **options).stem}.onnx"
    [first, second, other] = [[file.read_bytes() for file in sorted(path.parent.iterdir())] for path in paths]
    assert first == second
    if name != "identity":
        assert first != other
        assert np.abs(run(paths[0]) - run(paths[2])).max() > 0.01


def test_tensors_differ_from_each_other_and_have_their_scale(tmp_path: Path) -> None:
    tensors = onnx.load(models.make("matmul", tmp_path, megabytes=40)).graph.initializer
    arrays = [numpy_helper.to_array(tensor) for tensor in tensors]
    assert len({array.tobytes() for array in arrays}) == len(arrays) > 4
    assert len({row.tobytes() for array in arrays for row in array}) == sum(map(len, arrays))
    for array in arrays:
        assert array.std() == pytest.approx(math.sqrt(2 / len(array)), rel=0.01)


# --- Writing models: whole or not at all, once, and what is said when it fails ----------------------------------------


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def make(directory: Path, megabytes: int = 3, **more: Any) -> Path:
    return models.make("matmul", directory, megabytes=megabytes, **more)


def find(directory: Path, megabytes: int = 3) -> Path | None:
    return models.describe("matmul", megabytes=megabytes).find(directory)


def test_an_existing_model_is_reused(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    calls: list[tuple[int, int]] = []
    path = make(tmp_path, progress=lambda *call: calls.append(call))
    total = models.describe("matmul", megabytes=3).weight_bytes
    assert calls == sorted(calls)
    assert (calls[-1], {of for _, of in calls}) == ((total, total), {total})
    before = [(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in tmp_path.iterdir()]
    calls.clear()
    assert make(tmp_path, progress=lambda *call: calls.append(call)) == path
    assert find(tmp_path) == path
    assert [(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in tmp_path.iterdir()] == before
    assert calls == [(total, total)]


def test_models_of_different_options_stand_side_by_side(tmp_path: Path) -> None:
    paths = [make(tmp_path, size, seed=seed) for size in (1, 2) for seed in (0, 1)]
    assert [path.stem for path in paths] == [
        f"matmul-{name}" for name in ("1-mb", "1-mb-seed-1", "2-mb", "2-mb-seed-1")
    ]
    assert find(tmp_path, 1) == paths[0]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("matmul-3-mb.onnx.data", lambda path: os.truncate(path, path.stat().st_size - 1)),
        ("matmul-3-mb.onnx.data", Path.unlink),
        ("matmul-3-mb.onnx", Path.unlink),
    ],
)
def test_an_incomplete_model_is_made_anew(name: str, damage: Any, tmp_path: Path) -> None:
    make(tmp_path)
    whole = contents(tmp_path)
    damage(tmp_path / name)
    assert find(tmp_path) is None
    make(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(("name", "options"), [("matmul", {"megabytes": 3}), ("tiny-kernels", {})])
def test_an_interrupt_leaves_nothing(name: str, options: dict[str, int], tmp_path: Path) -> None:
    def interrupt(*_: int) -> None:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.make(name, tmp_path, progress=interrupt, **options)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_gives_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files stops a write in the middle, as a full disk does.
    code = """
import resource, sys
from ortmulti.bench import models
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    models.make("matmul", sys.argv[1], megabytes=3)
except models.WriteError as error:
    print(error)
"""
    done = run_child(code, tmp_path)
    reason = f"cannot write model matmul-3-mb to {tmp_path}: File too large\n"
    assert (done.stdout, done.stderr) == (reason, "")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_noticed_before_writing(tmp_path: Path) -> None:
    megabytes = min(10**7, shutil.disk_usage(tmp_path).free // 10**6 * 2)
    if megabytes == 10**7:
        pytest.skip("the disk has room for every model")
    with pytest.raises(models.WriteError, match=r"it needs .* GB and .* GB are free"):
        make(tmp_path, megabytes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "no model is called 'resnet'; there are resnet50, phi3-mini"),
        ("identity", {"layers": 2}, "does not take the option layers; its options: none"),
        ("resnet50", {"precision": "fp8"}, "precision must be one of fp16, fp32, not 'fp8'"),
        ("phi3-mini", {"layers": 0}, "layers must be an integer from 1 to 1024, not 0"),
        ("matmul", {"megabytes": 10**9}, "megabytes must be an integer from 1 to"),
        ("encoder", {"hidden": 256}, "hidden must be a multiple of the 12 heads, not 256; take 252 or 264"),
        ("encoder", {"hidden": 5}, "hidden must be a multiple of the 12 heads, not 5; take 12"),
        ("encoder", {"hidden": 1032}, "hidden must be a multiple of the 16 heads, not 1032; take 1024 or 1040"),
        ("identity", {"seed": -1}, "seed must be an integer of at least 0, not -1"),
    ],
)
def test_bad_arguments_are_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        models.make(name, tmp_path / "models", **options)
    assert not (tmp_path / "models").exists()


def test_without_the_onnx_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (lambda: models.make("identity", tmp_path / "models"), lambda: models.sample_inputs("model.onnx")):
        with pytest.raises(LibraryError, match=r'pip install "ortmulti\[models\]"'):
            call()
    assert not (tmp_path / "models").exists()


def test_every_dimension_of_the_decoder_is_known_or_named(tmp_path: Path) -> None:
    path = tiny_decoder(tmp_path)

    inferred = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), strict_mode=True)

    dimensions = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in inferred.graph.value_info
    }
    assert any(name.endswith("softmax/output") for name in dimensions)
    assert {name: shape for name, shape in dimensions.items() if not all(shape) and "mask." not in name} == {}


@given(st.lists(st.integers(1, 5000), max_size=8), st.booleans())
def test_external_weights_are_aligned_and_do_not_overlap(sizes: list[int], external: bool) -> None:
    graph = Graph("any", external=external)
    end = 0
    for index, size in enumerate(sizes):
        graph.weight(f"w{index}", (size,), std=1.0)
        offset = graph.weights[-1].offset
        assert (offset is not None) == (external and 4 * size > 1024)
        if offset is not None:
            assert offset % ALIGNMENT == 0
            assert end <= offset < end + ALIGNMENT
            end = offset + 4 * size
    assert graph.data_bytes == end


def test_weights_do_not_depend_on_the_number_of_layers(tmp_path: Path) -> None:
    loaded = [onnx.load(tiny_decoder(tmp_path / str(layers), layers=layers)) for layers in (1, 3)]
    few, many = ({tensor.name: tensor.raw_data for tensor in model.graph.initializer} for model in loaded)
    assert few.items() < many.items()
