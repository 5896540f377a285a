"""Spans of requests, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.pools import HANG, check_row, row, rows

trace = pytest.importorskip("opentelemetry.sdk.trace", reason='needs pip install "ortmulti[test]"')
from opentelemetry.sdk.trace import export, sampling  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    ortmulti.otel.instrument(provider)
    yield exporter
    ortmulti.otel.uninstrument()


def test_each_request_makes_a_span_with_its_timing(pool: ortmulti.Pool, spans: InMemorySpanExporter) -> None:
    ways: tuple[Callable[[], list[list[np.ndarray]]], ...] = (
        lambda: [pool.run(None, row(3))],
        lambda: [pool.submit(None, row(3)).result(HANG)],
        lambda: [asyncio.run(pool.run_async(None, row(3)))],
        lambda: list(pool.map([row(3)])),
        lambda: [future.result(HANG) for _, future in pool.as_completed([row(3)])],
    )
    for way in ways:
        spans.clear()
        with trace.TracerProvider().get_tracer("caller").start_as_current_span("caller") as caller:
            [answer] = way()
        check_row(answer, 3)
        while not spans.get_finished_spans():  # another thread ends it
            pass
        [span] = spans.get_finished_spans()
        assert (span.name, span.parent and span.parent.span_id) == ("ortmulti.run", caller.get_span_context().span_id)
        assert span.attributes is not None
        assert span.attributes["ortmulti.model"] == pool._members.model.strip("'")
        assert {name.removeprefix("ortmulti.") for name in span.attributes} == {
            "model",
            *ortmulti.RequestTiming._fields,
        }
        assert span.attributes["ortmulti.batch_size"] == 1


def test_failures_are_recorded(pool: ortmulti.Pool, spans: InMemorySpanExporter) -> None:
    with pytest.raises(ortmulti.Error):
        pool.run(None, {"nothing": np.zeros(1, np.float32)})
    while not spans.get_finished_spans():
        pass
    [span] = spans.get_finished_spans()
    assert not span.status.is_ok
    assert span.events[0].attributes is not None
    assert "InvalidArgument" in str(span.events[0].attributes["exception.type"])


def test_what_is_not_sampled_is_answered_as_without(pool: ortmulti.Pool, spans: InMemorySpanExporter) -> None:
    provider = trace.TracerProvider(sampler=sampling.ALWAYS_OFF)
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    ortmulti.otel.instrument(provider)
    check_row(pool.run(None, row(3)), 3)
    ortmulti.otel.uninstrument()
    check_row(pool.run(None, row(3)), 3)
    assert spans.get_finished_spans() == ()


def test_a_span_names_the_model_of_a_repository_and_its_version(spans: InMemorySpanExporter) -> None:
    with ortmulti.ModelRepository("cpu", host_memory="1GiB") as models:
        models.add("small", onnx_models.matmul(), version="7")
        models.run("small", {"x": np.ones((1, 64), np.float32)})
        while not spans.get_finished_spans():
            pass
    attributes = spans.get_finished_spans()[-1].attributes
    assert attributes is not None
    assert (attributes["ortmulti.model"], attributes["ortmulti.version"]) == ("small", "7")


def test_what_is_no_provider_is_refused() -> None:
    with pytest.raises(ortmulti.InvalidType, match="tracer_provider is OpenTelemetry's TracerProvider, not 'x'"):
        ortmulti.otel.instrument("x")  # type: ignore[arg-type, unused-ignore]


def test_requests_that_a_repository_refuses_leave_those_before_their_spans(spans: InMemorySpanExporter) -> None:
    def feeds() -> Iterator[dict[str, np.ndarray]]:
        yield row(3)
        models.unload("rows")
        yield row(4)

    with ortmulti.ModelRepository("cpu") as models:
        models.add("rows", rows(), warmup=False)
        answers = []
        with pytest.raises(ortmulti.NotLoaded):
            answers.extend(models.map("rows", feeds(), lookahead=8))
    check_row(answers[0], 3)
    while not spans.get_finished_spans():
        pass
    [span] = spans.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["ortmulti.model"] == "rows"
