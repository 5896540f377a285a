"""The machine's other work and its settings: facts that slow a start, but that its measurements do not show."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime.machine import read
from ortmulti.bench.measure.nvml import Nvml

_WATCHED_SECONDS = 0.2


def look(gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Observe the machine for a fifth of a second, in which this process does nothing.

    Args:
        gpus: see `probes.devices`.

    Returns:
        "cores": how many this process may use. "busy_cores": how many are busy with others. "governor": the frequency
        governor, None where there is none. "gpus": for each GPU its "device", "persistence_mode" and the fields of
        `ortmulti.bench.measure.nvml.GpuActivity`; its "processes" are only counted. Empty without NVML.
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


def _busy_ticks() -> int:
    """Ticks of all cores that were not idle nor waiting for a disk; 0 if the kernel does not say."""
    first = (read(Path("/proc/stat")) or "").partition("\n")[0].split()
    numbers = [int(number) for number in first[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    return sum(numbers) - sum(numbers[3:5])
