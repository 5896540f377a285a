"""The common part of all reports: the runs of each way, and the form of figures and names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortmulti.bench import strategies
from ortmulti.bench.diagnose.causes import ordered
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.files import printable
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import CONFIDENCE
from ortmulti.bench.reports import tables
from ortmulti.bench.reports.plots import machine_text

Json = Mapping[str, Any]

LEAST_EXPLAINED = 0.95  # a trace that explains less of the wall time is marked

_NOTABLE, _NOTABLE_ONCE = 1.05, 1.3
"""Times as fast from which on a way is called faster; with one repetition, which says nothing of the spread."""

_WHAT = {
    "gil": "the GIL",
    "driver": "the CUDA driver",
    "disk": "the disk",
    "onnxruntime": "a lock inside ONNX Runtime",
}


class Trace:
    """One way's trace on one number of devices. What only the measurement needs is not counted."""

    def __init__(self, runs: Iterable[Json]) -> None:
        ascending = sorted(runs, key=own_seconds)
        self.run = ascending[(len(ascending) - 1) // 2]  # with the median time, the lower one of two
        self.way: str = self.run["way"]
        self.devices: tuple[str, ...] = tuple(self.run["devices"])
        cache = self.run.get("cache") or "warm"
        self.warm = cache == "warm"
        self.name = self.way if self.warm else f"{self.way}, {cache} cache"
        self.walls = tuple(map(own_seconds, ascending))  # from the process's start to the last device's first answer
        self.wall = own_seconds(self.run)
        causes = {**self.run["causes"], "measurement": 0}
        self.causes: dict[str, float] = {cause: length for cause, length in causes.items() if length > 0}
        self.explained = float(self.run["explained"])


def own_seconds(run: Json) -> float:
    """Return a run's seconds without those of the measurement itself."""
    return float(run["wall"]) - float((run.get("causes") or {}).get("measurement", 0))


def traces(document: Json) -> list[Trace]:
    """Return the traces that were measured: by number of devices, then in the strategies' order."""
    groups: dict[tuple[str, tuple[str, ...], str], list[Json]] = {}
    for run in document["runs"]:
        whole = not run.get("error") and all(run.get(name) is not None for name in ("wall", "causes", "explained"))
        if run["experiment"] == "trace" and whole and own_seconds(run) > 0:
            key = (run["way"], tuple(run["devices"]), run.get("cache") or "warm")
            groups.setdefault(key, []).append(run)
    places = {way: place for place, way in enumerate(strategies.names())}
    found = map(Trace, groups.values())
    return sorted(found, key=lambda one: (len(one.devices), places.get(one.way, len(places)), not one.warm))


def by_device_count(found: Iterable[Trace]) -> list[list[Trace]]:
    """Return the traces of each number of devices."""
    return [list(group) for _, group in itertools.groupby(found, key=lambda trace: len(trace.devices))]


def causes_of(found: Iterable[Trace]) -> list[str]:
    """Return the causes that any of the traces has, in the vocabulary's order."""
    return ordered({cause for trace in found for cause in trace.causes})


def default_run(document: Json) -> Json | None:
    """Return the run whose timeline is shown: of the traces on the most devices, the slowest way's."""
    of_traces = [trace.run for trace in traces(document) if trace.run.get("spans")]
    if of_traces:
        return max(of_traces, key=lambda run: (len(run["devices"]), own_seconds(run)))
    with_spans = (run for run in document["runs"] if run.get("spans"))
    return min(with_spans, key=lambda run: run["experiment"] != "trace", default=None)


# --- Texts ------------------------------------------------------------------------------------------------------------


def headline(document: Json) -> str:
    """Return one sentence on the most devices: which way is ready first, and how much sooner than plain onnxruntime."""
    found = traces(document)
    if not found:
        return "No trace was measured."
    last = by_device_count(found)[-1]
    warm = [trace for trace in last if trace.warm] or last
    slowest, fastest = max(warm, key=lambda a: a.wall), min(warm, key=lambda a: a.wall)
    where = devices_text(fastest.devices)
    plain = next((trace for trace in warm if trace.way == "sequential"), None)
    if plain is not None and len(warm) > 1:
        text = f"Today, with plain onnxruntime in a loop, the first answers on {where} take {seconds_text(plain.wall)}"
        notable = _NOTABLE if len(plain.walls) > 1 else _NOTABLE_ONCE
        if plain.walls[0] <= fastest.walls[-1] or plain.wall < notable * fastest.wall:
            best = min((trace for trace in warm if trace is not plain), key=lambda a: a.wall)
            text += f"; no way is clearly faster: {best.name} takes {seconds_text(best.wall)}"
        else:
            factor = plain.wall / fastest.wall
            text += f"; with {fastest.name} they take {seconds_text(fastest.wall)}, {factor:.2f} times as fast"
    else:
        text = f"From the process's start to the first answer on {where}: {seconds_text(fastest.wall)}"
        text += f" with {fastest.name}"
        if slowest is not fastest:
            factor = slowest.wall / fastest.wall
            text += f", {seconds_text(slowest.wall)} with {slowest.name}, {factor:.1f} times as long"
    return printable(f"{text}.")


def partial_text(document: Json) -> str:
    """Return the reason why the diagnosis is not complete; empty if it is."""
    reason = document.get("partial")
    if not reason:
        return ""
    why = "it was interrupted" if reason == "interrupted" else printable(str(reason))
    return f"Partial: {why}. What had been measured by then is shown; what is missing was not looked at."


def failures(document: Json) -> list[str]:
    """Return the failures, each once, with the way and the devices."""
    texts = (
        f"{run['way']} on {devices_text(run['devices'])} ({run['experiment']}): {run['error']}"
        for run in document["runs"]
        if run.get("error")
    )
    return list(dict.fromkeys(printable(" ".join(text.split())) for text in texts))


def no_findings_text(document: Json) -> str:
    """Return the text for a diagnosis without findings."""
    if document.get("partial"):
        return "No findings: the diagnosis ended before they could be drawn."
    return "No findings: nothing that was measured here would make a difference worth a change."


def amount_text(finding: Json) -> str:
    """Return a finding's seconds and share; empty if they are unknown."""
    return f"{seconds_text(finding['seconds'])}, {percent(finding['share'])}" if finding["seconds"] else ""


def verified_text(verified: Json | None) -> tuple[bool, str]:
    """Return whether a gain was confirmed, and the measured gain in words."""
    if not verified:
        return False, "Not verified by a run."
    low, high = verified["interval"]
    before, after = seconds_text(verified["before"]), seconds_text(verified["after"])
    figures = (
        f"{before} before, {after} after (medians); in pairs {verified['speedup']:.3g} times as fast ({low:.3g} to "
        f"{high:.3g}); {printable(verified['what'])}."
    )
    if low <= 1:
        return False, f"Tried, no certain gain: {figures}"
    if verified.get("confidence", CONFIDENCE) < CONFIDENCE:
        return False, f"Not verified: faster in each of {verified['pairs']} pairs, but 6 pairs are needed: {figures}"
    return True, f"Verified: {figures}"


def speedup_text(one: Json) -> str:
    """Return an entry of the document's "serialization" as its speedup over sequential."""
    if one.get("speedup") is None:
        return "speedup not measured"
    ideal = f", ideally {one['ideal']:.3g} times" if one.get("ideal") is not None else ""
    return f"{one['speedup']:.2f} times as fast as sequential{ideal}"


def bottlenecks(one: Json) -> list[tuple[str, str, str]]:
    """Return what such an entry waits for: a name, the share (may be empty) and the evidence."""
    return [
        (
            _WHAT.get(cause["what"]) or printable(cause["what"]),
            "" if cause.get("share") is None else percent(cause["share"]),
            printable(cause["evidence"]),
        )
        for cause in one["on"]
    ]


def predicted(prediction: Json) -> tuple[str, list[tuple[str, str]]]:
    """Return which way is the best, and each way with its seconds, the fastest first."""
    by_way = sorted(prediction["seconds"].items(), key=lambda item: item[1])
    best = printable(f"Best way to create sessions here: {prediction['best']}.")
    return best, [(printable(way), seconds_text(seconds)) for way, seconds in by_way]


def run_text(run: Json) -> str:
    """Return a run in a few words."""
    parts = [run["way"], devices_text(run["devices"])]
    if run["experiment"] != "trace":
        parts.insert(0, run["experiment"])
    if run.get("cache") not in (None, "warm"):
        parts.append(f"{run['cache']} cache")
    if run.get("error"):
        parts.append("failed")
    seconds = "" if run.get("wall") is None else f": {seconds_text(own_seconds(run))}"
    return printable(", ".join(parts) + seconds)


def model_text(document: Json) -> str:
    """Return the model's name and size."""
    return printable(tables.model_text(document["models"][0]))


def where_text(document: Json, separator: str, *packages: str) -> str:
    """Return the machine, and the releases of these packages."""
    releases = {name: document["releases"].get(name) for name in packages}
    parts = [f"{name} {release}" for name, release in releases.items() if release]
    return printable(separator.join([machine_text(document["machine"]), *parts]))


def devices_text(devices: Sequence[str]) -> str:
    """Return the devices in short: "cuda:0", "cuda:0-7", "cpu x2"."""
    try:
        return printable(describe(devices))
    except ValueError:
        return printable(", ".join(devices))


def percent(share: float) -> str:
    """Return a share in per cent; a small share is not rounded to 0."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"
