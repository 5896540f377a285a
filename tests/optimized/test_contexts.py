"""Models that a plug-in's provider compiles once: OpenVINO's where its package is installed, and a fake one's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Loading, _core
from ortmulti.devices.device import Device
from ortmulti.errors import NotOptimizable
from ortmulti.optimized import Cache, context_key, contexts, finish
from tests.support import command, onnx_models, plugins
from tests.support.cached_models import flip, write_anew

DEVICE = "openvino:CPU"
MODEL = onnx_models.matmul(64)
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
PROVIDERS: list[tuple[str, dict[str, str]]] = [(DEVICE, {})]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    ortmulti.RunOptions()  # starts the thread that emits the log
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "cache"))
    return Cache.default()


@pytest.fixture(scope="module")
def openvino_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugins.openvino(tmp_path_factory.mktemp("openvino"))


@pytest.fixture
def openvino(openvino_library: Path) -> Iterator[None]:
    with plugins.registered(openvino_library):
        yield


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[None]:
    with plugins.registered(plugins.build(tmp_path)):
        yield


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    return str(path)


def spans(sessions: Any) -> list[str]:
    return [span.name for span in sessions.timeline.spans]


def states(sessions: Any) -> str:
    return "\n".join(name for name in spans(sessions) if ": " in name)


def run(session: Any) -> np.ndarray:
    return np.asarray(session.run(None, {"x": X})[0])


def expected() -> np.ndarray:
    return run(onnx_models.cpu_session(MODEL))


def entries(cache: Cache) -> list[Path]:
    return [stored.folder for stored in cache.entries()]


def check_close(found: np.ndarray) -> None:
    # OpenVINO computes in bfloat16 where the processor does.
    np.testing.assert_allclose(found, expected(), rtol=0.02, atol=0.02 * np.abs(expected()).max())


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("source", ["path", "bytes"])
def test_the_model_is_compiled_once_for_all_sessions(source: str, model: str, cache: Cache) -> None:
    given = model if source == "path" else MODEL
    with ortmulti.create_sessions(given, [DEVICE, DEVICE]) as first:
        compiled = run(first[0])
        assert spans(first).count("create session") == 1
        assert "publish compiled model" in spans(first)
        assert not states(first)
    check_close(compiled)
    [folder] = entries(cache)
    assert (folder / "model_OpenVINOExecutionProvider.bin").stat().st_mode & 0o77 == 0
    with ortmulti.create_sessions(given, DEVICE, 3) as second:
        assert spans(second).count("create session") == 1
        assert "publish compiled model" not in spans(second)
        assert str(folder) in repr(second[0])
        for session in second:
            np.testing.assert_array_equal(run(session), compiled)
    assert entries(cache) == [folder]


@pytest.mark.usefixtures("openvino")
def test_a_pool_has_the_compiled_model_beside_the_cpu(model: str, cache: Cache) -> None:
    for _ in range(2):
        with ortmulti.load(model, [DEVICE, "cpu"], 2, warmup=True) as pool:
            np.testing.assert_array_equal(pool.submit(None, {"x": X}, device="cpu").result()[0], expected())
            check_close(pool.submit(None, {"x": X}, device=DEVICE).result()[0])
    assert str(entries(cache)[0]) in repr(pool.sessions[0])


def test_a_library_beside_the_plugin_that_was_written_anew_is_noticed(tmp_path: Path) -> None:
    library = tmp_path / "libruntime.so.1"
    library.write_bytes(b"a library")
    before = contexts._libraries_in(tmp_path)
    write_anew(library, b"another")
    assert contexts._libraries_in(tmp_path) != before


@pytest.mark.usefixtures("openvino")
def test_what_is_compiled_depends_on_options_plugin_and_device(
    model: str, tmp_path: Path, openvino_library: Path
) -> None:
    device = Device(DEVICE)
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
    keys = [
        context_key(ortmulti.Model(model), PROVIDERS, None, device),
        context_key(ortmulti.Model(model), [(DEVICE, {"num_of_threads": "1"})], None, device),
        context_key(ortmulti.Model(model), PROVIDERS, options, device),
    ]
    assert keys[0] == context_key(ortmulti.Model(model), PROVIDERS, None, device)
    ortmulti.unregister_execution_provider_library("tests")
    copy = tmp_path / "copy.so"
    copy.write_bytes(openvino_library.read_bytes())
    ortmulti.register_execution_provider_library("tests", copy)
    keys.append(context_key(ortmulti.Model(model), PROVIDERS, None, device))
    (tmp_path / "libruntime.so.1").write_bytes(b"")  # of the plug-in, which opens it by itself
    keys.append(context_key(ortmulti.Model(model), PROVIDERS, None, device))
    (tmp_path / "libruntime.so.1").write_bytes(b"other")
    keys.append(context_key(ortmulti.Model(model), PROVIDERS, None, device))
    (tmp_path / "cache.json").write_bytes(b"")
    assert keys[-1] == context_key(ortmulti.Model(model), PROVIDERS, None, device)
    assert len({key.digest for key in keys}) == len(keys)
    facts = keys[0].facts["plugin"]
    assert facts["library"] == _core.file_source(str(openvino_library)).identity
    assert facts["provider"][0] == "OpenVINOExecutionProvider"
    assert "1.8" in dict(facts["provider"][1])["version"]


@pytest.mark.usefixtures("openvino")
def test_a_damaged_entry_is_made_again(model: str, cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    ortmulti.create_sessions(model, DEVICE).close()
    [folder] = entries(cache)
    flip(folder / "model_OpenVINOExecutionProvider.bin")
    with ortmulti.create_sessions(model, DEVICE) as sessions:
        assert "publish compiled model" in spans(sessions)
        check_close(run(sessions[0]))
    assert "is damaged and will be made again" in caplog.text
    assert entries(cache) == [folder]


@pytest.mark.usefixtures("openvino", "silent")
@pytest.mark.parametrize("require", ["all", "any"])
def test_an_entry_that_cannot_be_loaded_is_replaced(require: Any, model: str, cache: Cache) -> None:
    staged = cache.stage(context_key(ortmulti.Model(model), PROVIDERS, None, Device(DEVICE)))
    (staged.folder / "model.onnx").write_bytes(b"no model")
    entry = finish(staged)
    assert entry is not None
    staged.publish().close()
    with ortmulti.load(model, ["cpu", DEVICE], loading=ortmulti.Loading(require=require)) as pool:
        assert pool.devices == ["cpu", DEVICE]
        assert "not shared: a compiled model cannot be made or loaded" in states(pool)
        check_close(pool.submit(None, {"x": X}, device=DEVICE).result()[0])
    assert entries(cache) == []
    with ortmulti.create_sessions(model, DEVICE) as sessions:
        assert not states(sessions)
    assert len(entries(cache)) == 1


@pytest.mark.usefixtures("openvino")
def test_it_can_be_compiled_ahead(model: str, cache: Cache) -> None:
    with pytest.raises(ortmulti.NotFound, match=f"no compiled form of the model for {DEVICE}.*`ortmulti optimize`"):
        ortmulti.create_sessions(model, DEVICE, loading=ortmulti.Loading(optimize="offline"))
    made = ortmulti.optimize(model, DEVICE)
    assert (made.made, made.device, made.compared, made.shared) == (True, DEVICE, None, 0)
    assert made.bytes > 0
    assert "precision of its own" in made.not_compared
    assert not ortmulti.optimize(model, DEVICE).made
    with ortmulti.create_sessions(model, DEVICE, loading=ortmulti.Loading(optimize="offline")) as sessions:
        check_close(run(sessions[0]))
    assert len(entries(cache)) == 1


@pytest.mark.usefixtures("openvino", "cache")
def test_the_command_lists_it_with_its_device(model: str) -> None:
    pytest.importorskip("typer")
    ortmulti.optimize(model, DEVICE)
    [listed] = json.loads(command.invoke("optimize", "--list", "--json").stdout)["entries"]
    assert listed["device"] == DEVICE


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("loading", [Loading(strategy="native"), Loading(optimize="never")])
def test_it_is_compiled_for_each_load_on_demand(loading: Loading, model: str, cache: Cache) -> None:
    with ortmulti.create_sessions(model, DEVICE, loading=loading) as sessions:
        check_close(run(sessions[0]))
    assert entries(cache) == []


@pytest.mark.usefixtures("openvino")
def test_a_meta_device_compiles_beside_one_that_has_an_entry(model: str, cache: Cache) -> None:
    with ortmulti.create_sessions(model, ["openvino.auto:CPU", DEVICE]) as sessions:
        assert sessions.devices == ["openvino.auto:CPU", DEVICE]
        assert states(sessions) == (
            "not kept as compiled for openvino.auto:CPU: OpenVINO saves nothing that its meta-device AUTO compiles"
        )
        check_close(run(sessions[0]))
    assert len(entries(cache)) == 1


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("method", ["add_initializer", "add_external_initializers"])
def test_no_weights_are_used_in_place(method: str, tmp_path: Path) -> None:
    """So sessions on the provider's devices cannot share them. The docs say this of each method."""
    model = str(onnx_models.write_external(tmp_path)[0])
    given = {name: 2 * np.eye(64, dtype=np.float32) for name in ("weight0", "weight1")}
    values = {name: ortmulti.OrtValue.ortvalue_from_numpy(weight) for name, weight in given.items()}
    options = ortmulti.SessionOptions()
    if method == "add_initializer":
        for name, value in values.items():
            options.add_initializer(name, value)
    else:
        options.add_external_initializers(list(values), list(values.values()))
    with ortmulti.create_sessions(
        model, DEVICE, options=options, loading=ortmulti.Loading(optimize="never")
    ) as sessions:
        found = run(sessions[0])
        for weight in given.values():
            weight[:] = 0
        np.testing.assert_array_equal(run(sessions[0]), found)
    if method == "add_initializer":
        check_close(found)  # the model's own weights
    else:
        np.testing.assert_allclose(found, 4 * X, rtol=0.02)


