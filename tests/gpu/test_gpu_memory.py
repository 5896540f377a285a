"""GPUs that are full, and memory that comes back. GPUs are filled in child interpreters."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti._runtime import background
from ortmulti.pool import graphs
from tests.support import onnx_models
from tests.support.gpus import (
    MODEL,
    check_gpu_child,
    check_memory_returns,
    cuda_session,
    feed,
    free,
    needs_gpus,
    needs_graphs,
)
from tests.support.pools import HANG

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_memory]


def test_a_memory_limit_below_the_model_is_out_of_memory(large_model: Path) -> None:
    before = free()
    with pytest.raises(ortmulti.OutOfMemory, match=r"cuda:0.*free of") as caught:
        cuda_session(large_model, gpu_mem_limit=64 << 20)
    assert isinstance(caught.value, MemoryError)
    assert free() > before - (256 << 20)


COMMON = """
    import logging, sys
    import numpy as np
    import ortmulti
    from tests.support.gpus import fill

    logging.getLogger("ortmulti.onnxruntime").setLevel(logging.CRITICAL + 1)
    large, small = sys.argv[1], bytes.fromhex(sys.argv[2])

    def failing(create):
        try:
            create()
        except ortmulti.OutOfMemory as error:
            print(isinstance(error, MemoryError), " free of " in str(error), "cuda:" in str(error))
        else:
            print("no error")

    def width(session):
        return session.get_inputs()[0].shape[1]
