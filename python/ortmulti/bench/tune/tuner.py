"""`tune`: finds the settings that suit a model on this machine."""

from __future__ import annotations

import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ortmulti import _core
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.bench.measure import results
from ortmulti.bench.measure.devices import check_measurable
from ortmulti.bench.measure.outputs import TF32_TOLERANCE, TOLERANCES
from ortmulti.bench.tune.measurements import Bench
from ortmulti.bench.tune.search import PAIRS, Effort, Search, Trial
from ortmulti.bench.tune.space import OBJECTIVES, Host, select, space
from ortmulti.create.model import Model
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.loading.tuning import Tuning, describe_machine, describe_model

__all__ = ["TuneResult", "TuningInterrupted", "tune"]

BUDGET = 120.0  # seconds

_EFFORT: Mapping[str, Effort] = {
    "latency": Effort(5, 16, repeat=9),
    "throughput": Effort(4, 10, repeat=6),
    "creation": Effort(2, 6, pairs=9),
    # The memory of a process hardly changes between measurements.
    "memory": Effort(1, 2),
}
_BLOCK_SECONDS: Mapping[str, float] = {"latency": 0.05, "throughput": 0.15}


@dataclass(frozen=True)
class TuneResult:
    """The result of `tune`.

    Attributes:
        tuning: The settings, for a file or for `load`; none if nothing was better.
        document: All measurements, as ``ortmulti tune --json`` prints them.
    """

    tuning: Tuning
    document: dict[str, Any]


class TuningInterrupted(KeyboardInterrupt):
    """Ctrl-C, or another KeyboardInterrupt, ended the tuning.

    Attributes:
        result: The settings confirmed so far, marked as partial.
    """

    def __init__(self, result: TuneResult) -> None:
        super().__init__("tuning was interrupted")
        self.result = result


def tune(
    model: str | os.PathLike[str],
    objective: Literal["latency", "throughput", "creation", "memory"] = "latency",
    *,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    through: Literal["pool", "session"] = "pool",
    budget: float | None = BUDGET,
    tolerance: float | None = None,
    only: Sequence[str] | None = None,
    skip: Collection[str] = (),
    out: str | os.PathLike[str] | None = None,
    clients: int | None = None,
    timeout: float | None = None,
    progress: Callable[[str, str], None] | None = None,
) -> TuneResult:
    """Measure which settings make a model better than the defaults on this machine; docs/tune.md says how.

    Every configuration is measured in its own process, in turns with the defaults. This process is not changed.

    Args:
        model: Path of a model.
        objective: ``"latency"``: the median time of one request, on the first device. ``"throughput"``: answers per
            second. ``"creation"``: from the start of a process to the first answer. ``"memory"``: bytes of main memory
            (proportional set size), or of the GPUs' memory, for the loaded model.
        inputs: The path of an .npz file, which is opened once and not unpickled, or arrays by the inputs' names.
            Default: random ones that fit the model's declaration.
        devices: As for `load`.
        through: ``"pool"``: `load` and `Pool.run`; ``"session"``: `InferenceSession`, on one device.
        budget: Seconds for everything except the first look at the model; None: no limit. Default 120.
        tolerance: Largest difference of float outputs from those of the defaults, as a part of the output's largest
            magnitude. Default: 1e-4 for float32 (5e-3 on GPUs), 1e-2 for float16, 1e-9 for float64.
        only, skip: Names of settings to try alone, or to leave out.
        out: The file for the tuning, checked before anything is measured. Default: none.
        clients: Requests in flight, for ``"throughput"``; default: twice the cores, or 8 for each GPU.
        timeout: Seconds in which a candidate must start, and in which it must answer. Default: ten times the time of
            the defaults, at least 20.
        progress: Called with the stage and a text on its progress.

    Raises:
        InvalidArgument, InvalidType: Arguments are not valid or contradict each other, or ``out`` cannot be written.
        NoSuchFile: The model or the file of inputs does not exist.
        Fail: The model cannot be run with the defaults.
        TuningInterrupted: Ctrl-C. It has the settings confirmed so far; if there are any, ``out`` is written, too.
    """
    path = Model.of(model).path
    if not path:
        raise InvalidType("tuning needs the path of a model: its candidates are processes")
    seconds = {"budget": budget, "timeout": timeout}
    for name, value, is_allowed, rule in (
        ("objective", objective, objective in OBJECTIVES, " or ".join(map(repr, OBJECTIVES))),
        ("through", through, through in ("pool", "session"), "'pool' or 'session'"),
        *(
            (name, given, given is None or 0 < given < float("inf"), "a number of seconds above 0")
            for name, given in seconds.items()
        ),
        ("tolerance", tolerance, tolerance is None or 0 <= tolerance < float("inf"), "0 or more"),
        ("clients", clients, clients is None or clients >= 1, "1 or more"),
    ):
        if not is_allowed:
            raise InvalidArgument(f"{name} is {rule}, not {value!r}")
    check_measurable(name_devices(devices))
    found = [str(device) for device in parse_devices(devices)]
    if len({name.partition(":")[0] for name in found}) > 1:
        raise InvalidArgument("the CPU and GPUs are tuned apart: name one or the other")
    if through == "session" and objective == "throughput":
        raise InvalidArgument("throughput is that of a pool: through='session' is for the other objectives")
    if objective == "latency" or through == "session":
        found = found[:1]
    found = list(dict.fromkeys(found))
    kind = found[0].partition(":")[0]
    # Wrong names are found before anything is run.
    select(space(objective, through, Host.here(kind, 1)), only, skip)
    if out is not None:
        check_writable(Path(out))
    tell = progress or (lambda _stage, _text: None)
    spec = {
        "model": str(Path(path).absolute()),
        "devices": found,
        "objective": objective,
        "through": through,
        "clients": clients or (2 * max(2, _core.usable_cores()) if kind == "cpu" else 8 * len(found)),
        "block_seconds": _BLOCK_SECONDS.get(objective, 0.0),
    }
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        if isinstance(inputs, (str, os.PathLike)):
            inputs = read_arrays(inputs)
        if isinstance(inputs, Mapping):
            # Candidates read this copy: the caller's file may change while they are measured.
            write_arrays(Path(folder, "feeds.npz"), inputs)
        elif inputs is not None:
            raise InvalidType(f"inputs is the path of an .npz file or a dict of arrays, not {inputs!r}")
        tell("the defaults", Path(path).name)
        bench = Bench(spec, Path(folder), tolerance, timeout)
        settings = select(space(objective, through, Host.here(kind, bench.gpu_memory)), only, skip)
        begin = time.monotonic()
        search = Search(settings, bench.candidate, time.monotonic, _EFFORT[objective], budget, tell)
        try:
            search.run()
        except KeyboardInterrupt:
            search.end_early("interrupted")
        result = _result(bench, search, time.monotonic() - begin)
    if out is not None and (result.tuning.partial is None or result.tuning.settings):
        result.tuning.write(out)
    if result.tuning.partial == "interrupted":
        raise TuningInterrupted(result)
    return result


