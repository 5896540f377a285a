"""Parts of ONNX graphs by which requests cannot be joined: those of `joined_random`.

Parts of `MIX` make rows depend on each other, on their number or on their place. `OTHER` adds outputs that are not
rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Builder:
    """Collects nodes; constants go to the outermost graph."""

    def __init__(self, numbers: random.Random, outer: Builder | None = None) -> None:
        self.numbers = numbers
        self.outer = outer or self
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names = 0

    def name(self) -> str:
        self.outer.names += 1
        return f"v{self.outer.names}"

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = self.name()
        self.outer.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.add_many(operator, 1, *inputs, **attributes)[0]

    def add_many(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def weights(self, *shape: int) -> str:
        return self.constant(np.random.default_rng(self.numbers.randrange(2**32)).standard_normal(shape))

    def rows(self, x: str) -> str:
        """Their number, int64 [1]."""
        return self.add("Gather", self.add("Shape", x), self.ints(0), axis=0)

    def as_float(self, value: str) -> str:
        return self.add("Cast", value, to=FLOAT)

    def flat(self, x: str) -> str:
        return self.add("Reshape", x, self.ints(-1))

    def like(self, value: str, x: str) -> str:
        return self.add("Reshape", value, self.add("Shape", x))

    def images(self, x: str) -> str:
        """As one image [1, WIDTH, rows], whose positions are the rows."""
        return self.add("Unsqueeze", self.add("Transpose", x, perm=[1, 0]), self.ints(0))

    def of_images(self, value: str) -> str:
        return self.add("Transpose", self.add("Squeeze", value, self.ints(0)), perm=[1, 0])

    def turned(self, x: str) -> str:
        return self.add("Transpose", x, perm=[1, 0])

    def any_above(self, x: str, limit: float) -> str:
        return self.add("Greater", self.add("ReduceMax", x, keepdims=0), self.constant(limit))

    def row_above(self, x: str, limit: float) -> str:
        """Bool [rows, 1]."""
        return self.add("Greater", self.add("ReduceMax", x, self.ints(1), keepdims=1), self.constant(limit))

    def branch(self, make: Callable[[Builder], str]) -> Any:
        inner = Builder(self.numbers, self.outer)
        result = inner.add("Identity", make(inner))
        return helper.make_graph(inner.nodes, self.name(), [], [helper.make_tensor_value_info(result, FLOAT, None)])

    def choose(self, condition: str, then: Callable[[Builder], str], other: Callable[[Builder], str]) -> str:
        return self.add("If", condition, then_branch=self.branch(then), else_branch=self.branch(other))


Part = Callable[[Builder, str], str]


def scan(b: Builder, x: str, *, carried: bool) -> str:
    """Scan over the rows: with the sum so far, or each by itself."""
    state, row, out, new = (b.name() for _ in range(4))
    shape = [WIDTH]
    nodes = [helper.make_node("Add", [state, row], [new]), helper.make_node("Tanh", [new if carried else row], [out])]
    body = helper.make_graph(
        nodes,
        b.name(),
        [helper.make_tensor_value_info(name, FLOAT, shape) for name in (state, row)],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name in (new, out)],
    )
    return b.add_many("Scan", 2, b.constant(np.zeros(shape)), x, num_scan_inputs=1, body=body)[1]


def _loop(b: Builder, x: str) -> str:
    """Multiply once for each row."""
    turn, condition, value, again, result = (b.name() for _ in range(5))
    factor = b.constant(1.25)
    body = helper.make_graph(
        [helper.make_node("Identity", [condition], [again]), helper.make_node("Mul", [value, factor], [result])],
        b.name(),
        [
            helper.make_tensor_value_info(turn, INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
            helper.make_tensor_value_info(value, FLOAT, None),
        ],
        [
            helper.make_tensor_value_info(again, TensorProto.BOOL, []),
            helper.make_tensor_value_info(result, FLOAT, None),
        ],
    )
    return b.add("Loop", b.add("Squeeze", b.rows(x)), "", x, body=body)


def gru(b: Builder, sequence: str, width: int) -> tuple[str, str]:
    weights = b.weights(1, 3 * WIDTH, width), b.weights(1, 3 * WIDTH, WIDTH)
    every, last = b.add_many("GRU", 2, sequence, *weights, hidden_size=WIDTH)
    return every, last


def _quantized(b: Builder, x: str) -> str:
    return b.add("DequantizeLinear", *b.add_many("DynamicQuantizeLinear", 3, x))


def _quantized_product(b: Builder, x: str) -> str:
    values, scale, zero = b.add_many("DynamicQuantizeLinear", 3, x)
    weights = b.constant(np.random.default_rng(b.numbers.randrange(99)).integers(0, 9, (WIDTH, WIDTH)), np.uint8)
    return b.add("Mul", b.as_float(b.add("MatMulInteger", values, weights, zero)), scale)


def _normalized(b: Builder, x: str) -> str:
    centred = b.add("Sub", x, b.add("ReduceMean", x, b.ints(0), keepdims=1))
    variance = b.add("ReduceMean", b.add("Mul", centred, centred), b.ints(0), keepdims=1)
    return b.add("Div", centred, b.add("Sqrt", b.add("Add", variance, b.constant(1e-3))))


def _instance_norm(b: Builder, x: str) -> str:
    scale, bias = b.constant(np.ones(WIDTH)), b.constant(np.zeros(WIDTH))
    return b.of_images(b.add("InstanceNormalization", b.images(x), scale, bias))


def _sorted_rows(b: Builder, x: str) -> str:
    total = b.add("ReduceSum", x, b.ints(1), keepdims=0)
    return b.add("Gather", x, b.add_many("TopK", 2, total, b.rows(x), axis=0)[1], axis=0)


def _best_row(b: Builder, x: str) -> str:
    best = b.add("ArgMax", b.add("ReduceSum", x, b.ints(1), keepdims=0), axis=0, keepdims=1)
    return b.add("Add", x, b.add("Gather", x, best, axis=0))


def _roll(b: Builder, x: str) -> str:
    rest = b.add("Slice", x, b.ints(1), b.ints(2**31), b.ints(0))
    return b.add("Concat", rest, b.add("Slice", x, b.ints(0), b.ints(1), b.ints(0)), axis=0)


def _position(b: Builder, x: str) -> str:
    zero, one = b.constant(0, np.int64), b.constant(1, np.int64)
    places = b.add("Range", zero, b.add("Squeeze", b.rows(x)), one)
    return b.add("Add", x, b.add("Unsqueeze", b.as_float(places), b.ints(1)))


def _attention_of_rows(b: Builder, x: str) -> str:
    weights = b.add("Softmax", b.add("MatMul", x, b.turned(x)), axis=-1)
    return b.add("MatMul", weights, x)


def _causal(b: Builder, x: str) -> str:
    return b.add("MatMul", b.add("Trilu", b.add("MatMul", x, b.turned(x)), upper=0), x)


def _count(b: Builder, x: str, operator: str) -> str:
    found = b.add_many(operator, 1, b.add("Relu", x) if operator == "NonZero" else x)[0]
    return b.add("Mul", x, b.as_float(b.add("ReduceMax", b.add("Shape", found), keepdims=0)))


def _above_mean(b: Builder, x: str) -> str:
    return b.add("Where", b.add("Greater", x, b.add("ReduceMean", x, keepdims=0)), x, b.constant(0))


def _reversed(b: Builder, x: str) -> str:
    return b.add("Slice", x, b.ints(-1), b.ints(-(2**31)), b.ints(0), b.ints(-1))


def _first_scattered(b: Builder, x: str) -> str:
    return b.add("ScatterND", x, b.constant([[0]], np.int64), b.weights(1, WIDTH))


def _half_reversed(b: Builder, x: str) -> str:
    lengths = b.add("Expand", b.rows(x), b.ints(WIDTH))
    return b.add("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


MIX: dict[str, Part] = {
    "mean": lambda b, x: b.add("Sub", x, b.add("ReduceMean", x, b.ints(0), keepdims=1)),
    "maximum": lambda b, x: b.add("Sub", x, b.add("ReduceMax", x, b.ints(0), keepdims=1)),
    "minimum": lambda b, x: b.add("Mul", x, b.add("ReduceMin", x, keepdims=0)),
    "sum of all": lambda b, x: b.add("Add", x, b.add("ReduceSum", x, keepdims=0)),
    "softmax": lambda b, x: b.add("Softmax", x, axis=0),
    "log softmax": lambda b, x: b.add("LogSoftmax", x, axis=0),
    "hardmax": lambda b, x: b.add("Hardmax", x, axis=0),
    "cumsum": lambda b, x: b.add("CumSum", x, b.constant(0, np.int64), reverse=b.numbers.randrange(2)),
    "topk": lambda b, x: b.add("Add", x, b.add_many("TopK", 2, x, b.ints(1), axis=0)[0]),
    "argmax": lambda b, x: b.add("Add", x, b.as_float(b.add("ArgMax", x, axis=0, keepdims=1))),
    "dynamic quantization": _quantized,
    "dynamic product": _quantized_product,
    "batch statistics": _normalized,
    "instance norm": _instance_norm,
    "variance norm": lambda b, x: b.add("MeanVarianceNormalization", x, axes=[0]),
    "lp norm": lambda b, x: b.add("LpNormalization", x, axis=0),
    "attention of rows": _attention_of_rows,
    "einsum": lambda b, x: b.add("MatMul", b.add("Einsum", x, x, equation="ij,kj->ik"), x),
    "causal": _causal,
    "transposed softmax": lambda b, x: b.turned(b.add("Softmax", b.turned(x), axis=-1)),
    "flat softmax": lambda b, x: b.like(b.add("Softmax", b.add("Reshape", x, b.ints(1, -1)), axis=-1), x),
    "flat cumsum": lambda b, x: b.like(b.add("CumSum", b.flat(x), b.constant(0, np.int64)), x),
    "first row": lambda b, x: b.add("Add", x, b.add("Gather", x, b.ints(0), axis=0)),
    "last row": lambda b, x: b.add("Sub", x, b.add("Gather", x, b.ints(-1), axis=0)),
    "best row": _best_row,
    "sorted rows": _sorted_rows,
    "reversed": _reversed,
    "reverse sequence": _half_reversed,
    "roll": _roll,
    "scatter": _first_scattered,
    "row count": lambda b, x: b.add("Mul", x, b.as_float(b.rows(x))),
    "position": _position,
    "eye": lambda b, x: b.add("Add", x, b.add("EyeLike", x)),
    "gru over rows": lambda b, x: b.add("Squeeze", gru(b, b.add("Unsqueeze", x, b.ints(1)), WIDTH)[0], b.ints(1, 2)),
    "scan": lambda b, x: scan(b, x, carried=True),
    "loop": _loop,
    "conv over rows": lambda b, x: b.of_images(b.add("Conv", b.images(x), b.weights(WIDTH, WIDTH, 3), pads=[1, 1])),
    "pool over rows": lambda b, x: b.of_images(b.add("MaxPool", b.images(x), kernel_shape=[3], pads=[1, 1])),
    "above mean": _above_mean,
    "count of positive": lambda b, x: _count(b, x, "NonZero"),
    "count of unique": lambda b, x: _count(b, x, "Unique"),
    "if any": lambda b, x: b.choose(b.any_above(x, 3), lambda c: c.add("Neg", x), lambda _: x),
    "where any": lambda b, x: b.add("Where", b.any_above(x, 3), b.add("Neg", x), x),
    "if many rows": lambda b, x: b.choose(
        b.add("Greater", b.rows(x), b.ints(b.numbers.choice((1, 3, 6)))), lambda c: c.add("Neg", x), lambda _: x
    ),
}


class Output(NamedTuple):
    """An output beside the rows, with its type, and the dimensions that an exporter may declare."""

    name: str
    type: int
    shape: list[Any]


def _boxes(b: Builder, x: str) -> str:
    scores = b.add("Sigmoid", b.add("Slice", x, b.ints(0), b.ints(1), b.ints(1)))
    boxes, limits = b.add("Unsqueeze", b.add("Abs", x), b.ints(1)), (b.ints(3), b.constant([0.5]), b.constant([0.5]))
    return b.add("NonMaxSuppression", boxes, b.add("Unsqueeze", scores, b.ints(1)), *limits)


def _compressed(b: Builder, x: str) -> str:
    return b.add("Compress", x, b.flat(b.row_above(x, b.numbers.choice((-1.0, 0.5, 3.0)))), axis=0)


def _some(b: Builder, _: str) -> Output:
    rows = b.numbers.randint(1, 8)
    return Output(b.add("Identity", b.weights(rows, WIDTH)), FLOAT, [rows, WIDTH])


OTHER: dict[str, Callable[[Builder, str], Output]] = {
    "transposed": lambda b, x: Output(b.turned(x), FLOAT, [WIDTH, "N"]),
    "rows x rows": lambda b, x: Output(b.add("MatMul", x, b.turned(x)), FLOAT, ["N", "M"]),
    "constant": _some,
    "shape": lambda b, x: Output(b.add("Shape", x), INT64, [2]),
    "scalar": lambda b, x: Output(b.add("ReduceSum", x, keepdims=0), FLOAT, []),
    "mean of rows": lambda b, x: Output(b.add("ReduceMean", x, b.ints(0), keepdims=1), FLOAT, [1, WIDTH]),
    "tiled": lambda b, x: Output(b.add("Tile", x, b.ints(2, 1)), FLOAT, ["M", WIDTH]),
    "twice": lambda b, x: Output(b.add("Concat", x, x, axis=0), FLOAT, ["M", WIDTH]),
    "expanded": lambda b, x: Output(b.add("Expand", x, b.ints(2, 1, 1)), FLOAT, [2, "N", WIDTH]),
    "unsqueezed": lambda b, x: Output(b.add("Unsqueeze", x, b.ints(0)), FLOAT, [1, "N", WIDTH]),
    "flat": lambda b, x: Output(b.flat(x), FLOAT, ["M"]),
    "halves": lambda b, x: Output(b.add("Reshape", x, b.ints(-1, 2)), FLOAT, ["M", 2]),
    "but the first": lambda b, x: Output(b.add("Slice", x, b.ints(1), b.ints(2**31), b.ints(0)), FLOAT, ["M", WIDTH]),
    "the first": lambda b, x: Output(b.add("Slice", x, b.ints(0), b.ints(1), b.ints(0)), FLOAT, [1, WIDTH]),
    "places of positive": lambda b, x: Output(b.turned(b.add("NonZero", b.add("Relu", x))), INT64, ["M", 2]),
    "compressed": lambda b, x: Output(_compressed(b, x), FLOAT, ["M", WIDTH]),
    "boxes": lambda b, x: Output(_boxes(b, x), INT64, ["M", 3]),
    "unique": lambda b, x: Output(b.add("Unique", b.add("Round", x)), FLOAT, ["M"]),
    "best three": lambda b, x: Output(b.add_many("TopK", 2, b.flat(x), b.ints(3), axis=0)[0], FLOAT, [3]),
    "places": lambda b, x: Output(
        b.add("Range", b.constant(0, np.int64), b.add("Squeeze", b.rows(x)), b.constant(1, np.int64)), INT64, ["N"]
    ),
    "zeros": lambda b, x: Output(
        b.add("ConstantOfShape", b.add("Concat", b.rows(x), b.ints(2), axis=0)), FLOAT, ["N", 2]
    ),
}
