"""Models of one idea each: identity, a matrix product of any size, and many tiny kernels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ortmulti.bench.models._graph import Graph


def build_identity() -> Graph:
    """Describe the model. Input "x", output "y": float32 [rows, columns], both dynamic."""
    graph = Graph("identity")
    graph.node("Identity", graph.input("x", ("rows", "columns")), name="identity", output="y")
    graph.output("y", ("rows", "columns"))
    return graph


MEGABYTES = 512
WIDEST = 4096


def build_matmul(megabytes: int = MEGABYTES) -> Graph:
    """Describe the model.

    Input "x": float32 [batch, width]. Output "y": float32 [batch, columns]. Layers of MatMul and Relu; the last one has
    as many columns as fill the size. Wide matrices on purpose: packing them for the CPU takes longer for each byte.

    Args:
        megabytes: Size of the weights in units of 10**6 bytes, met to within one column of the last matrix.
    """
    elements = megabytes * 10**6 // np.dtype(np.float32).itemsize
    width = WIDEST
    while width > 64 and elements < 4 * width * width:
        width //= 2
    graph = Graph("matmul", external=True)
    value = graph.input("x", ("batch", width))
    remaining = elements
    layer = 0
    columns = width
    while remaining >= width:
        # What would be less than a whole matrix behind this one goes into this one.
        columns = width if remaining >= 2 * width * width else remaining // width
        remaining -= width * columns
        last = remaining < width
        name = f"layer{layer}"
        weight = graph.weight(f"{name}.weight", (width, columns), std=math.sqrt(2 / width))
        value = graph.node("MatMul", value, weight, name=f"{name}.matmul")
        value = graph.node("Relu", value, name=f"{name}.relu", output="y" if last else None)
        layer += 1
    graph.output("y", ("batch", columns))
    return graph


WIDTH = 64
BLOCKS = 100


def build_tiny_kernels() -> Graph:
    """Describe the model.

    Input "x": float32 [batch, 64]. Output "y": float32 [batch, 64]. 100 blocks of MatMul, Tanh, Mul and Add, in an
    order that ONNX Runtime does not fuse. (A MatMul before an Add would become one Gemm.)

    The matrices are orthogonal, so after 400 steps values are still bounded and inputs still differ. They are the same
    for every seed; gains and biases are not.
    """
    generator = np.random.Generator(np.random.SFC64(BLOCKS))
    graph = Graph("tiny-kernels")
    value = graph.input("x", ("batch", WIDTH))
    for block in range(BLOCKS):
        name = f"block{block}"
        value = graph.node(
            "MatMul", value, graph.constant(f"{name}.rotation", _rotation(generator)), name=f"{name}.matmul"
        )
        value = graph.node("Tanh", value, name=f"{name}.tanh")
        gain = graph.weight(f"{name}.gain", (WIDTH,), mean=1.1, std=0.02)
        value = graph.node("Mul", value, gain, name=f"{name}.mul")
        bias = graph.weight(f"{name}.bias", (WIDTH,), std=0.02)
        last = block == BLOCKS - 1
        value = graph.node("Add", value, bias, name=f"{name}.add", output="y" if last else None)
    graph.output("y", ("batch", WIDTH))
    return graph


def _rotation(generator: np.random.Generator) -> NDArray[np.float32]:
    """Return a random orthogonal matrix with the same bits on every machine, unlike the result of a QR."""
    hadamard = np.ones((1, 1), np.float32)
    while len(hadamard) < WIDTH:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = generator.choice(np.array([-1, 1], np.float32), (2, WIDTH))
    rotation = signs[0][:, None] * hadamard[generator.permutation(WIDTH)] * signs[1]
    return np.asarray(rotation / np.sqrt(WIDTH), np.float32)
