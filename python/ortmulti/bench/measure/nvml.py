"""Facts about GPUs from NVIDIA's management library (NVML), matched to CUDA's devices.

NVML and CUDA number the GPUs differently (``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``). So a GPU is named by its
UUID or its PCI address, never by an index. Needs the package nvidia-ml-py (``pip install "ortmulti[monitor]"``);
without it, or without a driver, `Nvml.open` gives None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ortmulti._runtime.closing import Closing


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one instance of a partitioned one (MIG). Unknown facts are None.

    Attributes:
        name: the product's name.
        uuid: "GPU-..." or "MIG-...".
        pci_bus_id: the PCI address as CUDA writes it, "0000:1b:00.0"; a MIG instance's is its GPU's.
        memory_total: bytes.
        memory_used: bytes in use by all processes.
        memory_free: bytes.
        persistence_mode: whether the driver keeps an unused GPU initialized.
        pcie_generation: of the link as it is now; it falls while the GPU is idle.
        pcie_generation_max: the best that the GPU and the slot can do.
        pcie_width: lanes now.
        pcie_width_max: lanes at most.
    """

    name: str | None
    uuid: str
    pci_bus_id: str | None
    memory_total: int | None
    memory_used: int | None
    memory_free: int | None
    persistence_mode: bool | None
    pcie_generation: int | None
    pcie_generation_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None


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


def pci_address(text: str) -> tuple[int, int, int, int]:
    """Return a PCI address as numbers: CUDA writes "0000:1B:00.0" and NVML "00000000:1B:00.0" for the same device.

    Args:
        text: the address; domain and function may be left out.

    Returns:
        Domain, bus, device, function.

    Raises:
        ValueError: it is no PCI address.
    """
    match = re.fullmatch(
        r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.strip(), re.IGNORECASE
    )
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:1b:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return domain, bus, device, function


class Nvml(Closing):
    """An open NVML. Use `Nvml.open`, and close it or use it in a ``with`` statement.

    Args:
        library: the module pynvml, initialized.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def open(cls) -> Nvml | None:
        """Open NVML.

        Returns:
            NVML, or None where nvidia-ml-py is not installed or there is no working NVIDIA driver.
        """
        library = _import_pynvml()
        if library is None:
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
        return self._text(self._library.nvmlSystemGetDriverVersion)

    @property
    def cuda_driver_version(self) -> int | None:
        """The newest CUDA release that the driver supports: 13000 = 13.0."""
        version = self._ask(self._library.nvmlSystemGetCudaDriverVersion_v2)
        return None if version is None else int(version)

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the machine that NVML shows, whether CUDA sees it or not."""
        count = self._ask(self._library.nvmlDeviceGetCount) or 0
        handles = [self._ask(self._library.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
        return [self._describe(handle) for handle in handles if handle is not None]

    def gpu(self, uuid: str | None = None, pci_bus_id: str | None = None) -> Gpu | None:
        """Return one GPU.

        Args:
            uuid: as CUDA or NVML writes it; CUDA's "GPU-..." for a MIG instance is understood too.
            pci_bus_id: used where the UUID is not given or not known to NVML.

        Returns:
            The GPU, or None where NVML does not know it.
        """
        handle = self._handle(uuid, pci_bus_id)
        return None if handle is None else self._describe(handle)

    def memory_used(self, uuid: str | None = None, pci_bus_id: str | None = None) -> int | None:
        """Return bytes of a GPU's memory that are in use, by all processes; arguments and None as for `gpu`."""
        handle = self._handle(uuid, pci_bus_id)
        memory = None if handle is None else self._memory(handle)
        return None if memory is None else int(memory.used)

    def activity(self, uuid: str | None = None, pci_bus_id: str | None = None) -> GpuActivity | None:
        """The present work of a GPU; arguments and None as for `gpu`."""
        handle = self._handle(uuid, pci_bus_id)
        if handle is None:
            return None
        library = self._library
        multiprocessors = getattr(library, "NVML_CLOCK_SM", 1)
        application = self._ask(library.nvmlDeviceGetApplicationsClock, handle, multiprocessors)
        reasons = self._ask(library.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
        utilization = self._ask(library.nvmlDeviceGetUtilizationRates, handle)
        processes = self._ask(library.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return GpuActivity(
            clock=self._ask(library.nvmlDeviceGetClockInfo, handle, multiprocessors),
            clock_max=self._ask(library.nvmlDeviceGetMaxClockInfo, handle, multiprocessors),
            clock_limit=application,
            slowed_by=tuple(name for name, bits in _SLOWED_BY.items() if reasons & bits),
            utilization=None if utilization is None else int(utilization.gpu),
            processes=tuple(int(process.pid) for process in processes),
        )

    def _handle(self, uuid: str | None, pci_bus_id: str | None) -> Any:
        if uuid is not None:
            kind, _, identity = uuid.partition("-")
            for prefix in dict.fromkeys((kind, "GPU", "MIG")):
                handle = self._ask(self._library.nvmlDeviceGetHandleByUUID, f"{prefix}-{identity}")
                if handle is not None:
                    return handle
        if pci_bus_id is not None:
            domain, bus, device, function = pci_address(pci_bus_id)
            text = f"{domain:08X}:{bus:02X}:{device:02X}.{function}"
            return self._ask(self._library.nvmlDeviceGetHandleByPciBusId, text)
        return None

    def _describe(self, handle: Any) -> Gpu:
        library = self._library
        # PCI, persistence and links are the whole GPU's: a MIG instance has none of its own.
        whole = handle
        if self._ask(library.nvmlDeviceIsMigDeviceHandle, handle):
            whole = self._ask(library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
        memory = self._memory(handle)
        pci = self._ask(library.nvmlDeviceGetPciInfo, whole)
        persistence = self._ask(library.nvmlDeviceGetPersistenceMode, whole)
        return Gpu(
            name=self._text(library.nvmlDeviceGetName, handle),
            uuid=self._text(library.nvmlDeviceGetUUID, handle) or "",
            pci_bus_id=None if pci is None else "{:04x}:{:02x}:{:02x}.{:x}".format(*pci_address(_decode(pci.busId))),
            memory_total=None if memory is None else int(memory.total),
            memory_used=None if memory is None else int(memory.used),
            memory_free=None if memory is None else int(memory.free),
            persistence_mode=None if persistence is None else bool(persistence),
            pcie_generation=self._ask(library.nvmlDeviceGetCurrPcieLinkGeneration, whole),
            pcie_generation_max=self._ask(library.nvmlDeviceGetMaxPcieLinkGeneration, whole),
            pcie_width=self._ask(library.nvmlDeviceGetCurrPcieLinkWidth, whole),
            pcie_width_max=self._ask(library.nvmlDeviceGetMaxPcieLinkWidth, whole),
        )

    def _memory(self, handle: Any) -> Any:
        # The second version excludes memory that the driver reserves, as nvidia-smi does; older drivers lack it.
        version = getattr(self._library, "nvmlMemory_v2", None)
        memory = None
        if version is not None:
            memory = self._ask(self._library.nvmlDeviceGetMemoryInfo, handle, version)
        return memory if memory is not None else self._ask(self._library.nvmlDeviceGetMemoryInfo, handle)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """NVML's answer, or None where this GPU or this driver has none."""
        try:
            return function(*arguments)
        except self._library.NVMLError:
            return None

    def _text(self, function: Callable[..., Any], *arguments: Any) -> str | None:
        answer = self._ask(function, *arguments)
        return None if answer is None else _decode(answer)


def _decode(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _import_pynvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    library: ModuleType = pynvml
    return library
