"""Facts about this machine that a measurement depends on, fit to be published: no host, user or path names."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ortmulti import _core
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti._runtime.machine import cgroup_files, cpu_model, describe_memory, number, read, read_list
from ortmulti.devices.nvml import Nvml
from ortmulti.errors import LibraryError

# Variables that change the behaviour of CUDA, allocators or thread pools, and so a measurement.
_ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "MALLOC_ARENA_MAX",
)


def describe() -> dict[str, Any]:
    """Describe this machine and its installed packages.

    Returns:
        A dictionary that `json.dumps` takes, with the keys ``cpu``, ``memory``, ``system``, ``driver``, ``gpus``,
        ``python``, ``releases`` and ``environment``. Sizes are in bytes. Unknown facts are None. ``gpus`` is None
        without NVML, and empty if NVML knows no GPU.
    """
    driver, gpus = _describe_gpus()
    return {
        "cpu": describe_cpu(),
        "memory": describe_memory(),
        "system": {"name": platform.system(), "kernel": platform.release(), "distribution": _distribution()},
        "driver": driver,
        "gpus": gpus,
        "python": {
            "implementation": platform.python_implementation(),
            "version": platform.python_version(),
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        },
        "releases": _releases(),
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }


def describe_cpu(root: Path = Path("/")) -> dict[str, Any]:
    """Describe the processors.

    Args:
        root: where ``proc`` and ``sys`` lie.

    Returns:
        The machine's ``model``, ``architecture`` and ``physical_cores``; of these this process's
        ``usable_physical_cores`` (its affinity), and ``cgroup_cores`` (its quota in cores, None without one).
    """
    online = read_list(root / "sys/devices/system/cpu/online") or set(range(os.cpu_count() or 1))
    usable = set(os.sched_getaffinity(0)) & online or online
    cores = {cpu: _read_core(root, cpu) for cpu in online}
    return {
        "model": cpu_model(root),
        "architecture": platform.machine(),
        "physical_cores": len(set(cores.values())),
        "usable_physical_cores": len({cores[cpu] for cpu in usable}),
        "cgroup_cores": cgroup_cores(root),
    }


def cgroup_cores(root: Path = Path("/")) -> float | None:
    """Return how many cores' worth of time this process's control groups grant.

    Args:
        root: where ``proc`` and ``sys`` lie.

    Returns:
        The smallest quota of this group and those above it, in cores; None without a quota.
    """
    quotas: list[float] = []
    for text in cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        quota, _, period = text.partition(" ")
        if (micros := number(quota)) is not None and micros > 0:
            quotas.append(micros / (number(period) or 100_000))
    return min(quotas, default=None)


def _describe_gpus() -> tuple[dict[str, Any] | None, list[dict[str, Any]] | None]:
    if (nvml := Nvml.open()) is None:
        return None, None
    with nvml:
        cuda = _core.cuda_driver_version()
        driver = {
            "version": nvml.driver_version,
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        gpus = [dataclasses.asdict(gpu) for gpu in nvml.gpus()]
    return driver, gpus


def _releases() -> dict[str, str | None]:
    try:
        runtime = find_onnxruntime()
        onnxruntime, distribution = runtime.version or None, runtime.distribution or None
    except LibraryError:
        onnxruntime = distribution = None
    return {
        "ortmulti": _release("ortmulti"),
        "onnxruntime": onnxruntime,
        "onnxruntime_distribution": distribution,
        "numpy": _release("numpy"),
    }


def _release(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _read_core(root: Path, cpu: int) -> str:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return read(folder / "thread_siblings_list") or read(folder / "core_cpus_list") or str(cpu)
