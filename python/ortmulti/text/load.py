"""Loading a model of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ortmulti.text.settings import Pooling, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ortmulti.devices.device import Device
    from ortmulti.pool.configuration import Batching
    from ortmulti.text.model import TextModel

__all__ = ["load", "load_options"]


def load(
    folder: str | os.PathLike[str],
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    *,
    file: str | None = None,
    task: Task | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    batching: Batching | None = None,
    **options: Any,
) -> TextModel:
    """Load an exported model of texts with its tokenizer."""
    raise NotImplementedError


def load_options(settings: Settings, **given: Any) -> list[dict[str, Any]]:
    """Return arguments of `ortmulti.load` or of `ModelRepository.add`: `batching` and `warmup`, with those given.

    The first of them is the best. Where loading ``settings.model`` with it raises `InvalidArgument`, such as for a
    model whose padding reaches its answers, take the next one: the last is without joint runs.
    """
    raise NotImplementedError
