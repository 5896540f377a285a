"""Pools that stage inputs and outputs, and leave outputs on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import ortmulti
from tests.support.gpus import MODEL, feed, needs_gpus

pytestmark = pytest.mark.gpu


def expected(rows: int, count: int) -> list[np.ndarray]:
    with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
        return [session.run(None, feed(number, rows))[0] for number in range(count)]


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


@pytest.mark.parametrize("rows", [1, 3, 9_000])  # 9,000: joint runs have more than 4 MiB, which threads share
def test_requests_that_are_joined_get_the_answers_of_a_session(rows: int) -> None:
    wanted = expected(rows, 8)
    with ortmulti.load(MODEL, "cuda:0", batching=ortmulti.Batching(max_size=8 * rows, max_delay_ms=1000)) as pool:
        for _ in range(30):
            futures = [pool.submit(None, feed(number, rows)) for number in range(8)]
            for number, future in enumerate(futures):
                atol = 5e-3 * np.abs(wanted[number]).max()  # numbers of 10 bits, in another order
                np.testing.assert_allclose(future.result()[0], wanted[number], rtol=0, atol=atol)
        assert pool.stats().devices[0].batch_size.mean > 7
        pool.trim()  # gives back the memory in which they were joined
        [result] = pool.run(None, feed(5, rows))
        np.testing.assert_allclose(result, wanted[5], rtol=0, atol=5e-3 * np.abs(wanted[5]).max())


def test_outputs_stay_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    wanted = expected(3, 8)
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=False) as pool:
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


def test_graphs_are_for_gpus_and_never_onnxruntimes() -> None:
    with pytest.raises(ortmulti.errors.InvalidArgument, match="cuda_graph is for GPUs"):
        ortmulti.load(MODEL, ["cuda:0", "cpu"], cuda_graph=True)
    with pytest.raises(ortmulti.errors.InvalidArgument, match="cuda_graph=True"):
        ortmulti.load(MODEL, "cuda:0", provider_options={"enable_cuda_graph": "1"})


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
