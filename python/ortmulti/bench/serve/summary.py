"""From measurements to the lines of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ortmulti.bench.measure.rounds import Interval, Spread, of_case, ratios

from .plan import RunCase, RunPlan

Measurement = Mapping[str, Any]


@dataclass(frozen=True)
class RunRow:
    """One case, over all of its rounds.

    Attributes:
        model, batch, devices, variant, load: the case; `model` is the path, the others' names.
        kind: "closed" or "open".
        measured: rounds that gave a result.
        errors: the errors of the others.
        throughput: answers a second.
        offered: of an open loop: requests a second.
        scaling: throughput over N times that of the same variant on one device, in the same round, for N devices; of
            closed loops.
        over_first: throughput over the first variant's, in the same round; of closed loops.
        p50, p95, p99, p999: seconds from a request's sending, or its planned time, until its answer.
        lag: for an open loop: delay that 99% of the requests did not exceed when they were sent, in seconds.
        unanswered: of an open loop: requests that had no answer when the measurement ended, of all rounds.
        cpu_per_request: processor seconds, of all processes.
        cores: processor seconds a second.
        gpu_memory: bytes on each CUDA device.
        pss: bytes of main memory, of all processes.
        ceiling: answers a second of a pool of this kind whose model does nothing; of closed loops.
    """

    model: str
    batch: int
    devices: tuple[str, ...]
    variant: str
    load: str
    kind: str
    measured: int
    errors: tuple[str, ...]
    throughput: Interval | None = None
    offered: Spread | None = None
    scaling: Interval | None = None
    over_first: Interval | None = None
    p50: Spread | None = None
    p95: Spread | None = None
    p99: Spread | None = None
    p999: Spread | None = None
    lag: Spread | None = None
    unanswered: int | None = None
    cpu_per_request: Spread | None = None
    cores: Spread | None = None
    gpu_memory: dict[str, Spread] | None = None
    pss: Spread | None = None
    ceiling: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON can carry it."""
        return asdict(self)


def rows(
    plan: RunPlan, rounds: Sequence[Mapping[RunCase, Measurement]], ceilings: Mapping[tuple[int, str], float]
) -> list[RunRow]:
    """Return one row for each case.

    Args:
        plan: the cases, in the table's order.
        rounds: of each round, what `ortmulti.bench.serve.measure_pool.measure` returned, or {"error": text}.
        ceilings: answers a second by the number of a case's devices and the variant's name.
    """
    return [_row(plan, case, rounds, ceilings) for case in plan.cases()]


def _row(
    plan: RunPlan,
    case: RunCase,
    rounds: Sequence[Mapping[RunCase, Measurement]],
    ceilings: Mapping[tuple[int, str], float],
) -> RunRow:
    measurements = of_case(rounds, case)
    good = [measurement for measurement in measurements if "error" not in measurement]
    row = RunRow(
        str(case.model), case.batch, case.devices, case.variant.name, case.load.name, case.load.kind, len(good),
        tuple(measurement["error"] for measurement in measurements if "error" in measurement),
    )  # fmt: skip
    if not good:
        return row

    def latency(name: str) -> Spread | None:
        return Spread.of(m["latency"][name] for m in good if m["latency"] is not None)

    closed = case.load.kind == "closed"
    memory = {device: Spread.of(m["gpu_memory"][device] for m in good if device in m["gpu_memory"])
              for device in sorted({device for m in good for device in m["gpu_memory"]})}  # fmt: skip
    return RunRow(
        row.model, row.batch, row.devices, row.variant, row.load, row.kind, row.measured, row.errors,
        throughput=Interval.of(m["throughput"] for m in good),
        offered=Spread.of(m["offered"] for m in good if "offered" in m),
        scaling=_ratio(case, _one_device(plan, case), rounds, len(case.devices)) if closed else None,
        over_first=_ratio(case, _changed(case, variant=plan.variants[0]), rounds) if closed else None,
        p50=latency("p50"),
        p95=latency("p95"),
        p99=latency("p99"),
        p999=latency("p999"),
        lag=Spread.of(m["lag"]["p99"] for m in good if m.get("lag")),
        unanswered=None if closed else sum(m["unanswered"] for m in good),
        cpu_per_request=Spread.of(m["cpu_per_request"] for m in good if m["cpu_per_request"] is not None),
        cores=Spread.of(m["cpu_seconds"] / m["window"] for m in good if m["cpu_seconds"] is not None),
        gpu_memory={device: spread for device, spread in memory.items() if spread is not None},
        pss=Spread.of(m["pss"] for m in good),
        ceiling=ceilings.get((len(case.devices), case.variant.name)) if closed else None,
    )  # fmt: skip


def _changed(case: RunCase, **changes: Any) -> RunCase:
    return RunCase(**{**{name: getattr(case, name) for name in RunCase.__dataclass_fields__}, **changes})


def _one_device(plan: RunPlan, case: RunCase) -> RunCase | None:
    single = next((devices for devices in plan.device_sets if len(devices) == 1), None)
    return None if single is None or len(case.devices) == 1 else _changed(case, devices=single)


def _ratio(
    case: RunCase, base: RunCase | None, rounds: Sequence[Mapping[RunCase, Measurement]], times: int = 1
) -> Interval | None:
    """Return the case's throughput over `times` that of `base`, within each round; None where they are one."""
    if base is None or base == case:
        return None
    return Interval.of(value / times for value in ratios(rounds, case, base, lambda one: one.get("throughput")))
