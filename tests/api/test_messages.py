"""A beginner's mistakes: the first line of the message says what to do, and ONNX Runtime's own text follows."""

from __future__ import annotations

import copy
import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

import ortmulti
from ortmulti import _core, checks
from ortmulti._runtime import log
from tests.support import onnx_models
from tests.support.processes import check_child

X = np.ones((2, 64), np.float32)
MODEL = onnx_models.matmul()


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (X[0], r"'x' has 1 dimension, and the model takes \(n, 64\): add the missing one, for example x\[None\]"),
        (X[None], r"'x' has 3 dimensions, and the model takes \(n, 64\): reshape the array"),
        (X[:, 1:], r"'x' has the size 63 in dimension 1, and the model takes \(n, 64\): give an array of that shape"),
        (X.astype(float), r"got dtype float64: convert it with array.astype\(numpy.float32\)"),
    ],
)
def test_a_wrong_array_says_what_to_do(value: Any, advice: str) -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        for run in (pool.run, pool.sessions[0].run):
            with pytest.raises(ortmulti.InvalidArgument, match=advice):
                run(None, {"x": value})


def test_the_inputs_may_come_first() -> None:
    with ortmulti.InferenceSession(MODEL, providers=["CPUExecutionProvider"]) as session:
        [expected] = assert_type(session.run(None, {"x": X}), list[NDArray[Any]])
        for outputs in (session.run({"x": X}), session.run({"x": X}, [session.get_outputs()[0].name])):
            np.testing.assert_array_equal(outputs[0], expected)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"device": "cpu"}, r"unexpected keyword argument 'device' \(did you mean 'devices'\?\)"),
        ({"providers": ["CPUExecutionProvider"]}, r"did you mean 'devices'\?"),
        ({"batchng": None}, r"did you mean 'batching'\?"),
        ({"zzz": None}, "it takes model, devices"),
        ({"batching": 8}, r"not 8: for example ortmulti.Batching\(max_size=8\)"),
        ({"priority": 1}, r"'priority': a priority is each request's: pool.run\(feed, priority=1\)"),
    ],
)
def test_a_wrong_argument_of_load_names_the_right_one(arguments: dict[str, Any], advice: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=advice):
        ortmulti.load(MODEL, **arguments)


def test_a_wrong_argument_elsewhere_names_the_right_one() -> None:
    wrong = ortmulti.InvalidArgument
    with pytest.raises(wrong, match=r"Batching\(\) got .* 'max_delay' \(did you mean 'max_delay_ms'\?\)"):
        ortmulti.Batching(8, max_delay=5)  # type: ignore[call-arg]
    with pytest.raises(wrong, match="'zzz': it takes samples"):
        ortmulti.Warmup(zzz=1)  # type: ignore[call-arg]
    with ortmulti.load(MODEL, "cpu") as pool, pytest.raises(wrong, match=r"'request_id': it takes .*, pri"):
        pool.run({"x": X}, request_id="a")
    with ortmulti.ModelRepository("cpu") as models:
        models.add("bert", MODEL)
        with pytest.raises(wrong, match=r"(?s)name is a str, not \{.*: for example models.run\('bert', feed\)"):
            models.run({"x": X})


def test_an_input_says_of_which_dtype_its_arrays_are() -> None:
    inputs = "int64[n] a, float16[n] b, string[n] c, seq(float[n]) d"
    model = onnx_models.parsed(f"({inputs}) => (int64[n] e) {{ e = Neg(a) }}")
    with ortmulti.load(model.SerializeToString(), "cpu") as pool:
        assert [value.dtype for value in pool.get_inputs()] == [np.int64, np.float16, np.dtype(object), None]


def test_their_words_for_a_delay_are_not_taken_for_others() -> None:
    for word in ("timeout", "max_wait", "max_latency_ms", "batch_wait_timeout_s"):
        with pytest.raises(ortmulti.InvalidArgument, match=rf"'{word}' \(did you mean 'max_delay_ms'\?\)"):
            ortmulti.Batching(8, **{word: 1})
    for word in ("max", "size", "max_batch"):
        with pytest.raises(ortmulti.InvalidArgument, match=rf"'{word}' \(did you mean 'max_size'\?\)"):
            ortmulti.Batching(**{word: 8})


