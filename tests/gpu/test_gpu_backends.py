"""Pools over onnxruntime's sessions on GPUs."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import ortmulti
from ortmulti import Batching, Warmup
from tests.support import onnx_models
from tests.support.backends import worker_pids
from tests.support.gpus import MODEL, feed
from tests.support.processes import nothing_leaks

pytestmark = pytest.mark.gpu


def test_every_gpu_answers_as_the_core() -> None:
    tf32_off = {"use_tf32": 0}
    with ortmulti.load(MODEL, "cuda:0", provider_options=tf32_off) as core:
        expected = [core.run(None, feed(number))[0] for number in range(30)]
    count = ortmulti._core.cuda_device_count()
    with ortmulti.load(MODEL, provider_options=tf32_off, warmup=Warmup(samples=feed(0)), backend="processes") as pool:
        assert pool.devices == [f"cuda:{index}" for index in range(count)]
        for device in pool.devices:
            for number in range(30):
                [result] = pool.run(None, feed(number), device=device)
                np.testing.assert_allclose(result, expected[number], rtol=1e-4, atol=1e-4)
        for number, [result] in enumerate(pool.map(feed(number) for number in range(30))):
            np.testing.assert_allclose(result, expected[number], rtol=1e-4, atol=1e-4)
        assert [device.device for device in pool.stats().devices] == pool.devices
        assert all(device.done >= 30 for device in pool.stats().devices)


def test_batches_and_values_on_the_device() -> None:
    with ortmulti.load(MODEL, "cuda:0", backend="processes", batching=Batching(12, max_delay_ms=60_000)) as pool:
        futures = [pool.submit(None, feed(number)) for number in range(3)]
        value = ortmulti.OrtValue.ortvalue_from_numpy(feed(3)["x"], "cuda", 0)
        futures.append(pool.submit(None, {"x": value}))
        results = [future.result()[0] for future in futures]
        assert pool.stats().devices[0].runs == 1
    with ortmulti.load(MODEL, "cpu") as usual:
        for number, result in enumerate(results):
            np.testing.assert_allclose(result, usual.run(None, feed(number))[0], rtol=1e-2, atol=1e-2)


def test_a_gpu_without_the_memory_is_named() -> None:
    ortmulti.load(MODEL, "cuda:0", backend="processes").close()
    large = onnx_models.matmul(2048, 4)
    with nothing_leaks(), pytest.raises(ortmulti.Error, match="on cuda:0: "):
        ortmulti.load(large, "cuda:0", provider_options={"gpu_mem_limit": 1 << 20}, backend="processes")


def test_a_worker_that_is_killed_comes_back_on_its_gpu() -> None:
    with ortmulti.load(MODEL, backend="processes") as pool:
        expected = [pool.run(None, feed(1), device=device)[0] for device in pool.devices]
        for pid in worker_pids(pool):
            os.kill(pid, signal.SIGKILL)
        while sum(device.restarts for device in pool.stats().devices) < len(pool.devices):
            pass
        for device, wanted in zip(pool.devices, expected, strict=True):
            np.testing.assert_array_equal(pool.run(None, feed(1), device=device)[0], wanted)
