"""`ortmulti bench run`: pools and onnxruntime under load, each measured in a fresh process."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, alternating, by_device, ratios, rotated
from ortmulti.bench.models import make as make_model
from ortmulti.bench.reports import plots, tables
from ortmulti.bench.reports.tables import IN_MIB, Cell, Column, Report, Sheet, label, number, times_text
from ortmulti.errors import Error, InvalidArgument

from .measure_pool import parse_variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES = ("host", "device")

_CEILING = {
    "inputs": "host",
    "outputs": "host",
    "warm_seconds": 0.2,
    "intra_op_num_threads": 1,
    "provider_options": {},
    "config_entries": {},
}
_CEILING_SECONDS = 1.0


@dataclass(frozen=True)
class RunCase:
    """One line of the table: a model, a batch size, devices, a variant and a load."""

    model: Path
    batch: int
    devices: tuple[str, ...]
    variant: str
    load: str


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... below `most`, and `most`."""
    return (*(1 << power for power in range(most.bit_length()) if 1 << power < most), most)


def parse_rate(text: str) -> tuple[float, bool]:
    """Return the rate of an open loop, and whether it is a share of the closed loop's rate in the same case and round.

    Args:
        text: "200" or "200/s" requests a second; "0.8x" of the closed loop's rate.

    Raises:
        InvalidArgument: the text is not a rate.
    """
    name = text.strip()
    relative = name.endswith("x")
    try:
        rate = float(name.removesuffix("x") if relative else name.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise InvalidArgument(f"{name!r} is not a rate, such as 200 (requests a second) or 0.8x (of the closed loop's)")
    return rate, relative


# --- What it says -----------------------------------------------------------------------------------------------------

_NOTES = (
    "Medians over the rounds, below them the ranges; of the rate and scaling the confidence intervals (95% from six "
    "rounds on). core: a pool of ortmulti's sessions; threads: the onnxruntime package in Python threads; processes: "
    "each of its sessions in a process, with inputs in shared memory. rate: answers a second. scaling: of N devices, "
    "over N times one device's rate in the same round. Latency counts from when a request is submitted, with open "
    "loops from when it was to arrive."
)
_CEILING_NOTE = (
    " ceiling: the rate where the model does nothing, on the CPU, with as many sessions and the same clients: a rate "
    "near it is the clients' own."
)
_DETAIL_NOTES = (
    " ratio: to the first variant's rate in the same round. CPU: processor time of all processes. asked late: how late "
    "the clients were with 99% of the requests."
)


def notes(document: Json, details: bool) -> str:
    """Explain the columns of the tables."""
    return _NOTES + _CEILING_NOTE * any(row["ceiling"] for row in document["rows"]) + _DETAIL_NOTES * details


def _rate(row: Json) -> Cell:
    text, interval = tables.cell(row["throughput"])
    return (text, f"of {number(row['offered']['median'])}") if row["offered"] else (text, interval)


def _within(field: str, key: str) -> Callable[[Json], float | None]:
    """Return what a measurement's summary of latencies says, if it has one."""
    return lambda one: one[field][key] if one.get(field) else None


def _cores(one: Json) -> float | None:
    return one["cpu_seconds"] and one["cpu_seconds"] / one["window"]  # type: ignore[no-any-return]


_MS: Any = {"scale": 1e-3, "rare": True}
COLUMNS = (
    Column("throughput", "rate, 1/s", None, Interval.json, _rate),
    Column("ceiling", "ceiling, 1/s", summary=None, rare=True),
    Column("scaling", "scaling", summary=None, rare=True),
    Column("over_first", "ratio", summary=None, rare=True, detail=True),
    Column("p50", "p50, ms", _within("latency", "p50"), **_MS),
    Column("p95", of=_within("latency", "p95")),
    Column("p99", "p99, ms", _within("latency", "p99"), **_MS),
    Column("p999", "p99.9, ms", _within("latency", "p999"), **_MS, detail=True),
    Column("cpu_per_request", "CPU, ms/request", **_MS, detail=True),
    Column("cores", "cores", _cores, rare=True, detail=True),
    Column("pss", "memory, MiB", **IN_MIB, rare=True),
    Column("gpu_memory", "GPU, MiB", summary=by_device, **IN_MIB, rare=True),
    Column("lag", "asked late, ms", _within("lag", "p99"), **_MS, detail=True),
    Column("offered"),
)


def _groups(document: Json, rows: Sequence[Json]) -> dict[str, list[Json]]:
    """Return the rows of each model and batch size, by their name."""
    names = {model["path"]: model["name"] for model in document["models"]}
    groups: dict[str, list[Json]] = {}
    for row in rows:
        groups.setdefault(f"{names[row['model']]}, batch {row['batch']}", []).append(row)
    return groups


def _name(row: Json) -> Cell:
    return row["variant"], f"{row['unanswered']} unanswered" if row["unanswered"] else tables.failed_text(row)


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield a table for each model and batch size."""
    settings = document["settings"]
    how = (
        f"inputs on the {settings['inputs']}, outputs on the {settings['outputs']}, "
        f"{times_text(settings['rounds'], 'round')} of {settings['seconds']:g} s"
    )
    labels = [label("devices", lambda row: describe(row["devices"])), label("variant", _name), label("load")]
    for name, rows in _groups(document, document["rows"]).items():
        yield Sheet(f"{name}, {how}", labels, COLUMNS, rows)


def headline(document: Json) -> str:
    """Return one sentence for each model and batch size, on the most devices: who won, by how much, and over what."""
    measured = [row for row in document["rows"] if row["kind"] == "closed" and row["throughput"]]
    return "\n".join(f"{name}, {_sentence(rows)}." for name, rows in _groups(document, measured).items())


def _sentence(rows: Sequence[Json]) -> str:
    most = max(len(row["devices"]) for row in rows)
    on_most = [row for row in rows if len(row["devices"]) == most]
    best, *others = sorted(on_most, key=lambda row: -float(row["throughput"]["median"]))
    rate = f"{number(best['throughput']['median'])} answers a second"
    where = f"on {describe(best['devices'])}: {best['variant']}"
    if not others:
        return f"{where} gives {rate}"
    following = others[0]
    ratio = best["throughput"]["median"] / following["throughput"]["median"]
    compared = f"{ratio:.2f} times as many as {following['variant']}, the next one"
    if best["measured"] == following["measured"] == 1:  # no interval: another round could end otherwise
        return f"{where} gives {rate}, {compared}, measured once: --repeat 6 shows whether that is certain"
    if best["throughput"]["low"] <= following["throughput"]["high"]:
        return f"{where} gives {rate}, with no clear difference from {following['variant']}"
    return f"{where} wins with {rate}, {compared}"


def save_plot(document: Json, path: Path) -> None:
    """Draw a result, for each model and batch size.

    The left plot has the closed loop's rate over the number of devices. The right one has the latency over the load or,
    without open loops, the rate over N times one device's.

    Raises:
        LibraryError, InvalidArgument: see `plots.plot_of`.
    """
    groups = _groups(document, [row for row in document["rows"] if row["measured"]])
    settings = document["settings"]
    how = f"{times_text(settings['rounds'], 'round')} of {settings['seconds']:g} s, inputs on the {settings['inputs']}"
    variants = list(dict.fromkeys(row["variant"] for row in document["rows"]))

    with plots.plot_of(document, path, 3.9 * len(groups), how) as figure:
        axes = figure.subplots(len(groups), 2, squeeze=False)
        for (left, right), (name, rows) in zip(axes, groups.items(), strict=True):
            closed = [row for row in rows if row["kind"] == "closed"]
            alone = (row["throughput"]["median"] for row in closed if len(row["devices"]) == 1)
            best = max(alone, default=None)
            counts = sorted({len(row["devices"]) for row in rows})
            ideal = [] if best is None else [(count, best * count) for count in counts]
            title, labels = f"{name}: answers a second (median, range)", ("devices", "answers a second, closed loop")
            plots.lines(left, title, labels, closed, "variant", lambda row: row["throughput"], variants, ideal)
            if opened := [row for row in rows if row["kind"] == "open" and row["p50"] is not None]:
                _draw_latency(right, opened, variants)
            else:
                title, labels = "rate over N times one device's, same round", ("devices", "scaling")
                flat = [(count, 1.0) for count in counts]
                plots.lines(right, title, labels, closed, "variant", lambda row: row["scaling"], variants, flat)


def _draw_latency(axes: Axes, rows: Sequence[Json], variants: Sequence[str]) -> None:
    most = max(len(row["devices"]) for row in rows)
    title = f"latency, {times_text(most, 'device')}: p50 filled, p99 hollow and dashed"
    plots.title_axes(axes, title, "requests offered a second", "milliseconds")
    axes.set_yscale("log")
    on_most = sorted((row for row in rows if len(row["devices"]) == most), key=lambda row: row["offered"]["median"])
    for name in dict.fromkeys(row["variant"] for row in on_most):
        mine = [row for row in on_most if row["variant"] == name]
        rates = [row["offered"]["median"] for row in mine]
        for key, line, face in (("p50", "-", "full"), ("p99", "--", "none")):
            seconds = [row[key]["median"] * 1000 for row in mine]
            axes.plot(rates, seconds, linestyle=line, fillstyle=face, **plots.line_style(name, variants))
    axes.set_xlim(left=0)


REPORT = Report(headline, sheets, notes, save_plot)


@dataclass
class RunPlan(Experiment[RunCase]):
    """A whole comparison.

    Attributes: the options of `ortmulti bench run`. Those that have another form than there:
        device_sets: the devices to compare. A device that is named N times has N times a variant's sessions.
        variants: see `parse_variant`.
        rates: see `parse_rate`; of the open loops beside the closed one, to whose throughput scaling refers.
        intra_op_num_threads: CPU threads of each session; None leaves the pool's default.
    """

    kind, report, columns = "run", REPORT, COLUMNS

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    variants: Sequence[str]
    rates: Sequence[str] = ()
    in_flight: int = 4
    batches: Sequence[int] = (1,)
    sequence: int = 16
    inputs: str = "host"
    outputs: str = "host"
    repeat: int = 5
    seconds: float = 3.0
    warm_seconds: float = 1.0
    ceiling: bool = True
    intra_op_num_threads: int | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_not_empty("models", "device_sets", "variants", "batches")
        self.check_at_least(repeat=1, in_flight=1, sequence=1, warm_seconds=0, intra_op_num_threads=0)
        self.check_positive("seconds")
        for what in ("inputs", "outputs"):
            if getattr(self, what) not in PLACES:
                raise InvalidArgument(f"{what} are {' or '.join(PLACES)}, not {getattr(self, what)!r}")
        others = [name for name in self.variants if parse_variant(name)["way"] != "core"]
        if others and "device" in (self.inputs, self.outputs):
            raise InvalidArgument(f"inputs and outputs on devices are for core, not for {', '.join(others)}")
        for devices in self.device_sets:
            counts = {devices.count(device) for device in devices}
            if len(counts) > 1:
                raise InvalidArgument(f"a pool has as many sessions on each device, unlike {', '.join(devices)}")
        self._closed = f"closed, {self.in_flight} a session"
        found = [parse_rate(rate) for rate in self.rates]
        self._open = {f"open, {rate:g}{'x' if relative else '/s'}": (rate, relative) for rate, relative in found}
        self._ceilings: dict[tuple[int, str], float] = {}

    def cases(self, number: int = 0) -> list[RunCase]:
        """Return every case.

        The variants take turns. Each round begins with another variant and goes through the devices in the other
        direction, so changes with time affect all alike. The closed loop comes first: relative rates refer to it.
        """
        return [
            RunCase(model, batch, devices, variant, load)
            for model in self.models
            for batch in self.batches
            for devices in alternating(self.device_sets, number)
            for variant in rotated(self.variants, number)
            for load in (self._closed, *self._open)
        ]

    @classmethod
    def where(cls, measurement: Json) -> str:
        return (
            f"{Path(measurement['model']).stem}, batch {measurement['batch']}, {measurement['variant']} on "
            f"{describe(measurement['devices'])}, {measurement['load']}"
        )

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        """Measure the ceilings."""
        self._cache = {"ORTMULTI_CACHE": str(folder / "cache")}
        if not self.ceiling:
            return
        nothing = make_model("identity", folder)
        more = {**_CEILING, "seconds": min(self.seconds, _CEILING_SECONDS)}
        for devices in self.device_sets:
            for variant in self.variants:
                step(f"ceiling: {variant} on {describe(devices)}")
                without_graphs = re.sub(r"\+graph(=off)?", "", variant)
                on_cpu = RunCase(nothing, 1, ("cpu",) * len(devices), without_graphs, self._closed)
                with contextlib.suppress(Error):
                    result = self._process(on_cpu, **more)
                    self._ceilings[len(devices), variant] = result["throughput"]

    def measure(self, case: RunCase, number: int) -> dict[str, Any]:
        if case.load == self._closed:
            self._capacity = math.nan  # of the loads that follow
            result = self._process(case, seed=number)
            self._capacity = result["throughput"]
            return result
        rate, relative = self._open[case.load]
        if relative and math.isnan(self._capacity):
            raise Error(f"{case.load} of a closed loop that was not measured")
        return self._process(case, rate=rate * self._capacity if relative else rate, seed=number)

    def _process(self, case: RunCase, **more: Any) -> dict[str, Any]:
        spec = {**self.spec(case), **more}
        return fresh_process.run("ortmulti.bench.serve.measure_pool", spec, self.timeout, self._cache)

    def spec(self, case: RunCase) -> dict[str, Any]:
        """Return the argument of `ortmulti.bench.serve.measure_pool.measure`, for a closed loop."""
        return {**self.settings(), **self.describe(case), "rate": None, "seed": 0}

    def beside(self, case: RunCase, good: Sequence[Json], rounds: Sequence[Mapping[RunCase, Json]]) -> dict[str, Any]:
        """Return further fields of a row.

        "kind": of the load. "unanswered": of an open loop: requests without an answer when the measurement ended, of
        all rounds. The others are of closed loops. "scaling": of N devices: the throughput over N times that of the
        same variant on one device, in the same round. "over_first": the throughput over the first variant's, in the
        same round. "ceiling": answers a second of a pool of this kind whose model does nothing.
        """
        if case.load != self._closed:
            nothing = {"scaling": None, "over_first": None, "ceiling": None}
            return {"kind": "open", "unanswered": sum(m["unanswered"] for m in good), **nothing}

        def over(other: RunCase, times: int = 1) -> dict[str, float] | None:
            found = ratios(rounds, case, other, lambda one: one.get("throughput"))
            return None if other == case else Interval.json(value / times for value in found)

        sessions = len(case.devices)
        single = next((devices for devices in self.device_sets if len(devices) == 1), case.devices)
        return {
            "kind": "closed",
            "unanswered": None,
            "scaling": over(replace(case, devices=single), sessions),
            "over_first": over(replace(case, variant=self.variants[0])),
            "ceiling": self._ceilings.get((sessions, case.variant)),
        }
