"""Statistics of a pool: counts, waits and latencies of its requests."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ortmulti import _core, checks
from ortmulti.devices.memory import memory_of, used_gpu
from ortmulti.errors import Error, InvalidArgument, InvalidType

__all__ = ["DeviceStats", "Histogram", "Latency", "PoolStats", "metrics"]


class _Short:
    """Prints the members of a dataclass that are not 0, empty or None, and of distributions no buckets."""

    def __repr__(self) -> str:
        given = ((one.name, getattr(self, one.name)) for one in fields(self))  # type: ignore[arg-type]
        shown = (
            f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value!r}"
            for name, value in given
            if name != "buckets" and value and not (isinstance(value, Histogram) and not value.sum)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Histogram(_Short):
    """A distribution of sizes.

    Attributes:
        count: How often it was measured.
        sum: The sum of all values.
        buckets: Pairs of a fixed upper bound and the number of values that did not exceed it, ascending.
    """

    count: int
    sum: float
    buckets: tuple[tuple[float, int], ...]

    @property
    def mean(self) -> float:
        """The average; 0 if nothing was measured."""
        return self.sum / self.count if self.count else 0.0


@dataclass(frozen=True, repr=False)
class Latency(Histogram):
    """A distribution of durations in seconds. Quantiles are exact to 3%, and never too low.

    Attributes:
        count: How often it was measured.
        sum: The sum of all durations.
        buckets: Pairs of an upper bound and the number of values that did not exceed it, exact to 3%.
        max: The longest duration.
        p50, p95, p99, p999: The durations that 50%, 95%, 99% and 99.9% did not exceed; 0 if nothing was measured.
    """

    max: float
    p50: float
    p95: float
    p99: float
    p999: float


_NOTHING: dict[str, Any] = {"count": 0, "sum": 0.0, "buckets": ()}
_NEVER: dict[str, Any] = {**_NOTHING, "max": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0, "p999": 0.0}


@dataclass(frozen=True, repr=False)
class DeviceStats(_Short):
    """One device's part of a pool's work, since the pool was made.

    Attributes:
        device: ``"cpu"`` or ``"cuda:N"``.
        sessions: How many sessions it has.
        busy: Requests that are under way now.
        waiting: Requests that wait for this device alone; those that a batch has collected wait no more.
        done, failed, cancelled: Requests that ended in this way, after a session had received them.
        retried: Requests that were tried again elsewhere: their run failed here, or the device broke.
        runs: Runs of the model; with batching fewer than requests.
        graph_runs: Those of them by a CUDA graph.
        graphs: With ``cuda_graph="auto"``: shapes of inputs that have a CUDA graph now, counted for each session.
        graph_sessions: Sessions that were made for these, beside the pool's.
        graph_bytes: Of the GPU's memory that these took when they were made: arenas, inputs and outputs, and 72 MiB of
            handles for each, as on an H100.
        why_no_graph: Why a shape got no graph: the last reason since one was made. Empty if there was none.
        why_graph_sessions: Answers a second that were measured to choose how many sessions a shape's graph has, of one
            of the shapes. Empty if requests have not waited for a graph long enough.
        broken: Reason why the device failed to start or was removed after failures; empty if healthy.
        queue: Wait from a request's start until its run begins, with the delay of a batch that it is part of.
        copy: Copies of its inputs to the GPU and of its outputs from there; 0 on the CPU.
        run: Duration of the run.
        total: Total latency, from a request's start to its end.
        state: ``"starting"``: the first session is being created. ``"ready"``: it takes requests. ``"failed"``: no
            session could be created. ``"broken"``: it was taken out because every run failed. ``"removed"``.
        memory_used, memory_total: A GPU's memory in bytes: used by all processes, and in total. None on the CPU, or if
            the driver does not say.
        suspended: Reason why the device gets only probes and requests that name it: its runs failed, and the same
            requests succeeded on other devices. Empty if it gets requests.
        in_flight: Requests that may be under way at the same time.
        why_in_flight: Answers a second that were measured to choose that number; with ``pad`` the inputs' elements.
            Empty if `load` was given a number, or if requests have not waited long enough.
        batch_size: Requests of each run.
        asleep: What the device has given back, as `Pool.sleep`'s ``level``; empty if it is awake.
        sleeps, wakes: How often it fell asleep and woke.
        wake: Time from the request that woke it, or from `Pool.wake`, until it took requests.
        arena_bytes: Memory on the device that ONNX Runtime keeps for the runs of the pool's sessions. None before
            onnxruntime 1.23, which does not say, and without an arena.
        arena_used_bytes: Of these, what weights of the sessions' own, runs and outputs use now.
        arena_peak_bytes: The most that was used at one time.
        trims: How often the arenas became smaller since memory was given back, while the device stayed awake. Before
            onnxruntime 1.23 every try counts.
        real_elements: With ``Batching(pad=...)``, elements of the requests that ran: rows times length.
        padded_elements: Elements that runs computed besides, by which requests were filled up; with ``packed`` 0.
        why_padding: What was measured to choose how much is padded: the device's time for each element, rows times
            length, by runs of these lengths and numbers of rows, up to twice as many. With ``packed`` nothing is chosen
            by it, elements are those of the requests, and a run's length is their mean. Empty before the first run.
        why_rows: With another ``Batching`` on the CPU, what was measured to choose how many rows are joined. It is the
            time of each row, in runs of up to so many and more than half of that. 0.05 ms are added to each run. The
            figures are of requests like the last ones. On a GPU: to how many rows runs are padded, and why; empty where
            they are not.
    """

    device: str
    sessions: int
    busy: int
    waiting: int
    done: int
    failed: int
    cancelled: int
    retried: int
    runs: int
    broken: str
    queue: Latency
    copy: Latency
    run: Latency
    total: Latency
    state: str = "ready"
    memory_used: int | None = None
    memory_total: int | None = None
    suspended: str = ""
    in_flight: int = 1
    why_in_flight: str = ""
    batch_size: Histogram = Histogram(**_NOTHING)
    asleep: str = ""
    sleeps: int = 0
    wakes: int = 0
    wake: Latency = Latency(**_NEVER)
    graph_runs: int = 0
    graphs: int = 0
    graph_sessions: int = 0
    graph_bytes: int = 0
    why_no_graph: str = ""
    why_graph_sessions: str = ""
    arena_bytes: int | None = None
    arena_used_bytes: int | None = None
    arena_peak_bytes: int | None = None
    trims: int = 0
    real_elements: int = 0
    padded_elements: int = 0
    why_padding: str = ""
    why_rows: str = ""

    @property
    def waste(self) -> float:
        """The share of padding among the elements of runs with ``Batching(pad=...)``, with what ``lengths`` adds; 0.0
        without any, and with ``packed``.
        """
        return self.padded_elements / max(1, self.padded_elements + self.real_elements)


@dataclass(frozen=True, repr=False)
class PoolStats(_Short):
    """A pool's work since it was made.

    Attributes:
        devices: The statistics of each device.
        waiting: Requests that wait for any session.
        rejected: Requests that were refused: by a full queue, or since they would have been late.
        cancelled_waiting: Requests that were cancelled before a session received them.
        failed_waiting: Requests whose deadline passed, whose last device broke, or that made room in a full queue for
            one of a higher priority, before a session received them.
        seconds: Age of the pool in seconds.
        unbatched: Joint runs that ended joining, of the model or of requests like theirs. Their requests then ran one
            by one.
        why_unbatched: Why requests like the last of those are not joined: an output without rows, a joint run that
            failed, or another answer than alone. Empty if there were none.
        apart: Requests that ran alone since an output that they want has no rows, since requests like them are no
            longer joined, or since their caller's requests fail.
        audits: Requests of joint runs that were run alone too, and compared. The first joint run of each shape is, and
            then as many as take 0.5% of the time of joint runs.
        audit_differences: Of these, those with another answer than alone. The first one ends joining for the model.
        audit_seconds: How long these runs took, in seconds.
        unlike: Requests that began alone while others waited to be joined that did not fit to them, since shapes, types
            or names differ. With ``max_delay_ms`` others may still have joined them.
        why_unlike: An example, such as "input 'ids' has the shapes (1, 17) and (1, 23)"; empty if there was none.
        version: Label of the model, from `load` or `Pool.replace_model`; empty without one.
    """

    devices: list[DeviceStats]
    waiting: int
    rejected: int
    cancelled_waiting: int
    failed_waiting: int
    seconds: float
    unbatched: int = 0
    why_unbatched: str = ""
    apart: int = 0
    audits: int = 0
    audit_differences: int = 0
    audit_seconds: float = 0.0
    unlike: int = 0
    why_unlike: str = ""
    version: str = ""

    @classmethod
    def _from_core(cls, core: Mapping[str, Any], seconds: float) -> PoolStats:
        times = ("queue", "copy", "run", "total", "wake")
        devices = []
        for device in core["devices"]:
            latencies: dict[str, Any] = {name: Latency(**device.get(name, _NEVER)) for name in times}
            memory = _memory(device["device"]) if device.get("state") != "broken" else {}
            batch_size = Histogram(**device.get("batch_size", _NOTHING))
            devices.append(DeviceStats(**{**device, **latencies, **memory, "batch_size": batch_size}))
        own = {**core, "devices": devices, "audit_seconds": core.get("audit_ns", 0) / 1e9}
        own.pop("audit_ns", None)
        return cls(**own, seconds=seconds)

    @property
    def throughput(self) -> float:
        """Finished requests per second, since the pool was made."""
        return sum(device.done for device in self.devices) / self.seconds if self.seconds > 0 else 0.0

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Format the statistics for Prometheus: text format 0.0.4, with histograms of fixed buckets.

        Args:
            labels: Labels of every line, such as ``{"model": "resnet50"}``.

        Raises:
            InvalidArgument, InvalidType: Labels that cannot be.
        """
        page = Page()
        self._add_to(page, checked_labels(labels))
        return str(page)

    def _add_to(self, page: Page, labels: Mapping[str, str]) -> None:
        for name, kind, text, source in _METRICS:
            samples = source(self) if callable(source) else _each(self.devices, source)
            if samples is not None:
                page.add(name, kind, text, samples, labels)


