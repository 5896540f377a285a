"""What is made of a model's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import InvalidArgument

if TYPE_CHECKING:
    from ortmulti.text.modules import Activation, Poolings

__all__ = ["activated", "pooled", "shortened"]

_TINY = 1e-12


def pooled(output: NDArray[Any], pooling: Poolings | None, skip: int = 0) -> NDArray[np.float32]:
    """Return the row of one text from the output of its own run, without padding.

    Args:
        output: ``[1, dims]``, or ``[1, tokens, dims]``, of any floating type.
        pooling: How the tokens' vectors become one; several: the vectors of each, joined.
        skip: Tokens of a prompt, which are left out.

    Raises:
        InvalidArgument: The output is not of this form.
    """
    if output.ndim < 3:
        return output.astype(np.float32, copy=False).reshape(-1)
    if output.ndim > 3 or pooling is None or len(output) != 1:
        raise InvalidArgument(
            f"the output has the shape {output.shape} for one text, and it should be (1, n): it is no model of this "
            "task, so say task= or pooling="
        )
    if isinstance(pooling, tuple):
        return np.concatenate([pooled(output, one, skip) for one in pooling])
    tokens = output[0].astype(np.float32, copy=False)
    skip = min(skip, len(tokens) - 1)
    if skip:
        tokens = tokens[skip:]
    if pooling == "cls":
        return tokens[0].copy()  # type: ignore[no-any-return] # the output is large
    if pooling == "last":
        return tokens[-1].copy()  # type: ignore[no-any-return]
    if pooling == "max":
        return tokens.max(0)  # type: ignore[no-any-return]
    if pooling == "weightedmean":
        weights = np.arange(skip + 1, skip + 1 + len(tokens), dtype=np.float32)
        return (weights @ tokens) / weights.sum()  # type: ignore[no-any-return]
    total = np.add.reduce(tokens, 0)
    total /= len(tokens) if pooling == "mean" else np.sqrt(np.float32(len(tokens)))
    return total  # type: ignore[no-any-return]


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
        lengths = np.sqrt(np.einsum("...i,...i->...", vectors, vectors))
        vectors = vectors / np.maximum(lengths, _TINY)[..., None]
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
