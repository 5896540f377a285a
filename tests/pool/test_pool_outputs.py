"""What a pool gives and takes besides arrays: values, spans, and options that are for GPUs."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti.errors import InvalidArgument
from ortmulti.pool.members import Members
from tests.support import onnx_models

MODEL = onnx_models.matmul()
FEED = {"x": np.ones((3, 64), np.float32)}


def test_outputs_are_values_where_that_is_asked_for() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        [expected] = pool.run(None, FEED)
        answers = [
            pool.run(None, FEED, outputs="device"),
            pool.submit(None, FEED, outputs="device").result(),
            asyncio.run(pool.run_async(None, FEED, outputs="device")),
            next(pool.map([FEED], outputs="device")),
            next(pool.as_completed([FEED], outputs="device"))[1].result(),
        ]
    for [value] in answers:
        assert isinstance(value, ortmulti.OrtValue)
        assert value.device_name() == "cpu"
        np.testing.assert_array_equal(value.numpy(), expected)
        np.testing.assert_array_equal(np.from_dlpack(value), expected)


def test_a_value_does_not_lie_in_the_input() -> None:
    x = np.arange(6, dtype=np.float32)
    with ortmulti.load(onnx_models.identity(TensorProto.FLOAT), "cpu") as pool:
        [name] = [value.name for value in pool.sessions[0].get_inputs()]
        [y] = pool.run(None, {name: x}, outputs="device")
    x[:] = -1
    np.testing.assert_array_equal(y.numpy(), np.arange(6))


def test_a_traced_request_adds_its_spans() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        loaded = len(pool.timeline.spans)
        pool.run(None, FEED)
        pool.submit(None, FEED).result()
        assert len(pool.timeline.spans) == loaded
        pool.run(None, FEED, trace=True)
        pool.submit(None, FEED, trace=True).result()
        added = pool.timeline.spans[loaded:]
        assert sorted(span.name for span in added) == ["queue", "queue", "run", "run"]
        assert {span.device for span in added} == {"cpu"}
        assert all(span.start_ns <= span.end_ns for span in added)


def test_the_spans_of_a_request_carry_its_id() -> None:
    with ortmulti.load(MODEL, "cpu", batching=ortmulti.Batching(6, max_delay_ms=60_000, trust=True)) as pool:
        loaded = len(pool.timeline.spans)
        for future in [pool.submit(FEED, trace="a"), pool.submit(FEED, trace="b")]:
            future.result()
        spans = pool.timeline.spans[loaded:]
        assert sorted((span.name, span.request) for span in spans) == [("queue", "a"), ("queue", "b"), ("run", "a, b")]
        events = pool.timeline.to_chrome_trace()["traceEvents"]
        assert {"device": "cpu", "request": "a, b"} in [event["args"] for event in events]
        with pytest.raises(ortmulti.InvalidArgument, match="trace is True, False, or the request's id as a str, not 7"):
            pool.run(FEED, trace=7)


def test_the_time_of_copies_is_none_on_the_cpu() -> None:
    with ortmulti.load(MODEL, "cpu", in_flight=5, sessions_per_device=2) as pool:
        for _ in range(4):
            pool.run(None, FEED)
        [device] = pool.stats().devices
        assert (device.sessions, device.done) == (2, 4)
        assert (device.copy.count, device.copy.sum) == (4, 0.0)
        assert 'ortmulti_copy_seconds_count{device="cpu"} 4' in pool.stats().prometheus()


def test_a_map_looks_as_far_ahead_as_a_device_may_have_requests_under_way() -> None:
    with ortmulti.load(MODEL, "cpu") as pool, ortmulti.load(MODEL, "cpu", sessions_per_device=2) as two:
        members = pool._members
        assert isinstance(members, Members)
        assert (members.expected, members.most) == (1, ortmulti._core.max_in_flight_on_cpu)
        assert (two._members.expected, two._members.most) == (2, 2)
        members._targets = ["cuda:0", "cuda:1"]
        assert (members.expected, members.most) == (6, 24)


def test_bad_outputs() -> None:
    with ortmulti.load(MODEL, "cpu") as pool:
        for call in (lambda: pool.run(None, FEED, outputs="gpu"), lambda: pool.submit(None, FEED, outputs=None)):
            with pytest.raises(InvalidArgument, match="outputs is 'numpy' or 'device'"):
                call()
