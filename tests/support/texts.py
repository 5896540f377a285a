"""A model of texts of any length, requests for it, and what it answers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, parser

ENCODER = """
<ir_version: 8, opset_import: ["": 17]>
encoder (int64[batch, sequence] ids, int64[batch, sequence] mask) => (
    float[batch, sequence, 4] tokens, float[batch, 4] pooled, float[batch, sequence, sequence] pairs,
    int64[batch, sequence] kept, float[batch, 1] lengths
)
<int64[1] one = {1}, int64[1] two = {2}>
{
    embedded = Gather(table, ids)
    m = Cast<to = 1>(mask)
    m3 = Unsqueeze(m, two)
    tokens = Mul(embedded, m3)
    pooled = ReduceSum<keepdims = 0>(tokens, one)
    turned = Transpose<perm = [0, 2, 1]>(tokens)
    pairs = MatMul(tokens, turned)
    kept = Mul(ids, mask)
    lengths = ReduceSum<keepdims = 1>(m, one)
}
"""

PAD = {"ids": 7, "mask": 0}


def encoder(text: str = ENCODER) -> bytes:
    """Embeds tokens with numbers whose sums are exact."""
    model = parser.parse_model(text)
    table = np.arange(400, dtype=np.float32)
    model.graph.initializer.append(helper.make_tensor("table", TensorProto.FLOAT, [100, 4], table))
    return model.SerializeToString()


def ids(*lengths: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, lengths)


def feed(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"ids": ids(rows, length, seed=seed), "mask": np.ones((rows, length), np.int64)}


def expected(one: dict[str, np.ndarray]) -> list[np.ndarray]:
    table = np.arange(400, dtype=np.float32).reshape(100, 4)
    mask = one.get("mask", np.ones_like(one["ids"]))
    tokens = table[one["ids"]] * mask[..., None].astype(np.float32)
    lengths = mask.sum(1, keepdims=True).astype(np.float32)
    return [tokens, tokens.sum(1), tokens @ tokens.swapaxes(1, 2), one["ids"] * mask, lengths]
