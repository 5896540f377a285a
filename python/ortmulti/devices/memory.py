"""Who has a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ortmulti import _core
from ortmulti.devices.device import Device, parse_devices
from ortmulti.errors import Error, InvalidArgument

__all__ = ["GpuMemory", "gpu_memory"]

_COUNTED = ("weights", "arenas", "graphs", "buffers")  # by this process


@dataclass(frozen=True)
class GpuMemory:
    """A GPU's memory at one moment, in bytes. Where NVML does not tell the processes apart, as in some containers,
    ``beside`` and ``others`` are None, and what they would be is the rest of ``used``.

    Attributes:
        device: ``"cuda:N"``.
        weights: Those that sessions of this process share, awake.
        arenas: What ONNX Runtime keeps for this process's sessions: weights of their own, and what runs need. Before
            onnxruntime 1.23, which does not say, it is part of ``beside``.
        graphs: CUDA graphs: the arenas of their sessions, with inputs and outputs.
        buffers: Inputs and outputs of requests, and `OrtValue` objects.
        beside: What else this process has: its context, kernels, and the handles that CUDA's libraries keep for each
            thread that runs a session.
        others: Other processes'.
        used: By all processes.
        total: Of the GPU.
    """

    device: str
    weights: int
    arenas: int
    graphs: int
    buffers: int
    beside: int | None
    others: int | None
    used: int
    total: int

    def uses(self) -> Iterator[tuple[str, int]]:
        """Yield each known use and its bytes: together they are ``used``, where all are known."""
        for name in (*_COUNTED, "beside", "others"):
            if (size := getattr(self, name)) is not None:
                yield name, size


def gpu_memory(device: Device | str | int) -> GpuMemory:
    """Return who has a GPU's memory now: this process by what it is for, and others.

    Args:
        device: A GPU, such as ``"cuda:0"`` or 0.

    Raises:
        InvalidArgument, InvalidType: It is no GPU.
        DeviceError: The GPU does not work, or there is none.
    """
    [found] = parse_devices(device)
    if found.kind != "cuda":
        raise InvalidArgument(f"{found} is no GPU: a GPU is 'cuda:N'")
    facts = _core.gpu_memory(found.index)
    used, process = facts["used"], facts.pop("of_process")
    counted = sum(facts[name] for name in _COUNTED)
    beside = None if process is None else max(0, process - counted)
    others = None if process is None else max(0, used - process)
    return GpuMemory(device=str(found), beside=beside, others=others, **facts)


def memory_of(devices: Iterable[str]) -> Iterator[GpuMemory]:
    """Yield the memory of those that are GPUs, work, and that this process uses already."""
    for name in dict.fromkeys(devices):
        try:
            if used_gpu(name) is not None:
                yield gpu_memory(name)
        except Error:
            continue


def used_gpu(device: str) -> int | None:
    """Return CUDA's number of a GPU that this process uses already; asking another one for its memory starts it."""
    index = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else None
    return index if index is not None and _core.cuda_has_context(index) else None
