"""Pools of several GPUs whose devices come one by one, fail, go and return, and whose model is replaced."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Warmup, _core
from ortmulti.bench import models
from tests.support import onnx_models
from tests.support.gpus import MODEL, check_gpu_child, feed, needs_gpus
from tests.support.pools import HANG

pytestmark = pytest.mark.gpu


def states(pool: ortmulti.Pool) -> dict[str, str]:
    return {device.device: device.state for device in pool.stats().devices}


def devices() -> list[str]:
    return [f"cuda:{index}" for index in range(_core.cuda_device_count())]


@pytest.mark.parametrize("wait", ["all", "first", "none"])
@pytest.mark.parametrize("shared", [True, False])
def test_every_gpu_answers_whoever_comes_first(tmp_path: Path, wait: Any, shared: bool) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    strategy: Any = "shared" if shared else "native"
    with ortmulti.load(
        path, loading=ortmulti.Loading(wait=wait, strategy=strategy, optimize="never"), warmup=Warmup(samples=feed(0))
    ) as pool:
        futures = {device: pool.submit(None, feed(1), device=device) for device in devices()}
        answers = [future.result(300)[0] for future in futures.values()]
        assert pool.wait_ready() == pool.ready == devices()
        for answer in answers:
            np.testing.assert_array_equal(answer, answers[0])
        warm = [span.device for span in pool.timeline.spans if span.name == "warm up"]
        assert set(warm) == set(devices())  # one for each request that may be in flight
        for device in pool.stats().devices:
            assert device.state == "ready"
            assert device.memory_used is not None
            assert device.memory_total is not None
            assert 0 < device.memory_used < device.memory_total
            assert f'ortmulti_memory_used_bytes{{device="{device.device}"}}' in pool.stats().prometheus()


def test_the_first_gpu_is_warm_before_the_others_contexts_are_made(tmp_path: Path) -> None:
    """With strategy "native" nothing is held back: any may be the first."""
    needs_gpus(2)
    path, _ = onnx_models.write_external(tmp_path)
    code = """
        import sys
        import ortmulti

        loading = ortmulti.Loading(wait="first", strategy="shared", optimize="never")
        with ortmulti.load(sys.argv[1], [1, 0], warmup=True, loading=loading) as pool:
            assert pool.ready[0] == "cuda:1", pool.ready
            pool.wait_ready()
            spans = pool.timeline.spans
        warm = max(span.end_ns for span in spans if span.name == "warm up" and span.device == "cuda:1")
        context = {span.device: span for span in spans if span.name == "context"}
        assert context["cuda:1"].end_ns < warm
        assert context["cuda:0"].start_ns >= warm, pool.timeline.table()
    """
    check_gpu_child(code, path)


def test_requests_wait_before_the_driver_has_started() -> None:
    check_gpu_child(
        """
        import numpy as np
        import ortmulti
        from tests.support import onnx_models

        pool = ortmulti.load(onnx_models.matmul(), loading=ortmulti.Loading(wait="none"), warmup=True)
        feed = {"x": np.ones((3, 64), np.float32)}
        known = pool.submit(None, feed, device="cuda:0")
        unknown = pool.submit(None, feed, device="cuda:99")
        assert pool.submit(None, feed).result()[0].shape == known.result()[0].shape
        try:
            unknown.result()
        except ortmulti.InvalidArgument as error:
            assert "no session on cuda:99" in str(error)
        else:
            raise AssertionError("it ran")
        pool.wait_ready()
        pool.close()
        """,
    )


@pytest.mark.parametrize("wait", ["none", "first"])
def test_the_interpreter_may_end_while_gpus_start(wait: str) -> None:
    check_gpu_child(
        """
        import sys
        import ortmulti
        from tests.support import onnx_models

        pool = ortmulti.load(onnx_models.matmul(), loading=ortmulti.Loading(wait=sys.argv[1]), warmup=True)
        """,
        wait,
    )


def test_a_gpu_that_does_not_exist_is_an_error_in_any_case() -> None:
    for require in ("all", "any"):
        with pytest.raises(ortmulti.DeviceError, match="no cuda:99"):
            ortmulti.load(MODEL, ["cuda:0", "cuda:99"], loading=ortmulti.Loading(require=require))


@pytest.mark.gpu_memory
def test_a_gpu_without_memory_is_left_out_and_added_later(
    tmp_path: Path, torch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first GPU's memory is taken by others: the weights are read for another one."""
    needs_gpus(2)
    path = models.make("matmul", tmp_path, megabytes=512)
    ortmulti.load(path, 1, loading=ortmulti.Loading(optimize="never")).close()
    free, _ = _core.cuda_memory(0)
    taken = torch.empty(free - (200 << 20), dtype=torch.uint8, device="cuda:0")
    with pytest.raises(ortmulti.OutOfMemory, match="cuda:0"):
        ortmulti.load(path, [0, 1], loading=ortmulti.Loading(optimize="never"))
    with ortmulti.load(path, [0, 1], loading=ortmulti.Loading(optimize="never", require="any"), warmup=True) as pool:
        assert states(pool) == {"cuda:0": "failed", "cuda:1": "ready"}
        [record] = [record for record in caplog.records if record.name == "ortmulti" and record.levelname == "WARNING"]
        assert "cuda:0" in record.getMessage()
        sample = models.sample_inputs(path)
        [expected] = pool.run(None, sample)
        with pytest.raises(ortmulti.DeviceError, match="cuda:0"):
            pool.run(None, sample, device=0)
        with pytest.raises(ortmulti.OutOfMemory):
            pool.add_devices(0)
        assert states(pool) == {"cuda:0": "failed", "cuda:1": "ready"}
        del taken
        torch.cuda.empty_cache()
        pool.add_devices("all")
        np.testing.assert_array_equal(pool.run(None, sample, device=0)[0], expected)


