"""Findings of a diagnosis: each rule looks at what was measured for something that costs time, and yields some.

Rules are independent. Two may find the same seconds, and only runs of the changes show which can be saved.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.measured import (
    LEAST_SHARE,
    Measured,
    median,
    prediction,
    seconds_text,
    serialization,
    visible_devices,
)


@dataclass(frozen=True)
class Recipe:
    """A change that can be verified: starts before and after it are run in turns."""

    # Arguments of `Bench.trace`, whose "model" may be "optimized" (by ONNX Runtime, before) or "in memory" (a copy); of
    # `Bench.driver_start` where `until` is "driver".
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    what: str  # description of the comparison
    # What ends the measured time: all sessions are "created"; the first runs are "answered"; the "driver" has started,
    # with nothing else.
    until: str = "created"


@dataclass(eq=False)
class Finding:
    """One thing that costs time."""

    id: str  # the rule's name
    title: str  # one sentence with its figures
    cause: str  # one of `ortmulti.bench.diagnose.causes.CAUSES`, or another text
    seconds: float  # saving of a start on all devices; 0 if unknown
    evidence: list[str]  # the sources of the figures, a sentence each
    change: str  # what to do, one sentence
    command: str | None = None  # a command, or a line of Python, that does it
    share: float = 0.0  # saving as a share of what it is a part of; `conclude` fills in that of the creation
    recipe: Recipe | None = None  # how to verify it; None if nothing can be run
    verified: Mapping[str, Any] | None = None  # result of the verification, see `verify`

    def as_json(self) -> dict[str, Any]:
        """Return the finding as the document has it."""
        return {name: value for name, value in vars(self).items() if name != "recipe"}


def _between(
    measured: Measured, before: str, after: str, what: str = "", *, until: str = "created", **changes: Any
) -> Recipe:
    """Compare a start in one way with a start in another, or with one that has these arguments of `Bench.trace`."""
    first, second = ({"way": way, "devices": measured.devices} for way in (before, after))
    return Recipe(first, {**second, **changes}, what or f"{before} against {after}", until)


# --- The way in which sessions are created ----------------------------------------------------------------------------

# From here on a session's creation keeps other threads from creating theirs.
_HOLDS = 0.3
# Below this share of the best way's time another one is clearly better.
_BETTER = 0.8


def strategy(measured: Measured) -> Iterator[Finding]:
    """Another way is faster, because of the GIL or another bottleneck of the usual way."""
    usual, best = measured.usual, measured.best
    before, after = measured.before, measured.creation(best)
    if usual == best or not after:
        return
    held = measured.gil_share("threads") if measured.sessions > 1 and best not in ("threads", "sequential") else None
    if held is not None and held >= _HOLDS and usual in ("sequential", "threads"):
        name, cause = "gil", "wait for the GIL"
        sequential, threads = measured.creation("sequential") or before, measured.speedup("threads")
        title = "" if threads is None else f"threads are {threads:.2f}x as fast as sequential: "
        title += f"{measured.release} holds the GIL for {held:.0%} of creation; with strategy {best} "
        title += f"{sequential / after:.1f}x (measured)"
    else:
        name = cause = "strategy"
        ratio = before / after
        title = f"{usual} takes {seconds_text(before)} to create the sessions on {measured.on}; strategy {best} is "
        title += f"{ratio:.{1 if ratio >= 1.95 else 2}f}x as fast (measured)"
    yield Finding(
        id=name,
        title=title,
        cause=cause,
        seconds=before - after,
        evidence=_ways(measured),
        change=f"create the sessions with {best}",
        command=_command(measured, best),
        recipe=_between(
            measured, usual, best, f"{usual} against {best}, {measured.sessions} sessions on {measured.on}"
        ),
    )


def _ways(measured: Measured) -> list[str]:
    """Return the seconds of each way, and what the interesting ones serialize on."""
    found = []
    for way in measured.ways:
        if interval := measured.creation_interval(way):
            text = f"{way}: {seconds_text(interval.median)}"
            if interval.lowest < interval.highest:
                text += f" ({seconds_text(interval.lowest)} to {seconds_text(interval.highest)})"
            if way != "sequential" and (factor := measured.speedup(way)):
                text += f", {factor:.2f}x as fast as sequential"
            found.append(text)
    for one in serialization(measured):
        if one["way"] in (measured.usual, measured.best, "threads"):
            found += [f"{one['way']}, {part['what']}: {part['evidence']}" for part in one["on"]]
    return found


def _command(measured: Measured, way: str) -> str:
    model, devices = json.dumps(measured.model), json.dumps(measured.devices)
    session = f"[onnxruntime.InferenceSession({model}) for each of {devices}"
    return {
        "shared": f"ortmulti.load({model}, {devices})",
        "native": f"ortmulti.create_sessions({model}, {devices}, loading=ortmulti.Loading(strategy='native'))",
        "processes": f"for each of {devices}, in a process: ortmulti.load({model}, device, share='host')",
        "threads": f"{session}, each in a thread]",
        "sequential": f"{session}]",
    }[way]


# --- What a session's creation and first run do -----------------------------------------------------------------------

OPTIMIZATIONS = tuple(f"optimization level {level}" for level in (1, 2, 3))
_READING = ("read model", "read weights")
# Reading from memory or from a fast disk is not worth a finding.
_SLOW_BYTES_PER_SECOND = 1e9
_SLEEPS = 0.5
_SLOWER_THAN_CAT = 3.0


def optimization(measured: Measured) -> Iterator[Finding]:
    """Graph optimization takes long: it can be done once, ahead."""
    usual, model = measured.usual, measured.model
    seconds, creation = measured.cause(usual, *OPTIMIZATIONS), measured.before
    if not seconds:
        return
    by_level = {cause: measured.cause(usual, cause) for cause in OPTIMIZATIONS}
    evidence = [f"{cause}: {seconds_text(spent)} of {usual}'s creation" for cause, spent in by_level.items() if spent]
    if measured.gpus and measured.best == "shared":
        change = "optimize the model ahead; loading it takes it from the cache"
        command = f"ortmulti optimize -- {shlex.quote(model)}"
        recipe = _between(measured, usual, "shared", "the model against its optimized form, shared")
    else:
        change = "let ONNX Runtime save the optimized model once, on a machine of this kind, and load that"
        command = (
            "options.optimized_model_filepath = 'optimized.onnx'; InferenceSession("
            f"{json.dumps(model)}, options)  # once; later load optimized.onnx"
        )
        what = f"the model against its optimized form, {usual}"
        recipe = _between(measured, usual, usual, what, model="optimized")
    yield Finding(
        id="optimization",
        title=f"graph optimization takes {seconds_text(seconds)} of {seconds_text(creation)} of creation with {usual} "
        f"({min(seconds / creation, 1.0):.0%})",
        cause=max(by_level, key=lambda cause: by_level[cause]),
        seconds=seconds,
        evidence=evidence,
        change=change,
        command=command,
        recipe=recipe,
    )


def slow_disk(measured: Measured) -> Iterator[Finding]:
    """Reading sleeps although the page cache was filled: a file system that is slow by itself."""
    usual, size = measured.usual, measured.model_bytes
    run = measured.typical(usual)
    if run is None:
        return
    spans = [span for span in run["spans"] if span["cause"] in _READING and span["cpu"] is not None]
    lengths = [span["end"] - span["start"] for span in spans]
    seconds = sum(lengths)
    asleep = sum(max(length - span["cpu"], 0.0) for span, length in zip(spans, lengths, strict=True))
    readers = len({(span["session"], span["device"]) for span in spans})
    saved = min(sum(run["causes"].get(cause, 0.0) for cause in _READING), asleep) * measured.scale(usual)
    if asleep < _SLEEPS * seconds or saved <= 0:
        return
    # A reader may also have waited for a core; then reading the files by itself is fast.
    rate = measured.reading_rate("warm")
    if rate is None or rate >= _SLOW_BYTES_PER_SECOND or size * readers / rate < 0.5 * asleep:
        return
    # `cp` into one folder would lose the folders below the model's.
    model, command = Path(measured.model), f"cp -- {_files(measured)} /dev/shm/"
    if any(Path(name).name != name for name in measured.external):
        files = shlex.join([model.name, *measured.external])
        command = f"cd -- {shlex.quote(str(model.parent))} && cp --parents -- {files} /dev/shm/"
    what = f"the model where it is against a copy in memory, {usual}"
    yield Finding(
        id="slow disk",
        title=f"reading the model takes {seconds_text(saved)} of {seconds_text(measured.before)} of creation with "
        f"{usual}, asleep: its file system gives {rate / 1e6:.0f} MB/s from a warm page cache",
        cause=max(_READING, key=lambda cause: measured.cause(usual, cause)),
        seconds=saved,
        evidence=[
            f"{size / 1e6:.3g} MB, read {readers} times in {seconds_text(seconds)}, of which the reading threads were "
            f"off the CPU for {seconds_text(asleep)}",
            "`cat` reads the files no faster, a moment after it has read them",
        ],
        change="keep the model on a local disk, or in memory (/dev/shm)",
        command=command,
        recipe=_between(measured, usual, usual, what, model="in memory"),
    )


def _files(measured: Measured) -> str:
    """Return the model's file and those of its weights, quoted."""
    model = Path(measured.model)
    return shlex.join([str(model), *(str(model.parent / name) for name in measured.external)])


