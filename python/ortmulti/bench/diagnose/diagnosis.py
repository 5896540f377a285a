"""A whole diagnosis: its measurements in order, and its partial result after Ctrl-C."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.bench import strategies
from ortmulti.bench.diagnose import environment
from ortmulti.bench.diagnose.experiments import measure_all
from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.diagnose.runs import BUDGET_SECONDS, QUICK_SECONDS, REPEAT, Bench, DiagnosisPlan, EndedError
from ortmulti.bench.diagnose.verify import verify
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import fresh_process, page_cache, results
from ortmulti.bench.measure.devices import check_measurable
from ortmulti.bench.measure.rounds import rotated, round_numbers
from ortmulti.bench.models import sample_inputs
from ortmulti.devices.device import Device, name_devices
from ortmulti.errors import DeviceError, Error, InvalidArgument, LibraryError

__all__ = ["diagnose", "publishable"]

_DEVICES_TIMEOUT = 120.0
# The time of a further session is compared with its time in these ways.
_REFERENCES = ("sequential", "native")


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
        quick: Measure each way once, and leave out long experiments.
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
    plan = DiagnosisPlan(
        model=Path(model),
        devices=None if named is None else tuple(map(str, named)),
        ways=tuple(ways) if ways is not None else strategies.names(),
        repeat=repeat if repeat is not None else 1 if quick else REPEAT,
        budget=budget if budget is not None else QUICK_SECONDS if quick else BUDGET_SECONDS,
        quick=quick,
        batch=batch,
        sequence=sequence,
        inputs=inputs,
        settings=dict(settings or {}),
        timeout=timeout,
    )
    files = (plan.model, *page_cache.external_files(plan.model))
    found = _find_devices(plan.devices, plan.timeout)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        folder = Path(name)
        bench = Bench(
            plan,
            tuple(found["devices"]),
            _core.usable_cores(),
            files,
            _save_inputs(plan, folder),
            folder / "cache",
            progress or (lambda _done, _total, _text: None),
            functools.partial(_check_devices, tuple(found["devices"]), plan.timeout),
        )
        bench.cache.mkdir()
        return _measure(bench, found)


def publishable(document: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Copy a diagnosis for others to read: its commands name the model without the folder that the user gave."""
    folder = str(model).removesuffix(model.name)
    findings = [dict(finding) for finding in document["findings"]]
    for finding in findings:
        if folder and finding.get("command"):
            finding["command"] = finding["command"].replace(folder, "")
    return {**document, "findings": findings}


def _measure(bench: Bench, found: Mapping[str, Any]) -> dict[str, Any]:
    plan = bench.plan
    around: dict[str, Any] = {}
    partial: str | None = None
    try:
        around = environment.look(found["gpus"])
        bench.held_open_helps = any(gpu["persistence_mode"] is False for gpu in around["gpus"])
        first_error = _warm_up(bench)
        _traces(bench)
        if not any("error" not in run for run in bench.runs):
            raise Error(f"{plan.model} cannot be run here in any way: {first_error or bench.runs[0]['error']}")
        measure_all(bench, found)
    except KeyboardInterrupt:
        partial = "interrupted"
    except EndedError as reason:
        partial = str(reason)
    own, *external = (file.stat().st_size if file.is_file() else 0 for file in bench.files)
    facts = {
        "name": plan.model.stem,
        "path": str(plan.model),
        "given": str(plan.model),  # for the commands of findings
        "bytes": own,
        "external_bytes": sum(external),
        "external": [os.path.relpath(file, plan.model.parent) for file in bench.files[1:]],
    }
    document = results.document(
        "diagnose",
        settings={
            "devices": list(bench.devices),
            "ways": list(plan.ways),
            **{name: getattr(plan, name) for name in ("repeat", "budget", "quick", "batch", "sequence")},
            "session": dict(plan.settings_for(bench.devices, bench.cores)),
            "visible_gpus": found["visible"],
        },
        environment=around,
        models=[facts],
        partial=partial,
        runs=bench.runs,
    )
    found_out = conclude(document)
    if partial is None:
        try:
            verify(document, found_out, bench)
        except KeyboardInterrupt:
            document["partial"] = "interrupted"
        except EndedError as reason:
            document["partial"] = str(reason)
    document["models"][0].pop("given")
    document["seconds"] = bench.elapsed()
    return document


def _warm_up(bench: Bench) -> str | None:
    """Run starts that bring the libraries into the page cache, and the model's entry into the cache of optimized
    models.

    Returns:
        The first error, or None.
    """
    # onnxruntime's package and ortmulti open different libraries.
    groups = [("sequential", "threads", "processes"), ("native", "shared")]
    if any(device != "cpu" for device in bench.devices):
        groups.append(("shared",))
    chosen = dict.fromkeys(way for group in groups for way in [way for way in bench.plan.ways if way in group][:1])
    runs = [bench.trace(way, bench.devices[:1], counted=False) for way in chosen]
    return next((str(run["error"]) for run in runs if "error" in run), None)


def _traces(bench: Bench) -> None:
    """Run every way on the first device and on all devices, in turns, within the plan's repetitions and budget.

    Each way is traced on both. On all devices it is also measured without recording. These figures compare the ways.
    """
    plan = bench.plan

    def plain(order: Sequence[str]) -> None:
        for way in order:
            bench.trace(way, bench.devices, experiment="plain", instrumented=False)

    # The starts on all devices come first, so that the main figures exist after an interruption.
    begin = bench.elapsed()
    plain(plan.ways)
    seconds = bench.elapsed() - begin
    for way in plan.ways:  # once: causes vary less between starts than the gains of changes
        bench.trace(way, bench.devices)
    _one_session_each(bench, plan.ways)
    left = plan.part_of_budget("traces") - bench.elapsed()
    for number in round_numbers(plan.repeat - 1, left, least=0, before=seconds):
        plain(rotated(plan.ways, number + 1))


def _one_session_each(bench: Bench, order: Sequence[str]) -> None:
    """Trace ways on the first device alone.

    The way that findings are about and the ways for comparison are always traced. The others follow while there is
    time, but not in a quick diagnosis.
    """
    plan = bench.plan
    if len(bench.devices) == 1:
        return
    needed = {plan.ways[0]} if plan.quick else {plan.ways[0], *_REFERENCES}
    for way in sorted(order, key=lambda way: way not in needed):
        if way not in needed and (plan.quick or bench.elapsed() > plan.part_of_budget("traces")):
            return
        bench.trace(way, bench.devices[:1])


def _find_devices(devices: Sequence[str] | None, timeout: float) -> dict[str, Any]:
    if devices is not None and all(device == "cpu" for device in devices):
        return {"devices": list(devices), "visible": None, "gpus": []}
    spec = {"probe": "devices", "devices": None if devices is None else list(devices)}
    try:
        return fresh_process.run("ortmulti.bench.diagnose.probes", spec, min(timeout, _DEVICES_TIMEOUT))
    except fresh_process.MeasurementError as error:
        raise DeviceError(str(error)) from error


def _check_devices(devices: Sequence[str], timeout: float) -> None:
    try:
        _find_devices(devices, timeout)
    except DeviceError as error:
        raise EndedError(f"a device has vanished: {error}") from error


def _save_inputs(plan: DiagnosisPlan, folder: Path) -> Path:
    feeds = folder / "feeds.npz"
    arrays = plan.inputs
    if arrays is None:
        try:
            arrays = sample_inputs(plan.model, plan.batch, plan.sequence)
        except LibraryError as error:
            raise LibraryError(f"without inputs, they are made from what the model declares: {error}") from error
    write_arrays(feeds, arrays)
    return feeds
