from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ortmulti._runtime.machine import available_memory, describe_memory, resident_memory
from ortmulti.bench.measure.machine import cgroup_cores, describe, describe_cpu
from ortmulti.devices.nvml import Nvml
from tests.support.fake_nvml import FakeNvml

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_this_machine_without_anything_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    text = json.dumps(describe())
    facts = json.loads(text)
    assert set(facts) == {"cpu", "memory", "system", "driver", "gpus", "python", "releases", "environment"}
    assert facts["cpu"]["physical_cores"] >= facts["cpu"]["usable_physical_cores"] >= 1
    assert facts["memory"]["total"] > 64 << 20
    assert facts["python"]["version"] == platform.python_version()
    assert facts["releases"]["numpy"] is not None
    assert facts["environment"]["CUDA_MODULE_LOADING"] == "LAZY"
    private = [str(Path.home()), str(Path.cwd()), socket.gethostname(), "/usr", "/home"]
    with contextlib.suppress(KeyError, OSError):
        private.append(getpass.getuser())
    # A name as short as "root" or "pc" might well be part of another word.
    assert [name for name in private if len(name) > 4 and name in text] == []


def test_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "sys/devices/system/cpu/online": "0-7",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some Processor 9000\nflags\t: x",
    }
    for cpu in range(8):  # four cores of two threads each
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu % 4},{cpu % 4 + 4}"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4})
    cores = {"physical_cores": 4, "usable_physical_cores": 2, "cgroup_cores": None}
    machine = {"model": "Some Processor 9000", "architecture": platform.machine()}
    assert describe_cpu(write(tmp_path, files)) == {**machine, **cores}


GROUPS: dict[str, tuple[dict[str, str], float | None, dict[str, int | None]]] = {
    "version 2 takes the smallest above": (
        {
            "proc/self/cgroup": "0::/work/job",
            "sys/fs/cgroup/work/job/cpu.max": "max 100000",
            "sys/fs/cgroup/work/cpu.max": "250000 100000",
            "sys/fs/cgroup/cpu.max": "800000 100000",
            "proc/meminfo": "MemTotal:       16 kB\nMemFree:        8 kB",
            "sys/fs/cgroup/work/job/memory.max": "4096",
            "sys/fs/cgroup/work/memory.max": "max",
        },
        2.5,
        {"total": 16384, "cgroup_limit": 4096},
    ),
    "version 1": (
        {
            "proc/self/cgroup": "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n0::/",
            # Inside the container its own group is the root.
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000",
            "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192",
        },
        3.0,
        {"total": None, "cgroup_limit": 8192},
    ),
    "no limit": (
        {
            "proc/self/cgroup": "3:cpu:/\n0::/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
        None,
        {"total": None, "cgroup_limit": None},
    ),
    "no files": ({}, None, {"total": None, "cgroup_limit": None}),
}


@pytest.mark.parametrize(("files", "cores", "memory"), GROUPS.values(), ids=GROUPS)
def test_limits_of_control_groups(
    files: dict[str, str], cores: float | None, memory: dict[str, int | None], tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert cgroup_cores(tmp_path) == cores
    assert describe_memory(tmp_path) == memory


def test_memory_that_can_still_be_had_is_what_the_kernel_and_the_group_allow(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:  500 kB", "proc/self/status": "VmRSS:\t 100 kB"})
    assert (resident_memory(tmp_path), available_memory(tmp_path)) == (100 << 10, 500 << 10)
    write(tmp_path, {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": str(300 << 10)})
    assert available_memory(tmp_path) == 200 << 10
    write(tmp_path, {"sys/fs/cgroup/a/memory.max": str(50 << 10)})
    assert available_memory(tmp_path) == 0


def two_gpus(**functions: Any) -> FakeNvml:
    """Two GPUs in NVML's order and one MIG instance on the second."""
    first, second = (
        SimpleNamespace(uuid=uuid, pci=SimpleNamespace(domain=0, bus=bus, device=0), used=used, parent=None)
        for uuid, bus, used in (("GPU-aaaa", 0x9B, 3 * GIB), ("GPU-bbbb", 0x1B, 5 * GIB))
    )
    mig = SimpleNamespace(uuid="MIG-cccc", pci=None, used=1 * GIB, parent=second)

    def memory(device: Any, version: int) -> Any:
        used = device.used + (0 if version == FakeNvml.nvmlMemory_v2 else GIB)  # what the driver reserves
        return SimpleNamespace(total=80 * GIB, used=used, free=80 * GIB - used)

    return FakeNvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=[first, second].__getitem__,
        nvmlDeviceGetHandleByUUID={device.uuid: device for device in (first, second, mig)}.get,
        nvmlDeviceGetHandleByPciBusId={"0000:9b:00.0": first, "0000:1B:00.0": second}.get,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetUUID=lambda device: device.uuid,
        nvmlDeviceGetName="Some GPU",
        nvmlDeviceIsMigDeviceHandle=lambda device: int(device.parent is not None),
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda device: device.parent,
        nvmlDeviceGetPciInfo=lambda device: device.pci,
        nvmlDeviceGetPersistenceMode=1,
        **functions,
    )


def test_a_device_is_found_by_uuid_or_address_and_nvml_closed_once() -> None:
    closed: list[bool] = []
    with Nvml(two_gpus(nvmlShutdown=lambda: closed.append(True))) as nvml:
        for identity, uuid in {
            ("GPU-bbbb", None): "GPU-bbbb",
            (None, "0000:1B:00.0"): "GPU-bbbb",
            ("GPU-unknown", "0000:9b:00.0"): "GPU-aaaa",
            ("GPU-unknown", None): None,
            ("GPU-unknown", "0000:9c:00.0"): None,
            (None, None): None,
        }.items():
            assert getattr(nvml.gpu(*identity), "uuid", None) == uuid
        assert closed == []
    nvml.close()
    assert closed == [True]


@pytest.mark.parametrize("uuid", ["MIG-cccc", "GPU-cccc"])  # NVML's name for it, and CUDA's
def test_a_mig_instance(uuid: str) -> None:
    gpu = Nvml(two_gpus()).gpu(uuid, "0000:1b:00.0")
    assert gpu is not None
    assert (gpu.uuid, gpu.memory_used, gpu.pci_bus_id, gpu.persistence_mode) == ("MIG-cccc", GIB, "0000:1b:00.0", True)


def test_what_a_gpu_does_not_tell_is_none_and_what_the_driver_reserves_is_not_in_use() -> None:
    [first, second] = Nvml(two_gpus()).gpus()
    assert (first.uuid, first.pci_bus_id, second.uuid) == ("GPU-aaaa", "0000:9b:00.0", "GPU-bbbb")
    assert (first.memory_total, first.memory_free) == (80 * GIB, 77 * GIB)
    assert (first.name, first.persistence_mode) == ("Some GPU", True)
    [silent] = Nvml(FakeNvml(nvmlDeviceGetCount=1, nvmlDeviceGetHandleByIndex=lambda _: 1)).gpus()
    assert (silent.name, silent.persistence_mode, silent.memory_used) == (None, None, None)
