"""Findings about what a session's creation and first run do."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.measured import Measured, median, seconds_text
from ortmulti.bench.diagnose.probes import LEVELS

from .finding import Finding, Recipe, Start

_READING = ("read model", "read weights")
# Reading from memory or from a fast disk is not worth a finding.
_SLOW_BYTES_PER_SECOND = 1e9
_SLEEPS = 0.5
_SLOWER_THAN_CAT = 3.0


def optimization(measured: Measured, usual: str, best: str) -> Finding | None:
    """Graph optimization takes long: it can be done once, ahead."""
    seconds = measured.cause(usual, lambda name: name.startswith("optimization level"))
    creation = measured.creation(usual)
    if not creation or not seconds:
        return None
    model = measured.model
    by_level = {level: measured.cause(usual, f"optimization level {level}".__eq__) for level in (1, 2, 3)}
    evidence = [
        f"optimization level {level}: {seconds_text(spent)} of {usual}'s creation"
        for level, spent in by_level.items()
        if spent
    ]
    levels = {
        level: median(seconds for found in measured.experiment("levels") for seconds in found.get(level, ()))
        for level in LEVELS
    }
    texts = [f"{level} {seconds_text(spent)}" for level, spent in levels.items() if spent is not None]
    if texts:
        evidence.append(f"one session's creation by graph optimization level: {', '.join(texts)}")
    if measured.on_gpu and best == "shared":
        change = "optimize the model ahead; loading it takes it from the cache"
        command = f"ortmulti optimize -- {shlex.quote(str(model))}"
        recipe = Recipe.between(measured.devices, usual, best, "the model against its optimized form, shared")
    else:
        change = "let ONNX Runtime save the optimized model once, on a machine of this kind, and load that"
        command = (
            "options.optimized_model_filepath = 'optimized.onnx'; InferenceSession("
            f"{json.dumps(str(model))}, options)  # once; later load optimized.onnx"
        )
        what = f"the model against its optimized form, {usual}"
        recipe = Recipe.between(measured.devices, usual, usual, what, model="optimized")
    return Finding(
        id="optimization",
        title=f"graph optimization takes {seconds_text(seconds)} of {seconds_text(creation)} of creation with {usual} "
        f"({min(seconds / creation, 1.0):.0%})",
        cause=f"optimization level {max(by_level, key=lambda level: by_level[level])}",
        seconds=seconds,
        evidence=evidence,
        change=change,
        command=command,
        recipe=recipe,
    )


def slow_disk(measured: Measured, usual: str, _best: str) -> Finding | None:
    """Reading sleeps although the page cache was filled: a file system that is slow by itself."""
    run = measured.typical(usual)
    if run is None:
        return None
    spans = [span for span in run["spans"] if span["cause"] in _READING and span["cpu"] is not None]
    by_cause = {
        cause: sum(span["end"] - span["start"] for span in spans if span["cause"] == cause) for cause in _READING
    }
    seconds = sum(by_cause.values())
    asleep = sum(max(span["end"] - span["start"] - span["cpu"], 0.0) for span in spans)
    creation = measured.creation(usual)
    if not creation or asleep < _SLEEPS * seconds or not seconds:
        return None
    size = measured.model_bytes
    readers = len({(span["session"], span["device"]) for span in spans})
    saved = min(sum(run["causes"].get(cause, 0.0) for cause in _READING), asleep) * measured.scale(usual)
    # A reader may also have waited for a core; then reading the files by itself is fast.
    rate = _rate(measured, "warm")
    if rate is None or rate >= _SLOW_BYTES_PER_SECOND or size * readers / rate < 0.5 * asleep or saved <= 0:
        return None
    return Finding(
        id="slow disk",
        title=f"reading the model takes {seconds_text(saved)} of {seconds_text(creation)} of creation with {usual}, "
        f"asleep: its file system gives {rate / 1e6:.0f} MB/s from a warm page cache",
        cause=max(by_cause, key=lambda cause: by_cause[cause]),
        seconds=saved,
        evidence=[
            f"{size / 1e6:.3g} MB, read {readers} times in {seconds_text(seconds)}, of which the reading threads were "
            f"off the CPU for {seconds_text(asleep)}",
            "`cat` reads the files no faster, a moment after it has read them",
        ],
        change="keep the model on a local disk, or in memory (/dev/shm)",
        command=_copying(measured),
        recipe=Recipe.between(
            measured.devices,
            usual,
            usual,
            f"the model where it is against a copy in memory, {usual}",
            model="in memory",
        ),
    )


def _files(measured: Measured) -> str:
    """Return the model's file and those of its weights, quoted."""
    model = Path(measured.model)
    return shlex.join([str(model), *(str(model.parent / name) for name in measured.external)])


def _copying(measured: Measured) -> str:
    """Return commands that copy the model into memory, with the folders below it."""
    model, external = Path(measured.model), measured.external
    if all(Path(name).name == name for name in external):
        return f"cp -- {_files(measured)} /dev/shm/"
    return f"cd -- {shlex.quote(str(model.parent))} && cp --parents -- {shlex.join([model.name, *external])} /dev/shm/"