def test_options_of_another_kind_say_how_they_are_made() -> None:
    with pytest.raises(
        ortmulti.InvalidArgument, match=r"not dict: for example options = ortmulti.SessionOptions\(\); "
    ):
        ortmulti.load(MODEL, "cpu", options={"intra_op_num_threads": 1})
    with (
        ortmulti.load(MODEL, "cpu") as pool,
        pytest.raises(ortmulti.InvalidArgument, match=r"not dict: for example options = ortmulti.RunOptions\(\); "),
    ):
        pool.run(None, {"x": X}, {})


@pytest.mark.parametrize("create", [ortmulti.load, ortmulti.create_sessions])
def test_a_failed_load_has_a_short_traceback(create: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ortmulti.Error) as short:
        create(b"\x08nonsense", "cpu")
    assert len(short.traceback) == 2  # of this test, and one of the library
    monkeypatch.setattr(checks, "whole_tracebacks", True)
    with pytest.raises(ortmulti.Error) as whole:
        create(b"\x08nonsense", "cpu")
    assert len(whole.traceback) > 4


def test_a_delay_in_seconds_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="max_delay_ms=0.005 is in milliseconds") as warned:
        ortmulti.Batching(8, 0.005)
    assert warned[0].filename == __file__
    ortmulti.Batching(8, 0.05)  # a warning would fail the test


def test_a_path_that_names_no_model_says_what_to_do(tmp_path: Path) -> None:
    version = tmp_path / "triton" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(MODEL)
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    for given, advice in (
        ("~/model.onnx", r"os.path.expanduser\(\) replaces it"),
        ("hf://organisation/model.onnx", "it is such as s3://"),
        ("file:///models/model.onnx", "give its path, '/models/model.onnx'"),
        (tmp_path / "triton", f"name the .onnx file in it, such as '{version / 'model.onnx'}'"),
        (tmp_path, "name the .onnx file in it$"),
        (tmp_path / "model.pt", r"a zip archive, as PyTorch saves models.*torch.onnx.export\(\)"),
        (str(version / "model.onnx").encode(), "these bytes are the path of a file: give it as a str"),
        (b"nonsense", "give the path of an .onnx file, or its bytes"),
    ):
        with pytest.raises(ortmulti.Error, match=advice):
            ortmulti.load(given, "cpu")


def test_a_relative_path_in_a_deleted_folder_says_so() -> None:
    check_child(
        """
        import os, tempfile
        import ortmulti

        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
        try:
            ortmulti.load("model.onnx", "cpu")
        except ortmulti.NoSuchFile as error:
            assert "'model.onnx' in a deleted working folder: give the absolute path" in str(error)
        else:
            raise AssertionError
        """
    )


def test_a_failed_run_is_no_error_of_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_models.with_weights("(float[n] x) => (float[a, b] y) { y = Reshape(x, shape) }", shape=[7, -1])
    with caplog.at_level(logging.DEBUG, "ortmulti.onnxruntime"), ortmulti.load(model, "cpu") as pool:
        with pytest.raises(ortmulti.Error, match="cannot be reshaped"):  # 1.21.1: RuntimeException, later Fail
            pool.run({"x": np.ones(5, np.float32)})
        log.flush()
    assert [r.levelname for r in caplog.records if "cannot be reshaped" in r.getMessage()] == ["DEBUG"]


@pytest.mark.skipif(_core.cuda_driver_version() is not None, reason="needs a machine without an NVIDIA driver")
def test_without_a_driver_the_cpu_comes_before_another_onnxruntime() -> None:
    with pytest.raises(ortmulti.DeviceError, match=r"no NVIDIA driver.*use devices='cpu', or 'all'"):
        ortmulti.load(MODEL, "cuda")
    with pytest.raises(ortmulti.InvalidArgument, match=r"did you mean 'CUDAExecutionProvider'\?"):
        ortmulti.InferenceSession(MODEL, providers=["CudaExecutionProvider"])


def test_a_timeout_that_looks_like_milliseconds_is_warned_of() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        for call in (pool.run, pool.submit):
            with pytest.warns(UserWarning, match="timeout=5000 is in seconds, that is 83 minutes") as warned:
                call(None, {"x": X}, timeout=5000)
            assert [each.filename for each in warned] == [__file__], "the caller's line"
        pool.run(None, {"x": X}, timeout=999)  # a warning would fail the test
        pool.run(None, {"x": X}, timeout=1e9)


def test_a_typo_in_a_configuration_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    options = ortmulti.SessionOptions()
    with caplog.at_level(logging.WARNING, "ortmulti"):
        options.add_session_config_entry("session.intra_op.allow_spining", "0")
        options.add_session_config_entry("my.operator.library.level", "0")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    [text] = caplog.messages
    assert "did you mean 'session.intra_op.allow_spinning'?" in text
    with pytest.raises(AttributeError, match="did you mean 'intra_op_num_threads'"):
        options.intra_op_threads = 2  # type: ignore[attr-defined]


