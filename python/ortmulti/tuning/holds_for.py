"""What a tuning holds for: the model and the machine, and what of that is different here."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti import _core, machine
from ortmulti.errors import InvalidProtobuf
from ortmulti.nvml import Nvml

_INLINE_WEIGHT = 1024


def describe_model(model: str | bytes | bytearray | memoryview) -> dict[str, Any]:
    """What tells one model from another.

    Returns:
        ``shapes``: digest of the names, types and shapes of its initializers; ``graph``: digest of its bytes but those
        of tensors from 1024 bytes on. Both None for what is no ONNX protobuf file.
    """
    if not isinstance(model, str):
        with memoryview(model) as view:
            return _describe(view)
    with (
        Path(model).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
        memoryview(mapping) as view,
    ):
        return _describe(view)


def _describe(view: memoryview) -> dict[str, Any]:
    try:
        initializers = _core.index_model(view).initializers
    except InvalidProtobuf:
        return {"shapes": None, "graph": None}
    shapes, graph = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    for name, kind, dimensions in sorted((one.name, one.data_type, tuple(one.shape)) for one in initializers):
        shapes.update(b"%d:%s %d %s;" % (len(name), name, kind, str(dimensions).encode()))
    begin = 0
    for start, end in sorted(
        (one.offset, one.offset + one.length)
        for one in initializers
        if one.storage == "inline" and one.length >= _INLINE_WEIGHT
    ):
        graph.update(view[begin:start])
        begin = end
    graph.update(view[begin:])
    return {"shapes": shapes.hexdigest(), "graph": graph.hexdigest()}


def describe_machine(kind: str) -> dict[str, Any]:
    """What the best settings may depend on, for sessions on devices of a kind, ``"cpu"`` or ``"cuda"``.

    Does not start CUDA.
    """
    cpu = machine.describe_cpu()
    releases = machine.describe_releases()
    found: dict[str, Any] = {
        "cpu": cpu["model"],
        "cores": _core.usable_cores(),
        "numa_nodes": cpu["numa_nodes"],
        "onnxruntime": releases["onnxruntime"],
        "distribution": releases["onnxruntime_distribution"],
        "ortmulti": releases["ortmulti"],
    }
    return found if kind == "cpu" else {**found, **_gpus()}


def _gpus() -> dict[str, Any]:
    nvml = Nvml.open()
    if nvml is None:
        return {"gpus": None, "driver": None}
    with nvml:
        return {"gpus": sorted({gpu.name for gpu in nvml.gpus()}), "driver": nvml.driver_version}


_TITLES = {
    "cpu": "CPU",
    "cores": "cores",
    "numa_nodes": "NUMA nodes",
    "gpus": "GPU",
    "driver": "driver",
    "onnxruntime": "onnxruntime",
    "distribution": "distribution",
    "ortmulti": "ortmulti",
}


def differences(measured: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is not as it was where it was measured, as texts such as "cores 8, here 2"."""
    return [
        f"{title} {_text(measured[name])}, here {_text(here.get(name))}"
        for name, title in _TITLES.items()
        if name in measured and measured[name] != here.get(name)
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)