def _memory(device: str) -> dict[str, int]:
    try:
        if (index := used_gpu(device)) is None:
            return {}
        free, total = _core.cuda_memory(index)
    except Error:
        return {}
    return {"memory_used": total - free, "memory_total": total}


_Samples = Iterable[tuple[dict[str, str], Any]]


def _version(pool: PoolStats) -> _Samples | None:
    return [({"version": pool.version}, 1)] if pool.version else None


def _ended(pool: PoolStats) -> _Samples:
    for device in pool.devices:
        for outcome in ("done", "failed", "cancelled"):
            yield {"device": device.device, "outcome": outcome}, getattr(device, outcome)


def _states(pool: PoolStats) -> _Samples:
    return [({"device": device.device, "state": device.state}, 1) for device in pool.devices]


def _working(pool: PoolStats) -> _Samples:
    return [({"device": device.device}, 0 if device.broken else device.sessions) for device in pool.devices]


def _waiting(pool: PoolStats) -> _Samples:
    return [({}, pool.waiting), *_each(pool.devices, "waiting")]


def _never_run(pool: PoolStats) -> _Samples:
    yield {"outcome": "cancelled"}, pool.cancelled_waiting
    yield {"outcome": "failed"}, pool.failed_waiting
    yield {"outcome": "rejected"}, pool.rejected