def cold(measured: Measured) -> Iterator[Finding]:
    """The first start after the model left the page cache takes longer."""
    usual = measured.document["settings"]["ways"][0]
    warm, from_disk = measured.watched_creation(usual, 1), measured.watched_creation(usual, 1, "cold")
    if not warm or not from_disk:
        return
    first = {"way": usual, "devices": measured.devices[:1]}
    slow, fast = measured.reading_rate("cold"), measured.reading_rate("warm")
    evidence = [f"{usual} on {measured.devices[0]}, cold against warm"]
    if slow is not None:
        evidence.append(f"from a cold page cache `cat` reads the files at {slow / 1e6:.0f} MB/s")
    saved = from_disk - warm
    if slow and fast:
        # A larger loss than that of a reader in small pieces comes from other load on the machine.
        saved = min(saved, _SLOWER_THAN_CAT * measured.model_bytes * (1 / slow - 1 / fast))
    if saved < 0.1 * warm:
        return
    yield Finding(
        id="cold disk",
        title=f"from a cold page cache a session takes {seconds_text(warm + saved)} instead of {seconds_text(warm)}",
        cause="disk",
        seconds=saved,
        share=saved / from_disk,
        evidence=evidence,
        change="read the model's files before they are needed (on GPUs strategy shared reads them ahead), or keep them "
        "in memory",
        command=f"cat -- {_files(measured)} > /dev/null",
        recipe=Recipe({**first, "cache": "cold"}, first, f"cold against warm page cache, {usual}"),
    )


