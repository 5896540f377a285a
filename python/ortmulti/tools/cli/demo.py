"""What `ortmulti bench create --demo` and `ortmulti bench run --demo` measure.

The former's models are as large as the machine's memory, disk and patience allow.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ortmulti import _core
from ortmulti._runtime.machine import available_memory
from ortmulti.tools import models

from .output import bytes_written

REPEAT = 3

# Large enough that the memory of sessions that share their weights differs from that of others.
RUN_MODEL = "matmul:megabytes=64"
RUN_SECONDS = 1.5
RUN_WARM_SECONDS = 0.3

_ALL_LAYERS = 32
# Without a GPU a larger decoder shows nothing else, and takes minutes.
_CPU_LAYERS = 2
# A CPU session turns fp16 weights into fp32 ones, and for a while has both, and what it read.
_CPU_COPIES = 4
_GPU_COPIES = 1.5


def make_models(folder: Path, device_sets: Sequence[tuple[str, ...]]) -> list[Path]:
    """Makes resnet50 and phi3-mini, unless `folder` already has them.

    Args:
        folder: for the models.
        device_sets: the sessions that have to fit side by side.

    Returns:
        Their paths.
    """
    layers = choose_layers(folder, device_sets)
    with bytes_written(f"making resnet50 in {folder}") as progress:
        resnet50 = models.make("resnet50", folder, progress=progress)
    with bytes_written(f"making phi3-mini, {layers} of {_ALL_LAYERS} layers, in {folder}") as progress:
        return [resnet50, models.make("phi3-mini", folder, layers=layers, progress=progress)]


def choose_layers(folder: Path, device_sets: Sequence[tuple[str, ...]]) -> int:
    """The largest number of phi3-mini's layers, 1 to 32, whose sessions fit into half of what there is: the GPUs'
    memory, the main memory (page cache and sessions on the CPU), and the disk unless the model is there already."""
    largest = max(device_sets, key=len)
    on_cpu = largest.count("cpu")
    used = {device for device in largest if device != "cpu"}
    gpus = [gpu for gpu in _core.cuda_devices() if f"cuda:{gpu.index}" in used] if used else []
    memory = available_memory()

    def fits(layers: int) -> bool:
        size = models.describe("phi3-mini", layers=layers).weight_bytes
        per_gpu = max((largest.count(f"cuda:{gpu.index}") for gpu in gpus), default=0)
        there = models.find("phi3-mini", folder, layers=layers) is not None
        return (
            all(size * _GPU_COPIES * per_gpu <= gpu.total_memory / 2 for gpu in gpus)
            and size * (1 + _CPU_COPIES * on_cpu + len(largest) - on_cpu) <= memory / 2
            and (there or size <= _free_disk(folder) / 2)
        )

    most = _CPU_LAYERS if on_cpu else _ALL_LAYERS
    return next((layers for layers in range(most, 1, -1) if fits(layers)), 1)


def _free_disk(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
