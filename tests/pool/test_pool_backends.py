"""Pools over onnxruntime's sessions: what they have in common with every pool, and what they lack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti import LoadProgress
from ortmulti.pool.processes import members
from tests.support import onnx_models, values
from tests.support.backends import BackendName, on_every_backend
from tests.support.processes import check_child, nothing_leaks

X = {"x": np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)}


def expected(model: bytes | Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    with onnx_models.cpu_session(model) as session:
        return session.run(None, feed)


def test_a_model_with_weights_beside_it(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    news: list[LoadProgress] = []
    with ortmulti.load(path, ["cpu", "cpu"], backend="processes", progress=news.append) as pool:
        assert pool.devices == ["cpu", "cpu"]
        assert repr(pool) == f"<Pool of '{path}' on cpu, cpu>"
        np.testing.assert_array_equal(pool.run(None, X)[0], expected(path, X)[0])
        names = [span.name for span in pool.timeline.spans]
        assert names.count("create session") == 2
        assert "import onnxruntime" in names
    assert pool.closed
    assert repr(pool).endswith(", closed>")
    assert [(each.sessions_ready, each.sessions_total, each.device) for each in news] == [(1, 2, "cpu"), (2, 2, "cpu")]


@on_every_backend
def test_a_pool_says_what_its_model_takes_and_gives(backend: BackendName) -> None:
    proto = onnx_models.matmul_proto()
    proto.model_version, proto.doc_string = 7, "two matrices"
    proto.metadata_props.add(key="author", value="tests")
    with ortmulti.load(proto.SerializeToString(), "cpu", backend=backend) as pool:
        [x], [y], metadata = pool.get_inputs(), pool.get_outputs(), pool.get_modelmeta()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["n", 64])
    assert (y.name, y.type, y.shape) == ("y", "tensor(float)", ["n", 64])
    assert (metadata.version, metadata.description, metadata.graph_name) == (7, "two matrices", "graph")
    assert (metadata.producer_name, metadata.domain, metadata.graph_description) == ("ortmulti tests", "", "")
    assert metadata.custom_metadata_map == {"author": "tests"}
    assert pool.get_inputs()[0].name == "x"  # after `close`


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"devices": "cuda:77"}, ortmulti.Error, "cuda"),
        ({"model": "missing.onnx"}, ortmulti.NoSuchFile, r"missing\.onnx"),
        ({"model": b"junk"}, ortmulti.InvalidProtobuf, "creating a session of a model of 4 bytes on cpu: "),
    ],
)
def test_a_load_that_fails_leaves_nothing(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with nothing_leaks(), pytest.raises(error, match=message):
        ortmulti.load(**{"model": onnx_models.matmul(), "devices": "cpu", "backend": "processes", **arguments})


def test_options_that_onnxruntime_cannot_be_given_are_refused() -> None:
    options = ortmulti.SessionOptions()
    options.add_initializer("weight0", ortmulti.OrtValue.ortvalue_from_numpy(np.zeros((64, 64), np.float32)))
    with pytest.raises(ortmulti.NotImplemented, match="add_initializer"):
        ortmulti.load(onnx_models.matmul(), "cpu", options=options, backend="processes")


def test_session_options_reach_the_sessions(tmp_path: Path) -> None:
    options = ortmulti.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.intra_op_num_threads = 1
    with ortmulti.load(onnx_models.matmul(), "cpu", options=options, backend="processes"):
        assert (tmp_path / "optimized.onnx").exists()


def test_what_a_pool_in_processes_does_not_have_is_refused() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool:
        for call, error, message in (
            (lambda: pool.run(None, X, ortmulti.RunOptions()), ortmulti.InvalidArgument, "no run_options"),
            (lambda: pool.submit(None, X, ortmulti.RunOptions()), ortmulti.InvalidArgument, "no run_options"),
            (lambda: pool.run(None, X, outputs="device"), ortmulti.InvalidArgument, "outputs='device'"),
            (lambda: pool.submit(None, X, trace=True), ortmulti.InvalidArgument, "trace=True"),
            (lambda: pool.add_devices("cuda:0"), ortmulti.NotImplemented, "keeps the devices"),
            (pool.trim, ortmulti.NotImplemented, "gives no memory back"),
            (lambda: pool.replace_model(onnx_models.matmul()), ortmulti.NotImplemented, "keeps the devices"),
            (lambda: pool.wait_ready(devices="cuda:5"), ortmulti.InvalidArgument, "no session on cuda:5"),
        ):
            with pytest.raises(error, match=message):
                call()
        assert pool.wait_ready() == pool.ready == ["cpu"]


def test_errors_are_those_of_the_core() -> None:
    wrong: list[dict[object, object]] = [
        {"x": np.zeros((2, 2, 2), np.float32)},
        {"x": np.zeros((2, 5), np.float32)},
        {"x": np.zeros((2, 64), np.int64)},
        {"x": None},
        {"x": "text"},
        {"z": X["x"]},
        {3: X["x"]},
        {},
    ]
    with (
        ortmulti.load(onnx_models.matmul(), "cpu") as core,
        ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool,
    ):
        for names, feed in [*((None, feed) for feed in wrong), (["q"], X), ("y", X), ([1], X), (None, 3)]:
            with pytest.raises(ortmulti.Error) as usual:
                core.run(names, feed)
            with pytest.raises(ortmulti.Error) as found:
                pool.run(names, feed)
            assert type(found.value) is type(usual.value)
            # The core's text has the same parts, and says besides what to do.
            assert all(part in str(usual.value) for part in str(found.value).split(" on cpu: "))


@pytest.mark.parametrize("element_type", list(onnx_models.NUMERIC))
def test_every_type_comes_back(element_type: int) -> None:
    dtype = onnx_models.NUMERIC[element_type]
    with ortmulti.load(onnx_models.identity(element_type), "cpu", backend="processes") as pool:
        for array in (
            np.arange(24).reshape(2, 3, 4).astype(dtype),
            np.array(1, dtype),
            np.zeros((3, 0, 2), dtype),
            np.arange(24).reshape(4, 6).astype(dtype).T,
            np.arange(4).astype(dtype.newbyteorder(">")),
        ):
            [result] = pool.run(None, {"x": array})
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, array)
            result[...] = 0  # it is the caller's


def test_strings_sequences_and_values() -> None:
    with ortmulti.load(onnx_models.identity(TensorProto.STRING), "cpu", backend="processes") as pool:
        for strings in (np.array(["a", "bcd", ""]), np.array([["a", "\N{SNOWMAN}" * 100_000]], object)):
            [result] = pool.run(None, {"x": strings})
            assert result.tolist() == strings.tolist()
    sequences = values.same(values.sequence(values.tensor(TensorProto.FLOAT)))
    with ortmulti.load(sequences, "cpu", backend="processes") as pool:
        [result] = pool.run(None, {"x": [np.ones(3, np.float32), np.zeros((2, 2), np.float32)]})
        assert [part.tolist() for part in result] == [[1, 1, 1], [[0, 0], [0, 0]]]
    with ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool:
        value = ortmulti.OrtValue.ortvalue_from_numpy(X["x"])
        np.testing.assert_array_equal(pool.run(None, {"x": value})[0], pool.run(None, X)[0])
        np.testing.assert_array_equal(pool.run(None, {"x": X["x"].tolist()})[0], pool.run(None, X)[0])


def test_a_pool_that_is_dropped_after_an_interrupted_close_frees_everything() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with nothing_leaks():
        pool = ortmulti.load(onnx_models.matmul(), "cpu", 2, backend="processes")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(members, "close_sessions", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.close()
        del pool


def test_an_endless_run_does_not_keep_the_interpreter() -> None:
    check_child(
        """
        import numpy as np
        import ortmulti
        from ortmulti.pool.processes import members
        from tests.support import onnx_models

        members._PATIENCE_AT_EXIT = 0.2
        options = ortmulti.SessionOptions()
        options.log_severity_level = 4  # what a run that is ended logs
        pool = ortmulti.load(onnx_models.endless(), "cpu", options=options, backend="processes")
        future = pool.submit(None, {"x": np.zeros(1, np.float32), "count": np.array(2**62)})
        while pool.stats().devices[0].busy == 0:
            pass
        ortmulti.load(onnx_models.matmul(), "cpu")  # whose exit handler comes first
        """
    )


def test_without_the_onnxruntime_package_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('there is none')")
    code = """
        import sys
        import ortmulti
        from tests.support import onnx_models

        sys.path.insert(0, sys.argv[1])
        try:
            ortmulti.load(onnx_models.matmul(), "cpu", backend="processes")
        except ortmulti.LibraryError as error:
            print(error)
    """
    assert "onnxruntime cannot be imported (there is none)" in check_child(code, tmp_path)
