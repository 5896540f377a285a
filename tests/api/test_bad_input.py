"""Bad input: the error says what was asked and found, nothing leaks, and what is right still works afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import _core
from tests.support import onnx_models
from tests.support.processes import nothing_leaks

CPU = "CPUExecutionProvider"
X = np.ones((2, 64), np.float32)
EXPECTED: Any = ortmulti.InferenceSession(onnx_models.matmul(), providers=[CPU]).run(None, {"x": X})[0]


@pytest.fixture(autouse=True)
def _nothing_leaks_and_work_goes_on() -> Iterator[None]:
    with suppress(ortmulti.DeviceError):
        _core.cuda_device_count()  # the driver, where there is one, stays once it was asked
    with nothing_leaks():
        yield
        with ortmulti.create_sessions(onnx_models.matmul(), "cpu") as [session]:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], EXPECTED)


def error_of(model: Any, message: str) -> ortmulti.Error:
    """The error of creating a session, the same whether of one session or of several at once."""
    with pytest.raises(ortmulti.Error, match=message) as several:
        ortmulti.create_sessions(model, "cpu", sessions_per_device=3)
    with pytest.raises(ortmulti.Error, match=message) as one:
        ortmulti.InferenceSession(model, providers=[CPU])
    assert type(one.value) is type(several.value)
    return one.value


def assert_as_onnxruntime(error: ortmulti.Error, model: Any) -> None:
    """The class has the name that onnxruntime gives it, and the message keeps what onnxruntime says."""
    with pytest.raises(Exception, match="ONNXRuntimeError") as caught:
        onnxruntime.InferenceSession(model, providers=[CPU])
    assert type(error).__name__ == type(caught.value).__name__
    prefix, number, name, text = str(caught.value).split(" : ", 3)
    assert str(error).startswith(f"{prefix} : {number} : {name} : ")
    assert text in str(error)


# --- Models that are none ---------------------------------------------------------------------------------------------


NO_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
NOT_UTF8 = os.fsdecode(b"model \xff.onnx")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_path_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(onnx_models.matmul())  # a path in C ends at the NUL character
    path = str(tmp_path / name)
    assert isinstance(error_of(path, "no file can have the path"), ortmulti.NoSuchFile)
    options = ortmulti.SessionOptions()
    uses: list[Callable[[], object]] = [
        lambda: ortmulti.optimize(path, "cpu"),
        lambda: ortmulti.load(path, "cpu"),
        lambda: _core.shareable_weights(path),
        lambda: _core.file_source(path),
        lambda: _core.file_checksum(path),
        lambda: setattr(options, "optimized_model_filepath", path),
        lambda: setattr(options, "profile_file_prefix", path),
    ]
    for use in uses:
        with pytest.raises(ortmulti.NoSuchFile, match="no file can have the path"):
            use()


def test_path_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / NOT_UTF8
    path.write_bytes(onnx_models.matmul())
    options = onnx_models.options(
        optimized_model_filepath=str(tmp_path / f"optimized {NOT_UTF8}"),
        profile_file_prefix=str(tmp_path / f"profile {NOT_UTF8}"),
        enable_profiling=True,
    )
    with ortmulti.InferenceSession(path, options, providers=[CPU]) as one:
        np.testing.assert_array_equal(one.run(None, {"x": X})[0], EXPECTED)
        profile = one.end_profiling()
    assert profile.startswith(options.profile_file_prefix)
    assert Path(profile).is_file()
    assert Path(options.optimized_model_filepath).is_file()
    with ortmulti.load(path, "cpu", 2) as pool:
        np.testing.assert_array_equal(pool.run(None, {"x": X})[0], EXPECTED)
    path.unlink()
    assert isinstance(error_of(path, "no model file"), ortmulti.NoSuchFile)


def no_file(path: Path) -> None: ...
def unreadable(path: Path) -> None:
    path.write_bytes(onnx_models.matmul())
    path.chmod(0)


@pytest.mark.parametrize(
    ("below", "make", "message", "error"),
    [
        (".", no_file, r"^\[ONNXRuntimeError\] : 3 : NO_SUCHFILE : .*model.onnx", ortmulti.NoSuchFile),
        ("below", no_file, "model.onnx", ortmulti.NoSuchFile),
        (".", Path.mkdir, "directory", ortmulti.NoSuchFile),
        (".", Path.touch, "empty", ortmulti.InvalidArgument),
        (".", os.mkfifo, "0 bytes", ortmulti.Error),  # which is not waited for
        pytest.param(".", unreadable, "permission", ortmulti.Error, marks=NO_ROOT),
        ("file", no_file, "Not a directory", ortmulti.NoSuchFile),
    ],
    ids=["missing", "missing folder", "folder", "empty", "fifo", "unreadable", "below a file"],
)
def test_what_is_no_model_file(
    below: str, make: Callable[[Path], object], message: str, error: type[ortmulti.Error], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    path = tmp_path / below / "model.onnx"
    make(path)
    found = error_of(path, message)
    assert isinstance(found, error)
    assert isinstance(found, FileNotFoundError) == (error is ortmulti.NoSuchFile)


def test_a_checksum_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ortmulti.NoSuchFile, match="not a regular file"):
        _core.file_checksum(str(tmp_path / "fifo"))


WHOLE = onnx_models.matmul()
FROM, TO = ("x", TensorProto.FLOAT, ["n"]), ("y", TensorProto.FLOAT, ["n"])
NEG = helper.make_node("Neg", ["x"], ["y"])
CIRCLE = [
    helper.make_node(*each) for each in (("Add", ["x", "b"], ["a"]), ("Neg", ["a"], ["b"]), ("Neg", ["b"], ["y"]))
]


def of_library() -> onnx.ModelProto:
    made = onnx_models.model([helper.make_node("Fancy", ["x"], ["y"], domain="com.acme")], [FROM], [TO])
    made.opset_import.add(domain="com.acme", version=1)
    return made


NO_MODELS: dict[str, bytes | onnx.ModelProto] = {
    **{f"{part} of a model": WHOLE[: max(1, int(len(WHOLE) * part) - 1)] for part in (0.001, 0.3, 0.9, 1)},
    "text": b"no model at all, but text\n" * 50,
    "zeros": b"\x00" * 1000,
    "a library": b"\x7fELF",
    "anything": os.urandom(4096),
    "an operator that does not exist": onnx_models.one_node("NoSuchOperator"),
    "an operator of a library": of_library(),
    "a type without kernel": onnx_models.model(
        [NEG], [("x", TensorProto.BFLOAT16, ["n"])], [("y", TensorProto.BFLOAT16, ["n"])]
    ),
    "an input that does not exist": onnx_models.model([helper.make_node("Neg", ["nowhere"], ["y"])], [FROM], [TO]),
    "a type that does not fit": onnx_models.model([NEG], [FROM], [("y", TensorProto.INT64, ["n"])]),
    "a circle": onnx_models.model(CIRCLE, [FROM], [TO]),
    "an opset of the future": onnx_models.model([NEG], [FROM], [TO], opset=999),
    "no graph": onnx.ModelProto(ir_version=8),
    "an IR version of the future": onnx_models.one_node("Neg") + onnx.ModelProto(ir_version=99).SerializeToString(),
    "git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
}
# The first line says what to do.
ADVICE = {
    "1 of a model": f"its {len(WHOLE) - 1} bytes end within a field",
    "text": "this is not an ONNX model: give the path",
    "an operator that does not exist": "has the operator NoSuchOperator, which ONNX Runtime",
    "an operator of a library": "has the operator com.acme:Fancy, which ONNX Runtime",
    "a type without kernel": "has no kernel here for the operator Neg",
    "an opset of the future": "has opset 999, which is too new for ONNX Runtime",
    "an IR version of the future": "has IR version 99, and ONNX Runtime",
    "git-lfs": "run 'git lfs pull'",
}


@pytest.mark.parametrize("from_file", [True, False])
@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_onnx(name: str, from_file: bool, tmp_path: Path) -> None:
    model = NO_MODELS[name]
    content = model if isinstance(model, bytes) else model.SerializeToString()
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    error = error_of(path if from_file else content, "other.onnx" if from_file else f"{len(content)} bytes")
    assert ADVICE.get(name, "") in str(error).partition("\n")[0]
    assert_as_onnxruntime(error, str(path) if from_file else content)


@pytest.mark.parametrize("model", [b"", bytearray(), memoryview(b"")])
def test_no_bytes_are_no_model(model: Any) -> None:
    error = error_of(model, "empty")
    assert isinstance(error, ortmulti.InvalidArgument)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("model", [None, 3, [b"model"], object()])
def test_what_is_neither_path_nor_bytes(model: Any) -> None:
    error = error_of(model, "path or bytes")
    assert isinstance(error, ortmulti.InvalidType)
    assert isinstance(error, TypeError)


# --- External data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["missing", "empty", "short", "a folder"])
def test_external_data(change: str, tmp_path: Path) -> None:
    path, data = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(layers=1))
    whole = data.read_bytes()
    data.unlink()
    if change == "a folder":
        data.mkdir()
    elif change != "missing":
        data.write_bytes(whole[: 0 if change == "empty" else -1])
    error = error_of(path, "model.onnx' on cpu")
    assert_as_onnxruntime(error, path)
    if change == "missing":
        assert "the model needs 'model.data' beside it" in str(error)


def test_external_data_of_bytes_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(layers=1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    model = path.read_bytes()
    error = error_of(model, "bytes on cpu")
    assert "a model in bytes cannot find its data files: load it by its path" in str(error)
    assert_as_onnxruntime(error, model)


# --- Feeds ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def session() -> Iterator[ortmulti.InferenceSession]:
    with ortmulti.InferenceSession(onnx_models.matmul(), providers=[CPU]) as created:
        yield created
        np.testing.assert_array_equal(created.run(None, {"x": X})[0], EXPECTED)


@pytest.mark.parametrize(
    ("outputs", "feed", "error", "message"),
    [
        (None, {}, ValueError, r"Required inputs .*'x'"),
        (None, {"X": X}, ValueError, "unknown input 'X'.*'x'"),
        (None, {"x": X, "z": X}, ValueError, "unknown input 'z'.*'x'"),
        (None, {3: X}, TypeError, "must be a str, not int"),
        (None, None, TypeError, "dict.*NoneType"),
        (None, [X], TypeError, "dict.*list"),
        (None, {"x": X.astype(np.float64)}, TypeError, "'x'.*float32.*float64"),
        (None, {"x": X.astype(np.int32)}, TypeError, "'x'.*float32.*int32"),
        (None, {"x": X.astype(np.float16)}, TypeError, "'x'.*float32.*float16"),
        (None, {"x": X.astype(complex)}, TypeError, "'x'.*float32.*complex128"),
        (None, {"x": X.astype(object)}, TypeError, "'x'.*float32.*object"),
        (None, {"x": X.astype(str)}, TypeError, "'x'.*float32.*<U"),
        (None, {"x": np.zeros(2, "M8[s]")}, TypeError, "'x'.*float32.*datetime64"),
        (None, {"x": np.zeros(2, "f4,f4")}, TypeError, "'x'.*float32"),
        (None, {"x": None}, TypeError, "'x' is None"),
        (None, {"x": "text"}, TypeError, "'x'.*str"),
        (None, {"x": [[1], [2, 3]]}, TypeError, "'x'.*list"),
        (None, {"x": object()}, TypeError, "'x'.*object"),
        (None, {"x": X[0]}, ValueError, "rank.*x.*1.*2"),
        (None, {"x": X[None]}, ValueError, "rank.*x.*3.*2"),
        (None, {"x": np.float32(1)}, ValueError, "rank.*x.*0.*2"),
        (None, {"x": X[:, :63]}, ValueError, "dimensions.*x[^$]*63[^$]*64"),
        (None, {"x": np.zeros((64, 2), np.float32)}, ValueError, "dimensions.*x[^$]*2[^$]*64"),
        (["z"], {"x": X}, ValueError, "unknown output 'z'.*'y'"),
        (["y", "z"], {"x": X}, ValueError, "unknown output 'z'.*'y'"),
        ("y", {"x": X}, TypeError, "output_names"),
        (b"y", {"x": X}, TypeError, "output_names"),
        ({"y": 1}, {"x": X}, TypeError, "output_names"),
        ((name for name in ["y", "z"]), {"x": X}, ValueError, "unknown output 'z'.*'y'"),
        ([1], {"x": X}, TypeError, "must be a str, not int"),
        (7, {"x": X}, TypeError, "output_names"),
    ],
)
def test_feed(
    outputs: Any, feed: Any, error: type[Exception], message: str, session: ortmulti.InferenceSession
) -> None:
    with pytest.raises(error, match=message) as caught:
        session.run(outputs, feed)
    assert isinstance(caught.value, ortmulti.InvalidArgument)


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "an unknown config entry": lambda p, _: p.SessionOptions().get_session_config_entry("NOPE"),
    "an unknown config entry of a run": lambda p, _: p.RunOptions().get_run_config_entry("NOPE"),
    "an empty config key": lambda p, _: p.SessionOptions().add_session_config_entry("", "1"),
    "a severity": lambda p, _: p.set_default_logger_severity(5),
    "a severity of a callback": lambda p, _: p.set_default_logger_callback(print, severity=5),
    "a callback": lambda p, _: p.set_default_logger_callback("none"),
    "an input to bind": lambda _, session: session.io_binding().bind_cpu_input("Q", X),
    "a list to bind": lambda _, session: session.io_binding().bind_cpu_input("x", [1]),
    "a dtype": lambda _, session: session.run(None, {"x": X.astype(np.complex64)}),
    "a value's size": lambda p, _: p.OrtValue.ortvalue_from_numpy(X).update_inplace(X[:1]),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_where_onnxruntime_raises_a_bare_runtime_error(name: str, session: ortmulti.InferenceSession) -> None:
    theirs = onnxruntime.InferenceSession(onnx_models.matmul(), providers=[CPU])
    if not hasattr(onnxruntime, "set_default_logger_callback") and "callback" in name:
        pytest.skip("a function of a later release")
    for package, created in ((onnxruntime, theirs), (ortmulti, session)):
        with pytest.raises(RuntimeError):
            CALLS[name](package, created)


def test_a_missing_input_is_said_in_onnxruntimes_words() -> None:
    feeds: list[dict[str, Any]] = [{}, {"a": X}]
    for fed in feeds:
        with pytest.raises(ValueError, match="Required inputs") as theirs:
            onnxruntime.InferenceSession(onnx_models.add_mul(), providers=[CPU]).run(None, fed)
        with (
            onnx_models.cpu_session(onnx_models.add_mul()) as session,
            pytest.raises(ValueError, match="Required inputs") as ours,
        ):
            session.run(None, fed)
        assert str(theirs.value).removesuffix(".") in str(ours.value)


def of_shape(*nodes: onnx.NodeProto, rank: int = 3, element_type: int = TensorProto.FLOAT) -> bytes:
    """A model whose input is the shape of its output."""
    values = [("shape", TensorProto.INT64, [rank])], [("y", element_type, None)]
    return onnx_models.model(nodes, *values).SerializeToString()


EMPTY_TEXT = helper.make_node("Constant", [], ["c"], value_strings=[""])
EXPAND, FILL = helper.make_node("Expand", ["c", "shape"], ["y"]), helper.make_node("ConstantOfShape", ["shape"], ["y"])


@pytest.mark.parametrize(
    "model", [of_shape(FILL), of_shape(EMPTY_TEXT, EXPAND, element_type=TensorProto.STRING)], ids=["float", "string"]
)
def test_output_of_a_shape_that_numpy_refuses(model: bytes) -> None:
    with onnx_models.cpu_session(model) as session:
        shape = np.array([0, 2**62, 2**62])
        with pytest.raises(ortmulti.InvalidArgument, match=r"shape \(0, 4611686018427387904, ") as caught:
            session.run(None, {"shape": shape})
        assert isinstance(caught.value, ValueError)  # as onnxruntime
        [kept] = session.run_with_ort_values(None, {"shape": ortmulti.OrtValue.ortvalue_from_numpy(shape)})
        assert kept.shape() == shape.tolist()
        with pytest.raises(ortmulti.InvalidArgument, match="keep the value as an OrtValue"):
            kept.numpy()
        assert session.run(None, {"shape": np.array([0, 2, 3])})[0].shape == (0, 2, 3)


def test_a_node_that_fails_in_the_run() -> None:
    model = onnx_models.model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "the_reshape")],
        [("x", TensorProto.FLOAT, ["n"]), ("shape", TensorProto.INT64, [1])],
        [("y", TensorProto.FLOAT, None)],
    ).SerializeToString()
    feed = {"x": np.ones(3, np.float32), "shape": np.array([2])}
    with pytest.raises(Exception, match="the_reshape") as theirs:
        onnxruntime.InferenceSession(model, providers=[CPU]).run(None, feed)
    with ortmulti.InferenceSession(model, providers=[CPU]) as session:
        with pytest.raises(ortmulti.Error, match=r"running a model.*on cpu[^$]*the_reshape") as ours:
            session.run(None, feed)
        assert type(ours.value).__name__ == type(theirs.value).__name__
        feed["shape"] = np.array([3])
        assert session.run(None, feed)[0].tolist() == [1, 1, 1]


def test_a_run_that_needs_more_memory_than_there_is() -> None:
    options = onnx_models.options(enable_cpu_mem_arena=False)  # it would go on trying to grow by as much
    with onnx_models.cpu_session(of_shape(FILL, rank=1), options) as session:
        with pytest.raises(ortmulti.OutOfMemory) as caught:
            session.run(None, {"shape": np.array([1 << 50])})
        assert isinstance(caught.value, MemoryError)
        assert session.run(None, {"shape": np.array([2])})[0].tolist() == [0, 0]


# --- Several sessions of which one fails ------------------------------------------------------------------------------


def test_a_device_that_does_not_exist_beside_one_that_does() -> None:
    progress: list[Any] = []
    with pytest.raises(ortmulti.DeviceError, match="cuda:4096"):
        ortmulti.create_sessions(
            onnx_models.matmul(), ["cpu", "cuda:4096"], progress=lambda *call: progress.append(call)
        )
    assert progress == []


@pytest.mark.parametrize("serialize", ["none", "device", "all"])
@pytest.mark.parametrize("failing", range(3))
def test_one_of_several_sessions_fails(failing: int, serialize: str) -> None:
    """By a provider that ONNX Runtime itself refuses, below the checks that come first."""
    sessions: list[list[tuple[str, dict[str, str]]]] = [[(CPU, {})] for _ in range(3)]
    sessions[failing] = [("NoSuchExecutionProvider", {})]
    options = onnx_models.options(intra_op_num_threads=2)._core
    request = _core.CreationRequest(model=WHOLE, sessions=sessions, options=options, serialize=serialize)
    with pytest.raises(ortmulti.InvalidArgument, match="on cpu: provider NoSuchExecutionProvider"):
        list(_core.CreationEvents(request))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"model": 3}, TypeError, "a bytes-like object is required, not 'int'"),
        ({"sessions": [CPU]}, TypeError, "incompatible constructor arguments"),
        ({"options": None}, TypeError, "NoneType|incompatible constructor arguments"),
        ({"serialize": "some"}, ortmulti.InvalidArgument, "'device', 'all' or 'automatic', not 'some'"),
        ({"weights": _core.WeightList()}, TypeError, "incompatible constructor arguments"),
        ({"no_such_field": 1}, TypeError, "incompatible constructor arguments"),
    ],
)
def test_a_wrong_field_of_a_creation_request_is_refused(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    fields = {"model": onnx_models.matmul(), "sessions": [[(CPU, {})]], "options": _core.SessionOptions()}
    with pytest.raises(error, match=message):
        _core.CreationRequest(**{**fields, **changed})


@pytest.mark.parametrize("stop", [ValueError("from progress"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_in_progress_gives_the_creation_up(stop: BaseException) -> None:
    def progress(*_call: Any) -> None:
        raise stop

    with pytest.raises(type(stop)) as caught:
        ortmulti.create_sessions(onnx_models.matmul(), "cpu", 4, progress=progress)
    assert caught.value is stop


TEXT = onnx_models.parsed(
    "(float[n,sequence] ids, float[n,sequence] mask) => (float[n,sequence] y) { y = Add(ids, mask) }"
).SerializeToString()


@pytest.mark.parametrize("way", ["session", "pool", "batching"])
def test_sizes_of_one_dimension_that_differ_between_inputs_are_named(way: str) -> None:
    batching = ortmulti.Batching(4) if way == "batching" else None
    runs: Any = ortmulti.InferenceSession(TEXT, providers=[CPU])
    if way != "session":
        runs = ortmulti.load(TEXT, "cpu", batching=batching)
    six, five, one = (np.ones((1, columns), np.float32) for columns in (6, 5, 1))
    with runs:
        message = r"inputs 'ids' and 'mask' have the sizes 6 and 5 along 'sequence'.*\n*.*broadcast"
        with pytest.raises(ortmulti.InvalidArgument, match=message):
            runs.run(None, {"ids": six, "mask": five})
        # The model takes this, whatever it declares.
        np.testing.assert_array_equal(runs.run(None, {"ids": six, "mask": one})[0], six + 1)
