"""How a request's sessions are created: decided before anything is made, from the request and its devices alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortmulti import _core
from ortmulti.create.model import Model
from ortmulti.create.request import CreationRequest
from ortmulti.devices.device import Device
from ortmulti.errors import Error
from ortmulti.options.model_additions import replacing_weights
from ortmulti.options.session_options import GraphOptimizationLevel

# Measured on H200 with ONNX Runtime 1.31: a session over an entry takes longer by so much for each node than one that
# optimizes the model itself (20,000 nodes); ONNX Runtime reads a byte more slowly by so much than the readers.
_SECONDS_PER_NODE = 20e-6
_SECONDS_PER_BYTE = 0.3e-9
_SECONDS_PER_HASHED_BYTE = 0.8e-9  # of a model in memory, at each load
_NOTICEABLE = 0.05  # seconds


@dataclass(frozen=True)
class Plan:
    """Which ways to sessions are tried, in this order, until one leads there.

    Attributes:
        ways: ``"entry"``: over the model's cache entry, which is made if necessary. ``"model"``: over the weights of
            the model as it is. ``"contexts"``: with what plug-ins have compiled. ``"values"``: over values that the
            session options give. ``"alone"``: ONNX Runtime loads the model by itself; it comes last.
        reason: Why sessions on GPUs do not share weights, if the plan knows that.
    """

    ways: tuple[str, ...]
    reason: str = ""


def plan(request: CreationRequest, devices: Sequence[Device], options: _core.SessionOptions) -> Plan:
    """Return how the sessions of a request are created.

    Args:
        request: The request.
        devices: The device of each session.
        options: Options of every session.
    """
    if request.loading.strategy != "shared":
        return Plan(("alone",))
    external = bool(request.model.external.weights)
    alone = ("values", "alone") if external or options.external_initializers else ("alone",)
    if all(device.kind != "cuda" for device in devices):
        compiles = any(device.is_plugin for device in devices) and not external
        return Plan(("contexts", *alone) if request.loading.optimize != "never" and compiles else alone)
    if reason := why_not_shared(devices, options):
        return Plan(alone, reason)
    if (
        request.loading.optimize == "never"
        or options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL
    ):
        return Plan(("model", *alone))
    if request.loading.optimize == "auto" and (reason := why_not_worth_it(request.model, request.sessions_per_device)):
        return Plan(alone, reason)
    return Plan(("entry", *alone))


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
