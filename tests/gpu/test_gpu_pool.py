"""Pools on GPUs: every GPU's answers, values on the device, and a device that breaks."""

from __future__ import annotations

import numpy as np
import pytest

import ortmulti
from ortmulti import Batching, Warmup, _core
from tests.support.gpus import MODEL, VISIBLE, feed
from tests.support.processes import run_child

pytestmark = pytest.mark.gpu


def test_every_gpu_answers() -> None:
    with ortmulti.load(MODEL, sessions_per_device=2, warmup=Warmup(samples=feed(0))) as pool:
        gpus = [f"cuda:{index}" for index in range(_core.cuda_device_count())]
        assert pool.devices == [gpu for gpu in gpus for _ in range(2)]
        expected = [pool.sessions[0].run(None, feed(number))[0] for number in range(50)]
        for device in gpus:
            for number in range(50):
                [result] = pool.run(None, feed(number), device=device)
                np.testing.assert_array_equal(result, expected[number])
        for number, [result] in enumerate(pool.map(feed(number) for number in range(50))):
            np.testing.assert_array_equal(result, expected[number])
        assert {device.device for device in pool.stats().devices} == set(pool.devices)
        assert all(device.done >= 50 for device in pool.stats().devices)


def test_values_that_lie_on_the_gpu_are_inputs() -> None:
    with ortmulti.load(MODEL, "cuda:0") as pool:
        value = ortmulti.OrtValue.ortvalue_from_numpy(feed(1)["x"], "cuda", 0)
        [expected] = pool.run(None, feed(1))
        np.testing.assert_array_equal(pool.run(None, {"x": value})[0], expected)
        future = pool.submit(None, {"x": value})
        del value
        np.testing.assert_array_equal(future.result()[0], expected)


def test_batches_on_a_gpu() -> None:
    with ortmulti.load(MODEL, "cuda:0", batching=Batching(12, max_delay_ms=1000)) as pool:
        futures = [pool.submit(None, feed(number)) for number in range(4)]
        results = [future.result()[0] for future in futures]
        assert pool.stats().devices[0].runs == 1
        for number, result in enumerate(results):
            expected = pool.sessions[0].run(None, feed(number))[0]
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)


def test_a_gpu_whose_context_is_lost_is_taken_out() -> None:
    pytest.importorskip("torch")
    child = run_child(
        """
        import logging, os, sys
        import numpy as np
        import ortmulti
        import torch
        from tests.support import onnx_models

        logging.getLogger("ortmulti.onnxruntime").setLevel(logging.CRITICAL)
        feed = {"x": np.zeros((3, 64), np.float32)}
        pool = ortmulti.load(onnx_models.matmul(), "cuda:0", 2)
        pool.submit(None, feed).result()
        try:
            torch.zeros(1, device="cuda:0")[torch.tensor([5], device="cuda:0")].cpu()
        except Exception:
            pass  # an assertion in a kernel, after which the context refuses everything
        else:
            raise AssertionError("the context is fine")
        for call in (pool.run, lambda *a: pool.submit(*a).result()):
            try:
                call(None, feed)
            except ortmulti.Error as error:
                last = error
            else:
                raise AssertionError("it ran")
        assert isinstance(last, ortmulti.DeviceError), last
        assert pool.stats().devices[0].broken
        print(pool.stats().devices[0].broken)
        sys.stdout.flush()
        os._exit(0)  # nothing can be freed there any more
        """,
        environment=VISIBLE,
    )
    assert child.returncode == 0, child.stderr
    assert "assert" in child.stdout
