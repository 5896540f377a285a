"""The configuration of a pool: batching of requests, capture of CUDA graphs, warm-up of sessions."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ortmulti import _core, checks
from ortmulti._runtime import background
from ortmulti._runtime.threads import Task
from ortmulti.errors import InvalidArgument, InvalidType

__all__ = ["Batching", "CudaGraph", "Serving", "Warmup", "batching_argument"]


@checks.known_fields
@dataclass(frozen=True)
class Batching:
    """How a pool joins requests into one run.

    The pool joins requests whose inputs have the same names, types and dimensions, except along ``axis``. Each request
    receives its part of the outputs. Requests with ``run_options``, or without inputs, run alone. If a joint run fails,
    its halves run, and so on, so that only the request with the fault fails.

    The model must leave the size of ``axis`` open in each input, or fix it in all of them to the only one of ``sizes``.
    Inputs must be tensors of numbers, and no scalars. Otherwise `load` raises `InvalidArgument`.

    Each output must have a row for each row of the inputs along ``axis``, which depends on that row alone. `load` finds
    that out: from the model's graph, and where the graph does not show it by some runs of random inputs. Requests for
    an output without such rows run alone; the logger ``ortmulti`` warns and `PoolStats` says so. A few requests of
    joint runs are run alone, too, and compared: docs/how-to/batching.md, "Audits".

    Attributes:
        max_size: The largest size of a joint run along ``axis``, such as its rows; 2 or more. A larger request runs
            alone.
        max_delay_ms: How long the first request of a joint run waits for others at most, in milliseconds from its
            arrival. Default 0. After eight delays in a row that brought nobody else, it waits while fewer rows are
            there than the session has just answered, beside those that waited meanwhile. On an idle session it waits
            while fewer are there than in the largest of its last four runs. One delay in 256 runs is whole all the
            same. With and without a delay, a session that becomes free waits for the next requests of those whom it
            has answered, if they usually come at once: at most a tenth of an average run, divided by the runs that may
            be under way, and at most ``max_delay_ms``, if that is not 0, without a new request.
        axis: The dimension of all inputs and outputs along which requests are joined; default 0.
        sizes: The sizes that runs may have along ``axis``, ascending; the last one is ``max_size``. Default empty: any
            size. A smaller batch is padded to the next size with copies of its last row; their outputs are dropped. Use
            it for models whose runs cost more when the shape changes, such as convolutions on GPUs.
        check: Run random requests alone and together when the first session is ready, as `check_batching` does. `load`
            raises `InvalidArgument` if an output has no rows, or if the answers differ by more than rounding. Default
            False; with ``pad`` always.
        pad: Inputs that may be padded, and with which value each: ``{"input_ids": 0, "attention_mask": 0}``. A number
            stands for all inputs that have the length: ``pad=0``. Then requests of different lengths run together: each
            input is filled up to the longest, and outputs with the length are cut to each request's own. `load` proves
            it: random requests of different lengths must get the answers that they get alone. Default None: only
            requests of one shape run together.
        along: The dimension that has the length: its name in the model, or its place. Default: the only name of open
            dimensions, besides ``axis``, of the inputs in ``pad``, or of all.
        mask: The input, if any, that says which elements are real: 1, and 0 where it is padded. A request may leave it
            out; then the pool makes it. Its dimensions are ``axis`` and the length. Default None.
        pad_side: ``"right"``, the default: elements are added behind the real ones. ``"left"``: before them.
        lengths: The lengths that runs may have, ascending, so that their shapes come again, for CUDA graphs. A run is
            filled up to the next one, a request that runs alone, too; longer ones keep their own. An int: each multiple
            of it, which should divide the longest length of the model. Default: any.
        max_tokens: The most elements, rows times length, of a run of several requests; with ``packed`` those of the
            requests alone. Default None: any number.
        max_waste: The share of a run's elements that may be padding since requests were joined, 0.0 to 1.0; without
            what ``lengths`` adds. Default 0.5.
        packed: Give True for a model that leaves padding out of its computation, as ONNX Runtime's operators
            RemovePadding and PackedAttention do on GPUs. It gets padded inputs all the same, and needs ``mask``.
            Requests are then joined as they come, whatever their lengths, and ``lengths`` and ``max_waste`` have no
            meaning. Its runs get no CUDA graph, as they wait for the GPU within. Default False.
        trust: Give True if you know that each output has a row for each row of the inputs, which depends on that row
            alone. Then `load` tries nothing, and all requests are joined. Default False.

    A pool with ``pad`` measures how long runs take by their number of elements. From then on a request joins others
    where the padding costs less than a run of its own: on CPUs that is little padding, on GPUs much. Each run has the
    request whose turn it is, and those of the most similar lengths among the next ``8 * max_size`` that wait. With
    ``packed`` it has those that come next, if they fit.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be.
    """

    max_size: int
    max_delay_ms: float = 0.0
    axis: int = 0
    sizes: Sequence[int] = ()
    check: bool = False
    pad: Mapping[str, float] | float | None = None
    along: str | int | None = None
    mask: str | None = None
    pad_side: Literal["right", "left"] = "right"
    lengths: Sequence[int] | int = ()
    max_tokens: int | None = None
    max_waste: float = 0.5
    packed: bool = False
    trust: bool = False

    def __post_init__(self) -> None:
        checks.integer("max_size", self.max_size, 2, checks.SIZE_MAX)
        checks.integer("axis", self.axis, 0)
        delay = checks.number("max_delay_ms", self.max_delay_ms)
        if 0 < delay < 0.05:
            warnings.warn(
                f"max_delay_ms={delay:g} is in milliseconds: if it is in seconds, take 1000 times as many", stacklevel=4
            )
        checks.boolean("check", self.check)
        checks.boolean("trust", self.trust)
        if self.check and self.trust:
            raise InvalidArgument("check=True tries the model, and trust=True says not to: give one of them")
        given = checks.sequence("sizes", self.sizes, "ints")
        sizes = tuple(checks.integer("each of sizes", size, 1, checks.SIZE_MAX) for size in given)
        if sizes and (list(sizes) != sorted(set(sizes)) or sizes[-1] != self.max_size):
            raise InvalidArgument(f"sizes ascend, and the last one is max_size, {self.max_size}; not {sizes}")
        object.__setattr__(self, "sizes", sizes)
        self._check_padding()

    def _check_padding(self) -> None:
        if self.pad is None:
            for name in ("along", "mask", "lengths", "max_tokens"):
                if getattr(self, name) not in (None, ()):
                    raise InvalidArgument(f"{name} is for requests that are padded: give pad={{'input_ids': 0}} too")
        elif isinstance(self.pad, int | float) and not isinstance(self.pad, bool):
            pass
        elif not isinstance(self.pad, Mapping) or not self.pad:
            raise InvalidType(
                f"pad is a number for all inputs, or a dict of names and values: {{'input_ids': 0}}; not {self.pad!r}"
            )
        else:
            for name, value in self.pad.items():
                checks.instance("each key of pad", name, str)
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise InvalidType(f"pad[{name!r}] is a number, not {value!r}")
            object.__setattr__(self, "pad", dict(self.pad))
        if isinstance(self.along, bool) or not isinstance(self.along, str | int | None):
            raise InvalidType(f"along is the name of a dimension or its place, not {self.along!r}")
        if isinstance(self.along, int):
            checks.integer("along", self.along, 0)
            if self.along == self.axis:
                raise InvalidArgument(f"along is another dimension than axis, {self.axis}")
        checks.instance("mask", self.mask, str, optional=True)
        checks.choice("pad_side", self.pad_side, ("right", "left"))
        if isinstance(self.lengths, int):
            checks.integer("lengths", self.lengths, 1, checks.SIZE_MAX)
        else:
            given = checks.sequence("lengths", self.lengths, "ints")
            lengths = tuple(checks.integer("each of lengths", length, 1, checks.SIZE_MAX) for length in given)
            if list(lengths) != sorted(set(lengths)):
                raise InvalidArgument(f"lengths ascend, not {lengths}")
            object.__setattr__(self, "lengths", lengths)
        if self.max_tokens is not None:
            checks.integer("max_tokens", self.max_tokens, 1, checks.SIZE_MAX)
        if checks.number("max_waste", self.max_waste) > 1:
            raise InvalidArgument(f"max_waste is a share, 0.0 to 1.0, not {self.max_waste}")
        if checks.boolean("packed", self.packed):
            if self.pad is None or self.mask is None:
                raise InvalidArgument("packed=True is of a model that reads a mask: give pad and mask too")
            if self.lengths != () or self.max_waste != Batching.max_waste:
                raise InvalidArgument("lengths and max_waste bound padding, and with packed=True none is computed")

    def padded(self, size: int) -> int:
        """Return the size that a run has for requests of this total size."""
        return next((larger for larger in self.sizes if larger >= size), size)


def batching_argument(batching: Batching | None) -> _core.Batching:
    """Convert ``batching`` to the argument of `_core.Pool`."""
    if batching is None:
        return _core.Batching(1, 0, 0, [])
    return _core.Batching(batching.max_size, batching.max_delay_ms / 1000, batching.axis, batching.sizes)


@checks.known_fields
@dataclass(frozen=True)
class CudaGraph:
    """Which input shapes get CUDA graphs as soon as they were run once: docs/how-to/cuda-graphs.md.

    Attributes:
        max_shapes: How many input shapes have a graph, for each session of the pool; default 8. Each has sessions of
            its own. A further shape replaces one that was not among the last 1,000 runs.

    Raises:
        InvalidArgument, InvalidType: ``max_shapes`` is no int of 1 or more.
    """

    max_shapes: int = 8

    def __post_init__(self) -> None:
        checks.integer("max_shapes", self.max_shapes, 1)


@checks.known_fields
@dataclass(frozen=True)
class Warmup:
    """What sessions run before a pool's first request.

    Attributes:
        samples: The inputs of one run, or of several runs: one for each shape. Default: random inputs that fit the
            model's declaration. If the model refuses them, dimensions that it leaves open are 64, then 512; and token
            ids below 30, 4 or 2.
        dimensions: Sizes of the model's dynamic dimensions by name, for random inputs: one mapping, or several.
        runs: How often each is run; default 1. In the first run on a GPU, ONNX Runtime searches for the fastest
            algorithms.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be, or both ``samples`` and ``dimensions``.
    """

    samples: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    dimensions: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        checks.integer("runs", self.runs, 1)
        if self.samples is not None and self.dimensions is not None:
            raise InvalidArgument("a warm-up has samples or dimensions, not both")
        for name, value in (("samples", self.samples), ("dimensions", self.dimensions)):
            if not all(isinstance(one, Mapping) for one in _several(value)):
                raise InvalidType(f"{name} is a dict, or several, not {value!r}")

    def feeds(self, session: Any) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the inputs of each run, in order; then others in their place, in case that the model refuses these."""
        if self.samples is not None:
            yield _several(self.samples)
            return
        from ortmulti.create.sample_inputs import growing_inputs  # which `import ortmulti` shall not load

        sizes = [{}] if self.dimensions is None else _several(self.dimensions)
        growing = [growing_inputs(session.get_inputs(), dimensions=dimensions) for dimensions in sizes]
        yield from map(list, zip(*growing, strict=False))


