"""`ortmulti bench run`: pools and onnxruntime in threads under load, each measured in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import fresh_process
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval, alternating, failure, ratios, rotated
from ortmulti.bench.models import make as make_model
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.reports.run import COLUMNS, REPORT
from ortmulti.errors import Error, InvalidArgument

from .cases import Load, Variant, closed, parse_variant

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
    variant: Variant
    load: Load


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... below `most`, and `most`."""
    return (*(1 << power for power in range(most.bit_length()) if 1 << power < most), most)


def _variants() -> tuple[Variant, ...]:
    return tuple(parse_variant(name) for name in ("core", "threads", "processes"))


@dataclass
class RunPlan(Experiment[RunCase]):
    """A whole comparison.

    Attributes: the options of `ortmulti bench run`. Those that have another form than there:
        device_sets: the devices to compare. A device that is named N times has N times a variant's sessions.
        loads: the loads beside the closed loop.
        closed: the closed loop of every variant; scaling refers to its throughput.
        intra_op_num_threads: CPU threads of each session; None leaves the pool's default.
        budget: seconds for all rounds, see `ortmulti.bench.measure.rounds.round_numbers`.
    """

    kind, report, columns = "run", REPORT, COLUMNS

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    variants: Sequence[Variant] = field(default_factory=_variants)
    loads: Sequence[Load] = ()
    closed: Load = field(default_factory=closed)
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
    budget: float | None = None
    _ceilings: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured: `InvalidArgument`, or `NoSuchFile` for a file that does not exist."""
        self.check_not_empty("models", "device_sets", "variants", "batches")
        self.check_at_least(repeat=1, sequence=1, warm_seconds=0, intra_op_num_threads=0, budget=0)
        if not 0 < self.seconds < float("inf"):
            raise InvalidArgument(f"a measurement lasts more than 0 seconds, not {self.seconds:g}")
        if min(self.batches) < 1:
            raise InvalidArgument(f"a batch has at least one item, not {min(self.batches)}")
        for what in ("inputs", "outputs"):
            if getattr(self, what) not in PLACES:
                raise InvalidArgument(f"{what} are on the {' or '.join(PLACES)}, not {getattr(self, what)!r}")
        if "device" in (self.inputs, self.outputs):
            others = [variant.name for variant in self.variants if variant.backend != "core"]
            if others:
                raise InvalidArgument(
                    f"inputs and outputs on devices are for the backend core, not for {', '.join(others)}"
                )
        for devices in self.device_sets:
            counts = {devices.count(device) for device in devices}
            if len(counts) > 1:
                raise InvalidArgument(f"a pool has as many sessions on each device, unlike {', '.join(devices)}")

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
            for load in (self.closed, *self.loads)
        ]

    def describe(self, case: RunCase) -> dict[str, Any]:
        return {
            "model": str(case.model),
            "batch": case.batch,
            "devices": list(case.devices),
            "variant": case.variant.name,
            "load": case.load.name,
        }

    @classmethod
    def where(cls, measurement: Json) -> str:
        return (
            f"{Path(measurement['model']).stem}, batch {measurement['batch']}, {measurement['variant']} on "
            f"{describe(measurement['devices'])}, {measurement['load']}"
        )

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        """Save the inputs, and measure the requests a second of the clients and each kind of pool with a model that
        does nothing.
        """
        self._folder = folder
        self._feeds: dict[tuple[Path, int], Path] = {}
        self._ceilings = []
        for model in self.models:
            for batch in self.batches:
                self._save_feeds(model, batch)
        if not self.ceiling:
            return
        nothing = make_model("identity", folder)
        self._save_feeds(nothing, 1)
        more = {**_CEILING, "seconds": min(self.seconds, _CEILING_SECONDS)}
        for devices in self.device_sets:
            for variant in self.variants:
                step(f"ceiling: {variant.name} on {describe(devices)}")
                on_cpu = RunCase(nothing, 1, ("cpu",) * len(devices), replace(variant, cuda_graph=False), self.closed)
                try:
                    result = self._process(on_cpu, self.closed, **more)
                except Error as error:
                    result = failure(error)
                self._ceilings.append({"sessions": len(devices), "variant": variant.name, **result})

    def _save_feeds(self, model: Path, batch: int) -> None:
        path = self._folder / f"feeds-{len(self._feeds)}.npz"
        write_arrays(path, sample_inputs(model, batch, self.sequence))
        self._feeds[model, batch] = path

    def measure(self, case: RunCase, number: int) -> dict[str, Any]:
        load = case.load
        if load == self.closed:
            self._capacity: float | None = None  # of the loads that follow
        elif load.relative:
            if self._capacity is None:
                raise Error(f"{load.name} of a closed loop that was not measured")
            load = load.at(self._capacity)
        result = self._process(case, load, seed=number)
        if load == self.closed:
            self._capacity = result["throughput"]
        return result

    def _process(self, case: RunCase, load: Load, **more: Any) -> dict[str, Any]:
        cache = {"ORTMULTI_CACHE": str(self._folder / "cache")}
        spec = {**self.spec(case, load), **more}
        return fresh_process.run("ortmulti.bench.serve.measure_pool", spec, self.timeout, cache)

    def spec(self, case: RunCase, load: Load) -> dict[str, Any]:
        """Return the argument of `ortmulti.bench.serve.measure_pool.measure`."""
        return {
            **self.describe(case),
            "variant": asdict(case.variant),
            "load": asdict(load),
            "feeds": str(self._feeds[case.model, case.batch]),
            "seed": 0,
            **{name: getattr(self, name) for name in (*_CEILING, "seconds")},
        }

    def more(self) -> dict[str, Any]:
        return {"ceilings": self._ceilings}

    def settings(self) -> dict[str, Any]:
        names = ("repeat", "seconds", "batches", "sequence", "device_sets", "timeout", "budget", *_CEILING)
        return {
            **{name: getattr(self, name) for name in names},
            "variants": [asdict(variant) for variant in self.variants],
            "loads": [asdict(load) for load in (self.closed, *self.loads)],
        }

    def beside(self, case: RunCase, good: Sequence[Json], rounds: Sequence[Mapping[RunCase, Json]]) -> dict[str, Any]:
        """Return further fields of a row.

        "kind": of the load. "unanswered": of an open loop: requests without an answer when the measurement ended, of
        all rounds. The others are of closed loops. "scaling": of N devices: the throughput over N times that of the
        same variant on one device, in the same round. "over_first": the throughput over the first variant's, in the
        same round. "ceiling": answers a second of a pool of this kind whose model does nothing.
        """
        if case.load.kind == "open":
            nothing = {"scaling": None, "over_first": None, "ceiling": None}
            return {"kind": "open", "unanswered": sum(m["unanswered"] for m in good), **nothing}

        def over(other: RunCase, times: int = 1) -> dict[str, float] | None:
            found = ratios(rounds, case, other, lambda one: one.get("throughput"))
            return None if other == case else Interval.json(value / times for value in found)

        sessions = len(case.devices)
        single = next((devices for devices in self.device_sets if len(devices) == 1), case.devices)
        of_case = (one for one in self._ceilings if (one["sessions"], one["variant"]) == (sessions, case.variant.name))
        return {
            "kind": "closed",
            "unanswered": None,
            "scaling": over(replace(case, devices=single), sessions),
            "over_first": over(replace(case, variant=self.variants[0])),
            "ceiling": next((one["throughput"] for one in of_case if "error" not in one), None),
        }
