"""Several requests as one run, joined and split in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmulti.errors import InvalidArgument
from ortmulti.pool.external.requests import Request, Run

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Batching

__all__ = ["join", "mark", "split"]


def mark(request: Request, batching: Batching) -> None:
    """Sets what says which requests may run together with this one: names, types and dimensions but for the axis's."""
    axis = batching.axis
    sizes = set()
    kind: list[object] = [tuple(request.names)]
    for name, value in (request.feed or {}).items():
        if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.ndim <= axis:
            return
        sizes.add(value.shape[axis])
        kind.append((name, value.dtype, value.shape[:axis], value.shape[axis + 1 :]))
    if len(sizes) == 1 and 0 not in sizes:
        [request.size] = sizes
        request.key = tuple(kind)


def join(run: Run, batching: Batching | None) -> Mapping[str, Any]:
    """One feed of several requests of the same kind: their inputs one after another along the axis, padded."""
    feeds = [request.feed or {} for request in run.requests]
    missing = _padding(run.requests, batching)
    run.padded = missing > 0
    if batching is None or (len(feeds) == 1 and not missing):
        return feeds[0]
    axis = batching.axis
    joint = {}
    for name, last in feeds[-1].items():
        row = np.take(last, [-1], axis)
        joint[name] = np.concatenate([*(feed[name] for feed in feeds), *[row] * missing], axis)
    return joint


def _padding(requests: Sequence[Request], batching: Batching | None) -> int:
    if batching is None or requests[0].key is None:
        return 0
    size = sum(request.size for request in requests)
    return batching.padded(size) - size


def split(outputs: Sequence[Any], requests: Sequence[Request], batching: Batching | None) -> list[list[Any]]:
    """Each request's part of the outputs, copied.

    Raises:
        InvalidArgument: An output has not the inputs' size along the axis.
    """
    missing = _padding(requests, batching)
    if batching is None or (len(requests) == 1 and not missing):
        return [list(outputs)]
    axis = batching.axis
    ends = np.cumsum([*(request.size for request in requests), missing])
    parts: list[list[Any]] = [[] for _ in requests]
    for name, output in zip(requests[0].names, outputs, strict=True):
        if not isinstance(output, np.ndarray) or output.ndim <= axis or output.shape[axis] != ends[-1]:
            raise InvalidArgument(
                f"output {name!r} of a batch of {ends[-1]} cannot be split along dimension {axis}: it has another size "
                "there; load the model without batching, or ask for other outputs"
            )
        for part, piece in zip(parts, np.split(output, ends[:-1], axis)[: len(parts)], strict=True):
            part.append(piece.copy())
    return parts