def waiting(measured: Measured) -> Iterator[Finding]:
    """A thread sleeps inside a creation, and no known cause explains it."""
    usual, best = measured.usual, measured.best
    run, seconds = measured.typical(usual), measured.cause(usual, "wait")
    spans = [span for span in (run["spans"] if run else ()) if span["cause"] == "wait"]
    if not spans or not seconds:
        return
    spans.sort(key=lambda span: span["start"] - span["end"])
    name, length = spans[0]["name"], spans[0]["end"] - spans[0]["start"]
    overlaps = measured.sessions > 1 and best != usual
    yield Finding(
        id="wait",
        title=f"creation with {usual} sleeps for {seconds_text(seconds)} of {seconds_text(measured.before)}, the "
        f'longest time in "{name}", thread {spans[0]["thread"]}',
        cause="wait",
        seconds=seconds,
        evidence=[
            *map(_wait_text, spans[:4]),
            f"the longest takes {seconds_text(length)}: neither computing nor reading, and off the CPU",
        ],
        change=f'find out what "{name}" waits for (py-spy or gdb on that thread)'
        + (f"; until then strategy {best} lets sessions wait at once" if overlaps else ""),
        recipe=_between(measured, usual, best) if overlaps else None,
    )


def _wait_text(span: Mapping[str, Any]) -> str:
    where = f"session {span['session']}" if span["session"] is not None else "no session"
    return (
        f'"{span["name"]}", thread {span["thread"]}, {where} on {span["device"] or "no device"}: '
        f"{seconds_text(span['end'] - span['start'])} from {span['start']:.3f} s on"
    )