def _each(devices: Iterable[DeviceStats], attribute: str) -> _Samples:
    for device in devices:
        if (value := getattr(device, attribute)) is not None:
            yield {"device": device.device}, int(bool(value)) if isinstance(value, str) else value


# Name, kind, help and samples of each metric. A str names an attribute of each device: None has no sample, a text is 1
# unless it is empty. Other samples come from a function of the pool; if it returns None, the metric is left out.
_METRICS: tuple[tuple[str, str, str, str | Callable[[PoolStats], _Samples | None]], ...] = (
    ("model_info", "gauge", "1 for the version of the model.", _version),
    ("requests_total", "counter", "Requests that ended, by device and outcome.", _ended),
    ("requests_never_run_total", "counter", "Requests that ended before a session had them.", _never_run),
    ("runs_total", "counter", "Runs of the model.", "runs"),
    ("graph_runs_total", "counter", "Runs by a CUDA graph.", "graph_runs"),
    ("graphs", "gauge", "Shapes of inputs with a CUDA graph.", "graphs"),
    ("graph_sessions", "gauge", "Sessions of CUDA graphs, beside the pool's.", "graph_sessions"),
    ("graph_bytes", "gauge", "Of a GPU's memory that these took when they were made.", "graph_bytes"),
    ("runs_unbatched_total", "counter", "Joint runs that ended joining.", lambda p: [({}, p.unbatched)]),
    ("requests_apart_total", "counter", "Requests that are not joined with others.", lambda p: [({}, p.apart)]),
    ("audit_runs_total", "counter", "Requests that ran joined and alone.", lambda p: [({}, p.audits)]),
    (
        "audit_differences_total",
        "counter",
        "Of these, those with two answers.",
        lambda p: [({}, p.audit_differences)],
    ),
    ("audit_seconds_total", "counter", "Time of these runs.", lambda p: [({}, p.audit_seconds)]),
    (
        "requests_unlike_total",
        "counter",
        "Requests without others to join, since shapes differ.",
        lambda p: [({}, p.unlike)],
    ),
    ("real_elements_total", "counter", "Elements of requests that may be padded, in runs.", "real_elements"),
    ("padded_elements_total", "counter", "Elements by which these were filled up.", "padded_elements"),
    ("requests_retried_total", "counter", "Requests that were tried again after a failure.", "retried"),
    ("waiting", "gauge", "Requests that wait; without device: for any.", _waiting),
    ("running", "gauge", "Requests that are under way.", "busy"),
    ("sessions", "gauge", "Sessions.", _working),
    ("device_state", "gauge", "1 for the state that a device is in.", _states),
    ("device_suspended", "gauge", "1 while a device gets only probes, since its runs failed.", "suspended"),
    ("device_asleep", "gauge", "1 while a device has given memory back.", "asleep"),
    ("sleeps_total", "counter", "How often a device fell asleep.", "sleeps"),
    ("trims_total", "counter", "How often memory was given back while a device stayed awake.", "trims"),
    ("arena_bytes", "gauge", "Kept by ONNX Runtime for runs.", "arena_bytes"),
    ("arena_used_bytes", "gauge", "Of these, in use.", "arena_used_bytes"),
    ("arena_peak_bytes", "gauge", "The most that was in use at one time.", "arena_peak_bytes"),
    ("memory_used_bytes", "gauge", "Of a GPU, by all processes.", "memory_used"),
    ("memory_total_bytes", "gauge", "Of a GPU.", "memory_total"),
    ("queue_seconds", "histogram", "From a request's start until the session is there for it.", "queue"),
    ("copy_seconds", "histogram", "Copying inputs to the GPU and outputs from it.", "copy"),
    ("run_seconds", "histogram", "Of a run.", "run"),
    ("total_seconds", "histogram", "From a request's start to its end.", "total"),
    ("wake_seconds", "histogram", "Of a device that slept, from the request that woke it.", "wake"),
    ("batch_size", "histogram", "Requests of each run.", "batch_size"),
)


