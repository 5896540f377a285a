"""One node that copies its input: what a run costs beside the model."""

from __future__ import annotations

import numpy as np

from ortmulti.tools.models._graph import Graph


def build() -> Graph:
    """Describes the model. Input "x", output "y": float32 [rows, columns], both dynamic."""
    graph = Graph("identity")
    graph.node("Identity", graph.input("x", np.float32, ("rows", "columns")), name="identity", output="y")
    graph.output("y", np.float32, ("rows", "columns"))
    return graph
