"""Sessions that share the values which the session options give for a model's external data."""

from __future__ import annotations

import logging
from typing import Any

from ortmulti import _core
from ortmulti.create.empty_files import MIN_SHARED_BYTES, over_empty_files
from ortmulti.create.request import without_optimization
from ortmulti.errors import Error
from ortmulti.loading.creation import Creation

LOGGER = logging.getLogger("ortmulti")

_MAX_BYTES = 1 << 31
"""Of a model that ONNX Runtime takes in memory."""


def create_from_values(creation: Creation) -> bool:
    """Create sessions that share the large values which the options give for all external data of a model.

    Returns:
        False if there are no such values, or if a kernel or too many optimizations read them. Nothing is left then.
    """
    model, options = creation.request.model, creation.options.copy()
    if options.optimized_model_filepath or options.initializers or options.files_in_memory:
        return False
    if any(device.is_plugin for device in creation.devices):
        return False
    try:
        graph = model.graph
        if file := model.file:
            if file.size >= _MAX_BYTES:
                return False
            graph = file.read(0, file.size).data
        index = _core.index_model(graph)
    except Error:
        return False  # ONNX Runtime says what is wrong with the model
    outside = {each.name for each in index.initializers if each.storage == "external"}
    if not outside <= {name.encode() for name in options.external_initializers}:
        return False
    if creation.request.loading.optimize == "never":
        options = without_optimization(options)
    weights = options.take_external_weights(MIN_SHARED_BYTES)
    if not weights.weights:
        return False

    problem = share(creation, graph, index, weights, options)
    if problem:
        creation.note(f"values that the options give are copied: {problem}")
        LOGGER.info("values that the session options give are copied for each session: %s", problem)
    return not problem


def share(
    creation: Creation, graph: Any, index: _core.ModelIndex, weights: _core.WeightList, options: _core.SessionOptions
) -> str:
    """Create sessions that share large weights with external data. Return why not; empty if they exist."""

    def create(options: _core.SessionOptions, shared: _core.WeightList) -> str:
        return creation.run(
            graph,
            options,
            shared,
            confirm=lambda *_: True,
            one_session_each=creation.one_session_each,
            made_of=creation.request.model.path,
        )

    return over_empty_files(index, weights, options, create)
