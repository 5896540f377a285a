"""Libraries of custom operators: a real one, compiled here, and what is none."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti.cli.options import library_paths
from ortmulti.optimized.key import key_of
from ortmulti.serve.folder import Models
from tests.support import command as command_line
from tests.support import custom_ops, onnx_models
from tests.support.cached_models import CPU
from tests.support.processes import check_child

X = np.array([1, 2], np.float32)
MODEL = custom_ops.scaled()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return custom_ops.build_library(tmp_path_factory.mktemp("custom_ops"))


@pytest.fixture
def options(library: Path) -> ortmulti.SessionOptions:
    made = ortmulti.SessionOptions()
    made.register_custom_ops_library(str(library))
    return made


@pytest.fixture(params=["InferenceSession", "create_sessions", "native", "load"])
def sessions(request: pytest.FixtureRequest, options: ortmulti.SessionOptions) -> Iterator[list[Any]]:
    if request.param == "InferenceSession":
        made: Any = [onnx_models.cpu_session(MODEL, options)]
    elif request.param == "load":
        with ortmulti.load(MODEL, "cpu", 2, options) as pool:
            yield list(pool.sessions)
        return
    else:
        strategy: Any = "native" if request.param == "native" else "shared"
        made = ortmulti.create_sessions(MODEL, "cpu", 2, options, loading=ortmulti.Loading(strategy=strategy))
    yield list(made)
    for session in made:
        session.close()


def test_its_operators_run(sessions: list[Any]) -> None:
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 3 * X)


def test_the_result_is_onnxruntimes(library: Path, options: ortmulti.SessionOptions) -> None:
    # In a process of its own: a library keeps the functions of the one ONNX Runtime that has registered it last.
    expected = check_child(
        """
        import sys, numpy as np, onnxruntime
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(sys.argv[1])
        session = onnxruntime.InferenceSession(bytes.fromhex(sys.argv[2]), options, providers=["CPUExecutionProvider"])
        print(session.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist())
        """,
        library,
        MODEL.hex(),
    )
    assert str(onnx_models.cpu_session(MODEL, options).run(None, {"x": X})[0].tolist()) == expected.strip()


@pytest.mark.parametrize("lost", [2, 3])
def test_a_run_is_repeated_where_cudnn_may_have_lost_a_capture(lost: int, tmp_path: Path) -> None:
    options = ortmulti.SessionOptions()
    options.register_custom_ops_library(str(custom_ops.build_library(tmp_path, LOST_CAPTURES=lost)))
    with onnx_models.cpu_session(MODEL, options) as session:
        if lost == 3:
            with pytest.raises(ortmulti.Error, match="CUDNN_BACKEND_API_FAILED"):
                session.run(None, {"x": X})
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], 3 * X)


def test_without_it_the_model_is_refused() -> None:
    with pytest.raises(ortmulti.Error, match="Scale"):
        onnx_models.cpu_session(MODEL)


def test_it_is_needed_no_more_once_it_is_loaded(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(library, tmp_path / "relative.so")
    monkeypatch.chdir(tmp_path)
    options = ortmulti.SessionOptions()
    options.register_custom_ops_library("./relative.so")
    monkeypatch.chdir("/")
    session = onnx_models.cpu_session(MODEL, options)
    (tmp_path / "relative.so").unlink()
    later = onnx_models.cpu_session(MODEL, options)
    del options
    gc.collect()
    for each in (session, later):
        np.testing.assert_array_equal(each.run(None, {"x": X})[0], 3 * X)


def test_the_cache_key_is_the_librarys_too(library: Path, tmp_path: Path, options: ortmulti.SessionOptions) -> None:
    other = ortmulti.SessionOptions()
    other.register_custom_ops_library(shutil.copy(library, tmp_path / "other.so"))
    keys = [key_of(ortmulti.Model(MODEL), CPU, given).digest for given in (None, options, other)]
    assert len(set(keys)) == 3
    assert key_of(ortmulti.Model(MODEL), CPU, options).digest == keys[1]
    shutil.copy(library, tmp_path / "new.so")
    (tmp_path / "new.so").replace(tmp_path / "other.so")
    with pytest.raises(ortmulti.NotOptimizable, match=r"other\.so.* was replaced"):
        key_of(ortmulti.Model(MODEL), CPU, other)
    (tmp_path / "other.so").unlink()
    with pytest.raises(ortmulti.NotOptimizable, match="custom operators"):
        key_of(ortmulti.Model(MODEL), CPU, other)


def test_a_model_with_custom_operators_can_be_optimized(options: ortmulti.SessionOptions) -> None:
    assert ortmulti.optimize(MODEL, "cpu", options=options).path


@pytest.mark.parametrize("strategy", ["threads", "native"])
def test_the_first_session_of_a_library_registers_it_alone(strategy: str, tmp_path: Path) -> None:
    # ONNX Runtime adds a library's domain to its own in two steps, so that sessions that do it at once can fail. Its
    # Python package does that under the GIL.
    library = custom_ops.build_library(tmp_path, FIRST_LOOK_MS=50)
    (tmp_path / "model.onnx").write_bytes(MODEL)
    assert (
        check_child(
            """
            import ctypes, sys
            from ortmulti.bench.strategies import SessionSettings, open_strategy

            settings = SessionSettings(intra_op_num_threads=1, custom_op_libraries=[sys.argv[1]])
            strategy = open_strategy(sys.argv[3], sys.argv[2], ["cpu"] * 4, settings)
            strategy.start()
            strategy.create()
            print(ctypes.CDLL(sys.argv[1]).looks_beside_first())
            strategy.close()
            """,
            library,
            tmp_path / "model.onnx",
            strategy,
        )
        == "0\n"
    )


@pytest.mark.parametrize("path", ["/not/there.so", "not_there.so", __file__, "libm.so.6"])
def test_what_is_no_such_library_is_refused_at_once(path: str) -> None:
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail) as theirs:
        onnxruntime.SessionOptions().register_custom_ops_library(path)
    options = ortmulti.SessionOptions()
    with pytest.raises(ortmulti.Fail) as ours:
        options.register_custom_ops_library(path)
    assert str(theirs.value).rpartition(": FAIL : ")[2] in str(ours.value)
    assert path in str(ours.value)
    assert options._core.custom_op_libraries == []
    assert onnx_models.cpu_session(onnx_models.matmul(8), options).run(None, {"x": np.ones((1, 8), np.float32)})


@pytest.mark.parametrize("path", [None, 1, b"library.so", "", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument) as error:
        ortmulti.SessionOptions().register_custom_ops_library(path)
    assert isinstance(error.value, TypeError) == (not isinstance(path, str))


def test_commands_take_a_library(library: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(MODEL)
    for command in (
        ["inspect", model, "--batching", "--json"],
        ["run", model, "--device", "cpu", "--repeat", "1", "--json"],
        ["optimize", model, "--device", "cpu", "--json"],
    ):
        without = command_line.invoke(*command)
        assert without.returncode == 1, without
        assert "is not a registered" in without.stdout + without.stderr
        with_it = command_line.invoke(*command, "--custom-ops", library)
        assert with_it.returncode == 0, with_it
        assert "is not a registered" not in with_it.stdout + with_it.stderr


def test_a_server_takes_a_library_for_all_its_models(library: Path, tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(MODEL)
    (tmp_path / "m/config.pbtxt").write_text(
        f"model_operations {{ op_library_filename: '/opt/{library.name}' }} "
        "parameters { key: 'intra_op_thread_count' value { string_value: '1' } }"
    )
    (tmp_path / "declared.onnx").write_bytes(MODEL)
    (tmp_path / "s.toml").write_text(
        f"custom_ops = ['{os.path.relpath(library, tmp_path)}']\n"
        "[models.declared]\npath = 'declared.onnx'\noptions = { intra_op_num_threads = 1 }"
    )
    models = Models([tmp_path / "s.toml", tmp_path / "m"])
    models.custom_ops = library_paths(models.settings["custom_ops"])
    with ortmulti.ModelRepository("cpu") as repository:
        for name in ("m", "declared"):
            for _ in range(2):  # a load again registers it once
                found = models.find(name)
                [(path, _file)] = found.options["options"]._core.custom_op_libraries
                assert Path(path).resolve() == library.resolve()
            repository.add(name, found.model(), **found.options)
            np.testing.assert_array_equal(repository.run(name, None, {"x": X})[0], 3 * X)
