"""What a model's graph says of the rows of a batch: where each output has them, and what mixes them. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ortmulti import _core
from ortmulti.create.model import Model
from ortmulti.errors import Error
from ortmulti.pool.row_axes import ANY, FOUND, NONE, Axis, Walk, label, of_size
from ortmulti.pool.row_rules import KNOW_FOUND, KNOW_ROWS, KNOW_SIZES, RULES, reduce

__all__ = ["Graph", "read_graph", "walk"]

_REDUCE = "Reduce"
_VALUES = {
    "Shape": 0,
    "Size": 0,
    "Range": 0,
    "ConstantOfShape": 0,
    "Slice": 1,
    "Reshape": 1,
    "Expand": 1,
    "CastLike": 1,
}
"""How many of the first inputs an operator computes its values with; of others all."""
_WITH_GRAPHS = {"If", "Loop", "Scan", "SequenceMap"}
"""Their graphs may use any value, not their inputs alone."""
_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
}


@dataclass(frozen=True)
class Graph:
    """What is read of a model.

    Attributes:
        nodes: Those of the main graph.
        weights: The dimensions of its weights, by name.
        operators: Those of all graphs.
    """

    nodes: _core.Nodes
    weights: Mapping[str, Sequence[int]]
    operators: set[str]

    def random(self) -> list[str]:
        """Name what makes random numbers."""
        return [*(label(node) for node in self.nodes.nodes if _is_random(node)), *sorted(self._random_within())]

    def random_outputs(self) -> set[str]:
        """Name the outputs that random numbers reach."""
        if self._random_within():
            return set(self.nodes.outputs)
        reached: set[str] = set()
        for node in self.nodes.nodes:
            hidden = reached and node.type in _WITH_GRAPHS  # whose graphs may use any value
            if _is_random(node) or hidden or not reached.isdisjoint(node.inputs):
                reached.update(node.outputs)
        return reached.intersection(self.nodes.outputs)

    def _random_within(self) -> set[str]:
        """Name operators that are in graphs of nodes, or in functions, alone."""
        return (self.operators & _RANDOM) - {node.type for node in self.nodes.nodes}

    def scalars(self) -> list[str]:
        """Name the inputs that the model declares without dimensions."""
        return [name for name in self.nodes.inputs if self.nodes.ranks.get(name) == 0]


def read_graph(model: Model) -> Graph | None:
    """Read it; None: it cannot be read, such as a model in ORT's format."""
    try:
        with model.content() as content:
            nodes = _core.read_nodes(content)
        index = _core.index_model(model.graph)
    except Error:  # whoever loads it knows
        return None
    names = {each.name.decode(errors="replace"): each.shape for each in index.initializers if each.graph == 0}
    return Graph(nodes, names, index.operators)


def _is_random(node: _core.Node) -> bool:
    # With a third input that is true it is random. A model for inference has none.
    trains = node.type == "Dropout" and any(node.inputs[2:])
    return node.type in _RANDOM or trains


def walk(graph: Graph, axis: int) -> Walk:
    """Follow the rows of a batch from the inputs to the outputs, through operators that are known.

    Args:
        graph: The model's.
        axis: The batch axis of the inputs.
    """
    known = Walk(graph.nodes, graph.weights, axis)
    for node in graph.nodes.nodes:
        _follow(known, node)
    return known


def _follow(walk: Walk, node: _core.Node) -> None:
    inputs = [walk.axes.get(name, ANY) if name else NONE for name in node.inputs]
    found = next((walk.finders[name] for name in node.inputs if name in walk.finders), label(node))
    if node.type not in KNOW_FOUND:
        inputs = [ANY if one == FOUND else one for one in inputs]
    rule = RULES.get(node.type) or (reduce if node.type.startswith(_REDUCE) else None)
    told = len(walk.told)
    sizes = any(of_size(walk.shapes.get(name, ())) for name in node.inputs)
    without = inputs and set(inputs) == {NONE} and node.type not in _WITH_GRAPHS
    results: Sequence[Axis] = [NONE if without and not sizes else ANY]
    if rule is not None:
        # It lacks what its operator needs, or says wrong ranks: ONNX Runtime refuses the model.
        with suppress(IndexError, ValueError):
            results = rule(walk, node, inputs)
    unknown_size = sizes and node.type not in KNOW_SIZES and not walk.shapes.keys() & set(node.outputs)
    unknown_rows = node.type not in KNOW_ROWS and any(one != NONE for one in inputs[1:])
    if unknown_size or unknown_rows:
        results = [ANY]
    values = node.inputs[: _VALUES.get(node.type)]  # not shapes, bounds and the like
    computed_from = set(range(told, len(walk.told))).union(*(walk.sources.get(name, ()) for name in values))
    for place, name in enumerate(node.outputs):
        if name and computed_from:
            walk.sources[name] = computed_from
        walk.axes[name] = results[place] if place < len(results) else NONE if set(results) == {NONE} else ANY
        if walk.axes[name] == FOUND:
            walk.finders[name] = found
