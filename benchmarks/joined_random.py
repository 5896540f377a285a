"""Random ONNX graphs over rows of four numbers: those of `joined_graphs`.

A graph is a chain of operators that work on each row by itself, with up to two special parts of `MIX`, `OTHER` or
`SAFE`. Those of `SAFE` look as if they mixed rows, and do not. A gate may open a mixing part for some values only, or
never.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from benchmarks.joined_parts import FLOAT, INT64, MIX, OTHER, WIDTH, Builder, Output, Part, gru, scan
from ortmulti.create.sample_inputs import TOKENS

IDS = 3
"""Token ids of each row."""


def _token(b: Builder, x: str) -> str:
    """A further column of constants, as the class token of a vision transformer."""
    shape = b.add("Concat", b.rows(x), b.ints(1, WIDTH), axis=0)
    tokens = b.add("Concat", b.add("Expand", b.weights(1, 1, WIDTH), shape), b.add("Unsqueeze", x, b.ints(1)), axis=1)
    return b.add("ReduceMean", tokens, b.ints(1), keepdims=0)


def _attention(b: Builder, x: str) -> str:
    """Attention of the two halves of each row."""
    parts = b.add("Reshape", x, b.ints(-1, 2, 2))
    scores = b.add("MatMul", parts, b.add("Transpose", parts, perm=[0, 2, 1]))
    return b.like(b.add("MatMul", b.add("Softmax", scores, axis=-1), parts), x)


def _gru_of_rows(b: Builder, x: str) -> str:
    steps = b.add("Transpose", b.add("Unsqueeze", x, b.ints(2)), perm=[1, 0, 2])
    return b.add("Squeeze", gru(b, steps, 1)[1], b.ints(0))


def _static(b: Builder, x: str) -> str:
    scale, zero = b.constant(0.05), b.constant(128, np.uint8)
    return b.add("DequantizeLinear", b.add("QuantizeLinear", x, scale, zero), scale, zero)


def _one_hot(b: Builder, x: str) -> str:
    best = b.add("ArgMax", x, axis=1, keepdims=0)
    return b.add("Add", x, b.add("OneHot", best, b.ints(WIDTH), b.constant([0, 1]), axis=-1))


def _filled(b: Builder, x: str) -> str:
    value = numpy_helper.from_array(np.asarray([2], np.float32))
    return b.add("Add", x, b.add("ConstantOfShape", b.add("Shape", x), value=value))


def _inference_norm(b: Builder, x: str) -> str:
    return b.add("BatchNormalization", x, *(b.constant(np.full(WIDTH, value)) for value in (2, 1, 0.5, 3)))


def _limit(b: Builder) -> float:
    return b.numbers.choice((-2.0, 0.0, 0.5, 3.0, 50.0))


SAFE: dict[str, Part] = {
    "turned and back": lambda b, x: b.turned(b.add("Tanh", b.turned(x))),
    "flat and back": lambda b, x: b.like(b.add("Tanh", b.flat(x)), x),
    "expanded constant": lambda b, x: b.add("Add", x, b.add("Expand", b.weights(1, WIDTH), b.add("Shape", x))),
    "class token": _token,
    "attention": _attention,
    "gru of rows": _gru_of_rows,
    "scan of rows": lambda b, x: scan(b, x, carried=False),
    "where": lambda b, x: b.add("Where", b.add("Greater", x, b.constant(_limit(b))), b.add("Neg", x), x),
    "if the same": lambda b, x: b.choose(
        b.any_above(x, _limit(b)), lambda c: c.add("Tanh", x), lambda c: c.add("Tanh", x)
    ),
    "if constant": lambda b, x: b.choose(
        b.constant(b.numbers.randrange(2), np.bool_), lambda c: c.add("Neg", x), lambda c: c.add("Tanh", x)
    ),
    "filled": _filled,
    "rows over rows": lambda b, x: b.add("Mul", x, b.add("Div", b.as_float(b.rows(x)), b.as_float(b.rows(x)))),
    "mean of one": lambda b, x: b.add("ReduceMean", b.add("Unsqueeze", x, b.ints(0)), b.ints(0), keepdims=0),
    "one hot": _one_hot,
    "static quantization": _static,
    "inference norm": _inference_norm,
    "conv of rows": lambda b, x: b.add(
        "Squeeze", b.add("Conv", b.add("Unsqueeze", x, b.ints(1)), b.weights(1, 1, 3), pads=[1, 1]), b.ints(1)
    ),
    "unused mean": lambda b, x: (b.add("ReduceMean", x, b.ints(0), keepdims=1), b.add("Neg", x))[1],
    "mean times zero": lambda b, x: b.add("Add", x, b.add("Mul", b.add("ReduceMean", x, keepdims=0), b.constant(0))),
}

PLAIN: list[Part] = [
    *(lambda b, x, operator=operator: b.add(operator, x) for operator in ("Relu", "Abs", "Neg", "Tanh", "Sigmoid")),
    lambda b, x: b.add("MatMul", x, b.weights(WIDTH, WIDTH)),
    lambda b, x: b.add("Gemm", x, b.weights(WIDTH, WIDTH), b.weights(WIDTH)),
    lambda b, x: b.add("Softmax", x, axis=1),
    lambda b, x: b.add("LayerNormalization", x, b.constant(np.ones(WIDTH)), axis=-1),
    lambda b, x: b.add("Sub", x, b.add("ReduceMean", x, b.ints(1), keepdims=1)),
    lambda b, x: b.add("CumSum", x, b.constant(1, np.int64)),
    lambda b, x: b.add_many("TopK", 2, x, b.ints(WIDTH), axis=1)[0],
    lambda b, x: b.add("Clip", x, b.constant(-5), b.constant(5)),
    lambda b, x: b.add("Gather", x, b.ints(2, 1, 0, 3), axis=1),
    lambda b, x: b.add("Mul", x, b.weights(1, WIDTH)),
]


def _gate(b: Builder, x: str, part: Part) -> tuple[str, str]:
    """Apply a part for some values only, or never; with the gate's name."""
    kind = b.numbers.choice(("", "", "", "where", "factor", "if", "never"))
    if kind == "where":
        return kind, b.add("Where", b.add("Greater", x, b.constant(_limit(b))), part(b, x), x)
    if kind == "factor":
        opened = b.as_float(b.row_above(x, _limit(b)))
        return kind, b.add("Add", x, b.add("Mul", opened, b.add("Sub", part(b, x), x)))
    if kind == "if":
        return kind, b.choose(b.any_above(x, _limit(b)), lambda c: part(c, x), lambda _: x)
    if kind == "never":
        return kind, b.choose(b.constant(False, np.bool_), lambda c: part(c, x), lambda _: x)
    return kind, part(b, x)


