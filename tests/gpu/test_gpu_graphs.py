"""Pools that stage inputs and outputs, leave outputs on the GPU, and capture CUDA graphs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import CudaGraph, Warmup
from ortmulti.create.sample_inputs import sample_inputs
from tests.support import onnx_models
from tests.support.gpus import MODEL, check_memory_returns, feed, needs_gpus, needs_graphs

pytestmark = pytest.mark.gpu


def expected(rows: int, count: int) -> list[np.ndarray]:
    with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
        return [session.run(None, feed(number, rows))[0] for number in range(count)]


def captured(pool: ortmulti.Pool) -> int:
    return sum(span.name == "capture" for span in pool.timeline.spans)


@pytest.mark.parametrize("rows", [0, 1, 3, 40_000])  # 40,000: 10 MB, several pinned buffers
def test_staged_inputs_and_outputs_are_those_of_a_session(rows: int) -> None:
    wanted = expected(rows, 6)
    with ortmulti.load(MODEL, "cuda:0", in_flight=3) as pool:
        for _ in range(3):
            for number, [result] in enumerate(pool.map(feed(number, rows) for number in range(6))):
                np.testing.assert_array_equal(result, wanted[number])
        stats = pool.stats().devices[0]
        assert stats.sessions == 1
        assert stats.copy.count == 18


def test_outputs_stay_on_the_gpu() -> None:
    needs_graphs()
    torch = pytest.importorskip("torch")
    wanted = expected(3, 8)
    for options in ({}, {"cuda_graph": True}):
        with ortmulti.load(MODEL, "cuda:0", **options) as pool:
            futures = [pool.submit(None, feed(number), outputs="device") for number in range(8)]
            values = [future.result()[0] for future in futures]
            assert all(value.device_name() == "cuda" for value in values)
            for number, value in enumerate(values):
                np.testing.assert_array_equal(torch.from_dlpack(value).cpu().numpy(), wanted[number])
            # and are inputs of the next run, without a copy by the host
            x = ortmulti.OrtValue.ortvalue_from_numpy(feed(5)["x"], "cuda", 0)
            [y] = pool.run(None, {"x": x}, outputs="device")
            np.testing.assert_array_equal(y.numpy(), wanted[5])
        np.testing.assert_array_equal(values[7].numpy(), wanted[7])  # it outlives the pool


def test_a_new_model_with_graphs_is_verified_by_its_pool() -> None:
    needs_graphs()
    [wanted] = expected(3, 1)

    def verify(new: ortmulti.Pool) -> None:
        for _ in range(4):  # ordinary, captured, launched
            np.testing.assert_allclose(new.run(feed(0), trace=True)[0], wanted, rtol=1e-3, atol=1e-3)
        assert captured(new) >= 1

    with ortmulti.load(MODEL, "cuda:0", cuda_graph=True, in_flight=1) as pool:
        assert [(each.name, each.shape) for each in pool.get_inputs()] == [("x", ["n", 64])]
        pool.replace_model(MODEL, warmup=True, verify=verify)
        np.testing.assert_allclose(pool.run(feed(0))[0], wanted, rtol=1e-3, atol=1e-3)


def test_graphs_answer_as_ordinary_runs_do() -> None:
    needs_graphs()
    wanted = {rows: expected(rows, 20) for rows in (1, 3, 8)}
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=True, in_flight=2) as pool:
        for round_ in range(4):
            for rows, results in wanted.items():
                futures = [pool.submit(None, feed(number, rows), trace=True) for number in range(20)]
                for number, future in enumerate(futures):
                    np.testing.assert_allclose(future.result()[0], results[number], rtol=1e-3, atol=1e-3)
            if round_ == 0:
                first = captured(pool)
        assert first >= 3  # each shape's second run in a runner
        assert captured(pool) <= 6  # two runners, three shapes
        with pytest.raises(ortmulti.errors.InvalidArgument, match=r"call Pool\.run"):
            _ = pool.sessions


def test_the_least_recently_used_graph_goes() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=CudaGraph(max_shapes=2), in_flight=1) as pool:
        results = {rows: expected(rows, 1)[0] for rows in range(1, 6)}
        for _ in range(3):
            for rows, wanted in results.items():
                np.testing.assert_allclose(pool.run(None, feed(0, rows), trace=True)[0], wanted, rtol=1e-3, atol=1e-3)
        # every shape was captured, again and again: there is room for two of the five
        assert captured(pool) == 10
        before = captured(pool)
        for _ in range(5):
            pool.run(None, feed(0, 5), trace=True)
            pool.run(None, feed(0, 4), trace=True)
        assert captured(pool) == before


def test_captures_beside_creations_and_runs_of_other_pools() -> None:
    needs_graphs()
    wanted = {rows: expected(rows, 1)[0] for rows in range(1, 30)}
    stop = threading.Event()
    problems: list[BaseException] = []
    done = {"created": 0, "run": 0}

    def create() -> None:
        while not stop.is_set():
            with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
                session.run(None, feed(0))
            done["created"] += 1

    def run(pool: ortmulti.Pool) -> None:
        number = 0
        while not stop.is_set():
            pool.run(None, feed(0, 1 + number % 50))
            number += 1
            done["run"] += 1

    def guarded(function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            problems.append(error)

    with ortmulti.load(MODEL) as other:
        threads = [
            threading.Thread(target=guarded, args=(create,)),
            *(threading.Thread(target=guarded, args=(run, other)) for _ in range(2)),
        ]
        for thread in threads:
            thread.start()
        try:
            with ThreadPoolExecutor(4) as callers, ortmulti.load(MODEL, cuda_graph=CudaGraph(32)) as pool:
                for _ in range(20):
                    answers = {rows: callers.submit(pool.run, None, feed(0, rows), trace=True) for rows in wanted}
                    for rows, answer in answers.items():
                        np.testing.assert_allclose(answer.result()[0], wanted[rows], rtol=1e-3, atol=1e-3)
                made = captured(pool)
                assert all(device.failed == 0 for device in pool.stats().devices)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not problems
    assert made > 0
    assert min(done.values()) > 0


def test_warm_up_captures() -> None:
    needs_graphs()
    samples = [feed(0, rows) for rows in (1, 2)]
    with ortmulti.load(MODEL, cuda_graph=True, warmup=Warmup(samples=samples)) as pool:
        for _ in range(10):
            for sample in samples:
                pool.run(None, sample, trace=True)
        assert captured(pool) == 0


@pytest.mark.parametrize("name", ["tiny-kernels", "resnet50"])
def test_graphs_of_the_generated_models(name: str, tmp_path: Path) -> None:
    needs_graphs()
    from ortmulti.bench.models import make

    path = make(name, tmp_path)
    with ortmulti.InferenceSession(path, providers=["CUDAExecutionProvider"]) as session:
        feeds = [sample_inputs(session.get_inputs(), seed=seed) for seed in range(3)]
        wanted = [session.run(None, one) for one in feeds]
    with ortmulti.load(path, cuda_graph=True) as pool:
        for _ in range(4):
            for one, outputs in zip(feeds, wanted, strict=True):
                for got, want in zip(pool.run(None, one, trace=True), outputs, strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
        assert captured(pool) > 0


def test_captures_end_after_refusals_in_a_row() -> None:
    """NonZero waits for the number of its results, which no capture allows."""
    needs_graphs()
    with ortmulti.load(onnx_models.nonzero(), "cuda:0", cuda_graph=True, in_flight=2) as pool:
        for length in range(1, 12):
            for _ in range(4):
                [y] = pool.run(None, {"x": np.ones(length, np.float32)}, trace=True)
                np.testing.assert_array_equal(y, [range(length)])
        assert captured(pool) == 8


def test_models_that_no_graph_can_hold_are_refused() -> None:
    with pytest.raises(ortmulti.Error) as caught:
        ortmulti.load(onnx_models.control_flow(), "cuda:0", cuda_graph=True)
    print(caught.value)
    assert "graph" in str(caught.value)


def test_bad_arguments() -> None:
    needs_graphs()
    with pytest.raises(ortmulti.errors.InvalidArgument, match="cuda_graph is for GPUs"):
        ortmulti.load(MODEL, ["cuda:0", "cpu"], cuda_graph=True)
    with pytest.raises(ortmulti.errors.InvalidArgument, match="cuda_graph=True"):
        ortmulti.load(MODEL, "cuda:0", provider_options={"enable_cuda_graph": "1"})
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=True) as pool:
        with pytest.raises(ortmulti.errors.InvalidArgument, match="no run_options"):
            pool.run(None, feed(0), ortmulti.RunOptions())
        with pytest.raises(ortmulti.errors.InvalidArgument):
            pool.run(None, {"x": np.zeros((3, 63), np.float32)})
        for _ in range(3):
            np.testing.assert_allclose(pool.run(None, feed(0))[0], expected(3, 1)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.gpu_memory
def test_memory_comes_back() -> None:
    needs_graphs()

    def cycle() -> None:
        with ortmulti.load(MODEL, "cuda:0", cuda_graph=True, warmup=Warmup(samples=feed(0, 4000))) as pool:
            values = [pool.run(None, feed(1, 4000), outputs="device")[0] for _ in range(20)]
        del values

    check_memory_returns(cycle, rounds=10, most=32 << 20)


def test_requests_run_where_their_inputs_lie() -> None:
    needs_gpus(2)
    with ortmulti.load(MODEL, ["cuda:0", "cuda:1"]) as pool:
        for number in range(10):
            x = ortmulti.OrtValue.ortvalue_from_numpy(feed(number)["x"], "cuda", 1)
            [y] = pool.run(None, {"x": x}, outputs="device")
            assert y._core.device() == "cuda:1"
            other = pool.run(None, {"x": x}, device="cuda:0", outputs="device")[0]
            assert other._core.device() == "cuda:0"
            np.testing.assert_array_equal(y.numpy(), other.numpy())
        assert [device.done for device in pool.stats().devices] == [10, 10]
