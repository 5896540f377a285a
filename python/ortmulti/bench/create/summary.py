"""From measurements to the lines of the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ortmulti.bench.create.plan import Case
from ortmulti.bench.measure.rounds import Interval, Spread


@dataclass(frozen=True)
class Row:
    """One case, over all of its repetitions.

    Attributes:
        model, devices, strategy: the case; `model` is the path.
        measured: repetitions that gave a result.
        errors: the errors of the others.
        starting, creation, session, first_run: seconds; `session` is over all sessions of all repetitions.
        ready: starting and creation together, seconds.
        driver_floor: seconds, measured beside each creation; None where no GPU's context is part of it.
        above_floor: creation minus the driver floor that belongs to it, seconds.
        sequential_read: seconds for reading the model's files, measured beside each creation from a cold page cache.
        times_floors: creation over the later of its driver floor and its sequential reading.
        after_contexts: seconds from the last context until ready, for the strategies that know.
        entry: for the strategy `shared`: "present" if the cache had an entry of the model, "absent" if it was made, or
            both. None if there was none.
        entry_bytes: the entry's size.
        not_shared: reasons why the strategy `shared` did not share some or all weights.
        peak_rss, pss: bytes, see `ortmulti.bench.measure.memory.ProcessMemory`.
        gpu_memory: bytes on each CUDA device.
        speedup: the sequential strategy's median creation over this one's, same model and devices; S.
        efficiency: S/N with N sessions.
        parallel_efficiency: (S-1)/(N-1), which is 0 for no gain and 1 for a perfect one; None for one session.
        equal: whether every repetition's outputs equal the sequential strategy's first ones bit for bit; None
            if there is nothing to compare. For the sequential strategy itself: whether its repetitions agree.
    """

    model: str
    devices: tuple[str, ...]
    strategy: str
    measured: int
    errors: tuple[str, ...]
    starting: Spread | None = None
    creation: Spread | None = None
    session: Spread | None = None
    ready: Spread | None = None
    driver_floor: Spread | None = None
    above_floor: Interval | None = None
    sequential_read: Spread | None = None
    times_floors: Interval | None = None
    after_contexts: Interval | None = None
    entry: str | None = None
    entry_bytes: Spread | None = None
    not_shared: tuple[str, ...] = ()
    first_run: Spread | None = None
    peak_rss: Spread | None = None
    pss: Spread | None = None
    gpu_memory: dict[str, Spread] | None = None
    speedup: float | None = None
    efficiency: float | None = None
    parallel_efficiency: float | None = None
    equal: bool | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON can carry it."""
        return asdict(self)


def efficiencies(speedup: float, sessions: int) -> tuple[float, float | None]:
    """S/N and (S-1)/(N-1); the latter is None for a single session."""
    return speedup / sessions, (speedup - 1) / (sessions - 1) if sessions > 1 else None


def rows(cases: Sequence[Case], measurements: Sequence[dict[str, Any]]) -> list[Row]:
    """Return one row for each case.

    Args:
        cases: in the table's order.
        measurements: what `worker.measure` returned, or {"error": text}, each with "model" (path),
            "devices" and "strategy".
    """
    by_case: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for measurement in measurements:
        for case, members in by_case.items():
            if (str(case.model), list(case.devices), case.strategy) == (
                measurement["model"],
                list(measurement["devices"]),
                measurement["strategy"],
            ):
                members.append(measurement)
    return [_row(case, by_case[case], _good(by_case.get(_reference(case), []))) for case in cases]


def _reference(case: Case) -> Case:
    return Case(case.model, case.devices, "sequential")


def _good(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [measurement for measurement in measurements if "error" not in measurement]


def _row(case: Case, measurements: Sequence[dict[str, Any]], reference: Sequence[dict[str, Any]]) -> Row:
    good = _good(measurements)
    errors = tuple(measurement["error"] for measurement in measurements if "error" in measurement)
    row = Row(str(case.model), case.devices, case.strategy, len(good), errors)
    if not good:
        return row

    def spread(name: str) -> Spread | None:
        return Spread.of(measurement[name] for measurement in good if name in measurement)

    speedup = efficiency = parallel = None
    if reference:
        base = statistics.median(measurement["creation"] for measurement in reference)
        speedup = base / statistics.median(measurement["creation"] for measurement in good)
        efficiency, parallel = efficiencies(speedup, len(case.devices))
    compared = reference if case.strategy != "sequential" or len(good) > 1 else []
    return Row(
        row.model,
        row.devices,
        row.strategy,
        row.measured,
        row.errors,
        starting=spread("starting"),
        creation=spread("creation"),
        session=Spread.of(seconds for measurement in good for seconds in measurement["sessions"]),
        ready=Spread.of(measurement["starting"] + measurement["creation"] for measurement in good),
        driver_floor=spread("driver_floor"),
        above_floor=Interval.of(m["creation"] - m["driver_floor"] for m in good if "driver_floor" in m),
        sequential_read=spread("sequential_read"),
        times_floors=Interval.of(
            m["creation"] / max(m.get("driver_floor", 0.0), m["sequential_read"])
            for m in good
            if "sequential_read" in m
        ),
        after_contexts=Interval.of(seconds for m in good if (seconds := _details(m).get("after_contexts")) is not None),
        entry=", ".join(sorted({"present" if e["present"] else "absent" for m in good if (e := m.get("entry"))}))
        or None,
        entry_bytes=Spread.of(m["entry"]["bytes"] for m in good if m.get("entry")),
        not_shared=tuple(dict.fromkeys(reason for m in good for reason in _details(m).get("not_shared", ()))),
        first_run=spread("first_run"),
        peak_rss=spread("peak_rss"),
        pss=spread("pss"),
        gpu_memory=_gpu_memory(good),
        speedup=speedup,
        efficiency=efficiency,
        parallel_efficiency=parallel,
        equal=all(m["outputs"] == compared[0]["outputs"] for m in good) if compared else None,
    )


def _details(measurement: dict[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = measurement.get("details", {})
    return details


def _gpu_memory(good: Sequence[dict[str, Any]]) -> dict[str, Spread]:
    devices = sorted({device for measurement in good for device in measurement["gpu_memory"]})
    found = {
        device: Spread.of(m["gpu_memory"][device] for m in good if device in m["gpu_memory"]) for device in devices
    }
    return {device: spread for device, spread in found.items() if spread is not None}
