"""Requests of different lengths in one run, on GPUs."""

from __future__ import annotations

import time

import numpy as np
import pytest

import ortmulti
from ortmulti import Batching, CudaGraph
from tests.support.pools import HANG
from tests.support.texts import PAD, encoder, expected, feed

pytestmark = pytest.mark.gpu


def graph_runs(pool: ortmulti.Pool) -> int:
    return sum(device.graph_runs for device in pool.stats().devices)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"cuda_graph": CudaGraph(32)}, id="graphs"),
        pytest.param({"cuda_graph": "auto", "in_flight": 2}, id="auto"),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_answers_are_those_of_single_runs(options: dict, side: str) -> None:
    batching = Batching(8, 1.0, sizes=(1, 4, 8), pad=PAD, pad_side=side, lengths=8)
    feeds = [feed(1 + i % 2, int(n), i) for i, n in enumerate(np.random.default_rng(0).integers(1, 40, 200))]
    with ortmulti.load(encoder(), "cuda", batching=batching, **options) as pool:
        wants_graphs = isinstance(options.get("cuda_graph"), CudaGraph)
        times, end = 0, time.monotonic() + HANG
        while times < 2 or (wants_graphs and not graph_runs(pool) and time.monotonic() < end):  # made in the background
            times += 1
            for one, answer in zip(feeds, pool.map(None, feeds), strict=True):
                for found, right in zip(answer, expected(one), strict=True):
                    np.testing.assert_allclose(found, right, rtol=1e-4 if wants_graphs else 1e-6)
        devices = pool.stats().devices
        assert sum(device.runs for device in devices) < times * len(feeds)
        assert all(device.waste < 1 for device in devices)
        assert graph_runs(pool) > 0 or not wants_graphs


def test_shapes_of_any_length_get_no_graph() -> None:
    """They come again by chance: a graph would be made for nothing."""
    with ortmulti.load(encoder(), "cuda:0", batching=Batching(8, pad=PAD)) as pool:
        for _ in range(200):
            pool.run(["pooled"], feed(1, 16))
        [device] = pool.stats().devices
        assert (device.graphs, device.graph_runs, device.why_no_graph) == (0, 0, "")
