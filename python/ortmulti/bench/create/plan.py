"""`ortmulti bench create`: strategies that create sessions, each measured in a fresh process."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ortmulti import _core
from ortmulti.bench import strategies
from ortmulti.bench.create.measure_strategy import IMPORTS
from ortmulti.bench.experiment import Experiment, Json, worked
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import floor, fresh_process, page_cache
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, by_device, of_case, rotated, spread, spread_of_all
from ortmulti.bench.models import make as make_model
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.reports import plots, tables
from ortmulti.bench.reports.tables import IN_MIB, Cell, Column, Report, Sheet, label, number, times_text
from ortmulti.bench.strategies import SessionSettings, check_name, names
from ortmulti.errors import Error
from ortmulti.remote.remote_errors import without_secrets

Before = Literal["nothing", "contexts", "model"]


@dataclass(frozen=True)
class Case:
    """One line of the table: a model on devices, by a strategy."""

    model: Path
    devices: tuple[str, ...]
    strategy: str


# --- What it says -----------------------------------------------------------------------------------------------------


def _over_floor(measured: Json) -> float | None:
    return measured["creation"] - measured["driver_floor"] if "driver_floor" in measured else None


def _times_floors(measured: Json) -> float | None:
    """Return the creation over the later of its driver floor and its sequential reading."""
    read = measured.get("sequential_read")
    return None if read is None else float(measured["creation"] / max(measured.get("driver_floor", 0.0), read))


COLUMNS = (
    Column("starting", "starting, s", detail=True),
    Column("creation", "creation, s"),
    Column("download", "download, s", rare=True),
    Column("session", "a session, s", lambda one: one["sessions"], spread_of_all, detail=True),
    Column("ready", "ready, s", lambda one: one["starting"] + one["creation"]),
    Column("first_run", "first run, s"),
    Column("driver_floor", "driver floor, s", rare=True, detail=True),
    Column("above_floor", "above floor, s", _over_floor, Interval.json, rare=True, detail=True),
    Column("sequential_read", "sequential read, s", rare=True, detail=True),
    Column("times_floors", "creation / floors", _times_floors, Interval.json, rare=True, detail=True),
    Column("peak_rss", "peak RSS, MiB", **IN_MIB),
    Column("gpu_memory", "GPU, MiB", summary=by_device, **IN_MIB, rare=True),
    Column("speedup", "speedup", summary=None, text="{:.2f}".format),
    Column("efficiency", "S/N", summary=None, text="{:.2f}".format, detail=True),
    Column("parallel_efficiency", "(S-1)/(N-1)", summary=None, text="{:.2f}".format, detail=True),
    Column("equal", "equal", summary=None),
    Column("pss"),
    Column("entry_bytes", of=lambda one: one["entry"]["bytes"] if one.get("entry") else None),
)

PLAIN = "plain onnxruntime in a loop"
"""What the strategy `sequential` is, for readers."""

_USUAL_NOTES = (
    "Medians, below them the ranges. sequential: plain onnxruntime in a loop. creation: from opening the libraries "
    "until all sessions are there; ready: with the start of the process. speedup: sequential creation / creation. Peak "
    "RSS: of all processes together; pages that they share count in each. equal: the outputs have the same bits as "
    "those of the sequential sessions."
)
_DOWNLOAD_NOTE = " download: to a file, which plain onnxruntime needs; it counts as creation."
_DETAIL_NOTE = " S is the speedup and N the number of sessions; ready = starting + creation."
_INTERVAL_NOTES = {
    "above_floor": " driver floor: cuInit and the contexts alone, in a process beside each measurement; above floor = "
    "creation - its driver floor, below it the median's {confidence:.0%} confidence interval.",
    "times_floors": " sequential read: `cat` of the model's files, beside each measurement; creation / floors: over "
    "the later of that and the driver floor, below it the median's {confidence:.0%} confidence interval.",
}


def headline(document: Json) -> str:
    """Return one sentence for each model and its devices: who won, by how much, and over what."""
    return "\n".join(
        _sentence(model, list(group))
        for model in document["models"]
        for _, group in itertools.groupby(_rows(document, model), lambda row: row["devices"])
    )


def _rows(document: Json, model: Json) -> list[Json]:
    return [row for row in document["rows"] if row["model"] == model["path"]]


def _sentence(model: Json, group: Sequence[Json]) -> str:
    where = f"{model['name']} on {describe(group[0]['devices'])}"
    measured = sorted((row for row in group if row["creation"]), key=lambda row: float(row["creation"]["median"]))
    plain = next((row for row in measured if row["strategy"] == "sequential"), None)
    others = [row for row in measured if row is not plain]
    if not others:
        return f"{where}: {f'{PLAIN} takes {_seconds(plain)}' if plain else 'nothing was measured'}."
    best = others[0]
    name, best_text = best["strategy"], _seconds(best)
    if plain is None:
        return f"{where}: {name} wins: created in {best_text}. Not compared with {PLAIN}: add the strategy sequential."
    ratio = plain["creation"]["median"] / best["creation"]["median"]
    # One repetition has no range: it shows what is faster, not by how much another one could differ.
    once = " Measured once: --repeat shows whether that lasts." if plain["measured"] == best["measured"] == 1 else ""
    if best["creation"]["highest"] < plain["creation"]["lowest"]:
        text = f"{name} wins: created in {best_text}, {ratio:.2f} times as fast as {PLAIN} ({_seconds(plain)})."
    elif plain["creation"]["highest"] < best["creation"]["lowest"]:
        text = f"{PLAIN} wins: created in {_seconds(plain)}, {1 / ratio:.2f} times as fast as {name}."
    else:
        text = f"no clear difference: created in {best_text} by {name}, in {_seconds(plain)} by {PLAIN}."
    return f"{where}: {text}{once}"


def _seconds(row: Json) -> str:
    return f"{number(row['creation']['median'])} s"


def notes(document: Json, details: bool) -> str:
    """Explain the columns of the tables, and say what was not shared."""
    text = _USUAL_NOTES
    if any(row["download"] for row in document["rows"]):
        text += _DOWNLOAD_NOTE
    if details:
        text += _DETAIL_NOTE
        for key, note in _INTERVAL_NOTES.items():
            if confidences := [row[key]["confidence"] for row in document["rows"] if row[key]]:
                text += note.format(confidence=min(confidences))
    for row in document["rows"]:
        if row["not_shared"]:
            where = f"{Path(row['model']).stem} on {describe(row['devices'])}"
            text += f" Not shared, {where}: {'; '.join(row['not_shared'])}."
    return text


_BEFORE = {"nothing": (), "contexts": ("contexts there before",), "model": ("second model of the process",)}


def _name(row: Json) -> Cell:
    return row["strategy"], tables.failed_text(row) or ("see below" if row["not_shared"] else "")


def sheets(document: Json) -> Iterator[Sheet]:
    """Yield a table for each model."""
    settings = document["settings"]
    for model in document["models"]:
        parts = [
            tables.model_text(model),
            f"{settings['page_cache']} page cache",
            *(["without a cache entry"] if settings.get("entry") is False else []),
            *_BEFORE[settings.get("before", "nothing")],
            times_text(settings["repeat"], "repetition"),
        ]
        labels = [label("devices", lambda row: describe(row["devices"])), label("strategy", _name)]
        yield Sheet(", ".join(parts), labels, COLUMNS, _rows(document, model))


def save_plot(document: Json, path: Path) -> None:
    """Draw, for each model, the creation with its range, and the speedup over sequential. Errors of `plots.plot_of`."""
    found = [(model, [row for row in _rows(document, model) if row["creation"]]) for model in document["models"]]
    measured = [(model, rows) for model, rows in found if rows]
    settings = document["settings"]
    how = f"{settings['page_cache']} page cache, {times_text(settings['repeat'], 'repetition')}"
    names = strategies.names()
    with plots.plot_of(document, path, 3.9 * len(measured), how) as figure:
        axes = figure.subplots(len(measured), 2, squeeze=False)
        for (left, right), (model, rows) in zip(axes, measured, strict=True):
            title = f"{tables.model_text(model)}: creation (median, range)"
            plots.lines(
                left, title, ("sessions", "creation, seconds"), rows, "strategy", lambda row: row["creation"], names
            )
            title, labels = (
                "speedup; dotted: N sessions in the time of one",
                ("sessions", "times as fast as sequential"),
            )
            ideal = [(count, count) for count in sorted({len(row["devices"]) for row in rows})]
            speedup = lambda row: row["speedup"] and spread([row["speedup"]])  # noqa: E731
            plots.lines(right, title, labels, rows, "strategy", speedup, names, ideal)


REPORT = Report(headline, sheets, notes, save_plot)


@dataclass
class Plan(Experiment[Case]):
    """A whole comparison.

    Attributes: the options of `ortmulti bench create`. Those that have another form than there:
        device_sets: the devices of each number of sessions that is compared.
        strategies: names, see `ortmulti.bench.strategies.names`.
        entry: whether measurements find the model's entry in the cache of optimized models, a temporary one. Otherwise
            it is emptied before each, as for the first load ever.
        before: state of each measured process before the creation: nothing, the devices' CUDA contexts, or sessions of
            a small model (with contexts and all libraries).
        urls: where models are in a store, by their paths here.
        options: "provider_options" and "config_entries" of the sessions: by strategy, under "" those of all.
    """

    kind, report, columns = "create", REPORT, COLUMNS

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    strategies: Sequence[str] = field(default_factory=names)
    repeat: int = 5
    cold: bool = False
    entry: bool = True
    before: Before = "nothing"
    intra_op_num_threads: int | None = None
    options: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    timeout: float = 1800.0
    urls: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_not_empty("models", "device_sets", "strategies")
        for strategy in self.strategies:
            check_name(strategy)
        self.check_at_least(repeat=1, intra_op_num_threads=0)

    def sessions(self, devices: tuple[str, ...], strategy: str) -> SessionSettings:
        """Return the session options of a case: the same for every strategy, except its own further options."""
        options: dict[str, Any] = {
            name: {**given.get("", {}), **given.get(strategy, {})} for name, given in self.options.items()
        }
        if self.intra_op_num_threads is not None:
            return SessionSettings(self.intra_op_num_threads, **options)
        return SessionSettings.side_by_side(devices, _core.usable_cores(), **options)

    def cases(self, number: int = 0) -> list[Case]:
        """Return every case. Each round begins with another strategy."""
        return [
            Case(model, devices, strategy)
            for model in self.models
            for devices in self.device_sets
            for strategy in rotated(self.strategies, number)
        ]

    def uncounted(self) -> list[Case]:
        """Return the runs before anything counts.

        Each strategy runs once, because the first process of a day reads the libraries from the disk. `shared` runs for
        each model and kind of devices, so that all measured models have their entries.
        """
        smallest = min(self.device_sets, key=len)
        by_kinds: dict[frozenset[str], tuple[str, ...]] = {}
        for devices in sorted(self.device_sets, key=len):
            by_kinds.setdefault(frozenset(device.partition(":")[0] for device in devices), devices)
        cases: dict[Case, None] = {}
        for strategy in self.strategies:
            cases[Case(self.models[0], smallest, strategy)] = None
            if strategy == "shared" and self.entry:
                by_model = itertools.product(self.models, by_kinds.values())
                cases |= {Case(model, devices, strategy): None for model, devices in by_model}
        return list(cases)

    @classmethod
    def where(cls, measurement: Json) -> str:
        return f"{Path(measurement['model']).stem}, {measurement['strategy']} on {describe(measurement['devices'])}"

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folders = {model: folder / str(number) for number, model in enumerate(self.models)}
        self._files = {model: (model, *page_cache.external_files(model)) for model in self.models}
        for model, own in self._folders.items():
            own.mkdir()
            write_arrays(own / "feeds.npz", sample_inputs(model))
        self._before = str(make_model("matmul", folder, megabytes=1)) if self.before == "model" else self.before
        for case in self.uncounted():
            step(f"uncounted: {self.where(self.describe(case))}")
            with contextlib.suppress(Error):  # a failure will show itself again, counted
                self._creation(case)

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        """Measure a case once. Its floors come before it and after it in turns."""
        first, second = (self._floors, self._creation) if number % 2 == 0 else (self._creation, self._floors)
        return first(case) | second(case)

    def _entry_files(self, case: Case) -> list[Path]:
        """Return the files of complete entries; staged entries and locks lie elsewhere in the cache."""
        files = (self._folders[case.model] / "cache" / "entries").rglob("*")
        return sorted(file for file in files if file.is_file() and file.stat().st_size)

    def _creation(self, case: Case) -> dict[str, Any]:
        cache = self._folders[case.model] / "cache"
        if not self.entry:
            shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(exist_ok=True)
        entry = self._entry_files(case)
        files = (*self._files[case.model], *entry)
        resident = page_cache.drop(files) if self.cold else page_cache.warm(files)
        result = fresh_process.run(
            "ortmulti.bench.create.measure_strategy",
            {
                **self.describe(case),
                "settings": asdict(self.sessions(case.devices, case.strategy)),
                "feeds": str(self._folders[case.model] / "feeds.npz"),
                "before": self._before,
                "url": self.urls.get(case.model),
            },
            self.timeout,
            {"ORTMULTI_CACHE": str(cache)},
            first=IMPORTS.get(case.strategy, ""),
        )
        result = {"resident_share": resident, **result}
        if case.strategy == "shared":
            bytes_now = sum(file.stat().st_size for file in self._entry_files(case))
            result["entry"] = {"present": bool(entry), "bytes": bytes_now} if bytes_now else None
        return result

    def _floors(self, case: Case) -> dict[str, Any]:
        """Measure the lower bounds: the driver's start and, with a cold page cache, reading the files."""
        floors: dict[str, Any] = {}
        if (devices := floor.cuda_devices(case.devices)) and self.before == "nothing":
            floors |= fresh_process.run("ortmulti.bench.measure.floor", {"devices": devices}, self.timeout)
        if self.cold:
            page_cache.drop(self._files[case.model])
            floors["sequential_read"] = page_cache.read_sequentially(self._files[case.model])
        return floors

    def settings(self) -> dict[str, Any]:
        provider, entries = (self.options.get(name, {}) for name in ("provider_options", "config_entries"))
        return {
            **super().settings(),
            "urls": [without_secrets(url) for url in self.urls.values()],
            "page_cache": "cold" if self.cold else "warm",
            "intra_op_num_threads": [self.sessions(devices, "").intra_op_num_threads for devices in self.device_sets],
            "provider_options": provider.get("", {}),
            "config_entries": entries.get("", {}),
            "strategy_options": {
                name: {"provider": provider.get(name, {}), "config_entries": entries.get(name, {})}
                for name in {**provider, **entries}
                if name
            },
        }

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        """Return further fields of a row.

        "entry": "present" if the cache had an entry, "absent" if it was made, or both. "not_shared": reasons.
        "speedup": the sequential strategy's median creation over this one's, same model and devices. "efficiency" and
        "parallel_efficiency": see `efficiencies`. "equal": whether every repetition's outputs equal the sequential
        strategy's first ones bit for bit; None if there is nothing to compare. For the sequential strategy itself:
        whether its repetitions agree.
        """
        reference = worked(of_case(rounds, replace(case, strategy="sequential")))
        speedup = efficiency = parallel = None
        if good and reference:
            base, mine = (statistics.median(m["creation"] for m in found) for found in (reference, good))
            speedup = base / mine
            efficiency, parallel = efficiencies(speedup, len(case.devices))
        compared = reference if case.strategy != "sequential" or len(good) > 1 else []
        present = sorted({entry["present"] for m in good if (entry := m.get("entry"))})
        reasons = (reason for m in good for reason in m.get("not_shared", ()))
        return {
            "entry": ", ".join("present" if there else "absent" for there in present) or None,
            "not_shared": list(dict.fromkeys(reasons)),
            "speedup": speedup,
            "efficiency": efficiency,
            "parallel_efficiency": parallel,
            "equal": all(m["outputs"] == compared[0]["outputs"] for m in good) if good and compared else None,
        }


def efficiencies(speedup: float, sessions: int) -> tuple[float, float | None]:
    """S/N and (S-1)/(N-1), which is 0 for no gain and 1 for a perfect one; the latter is None for a single session."""
    return speedup / sessions, (speedup - 1) / (sessions - 1) if sessions > 1 else None
