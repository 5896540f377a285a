"""Memory of a measured process with its children, and of GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.devices.nvml import Nvml

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process and all its descendants together.

    Attributes:
        peak_rss: the sum of the processes' own peaks (VmHWM). Shared pages of libraries and the page cache count once
            for each process, and the peaks may be at different moments. So it is exact for one process, and an upper
            bound for several.
        pss: the sum of their present proportional set sizes; a shared page counts once in all.
        processes: number of processes.
    """

    peak_rss: int
    pss: int
    processes: int


def process_tree(pid: int) -> list[int]:
    """`pid` and its descendants that run now."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                children.setdefault(int(stat_fields(int(entry.name))[1]), []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def stat_fields(pid: int) -> list[str]:
    """Return the fields of a process's stat behind its command's name: its state, its parent, ..."""
    # The name, in brackets, may itself hold blanks and brackets.
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def process_memory() -> ProcessMemory:
    """Return the memory of this process and its descendants."""
    found = []
    for member in process_tree(os.getpid()):
        with contextlib.suppress(OSError):
            folder = _PROC / str(member)
            found.append((_kilobytes(folder / "status", "VmHWM:"), _kilobytes(folder / "smaps_rollup", "Pss:")))
    return ProcessMemory(sum(peak for peak, _ in found), sum(pss for _, pss in found), len(found))


def figures(before: dict[str, int], devices: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `ProcessMemory`, and "gpu_memory", see `gpu_memory_growth` also for the arguments."""
    return {**asdict(process_memory()), "gpu_memory": gpu_memory_growth(before, gpu_memory_used(), devices)}


def _kilobytes(file: Path, key: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0  # a process that is just ending has no memory any more


def gpu_memory_used() -> dict[str, int]:
    """Return bytes in use on each GPU that NVML sees, by UUID ("GPU-..."); empty without NVML.

    NVML is closed again at once. Without persistence mode an open one would keep the driver loaded, and the measured
    start of CUDA would be shorter.
    """
    if (nvml := Nvml.open()) is None:
        return {}
    with nvml:
        return {gpu.uuid: gpu.memory_used for gpu in nvml.gpus() if gpu.memory_used is not None}


def gpu_memory_growth(before: dict[str, int], after: dict[str, int], devices: Sequence[str]) -> dict[str, int]:
    """By how many bytes the memory in use has grown on each CUDA device among `devices`, contexts included.

    CUDA numbers the devices differently (CUDA_VISIBLE_DEVICES, fastest first), so NVML's are found by UUID. Reading the
    UUIDs starts CUDA: call this after all other measurements.

    Args:
        before: result of `gpu_memory_used` before the sessions were created.
        after: its result afterwards.
        devices: the sessions' devices.
    """
    wanted = cuda_devices(devices)
    if not wanted or not after:
        return {}
    uuids = {f"cuda:{device.index}": device.uuid for device in _core.cuda_devices()}
    return {
        device: after[uuids[device]] - before.get(uuids[device], 0)
        for device in sorted(wanted)
        if uuids.get(device) in after
    }
