"""The models of the benchmarks that `ortmulti models` does not have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

Weights = Mapping[str, NDArray[Any]]


def model(graph: str, weights: Weights | None = None) -> bytes:
    """Make a model of a graph in ONNX's text format, with these weights."""
    parsed = parser.parse_graph(graph)
    parsed.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    made = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def one_node(operator: str = "Add(x, x)", kind: str = "float[n]") -> bytes:
    """y = the operator of x."""
    return model(f"one ({kind} x) => ({kind} y) {{ y = {operator} }}")


def _normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Weights that keep values as large as they are."""
    inputs = shape[0] if len(shape) == 2 else np.prod(shape[1:])
    return np.asarray(random.standard_normal(shape) / np.sqrt(inputs), np.float32)


def mlp(sizes: Sequence[int] = (64, 256, 256, 10)) -> bytes:
    """Features, hidden layers and probabilities: 0.3 MB with these sizes."""
    random, lines, last = np.random.default_rng(2), list[str](), "x"
    weights: dict[str, NDArray[Any]] = {}
    for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights |= {f"w{layer}": _normal(random, rows, columns), f"b{layer}": np.full(columns, 0.1, np.float32)}
        lines.append(f"h{layer} = Gemm({last}, w{layer}, b{layer})")
        last = f"h{layer}"
        if layer < len(sizes) - 2:
            lines.append(f"r{layer} = Relu(h{layer})")
            last = f"r{layer}"
    body = "\n".join([*lines, f"y = Softmax <axis=-1> ({last})"])
    return model(f"mlp (float[n,{sizes[0]}] x) => (float[n,{sizes[-1]}] y) {{ {body} }}", weights)


def convolutions(filters: Sequence[int], side: int, stride: int = 1, scores: int = 0) -> bytes:
    """Images of 3 channels through 3 x 3 convolutions; with `scores`, their means as so many numbers."""
    random, lines, last = np.random.default_rng(1), list[str](), "x"
    weights: dict[str, NDArray[Any]] = {}
    for layer, (before, after) in enumerate(itertools.pairwise((3, *filters))):
        weights[f"w{layer}"] = _normal(random, after, before, 3, 3)
        lines.append(f"c{layer} = Conv <pads=[1,1,1,1], strides=[{stride},{stride}]> ({last}, w{layer})")
        last = f"r{layer}"
        lines.append(f"{last} = Relu(c{layer})")
    if scores:
        weights["scores"] = _normal(random, filters[-1], scores)
        lines.append(f"g = GlobalAveragePool({last})\nf = Flatten(g)\ny = MatMul(f, scores)")
    else:
        lines.append(f"y = Identity({last})")
    shape = f"n,{scores}" if scores else "n,c,h,w"
    body = "\n".join(lines)
    return model(f"convolutions (float[n,3,{side},{side}] x) => (float[{shape}] y) {{ {body} }}", weights)


def product(size: int, layers: int = 1) -> bytes:
    """v1, v2, ... (float [n, size]) = v0 times the identity matrix, so often."""
    lines = "\n".join(f"v{layer + 1} = MatMul(v{layer}, w)" for layer in range(layers))
    graph = f"product (float[n,{size}] v0) => (float[n,{size}] v{layers}) {{ {lines} }}"
    return model(graph, {"w": np.eye(size, dtype=np.float32)})


RECOGNISER = (3, 32, 64, 96, 128, 160, 192)
_STRIDES = ("2,2", "1,1", "2,2", "1,1", "2,1", "2,1")


def recogniser(seed: int | None = None) -> bytes:
    """Images of height 48 and any width to 200 scores for each fourth column.

    Args:
        seed: of a table of 105 MB, of which a run reads a row; None: without it.
    """
    random = np.random.default_rng(0)
    weights = {
        f"w{layer}": random.standard_normal((after, before, 3, 3), np.float32) / np.float32(3 * before**0.5)
        for layer, (before, after) in enumerate(itertools.pairwise(RECOGNISER))
    }
    weights["scores"] = random.standard_normal((192, 200), np.float32) / 20
    lines = [
        f"c{layer} = Conv <pads=[1,1,1,1], strides=[{stride}]> ({f'r{layer - 1}' if layer else 'x'}, w{layer})\n"
        f"r{layer} = Relu(c{layer})"
        for layer, stride in enumerate(_STRIDES)
    ]
    lines.append("m = ReduceMean <axes=[2], keepdims=0> (r5)\nt = Transpose <perm=[0,2,1]> (m)\ns = MatMul(t, scores)")
    if seed is None:
        lines.append("y = Softmax <axis=2> (s)")
    else:
        weights["table"] = np.random.default_rng(seed).standard_normal((131072, 200), np.float32)
        lines.append("z = Softmax <axis=2> (s)\nsize = Shape(x)\nfour = Constant <value = int64[1] {3}> ()")
        lines.append("width = Gather(size, four)\nrow = Gather(table, width)\ny = Add(z, row)")
    body = "\n".join(lines)
    return model(f"recogniser (float[n,3,48,w] x) => (float[n,t,200] y) {{ {body} }}", weights)


def quantized(size: int = 1024, layers: int = 24) -> bytes:
    """A chain of integer matrix products as onnxruntime's dynamic quantization makes them, with their own scales."""
    random, lines = np.random.default_rng(0), list[str]()
    weights: dict[str, NDArray[Any]] = {
        "zero": np.array(0, np.int8),
        "scale": np.array(1 / (73 * size**0.5), np.float32),  # keeps values as large as they are
    }
    for layer in range(layers):
        value, after = f"x{layer}" if layer else "x", "y" if layer == layers - 1 else f"x{layer + 1}"
        weights[f"w{layer}"] = random.integers(-127, 128, (size, size), dtype=np.int8)
        lines.append(f"q{layer}, s{layer}, z{layer} = DynamicQuantizeLinear({value})")
        lines.append(f"i{layer} = MatMulInteger(q{layer}, w{layer}, z{layer}, zero)\nf{layer} = Cast <to=1> (i{layer})")
        lines.append(f"b{layer} = Mul(s{layer}, scale)\n{after} = Mul(f{layer}, b{layer})")
    body = "\n".join(lines)
    return model(f"quantized (float[batch,{size}] x) => (float[batch,{size}] y) {{ {body} }}", weights)


def branches(count: int = 16, layers: int = 6, width: int = 192) -> bytes:
    """Branches that join in a sum, each of a few matrix products."""
    random, lines = np.random.default_rng(0), list[str]()
    weights: dict[str, NDArray[Any]] = {}
    for branch, layer in itertools.product(range(count), range(layers)):
        weights[f"w{branch}_{layer}"] = _normal(random, width, width)
        value = f"t{branch}_{layer - 1}" if layer else "x"
        lines.append(f"m{branch}_{layer} = MatMul({value}, w{branch}_{layer})")
        lines.append(f"t{branch}_{layer} = Tanh(m{branch}_{layer})")
    lines.append(f"y = Sum({', '.join(f't{branch}_{layers - 1}' for branch in range(count))})")
    body = "\n".join(lines)
    return model(f"branches (float[64,{width}] x) => (float[64,{width}] y) {{ {body} }}", weights)
