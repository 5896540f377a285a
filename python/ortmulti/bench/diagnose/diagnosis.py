"""A whole diagnosis: its measurements in order, and its partial result after Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime.machine import read
from ortmulti.bench import strategies
from ortmulti.bench.diagnose.bench import Bench, EndedError, find_devices, verify
from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import page_cache, results
from ortmulti.bench.measure.devices import check_measurable
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.bench.measure.rounds import rotated, round_numbers
from ortmulti.bench.models import sample_inputs
from ortmulti.devices.device import Device, name_devices
from ortmulti.devices.nvml import Nvml
from ortmulti.errors import Error, InvalidArgument, LibraryError

__all__ = ["diagnose", "publishable"]

# The shares of the budget after which no further repetition of a trace begins, and no further experiment.
_TRACES, _EXPERIMENTS = 0.5, 0.75
_WATCHED_SECONDS = 0.2


def diagnose(
    model: str | os.PathLike[str],
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    *,
    ways: Sequence[str] | None = None,
    repeat: int | None = None,
    budget: float | None = None,
    quick: bool = False,
    batch: int = 1,
    sequence: int = 16,
    inputs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    timeout: float = 600.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Measure, in fresh processes, where a model's start spends its time and what would shorten it.

    Every way to create sessions is traced on the first device and on all devices. Experiments show what each way waits
    for. The change that would help most is verified by running it. This process starts neither ONNX Runtime nor CUDA.

    Ctrl-C ends the measurements, not the call: it returns the results so far. A second Ctrl-C interrupts as usual.

    Args:
        model: Path of an .onnx file.
        devices: A device for each session, as for `load`; a device may be named more than once. "all" is the CPU on a
            machine without NVIDIA hardware.
        ways: Strategies (default: all). Findings say how much of the first one's time a change would save.
        repeat: Most measurements of each way; default 5, with `quick` 1.
        budget: Seconds after which no further repetition begins (default 50, with `quick` 20). Each way is measured at
            least once.
        quick: Measure each way and experiment once.
        batch: Size of the dynamic batch dimension of the inputs.
        sequence: Size of their other dynamic dimensions.
        inputs: Arrays by the inputs' names. Default: random ones that fit the model's declaration.
        settings: Fields of `ortmulti.bench.strategies.SessionSettings` for every session.
        timeout: Seconds that one measurement may take.
        progress: Called before each measurement with the number of finished ones, an estimate of all, and the name of
            the next.

    Returns:
        A document of kind "diagnose" for `json.dumps`: "runs", "serialization", "prediction" and "findings" (the first
        would help most). "partial" is the reason if the diagnosis is not complete, such as "interrupted".

    Raises:
        NoSuchFile: The model, or a file that it names, does not exist.
        InvalidArgument: An unknown way, device or setting; arguments that contradict each other.
        InvalidProtobuf: The file is no model.
        DeviceError: A device does not exist.
        Error: The model cannot be run in any of the ways; the message says why.
    """
    if quick and repeat is not None and repeat > 1:
        raise InvalidArgument(f"a quick diagnosis measures each way once, and repeat is {repeat}")
    if inputs is not None and (batch != 1 or sequence != 16):
        raise InvalidArgument("batch and sequence are for inputs that are made up, and inputs were given")
    named = name_devices(devices)
    check_measurable(named)
    ways = strategies.names() if ways is None else tuple(ways)
    repeat = repeat if repeat is not None else 1 if quick else 5
    budget = budget if budget is not None else 20.0 if quick else 50.0
    for way in ways:
        strategies.check_name(way)
    if not ways:
        raise InvalidArgument(f"no way to create sessions was named; there are {', '.join(strategies.names())}")
    if len(set(ways)) < len(ways):
        raise InvalidArgument(f"a way is named twice: {', '.join(ways)}")
    for what, seconds in (("budget", budget), ("timeout", timeout)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise InvalidArgument(f"{what} is a number of seconds above 0, not {seconds}")
    for what, number in (("repeat", repeat), ("batch", batch), ("sequence", sequence)):
        if number < 1:
            raise InvalidArgument(f"{what} is at least 1, not {number}")
    known = strategies.SessionSettings.__dataclass_fields__
    if unknown := set(settings or ()) - set(known):
        raise InvalidArgument(f"unknown settings {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    model = Path(model)
    files = (model, *page_cache.external_files(model))
    found = find_devices(None if named is None else [str(device) for device in named], timeout)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        bench = Bench(
            devices=tuple(found["devices"]),
            ways=ways,
            repeat=repeat,
            budget=budget,
            quick=quick,
            settings=dict(settings or {}),
            timeout=timeout,
            files=files,
            folder=Path(folder),
            progress=progress or (lambda _done, _total, _text: None),
        )
        if inputs is None:
            try:
                inputs = sample_inputs(model, batch, sequence)
            except LibraryError as error:
                raise LibraryError(f"without inputs, they are made from what the model declares: {error}") from error
        write_arrays(bench.folder / "feeds.npz", inputs)
        return _measure(bench, found, {"batch": batch, "sequence": sequence})


def publishable(document: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Copy a diagnosis for others to read: its commands name the model without the folder that the user gave.

    A diagnosis that is reported again has no folder any more; its model is `Path()`.
    """
    folder = str(model).removesuffix(model.name) if model.name else ""
    findings = [dict(finding) for finding in document["findings"]]
    for finding in findings:
        if folder and finding.get("command"):
            finding["command"] = finding["command"].replace(folder, "")
    return {**document, "findings": findings}


@contextlib.contextmanager
def _partial(document: dict[str, Any]) -> Iterator[None]:
    """Say in the document why the body has ended early, after Ctrl-C or where measuring cannot go on."""
    try:
        yield
    except KeyboardInterrupt:
        document["partial"] = "interrupted"
    except EndedError as reason:
        document["partial"] = str(reason)


def _measure(bench: Bench, found: Mapping[str, Any], inputs: Mapping[str, int]) -> dict[str, Any]:
    model = results.model_facts(bench.model, bench.files[1:])
    model["external"] = [os.path.relpath(file, bench.model.parent) for file in bench.files[1:]]
    known: dict[str, Any] = {"environment": {}, "partial": None, "runs": bench.runs}
    with _partial(known):
        around = known["environment"] = look(found["gpus"])
        bench.held_open_helps = any(gpu["persistence_mode"] is False for gpu in around["gpus"])
        kept = compiled_kernels()
        _warm_up(bench)
        around["compiled_kernels"] = max(0, compiled_kernels() - kept) if cuda_devices(bench.devices) else 0
        _traces(bench)
        if not any("error" not in run for run in bench.runs):
            raise Error(f"{bench.model} cannot be run here in any way: {bench.runs[0]['error']}")
        _experiments(bench, found["visible"])
    settings = {name: getattr(bench, name) for name in ("devices", "ways", "repeat", "budget", "quick")}
    document = results.document(
        "diagnose",
        settings={
            **settings,
            **inputs,
            "session": bench.settings_for(bench.devices),
            "visible_gpus": found["visible"],
        },
        models=[{**model, "given": str(bench.model)}],  # for the commands of findings
        **known,
    )
    findings = conclude(document)
    if document["partial"] is None:
        with _partial(document):
            verify(document, findings, bench)
    document["models"][0].pop("given")
    document["seconds"] = bench.budget - bench.left()
    return document


def look(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Observe the machine for a fifth of a second, in which this process does nothing; `gpus` as of `probes.devices`.

    Returns:
        "cores": how many this process may use. "busy_cores": how many are busy with others. "governor": of the
        frequency. "gpus": "device", "persistence_mode" and the fields of `ortmulti.devices.nvml.GpuActivity`, of
        which "processes" are only counted. Empty without NVML.
    """
    before = _busy_ticks()
    time.sleep(_WATCHED_SECONDS)
    ticks = _busy_ticks() - before
    found = []
    # Closed at once: without persistence mode an open NVML keeps the driver loaded, and its start is measured.
    if gpus and (nvml := Nvml.open()) is not None:
        with nvml:
            for gpu in gpus:
                identity = (gpu["uuid"], gpu["pci_bus_id"])
                known, activity = nvml.gpu(*identity), nvml.activity(*identity)
                if known is not None and activity is not None:
                    facts = {"device": gpu["device"], "persistence_mode": known.persistence_mode, **vars(activity)}
                    found.append({**facts, "processes": len(activity.processes)})
    return {
        "cores": _core.usable_cores(),
        "busy_cores": ticks / os.sysconf("SC_CLK_TCK") / _WATCHED_SECONDS,
        "governor": read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "gpus": found,
    }


def compiled_kernels() -> int:
    """Return the bytes of kernels that the driver compiled for this user, since libraries have none for the GPU."""
    folder = Path(os.environ.get("CUDA_CACHE_PATH") or Path.home() / ".nv/ComputeCache")
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process has removed it
            size += path.stat().st_size if path.is_file() else 0
    return size


def _busy_ticks() -> int:
    """Ticks of all cores that were not idle nor waiting for a disk; 0 if the kernel does not say."""
    first = (read(Path("/proc/stat")) or "").partition("\n")[0].split()
    numbers = [int(number) for number in first[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    return sum(numbers) - sum(numbers[3:5])


def _warm_up(bench: Bench) -> None:
    """Bring the libraries into the page cache, and the model's entry into that of optimized models, by starts."""
    # onnxruntime's package and ortmulti open different libraries.
    groups = [("sequential", "threads", "processes"), ("native", "shared")]
    if any(device != "cpu" for device in bench.devices):
        groups.append(("shared",))
    for way in dict.fromkeys(way for group in groups for way in [way for way in bench.ways if way in group][:1]):
        bench.trace(way, bench.devices[:1], "uncounted")


def _traces(bench: Bench) -> None:
    """Run every way on all devices, in turns, within the repetitions and the budget. These figures compare the ways.

    Each way is traced there once, since causes vary less between starts than the gains of changes. On the first device
    the way that findings are about is traced; the others while there is time, unless the diagnosis is quick.
    """

    def plain(order: Sequence[str]) -> None:
        for way in order:
            bench.trace(way, bench.devices, "plain")

    # The starts on all devices come first, so that the main figures exist after an interruption.
    plain(bench.ways)
    for way in bench.ways:
        bench.trace(way, bench.devices)
    for place, way in enumerate(bench.ways if len(bench.devices) > 1 else ()):
        if place == 0 or (not bench.quick and bench.left(_TRACES) >= 0):
            bench.trace(way, bench.devices[:1])
    for number in round_numbers(bench.repeat - 1, bench.left(_TRACES), least=0):
        plain(rotated(bench.ways, number + 1))


def _experiments(bench: Bench, visible: int | None) -> None:
    """Measure what each way waits for, and which of the machine's settings cost time, as far as the budget allows."""
    gpus = cuda_devices(bench.devices)
    for number in round_numbers(1 if bench.quick else 3, bench.left(_EXPERIMENTS)):
        _gil(bench)
        if gpus:
            driver(bench, gpus, visible or 0)
        if number < 2:  # the second one says whether the first one met another load by chance
            _cold(bench)


def _gil(bench: Bench) -> None:
    """The heartbeat beside a creation, for onnxruntime's sessions and for ortmulti's."""
    [device] = bench.devices[:1]
    settings = bench.settings_for([device])
    spec: dict[str, Any] = {"model": str(bench.model), "device": device, "settings": settings}
    spec["threads"] = settings["intra_op_num_threads"]
    for library, ways in (("onnxruntime", ("threads", "sequential", "processes")), ("ortmulti", ("native", "shared"))):
        way = next((way for way in ways if way in bench.ways), None)
        if way is not None:
            page_cache.warm(bench.files)
            measure = functools.partial(bench.fresh, "ortmulti.bench.gil", library=library, **spec)
            bench.experiment("gil", way, bench.devices[:1], measure, library=library)


def driver(bench: Bench, gpus: Sequence[str], visible: int) -> None:
    """The driver's start alone: contexts one by one and at once; with the used GPUs visible alone; kept loaded."""
    bench.driver_start("contexts", gpus, at_once=False)
    if len(gpus) > 1:
        bench.experiment("contexts", "native", gpus, lambda: bench.probe("contexts", devices=list(gpus)), at_once=True)
    if visible > len(gpus):
        bench.driver_start("visible", gpus, alone=True)
    if bench.held_open_helps:
        bench.driver_start("held", gpus, held=True)


def _cold(bench: Bench) -> None:
    """A start with the model out of the page cache, and how fast its files are read then and a moment later."""
    way, device = bench.ways[0], bench.devices[:1]
    try:
        page_cache.drop(bench.files)
    except Error:  # a file system in memory, or files of others: they never come from a disk
        return
    bench.trace(way, device, cache="cold")
    for cache, prepare in (("cold", page_cache.drop), ("warm", page_cache.warm)):
        bench.experiment("disk", way, device, functools.partial(_read, bench.files, prepare), cache=cache)


def _read(files: Sequence[Path], prepare: Callable[[Sequence[Path]], float]) -> dict[str, float]:
    prepare(files)
    return {"seconds": page_cache.read_sequentially(files), "bytes": sum(file.stat().st_size for file in files)}
