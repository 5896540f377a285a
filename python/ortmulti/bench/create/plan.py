"""`ortmulti bench create`: strategies that create sessions, each measured in a fresh process."""

from __future__ import annotations

import contextlib
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ortmulti.bench.create.measure_strategy import IMPORTS
from ortmulti.bench.experiment import Experiment, Json, worked
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import floor, fresh_process, page_cache
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import of_case, rotated
from ortmulti.bench.models import make as make_model
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.reports.create import COLUMNS, REPORT
from ortmulti.bench.strategies import SessionSettings, check_name, names
from ortmulti.errors import Error

Before = Literal["nothing", "contexts", "model"]


@dataclass(frozen=True)
class Case:
    """One line of the table: a model on devices, by a strategy."""

    model: Path
    devices: tuple[str, ...]
    strategy: str


@dataclass(frozen=True)
class Options:
    """Options of sessions beyond the usual ones.

    Attributes:
        provider: options of the CUDA provider.
        config_entries: session configuration entries.
    """

    provider: Mapping[str, str] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)


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
        cores: the cores that the sessions of a case share, unless `intra_op_num_threads` is given.
        options: options of every session.
        strategy_options: further options of one strategy's sessions, by its name.
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
    cores: int = 1
    options: Options = field(default_factory=Options)
    strategy_options: Mapping[str, Options] = field(default_factory=dict)
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_not_empty("models", "device_sets", "strategies")
        for strategy in (*self.strategies, *self.strategy_options):
            check_name(strategy)
        self.check_at_least(repeat=1, intra_op_num_threads=0)

    def sessions(self, devices: tuple[str, ...], strategy: str) -> SessionSettings:
        """Return the session options of a case: the same for every strategy, except its own further options."""
        own = self.strategy_options.get(strategy, Options())
        options: dict[str, Any] = {
            "provider_options": {**self.options.provider, **own.provider},
            "config_entries": {**self.options.config_entries, **own.config_entries},
        }
        if self.intra_op_num_threads is not None:
            return SessionSettings(self.intra_op_num_threads, **options)
        return SessionSettings.side_by_side(devices, self.cores, **options)

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
                cases.update(
                    {Case(model, devices, strategy): None for model in self.models for devices in by_kinds.values()}
                )
        return list(cases)

    def describe(self, case: Case) -> dict[str, Any]:
        return {"model": str(case.model), "devices": list(case.devices), "strategy": case.strategy}

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
        floors_first = number % 2 == 0
        floors = self._floors(case) if floors_first else {}
        result = self._creation(case)
        return {**result, **(floors if floors_first else self._floors(case))}

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
        """Measure the lower bounds of all strategies: the driver's start and, with a cold page cache, reading the
        files.
        """
        floors: dict[str, Any] = {}
        if (devices := floor.cuda_devices(case.devices)) and self.before == "nothing":
            floors |= fresh_process.run("ortmulti.bench.measure.floor", {"devices": devices}, self.timeout)
        if self.cold:
            page_cache.drop(self._files[case.model])
            floors["sequential_read"] = page_cache.read_sequentially(self._files[case.model])
        return floors

    def settings(self) -> dict[str, Any]:
        names = ("repeat", "strategies", "device_sets", "cores", "entry", "before", "timeout")
        return {
            **{name: getattr(self, name) for name in names},
            "page_cache": "cold" if self.cold else "warm",
            "intra_op_num_threads": [self.sessions(devices, "").intra_op_num_threads for devices in self.device_sets],
            "provider_options": dict(self.options.provider),
            "config_entries": dict(self.options.config_entries),
            "strategy_options": {name: asdict(options) for name, options in self.strategy_options.items()},
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
        reasons = (reason for m in good for reason in m.get("details", {}).get("not_shared", ()))
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
