"""`load`, the pool that it returns, its progress and its options."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ortmulti
from ortmulti import CudaGraph, Loading, LoadProgress
from tests.support import gpus, onnx_models
from tests.support.processes import check_child, nothing_leaks

X = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


def expected(model: bytes | Path) -> np.ndarray:
    with onnx_models.cpu_session(model) as session:
        return session.run(None, {"x": X})[0]


def test_a_pool_holds_ready_sessions() -> None:
    model = onnx_models.matmul()
    with ortmulti.load(model, "cpu", 3) as pool:
        assert isinstance(pool.sessions, Sequence)
        assert [session.device for session in pool.sessions] == pool.devices == ["cpu"] * 3
        for session in pool.sessions:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected(model))
        assert not pool.closed
        assert "create session" in [span.name for span in pool.timeline.spans]


def test_a_closed_pools_sessions_raise() -> None:
    pool = ortmulti.load(onnx_models.matmul(), "cpu", 2)
    assert repr(pool) == f"<Pool of {pool.sessions[0]._core.model()} on cpu, cpu>"
    with pool:
        pass
    assert pool.closed
    assert repr(pool).endswith(" on cpu, cpu, closed>")
    for session in pool.sessions:
        with pytest.raises(ortmulti.ClosedError):
            session.run(None, {"x": X})
    pool.close()
    assert pool.devices == ["cpu", "cpu"]


def test_a_pool_is_closed_by_an_error_in_its_block() -> None:
    with pytest.raises(KeyError), ortmulti.load(onnx_models.matmul(), "cpu") as pool:
        raise KeyError
    assert pool.closed


def test_one_session_of_a_pool_may_be_closed_or_outlive_it() -> None:
    model = onnx_models.matmul()
    pool = ortmulti.load(model, "cpu", 2)
    pool.sessions[0].close()
    assert not pool.closed
    kept = pool.sessions[1]
    del pool
    gc.collect()
    np.testing.assert_array_equal(kept.run(None, {"x": X})[0], expected(model))
    kept.close()


def test_devices_may_be_any_iterable(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    with ortmulti.load(path, (device for device in ("cpu", "cpu"))) as pool:
        assert pool.devices == ["cpu", "cpu"]


@pytest.mark.parametrize("wait", ["all", "none"])
def test_progress_tells_of_every_session(wait: Literal["all", "none"]) -> None:
    news: list[LoadProgress] = []
    threads: set[int] = set()

    def progress(each: LoadProgress) -> None:
        news.append(each)
        threads.add(threading.get_ident())

    with ortmulti.load(onnx_models.matmul(), "cpu", 3, loading=ortmulti.Loading(wait=wait, progress=progress)) as pool:
        pool.wait_ready()
    of_sessions = [(each.sessions_ready, each.sessions_total, each.device) for each in news if each.device]
    assert of_sessions == [(1, 3, "cpu"), (2, 3, "cpu"), (3, 3, "cpu")]
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(news))
    assert all(0 <= each.bytes_loaded <= each.bytes_total for each in news)
    assert (threads == {threading.get_ident()}) == (wait == "all")


def test_an_error_in_progress_ends_the_load() -> None:
    def progress(news: LoadProgress) -> None:
        raise LookupError(f"after {news.sessions_ready}")

    with nothing_leaks(), pytest.raises(LookupError, match="after 1"):
        ortmulti.load(onnx_models.matmul(), "cpu", 2, loading=ortmulti.Loading(progress=progress))


def test_a_rate_is_bytes_over_seconds() -> None:
    assert LoadProgress(3_000_000_000, 4_000_000_000, 1.5, 0, 1).gb_per_second == 2
    assert LoadProgress(0, 0, 0.0, 0, 1).gb_per_second == 0


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        (ortmulti.Batching, "max_batch", r"\(did you mean 'max_size'\?\)"),
        (ortmulti.Batching, "max_batch_size", r"\(did you mean 'max_size'\?\)"),
        (ortmulti.Batching, "batch_size", r"\(did you mean 'max_size'\?\)"),
        (ortmulti.Batching, "batch_timeout", r"\(did you mean 'max_delay_ms'\?\)"),
        (ortmulti.Batching, "preferred_batch_size", r"\(did you mean 'sizes'\?\)"),
        (partial(ortmulti.load, "model.onnx"), "max_batch", r"give batching=ortmulti\.Batching\(max_size=8\)"),
        (partial(ortmulti.load, "model.onnx"), "num_sessions", r"\(did you mean 'sessions_per_device'\?\)"),
    ],
)
def test_an_argument_by_another_librarys_word_gets_the_right_one(function: Any, name: str, hint: str) -> None:
    with pytest.raises(ortmulti.InvalidType, match=f"unexpected keyword argument '{name}'.*{hint}"):
        function(**{name: 8})


def test_a_pytorch_module_as_a_model_is_told_how_to_export_it() -> None:
    class Linear:  # what a module has
        def state_dict(self) -> dict[str, Any]:
            return {}

        def forward(self) -> None: ...

    with pytest.raises(ortmulti.InvalidType, match=r"a path or bytes, not Linear: export it with torch\.onnx\.export"):
        ortmulti.load(Linear(), "cpu")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"devices": 1.5}, ortmulti.InvalidType, "devices is 'all'"),
        ({"devices": []}, ortmulti.InvalidArgument, "devices is empty"),
        ({"devices": [], "loading": {"wait": "none"}}, ortmulti.InvalidArgument, "devices is empty"),
        ({"sessions_per_device": 0}, ortmulti.InvalidArgument, "1 or more, not 0"),
        ({"options": {}}, ortmulti.InvalidType, "SessionOptions, not dict"),
        ({"provider_options": {"use_tf32": 1}}, ortmulti.InvalidArgument, "no device is a GPU"),
        ({"loading": {"strategy": "best"}}, ortmulti.InvalidArgument, "'shared' or 'native', not 'best'"),
        ({"loading": {"optimize": True}}, ortmulti.InvalidArgument, "'auto', 'never' or 'offline', not True"),
        ({"loading": {"serialize": "some"}}, ortmulti.InvalidArgument, "'some'"),
        ({"loading": {"progress": 3}}, ortmulti.InvalidType, "function of a LoadProgress, not 3"),
        ({"loading": {"reader_threads": 0}}, ortmulti.InvalidArgument, "reader_threads is 1 to 1024, not 0"),
        ({"loading": {"wiat": "none"}}, ortmulti.InvalidType, "did you mean 'wait'"),
        (
            {"loading": "first"},
            ortmulti.InvalidType,
            r'ortmulti.Loading, not .first.: .*Loading\(strategy="native"\)',
        ),
        *(
            ({name: 1}, ortmulti.InvalidType, rf"'{name}': give loading=ortmulti\.Loading\({example}=.*\)$")
            for name, example in [("wait", "wait"), ("tuning", "tuning"), ("loader", "reader_threads")]
        ),
        *(({"max_queue": wrong}, ortmulti.InvalidArgument, "max_queue") for wrong in (-1, 1.5, "2", True)),
        ({"batching": {"max_size": 4}}, ortmulti.InvalidType, "batching"),
        ({"warmup": 3}, ortmulti.InvalidType, "Warmup or a bool, not 3"),
        ({"loading": {"wait": "some"}}, ortmulti.InvalidArgument, "wait is 'all', 'first' or 'none', not 'some'"),
        ({"loading": {"require": 1}}, ortmulti.InvalidArgument, "require is 'all' or 'any', not 1"),
        ({"backend": "core"}, ortmulti.InvalidType, "'backend': leave it out; .*run a process for each GPU"),
        ({"cuda_graph": True}, ortmulti.InvalidArgument, "cuda_graph is for GPUs"),
        ({"cuda_graph": 8}, ortmulti.InvalidType, "CudaGraph, a bool or 'auto'"),
        ({"devices": 0, "provider_options": {"enable_cuda_graph": True}}, ortmulti.InvalidArgument, "cuda_graph=True"),
        ({"in_flight": 0}, ortmulti.InvalidArgument, "in_flight is 1 or more"),
        ({"in_flight": "3"}, ortmulti.InvalidArgument, "or 'auto', not '3'"),
        ({"in_flight": True}, ortmulti.InvalidType, "in_flight is an int"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    def load(loading: Any = None, **others: Any) -> ortmulti.Pool:
        given = Loading(**loading) if isinstance(loading, dict) else loading
        return ortmulti.load(onnx_models.matmul(), **{"devices": "cpu", "loading": given, **others})

    with pytest.raises(error, match=message):
        load(**arguments)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [(0, ortmulti.InvalidArgument, "max_shapes is 1 or more"), ("2", ortmulti.InvalidType, "max_shapes is an int")],
)
def test_a_number_of_graphs_is_checked(wrong: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        CudaGraph(wrong)


def test_why_sessions_are_separate_is_in_the_timeline(tmp_path: Path) -> None:
    with ortmulti.load(onnx_models.matmul(), "cpu", 2) as pool:
        assert pool.timeline.not_shared == []
    options = ortmulti.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    with ortmulti.load(onnx_models.matmul(), "cpu", 2, options) as pool:
        [reason] = pool.timeline.not_shared
        assert "profile" in reason
        assert f"not shared: {reason}" in pool.timeline.table()
    with ortmulti.load(onnx_models.matmul(), "cpu", 2, loading=ortmulti.Loading(strategy="native")) as pool:
        assert [span.name for span in pool.timeline.spans].count("create session") == 2
        assert pool.timeline.not_shared == []
        for session in pool.sessions:
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected(onnx_models.matmul()))


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ortmulti.NoSuchFile, match=r"no model file .*missing\.onnx"):
        ortmulti.load(tmp_path / "missing.onnx", "cpu")


def test_how_weights_are_read_is_checked() -> None:
    given = Loading(reader_threads=np.int64(4), chunk_bytes=1 << 20, buffers_per_thread=2)
    assert given == Loading(reader_threads=4, chunk_bytes=1 << 20, buffers_per_thread=2)
    assert type(given.reader_threads) is int
    assert Loading() == Loading(reader_threads=None, chunk_bytes=None, buffers_per_thread=None)
    for name, wrong in [("reader_threads", 1025), ("chunk_bytes", 100), ("buffers_per_thread", -1)]:
        with pytest.raises(ortmulti.InvalidArgument, match=f"{name} is .* to .*, not {wrong}"):
            Loading(**{name: wrong})
    for value in (True, 1.5, "4"):
        with pytest.raises(ortmulti.InvalidType, match="reader_threads is an int"):
            Loading(reader_threads=value)


@pytest.mark.parametrize(
    "of_pools",
    [
        {"wait": "none"},
        {"require": "any"},
        {"progress": print},
        {"version": "2"},
        {"trim_after": None},
        {"when_late": "reject"},
    ],
)
def test_sessions_without_a_pool_are_made_without_what_pools_need(of_pools: dict[str, Any]) -> None:
    with pytest.raises(
        ortmulti.InvalidArgument, match=f"{next(iter(of_pools))} of a Loading is for load, which makes a pool"
    ):
        ortmulti.create_sessions(onnx_models.matmul(), "cpu", loading=Loading(**of_pools))


def test_without_nvidia_hardware_the_default_is_the_cpu(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    code = """
        import sys
        import ortmulti

        with ortmulti.load(sys.argv[1]) as pool:
            print(pool.devices)
    """
    assert check_child(code, path) == "['cpu']\n"


@pytest.mark.gpu
def test_gpus_and_the_cpu_in_one_pool(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    with ortmulti.load(path, ["cpu", 0], provider_options={"use_tf32": 0}) as pool, gpus.cuda_session(path) as usual:
        assert pool.devices == ["cpu", "cuda:0"]
        np.testing.assert_array_equal(pool.sessions[0].run(None, {"x": X})[0], expected(path))
        assert usual.run(None, {"x": X})[0].shape == pool.sessions[1].run(None, {"x": X})[0].shape


@pytest.mark.gpu
def test_progress_tells_of_the_bytes(tmp_path: Path) -> None:
    path, data = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(1024, 8))
    news: list[LoadProgress] = []
    reading = {"reader_threads": 2, "chunk_bytes": 1 << 20, "buffers_per_thread": 2}
    with ortmulti.load(path, 0, 2, loading=ortmulti.Loading(optimize="never", progress=news.append, **reading)) as pool:
        assert pool.timeline.not_shared == []
    assert news[-1].sessions_ready == news[-1].sessions_total == 2
    assert news[-1].bytes_loaded == news[-1].bytes_total == data.stat().st_size
    assert news[-1].gb_per_second > 0
    assert [each.bytes_loaded for each in news] == sorted(each.bytes_loaded for each in news)
    assert {each.sessions_total for each in news} == {2}


@pytest.mark.gpu
def test_an_error_in_progress_ends_a_load_of_weights(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(1024, 8))

    def progress(news: LoadProgress) -> None:
        raise LookupError(f"{news.bytes_total}")

    ortmulti.load(path, 0, loading=ortmulti.Loading(optimize="never")).close()
    with nothing_leaks(), pytest.raises(LookupError):
        ortmulti.load(path, 0, 2, loading=ortmulti.Loading(optimize="never", progress=progress))
