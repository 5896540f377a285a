"""Findings about the CUDA driver's start and about the machine."""

from __future__ import annotations

from ortmulti.bench.diagnose.experiments import visible_devices
from ortmulti.bench.diagnose.findings.finding import DriverStart, Finding, Recipe
from ortmulti.bench.diagnose.measured import Measured, median, seconds_text
from ortmulti.bench.diagnose.serialization import driver_seconds


def _gpus(measured: Measured) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device for device in measured.devices if device.startswith("cuda:")))


def persistence(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """Without persistence mode the driver initializes the GPUs for each process that comes when there is no other."""
    off = [
        gpu["device"] for gpu in measured.document["environment"].get("gpus", ()) if gpu["persistence_mode"] is False
    ]
    driver = driver_seconds(measured)
    if not off or driver is None:
        return None
    held = median(found["driver_floor"] for found in measured.experiment("held"))
    saved = max(driver.floor - held, 0.0) if held is not None else 0.0
    evidence = [f"NVML says that persistence mode is off on {', '.join(off)}"]
    if held is not None:
        evidence.append(f"with something that keeps the driver loaded the same takes {seconds_text(held)}")
    gpus = _gpus(measured)
    return Finding(
        id="persistence mode",
        title=f"persistence mode is off on {', '.join(off)}: the driver's start takes {seconds_text(driver.floor)}"
        + (f", and {seconds_text(held)} where the driver stays loaded" if held is not None else ""),
        cause="cuInit",
        seconds=saved,
        evidence=evidence,
        change="turn persistence mode on (as root; nvidia-persistenced keeps it after a restart)",
        command="nvidia-smi -pm 1",
        recipe=Recipe(
            DriverStart(gpus),
            DriverStart(gpus, held=True),
            "cuInit and the contexts, against the same while NVML keeps the driver loaded, as persistence mode does",
        )
        if saved
        else None,
    )


def visible(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """The driver initializes every GPU that a process sees."""
    count = measured.document["settings"].get("visible_gpus") or 0
    gpus, driver = _gpus(measured), driver_seconds(measured)
    alone = median(found["driver_floor"] for found in measured.experiment("visible"))
    if count <= len(gpus) or driver is None or alone is None:
        return None
    saved = driver.floor - alone
    names = visible_devices(list(gpus))
    return Finding(
        id="visible devices",
        title=f"{count} GPUs are visible and {len(gpus)} used: the driver's start takes {seconds_text(driver.floor)} "
        f"instead of {seconds_text(alone)}",
        cause="cuInit",
        seconds=saved,
        evidence=["cuInit and the contexts alone, with all GPUs visible and with the used ones"],
        change="let the process see the GPUs that it uses; they are then cuda:0 and so on",
        command=f"CUDA_VISIBLE_DEVICES={names}",
        recipe=Recipe(DriverStart(gpus), DriverStart(gpus, only_these=True), "cuInit and the contexts"),
    )


def start(measured: Measured, usual: str, best: str) -> Finding | None:
    """The driver's start comes before all other work on a GPU. It can run while modules are imported."""
    driver = driver_seconds(measured)
    if driver is None or usual == "shared":
        return None
    before = measured.cause(usual, lambda name: name in ("imports", "libraries"))
    # A finding that cannot be tried must not be the first.
    saved = min(driver.floor, before) if best == "shared" else 0.0
    evidence = [f"cuInit and the contexts alone take {seconds_text(driver.floor)}"]
    if driver.at_once is not None:
        how = "one after another" if driver.at_once > 0.7 * driver.one_by_one else "side by side"
        evidence.append(
            f"contexts at once take {seconds_text(driver.at_once)}, one by one {seconds_text(driver.one_by_one)}: the "
            f"driver makes them {how}"
        )
    return Finding(
        id="driver",
        title=f"the CUDA driver's start takes {seconds_text(driver.floor)}, and imports and libraries "
        f"{seconds_text(before)} before it",
        cause="cuInit",
        seconds=saved,
        evidence=evidence,
        change="start the driver in the background before other modules are imported",
        command=f"ortmulti.prewarm({list(_gpus(measured))})",
        recipe=Recipe.between(measured.devices, usual, best) if best == "shared" else None,
    )


def module_loading(measured: Measured, usual: str, _best: str) -> Finding | None:
    """CUDA_MODULE_LOADING=EAGER loads every kernel of the libraries."""
    value = measured.document["machine"].get("environment", {}).get("CUDA_MODULE_LOADING", "")
    if value.upper() != "EAGER" or not _gpus(measured):
        return None
    seconds = measured.cause(usual, lambda name: name in ("libraries", "context", "load kernels"))
    return Finding(
        id="module loading",
        title=f"CUDA_MODULE_LOADING=EAGER loads all kernels of the CUDA libraries: {seconds_text(seconds)}",
        cause="load kernels",
        seconds=seconds,
        evidence=["the environment says so"],
        change="leave kernels to be loaded at their first use",
        command="CUDA_MODULE_LOADING=LAZY",
        recipe=Recipe.between(
            measured.devices,
            usual,
            usual,
            f"EAGER against LAZY until the first answers, {usual}",
            until="answered",
            environment={"CUDA_MODULE_LOADING": "LAZY"},
        ),
    )


_BUSY_SHARE = 0.25
_SLOW_GOVERNORS = ("powersave", "conservative")
_SLOW_CLOCK = 0.8


def _note(name: str, title: str, evidence: list[str], change: str, command: str | None = None) -> Finding:
    return Finding(name, title, "machine", 0.0, evidence, change, command)


def busy_cores(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """Other processes use the CPU."""
    around = measured.document["environment"]
    cores, busy = around.get("cores"), around.get("busy_cores", 0.0)
    if not cores or busy < _BUSY_SHARE * cores:
        return None
    return _note(
        "busy cores",
        f"other processes keep {busy:.1f} cores busy, of which this one may use {cores}",
        ["all cores' times before the first measurement"],
        "measure again, or load models, while the machine has nothing else to do",
    )


def governor(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """The kernel keeps the CPU's clock low."""
    name = measured.document["environment"].get("governor")
    if name not in _SLOW_GOVERNORS:
        return None
    return _note(
        "governor",
        f"the CPU's frequency governor is {name}",
        ["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"],
        "let the CPU run at its full clock while models are loaded",
        "cpupower frequency-set -g performance",
    )


def other_gpu_processes(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """Other processes use the GPUs."""
    shared = [gpu for gpu in measured.document["environment"].get("gpus", ()) if gpu["processes"]]
    if not shared:
        return None
    texts = [
        f"{gpu['device']}: {gpu['processes']} processes"
        + (f", {gpu['utilization']}% busy" if gpu["utilization"] is not None else "")
        for gpu in shared
    ]
    return _note(
        "busy GPUs",
        f"other processes compute on {', '.join(gpu['device'] for gpu in shared)}",
        texts,
        "use GPUs that are free, or measure again when they are",
        "nvidia-smi",
    )


def clocks(measured: Measured, _usual: str, _best: str) -> Finding | None:
    """A GPU's clock is held down."""
    slow: dict[str, str] = {}
    for gpu in measured.document["environment"].get("gpus", ()):
        limit, highest = gpu["clock_limit"], gpu["clock_max"]
        if gpu["slowed_by"]:
            slow[gpu["device"]] = f"slowed by {' and '.join(gpu['slowed_by'])}, {gpu['clock']} MHz"
        elif limit and highest and limit < _SLOW_CLOCK * highest:
            slow[gpu["device"]] = f"limited to {limit} of {highest} MHz"
    if not slow:
        return None
    return _note(
        "clocks",
        f"the clock is held down on {', '.join(slow)}",
        [f"{device}: {text}" for device, text in slow.items()],
        "look at the power limit, the cooling and the application clocks",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
    )


RULES = (persistence, visible, start, module_loading, busy_cores, governor, other_gpu_processes, clocks)
