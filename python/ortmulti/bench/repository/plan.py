"""Measures a model repository: many models behind a budget of memory, beside all of them awake and beside onnxruntime.

Every experiment has a process of its own, and the same arrivals. A simulation over the repository's own policy predicts
the latencies from the times of a run and of a wake.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.rounds import of_case, spread_of_all
from ortmulti.bench.reports import plots
from ortmulti.bench.reports.tables import IN_MIB, MIB, Column, Report, Sheet, figures, label, number, whole
from ortmulti.create.model import Model
from ortmulti.errors import Error, InvalidArgument
from ortmulti.repository import parse_bytes, size_of

from .measure_repository import EXPERIMENTS, GROUPS, arrivals_of, figures_of, popularity, seconds_per_byte
from .simulated import SimulatedModel, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# --- What it says -----------------------------------------------------------------------------------------------------

_NOTES = (
    "Milliseconds from the planned arrival to the answer; of several rounds the medians, below them the ranges. found "
    "awake: requests whose model was awake when they were sent. misses: the share of the others. awake: a repository "
    "with room for all models. onnxruntime: sessions created on demand, least recently used ones closed, with the "
    "budget for the files' bytes. simulated: the repository's own policy with the measured times of a run and a wake. "
    "left: requests without an answer when the measurement ended. used: the most of the budget that was seen in use."
)


def headline(document: Json) -> str:
    """Return what was measured, and the latencies of the repository."""
    settings = document["settings"]
    rate = f", {number(settings['rate'])} requests a second" if settings["rate"] else ""
    fitting = f" ({settings['fitting']} fit)" if "fitting" in settings else ""
    latencies = {row["experiment"]: row["latency"]["all"] for row in document["rows"] if row["measured"]}
    parts = []
    for name in ("p50", "p99") if "repository" in latencies else ():
        measured, *predicted = (
            number(latencies[one][name]["median"] * 1e3) for one in ("repository", "simulated") if one in latencies
        )
        parts.append(f"{name} {measured} ms" + (f" (predicted {predicted[0]})" if predicted else ""))
    where = f"{len(document['models'])} models{fitting} on {settings['device']}{rate}"
    skipped = [f"{row['experiment']}: skipped, {row['skipped']}" for row in document["rows"] if row["skipped"]]
    return "\n".join([f"{where}: {', '.join(parts) or 'nothing was measured'}.", *skipped])


_highest = functools.partial(max, default=None)
_LATENCIES = tuple(Column(name, f"{name}, ms", scale=1e-3) for name in ("p50", "p90", "p99", "max"))
_COUNTS = (
    Column("requests", "requests", summary=sum),
    Column("misses", "misses, %", scale=0.01),
    Column("wakes", "wakes"),
    Column("evictions", "evictions"),
    Column("used", "used, MiB", summary=_highest, **IN_MIB),
    *(
        # The simulation has none.
        Column(key, head, summary=sum, show=lambda row, key=key: row[key] if row["experiment"] != "simulated" else None)  # type: ignore[misc]
        for key, head in {"different": "differ", "failed": "failed", "unanswered": "left"}.items()
    ),
    Column("budget", summary=_highest),
)
_BURSTS = (
    Column(
        "burst_first", "first answer, ms", lambda one: [burst["first"] for burst in one.get("bursts", ())],
        spread_of_all, scale=1e-3,
    ),
    Column(
        "burst_over", "beyond wake and run, ms",
        lambda one: [burst["first"] - burst["wake_and_run"] for burst in one.get("bursts", ())],
        spread_of_all, scale=1e-3, text="{:.2f}".format,
    ),
)  # fmt: skip
_STATES = {"awake": "found awake", "asleep": "found asleep"}


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield the tables of latencies, of the models' states, and of bursts."""
    settings = document["settings"]
    rows = [row for row in document["rows"] if row["measured"]]
    groups = [
        {"experiment": row["experiment"], "group": _STATES.get(group, group), **latency}
        for row in rows
        for group, latency in row["latency"].items()
        if latency is not None
    ]

    title, name = f"budget {whole(settings['budget'] / MIB)} MiB", label("experiment")
    yield Sheet(title, [name, Column("group", "requests")], _LATENCIES, groups)
    yield Sheet("", [name], _COUNTS, rows)
    if bursts := [row for row in rows if row["burst_first"]]:
        yield Sheet("bursts", [name], _BURSTS, bursts)


