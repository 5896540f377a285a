"""Whether sessions on GPUs can share weights, and gain by it: decided before anything is made."""

from __future__ import annotations

from collections.abc import Iterable

from ortmulti import _core
from ortmulti.create.model import Model
from ortmulti.devices.device import Device
from ortmulti.errors import Error
from ortmulti.options.model_additions import replacing_weights

# Measured on H200 with ONNX Runtime 1.31: a session over an entry takes longer by so much for each node than one that
# optimizes the model itself (20,000 nodes); ONNX Runtime reads a byte more slowly by so much than the readers.
_SECONDS_PER_NODE = 20e-6
_SECONDS_PER_BYTE = 0.3e-9
_SECONDS_PER_HASHED_BYTE = 0.8e-9  # of a model in memory, at each load
_NOTICEABLE = 0.05  # seconds


def why_not_shared(devices: Iterable[Device], options: _core.SessionOptions) -> str:
    """Return the reason why sessions cannot share weights; empty if none is known."""
    if any(device.kind != "cuda" for device in devices):
        return "the CPU or a plug-in's device is among the devices, beside GPUs"
    if options.optimized_model_filepath:
        return "optimized_model_filepath asks ONNX Runtime itself to optimize the model"
    if methods := replacing_weights(options):
        return f"the session options have weights of their own ({methods})"
    if "session.use_ort_model_bytes_directly" in options.config_entries:
        return "session.use_ort_model_bytes_directly is for models in ONNX Runtime's own format"
    return ""


def why_not_worth_it(model: Model, sessions_per_device: int) -> str:
    """Why each session should load a model by itself; empty where sessions should share its weights.

    Args:
        model: The model.
        sessions_per_device: How many sessions would have each weight in common.
    """
    try:
        index = _core.index_model(model.graph)
    except Error:
        return ""  # ONNX Runtime says what is wrong with the model
    loss = index.nodes * _SECONDS_PER_NODE - index.weight_bytes * sessions_per_device * _SECONDS_PER_BYTE
    if not model.path and sessions_per_device == 1:  # several have the weights once
        size = model.size
        if loss + size * _SECONDS_PER_HASHED_BYTE >= _NOTICEABLE:
            return f"finding the entry of a model of {size / 1e6:.1f} MB in memory takes longer than sharing saves"
    if loss < _NOTICEABLE:
        return ""
    return f"{index.weight_bytes / 1e6:.1f} MB of weights are too little to share for a graph of {index.nodes} nodes"