def make_graph(seed: int) -> tuple[bytes, list[str], list[str]]:
    """Make one graph.

    Returns:
        The model, the names of its special parts, and the names of its inputs.
    """
    numbers = random.Random(seed)
    b = Builder(numbers)
    inputs = ["x"]
    x, parts, others = "x", list[str](), list[Output]()
    if numbers.random() < 0.3:
        inputs.append(numbers.choice(("mask", "z", "ids")))
        second = inputs[1]
        if second == "ids":
            second = b.add("ReduceMean", b.add("Gather", b.weights(TOKENS, WIDTH), second), b.ints(1), keepdims=0)
        x = b.add(numbers.choice(("Mul", "Add")), x, second)
    specials = numbers.choice((0, 1, 1, 1, 1, 2))
    steps = ["plain"] * numbers.randint(0, 3) + ["special"] * specials
    numbers.shuffle(steps)
    for step in steps:
        if step == "plain":
            x = numbers.choice(PLAIN)(b, x)
            continue
        draw = numbers.random()
        if draw < 0.45:
            name = numbers.choice(list(MIX))
            gate, x = _gate(b, x, MIX[name])
            parts.append(f"{gate}: {name}" if gate else name)
        elif draw < 0.7:
            name = numbers.choice(list(OTHER))
            others.append(OTHER[name](b, x))
            parts.append(f"output {name}")
        else:
            name = numbers.choice(list(SAFE))
            x = SAFE[name](b, x)
            parts.append(f"safe: {name}")
    return finish(b, x, others, inputs), parts, inputs


def finish(b: Builder, x: str, others: Sequence[Output], inputs: Sequence[str]) -> bytes:
    """Make a model of the nodes so far, with the rows and others as its outputs."""
    outputs = [Output(b.add("Identity", x), FLOAT, ["N", WIDTH]), *others]
    b.numbers.shuffle(outputs)
    graph = helper.make_graph(
        b.nodes,
        "g",
        [_input(name, b.numbers.choice(("N", "N", f"{name}_rows"))) for name in inputs],
        [helper.make_tensor_value_info(one.name, one.type, _declared(b.numbers, one.shape)) for one in outputs],
        b.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def _input(name: str, rows: str) -> Any:
    if name == "ids":
        return helper.make_tensor_value_info(name, INT64, [rows, IDS])
    return helper.make_tensor_value_info(name, FLOAT, [rows, WIDTH])


def _declared(numbers: random.Random, shape: list[Any]) -> list[Any] | None:
    """An exporter may declare the truth, other names for each dimension, the rows' name for all, or nothing."""
    draw = numbers.random()
    if draw < 0.5 or not shape:
        return shape
    if draw < 0.65:
        return None
    name = f"unk__{numbers.randrange(99)}" if draw < 0.85 else "N"
    return [name, *shape[1:]]
