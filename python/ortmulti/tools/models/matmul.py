"""A stack of fp32 matrix products of any size with external data: creating a session reads and packs its weights."""

from __future__ import annotations

import math

import numpy as np

from ortmulti.tools.models._graph import Graph

MEGABYTES = 512
WIDEST = 4096


def build(megabytes: int = MEGABYTES) -> Graph:
    """Describes the model.

    Input "x": float32 [batch, width]. Output "y": float32 [batch, columns]. Layers of MatMul and Relu; the last one has
    as many columns as fill the size. Wide matrices on purpose: packing them for the CPU takes longer for each byte.

    Args:
        megabytes: Size of the weights in units of 10**6 bytes, met to within one column of the last matrix.
    """
    elements = megabytes * 10**6 // np.dtype(np.float32).itemsize
    width = WIDEST
    while width > 64 and elements < 4 * width * width:
        width //= 2
    graph = Graph("matmul", placement="external")
    value = graph.input("x", np.float32, ("batch", width))
    remaining = elements
    layer = 0
    columns = width
    while remaining >= width:
        # What would be less than a whole matrix behind this one goes into this one.
        columns = width if remaining >= 2 * width * width else remaining // width
        remaining -= width * columns
        last = remaining < width
        name = f"layer{layer}"
        weight = graph.weight(f"{name}.weight", (width, columns), np.float32, std=math.sqrt(2 / width))
        value = graph.node("MatMul", value, weight, name=f"{name}.matmul")
        value = graph.node("Relu", value, name=f"{name}.relu", output="y" if last else None)
        layer += 1
    graph.output("y", np.float32, ("batch", columns))
    return graph
