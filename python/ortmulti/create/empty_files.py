"""Sessions over weights that ONNX Runtime cannot find by itself: its own reads find empty files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ortmulti import _core

DATA_FOLDER = "session.model_external_initializers_file_folder_path"

# Optimizations read many small values, such as scales and biases, and few large ones, such as positions' embeddings.
MIN_SHARED_BYTES = 1 << 20
_TRIES = 6


def over_empty_files(
    index: _core.ModelIndex,
    weights: _core.WeightList,
    options: _core.SessionOptions,
    create: Callable[[_core.SessionOptions, _core.WeightList], str],
) -> str:
    """Create sessions that share large weights, where ONNX Runtime finds no external data by itself.

    It copies each value that is given for external data. One that is given for an initializer it uses in place, but
    then its optimizations read the file. Here they find an empty one, which is an error: the value that it names, and
    those of the same shape, are given for external data at the next try. So are small ones, at once.

    Args:
        index: Of the graph.
        weights: Weights with external data.
        options: Of the sessions. They have values for other external data.
        create: Creates sessions with these options, which share these weights. Returns why ONNX Runtime cannot; empty
            if it can.

    Returns:
        Why there are no sessions; empty if they exist.
    """
    if len({each.name for each in index.initializers}) != len(index.initializers):
        return "initializers of several graphs have the same name"
    fitting = {
        (each.name, each.data_type, *each.shape)
        for each in index.initializers
        if each.storage == "external" and not each.graph and not each.overridable
    }
    kinds = {each.name: (each.data_type, *each.shape) for each in weights.weights}
    if not {(name.encode(), *kind) for name, kind in kinds.items()} <= fitting:
        return "they are not what the model declares"  # ONNX Runtime says what is wrong
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ortmulti-"))
            for location in index.external_locations:
                path = Path(folder, os.fsdecode(location)).resolve()
                if not path.is_relative_to(Path(folder).resolve()):
                    return f"external data is outside of the model's folder: {location!r}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        except (OSError, ValueError) as error:  # such as "a" and "a/b", or a NUL
            return f"there can be no files with the names of the external data: {error}"
        changed = options.copy()
        changed.config_entries = {**changed.config_entries, DATA_FOLDER: folder}
        added: set[str] = set()  # each is read once
        copied: set[tuple[int, ...]] = set()
        problem = "all of them are small"
        for _ in range(_TRIES):
            parts: tuple[list[_core.Weight], list[_core.Weight]] = ([], [])
            for weight in weights.weights:
                parts[weight.length < MIN_SHARED_BYTES or kinds[weight.name] in copied].append(weight)
            if not parts[0]:
                break
            new = [weight for weight in parts[1] if weight.name not in added]
            changed.add_external_weights(_core.WeightList(weights.sources, new).read())
            added.update(weight.name for weight in new)
            problem = create(changed, _core.WeightList(weights.sources, parts[0]))
            read = next((kinds[weight.name] for weight in parts[0] if f" {weight.name} " in problem), None)
            if read is None:
                break
            copied.add(read)
        return problem