def check_writable(path: Path) -> None:
    """Raise `InvalidArgument` if a file cannot be written."""
    if path.is_dir():
        raise InvalidArgument(f"'{path}' cannot be written: it is a folder")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise InvalidArgument(f"'{path}' cannot be written: {error.strerror}") from error


_UNITS = {"latency": "s", "throughput": "s per answer", "creation": "s", "memory": "bytes"}


def _result(bench: Bench, search: Search, seconds: float) -> TuneResult:
    """Return the tuning and all measurements: a document of kind "tune", see `ortmulti.bench.measure.results`.

    Ratios are costs divided by the defaults' cost: below 1 is better. "gain" is the inverse.
    """
    spec, best, again = bench.spec, search.best, search.confirmation
    path, objective = Path(spec["model"]), spec["objective"]
    winner, gain = None, {}
    if best is not None:
        interval = best.interval
        gain = {"median": 1 / interval.median, "low": 1 / interval.high, "high": 1 / interval.low}
        winner = {
            "settings": dict(best.options),
            "defaults": statistics.median(cost for cost, _ in best.costs),
            "cost": statistics.median(cost for _, cost in best.costs),
            "gain": {**gain, "confidence": interval.confidence},
            "outputs": bench.differences[best.options].error,
        }
    defaults = [cost for trial in search.trials for cost, _ in trial.costs]
    tolerances = {**TOLERANCES, **({"float32": TF32_TOLERANCE} if bench.on_gpu else {})}
    document = results.document(
        "tune",
        settings={
            **{name: value for name, value in spec.items() if name != "model"},
            "budget": search.budget,
            "tolerance": tolerances if bench.tolerance is None else {"floats": bench.tolerance},
            "candidates": {name: [dict(choice) for choice in choices] for name, choices in search.settings.items()},
        },
        models=[{"name": path.stem, "path": spec["model"], "bytes": path.stat().st_size}],
        partial=search.partial,
        seconds=seconds,
        unit=_UNITS[objective],
        defaults=statistics.median(defaults) if defaults else None,
        best=winner,
        confirmation=again
        and {
            **_ratio(again),
            "pairs": len(again.costs),
            "held_up": again is best if len(again.costs) >= PAIRS else None,
        },
        trials=[
            {**_ratio(trial), "samples": len(trial.costs), "outputs": bench.differences[trial.options].error}
            for trial in search.trials
        ],
        rejected=[
            {"settings": dict(options), "why": error.why, "text": str(error)}
            for options, error in search.rejected.items()
        ],
        outputs_repeat={"compared": bench.repeats.allowed, "text": bench.repeats.text},
    )
    tuning = Tuning(
        settings={} if best is None else dict(best.options),
        objective=objective,
        devices=tuple(spec["devices"]),
        model={"name": path.name, **describe_model(Model(spec["model"]))},
        machine=describe_machine("cuda" if bench.on_gpu else "cpu"),
        gain=gain and {"ratio": gain["median"], "low": gain["low"], "high": gain["high"]},
        partial=search.partial,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    return TuneResult(tuning, document)


def _ratio(trial: Trial) -> dict[str, Any]:
    interval = trial.interval
    ends = {"median": interval.median, "low": interval.low, "high": interval.high, "confidence": interval.confidence}
    return {"settings": dict(trial.options), "ratio": ends}
