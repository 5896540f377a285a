"""What is made of a model's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core
from ortmulti.errors import InvalidArgument

if TYPE_CHECKING:
    from ortmulti.text.modules import Activation

__all__ = ["activated", "shortened"]


def shortened(vectors: NDArray[np.float32], dimensions: int | None, normalize: bool) -> NDArray[np.float32]:
    """Cut vectors to their first dimensions, and bring them to the length 1 then.

    Args:
        vectors: ``[..., dims]``; may be changed.

    Raises:
        InvalidArgument: There are fewer dimensions.
    """
    if dimensions is not None:
        if dimensions > vectors.shape[-1]:
            raise InvalidArgument(f"dimensions is 1 to {vectors.shape[-1]}, not {dimensions}")
        vectors = vectors[..., :dimensions]
    if normalize:
        vectors = np.ascontiguousarray(vectors)
        _core.normalize(vectors)
    return vectors


def activated(logits: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]:
    """Return the scores of logits ``[n, labels]``.

    Raises:
        InvalidArgument: The activation is none of those that are computed here.
    """
    if activation == "none":
        return logits
    if activation == "sigmoid":
        small = np.exp(-np.abs(logits))  # which cannot overflow
        return np.where(logits < 0, small, 1) / (1 + small)  # type: ignore[no-any-return]
    if activation == "tanh":
        return np.tanh(logits)
    if activation == "relu":
        return np.maximum(logits, 0)
    if activation != "softmax":
        raise InvalidArgument(
            f"the model's files name the activation {activation}, which is not computed here: take the logits, by "
            "raw_scores=True"
        )
    small = np.exp(logits - logits.max(-1, keepdims=True))
    return small / small.sum(-1, keepdims=True)  # type: ignore[no-any-return]