def algorithm_search(measured: Measured) -> Iterator[Finding]:
    """cuDNN tries every algorithm in the first run."""
    usual = measured.usual
    chosen = measured.document["settings"]["session"].get("provider_options", {}).get("cudnn_conv_algo_search")
    seconds, wall = measured.cause(usual, "algorithm search"), measured.wall(usual)
    if not measured.gpus or chosen not in (None, "EXHAUSTIVE") or not wall or not seconds:
        return
    change = {"cudnn_conv_algo_search": "HEURISTIC"}
    what = f"EXHAUSTIVE against HEURISTIC until the first answers, {usual}"
    yield Finding(
        id="algorithm search",
        title=f"the first run spends {seconds_text(seconds)} on trying cuDNN's algorithms (EXHAUSTIVE, the default)",
        cause="algorithm search",
        seconds=seconds,
        share=seconds / wall,
        evidence=[f"what the first run of convolutions takes longer than the second, {usual}"],
        change="choose algorithms by cuDNN's heuristics; later runs may be slower, so measure these too",
        command=f"provider_options={change}",
        recipe=_between(measured, usual, usual, what, until="answered", settings={"provider_options": change}),
    )


def first_runs(measured: Measured) -> Iterator[Finding]:
    """Searches for algorithms wait for each other in a process, and not in several."""
    best = measured.best
    here, apart = measured.wall(best), measured.wall("processes")
    searching = measured.cause(best, "algorithm search")
    if len(measured.gpus) < 2 or best == "processes" or not here or not apart or apart > _BETTER * here:
        return
    if here - apart > searching:  # something else makes the difference
        return
    yield Finding(
        id="first runs",
        title=f"first runs of one process wait for each other: the last answer comes after {seconds_text(here)} with "
        f"{best}, and after {seconds_text(apart)} with processes",
        cause="algorithm search",
        seconds=here - apart,
        share=(here - apart) / here,
        evidence=[f"{best} spends {seconds_text(searching)} on trying cuDNN's algorithms, under locks of the process"],
        change="give each GPU a process where the first answers matter; what a first run finds cannot be handed over",
        command=_command(measured, "processes"),
        recipe=_between(
            measured, best, "processes", f"{best} against processes until the first answers", until="answered"
        ),
    )


# --- The CUDA driver, and the machine ---------------------------------------------------------------------------------


