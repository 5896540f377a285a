"""`ortmulti.text.fuse`: a faster form of an exported model of texts, as another export, which the cache may keep."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ortmulti import checks
from ortmulti._runtime import log
from ortmulti.cache.entries import Cache
from ortmulti.cache.staging import StagingDir, remove_tree
from ortmulti.create.model import Model
from ortmulti.devices import providers
from ortmulti.devices.device import Device, parse_devices
from ortmulti.errors import Error, InvalidArgument, NotOptimizable
from ortmulti.optimized.fuse import fuse_prepared
from ortmulti.optimized.key import compute_capability, key_of
from ortmulti.text.modules import VECTOR, Pooling
from ortmulti.text.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import ModelProto

    from ortmulti.optimized.fuse import FusedModel
    from ortmulti.options.session_options import SessionOptions

__all__ = ["fuse", "fused_settings"]

_REFUSED, _SIZES = "refused.txt", "sizes.json"
_SIDE_FILES = {".json", ".txt", ".model", ".jinja", ".md"}


def fuse(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    device: str | int | Device | None = None,
    *,
    precision: Literal["fp32", "fp16"] = "fp32",
    file: str | os.PathLike[str] | None = None,
    pooling: Pooling | None = None,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> FusedModel:
    """Write a faster form of an exported model of texts to a new folder, with the tokenizer and all settings.

    The model pools by itself then: its output is a vector for each text. Joined poolings, modules ``Dense`` and prompts
    that are not pooled stay beside it. On GPUs it computes real tokens alone where that is faster. Otherwise as
    `ortmulti.fuse`.

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
    if pooling is not None and _by_itself(settings) is None:
        raise InvalidArgument(
            f"pooling={pooling!r} cannot be kept, since the model does not pool by itself if prompts are left out or "
            "modules Dense follow: give it to load"
        )
    return _fuse(settings, Path(to), device, precision, options, provider_options)


def _by_itself(settings: Settings) -> Pooling | None:
    """Return how a fused model pools by itself; None: that is left to the library, or it does so already."""
    if isinstance(settings.pooling, str) and settings.include_prompt and not settings.layers:
        return settings.pooling
    return None


def _fuse(
    settings: Settings,
    to: Path,
    device: str | int | Device | None,
    precision: Literal["fp32", "fp16"],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> FusedModel:
    target = to.absolute()
    if target.exists():
        raise InvalidArgument(f"'{target}' is there already: name a new folder, or remove it")
    by_itself, weights = _by_itself(settings), {layer.file for layer in settings.layers}

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


def fused_settings(
    folder: str | os.PathLike[str],
    precision: Literal["fp32", "fp16"],
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    **given: Any,
) -> Settings:
    """Return the settings of an export's faster form, which the cache keeps. The first call makes it, and takes long.

    Where no form is faster, and where the cache cannot be written, they are those of the export, and the log says why.

    Args:
        folder, given: As for `read_settings`.
        precision: ``"fp16"``: with half precision. ``"fp32"``: as the model has it.
        devices: As for `ortmulti.load`; it is made on the first one.

    Raises:
        LibraryError: The package onnx is missing.
        Error: As `read_settings`.
    """
    checks.choice("fuse", precision, ("fp32", "fp16"))
    settings, cache = read_settings(folder, **given), Cache.default()
    device = parse_devices(devices)[0]

    def make(to: Path) -> None:
        log.logger().info("'%s' is being fused for %s, which takes a while", settings.model, device)
        try:
            _fuse(settings, to, device, precision)
            sizes = {str(file.relative_to(to)): file.stat().st_size for file in to.rglob("*.onnx*")}
            (to / _SIZES).write_text(json.dumps(sizes), "utf-8")
        except NotOptimizable as error:
            to.mkdir()
            (to / _REFUSED).write_text(str(error), "utf-8")

    try:
        where = compute_capability([device])
        key = key_of(Model(settings.model), providers.for_device(device, None), compute_capability=where)
        pools = _by_itself(settings) or ("vector" if settings.pooling is None else "tokens")
        place = cache.folders / f"{key.digest}-{precision}-{pools}"
        kept = StagingDir(cache.folder)
        made = kept.kept(place, make)
        if not _is_whole(made):
            log.logger().warning("'%s' is damaged and will be made again", made)
            with kept.locked():
                kept.remove(made)
            made = kept.kept(place, make)
        cache.use(made, settings.model)
        if not (refused := made / _REFUSED).exists():
            fused = read_settings(made, task=settings.task)  # its other files are those of the first load
            own = ("model", "inputs", "packed", "output", "quantizes")
            pooling = settings.pooling if fused.pooling else None
            return replace(settings, pooling=pooling, **{name: getattr(fused, name) for name in own})
        why = refused.read_text("utf-8")
        why = f"{why} (the cache remembers this: after ortmulti optimize --clear it is tried again)"
    except NotOptimizable as error:
        why = str(error)
    except (OSError, Error) as error:
        cause = error.__cause__ if isinstance(error, Error) else error
        if not isinstance(cause, OSError):
            raise
        cache.say_unwritable(cause)
        return settings
    log.logger().warning("'%s' stays as it is: %s", settings.model, why)
    return settings


def _is_whole(made: Path) -> bool:
    if (made / _REFUSED).exists():
        return True
    try:
        sizes = json.loads((made / _SIZES).read_text("utf-8"))
        return all((made / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False
