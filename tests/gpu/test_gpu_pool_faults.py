"""What goes wrong in pools on GPUs: a device stays in the pool, and nothing hangs or stays behind."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Batching
from tests.support import onnx_models
from tests.support.gpus import check_gpu_child, check_memory_returns
from tests.support.processes import nothing_leaks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("silent")]

HANG = 120.0  # seconds, after which something that is waited for will not come
LIMIT = 512 << 20


def repeated(count: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(1, np.float32), "count": np.array([count])}


def columns() -> bytes:
    """y [n, 8] = x [n, m] W: declared so that only the kernel finds an m other than 64."""
    weight = np.random.default_rng(5).standard_normal((64, 8), dtype=np.float32)
    return onnx_models.model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", "m"])],
        [("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weight, "w")],
    ).SerializeToString()


@pytest.mark.parametrize("limit", [LIMIT, None], ids=["limit", "whole memory"])
def test_a_run_without_memory_fails_alone_and_the_device_stays(limit: int | None) -> None:
    options = None if limit is None else {"gpu_mem_limit": limit}
    too_many = LIMIT if limit else 1 << 42  # four bytes each
    with ortmulti.load(onnx_models.inflated(), sessions_per_device=2, provider_options=options) as pool:
        devices = list(dict.fromkeys(pool.devices))
        for device in devices:
            futures = [
                (count, pool.submit(None, repeated(count), device=device))
                for count in [1000, too_many, 2000, too_many, 3000]
            ]
            for count, future in futures:
                if count < too_many:
                    np.testing.assert_array_equal(future.result(HANG)[0], [count])
                else:
                    with pytest.raises(ortmulti.OutOfMemory):
                        future.result(HANG)
            with pytest.raises(MemoryError):
                pool.run(None, repeated(too_many), device=device)
            np.testing.assert_array_equal(pool.run(None, repeated(7), device=device)[0], [7])
        assert [(each.done, each.failed, each.broken) for each in pool.stats().devices] == [(4, 3, "")] * len(devices)


@pytest.mark.parametrize("batching", [None, Batching(8)], ids=["alone", "joined"])
def test_a_kernel_that_fails_fails_its_request_alone(batching: Batching | None) -> None:
    with ortmulti.load(columns(), sessions_per_device=2, batching=batching) as pool:
        wide = [64 if number % 3 else 63 for number in range(300)]
        futures = [pool.submit(None, {"x": np.full((1, width), 2, np.float32)}) for width in wide]
        expected = pool.sessions[0].run(None, {"x": np.full((1, 64), 2, np.float32)})[0]
        for width, future in zip(wide, futures, strict=True):
            if width == 64:
                np.testing.assert_allclose(future.result(HANG)[0], expected, rtol=1e-2, atol=1e-2)
            else:
                with pytest.raises(ortmulti.Error, match=r"MatMul|matmul"):
                    future.result(HANG)
        stats = pool.stats().devices
        assert (sum(each.done for each in stats), sum(each.failed for each in stats)) == (200, 100)
        assert {each.broken for each in stats} == {""}


def test_a_busy_pool_may_be_closed() -> None:
    model, x = onnx_models.matmul(512, 4), {"x": np.zeros((64, 512), np.float32)}
    for cancel in (False, True):
        pool = ortmulti.load(model, sessions_per_device=2)
        futures = [pool.submit(None, x) for _ in range(500)]
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for closing in [threads.submit(pool.close, cancel) for _ in range(4)]:
                closing.result(HANG)
        assert not concurrent.futures.wait(futures, HANG).not_done
        assert cancel or not any(future.cancelled() or future.exception() for future in futures)


@pytest.mark.gpu_memory
def test_pools_give_the_memory_back() -> None:
    model, x = onnx_models.matmul(), {"x": np.zeros((4, 64), np.float32)}

    def use() -> None:
        with ortmulti.load(model, sessions_per_device=2) as pool:
            for future in [pool.submit(None, x, timeout=60) for _ in range(8)]:
                future.result(HANG)

    for _ in range(3):
        use()
    with nothing_leaks():
        check_memory_returns(use, rounds=30)


END = """
    import sys
    import numpy as np
    import ortmulti
    from tests.support import onnx_models

    pool = ortmulti.load(onnx_models.matmul(512, 4), sessions_per_device=2)
    x = {"x": np.zeros((64, 512), np.float32)}
    pool.run(None, x)
    for _ in range(1000):
        pool.submit(None, x).add_done_callback(lambda future: sys.stdout.write("c" if future.cancelled() else "d"))
"""


ASKING = """
    import threading
    begun = threading.Barrier(5)

    def ask():
        begun.wait()
        while True:
            try:
                pool.run(None, x)
            except ortmulti.ClosedError:
                return

    for _ in range(4):
        threading.Thread(target=ask, daemon=True).start()
    begun.wait()
"""


@pytest.mark.parametrize("beside", ["", ASKING], ids=["alone", "beside daemon threads"])
def test_a_process_may_end_while_its_pool_is_busy(beside: str) -> None:
    printed = check_gpu_child(END + beside, timeout=HANG)
    assert len(printed) == 1000
    assert set(printed) <= {"c", "d"}
