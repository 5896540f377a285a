"""Models of known shape and size with random weights, and inputs for any model.

    from ortmulti.bench import models

    path = models.make("resnet50", "models")
    inputs = models.sample_inputs(path, batch=8)

Writing and reading .onnx files needs the onnx package: ``pip install "ortmulti[models]"``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortmulti.bench.models import encoder, phi3_mini, resnet50, small
from ortmulti.bench.models._graph import PRECISIONS, Graph, Progress, WriteError
from ortmulti.bench.models._inputs import sample_inputs
from ortmulti.errors import InvalidArgument

__all__ = ["MODELS", "Model", "WriteError", "describe", "make", "parse", "sample_inputs"]


class Model(NamedTuple):
    """A model that can be made: one line about it, the options that it takes with their defaults, and its builder."""

    summary: str
    options: Mapping[str, int | str]
    build: Callable[..., Graph]


MODELS: Mapping[str, Model] = {
    "resnet50": Model("ResNet-50 v1.5, fp32, 102 MB in one file", {"precision": "fp32"}, resnet50.build),
    "phi3-mini": Model(
        "decoder of Phi-3-mini's shape, fp16, 7.64 GB with external data",
        {"layers": phi3_mini.LAYERS, "precision": "fp16"},
        phi3_mini.build,
    ),
    "encoder": Model(
        "text encoder of all-MiniLM-L6-v2's shape, fp32, 90 MB in one file",
        {"layers": encoder.LAYERS, "hidden": encoder.HIDDEN, "precision": "fp32"},
        encoder.build,
    ),
    "tiny-kernels": Model("chain of 400 kernels of microseconds, fp32, 1.7 MB", {}, small.build_tiny_kernels),
    "matmul": Model(
        "stack of matrix products of any size, fp32, external data", {"megabytes": small.MEGABYTES}, small.build_matmul
    ),
    "identity": Model("one node", {}, small.build_identity),
}
"""Every model by its name."""

_LARGEST = {"layers": 1024, "hidden": 1 << 16, "megabytes": 10**7}


def make(
    name: str,
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    progress: Progress = lambda _done, _total: None,
    **options: int | str | None,
) -> Path:
    """Make a model with random weights, unless the directory already has the complete model.

    Files appear under their names only when they are complete.

    Args:
        name: One of `MODELS`.
        directory: Where the files go; made if it does not exist.
        seed: The same seed gives the same bytes; not negative.
        progress: Called with the bytes of weights written and in all; once, at the end, for a reused model.
        options: Those of the model, see `MODELS`; None is the default. "layers": decoder layers. "precision": "fp16" or
            "fp32". "megabytes": size in 10**6 bytes.

    Returns:
        Path of the .onnx file.

    Raises:
        ortmulti.errors.InvalidArgument: Unknown name, an option that the model does not take, or a value out of range.
        ortmulti.errors.LibraryError: The onnx package is not installed.
        WriteError: The disk is too small or full, or the directory cannot be written.
    """
    graph = describe(name, seed=seed, **options)
    path = graph.find(Path(directory))
    if path is None:
        return graph.write(Path(directory), progress)
    progress(graph.weight_bytes, graph.weight_bytes)
    return path


def describe(name: str, *, seed: int = 0, **options: int | str | None) -> Graph:
    """Describe the model that `make` would write. Args and errors are those of `make`."""
    model = MODELS.get(name)
    if model is None:
        raise InvalidArgument(f"no model is called {name!r}; there are {', '.join(MODELS)}")
    if not _is_integer(seed) or seed < 0:
        raise InvalidArgument(f"seed must be an integer of at least 0, not {seed!r}")
    chosen = {key: value for key, value in options.items() if value is not None}
    for key, value in chosen.items():
        if key not in model.options:
            takes = ", ".join(model.options) or "none"
            raise InvalidArgument(f"model {name} does not take the option {key}; its options: {takes}")
        if key == "precision":
            if value not in PRECISIONS:
                raise InvalidArgument(f"precision must be one of {', '.join(PRECISIONS)}, not {value!r}")
        elif not _is_integer(value) or not 1 <= int(value) <= _LARGEST[key]:
            raise InvalidArgument(f"{key} must be an integer from 1 to {_LARGEST[key]}, not {value!r}")
    every = {**model.options, **chosen}
    graph = model.build(**every)
    graph.options, graph.defaults, graph.seed = every, model.options, seed
    return graph


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return a generated model's name and options: "resnet50", "phi3-mini:layers=2", "resnet50:precision=fp16".

    Raises:
        InvalidArgument: the model or the option does not exist.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InvalidArgument(f"{text!r}: {part!r} is not of the form NAME=VALUE")
        options[key] = int(value) if value.isdecimal() else value
    describe(name, **options)
    return name, options


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
