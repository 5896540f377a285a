"""Facts about GPUs from NVIDIA's management library (NVML), matched to CUDA's devices.

NVML and CUDA number the GPUs differently (``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``). So a GPU is named by its
UUID or its PCI address, never by an index. Needs the package nvidia-ml-py (``pip install "ortmulti[monitor]"``);
without it, or without a driver, `Nvml.open` gives None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortmulti._runtime.closing import Closing


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one instance of a partitioned one (MIG). Unknown facts are None, sizes of memory are in bytes.

    Attributes:
        uuid: "GPU-..." or "MIG-...".
        pci_bus_id: the PCI address as CUDA writes it, "0000:1b:00.0"; a MIG instance's is its GPU's.
        persistence_mode: whether the driver keeps an unused GPU initialized.
    """

    name: str | None
    uuid: str
    pci_bus_id: str | None
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    persistence_mode: bool | None


@dataclass(frozen=True)
class GpuActivity:
    """The present work of a GPU. Unknown facts are None.

    Attributes:
        clock: of its multiprocessors, MHz; it falls while the GPU is idle.
        clock_max: the highest one, MHz.
        clock_limit: the highest one that its settings allow (``nvidia-smi -lgc``, ``-ac``), MHz.
        slowed_by: what holds the clock down beside idleness: "power", "heat", "hardware".
        utilization: percent of the last moment in which a kernel ran.
        processes: the ids of the processes that compute on it, as NVML sees them.
    """

    clock: int | None
    clock_max: int | None
    clock_limit: int | None
    slowed_by: tuple[str, ...]
    utilization: int | None
    processes: tuple[int, ...]


# NVML's reasons for a lower clock, as its documentation numbers them.
_SLOWED_BY = {"power": 0x4 | 0x80, "heat": 0x20 | 0x40, "hardware": 0x8}

_SM_CLOCK = 1


class Nvml(Closing):
    """An open NVML. Use `Nvml.open`, and close it or use it in a ``with`` statement.

    Args:
        library: the module pynvml, initialized.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Open NVML; None where nvidia-ml-py is not installed or there is no working NVIDIA driver."""
        if (library := _import_pynvml()) is None:
            return None
        try:
            library.nvmlInit()
        except library.NVMLError:
            return None
        return cls(library)

    def close(self) -> None:
        """Close it; only the first call does anything."""
        library, self._library = self._library, None
        if library is not None:
            library.nvmlShutdown()

    @property
    def driver_version(self) -> str | None:
        """The NVIDIA driver's release, for example "580.95.05"."""
        version: str | None = self._ask("nvmlSystemGetDriverVersion")
        return version

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the machine that NVML shows, whether CUDA sees it or not."""
        handles = [self._device("HandleByIndex", index) for index in range(self._device("Count") or 0)]
        return [self._describe(handle) for handle in handles if handle is not None]

    def gpu(self, uuid: str | None = None, pci_bus_id: str | None = None) -> Gpu | None:
        """Return one GPU, or None where NVML does not know it.

        Args:
            uuid: as CUDA or NVML writes it; CUDA's "GPU-..." for a MIG instance is understood too.
            pci_bus_id: used where the UUID is not given or not known to NVML.
        """
        handle = self._handle(uuid, pci_bus_id)
        return None if handle is None else self._describe(handle)

    def activity(self, uuid: str | None = None, pci_bus_id: str | None = None) -> GpuActivity | None:
        """The present work of a GPU; arguments and None as for `gpu`."""
        handle = self._handle(uuid, pci_bus_id)
        if handle is None:
            return None
        reasons = self._device("CurrentClocksThrottleReasons", handle) or 0
        return GpuActivity(
            clock=self._device("ClockInfo", handle, _SM_CLOCK),
            clock_max=self._device("MaxClockInfo", handle, _SM_CLOCK),
            clock_limit=self._device("ApplicationsClock", handle, _SM_CLOCK),
            slowed_by=tuple(name for name, bits in _SLOWED_BY.items() if reasons & bits),
            utilization=getattr(self._device("UtilizationRates", handle), "gpu", None),
            processes=tuple(self._processes(handle)),
        )

    def processes(self, uuid: str | None = None, pci_bus_id: str | None = None) -> dict[int, int | None]:
        """Return the bytes of a GPU's memory that each process has, by its id, as NVML sees them: in some containers
        none. Arguments as for `gpu`.
        """
        handle = self._handle(uuid, pci_bus_id)
        return {} if handle is None else self._processes(handle)

    def _processes(self, handle: Any) -> dict[int, int | None]:
        return {one.pid: one.usedGpuMemory for one in self._device("ComputeRunningProcesses", handle) or []}

    def _handle(self, uuid: str | None, pci_bus_id: str | None) -> Any:
        kind, _, identity = (uuid or "").partition("-")
        for prefix in dict.fromkeys((kind, "GPU", "MIG")) if uuid else ():
            if (handle := self._device("HandleByUUID", f"{prefix}-{identity}")) is not None:
                return handle
        return None if pci_bus_id is None else self._device("HandleByPciBusId", pci_bus_id)

    def _describe(self, handle: Any) -> Gpu:
        whole = handle  # a MIG instance has no address and no mode of its own
        if self._ask("nvmlDeviceIsMigDeviceHandle", handle):
            whole = self._device("DeviceHandleFromMigDeviceHandle", handle) or handle
        # The second version excludes memory that the driver reserves, as nvidia-smi does.
        memory = self._device("MemoryInfo", handle, self._library.nvmlMemory_v2)
        pci = self._device("PciInfo", whole)
        mode = self._device("PersistenceMode", whole)
        return Gpu(
            name=self._device("Name", handle),
            uuid=self._device("UUID", handle) or "",
            pci_bus_id=None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            memory_total=getattr(memory, "total", None),
            memory_used=getattr(memory, "used", None),
            memory_free=getattr(memory, "free", None),
            persistence_mode=None if mode is None else bool(mode),
        )

    def _device(self, what: str, *arguments: Any) -> Any:
        return self._ask(f"nvmlDeviceGet{what}", *arguments)

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return NVML's answer, or None where this GPU or this driver has none."""
        try:
            return getattr(self._library, name)(*arguments)
        except self._library.NVMLError:
            return None


def _import_pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