def save_plot(document: Json, path: Path) -> None:
    """Draw each experiment's latencies over time and, below, which models were awake, of the last round."""
    last = {one["experiment"]: one for one in document["measurements"] if "points" in one}
    names = [model["name"] for model in document["models"]]
    height = len(last) * (3 + 0.12 * len(names))
    how = f"budget {whole(document['settings']['budget'] / MIB)} MiB"
    with plots.plot_of(document, path, height, how, markerscale=5) as figure:
        axes = figure.subplots(2 * len(last), 1, squeeze=False, sharex=True, height_ratios=[2, 1] * len(last))[:, 0]
        for (name, one), above, below in zip(last.items(), axes[::2], axes[1::2], strict=True):
            _draw(name, one, above, below, names)
        axes[-1].set_xlabel("seconds")


def _draw(name: str, one: Json, above: Axes, below: Axes, names: Sequence[str]) -> None:
    points = one["points"]
    for state, text, colour in (("A", "awake", plots.COLOURS["shared"]), ("-", "asleep", plots.OTHER_COLOURS[1])):
        chosen = [i for i, found in enumerate(points["awake"]) if found == state]
        milliseconds = [points["seconds"][i] * 1e3 for i in chosen]
        above.plot([points["at"][i] for i in chosen], milliseconds, ".", ms=2, color=colour, label=f"found {text}")
    above.set_yscale("log")
    plots.title_axes(above, f"{name}: latency from the planned arrival", "", "latency, ms")
    times = [moment for moment, _ in one["states"]]
    times.append(times[-1] + 0.01)
    awake = [[state[i] == "A" for _, state in one["states"]] for i in range(len(names))]
    below.pcolormesh(times, range(len(names) + 1), awake, cmap="Blues", vmin=0, vmax=1.4, rasterized=True)
    below.invert_yaxis()
    below.set_yticks([i + 0.5 for i in range(len(names))], names, fontsize=6)
    below.set_title("awake (dark)", fontsize=8, loc="left")


REPORT = Report(headline, sheets, lambda _document, _details: _NOTES, save_plot)


