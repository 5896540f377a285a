"""Findings about the machine: what slows every measurement, and by how much is not known."""

from __future__ import annotations

from ortmulti.tools.diagnose.measured import Measured

from .finding import Finding

_BUSY_SHARE = 0.25
_SLOW_GOVERNORS = ("powersave", "conservative")
_SLOW_CLOCK = 0.8


def _note(name: str, title: str, evidence: tuple[str, ...], change: str, command: str | None = None) -> Finding:
    return Finding(name, title, "machine", 0.0, 0.0, evidence, change, command)


def busy_cores(measured: Measured, _best: str) -> Finding | None:
    """Other processes use the CPU."""
    around = measured.document["surroundings"]
    cores, busy = around.get("cores"), around.get("busy_cores", 0.0)
    if not cores or busy < _BUSY_SHARE * cores:
        return None
    return _note(
        "busy cores",
        f"other processes keep {busy:.1f} cores busy, of which this one may use {cores}",
        ("all cores' times before the first measurement",),
        "measure again, or load models, while the machine has nothing else to do",
    )


def governor(measured: Measured, _best: str) -> Finding | None:
    """The kernel keeps the CPU's clock low."""
    name = measured.document["surroundings"].get("governor")
    if name not in _SLOW_GOVERNORS:
        return None
    return _note(
        "governor",
        f"the CPU's frequency governor is {name}",
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",),
        "let the CPU run at its full clock while models are loaded",
        "cpupower frequency-set -g performance",
    )


def other_gpu_processes(measured: Measured, _best: str) -> Finding | None:
    """Other processes use the GPUs."""
    shared = [gpu for gpu in measured.document["surroundings"].get("gpus", ()) if gpu["processes"]]
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
        tuple(texts),
        "use GPUs that are free, or measure again when they are",
        "nvidia-smi",
    )


def clocks(measured: Measured, _best: str) -> Finding | None:
    """A GPU's clock is held down."""
    slow: dict[str, str] = {}
    for gpu in measured.document["surroundings"].get("gpus", ()):
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
        tuple(f"{device}: {text}" for device, text in slow.items()),
        "look at the power limit, the cooling and the application clocks",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
    )


RULES = (busy_cores, governor, other_gpu_processes, clocks)
