"""Findings about the way in which sessions are created."""

from __future__ import annotations

import json

from ortmulti.bench.diagnose.measured import Measured, median, seconds_text, start_of_workers
from ortmulti.bench.diagnose.serialization import gil_share, serialization, speedup
from ortmulti.bench.measure.devices import describe

from .finding import Finding, Recipe

# From here on a session's creation keeps other threads from creating theirs.
_HOLDS = 0.3
# Below this share of the best way's time another one is clearly better.
_BETTER = 0.8


def strategy(measured: Measured, usual: str, best: str) -> Finding | None:
    """Another way is faster, because of the GIL or another bottleneck of the usual way."""
    if usual == best:
        return None
    before, after = measured.creation(usual), measured.creation(best)
    if not before or not after:
        return None
    held = gil_share(measured, "threads") if measured.sessions > 1 and best not in ("threads", "sequential") else None
    gil = held is not None and held >= _HOLDS and usual in ("sequential", "threads")
    return Finding(
        id="gil" if gil else "strategy",
        title=_gil_title(measured, best, held or 0.0) if gil else _title(measured, usual, best),
        cause="wait for the GIL" if gil else "strategy",
        seconds=before - after,
        evidence=_evidence(measured, usual, best),
        change=f"create the sessions with {best}",
        command=_command(measured, best),
        recipe=Recipe.between(
            measured.devices,
            usual,
            best,
            f"{usual} against {best}, {measured.sessions} sessions on {describe(measured.devices)}",
        ),
    )


def _gil_title(measured: Measured, best: str, held: float) -> str:
    threads, with_best = speedup(measured, "threads"), speedup(measured, best)
    holds = f"{measured.release} holds the GIL for {held:.0%} of creation"
    subject = f"threads are {threads:.2f}x as fast as sequential: {holds}" if threads is not None else holds
    if with_best is None:
        return f"{subject}; strategy {best} does not need it"
    return f"{subject}; with strategy {best} {with_best:.1f}x (measured)"


def _title(measured: Measured, usual: str, best: str) -> str:
    before, after = measured.creation(usual) or 0.0, measured.creation(best) or 1.0
    ratio = before / after
    factor = f"{ratio:.1f}x" if ratio >= 1.95 else f"{ratio:.2f}x"
    return (
        f"{usual} takes {seconds_text(before)} to create the sessions on {describe(measured.devices)}; strategy {best} "
        f"is {factor} as fast (measured)"
    )


def _evidence(measured: Measured, usual: str, best: str) -> list[str]:
    found = []
    for way in measured.ways:
        interval = measured.creation_interval(way)
        if interval is not None:
            spread = f" ({seconds_text(interval.lowest)} to {seconds_text(interval.highest)})"
            factor = speedup(measured, way)
            text = f"{way}: {seconds_text(interval.median)}{spread if interval.lowest < interval.highest else ''}"
            found.append(text + (f", {factor:.2f}x as fast as sequential" if factor and way != "sequential" else ""))
    for one in serialization(measured):
        if one["way"] in (usual, best, "threads"):
            found += [f"{one['way']}, {part['what']}: {part['evidence']}" for part in one["on"]]
    return found


def _command(measured: Measured, best: str) -> str:
    model = json.dumps(measured.model)
    devices = json.dumps(list(measured.devices))
    if best == "shared":
        return f"ortmulti.load({model}, {devices})"
    if best == "native":
        return f"ortmulti.create_sessions({model}, {devices}, strategy='native')"
    if best == "processes":
        return f"ortmulti.load({model}, {devices}, backend='processes')"
    in_threads = ", each in a thread" * (best == "threads")
    return f"[onnxruntime.InferenceSession({model}) for each of {devices}{in_threads}]"


def processes(measured: Measured, usual: str, best: str) -> Finding | None:
    """The start of worker processes costs time. It matters if they are used, or would otherwise be the best way."""
    creation, least = measured.creation("processes"), measured.creation(best)
    if creation is None or least is None:
        return None
    starting = median(map(start_of_workers, measured.starts("processes"))) or 0.0
    used = usual == "processes"
    left = max(creation - starting, 0.0)
    saved = starting if used else least - left
    if starting <= 0 or saved <= 0 or (not used and left > _BETTER * least):
        return None
    if not used:
        what = f"{best} against processes that have been started before"
        recipe: Recipe | None = Recipe.between(measured.devices, best, "processes", what, until="created by workers")
    else:
        recipe = Recipe.between(measured.devices, "processes", best) if best != "processes" else None
    return Finding(
        id="processes",
        title=f"processes spend {seconds_text(starting)} of {seconds_text(creation)} on starting "
        f"{measured.sessions} interpreters",
        cause="processes",
        seconds=saved,
        evidence=[
            f"without their start processes would take {seconds_text(left)}, {best} takes {seconds_text(least)}",
        ],
        change="keep worker processes and give them the next model, or use a way without them"
        if used
        else "start worker processes before there is a model to load",
        command=_command(measured, best) if used and best != "processes" else None,
        recipe=recipe,
    )


def cores(measured: Measured, usual: str, best: str) -> Finding | None:
    """More sessions on the CPU than cores: each has less than one."""
    on_cpu = sum(device == "cpu" for device in measured.devices)
    available = measured.document["environment"].get("cores")
    if not available or on_cpu <= available:
        return None
    alone, together = measured.watched_creation("native", 1), measured.watched_creation("native")
    shared = measured.watched_creation("shared")
    saved = together - shared if together and shared and usual == "native" else 0.0
    evidence = [f"this process may use {available} cores"]
    if alone and together:
        evidence.append(f"native creates one session in {seconds_text(alone)} and {on_cpu} in {seconds_text(together)}")
    return Finding(
        id="cores",
        title=f"{on_cpu} sessions on the CPU share {available} cores",
        cause="cores",
        seconds=saved,
        share=saved / together if together else 0.0,
        evidence=evidence,
        change="use no more sessions on the CPU than cores; ortmulti's are handles to one, which many threads may run",
        command=_command(measured, "shared"),
        recipe=Recipe.between(measured.devices, "native", "shared") if saved > 0 and best == "shared" else None,
    )


RULES = (strategy, processes, cores)