def _rate(measured: Measured, cache: str) -> float | None:
    """Return bytes a second at which `cat` reads the model's files."""
    found = measured.experiment("disk", cache=cache)
    return median(one["bytes"] / one["seconds"] for one in found if one["seconds"] > 0)


def cold(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """The first start after the model left the page cache takes longer."""
    usual = measured.document["settings"]["ways"][0]
    warm, from_disk = measured.watched_creation(usual, 1), measured.watched_creation(usual, 1, "cold")
    if not warm or not from_disk:
        return None
    first = measured.devices[:1]
    slow, fast = _rate(measured, "cold"), _rate(measured, "warm")
    evidence = [f"{usual} on {first[0]}, cold against warm"]
    if slow is not None:
        evidence.append(f"from a cold page cache `cat` reads the files at {slow / 1e6:.0f} MB/s")
    saved = from_disk - warm
    if slow and fast:
        # A larger loss than that of a reader in small pieces comes from other load on the machine.
        saved = min(saved, _SLOWER_THAN_CAT * measured.model_bytes * (1 / slow - 1 / fast))
    if saved < 0.1 * warm:
        return None
    return Finding(
        id="cold disk",
        title=f"from a cold page cache a session takes {seconds_text(warm + saved)} instead of {seconds_text(warm)}",
        cause="disk",
        seconds=saved,
        share=saved / from_disk,
        evidence=evidence,
        change="read the model's files before they are needed (on GPUs strategy shared reads them ahead), or keep them "
        "in memory",
        command=f"cat -- {_files(measured)} > /dev/null",
        recipe=Recipe(Start(usual, first, cache="cold"), Start(usual, first), f"cold against warm page cache, {usual}"),
    )


def waiting(measured: Measured, usual: str, best: str) -> Finding | None:
    """A thread sleeps inside a creation, and no known cause explains it."""
    run, creation = measured.typical(usual), measured.creation(usual)
    if run is None or not creation:
        return None
    seconds = measured.cause(usual, lambda name: name == "wait")
    spans = sorted(
        (span for span in run["spans"] if span["cause"] == "wait"), key=lambda span: span["start"] - span["end"]
    )
    if not spans or not seconds:
        return None
    longest = spans[0]
    length = longest["end"] - longest["start"]
    overlaps = measured.sessions > 1 and best != usual
    return Finding(
        id="wait",
        title=f"creation with {usual} sleeps for {seconds_text(seconds)} of {seconds_text(creation)}, the longest time "
        f'in "{longest["name"]}", thread {longest["thread"]}',
        cause="wait",
        seconds=seconds,
        evidence=[
            *map(_wait_text, spans[:4]),
            f"the longest takes {seconds_text(length)}: neither computing nor reading, and off the CPU",
        ],
        change=f'find out what "{longest["name"]}" waits for (py-spy or gdb on that thread)'
        + (f"; until then strategy {best} lets sessions wait at once" if overlaps else ""),
        command=None,
        recipe=Recipe.between(measured.devices, usual, best) if overlaps else None,
    )


def _wait_text(span: dict[str, Any]) -> str:
    where = f"session {span['session']}" if span["session"] is not None else "no session"
    return (
        f'"{span["name"]}", thread {span["thread"]}, {where} on {span["device"] or "no device"}: '
        f"{seconds_text(span['end'] - span['start'])} from {span['start']:.3f} s on"
    )


def algorithm_search(measured: Measured, usual: str, _best: str) -> Finding | None:
    """cuDNN tries every algorithm in the first run."""
    if not measured.on_gpu:
        return None
    chosen = measured.document["settings"]["session"].get("provider_options", {}).get("cudnn_conv_algo_search")
    if chosen not in (None, "EXHAUSTIVE"):
        return None
    seconds, wall = measured.cause(usual, lambda name: name == "algorithm search"), measured.wall(usual)
    if not wall or not seconds:
        return None
    options = {"provider_options": {"cudnn_conv_algo_search": "HEURISTIC"}}
    return Finding(
        id="algorithm search",
        title=f"the first run spends {seconds_text(seconds)} on trying cuDNN's algorithms (EXHAUSTIVE, the default)",
        cause="algorithm search",
        seconds=seconds,
        share=seconds / wall,
        evidence=[f"what the first run of convolutions takes longer than the second, {usual}"],
        change="choose algorithms by cuDNN's heuristics; later runs may be slower, so measure these too",
        command="provider_options={'cudnn_conv_algo_search': 'HEURISTIC'}",
        recipe=Recipe.between(
            measured.devices,
            usual,
            usual,
            f"EXHAUSTIVE against HEURISTIC until the first answers, {usual}",
            until="answered",
            settings=options,
        ),
    )


RULES = (optimization, slow_disk, cold, waiting, algorithm_search)
