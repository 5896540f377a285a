"""The models by name, with the options that each takes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ortmulti.bench.models import phi3_mini, resnet50, small
from ortmulti.bench.models._graph import PRECISIONS, Graph
from ortmulti.bench.models._writer import Progress, find_complete, write
from ortmulti.errors import InvalidArgument

GENERATOR = 1
"""Raised whenever the same parameters give other files, so that older ones are not taken for these."""

_log = logging.getLogger("ortmulti.bench.models")


@dataclass(frozen=True)
class Model:
    """A model that can be made.

    Attributes:
        name: Its name for `make`.
        summary: One line about it.
        options: The options that it takes, with their defaults.
    """

    name: str
    summary: str
    options: Mapping[str, int | str]
    _build: Callable[..., Graph]


@dataclass(frozen=True)
class Description:
    """The files that `make` would write.

    Attributes:
        name: The model's name.
        stem: The files' names without suffixes: the model's name and every option that is not the default.
        options: All options, including defaults.
    """

    name: str
    stem: str
    options: Mapping[str, int | str]
    _parameters: dict[str, Any]
    _graph: Graph

    @property
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every initializer by its name, in the file's order."""
        return {weight.name: weight.shape for weight in self._graph.weights}

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self._graph.weight_bytes

    @property
    def data_bytes(self) -> int:
        """Size in bytes of the external data file; 0 if the weights are in the .onnx file."""
        return self._graph.data_bytes

    def _find(self, directory: Path) -> Path | None:
        return find_complete(directory, self.stem, self._parameters, self.data_bytes)


_ALL = (
    Model("resnet50", "ResNet-50 v1.5, fp32, 102 MB in one file", {"precision": "fp32"}, resnet50.build),
    Model(
        "phi3-mini",
        "decoder of Phi-3-mini's shape, fp16, 7.64 GB with external data",
        {"layers": phi3_mini.LAYERS, "precision": "fp16"},
        phi3_mini.build,
    ),
    Model("tiny-kernels", "chain of 400 kernels of microseconds, fp32, 1.7 MB", {}, small.build_tiny_kernels),
    Model(
        "matmul",
        "stack of matrix products of any size, fp32, external data",
        {"megabytes": small.MEGABYTES},
        small.build_matmul,
    ),
    Model("identity", "one node", {}, small.build_identity),
)
MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ALL})
"""Every model by its name."""

_STEM_PARTS: dict[str, str] = {"layers": "{}-layers", "precision": "{}", "megabytes": "{}-mb", "seed": "seed-{}"}
_LARGEST = {"layers": 1024, "megabytes": 10**7}


def make(
    name: str,
    directory: str | os.PathLike[str],
    *,
    layers: int | None = None,
    precision: str | None = None,
    megabytes: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Make a model with random weights, unless the directory already has the complete model.

    Files appear under their names only when they are complete. The logger "ortmulti.bench.models" says whether the
    model was written or reused; `find` says so in advance.

    Args:
        name: One of `MODELS`.
        directory: Where the files go; made if it does not exist.
        layers: Decoder layers of "phi3-mini", 32 by default.
        precision: "fp16" or "fp32", for "phi3-mini" (default: fp16) and "resnet50" (default: fp32).
        megabytes: Size of "matmul" in 10**6 bytes, 512 by default.
        seed: The same seed gives the same bytes; not negative.
        progress: Called with the bytes of weights written and in all; once, at the end, for a reused model.

    Returns:
        Path of the .onnx file.

    Raises:
        ortmulti.errors.InvalidArgument: Unknown name, an option that the model does not take, or a value out of range.
        ortmulti.errors.LibraryError: The onnx package is not installed.
        WriteError: The disk is too small or full, or the directory cannot be written.
    """
    described = describe(name, layers=layers, precision=precision, megabytes=megabytes, seed=seed)
    path = described._find(Path(directory))
    if path is None:
        return write(described._graph, Path(directory), described.stem, described._parameters, seed, progress)
    _log.info("reusing %s", path)
    if progress:
        progress(described.weight_bytes, described.weight_bytes)
    return path


def find(name: str, directory: str | os.PathLike[str], *, seed: int = 0, **options: int | str | None) -> Path | None:
    """Return the path of an existing model, or None if `make` would write it.

    Args and errors are those of `make`.
    """
    return describe(name, seed=seed, **options)._find(Path(directory))


def describe(name: str, *, seed: int = 0, **options: int | str | None) -> Description:
    """Describe the files that `make` would write. Args and errors are those of `make`."""
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
    defaults = {**model.options, "seed": 0}
    parts = [_STEM_PARTS[key].format(value) for key, value in {**every, "seed": seed}.items() if value != defaults[key]]
    parameters = {"generator": GENERATOR, "name": name, "seed": seed, **every}
    return Description(name, "-".join([name, *parts]), MappingProxyType(every), parameters, model._build(**every))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
