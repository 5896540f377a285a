"""The configuration of a pool: batching of requests, capture of CUDA graphs, warm-up of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortmulti._runtime import checks
from ortmulti.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    pass

__all__ = ["Batching", "CudaGraph", "Warmup"]


@dataclass(frozen=True)
class Batching:
    """How a pool joins requests into one run.

    Requests are joined whose inputs have the same names and types, and the same dimensions but for ``axis``'s; each
    gets its part of the outputs. What cannot be joined, such as a request with ``run_options`` or without inputs, runs
    alone. If a joint run fails, each of its requests is run alone, so that only those to blame fail. The model must
    treat the parts of a batch independently, and its outputs must have ``axis`` too: if one has not, the requests are
    run alone, those like them are not joined any more, and a warning (logger ``ortmulti``) and `PoolStats` say so.

    Attributes:
        max_size: The largest size of a joint run along ``axis``; 2 or more.
        max_delay_ms: How long the first request of a joint run waits for others, in milliseconds, from its arrival;
            default 0: only what waits already is joined. A request that arrives during a run has often waited longer
            when the run ends. With a delay the session then also waits for the clients that it has just answered, if
            they usually ask again at once: at most a tenth of a run's average time, and not beyond ``max_delay_ms``
            without a new request.
        axis: The dimension of all inputs and outputs along which they are joined; default 0.
        sizes: The sizes that runs have along ``axis``, ascending, the last one ``max_size``: what is smaller is padded
            to the next one with copies of its last row, whose outputs are dropped. Default empty: any size. For models
            whose runs cost more whenever the shape changes, such as convolutions on GPUs, for which cuDNN makes new
            plans then.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be.
    """

    max_size: int
    max_delay_ms: float = 0.0
    axis: int = 0
    sizes: Sequence[int] = ()

    def __post_init__(self) -> None:
        checks.integer("max_size", self.max_size, 2, checks.SIZE_MAX)
        checks.integer("axis", self.axis, 0)
        checks.number("max_delay_ms", self.max_delay_ms)
        given = checks.sequence("sizes", self.sizes, "ints")
        sizes = tuple(checks.integer("each of sizes", size, 1, checks.SIZE_MAX) for size in given)
        if sizes and (list(sizes) != sorted(set(sizes)) or sizes[-1] != self.max_size):
            raise InvalidArgument(f"sizes ascend, and the last one is max_size, {self.max_size}; not {sizes}")
        object.__setattr__(self, "sizes", sizes)

    def padded(self, size: int) -> int:
        """The size with which requests of this size together run."""
        return next((larger for larger in self.sizes if larger >= size), size)


@dataclass(frozen=True)
class CudaGraph:
    """How a pool captures runs as CUDA graphs, which are launched at once instead of kernel by kernel.

    The first run of a shape runs ordinarily, the second is captured, later ones replay the graph. While one is captured
    nothing else of this package uses CUDA in the process; what other libraries do meanwhile can make a capture fail,
    and then that shape runs ordinarily. The model must run on the GPU as a whole, without control flow.

    Attributes:
        max_shapes: Of how many shapes of the inputs each request in flight keeps a graph, with memory for its inputs
            and outputs; default 8. Beyond that the least recently used graph is freed.

    Raises:
        InvalidArgument, InvalidType: ``max_shapes`` is no int of 1 or more.
    """

    max_shapes: int = 8

    def __post_init__(self) -> None:
        checks.integer("max_shapes", self.max_shapes, 1)


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
            checks.integer("runs", self.runs, 1)
        if self.samples is not None and self.dimensions is not None:
            raise InvalidArgument("a warm-up has samples or dimensions, not both")
        for name, value in (("samples", self.samples), ("dimensions", self.dimensions)):
            if not all(isinstance(one, Mapping) for one in _several(value)):
                raise InvalidType(f"{name} is a dict, or several, not {value!r}")

    def feeds(self, session: Any) -> list[Mapping[str, Any]]:
        """The inputs of each run, in their order; the caller checks that the session takes them."""
        if self.samples is not None:
            return _several(self.samples)
        from ortmulti._create.sample_inputs import sample_inputs  # which `import ortmulti` shall not load

        sizes = [{}] if self.dimensions is None else _several(self.dimensions)
        return [sample_inputs(session.get_inputs(), dimensions=dimensions) for dimensions in sizes]

    def runs_with(self, max_graphs: int) -> int:
        """How often each is run; with CUDA graphs, of so many shapes, the second run captures."""
        return self.runs or (2 if max_graphs else 1)


def _several(value: object) -> list[Any]:
    if value is None or isinstance(value, Mapping):
        return [] if value is None else [value]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return [value]
    return list(value)