@pytest.mark.gpu_memory
def test_a_gpu_goes_and_its_memory_returns(tmp_path: Path) -> None:
    needs_gpus(2)
    path = models.make("matmul", tmp_path, megabytes=256)
    with ortmulti.load(path, [0, 1], 2, loading=ortmulti.Loading(optimize="never"), warmup=True) as pool:
        sample = models.sample_inputs(path)
        [expected] = pool.run(None, sample, device=1)
        for _ in range(2):
            before, _ = _core.cuda_memory(1)
            futures = [pool.submit(None, sample) for _ in range(20)]
            pool.remove_devices(1)
            after, _ = _core.cuda_memory(1)
            assert after - before > 200e6
            assert states(pool) == {"cuda:0": "ready", "cuda:1": "removed"}
            assert pool.devices == ["cuda:0"] * 2
            with pytest.raises(ortmulti.DeviceError, match="removed"):
                pool.run(None, sample, device=1)
            with pytest.raises(ortmulti.InvalidArgument, match="no device left"):
                pool.remove_devices(0)
            for future in futures:
                np.testing.assert_array_equal(future.result()[0], expected)
            pool.add_devices("cuda:1")
            assert pool.devices == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
            np.testing.assert_array_equal(pool.run(None, sample, device=1)[0], expected)


@pytest.mark.gpu_memory
def test_a_model_is_replaced_on_every_gpu_and_its_memory_returns(tmp_path: Path) -> None:
    path = models.make("matmul", tmp_path, megabytes=256)
    small, _ = onnx_models.write_external(tmp_path)
    with ortmulti.load(path, loading=ortmulti.Loading(optimize="never"), warmup=True) as pool:
        before = [_core.cuda_memory(index)[0] for index in range(len(devices()))]
        pool.replace_model(small, same_interface=False)
        end = time.monotonic() + HANG
        gained = [0]
        while min(gained) < 200e6:  # nothing waits for the threads that load kernels beside the load
            assert time.monotonic() < end, gained
            gained = [_core.cuda_memory(index)[0] - then for index, then in enumerate(before)]
        for device in devices():
            assert pool.run(None, feed(0), device=device)[0].shape[0] == 3
        assert sorted(pool.ready) == sorted(devices())


@pytest.mark.gpu_memory
def test_two_models_that_do_not_fit_are_said(tmp_path: Path, torch: Any) -> None:
    path = models.make("matmul", tmp_path, megabytes=512)
    with ortmulti.load(path, 0, loading=ortmulti.Loading(optimize="never"), warmup=True) as pool:
        free, _ = _core.cuda_memory(0)
        taken = torch.empty(free - (200 << 20), dtype=torch.uint8, device="cuda:0")
        with pytest.raises(ortmulti.OutOfMemory, match="both must fit"):
            pool.replace_model(path)
        del taken
        torch.cuda.empty_cache()
        pool.run(None, models.sample_inputs(path))
