"""A chain of 400 kernels of a few microseconds each: a model that spends its time on launching them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ortmulti.tools.models._graph import Graph

WIDTH = 64
BLOCKS = 100
KERNELS_PER_BLOCK = 4


def build() -> Graph:
    """Describes the model.

    Input "x": float32 [batch, 64]. Output "y": float32 [batch, 64]. 100 blocks of MatMul, Tanh, Mul and Add, in an
    order in which ONNX Runtime fuses nothing: it would make one Gemm of a MatMul with an Add behind it.

    The matrices are orthogonal, so that 400 steps neither blow up the values nor make all inputs alike; they are the
    same for every seed, gains and biases are not.
    """
    generator = np.random.Generator(np.random.SFC64(BLOCKS))
    graph = Graph("tiny-kernels")
    value = graph.input("x", np.float32, ("batch", WIDTH))
    for block in range(BLOCKS):
        name = f"block{block}"
        value = graph.node(
            "MatMul", value, graph.constant(f"{name}.rotation", _rotation(generator)), name=f"{name}.matmul"
        )
        value = graph.node("Tanh", value, name=f"{name}.tanh")
        gain = graph.weight(f"{name}.gain", (WIDTH,), np.float32, mean=1.1, std=0.02)
        value = graph.node("Mul", value, gain, name=f"{name}.mul")
        bias = graph.weight(f"{name}.bias", (WIDTH,), np.float32, std=0.02)
        last = block == BLOCKS - 1
        value = graph.node("Add", value, bias, name=f"{name}.add", output="y" if last else None)
    graph.output("y", np.float32, ("batch", WIDTH))
    return graph


def _rotation(generator: np.random.Generator) -> NDArray[np.float32]:
    """A random orthogonal matrix whose bits are the same on every machine, which those of a QR would not be."""
    hadamard = np.ones((1, 1), np.float32)
    while len(hadamard) < WIDTH:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = generator.choice(np.array([-1, 1], np.float32), (2, WIDTH))
    rotation = signs[0][:, None] * hadamard[generator.permutation(WIDTH)] * signs[1]
    return np.asarray(rotation / np.sqrt(WIDTH), np.float32)