class Page:
    """Text for Prometheus, made of the metrics of several sources: all lines of a metric stand together."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, text: str, samples: _Samples, labels: Mapping[str, str]) -> None:
        """Add samples, each with ``labels`` and its own."""
        lines = self._metrics.setdefault(name, [f"# HELP ortmulti_{name} {text}", f"# TYPE ortmulti_{name} {kind}"])
        for own, value in samples:
            lines.extend(_lines(name, value, {**labels, **own}))

    def __str__(self) -> str:
        return "".join(f"{line}\n" for lines in self._metrics.values() for line in lines)


_OWN = ("device", "le", "outcome", "state", "use", "version")


def checked_labels(labels: Mapping[str, str] | None, *own: str) -> dict[str, str]:
    """Return the user's labels, which are others than the metrics', and ``own``.

    Raises:
        InvalidArgument, InvalidType: A name that Prometheus does not take, or one of the metrics' own.
    """
    if not isinstance(labels, Mapping | None):
        raise InvalidType(f'labels are a mapping, such as {{"service": "search"}}, not {labels!r}')
    given: Mapping[Any, Any] = labels or {}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidType(f"a label has a name and a text, not {name!r} and {value!r}")
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__"):
            raise InvalidArgument(f"{name!r} is no label's name: letters, digits and _, no digit first")
        if name in (*_OWN, *own):
            raise InvalidArgument(f"the label {name!r} is the metrics' own: take another name")
    return dict(given)


_BOUNDS = tuple(part * 10**power for power in range(4, 10) for part in (1, 2.5, 5))


def bounds_ns(buckets: object) -> list[int]:
    """Convert upper bounds of latencies from seconds to nanoseconds; None: from 10 microseconds to 10 seconds."""
    if buckets is None:
        return [*map(int, _BOUNDS), 10**10]
    if isinstance(buckets, str) or not isinstance(buckets, Sequence):
        raise InvalidType(f"latency_buckets is a list of seconds, not {buckets!r}")
    bounds = [round(checks.number("latency_buckets", bucket) * 1e9) for bucket in buckets]
    if not bounds or bounds[0] <= 0 or any(one >= other for one, other in itertools.pairwise(bounds)):
        raise InvalidArgument(f"latency_buckets are seconds above 0, ascending, not {buckets!r}")
    return bounds


def metrics(
    sources: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    latency_buckets: Sequence[float] | None = None,
) -> str:
    """Format the statistics of several pools and repositories for Prometheus, as one page: text format 0.0.4.

    Args:
        sources: Pools and repositories by name. The name is the label ``pool`` of their lines.
        labels: Labels of every line, such as ``{"service": "search"}``.
        latency_buckets: As for `Pool.stats`.

    Raises:
        InvalidArgument, InvalidType: Labels, sources or bounds that cannot be.
    """
    given, page = checked_labels(labels, "model", "pool"), Page()
    devices: list[Any] = []
    if not isinstance(sources, Mapping):
        raise InvalidType(f'sources are pools and repositories by name, such as {{"a": pool}}, not {sources!r}')
    for name, source in sources.items():
        stats: Any = source.stats(latency_buckets) if hasattr(source, "stats") else None
        if not hasattr(stats, "_add_to"):
            raise InvalidType(f"{name!r} is to be a pool or a repository, not {source!r}")
        add_to(page, stats, {**given, "pool": name})
        devices += stats.devices
    add_gpu_memory(page, devices, given)
    return str(page)


def add_to(page: Page, stats: Any, labels: Mapping[str, str]) -> None:
    """Add the metrics of a pool's or a repository's statistics to a page."""
    stats._add_to(page, labels)


def add_gpu_memory(page: Page, devices: Iterable[Any], labels: Mapping[str, str]) -> None:
    """Add who has the memory of the GPUs among these devices of statistics, once for each."""
    samples = (
        ({"device": memory.device, "use": use}, size)
        for memory in memory_of(each.device for each in devices)
        for use, size in memory.uses()
    )
    page.add("gpu_memory_bytes", "gauge", "Of a GPU, by who has it.", samples, labels)


def _lines(name: str, value: float | Histogram, labels: dict[str, str]) -> Iterator[str]:
    if not isinstance(value, Histogram):
        yield _line(name, value, labels)
    elif value.buckets:
        for bound, count in (*value.buckets, (math.inf, value.count)):
            yield _line(f"{name}_bucket", count, {**labels, "le": "+Inf" if bound == math.inf else f"{bound:.9g}"})
        yield _line(f"{name}_sum", value.sum, labels)
        yield _line(f"{name}_count", value.count, labels)


def _line(name: str, value: float, labels: dict[str, str]) -> str:
    return f"ortmulti_{name}{_braces(labels)} {value!r}"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
