"""Entries as ONNX Runtime and the core make them: what they consist of, and that they compute the same bits."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import _core
from ortmulti.bench import models
from ortmulti.bench.models import phi3_mini, sample_inputs
from ortmulti.create import core_sessions
from ortmulti.create.request import core_options
from ortmulti.create.sample_inputs import sample_inputs as inputs_of
from ortmulti.optimized import Cache, build, key_of
from ortmulti.optimized.build import LARGE
from ortmulti.optimized.comparison import over_entry
from tests.support import onnx_models
from tests.support.cached_models import CPU
from tests.support.optimized_models import (
    PROTOS,
    convolution,
    make,
    run_entry,
    run_ordinary,
    same_bits,
    with_folded_weights,
    write,
)
from tests.support.processes import nothing_leaks


@pytest.fixture(scope="module", autouse=True)
def _opened() -> None:
    ortmulti.RunOptions()  # starts the thread that emits the log


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize(
    ("how", "level"), [("bytes", 99), ("inline", 99), *(("external", level) for level in (0, 1, 2, 99))]
)
@pytest.mark.parametrize("name", PROTOS)
def test_an_entry_computes_the_same_bits(tmp_path: Path, cache: Cache, name: str, how: str, level: int) -> None:
    model = write(tmp_path / "model", PROTOS[name](), how)
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = level
    with nothing_leaks(), make(cache, model, options) as entry:
        entry.verify()
        feeds = inputs_of(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs(), 3)
        assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds, level))
        if "c" in feeds:
            feeds["c"] = np.array(~feeds["c"])
            assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds, level))
        files = {path.name for path in entry.folder.iterdir()}
        assert files - {"weights.bin"} == {"manifest.json", "model.onnx", "shared"}
        assert (entry.folder / "shared").stat().st_size == 0


@pytest.mark.parametrize("name", PROTOS)
def test_onnx_runtime_takes_every_shared_weight(tmp_path: Path, cache: Cache, name: str) -> None:
    with (
        make(cache, write(tmp_path / "model", PROTOS[name](), "external")) as entry,
        over_entry(entry, CPU, core_options(None)) as session,
    ):
        assert session.core.weight_use() == (len(entry.weights.weights), [])


def test_a_weight_that_is_not_taken_is_read_from_the_entry_or_missed(tmp_path: Path, cache: Cache) -> None:
    """ONNX Runtime on a GPU does not take those that it plans on the CPU, such as outputs of the model."""
    model = write(tmp_path / "model", PROTOS["with_constant_outputs"](), "external")
    with make(cache, model) as entry:
        expected = run_ordinary(model, feeds := {"x": np.ones(3, np.float32)})
        assert same_bits(run_entry(entry, feeds, without="folded"), expected)
        with pytest.raises(Exception, match="out of bounds or can not be read"):
            run_entry(entry, feeds, without="initializer")


def test_weights_that_were_left_as_they_were_are_not_stored_again(tmp_path: Path, cache: Cache) -> None:
    for how in ("external", "inline"):
        model = write(tmp_path / how, onnx_models.matmul_proto(128, 4), how)
        with make(cache, model) as entry:
            assert [file.name for file in entry.weights.sources] == [
                str(tmp_path / how / ("model.data" if how == "external" else "model.onnx"))
            ]
            assert sorted(weight.name for weight in entry.weights.weights) == [f"weight{n}" for n in range(4)]
            assert entry.facts["own_bytes"] == 0
            assert entry.bytes < 4000


def test_only_new_weights_are_stored(tmp_path: Path, cache: Cache) -> None:
    model = write(tmp_path / "model", with_folded_weights(), "external")
    with make(cache, model) as entry:
        assert entry.facts["own_bytes"] == 4096
        places = {w.name: Path(entry.weights.sources[w.source].name).name for w in entry.weights.weights}
        assert places.pop("w") == "model.data"
        assert list(places.values()) == ["weights.bin"]


@pytest.mark.parametrize(
    ("name", "how"), [("matmul_proto", "inline"), ("with_if", "external"), ("with_quantized_weights", "external")]
)
def test_refused_weights_stay_with_the_session(tmp_path: Path, cache: Cache, name: str, how: str) -> None:
    model = write(tmp_path / "model", PROTOS[name](), how)
    feeds = sample_inputs(str(model), 3)
    with cache.stage(key_of(ortmulti.Model(model), CPU)) as staged:
        names = [weight.name for weight in build(staged, ortmulti.Model(model), CPU).weights.weights]
        saved = staged.saved.stat()
        entry = build(staged, ortmulti.Model(model), CPU, refused=names)
        assert staged.saved.stat().st_ino == saved.st_ino  # not optimized again
        assert entry.refused == tuple(names)
        assert entry.weights.weights == []
        assert set(names) <= {one.name for one in entry.weights.left_out}
        with staged.publish() as published:
            assert published.refused == tuple(names)
            assert same_bits(run_entry(published, feeds), run_ordinary(model, feeds))


def test_free_dimensions_become_fixed(tmp_path: Path, cache: Cache) -> None:
    model = write(tmp_path / "model", onnx_models.matmul_proto(), "external")
    options = ortmulti.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    with make(cache, model, options) as entry:
        assert entry.signature == [[["x", "tensor(float)", [3, 64]]], [["y", "tensor(float)", [3, 64]]]]
        feeds = {"x": np.ones((3, 64), np.float32)}
        assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds))
    with make(cache, model) as entry:
        assert entry.signature == [[["x", "tensor(float)", ["n", 64]]], [["y", "tensor(float)", ["n", 64]]]]


def test_a_model_in_memory_with_data_in_a_named_folder(tmp_path: Path, cache: Cache) -> None:
    path = write(tmp_path / "model", onnx_models.matmul_proto(), "external")
    options = ortmulti.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path / "model"))
    feeds = sample_inputs(str(path), 3)
    with make(cache, Path(path).read_bytes(), options) as entry:
        assert Path(entry.weights.sources[0].name).name == "model.data"
        assert same_bits(run_entry(entry, feeds), run_ordinary(path, feeds))


def test_what_is_too_large_for_one_file_is_saved_as_two(tmp_path: Path, cache: Cache) -> None:
    """The second way of saving, which models of more than 2 GB take, on one that does not need it."""
    model = write(tmp_path / "model", with_folded_weights(), "external")
    feeds = sample_inputs(str(model), 3)
    options = ortmulti.SessionOptions()
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", LARGE)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    with cache.stage(key_of(ortmulti.Model(model), CPU, options)) as staged:
        build(staged, ortmulti.Model(model), CPU, options)
        build(staged, ortmulti.Model(model), CPU, options, refused=["w"])
        build(staged, ortmulti.Model(model), CPU, options)
        with staged.publish() as entry:
            entry.verify()
            assert {path.name for path in entry.folder.iterdir()} == {"manifest.json", "model.onnx", "shared", LARGE}
            assert [Path(file.name).parent for file in entry.weights.sources] == [entry.folder]
            assert entry.facts["own_bytes"] == (entry.folder / LARGE).stat().st_size >= 8192
            assert (entry.folder / LARGE).stat().st_mode & 0o777 == 0o600
            assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds))


@pytest.mark.slow
def test_more_than_two_gigabytes_of_new_weights(tmp_path: Path, cache: Cache) -> None:
    """Each of nine weights becomes a new one of 256 MB."""
    size, nodes, values = 8192, [], "x"
    proto = onnx_models.model([], [("x", TensorProto.FLOAT, [1, size])], [("y", TensorProto.FLOAT, [1, size])])
    with (tmp_path / "data").open("wb") as data:
        values_of = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
        data.write(values_of.tobytes())
    for layer in range(9):
        tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[size, size])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data")
        tensor.external_data.add(key="offset", value="0")
        tensor.external_data.add(key="length", value=str(size * size * 4))
        proto.graph.initializer.append(tensor)
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(1 + layer), f"f{layer}"))
        nodes.append(helper.make_node("Mul", [f"w{layer}", f"f{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("MatMul", [values, f"m{layer}"], ["y" if layer == 8 else f"v{layer}"]))
        values = f"v{layer}"
    proto.graph.node.extend(nodes)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    with make(cache, str(path)) as entry:
        assert entry.bytes > 2 << 30
        assert (entry.folder / LARGE).exists()
        weights = _core.SharedWeights(entry.weights)
        [session], _ = core_sessions.create(entry.model_path, [CPU], _disabled(), weights=weights)
        feeds = {"x": np.ones((1, size), np.float32)}
        with onnx_models.cpu_session(path) as ordinary:
            assert same_bits(session.run(None, feeds), ordinary.run(None, feeds))
        session.close()


def _disabled() -> _core.SessionOptions:
    options = _core.SessionOptions()
    options.graph_optimization_level = 0
    return options


def test_what_cannot_be_optimized_says_why(tmp_path: Path, cache: Cache) -> None:
    def reason(model: str | bytes, options: ortmulti.SessionOptions | None = None) -> str:
        with nothing_leaks(), pytest.raises(ortmulti.NotOptimizable) as raised:
            make(cache, model, options)
        assert list((cache.folder / "staging").iterdir()) == []
        return str(raised.value)

    unknown = onnx_models.model(
        [helper.make_node("NoSuchOperator", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"])],
        [("y", TensorProto.FLOAT, ["n"])],
    )
    assert "NoSuchOperator" in reason(unknown.SerializeToString())
    short = write(tmp_path / "short", onnx_models.matmul_proto(), "external")
    os.truncate(tmp_path / "short" / "model.data", 100)
    assert re.search("weight[01]", reason(short))


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, cache: Cache) -> None:
    model = str(write(tmp_path / "model", onnx_models.matmul_proto(), "external"))
    with cache.stage(key_of(ortmulti.Model(model), CPU)) as staged:
        os.utime(tmp_path / "model" / "model.data", ns=(0, 0))
        with pytest.raises(ortmulti.NotOptimizable, match=r"model\.data was changed"):
            build(staged, ortmulti.Model(model), CPU)
    assert cache.entries() == []


def run_if_loadable(model: str, feeds: dict[str, Any]) -> Any:
    try:
        return run_ordinary(model, feeds)
    except Exception as error:  # onnxruntime.Fail is nothing else: of old releases, for some tensors outside
        pytest.skip(f"onnxruntime {onnxruntime.__version__} cannot load it: {error}")


@pytest.mark.parametrize("size", [4, 4096])
@pytest.mark.parametrize("place", [place for place in onnx_models.external_places() if not place.endswith("list")])
def test_a_data_file_of_another_tensor_that_is_replaced_gives_another_entry(
    tmp_path: Path, cache: Cache, place: str, size: int
) -> None:
    """Data of attributes and sparse initializers, which ONNX Runtime folds into the optimized model, or does not."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.external_places(size)[place].SerializeToString())
    (tmp_path / "b.bin").write_bytes(np.arange(size).tobytes())
    feeds = {"x": np.zeros(size, np.float32)}
    for number in (1, 2):
        (tmp_path / "a.bin").unlink(missing_ok=True)
        (tmp_path / "a.bin").write_bytes(np.full(size, number, np.float32).tobytes())
        assert cache.find(key_of(ortmulti.Model(path), CPU)) is None
        expected = run_if_loadable(str(path), feeds)
        with make(cache, str(path)) as entry:
            [found] = run_entry(entry, feeds)
        assert same_bits([found], expected)
        assert found[0] == number


