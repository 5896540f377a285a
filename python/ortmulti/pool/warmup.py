"""First runs, which load kernels and search algorithms, before anybody waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ortmulti import _core
from ortmulti._runtime.checks import integer
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.session import InferenceSession
from ortmulti.timeline import Timeline

__all__ = ["Warmup"]


class _HasInputs(Protocol):
    def get_inputs(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Warmup:
    """What sessions run before a pool's first request.

    Attributes:
        samples: The inputs of a run, or several: one of each shape that is to be warm. Default: made from what the
            model declares, as `ortmulti.tools.models.sample_inputs` does.
        dimensions: Sizes of the model's dynamic dimensions by their names, for samples that are made; one mapping, or
            several.
        runs: How often each is run; default 1, or 2 where CUDA graphs are captured, which the second run does. With
            CUDA, ONNX Runtime searches algorithms in the first.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be, or both ``samples`` and ``dimensions``.
    """

    samples: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    dimensions: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    runs: int | None = None

    def __post_init__(self) -> None:
        if self.runs is not None:
            integer("runs", self.runs, 1)
        if self.samples is not None and self.dimensions is not None:
            raise InvalidArgument("a warm-up has samples or dimensions, not both")
        for name, value in (("samples", self.samples), ("dimensions", self.dimensions)):
            if not all(isinstance(one, Mapping) for one in _several(value)):
                raise InvalidType(f"{name} is a dict, or several, not {value!r}")

    def feeds(self, session: _HasInputs) -> list[Mapping[str, Any]]:
        """The inputs of each run, in their order; the caller checks that the session takes them."""
        if self.samples is not None:
            return _several(self.samples)
        from ortmulti._create.sample_inputs import sample_inputs  # which `import ortmulti` shall not load

        sizes = [{}] if self.dimensions is None else _several(self.dimensions)
        return [sample_inputs(session.get_inputs(), dimensions=dimensions) for dimensions in sizes]


def _several(value: object) -> list[Any]:
    if value is None or isinstance(value, Mapping):
        return [] if value is None else [value]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return [value]
    return list(value)


def warm_up(core: _core.Pool, session: InferenceSession, warmup: Warmup, timeline: Timeline, runs: int) -> None:
    """Runs all sessions at the same time, as often at once as the pool does; each adds a span to the timeline.

    Args:
        core: The pool's.
        session: One of its sessions.
        warmup: What is run.
        timeline: Gets the spans.
        runs: How often, unless ``warmup`` says so.

    Raises:
        As `InferenceSession.run`, and as `sample_inputs`; the first one's that failed, when all have ended.
    """
    core.warm_up(warmup.feeds(session), warmup.runs or runs, timeline._core)
