"""Sessions that share the values which the session options give for a model's external data."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ortmulti import _core
from ortmulti.create.request import CheckedModel, without_optimization
from ortmulti.errors import Error
from ortmulti.loading.attempt import Attempt
from ortmulti.optimized import DATA_FOLDER

LOGGER = logging.getLogger("ortmulti")

# Optimizations read many small values, such as scales and biases, and few large ones, such as positions' embeddings.
_MIN_GIVEN_BYTES = 1 << 20
_TRIES = 6


def create_over_values(attempt: Attempt) -> bool:
    """Create sessions that share the large values which the options give for all external data of a model.

    ONNX Runtime copies each value that is given for external data. One that is given for an initializer it uses in
    place, but then its optimizations read the file. Here they find an empty one, which is an error: the value that it
    names, and those of the same shape, are copied at the next try.

    Returns:
        False if there are no such values, or if a kernel or too many optimizations read them. Nothing is left then.
    """
    options = attempt.options
    if options.optimized_model_filepath or options.initializers or options.files_in_memory:
        return False
    if any(device.is_plugin for device in attempt.devices):
        return False
    try:
        graph = _graph(attempt.request.model)
        index = _core.index_model(graph)
    except (Error, OSError):
        return False  # ONNX Runtime says what is wrong with the model
    if attempt.request.optimize == "never":
        options = without_optimization(options)
    if len({each.name for each in index.initializers}) != len(index.initializers):
        return False  # a value would be one of a sub-graph, too
    outside = [each for each in index.initializers if each.storage == "external"]
    if not {each.name for each in outside} <= {name.encode() for name in options.external_initializers}:
        return False
    fitting = {(each.name, each.data_type, *each.shape) for each in outside if not each.graph and not each.overridable}
    copied: set[str] = set()
    for _ in range(_TRIES):
        changed = options.copy()
        weights = changed.take_external_weights(_MIN_GIVEN_BYTES, copied)
        found = {weight.name: (weight.data_type, *weight.shape) for weight in weights.weights}
        if not found or not {(name.encode(), *kind) for name, kind in found.items()} <= fitting:
            return False  # ONNX Runtime says what is wrong with the values
        problem = _create(attempt, graph, index.external_locations, changed, weights)
        if not problem:
            return True
        read = next((kind for name, kind in found.items() if f" {name} " in problem), None)
        if read is None:
            break
        copied |= {name for name, kind in found.items() if kind == read}
    attempt.note(f"values that the options give are copied: {problem}")
    LOGGER.info("values that the session options give are copied for each session: %s", problem)
    return False


def _graph(model: CheckedModel) -> memoryview:
    """Return the model's bytes, without its external data.

    Raises:
        OSError: It has as many as ONNX Runtime takes in memory.
        Error: It cannot be read.
    """
    if not isinstance(model, str):
        return memoryview(model)
    if (source := _core.file_source(model)).size >= 1 << 31:
        raise OSError(f"{model!r} is too large to be in memory")
    return source.read(0, source.size).data


def _create(
    attempt: Attempt,
    graph: memoryview,
    locations: Sequence[bytes],
    options: _core.SessionOptions,
    weights: _core.WeightList,
) -> str:
    """Create sessions over values in the place of these files. Return why not; empty if they exist."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ortmulti-"))
            for location in locations:
                path = Path(folder, os.fsdecode(location)).resolve()
                if not path.is_relative_to(Path(folder).resolve()):
                    return f"external data is outside of the model's folder: {location!r}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        except (OSError, ValueError) as error:  # such as "a" and "a/b", or a NUL
            return f"there can be no files with the names of the external data: {error}"
        options.config_entries = {**options.config_entries, DATA_FOLDER: folder}
        model, each = attempt.request.model, not attempt.on_gpu
        made_of = model if isinstance(model, str) else ""
        return attempt.create(graph, options, weights, confirm=lambda *_: True, one_session_each=each, made_of=made_of)