@dataclass
class Repository(Experiment[str]):
    """A repository of models behind a budget, all of them awake, and onnxruntime; and a prediction of the first.

    Attributes: the options of `ortmulti bench repository`; `budget` becomes bytes. `models` have different names.
    """

    kind, report, columns = "repository", REPORT, (*_COUNTS, *_BURSTS)

    models: Sequence[Path]
    device: str
    budget: str | int
    burst: bool = False
    rate: float | None = None
    seconds: float = 20.0
    warm_seconds: float = 5.0
    repeat: int = 1
    batch: int = 1
    sequence: int = 16
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_at_least(repeat=1, batch=1, warm_seconds=0)
        self.check_positive("rate", "seconds")
        self.check_models()
        names = [model.stem for model in self.models]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise InvalidArgument(f"two models have the name {twice[0]!r}: rename a file")
        self.budget = limit = parse_bytes("budget", self.budget, 1 << 62)
        sizes = [size_of(Model(model))[0] for model in self.models]
        for name, size in zip(names, sizes, strict=True):
            if size > limit:
                raise InvalidArgument(f"the budget is {limit} bytes, and {name} alone has {size}: raise the budget")
        self._spec = {**super().settings(), "models": [str(model) for model in self.models], "sizes": sizes}

    def cases(self, number: int = 0) -> Sequence[str]:  # noqa: ARG002
        return (*EXPERIMENTS, "simulated")

    def describe(self, case: str) -> dict[str, Any]:
        return {"experiment": case}

    @classmethod
    def where(cls, measurement: Json) -> str:
        return str(measurement["experiment"])

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        """Return the error, the differing and missing answers, and a budget that was exceeded."""
        one = measurement
        texts = super().complaints(one)
        if one.get("different"):
            texts.append(f"{one['different']} answers differ from the first ones")
        if one.get("failed"):
            texts.append(f"{one['failed']} requests failed, such as with {one['errors'][0]}")
        # Where onnxruntime is overloaded, requests remain, which is a result.
        if one.get("unanswered") and one["experiment"] != "onnxruntime":
            texts.append(f"{one['unanswered']} requests got no answer in time")
        if one.get("used", 0) > one.get("budget", float("inf")):
            texts.append(f"{one['used']} bytes were in use, more than the budget of {one['budget']}")
        return texts

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:  # noqa: ARG002
        self._cache = {"ORTMULTI_CACHE": str(folder)}
        self._spec["plan"] = None
        self._of_round: dict[str, dict[str, Any]] = {}

    def measure(self, case: str, number: int) -> dict[str, Any]:
        """Measure an experiment; "simulated" is computed from those of the same round, which come before it."""
        spec = {**self._spec, "experiment": case, "seed": number}
        if case == "simulated":
            found, self._of_round = self._of_round, {}
            if "latency" not in found.get("repository", {}):
                return {"skipped": "there is no measured repository"}
            return _simulate(spec, found)
        if case == "onnxruntime" and self._spec["plan"] is None:
            raise Error("no rate: the other experiments failed")
        result = self._of_round[case] = fresh_process.run(
            "ortmulti.bench.repository.measure_repository", spec, self.timeout, self._cache
        )
        self._spec["plan"] = result.get("plan", self._spec["plan"])
        return result

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **(self._spec["plan"] or {})}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
        """Return further fields of a row: the latencies by group, and why the experiment was skipped."""
        found = {group: [one["latency"][group] for one in good if group in one["latency"]] for group in GROUPS}
        return {
            "skipped": next((one["skipped"] for one in of_case(rounds, case) if "skipped" in one), None),
            "latency": {group: figures(_LATENCIES, each) if each else None for group, each in found.items()},
        }


def _simulate(spec: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    squeezed = found["repository"]["models"]
    # A wake that makes room takes longer by a sleep than one of an experiment without others.
    alone = found.get("awake", {}).get("models", squeezed)
    per_byte = seconds_per_byte(
        [{**model, "weights": mine["weights"]} for model, mine in zip(alone, squeezed, strict=True)]
    )
    sleep = statistics.median(max(0.0, mine["wake"] - one["wake"]) for mine, one in zip(squeezed, alone, strict=True))
    run = sum(share * model["run"] for share, model in zip(popularity(spec), alone, strict=True))
    capacity = spec["plan"]["capacity"]
    # Clients keep more than one run under way. What overlaps does not occupy the device.
    overlap = min(1.0, 1 / (capacity * run)) if capacity else 1.0
    level = "session" if spec["device"] == "cpu" else "weights"
    models = [
        SimulatedModel(
            mine["weights"], mine["kept"], one["run"], one["run"] * overlap, mine["weights"] * per_byte, sleep, level
        )
        for mine, one in zip(squeezed, alone, strict=True)
    ]
    arrivals = arrivals_of(spec)
    # As the measuring process: each model once, the most popular ones last.
    gap = 2 * max(model.wake + model.run for model in models)
    first = [(-(number + 1) * gap, number) for number in reversed(range(len(models)))]
    simulation = Simulation(models, spec["budget"] - squeezed[0]["other"])
    simulation.run(first)
    simulation.wakes = simulation.evictions = 0
    simulation.run((moment, number) for moment, number, _ in arrivals)
    return {
        "requests": len(arrivals),
        **figures_of(spec, arrivals, simulation.latencies[len(first) :], simulation.found_awake[len(first) :]),
        "wakes": simulation.wakes,
        "evictions": simulation.evictions,
        "used": simulation.used + squeezed[0]["other"],
        "budget": spec["budget"],
    }
