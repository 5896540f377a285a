"""Spans of requests, for OpenTelemetry.

`instrument` has each request of each pool of this process make one span, `uninstrument` ends that. This module needs
the extra: ``pip install "ortmulti[otel]"``.
"""

from __future__ import annotations

from ortmulti.errors import InvalidType, LibraryError
from ortmulti.pool import pool
from ortmulti.pool.futures import RequestTiming, Timing

try:
    from opentelemetry import trace
except ImportError as error:
    raise LibraryError(
        f'ortmulti.otel needs OpenTelemetry ({error}): pip install "ortmulti[otel]"', name="opentelemetry"
    ) from None

__all__ = ["instrument", "uninstrument"]


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Have each request make a span "ortmulti.run", a child of the caller's current one.

    It begins with the call and ends with the answer. Its attributes are ``ortmulti.model``, the file or the name in a
    repository, and ``ortmulti.version`` where `load` was given one. An answer has those of `RequestTiming`, in seconds:
    ``ortmulti.queued``, ``ortmulti.joined``, ``ortmulti.copied``, ``ortmulti.ran``, ``ortmulti.device`` and
    ``ortmulti.batch_size``. A failure has the exception, and a cancelled request the status "cancelled". Calls that
    make several runs, such as `Pool.map_rows`, make a span for each. A request whose span is recorded is run by a
    thread of the pool, also in `Pool.run`.

    Args:
        tracer_provider: Makes the tracer; default: the global one.

    Raises:
        InvalidType: It is no tracer provider.
    """
    if tracer_provider is not None and not hasattr(tracer_provider, "get_tracer"):
        raise InvalidType(f"tracer_provider is OpenTelemetry's TracerProvider, not {tracer_provider!r}")
    tracer = trace.get_tracer("ortmulti", tracer_provider=tracer_provider)

    def begin(model: str, version: str) -> _RequestSpan | None:
        span = tracer.start_span("ortmulti.run")
        return _RequestSpan(span, model, version) if span.is_recording() else None

    pool.set_spans(begin)


def uninstrument() -> None:
    """Make no more spans."""
    pool.set_spans(None)


class _RequestSpan:
    def __init__(self, span: trace.Span, model: str, version: str) -> None:
        self._span = span
        span.set_attribute("ortmulti.model", model)
        if version:
            span.set_attribute("ortmulti.version", version)

    def fail(self, error: BaseException) -> None:
        self._span.record_exception(error)
        self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()

    def end(self, _outputs: object, error: BaseException | None, cancelled: bool, timing: Timing | None) -> None:
        if cancelled:
            self._span.set_status(trace.StatusCode.ERROR, "cancelled")
        elif error is not None:
            self.fail(error)
            return
        elif timing:
            of = RequestTiming(*timing)._asdict()
            self._span.set_attributes({f"ortmulti.{name}": value for name, value in of.items()})
        self._span.end()