@pytest.mark.usefixtures("fake")
def test_a_provider_that_compiles_nothing_has_no_entry(model: str, cache: Cache) -> None:
    for _ in range(2):
        with ortmulti.create_sessions(model, ["fake:CPU", "cpu"], 2) as sessions:
            assert states(sessions) == "not kept as compiled for fake:CPU: its provider compiles nothing of this model"
            np.testing.assert_array_equal(run(sessions[0]), expected())
    assert entries(cache) == []
    assert not list((cache.folder / "staging").iterdir())
    with pytest.raises(ortmulti.NotOptimizable, match="the provider of fake:CPU compiles nothing of this model"):
        ortmulti.optimize(model, "fake:CPU")


@pytest.mark.usefixtures("fake")
def test_options_about_compiled_models_are_the_users(model: str, tmp_path: Path) -> None:
    options = ortmulti.SessionOptions()
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "own.onnx"))
    with ortmulti.create_sessions(model, "fake:CPU", options=options) as sessions:
        assert states(sessions) == (
            "not kept as compiled for fake:CPU: the session options have the config entry ep.context_file_path"
        )
    options = ortmulti.SessionOptions()
    options.optimized_model_filepath = tmp_path / "optimized.onnx"
    with pytest.raises(NotOptimizable, match="optimized_model_filepath asks ONNX Runtime itself"):
        context_key(ortmulti.Model(model), [("fake:CPU", {})], options, Device("fake:CPU"))
