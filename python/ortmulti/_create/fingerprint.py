"""What a tuning holds for: the model and the machine, and what of that is different here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ortmulti import _core
from ortmulti._runtime import machine
from ortmulti._runtime.nvml import Nvml
from ortmulti.cache.identity import FileIdentity, digest_without, index_model, inline_weights
from ortmulti.errors import InvalidProtobuf


def describe_model(model: str | bytes | bytearray | memoryview) -> dict[str, Any]:
    """What tells one model from another.

    Returns:
        ``shapes``: digest of the names, types and shapes of its initializers; ``graph``: digest of its bytes but those
        of tensors from 1024 bytes on. Both None for what is no ONNX protobuf file.

    Raises:
        NoSuchFile: There is no such file.
        WeightsError: The file cannot be read, or was changed meanwhile.
    """
    if isinstance(model, str):
        return _describe(FileIdentity.of(model))
    with memoryview(model) as view:
        return _describe(view)


def _describe(model: FileIdentity | memoryview) -> dict[str, Any]:
    try:
        initializers = index_model(model).initializers
    except InvalidProtobuf:
        return {"shapes": None, "graph": None}
    shapes = hashlib.blake2b(digest_size=16)
    for name, kind, dimensions in sorted((one.name, one.data_type, tuple(one.shape)) for one in initializers):
        shapes.update(b"%d:%s %d %s;" % (len(name), name, kind, str(dimensions).encode()))
    return {"shapes": shapes.hexdigest(), "graph": digest_without(model, inline_weights(initializers))}


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