def driver(measured: Measured) -> Iterator[Finding]:
    """The driver initializes all GPUs before other work on them, for each process if nothing keeps it loaded."""
    seconds, gpus, usual, best = measured.driver(), measured.gpus, measured.usual, measured.best
    if not seconds:
        return
    floor = seconds["floor"]
    start = f"the driver's start takes {seconds_text(floor)}"

    def driver_starts(what: str, **changes: bool) -> Recipe:
        return Recipe({"gpus": gpus}, {"gpus": gpus, **changes}, what, "driver")

    held, alone = (median(one["driver_floor"] for one in measured.experiment(name)) for name in ("held", "visible"))
    facts = measured.document["environment"].get("gpus", ())
    if off := ", ".join(gpu["device"] for gpu in facts if gpu["persistence_mode"] is False):
        title = f"persistence mode is off on {off}: {start}"
        evidence = [f"NVML says that persistence mode is off on {off}"]
        saved = 0.0
        if held is not None:
            title += f", and {seconds_text(held)} where the driver stays loaded"
            evidence.append(f"with something that keeps the driver loaded the same takes {seconds_text(held)}")
            saved = max(floor - held, 0.0)
        what = "cuInit and the contexts, against the same while NVML keeps the driver loaded, as persistence mode does"
        yield Finding(
            id="persistence mode",
            title=title,
            cause="cuInit",
            seconds=saved,
            evidence=evidence,
            change="turn persistence mode on (as root; nvidia-persistenced keeps it after a restart)",
            command="nvidia-smi -pm 1",
            recipe=driver_starts(what, held=True) if saved else None,
        )
    visible = measured.document["settings"].get("visible_gpus") or 0
    if visible > len(gpus) and alone is not None:
        yield Finding(
            id="visible devices",
            title=f"{visible} GPUs are visible and {len(gpus)} used: {start} instead of {seconds_text(alone)}",
            cause="cuInit",
            seconds=floor - alone,
            evidence=["cuInit and the contexts alone, with all GPUs visible and with the used ones"],
            change="let the process see the GPUs that it uses; they are then cuda:0 and so on",
            command=f"CUDA_VISIBLE_DEVICES={visible_devices(gpus)}",
            recipe=driver_starts("cuInit and the contexts", alone=True),
        )
    if usual == "shared":  # which starts the driver while modules are imported
        return
    before = measured.cause(usual, "imports", "libraries")
    evidence = [f"cuInit and the contexts alone take {seconds_text(floor)}"]
    if "at once" in seconds:
        at_once, one_by_one = seconds["at once"], seconds["one by one"]
        how = "one after another" if at_once > 0.7 * one_by_one else "side by side"
        times = f"contexts at once take {seconds_text(at_once)}, one by one {seconds_text(one_by_one)}"
        evidence.append(f"{times}: the driver makes them {how}")
    yield Finding(
        id="driver",
        title=f"the CUDA driver's start takes {seconds_text(floor)}, and imports and libraries {seconds_text(before)} "
        "before it",
        cause="cuInit",
        seconds=min(floor, before) if best == "shared" else 0.0,  # what cannot be tried must not be the first
        evidence=evidence,
        change="start the driver in the background before other modules are imported",
        command=f"ortmulti.prewarm({list(gpus)})",
        recipe=_between(measured, usual, best) if best == "shared" else None,
    )


def module_loading(measured: Measured) -> Iterator[Finding]:
    """CUDA_MODULE_LOADING=EAGER loads every kernel of the libraries."""
    value = measured.document["machine"].get("environment", {}).get("CUDA_MODULE_LOADING", "")
    if value.upper() != "EAGER" or not measured.gpus:
        return
    usual = measured.usual
    seconds = measured.cause(usual, "libraries", "context", "load kernels")
    what = f"EAGER against LAZY until the first answers, {usual}"
    change = {"CUDA_MODULE_LOADING": "LAZY"}
    yield Finding(
        id="module loading",
        title=f"CUDA_MODULE_LOADING=EAGER loads all kernels of the CUDA libraries: {seconds_text(seconds)}",
        cause="load kernels",
        seconds=seconds,
        evidence=["the environment says so"],
        change="leave kernels to be loaded at their first use",
        command="CUDA_MODULE_LOADING=LAZY",
        recipe=_between(measured, usual, usual, what, until="answered", environment=change),
    )


_BUSY_SHARE = 0.25
_SLOW_CLOCK = 0.8
_COMPILED_BYTES = 10**6