def test_an_attribute_in_a_file_that_stays_in_the_optimized_model_is_refused(tmp_path: Path, cache: Cache) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["c"], value=onnx_models.external_tensor("t", "a.bin", 1)),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    value = TensorProto.FLOAT, ["n"]
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.model(nodes, [("x", *value)], [("y", *value)]).SerializeToString())
    (tmp_path / "a.bin").write_bytes(np.float32(3).tobytes())
    assert run_if_loadable(str(path), {"x": np.zeros(1, np.float32)})[0] == 3
    with pytest.raises(ortmulti.NotOptimizable, match=r"'a\.bin' holds tensors of attributes"):
        make(cache, str(path))


def test_nothing_is_logged_for_what_is_expected(tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    """Weights in a layout for this processor: ONNX Runtime warns of that, here for nothing."""
    model = write(tmp_path / "model", convolution(), "external")
    with caplog.at_level(logging.DEBUG, "ortmulti"):
        make(cache, model).close()
    assert caplog.records == []
    options = ortmulti.SessionOptions()
    options.log_severity_level = 1
    with caplog.at_level(logging.DEBUG, "ortmulti.onnxruntime"):
        make(Cache(tmp_path / "other"), model, options).close()
    assert any("hardware" in record.message for record in caplog.records)


def test_options_of_the_caller_stay_as_they_are(tmp_path: Path, cache: Cache) -> None:
    model = write(tmp_path / "model", onnx_models.matmul_proto(), "external")
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 2
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    before = {name: getattr(options._core, name) for name in dir(options._core) if not name.startswith("_")}
    make(cache, model, options).close()
    copied = options._core.copy()
    assert list(tmp_path.glob("profile*")) == []
    for name, value in before.items():
        if not callable(value):
            assert (getattr(options._core, name), getattr(copied, name)) == (value, value)


def decoder(folder: Path, precision: str) -> Path:
    size = phi3_mini.Dimensions(hidden=64, intermediate=96, heads=4, vocabulary=128, positions=32)
    return phi3_mini.build(2, precision, size).write(folder)


@pytest.mark.parametrize(
    "make_model",
    [
        pytest.param(partial(decoder, precision="fp32"), id="decoder fp32"),
        pytest.param(partial(decoder, precision="fp16"), id="decoder fp16"),
        pytest.param(partial(models.make, "resnet50"), id="resnet50"),
        pytest.param(partial(models.make, "tiny-kernels"), id="tiny-kernels"),
        pytest.param(partial(models.make, "matmul", megabytes=3), id="matmul"),
        pytest.param(partial(models.make, "phi3-mini", layers=1), id="phi3-mini", marks=pytest.mark.slow),
    ],
)
def test_the_models_that_are_measured(tmp_path: Path, cache: Cache, make_model: Callable[[Path], Path]) -> None:
    model = str(make_model(tmp_path / "model"))
    with make(cache, model) as entry:
        feeds = sample_inputs(model)
        assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds))
