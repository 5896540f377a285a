"""Pools over onnxruntime's sessions: what they have in common with every pool, and what they lack."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import LoaderOptions, LoadProgress
from ortmulti.pool.external.processes import ProcessSessions
from tests.support import onnx_models
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
    "arguments",
    [
        {"strategy": "native"},
        {"optimize": "never"},
        {"serialize": "all"},
        {"loader": LoaderOptions(reader_threads=2)},
    ],
)
def test_what_a_backend_does_not_have_is_refused(arguments: dict[str, object]) -> None:
    [name] = arguments
    with pytest.raises(ortmulti.InvalidArgument, match=f"backend='processes' has no {name}"):
        ortmulti.load(onnx_models.matmul(), "cpu", backend="processes", **arguments)


@pytest.mark.parametrize("backend", ["threads", None])
def test_an_unknown_backend_is_refused(backend: object) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=f"backend is 'core' or 'processes', not {backend!r}"):
        ortmulti.load(onnx_models.matmul(), "cpu", backend=backend)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"devices": "cuda:77"}, ortmulti.Error, "cuda"),
        ({"sessions_per_device": 0}, ortmulti.InvalidArgument, "1 or more, not 0"),
        ({"options": {}}, ortmulti.InvalidType, "SessionOptions, not dict"),
        ({"provider_options": {"use_tf32": 1}}, ortmulti.InvalidArgument, "no device is a GPU"),
        ({"progress": 3}, ortmulti.InvalidType, "function of a LoadProgress, not 3"),
        ({"max_queue": -1}, ortmulti.InvalidArgument, "max_queue"),
        ({"model": "missing.onnx"}, ortmulti.NoSuchFile, r"missing\.onnx"),
        ({"model": b"junk"}, ortmulti.InvalidProtobuf, "creating a session of a model of 4 bytes on cpu: "),
    ],
)
def test_a_load_that_fails_leaves_nothing(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    ortmulti.load(onnx_models.matmul(), "cpu").close()
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


def test_run_options_are_refused() -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool:
        for call in (pool.run, pool.submit):
            with pytest.raises(ortmulti.InvalidArgument, match="no run_options"):
                call(None, X, ortmulti.RunOptions())


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
    info = helper.make_tensor_sequence_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["s"], ["t"])],
        "sequence",
        [info("s", TensorProto.FLOAT, None)],
        [info("t", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with ortmulti.load(model.SerializeToString(), "cpu", backend="processes") as pool:
        [result] = pool.run(None, {"s": [np.ones(3, np.float32), np.zeros((2, 2), np.float32)]})
        assert [part.tolist() for part in result] == [[1, 1, 1], [[0, 0], [0, 0]]]
    with ortmulti.load(onnx_models.matmul(), "cpu", backend="processes") as pool:
        value = ortmulti.OrtValue.ortvalue_from_numpy(X["x"])
        np.testing.assert_array_equal(pool.run(None, {"x": value})[0], pool.run(None, X)[0])
        np.testing.assert_array_equal(pool.run(None, {"x": X["x"].tolist()})[0], pool.run(None, X)[0])


def test_a_closed_pool_raises() -> None:
    pool = ortmulti.load(onnx_models.matmul(), "cpu", backend="processes")
    pool.run(None, X)
    pool.close()
    pool.close(cancel_pending=True)
    for call in (pool.run, pool.submit):
        with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
            call(None, X)
    assert pool.stats().devices[0].done == 1
    assert pool.devices == ["cpu"]
    with pytest.raises(ortmulti.Error):
        pool.warmup()


def test_a_pool_that_is_dropped_frees_everything() -> None:
    ortmulti.load(onnx_models.matmul(), "cpu").close()
    with nothing_leaks():
        pool = ortmulti.load(onnx_models.matmul(), "cpu", 2, backend="processes")
        pool.submit(None, X).result()
        gone = weakref.ref(pool)
        del pool
        gc.collect()
        assert gone() is None


def test_a_pool_that_is_dropped_after_an_interrupted_close_frees_everything() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    ortmulti.load(onnx_models.matmul(), "cpu").close()
    with nothing_leaks():
        pool = ortmulti.load(onnx_models.matmul(), "cpu", 2, backend="processes")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProcessSessions, "close", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.close()
        del pool


def test_a_callback_may_close_the_pool() -> None:
    pool = ortmulti.load(onnx_models.matmul(), "cpu", backend="processes")
    closed = threading.Event()

    def close(_future: object) -> None:
        pool.close()
        closed.set()

    pool.submit(None, X).add_done_callback(close)
    assert closed.wait(60)
    pool.close()
    assert pool.closed


def test_a_deadline_ends_the_run() -> None:
    feed = {"x": np.zeros(1, np.float32), "count": np.array(onnx_models.LONG)}
    with ortmulti.load(onnx_models.endless(), "cpu", backend="processes") as pool:
        with pytest.raises(ortmulti.DeadlineExceeded, match="was not answered within 200 ms"):
            pool.run(None, feed, timeout=0.2)
        # The session is free again once the run has been ended.
        assert pool.run(None, {**feed, "count": np.array(3)})[0].tolist() == [3]
        [device] = pool.stats().devices
        assert (device.done, device.failed) == (1, 1)


def test_daemon_threads_use_a_pool_while_the_interpreter_ends() -> None:
    check_child(
        """
        import threading
        import numpy as np
        import ortmulti
        from tests.support import onnx_models

        pool = ortmulti.load(onnx_models.matmul(), "cpu", 2, backend="processes")
        x = {"x": np.zeros((2, 64), np.float32)}
        begun = threading.Barrier(5)

        def use(call):
            call(None, x)
            begun.wait()
            try:
                while True:
                    call(None, x)
            except ortmulti.ClosedError:
                pass

        for call in (pool.run, pool.run, pool.submit, lambda *feed: pool.submit(*feed).cancel()):
            threading.Thread(target=use, args=[call], daemon=True).start()
        begun.wait()
        """
    )


def test_an_endless_run_does_not_keep_the_interpreter() -> None:
    check_child(
        """
        import numpy as np
        import ortmulti
        from ortmulti.pool.external import members
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


