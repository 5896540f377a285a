"""The common part of all reports: the runs of each way, and the form of figures and names."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti.bench import strategies
from ortmulti.bench.diagnose.causes import ordered
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.files import printable, printable_lines
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import CONFIDENCE

Json = Mapping[str, Any]

LEAST_EXPLAINED = 0.95
"""A trace that explains less of the wall time is marked."""

_NOTABLE, _NOTABLE_ONCE = 1.05, 1.3
"""Times as fast from which on a way is called faster; with one repetition, which says nothing of the spread."""

_WHAT = {
    "gil": "the GIL",
    "driver": "the CUDA driver",
    "disk": "the disk",
    "memory": "memory bandwidth",
    "onnxruntime": "a lock inside ONNX Runtime",
}


@dataclass(frozen=True)
class Trace:
    """One way's trace on one number of devices. What only the measurement needs is not counted.

    Attributes:
        way: the strategy.
        devices: one for each session.
        cache: "warm" or "cold".
        run: the repetition with the median time (the lower one of two).
        causes: its seconds by cause.
        walls: seconds from the process's start to the last device's first answer, of every repetition, ascending.
    """

    way: str
    devices: tuple[str, ...]
    cache: str
    run: Json
    causes: Mapping[str, float]
    walls: tuple[float, ...]

    @property
    def wall(self) -> float:
        """Seconds from the process's start to the last device's first answer."""
        return own_seconds(self.run)

    @property
    def name(self) -> str:
        return self.way if self.cache == "warm" else f"{self.way}, {self.cache} cache"

    @property
    def explained(self) -> float:
        """The share of the wall time that has a cause."""
        if self.run.get("explained") is not None:
            return float(self.run["explained"])
        return 1 - self.causes.get("unexplained", 0) / self.wall if self.wall else 1.0

    @property
    def range(self) -> str:
        """The shortest and the longest repetition; empty for a single one."""
        if len(self.walls) < 2:
            return ""
        return f"{len(self.walls)} runs, {seconds_text(self.walls[0])} to {seconds_text(self.walls[-1])}"


def own_seconds(run: Json) -> float:
    """Return a run's seconds without those of the measurement itself."""
    return float(run["wall"]) - float((run.get("causes") or {}).get("measurement", 0))


