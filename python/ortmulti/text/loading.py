"""Loading a model of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from ortmulti._runtime import log
from ortmulti.errors import InvalidArgument
from ortmulti.pool.configuration import Batching
from ortmulti.pool.load import load as load_pool
from ortmulti.text.layers import Layers
from ortmulti.text.model import TextModel
from ortmulti.text.modules import Pooling
from ortmulti.text.settings import Settings, Side, Task, read_settings
from ortmulti.text.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortmulti.devices.device import Device

__all__ = ["chosen_settings", "load", "load_options"]

_ROWS, _TOKENS = 32, 16384  # of a joint run, at most
_PACKED_ROWS, _EMBEDDED = 128, 1 << 16
"""Without padding more rows pay. But what comes before it is left out has so many tokens, at most."""


def load(
    folder: str | os.PathLike[str],
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    *,
    file: str | os.PathLike[str] | None = None,
    task: Task | None = None,
    pooling: Pooling | Sequence[Pooling] | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    fuse: Literal["fp32", "fp16"] | None = None,
    batching: Batching | None = None,
    **options: Any,
) -> TextModel:
    """Load an exported model of texts with its tokenizer, on several devices.

    Args:
        folder, file, task, pooling, normalize, max_length: As for `read_settings`.
        devices: As for `ortmulti.load`.
        fuse: Load the faster form that `ortmulti.text.fuse` makes: ``"fp16"`` with half precision, ``"fp32"`` without.
            The first load makes it, which takes a while, and the cache keeps it. Default: the model as it is.
        batching: How texts are joined into one run. Default: up to 32, of different lengths. If the model's answers
            change when it is padded, only texts of one length are joined, and the logger ``ortmulti`` warns.
        **options: Further arguments of `ortmulti.load`.

    Raises:
        LibraryError: The package tokenizers is missing: ``pip install "ortmulti[text]"``.
        Error: As `read_settings` and `ortmulti.load`.
    """
    given: dict[str, Any] = {"file": file, "task": task, "pooling": pooling, "normalize": normalize}
    given["max_length"] = max_length
    settings = chosen_settings(folder, fuse, devices, **given)
    tokenizer, layers = Tokenizer(settings), Layers(settings.layers)  # their errors come before the load
    ways = load_options(settings, **(options if batching is None else {**options, "batching": batching}))
    refused: InvalidArgument | None = None
    for way in ways:
        try:
            pool = load_pool(settings.model, devices, **way)
        except InvalidArgument as error:
            refused = refused or error
            if way is ways[-1]:
                raise
            continue
        batching = way["batching"]
        if refused is not None and (batching is None or batching.pad is None):
            joined = "texts run alone" if batching is None else "only texts of one length run together"
            reason = refused.public.partition(". ")[0]  # what follows is for pools
            log.logger().warning("'%s': %s: %s", settings.model, joined, reason)
        model = TextModel(pool, settings, tokenizer=tokenizer, layers=layers)
        try:
            model.check()
        except BaseException:
            model.close()
            raise
        return model
    raise AssertionError  # there is a way


def chosen_settings(
    folder: str | os.PathLike[str], fuse: Literal["fp32", "fp16"] | None, devices: Any, **given: Any
) -> Settings:
    """Return the settings of an export, or, with ``fuse``, of its faster form: see `fused_settings`."""
    if fuse is None:
        return read_settings(folder, **given)
    from ortmulti.text.fusing import fused_settings

    return fused_settings(folder, fuse, devices, **given)


def load_options(settings: Settings, **given: Any) -> list[dict[str, Any]]:
    """Return arguments of `ortmulti.load` and of `ModelRepository.add` for ``settings.model``, the best ones first.

    Where loading with the first raises `InvalidArgument`, such as for a model whose answers change when it is padded,
    take the next. With ``batching`` among those given there is one, and for a quantized model, whose texts run alone.

    Args:
        settings: As `read_settings` returns them.
        given: Further arguments; ``batching`` and ``warmup`` take the place of those made here.
    """
    given = {"warmup": True, **given}
    if "batching" in given:
        return [given]
    if settings.quantizes:
        log.logger().warning(
            "'%s': texts run alone: the model is quantized, with one scale for all texts of a run",
            settings.model,
        )
        return [{**given, "batching": None}]
    pad = dict.fromkeys(settings.inputs, 0) | {"input_ids": settings.pad_token}
    mask = "attention_mask" if "attention_mask" in pad else None
    if settings.packed:
        rows = max(1, min(_PACKED_ROWS, _EMBEDDED // settings.max_length))
        batching = Batching(rows, pad=pad, along=1, mask=mask, max_tokens=_TOKENS, packed=True)
        return [{**given, "batching": batching}]
    # A model that looks back alone takes padding at either side; one that counts positions only where it expects it.
    sides: list[Side] = [settings.pad_side] + ["right"] * (settings.pad_side == "left")
    ways: list[Batching | None] = [
        Batching(_ROWS, pad=pad, along=1, mask=mask, max_tokens=_TOKENS, pad_side=side) for side in sides
    ]
    return [{**given, "batching": batching} for batching in (*ways, Batching(_ROWS), None)]
