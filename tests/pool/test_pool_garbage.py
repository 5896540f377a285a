"""What a pool holds goes with its last reference, without the garbage collector: a model in memory may be large."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.pool.members import Members
from tests.support import onnx_models


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # pytest keeps records, and so their errors
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


def members() -> int:
    return sum(type(each) is Members for each in gc.get_objects())


@pytest.mark.parametrize("wait", ["all", "none"])
def test_a_pool_goes_with_its_last_reference(wait: Any) -> None:
    before = members()
    with ortmulti.load(onnx_models.matmul(), "cpu", 2, warmup=True, loading=ortmulti.Loading(wait=wait)) as pool:
        pool.wait_ready()
        pool.run({"x": np.ones((1, 64), np.float32)})
        assert members() == before + 1
    del pool
    assert members() == before


def fail(_: object) -> None:
    raise RuntimeError("for this test")


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": b"no model"},
        {"loading": ortmulti.Loading(progress=fail)},
        {"loading": ortmulti.Loading(require="any"), "model": b"no model"},
        {"warmup": ortmulti.Warmup(samples={"x": np.zeros(1)})},
        {"batching": ortmulti.Batching(8, pad={"x": 0})},
    ],
)
def test_a_failed_load_leaves_nothing(arguments: dict[str, Any]) -> None:
    before = members()
    with pytest.raises((ortmulti.Error, RuntimeError)):
        ortmulti.load(**{"model": onnx_models.matmul(), "devices": "cpu", **arguments})
    assert members() == before