"""


def test_the_memory_of_a_pool_does_not_grow_with_its_callers(large_model: Path) -> None:
    # The CUDA provider keeps handles for each thread that ran a session and lives: 72 MiB on an H200.
    with ortmulti.load(large_model, 0, in_flight=1) as pool:
        feed = {"x": np.zeros((1, int(pool.get_inputs()[0].shape[1] or 0)), np.float32)}
        for _ in range(3):
            pool.run(feed)
        before = free()
        all_ran = threading.Barrier(8)

        def caller(_: int) -> None:
            pool.run(feed)
            all_ran.wait()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(caller, range(8)))
            assert before - free() < (100 << 20)


def test_who_has_the_memory_of_a_gpu_adds_up_to_what_is_used(large_model: Path) -> None:
    before = ortmulti.gpu_memory(0)
    size = sum(file.stat().st_size for file in large_model.parent.iterdir())
    with ortmulti.load(large_model, 0, in_flight=1, loading=ortmulti.Loading(strategy="shared")) as pool:
        given = {"x": np.zeros((1, int(pool.get_inputs()[0].shape[1] or 0)), np.float32)}
        pool.run(given)
        now = ortmulti.gpu_memory(0)
        assert abs(now.used - (before.total - free())) < 64 << 20
        assert size * 0.95 < now.weights - before.weights < size * 1.05
        assert now.arenas > before.arenas
        value = ortmulti.OrtValue.ortvalue_from_numpy(np.zeros(50 << 20, np.uint8), "cuda", 0)
        assert ortmulti.gpu_memory(0).buffers - now.buffers >= 50 << 20
        del value
        if now.beside is not None and now.others is not None:  # NVML tells the processes apart
            assert sum(size for _, size in now.uses()) == pytest.approx(now.used, rel=0.05)
            assert 100 << 20 < now.beside < 4 << 30
        text = ortmulti.metrics({"pool": pool})
        assert f'ortmulti_gpu_memory_bytes{{device="cuda:0",use="weights"}} {now.weights}' in text
        pool.sleep("weights")
        assert ortmulti.gpu_memory(0).weights == before.weights
    after = ortmulti.gpu_memory(0)
    assert (after.weights, after.arenas) == (before.weights, before.arenas)


def test_the_memory_of_a_session_is_that_of_eight_callers(large_model: Path) -> None:
    with cuda_session(large_model) as session:
        given = {"x": np.zeros((1, int(session.get_inputs()[0].shape[1] or 0)), np.float32)}
        wanted = session.run(None, given)[0]
        before = free()

        def taken_by(callers: int) -> int:
            begin = threading.Barrier(callers)

            def caller(_: int) -> None:
                begin.wait()
                for _ in range(20):
                    np.testing.assert_array_equal(session.run(None, given)[0], wanted)

            with ThreadPoolExecutor(callers) as threads:
                list(threads.map(caller, range(callers)))
                return before - free()

        assert taken_by(64) < taken_by(8) + (64 << 20)


def test_a_full_device_is_out_of_memory_and_gives_all_back(large_model: Path) -> None:
    printed = check_gpu_child(
        COMMON
        + """
    # Kernels and libraries are loaded first: what they take is not the session's.
    with ortmulti.create_sessions(large, 0) as [session]:
        session.run(None, {"x": np.zeros((1, width(session)), np.float32)})
    release = fill(0, 300 << 20)
    before = ortmulti._core.cuda_memory(0)[0]
    failing(lambda: ortmulti.create_sessions(large, 0))
    failing(lambda: ortmulti.create_sessions(large, ["cpu", 0]))
    failing(lambda: ortmulti.InferenceSession(large, providers=["CUDAExecutionProvider"]))
    print(before - ortmulti._core.cuda_memory(0)[0] < 32 << 20)
    with ortmulti.create_sessions(small, 0) as [session]:
        print(session.run(None, {"x": np.ones((1, 64), np.float32)})[0].shape)
        failing(lambda: session.run(None, {"x": np.ones((10**7, 64), np.float32)}))
        print(session.run(None, {"x": np.ones((1, 64), np.float32)})[0].shape)
    release()
    with ortmulti.create_sessions(large, 0) as [session]:
        print(session.run(None, {"x": np.zeros((1, width(session)), np.float32)})[0].any())
    """,
        large_model,
        onnx_models.matmul().hex(),
    )
    full = "True True True"
    assert printed.splitlines() == [full, full, full, "True", "(1, 64)", full, "(1, 64)", "False"]


def test_one_of_two_gpus_is_full(large_model: Path) -> None:
    needs_gpus(2)
    printed = check_gpu_child(
        COMMON
        + """
    with ortmulti.create_sessions(large, [0, 1]) as sessions:
        for session in sessions:
            session.run(None, {"x": np.zeros((1, width(session)), np.float32)})
    fill(1, 300 << 20)
    before = ortmulti._core.cuda_memory(0)[0]
    try:
        ortmulti.create_sessions(large, [0, 1])
    except ortmulti.OutOfMemory as error:
        print("cuda:1" in str(error) and " free of " in str(error))
    print(before - ortmulti._core.cuda_memory(0)[0] < 32 << 20)
    """,
        large_model,
        onnx_models.matmul().hex(),
    )
    assert printed.splitlines() == ["True", "True"]


def test_sessions_give_their_gpu_memory_back(large_model: Path) -> None:
    def cycle() -> None:
        with ortmulti.create_sessions(large_model, 0) as [session]:
            width = session.get_inputs()[0].shape[1]
            session.run(None, {"x": np.zeros((1, int(width or 0)), np.float32)})

    check_memory_returns(cycle)


def test_a_session_takes_no_more_memory_than_onnxruntimes(large_model: Path) -> None:
    """After the first run, in a process that has loaded the kernels; also in a pool of one that runs one by one.

    An arena that doubles ends with 706 or 1,154 MiB on an H100, onnxruntime's too, by the order of allocations.
    """
    printed = check_gpu_child(
        """
    import sys
    import numpy as np
    import onnxruntime
    import ortmulti

    model, cuda = sys.argv[1], ["CUDAExecutionProvider"]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    ways = {
        "onnxruntime": lambda: onnxruntime.InferenceSession(model, providers=cuda),
        "session": lambda: ortmulti.InferenceSession(model, providers=cuda),
        "pool": lambda: ortmulti.load(model, 0, in_flight=1),
    }
    taken = {}
    for name in ("session", *ways):
        before = ortmulti._core.cuda_memory(0)[0]
        session = ways[name]()
        width = session.get_inputs()[0].shape[1]
        session.run(None, {"x": np.zeros((1, width), np.float32)})
        taken[name] = before - ortmulti._core.cuda_memory(0)[0] >> 20
        while name == "pool" and taken[name] > taken["onnxruntime"] + 4:  # a load frees what it preloaded with
            taken[name] = before - ortmulti._core.cuda_memory(0)[0] >> 20
        del session
    print(taken["onnxruntime"], taken["session"], taken["pool"])
    """,
        large_model,
    )
    theirs, session, pool = map(int, printed.split())
    assert session <= theirs + 448 + 4
    assert pool <= theirs + 4


def test_an_arena_is_shrunk_between_runs() -> None:
    """It keeps what a large run took, through small ones, until a run is told to shrink it."""
    large, small = np.ones(1 << 26, np.float32), np.ones(10, np.float32)  # 256 MiB
    options = ortmulti.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:0")
    with cuda_session(onnx_models.chain(), arena_extend_strategy="kSameAsRequested") as session:

        def taken(x: np.ndarray, run_options: ortmulti.RunOptions | None = None) -> int:
            [y] = session.run(None, {"x": x}, run_options)
            assert y == 0
            return before - free()

        before = 0
        before -= taken(small)  # kernels and libraries are loaded: what they take is not the arena's
        assert taken(large) >= 256 << 20
        assert taken(small) >= 256 << 20
        assert taken(small, options) < 64 << 20
        assert taken(large) >= 256 << 20


def test_an_arena_of_another_gpu_is_refused() -> None:
    options = ortmulti.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "gpu:63")
    with cuda_session(onnx_models.chain()) as session:
        with pytest.raises(ortmulti.InvalidArgument, match="gpu:63"):
            session.run(None, {"x": np.ones(10, np.float32)}, options)
        assert session.run(None, {"x": np.ones(10, np.float32)})[0] == 0


def test_different_models_are_created_at_once_on_a_gpu() -> None:
    """By threads that begin together, each another model; unloaded and reloaded, with the memory given back."""
    images = np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32)
    models: list[tuple[bytes, dict[str, np.ndarray]]] = [
        (onnx_models.matmul(64), {"x": np.ones((2, 64), np.float32)}),
        (onnx_models.matmul(256, 3, seed=1), {"x": np.ones((2, 256), np.float32)}),
        (onnx_models.convolution(), {"x": images}),
        (onnx_models.add_mul(4), {name: np.ones((3, 4), np.float32) for name in ("a", "b")}),
    ]
    exact = {"use_tf32": 0}
    begin = threading.Barrier(len(models))

    def work(number: int) -> list[list[np.ndarray]]:
        model, feed = models[number]
        begin.wait()
        results = []
        with cuda_session(model, **exact) as session:
            results.append(session.run(None, feed))
        with ortmulti.create_sessions(model, 0, 2, provider_options=exact) as sessions:
            results.extend(session.run(None, feed) for session in sessions)
        with ortmulti.load(model, devices=0, provider_options=exact) as pool:
            results.extend(session.run(None, feed) for session in pool.sessions)
        return results

    def cycle() -> None:
        with ThreadPoolExecutor(len(models)) as executor:
            for (model, feed), results in zip(models, executor.map(work, range(len(models))), strict=True):
                expected = onnx_models.cpu_session(model).run(None, feed)
                for outputs in results:
                    for output, right in zip(outputs, expected, strict=True):
                        np.testing.assert_allclose(output, right, rtol=1e-2, atol=1e-3)

    check_memory_returns(cycle)


MANY_ROWS = 1_000_000  # 256 MB in, as much out


@pytest.mark.parametrize("cuda_graph", ["auto", False])
def test_what_a_large_request_took_comes_back(cuda_graph: Any) -> None:
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=cuda_graph, loading=ortmulti.Loading(trim_after=0.5)) as pool:
        for trims in (1, 2):  # what the first large run loads stays
            for _ in range(1000):
                pool.run(feed(0))
            background.wait()  # the graphs are made
            before = free()
            pool.run({"x": np.zeros((MANY_ROWS, 64), np.float32)})
            assert free() < before - (256 << 20)
            end = time.monotonic() + HANG
            while pool.stats().devices[0].trims < trims:
                assert time.monotonic() < end
                pool.run(feed(0))
        while free() < before - (16 << 20):
            assert time.monotonic() < end
            pool.run(feed(0))


def test_a_session_with_graphs_keeps_what_they_use(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_graphs()
    monkeypatch.setattr(graphs, "waits_for_gpus", str)  # other tests of the process may have used PyTorch
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=True) as pool:
        rows = 100_000  # its arena is more than one region
        pool.run(feed(0, rows))
        background.wait()
        wanted = [pool.run(feed(number, rows))[0] for number in (0, 1)]
        assert sum(device.graph_runs for device in pool.stats().devices) > 0
        pool.trim()
        with ortmulti.load(
            MODEL, "cuda:0", cuda_graph=False, loading=ortmulti.Loading(trim_after=None)
        ) as other:  # takes what is free
            for number in range(4):
                other.run({"x": np.full((rows, 64), np.float32("nan"))})
                np.testing.assert_array_equal(pool.run(feed(number % 2, rows))[0], wanted[number % 2])
                pool.trim()
