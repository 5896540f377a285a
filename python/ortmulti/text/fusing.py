"""`ortmulti.text.fuse`: a faster form of an exported model of texts, as another export."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortmulti.cache.staging import remove_tree
from ortmulti.errors import Error, InvalidArgument
from ortmulti.optimized.fuse import fuse_prepared
from ortmulti.text.modules import VECTOR, Pooling
from ortmulti.text.settings import read_settings

if TYPE_CHECKING:
    from onnx import ModelProto

    from ortmulti.devices.device import Device
    from ortmulti.optimized.fuse import FusedModel
    from ortmulti.options.session_options import SessionOptions

__all__ = ["fuse"]

_SIDE_FILES = {".json", ".txt", ".model", ".jinja", ".md"}


def fuse(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    device: str | int | Device | None = None,
    *,
    precision: Literal["fp16"] | None = None,
    file: str | os.PathLike[str] | None = None,
    pooling: Pooling | None = None,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> FusedModel:
    """Write a faster form of an exported model of texts to a new folder, with the tokenizer and all settings.

    The model pools by itself then: its output is a vector for each text. Joined poolings, modules ``Dense`` and prompts
    that are not pooled stay beside it. On GPUs it computes real tokens alone where
    that is faster. Otherwise as `ortmulti.fuse`.

    Args:
        folder, file, pooling: As for `read_settings`.
        to: The new folder.
        device, precision, options, provider_options: As for `ortmulti.fuse`.

    Raises:
        NotOptimizable, LibraryError: As `ortmulti.fuse`. Nothing is kept.
        InvalidArgument: There is something at ``to`` already.
        Error: As `read_settings`. The folder cannot be written.
    """
    settings = read_settings(folder, file=file, pooling=pooling)
    target = Path(to).absolute()
    if target.exists():
        raise InvalidArgument(f"'{target}' is there already: name a new folder, or remove it")

    by_itself: Pooling | None = None
    if isinstance(settings.pooling, str) and settings.include_prompt and not settings.layers:
        by_itself = settings.pooling
    if pooling is not None and by_itself is None:
        raise InvalidArgument(
            f"pooling={pooling!r} cannot be kept, since the model does not pool by itself if prompts are left out or "
            "modules Dense follow: give it to load"
        )
    weights = {layer.file for layer in settings.layers}

    def prepare(model: ModelProto) -> None:
        from ortmulti.optimized.graph import Graph
        from ortmulti.text.pooling import add_pooling

        if by_itself is not None:
            add_pooling(model, settings.output, by_itself, VECTOR)
            return
        others = [output for output in model.graph.output if output.name != settings.output]
        for output in others:
            model.graph.output.remove(output)
        Graph(model).keep(list(model.graph.node))

    model = target / settings.model.parent.relative_to(settings.folder) / "model.onnx"
    try:
        model.parent.mkdir(parents=True)
        for path in sorted(settings.folder.rglob("*")):
            if (path.suffix in _SIDE_FILES or path in weights) and path.is_file():
                copy = target / path.relative_to(settings.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        made = fuse_prepared(settings.model, model, device, prepare, precision, options, provider_options)
    except BaseException as error:
        remove_tree(target)
        if isinstance(error, OSError):
            raise Error(f"the folder '{target}' cannot be written: {error}") from error
        raise
    return replace(made, path=str(target))
