"""What a model's graph says of the rows of a batch: where each output has them, and what mixes them. Nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ortmulti import _core
from ortmulti.create.model import Model
from ortmulti.errors import Error
from ortmulti.pool.row_axes import ANY, FOUND, NONE, Axis, Entry, of_size
from ortmulti.pool.row_rules import KNOW_FOUND, KNOW_ROWS, KNOW_SIZES, RULES, reduce

__all__ = ["Graph", "Walk", "dependent_rows", "read_graph"]

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
        named = [_label(node) for node in self.nodes.nodes if _is_random(node)]
        there = {node.type for node in self.nodes.nodes}
        return [*named, *sorted((self.operators & _RANDOM) - there)]

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


def dependent_rows(graph: Graph, axis: int = 0) -> list[str]:
    """Name what makes answers depend on the other rows of a batch, or on its size.

    Values are followed from the inputs through operators that are known. Behind others nothing is said. Only nodes
    count whose results reach an output with rows.

    Args:
        graph: The model's.
        axis: The batch axis of the inputs.

    Returns:
        A text for each node that was found, such as "ReduceMean 'mean' computes over the batch".
    """
    walk = Walk(graph, axis)
    found = [text for name in graph.nodes.outputs if walk.axis(name) != NONE for text in walk.mixing(name)]
    return list(dict.fromkeys(found))


def _label(node: _core.Node) -> str:
    output = next(filter(None, node.outputs), "")
    return f"{node.type.rpartition(':')[2]} '{node.name or output}'"


def _is_random(node: _core.Node) -> bool:
    # With a third input that is true it is random. A model for inference has none.
    trains = node.type == "Dropout" and any(node.inputs[2:])
    return node.type in _RANDOM or trains


class Walk:
    """Follows the rows of a batch from the inputs to the outputs.

    Args:
        graph: The model's.
        axis: The batch axis of the inputs.
    """

    def __init__(self, graph: Graph, axis: int) -> None:
        nodes = graph.nodes
        self._told: list[str] = []
        self._from: dict[str, set[int]] = {}  # of a value: which of those it was computed from
        self._finders: dict[str, str] = {}  # of a value that is `FOUND`: what found it
        self.opset = nodes.opset
        self.constants = nodes.constants
        self.dims: dict[str, Sequence[int | None]] = dict(graph.weights)
        """Of values without rows: their sizes, where they are known."""
        self._ranks = nodes.ranks
        self._shapes: dict[str, list[Entry]] = {
            name: list(values) for name, values in self.constants.items() if self._ranks.get(name, 0) <= 1
        }
        self._axes: dict[str, Axis] = {}
        inputs = set(nodes.inputs)
        for name in nodes.inputs:
            rank = self._ranks.get(name)
            self._axes[name] = ANY if rank is None else axis if axis < rank else NONE
        produced = {name for node in nodes.nodes for name in node.outputs}
        for name in self._ranks.keys() - inputs - produced:
            self._axes[name] = NONE
        for node in nodes.nodes:
            self._follow(node)

    def axis(self, name: str) -> Axis:
        """Where a value has its rows."""
        return self._axes.get(name)

    def mixing(self, name: str) -> list[str]:
        """Name what makes a value depend on other rows."""
        return [self._told[number] for number in sorted(self._from.get(name, ()))]

    def finder(self, name: str) -> str:
        """Name the node that finds a value's entries."""
        return self._finders.get(name, "")

    def _follow(self, node: _core.Node) -> None:
        inputs = [self._axes.get(name, ANY) if name else NONE for name in node.inputs]
        found = next((self._finders[name] for name in node.inputs if name in self._finders), _label(node))
        if node.type not in KNOW_FOUND:
            inputs = [ANY if one == FOUND else one for one in inputs]
        rule = RULES.get(node.type) or (reduce if node.type.startswith(_REDUCE) else None)
        told = len(self._told)
        sizes = any(of_size(self._shapes.get(name, ())) for name in node.inputs)
        without = inputs and set(inputs) == {NONE} and node.type not in _WITH_GRAPHS
        results: Sequence[Axis] = [NONE if without and not sizes else ANY]
        if rule is not None:
            # It lacks what its operator needs, or says wrong ranks: ONNX Runtime refuses the model.
            with suppress(IndexError, ValueError):
                results = rule(self, node, inputs)
        unknown_size = sizes and node.type not in KNOW_SIZES and not self._shapes.keys() & set(node.outputs)
        unknown_rows = node.type not in KNOW_ROWS and any(one != NONE for one in inputs[1:])
        if unknown_size or unknown_rows:
            results = [ANY]
        values = node.inputs[: _VALUES.get(node.type)]  # not shapes, bounds and the like
        computed_from = set(range(told, len(self._told))).union(*(self._from.get(name, ()) for name in values))
        for place, name in enumerate(node.outputs):
            if name and computed_from:
                self._from[name] = computed_from
            self._axes[name] = results[place] if place < len(results) else NONE if set(results) == {NONE} else ANY
            if self._axes[name] == FOUND:
                self._finders[name] = found

    def tell(self, node: _core.Node, what: str) -> None:
        """Note that this node makes rows depend on each other."""
        self._told.append(f"{_label(node)} {what}")

    def rank(self, name: str) -> int | None:
        """Number of dimensions; None: nobody knows."""
        return self._ranks.get(name)

    def set_rank(self, node: _core.Node, rank: int | None, *outputs: str) -> None:
        """Note the number of dimensions of a node's outputs, or of these alone."""
        if rank is not None:
            for name in outputs or node.outputs:
                self._ranks.setdefault(name, rank)

    def shape(self, name: str) -> list[Entry] | None:
        """What is known of a value that may be used as a shape."""
        return self._shapes.get(name)

    def set_shape(self, node: _core.Node, shape: Sequence[Entry]) -> None:
        """Note what a value has that may be used as a shape."""
        self._shapes[node.outputs[0]] = list(shape)

    def set_dims(self, node: _core.Node, dims: Sequence[int | None] | None) -> None:
        """Note the sizes of a value without rows."""
        if dims is not None:
            self.dims[node.outputs[0]] = dims

    def given(self, node: _core.Node, attribute: str, place: int) -> list[int] | None:
        """Integers of an attribute, or of an input in later releases. Empty: not given; None: not constant."""
        if attribute in node.integers:
            return node.integers[attribute]
        if place >= len(node.inputs) or not node.inputs[place]:
            return []
        return self.constants.get(node.inputs[place])

    def same_rank(self, node: _core.Node) -> None:
        """Note that the outputs have as many dimensions as the first input."""
        self.set_rank(node, self.rank(node.inputs[0]) if node.inputs else None)