@on_every_backend
def test_every_request_ends_once_whatever_is_done_to_it(backend: BackendName) -> None:
    """Threads that ask, cancel, set deadlines, give wrong shapes and overfill the queue, all at once."""
    ended: Counter[str] = Counter()
    wrong: list[object] = []
    lock = threading.Lock()

    def ask(seed: int, pool: ortmulti.Pool) -> None:
        random = np.random.default_rng(seed)
        for _ in range(150):
            count = int(random.integers(1, 20_000))
            shape = (2, 2) if random.random() < 0.1 else (1,)
            timeout = float(random.random() / 100) if random.random() < 0.3 else None
            feed = {"x": np.zeros(shape, np.float32), "count": np.array(count)}
            told: list[object] = []
            try:
                future = pool.submit(None, feed, timeout=timeout, when_full=0.001 if seed % 2 else "block")
            except (ortmulti.QueueFull, ortmulti.DeadlineExceeded) as error:
                with lock:
                    ended[type(error).__name__] += 1
                continue
            future.add_done_callback(told.append)
            if random.random() < 0.3:
                future.cancel()
            wait([future], 60)
            while not told:  # callbacks come after those who wait
                os.sched_yield()
            with lock:
                if future.cancelled():
                    ended["cancelled"] += 1
                elif future.exception() is not None:
                    ended["failed"] += 1
                    if not isinstance(
                        future.exception(), ortmulti.DeadlineExceeded if shape == (1,) else ortmulti.Error
                    ):
                        wrong.append(future.exception())
                else:
                    ended["done"] += 1
                    if future.result()[0].tolist() != [count]:
                        wrong.append(count)
            told_of.append((future, told))

    told_of: list[tuple[object, list[object]]] = []
    options = ortmulti.SessionOptions()
    options.log_severity_level = 4
    with ortmulti.load(onnx_models.endless(), "cpu", 2, options, max_queue=3, backend=backend) as pool:
        threads = [threading.Thread(target=ask, args=(seed, pool)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert sum(ended.values()) == 8 * 150
    assert min(ended[kind] for kind in ("done", "failed", "cancelled")) > 0
    assert all(told == [future] for future, told in told_of)
    stats = pool.stats()
    [device] = stats.devices
    assert device.done >= ended["done"]  # an answer may come between the cancellation and its request's
    assert stats.waiting == device.waiting == device.busy == 0


def test_importing_ortmulti_loads_no_backend() -> None:
    check_child(
        """
        import sys
        import ortmulti

        assert not any(name.startswith("ortmulti.pool.external") for name in sys.modules)
        assert "onnxruntime" not in sys.modules
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
