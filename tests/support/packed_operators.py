"""ONNX Runtime's operators without padding, which it has on GPUs alone, for onnx's evaluator: written from their
documentation, one row after another."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

_DOMAIN = "com.microsoft"


class RemovePadding(OpRun):
    op_domain = _DOMAIN

    def _run(self, x: Any, counts: Any) -> Any:
        assert counts.dtype == np.int32
        rows, length, width = x.shape
        real = np.arange(length) < counts[:, None]
        flat = real.reshape(-1)
        offsets = np.concatenate([np.flatnonzero(flat), np.flatnonzero(~flat)]).reshape(rows, length)
        ends = np.concatenate([[0], np.cumsum(counts)])
        return x.reshape(-1, width)[flat], offsets.astype(np.int32), ends.astype(np.int32), counts.max(keepdims=True)


class PackedMultiHeadAttention(OpRun):
    op_domain = _DOMAIN

    def _run(
        self, query: Any, key: Any, value: Any, bias: Any, offsets: Any, ends: Any, num_heads: int, scale: float
    ) -> Any:
        assert len(offsets) == len(ends) - 1
        parts = [query, key, value]
        if bias is not None:
            parts = [part + one for part, one in zip(parts, np.split(bias, 3), strict=True)]
        return (_attention(parts, ends, num_heads, scale),)


class PackedAttention(OpRun):
    op_domain = _DOMAIN

    def _run(self, x: Any, weight: Any, bias: Any, offsets: Any, ends: Any, num_heads: int, scale: float) -> Any:
        assert len(offsets) == len(ends) - 1
        return (_attention(np.split(x @ weight + bias, 3, axis=1), ends, num_heads, scale),)


def _attention(parts: list[Any], ends: Any, count: int, scale: float) -> Any:
    results = []
    for begin, end in pairwise(ends):
        query, key, value = (part[begin:end].reshape(end - begin, count, -1).transpose(1, 0, 2) for part in parts)
        scores = query @ key.transpose(0, 2, 1) * scale
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        result = scores / scores.sum(-1, keepdims=True) @ value
        results.append(result.transpose(1, 0, 2).reshape(end - begin, -1))
    return np.concatenate(results).astype(parts[0].dtype)


def run(model: ModelProto, feed: dict[str, Any]) -> list[Any]:
    """Run a model that has these operators."""
    evaluator = ReferenceEvaluator(model, new_ops=[RemovePadding, PackedAttention, PackedMultiHeadAttention])
    outputs: list[Any] = evaluator.run(None, feed)  # type: ignore[assignment]
    return outputs
