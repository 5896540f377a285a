"""The plan of measurements: the cases and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ortmulti.bench.measure.rounds import alternating, rotated
from ortmulti.bench.serve.cases import Load, Variant, closed, parse_variant
from ortmulti.errors import InvalidArgument

Place = Literal["host", "device"]
PLACES = ("host", "device")


@dataclass(frozen=True)
class RunCase:
    """One line of the table: a model, a batch size, devices, a variant and a load."""

    model: Path
    batch: int
    devices: tuple[str, ...]
    variant: Variant
    load: Load


@dataclass(frozen=True)
class RunProgress:
    """The progress of the measurements.

    Attributes:
        done: measurements that are done.
        total: all measurements.
        case: the next case; None at the end.
        counted: whether that is a measurement; otherwise it is the ceiling of a pool of `case`'s kind.
    """

    done: int
    total: int
    case: RunCase | None
    counted: bool = True


def doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... below `most`, and `most`."""
    return (*(1 << power for power in range(most.bit_length()) if 1 << power < most), most)


def _variants() -> tuple[Variant, ...]:
    return tuple(parse_variant(name) for name in ("core", "threads", "processes"))


@dataclass(frozen=True)
class RunPlan:
    """A whole comparison.

    Attributes:
        models: .onnx files.
        device_sets: the devices to compare. A device that is named N times has N times a variant's sessions.
        variants: the pools, and onnxruntime in threads.
        loads: the loads beside the closed loop.
        closed: the closed loop of every variant; scaling refers to its throughput.
        batches: sizes of the dynamic batch dimension.
        sequence: size of other dynamic dimensions, see `ortmulti.bench.models.sample_inputs`.
        inputs: "host": NumPy arrays; "device": values on the device that runs them.
        outputs: "host": NumPy arrays; "device": values that stay there.
        repeat: rounds; each measures every case once.
        seconds: how long each measurement lasts.
        warm_seconds: seconds of load before it that do not count.
        ceiling: whether to measure each variant with a model that does nothing, on the CPU, with as many sessions. That
            is the highest rate of these clients.
        intra_op_num_threads: CPU threads of each session; None leaves the pool's default.
        provider_options: of the CUDA provider.
        config_entries: session configuration entries.
        timeout: seconds that one measurement may take, loading included.
        budget: seconds for all rounds; None: no limit. No round begins that would end later, if it takes as long as the
            last one. The first is always measured.
    """

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    variants: Sequence[Variant] = field(default_factory=_variants)
    loads: Sequence[Load] = ()
    closed: Load = field(default_factory=closed)
    batches: Sequence[int] = (1,)
    sequence: int = 16
    inputs: Place = "host"
    outputs: Place = "host"
    repeat: int = 5
    seconds: float = 3.0
    warm_seconds: float = 1.0
    ceiling: bool = True
    intra_op_num_threads: int | None = None
    provider_options: Mapping[str, str] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    budget: float | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an empty list, a number that is too small, or values on devices for another backend than
                the core's.
        """
        for what in ("models", "device_sets", "variants", "batches"):
            if not getattr(self, what):
                raise InvalidArgument(f"nothing to compare: no {what.replace('_', ' ')}")
        for what, least in (
            ("repeat", 1),
            ("sequence", 1),
            ("warm_seconds", 0),
            ("intra_op_num_threads", 0),
            ("budget", 0),
        ):
            value = getattr(self, what)
            if value is not None and value < least:
                raise InvalidArgument(f"{what} is at least {least}, not {value}")
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

    def cases(self) -> list[RunCase]:
        """Return every case, in the order of the table."""
        return [
            RunCase(model, batch, devices, variant, load)
            for model in self.models
            for batch in self.batches
            for devices in self.device_sets
            for variant in self.variants
            for load in (self.closed, *self.loads)
        ]

    def round(self, number: int) -> list[RunCase]:
        """Return the cases of one round, in the order of measurement.

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