@dataclass
class GraphLimit:
    """What limits the CUDA graphs of shapes that come again, in sessions beside a pool's.

    Attributes:
        rule: How many shapes have a graph.
        after: With how many ordinary runs a shape gets one.
    """

    rule: CudaGraph = CudaGraph()
    after: int = 20


@dataclass(eq=False)
class MoreSessions:
    """Sessions that a pool makes beside its first ones when they are wanted.

    Attributes:
        makings: What makes some now.
        why_not: Called with a device's name before any are made there: why they must not be; empty if they may.
    """

    makings: weakref.WeakSet[Task] = field(default_factory=weakref.WeakSet)
    why_not: Callable[[str], str] = lambda _: ""

    def make(
        self,
        work: Callable[[background.Poll], object],
        name: str,
        nobody_waits: Callable[[], bool],
        not_begun: Callable[[], object],
    ) -> None:
        """Do work in a thread of its own, as `background.do`. Its argument also raises where nobody waits any more."""

        def do(poll: background.Poll) -> None:
            def check() -> None:
                poll()
                if nobody_waits():
                    raise background.Ended

            work(check)

        self.makings.add(background.do(do, name, not_begun))


@dataclass(frozen=True)
class Serving:
    """How each session of a pool serves requests.

    Attributes:
        in_flight: Number of requests that a session on a GPU has under way; 0: the core chooses, on the CPU, too.
        graphs: How shapes that come again get CUDA graphs, in sessions beside it; None: they do not.
        warmup: What a session runs before it takes requests, as for `load`.
        batching: How requests are joined; None: not at all.
        more: Sessions that are made beside the first ones.
    """

    in_flight: int = 0
    graphs: GraphLimit | None = None
    warmup: Warmup | bool = False
    batching: Batching | None = None
    more: MoreSessions = field(default_factory=MoreSessions)

    @property
    def most_on_gpu(self) -> int:
        """So many on a GPU at most, where ``in_flight`` or padding says it: more make padded runs smaller; else 0."""
        padded = self.batching is not None and self.batching.pad is not None
        return self.in_flight or (_core.at_first_in_flight if padded else 0)


def _several(value: object) -> list[Any]:
    if value is None or isinstance(value, Mapping):
        return [] if value is None else [value]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        return [value]
    return list(value)