def machine(measured: Measured) -> Iterator[Finding]:
    """The machine's other work and settings, whose cost cannot be measured."""
    around = measured.document["environment"]
    cores, busy, governor = around.get("cores"), around.get("busy_cores", 0.0), around.get("governor")
    compiled = around.get("compiled_kernels", 0)
    shared, slow = {}, {}
    for gpu in around.get("gpus", ()):
        limit, highest = gpu["clock_limit"], gpu["clock_max"]
        if gpu["processes"]:
            utilization = "" if gpu["utilization"] is None else f", {gpu['utilization']}% busy"
            shared[gpu["device"]] = f"{gpu['processes']} processes{utilization}"
        if gpu["slowed_by"]:
            slow[gpu["device"]] = f"slowed by {' and '.join(gpu['slowed_by'])}, {gpu['clock']} MHz"
        elif limit and highest and limit < _SLOW_CLOCK * highest:
            slow[gpu["device"]] = f"limited to {limit} of {highest} MHz"
    notes = (
        (
            cores and busy >= _BUSY_SHARE * cores,
            "busy cores",
            f"other processes keep {busy:.1f} cores busy, of which this one may use {cores}",
            ["all cores' times before the first measurement"],
            "measure again, or load models, while the machine has nothing else to do",
            None,
        ),
        (
            governor in ("powersave", "conservative"),
            "governor",
            f"the CPU's frequency governor is {governor}",
            ["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"],
            "let the CPU run at its full clock while models are loaded",
            "cpupower frequency-set -g performance",
        ),
        (
            shared,
            "busy GPUs",
            f"other processes compute on {', '.join(shared)}",
            [f"{device}: {text}" for device, text in shared.items()],
            "use GPUs that are free, or measure again when they are",
            "nvidia-smi",
        ),
        (
            slow,
            "clocks",
            f"the clock is held down on {', '.join(slow)}",
            [f"{device}: {text}" for device, text in slow.items()],
            "look at the power limit, the cooling and the application clocks",
            "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
        ),
        (
            compiled >= _COMPILED_BYTES,
            "compiled kernels",
            f"at the first start the driver compiled {compiled / 1e6:.0f} MB of kernels, which the libraries lack for "
            "this kind of GPU",
            ["~/.nv/ComputeCache, or CUDA_CACHE_PATH, before and after the first start"],
            "install a newer onnxruntime-gpu, or keep this folder and let CUDA_CACHE_MAXSIZE be large: a start without "
            "it takes longer, often minutes",
            None,
        ),
    )
    for condition, name, title, evidence, change, command in notes:
        if condition:
            yield Finding(name, title, "machine", 0.0, evidence, change, command)


RULES = (
    strategy,
    optimization,
    slow_disk,
    cold,
    waiting,
    algorithm_search,
    first_runs,
    driver,
    module_loading,
    machine,
)
"""All rules. A rule's place settles ties."""


# --- Conclusions ------------------------------------------------------------------------------------------------------

# The smallest saving that is worth a change, besides a share of the creation.
LEAST_SECONDS = 0.02


def conclude(document: dict[str, Any]) -> list[Finding]:
    """Fill in the conclusions from a document's runs, however few they are: "serialization", "prediction", "findings".

    Returns:
        The findings that are worth a change, the largest saving first, each with a way to verify it. Then findings
        without known seconds.
    """
    measured = conclude_again(document)
    found = _find(measured) if measured.usual else []
    document["findings"] = [finding.as_json() for finding in found]
    return found


def conclude_again(document: dict[str, Any]) -> Measured:
    """Fill in a document's "serialization" and "prediction" alone, after further runs."""
    measured = Measured(document)
    document["serialization"] = serialization(measured)
    document["prediction"] = prediction(measured)
    return measured


def _find(measured: Measured) -> list[Finding]:
    least = max(LEAST_SECONDS, LEAST_SHARE * measured.before)
    worth = []
    for finding in itertools.chain.from_iterable(rule(measured) for rule in RULES):
        finding.seconds = max(finding.seconds, 0.0)
        finding.share = min(max(finding.share or finding.seconds / measured.before, 0.0), 1.0)
        if finding.seconds == 0.0 or finding.seconds >= least:
            worth.append(finding)
    if not any(finding.seconds for finding in worth):
        worth.append(nothing(measured))
    # Findings without known savings come last, behind "nothing to gain".
    return sorted(worth, key=lambda finding: (finding.id != "nothing" and not finding.seconds, -finding.seconds))


def nothing(measured: Measured) -> Finding:
    """Return the finding that no change is worth it."""
    seconds = {way: seconds_text(measured.creation(way) or 0.0) for way in measured.ways}
    return Finding(
        id="nothing",
        title=f"nothing to gain: {measured.usual} creates the sessions on {measured.on} in "
        f"{seconds[measured.usual]}, and no change that was tried is certain to shorten that",
        cause="none",
        seconds=0.0,
        evidence=[f"{way} creates the sessions in {text}" for way, text in seconds.items()],
        change="keep what you have",
    )