def test_what_belongs_to_its_process_cannot_be_pickled() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        session = pool.sessions[0]
        x = ortmulti.OrtValue.ortvalue_from_numpy(np.zeros((1, 64), np.float32))
        values = ortmulti.OrtValueVector()
        values.push_back(x)
        future = pool.submit({"x": x})
        assert copy.copy(x).data_ptr() == x.data_ptr()
        for one, instead in (
            (pool, "load the model in each process"),
            (session, "load the model in each process"),
            (pool.sessions, "load the model in each process"),
            (future, "send its result"),
            (x, "send its array, numpy()"),
            (values, "send their arrays, numpy()"),
            (session.io_binding(), "make another one there"),
            (ortmulti.SessionIOBinding(session), "make another one there"),
            (ortmulti.RunOptions(), "make another one there"),
        ):
            for cannot in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError) as error:
                    cannot(one)
                assert str(error.value) == (
                    f"{type(one).__name__} objects cannot be copied or pickled, since they belong to their process: "
                    f"{instead}"
                )


@pytest.mark.parametrize(
    ("error", "status", "public"),
    [
        (ortmulti.InvalidArgument._of_runtime("input 'x' is wrong\nrunning '/srv/a.onnx'"), 422, "input 'x' is wrong"),
        (ortmulti.errors.InvalidType("in '/srv/my models/a.onnx': 1/2"), 422, "in 'a.onnx': 1/2"),
        (ortmulti.NotFound("no model /srv/models/b or and/or"), 404, "no model b or and/or"),
        (
            ortmulti.InvalidArgument("unknown input 'a/z': 'my models/x/m.onnx' has 'a/x'"),
            422,
            "unknown input 'a/z': 'm.onnx' has 'a/x'",
        ),
        (
            ortmulti.NotFound("Load model from /srv/my models/a b.onnx failed: x"),
            404,
            "Load model from a b.onnx failed: x",
        ),
        (
            ortmulti.NotFound("no /srv/my models/a.onnx and /b c/d.onnx_data, or and/or"),
            404,
            "no a.onnx and d.onnx_data, or and/or",
        ),
        (ortmulti.QueueFull("5 wait"), 503, "the service cannot take the request now"),
        (ortmulti.ClosedError("of /srv/a.onnx"), 503, "the service cannot take the request now"),
        (ortmulti.errors.OutOfMemory("of /srv/a.onnx"), 503, "the service cannot take the request now"),
        (ortmulti.DeadlineExceeded("after 5 s"), 504, "not answered in time"),
        (ortmulti.Fail("/srv/a.onnx"), 500, "the request failed"),
    ],
)
def test_what_a_client_is_told(error: ortmulti.Error, status: int, public: str) -> None:
    assert (error.http_status, error.public) == (status, public)


def test_a_client_with_a_wrong_request_is_told_what_is_wrong(tmp_path: Any) -> None:
    (tmp_path / "model.onnx").write_bytes(MODEL)
    with ortmulti.load(tmp_path / "model.onnx", "cpu") as pool, pytest.raises(ortmulti.Error) as caught:
        pool.run({"x": X[0]})
    assert caught.value.http_status == 422
    assert caught.value.public.startswith("input 'x' has 1 dimension")
    assert str(tmp_path) in str(caught.value)
    assert str(tmp_path) not in caught.value.public


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"max_batch_size": 8}, r"'max_batch_size': give batching=ortmulti\.Batching\(max_size=8\)"),
        ({"workers": 2}, r"\(did you mean 'sessions_per_device'\?\)"),
        ({"timeout": 1}, r"'timeout': a deadline is each request's: pool\.run\(feed, timeout=1\.0\)"),
        ({"batchin": None}, r"\(did you mean 'batching'\?\)"),
        ({"qqq": 1}, "it takes model, devices"),
    ],
)
def test_words_of_other_servers_get_their_answer(given: dict[str, Any], advice: str) -> None:
    with pytest.raises(ortmulti.errors.InvalidType, match=advice):
        ortmulti.load(MODEL, "cpu", **given)
    if "timeout" in given:
        with pytest.raises(ortmulti.errors.InvalidType, match="it takes model, devices"):
            ortmulti.create_sessions(MODEL, "cpu", **given)