def traces(document: Json) -> list[Trace]:
    """Return the traces that were measured: by number of devices, then in the strategies' order."""
    groups: dict[tuple[str, tuple[str, ...], str], list[Json]] = {}
    for run in document["runs"]:
        whole = not run.get("error") and run.get("instrumented") is not False and run.get("wall") and run.get("causes")
        if run["experiment"] == "trace" and whole and own_seconds(run) > 0:
            key = (run["way"], tuple(run["devices"]), run.get("cache") or "warm")
            groups.setdefault(key, []).append(run)
    places = {way: place for place, way in enumerate(strategies.names())}
    found = []
    for (way, devices, cache), runs in groups.items():
        walls = sorted(map(own_seconds, runs))
        run = sorted(runs, key=own_seconds)[(len(runs) - 1) // 2]
        causes = {cause: length for cause, length in run["causes"].items() if cause != "measurement" and length > 0}
        found.append(Trace(way, devices, cache, run, causes, tuple(walls)))
    return sorted(found, key=lambda one: (len(one.devices), places.get(one.way, len(places)), one.cache != "warm"))


def by_device_count(found: Iterable[Trace]) -> dict[int, list[Trace]]:
    """Return the traces of each number of devices."""
    groups: dict[int, list[Trace]] = {}
    for trace in found:
        groups.setdefault(len(trace.devices), []).append(trace)
    return groups


def causes_of(found: Iterable[Trace]) -> list[str]:
    """Return the causes that any of the traces has, in the vocabulary's order."""
    return ordered({cause for trace in found for cause in trace.causes})


def failures(document: Json) -> list[str]:
    """Return the failures, each once, with the way and the devices."""
    texts = (
        f"{run['way']} on {devices_text(run['devices'])} ({run['experiment']}): {run['error']}"
        for run in document["runs"]
        if run.get("error")
    )
    return list(dict.fromkeys(printable(" ".join(text.split())) for text in texts))


def default_run(document: Json) -> Json | None:
    """Return the run whose timeline is shown first: of the traces on the most devices, the slowest way's."""
    of_traces = [trace for trace in traces(document) if trace.run.get("spans")]
    if of_traces:
        return max(of_traces, key=lambda trace: (len(trace.devices), trace.wall)).run
    with_spans = (run for run in document["runs"] if run.get("spans"))
    return min(with_spans, key=lambda run: run["experiment"] != "trace", default=None)


def run_text(run: Json) -> str:
    """Return a run in a few words."""
    parts = [run["way"], devices_text(run["devices"])]
    if run["experiment"] != "trace":
        parts.insert(0, run["experiment"])
    if run.get("cache") not in (None, "warm"):
        parts.append(f"{run['cache']} cache")
    if run.get("error"):
        parts.append("failed")
    text = ", ".join(parts)
    return printable(f"{text}: {seconds_text(own_seconds(run))}" if run.get("wall") is not None else text)


def models_text(document: Json) -> str:
    """Return the models' names and sizes."""
    return printable(", ".join(_model_text(model) for model in document["models"])) or "no model"


def _model_text(model: Json) -> str:
    name = str(model.get("name") or Path(str(model.get("path", "model"))).name)
    size = (model.get("bytes") or 0) + (model.get("external_bytes") or 0)
    if not size:
        return name
    return f"{name} ({size / 1e9:.2f} GB)" if size >= 1e9 else f"{name} ({size / 1e6:.3g} MB)"


def partial_text(document: Json) -> str:
    """Return the reason why the diagnosis is not complete; empty if it is."""
    reason = document.get("partial")
    if not reason:
        return ""
    why = "it was interrupted" if reason == "interrupted" else printable(str(reason))
    return f"Partial: {why}. What had been measured by then is shown; what is missing was not looked at."


def headline(document: Json) -> str:
    """Return one sentence on the most devices: which way is ready first, and how much sooner than plain onnxruntime."""
    found = traces(document)
    if not found:
        return "No trace was measured."
    last = list(by_device_count(found).values())[-1]
    warm = [trace for trace in last if trace.cache == "warm"] or last
    slowest, fastest = max(warm, key=lambda a: a.wall), min(warm, key=lambda a: a.wall)
    where = devices_text(fastest.devices)
    plain = next((trace for trace in warm if trace.way == "sequential"), None)
    if plain is not None and len(warm) > 1:
        today = f"Today, with plain onnxruntime in a loop, the first answers on {where} take {seconds_text(plain.wall)}"
        notable = _NOTABLE if len(plain.walls) > 1 else _NOTABLE_ONCE
        if plain.walls[0] <= fastest.walls[-1] or plain.wall < notable * fastest.wall:
            best = min((trace for trace in warm if trace is not plain), key=lambda a: a.wall)
            return printable(f"{today}; no way is clearly faster: {best.name} takes {seconds_text(best.wall)}.")
        return printable(
            f"{today}; with {fastest.name} they take {seconds_text(fastest.wall)}, {plain.wall / fastest.wall:.2f} "
            "times as fast."
        )
    text = f"From the process's start to the first answer on {where}: {seconds_text(fastest.wall)} with {fastest.name}"
    if slowest is not fastest:
        text += f", {seconds_text(slowest.wall)} with {slowest.name}, {slowest.wall / fastest.wall:.1f} times as long"
    return printable(f"{text}.")


def no_findings_text(document: Json) -> str:
    """Return the text for a diagnosis without findings."""
    if document.get("partial"):
        return "No findings: the diagnosis ended before they could be drawn."
    return "No findings: nothing that was measured here would make a difference worth a change."


def verified_text(verified: Json | None) -> tuple[bool, str]:
    """Return whether a gain was confirmed, and the measured gain in words."""
    if not verified:
        return False, "not verified by a run"
    low, high = verified["interval"]
    before, after = seconds_text(verified["before"]), seconds_text(verified["after"])
    figures = (
        f"{before} before, {after} after: {verified['speedup']:.3g} times as fast ({low:.3g} to {high:.3g}); "
        f"{printable(verified['what'])}"
    )
    if low <= 1:
        return False, f"tried, no certain gain: {figures}"
    if verified.get("confidence", CONFIDENCE) < CONFIDENCE:
        return False, f"not verified: faster in each of {verified['pairs']} pairs, but 6 pairs are needed: {figures}"
    return True, f"verified: {figures}"


def command_text(document: Json) -> str:
    """Return the command that wrote the document."""
    return printable(shlex.join(map(str, document.get("command") or [])))


def devices_text(devices: Iterable[str]) -> str:
    """Return the devices in short: "cuda:0", "cuda:0-7", "cpu x2"."""
    names = list(devices)
    try:
        return printable(describe(names))
    except ValueError:
        return printable(", ".join(names))


def count_text(devices: Sequence[str]) -> str:
    """Return how many: "8 devices", or "2 sessions" where several are on one device."""
    noun = "device" if len(set(devices)) == len(devices) else "session"
    return f"{len(devices)} {noun}{'s'[: len(devices) != 1]}"


def percent(share: float) -> str:
    """Return a share in per cent; a small share is not rounded to 0."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def what_text(what: str) -> str:
    """Return the name of a bottleneck."""
    return _WHAT.get(what) or printable(what)


def speedup_text(one: Json) -> str:
    """Return an entry of the document's "serialization" as its speedup over sequential."""
    if one.get("speedup") is None:
        return "speedup not measured"
    ideal = f", ideally {one['ideal']:.3g} times" if one.get("ideal") is not None else ""
    return f"{one['speedup']:.2f} times as fast as sequential{ideal}"


def code_text(command: str) -> str:
    """Return a command or code, of one line or several."""
    return printable_lines(command)
