"""Where the rows of a batch lie in a value, and what shapes have of their number: for `row_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

from ortmulti import _core

__all__ = [
    *("ANY", "COUNT", "FOUND", "NONE", "OF_SIZE", "SIZE", "Axis", "Entry", "Rule", "Walk"),
    *("aligned", "all_counted", "broadcast", "common", "counted", "has_rows", "label", "of_size", "one_for_all"),
]

ANY = None
"""Of a value: nobody knows where its batch axis is."""
NONE = -1
"""Of a value: it has no rows; it is the same for every batch."""
FOUND = -2
"""Of a value: dimension 0 has as many entries as the run finds."""

Axis: TypeAlias = int | None
Entry: TypeAlias = int | str | None
"""Of a shape: a number, `SIZE`, `OF_SIZE`, or nobody knows."""

SIZE = "batch"
OF_SIZE = "computed from the batch"
COUNT = "counted in the batch"
"""So many entries did a run find."""


def label(node: _core.Node) -> str:
    """Name a node, for messages."""
    output = next(filter(None, node.outputs), "")
    return f"{node.type.rpartition(':')[2]} '{node.name or output}'"


class Walk:
    """What is known of the values of a graph, from its inputs on.

    Args:
        nodes: The main graph's.
        weights: The dimensions of its weights, by name.
        axis: The batch axis of the inputs.
    """

    def __init__(self, nodes: _core.Nodes, weights: Mapping[str, Sequence[int]], axis: int) -> None:
        self.told: list[str] = []
        self.sources: dict[str, set[int]] = {}  # of a value: which of those it was computed from
        self.finders: dict[str, str] = {}  # of a value that is `FOUND`: what found it
        self.counted: dict[str, int] = {}  # of a value of places in rows: which dimension has as many as a run finds
        self.opset = nodes.opset
        self.constants = nodes.constants
        self.dims: dict[str, Sequence[int | None]] = dict(weights)
        """Of values without rows: their sizes, where they are known."""
        self._ranks = nodes.ranks
        self.shapes: dict[str, list[Entry]] = {
            name: list(values) for name, values in self.constants.items() if self._ranks.get(name, 0) <= 1
        }
        self.axes: dict[str, Axis] = {}
        inputs = set(nodes.inputs)
        for name in nodes.inputs:
            rank = self._ranks.get(name)
            self.axes[name] = ANY if rank is None else axis if axis < rank else NONE
        produced = {name for node in nodes.nodes for name in node.outputs}
        for name in produced.intersection(nodes.outputs):
            if self._ranks.get(name) == 0:  # files declare that, too, where nobody wrote the dimensions
                del self._ranks[name]
        for name in self._ranks.keys() - inputs - produced:
            self.axes[name] = NONE

    def axis(self, name: str) -> Axis:
        """Where a value has its rows."""
        return self.axes.get(name)

    def mixing(self, name: str) -> list[str]:
        """Name what makes a value depend on other rows."""
        return [self.told[number] for number in sorted(self.sources.get(name, ()))]

    def finder(self, name: str) -> str:
        """Name the node that finds a value's entries."""
        return self.finders.get(name, "")

    def tell(self, node: _core.Node, what: str) -> None:
        """Note that this node makes rows depend on each other."""
        self.told.append(f"{label(node)} {what}")

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
        return self.shapes.get(name)

    def set_shape(self, node: _core.Node, shape: Sequence[Entry]) -> None:
        """Note what a value has that may be used as a shape."""
        self.shapes[node.outputs[0]] = list(shape)

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


Rule: TypeAlias = Callable[[Walk, _core.Node, Sequence[Axis]], Sequence[Axis]]


def has_rows(axis: Axis) -> TypeGuard[int]:
    """Return whether it is known where a value has rows."""
    return axis is not None and axis >= 0


def of_size(shape: Sequence[Entry]) -> bool:
    """Return whether a shape has the number of rows, or numbers that were computed with it."""
    return any(isinstance(entry, str) for entry in shape)


def counted(axis: int, rank: int | None) -> int | None:
    """Where an axis lies that may count from the end; None: nobody knows."""
    return axis if axis >= 0 else None if rank is None else axis + rank


def all_counted(axes: Iterable[int], rank: int | None) -> set[int] | None:
    """The same of several axes; None where it is not known of one."""
    found = {counted(axis, rank) for axis in axes}
    return None if None in found else {place for place in found if place is not None}


def common(axes: Sequence[Axis], ranks: Sequence[int | None], rank: int) -> Axis:
    """Where the rows of operands lie that are aligned at their last dimensions."""
    found = {axis + rank - own for axis, own in zip(axes, ranks, strict=True) if has_rows(axis) and own is not None}
    return found.pop() if len(found) == 1 else ANY


def one_for_all(walk: Walk, name: str, behind: int) -> bool:
    """Return whether a value without rows is the same for all rows, which lie ``behind`` dimensions from the end.

    One of size 4 there would be another number for each of four rows.
    """
    rank, dims = walk.rank(name), walk.dims.get(name)
    return rank is not None and (rank < behind or (dims is not None and dims[rank - behind] == 1))


def aligned(walk: Walk, names: Sequence[str], inputs: Sequence[Axis]) -> Axis:
    """Return where the rows lie of values that are broadcast to each other."""
    ranks = [walk.rank(name) for name in names]
    if ANY in inputs or FOUND in inputs or None in ranks:
        return ANY
    rank = max(one for one in ranks if one is not None)
    found = common(inputs, ranks, rank)
    if found is None:
        return ANY
    others = [name for name, one in zip(names, inputs, strict=True) if one == NONE]
    return found if all(one_for_all(walk, name, rank - found) for name in others) else ANY


def broadcast(all_dims: Sequence[Sequence[int | None]], rank: int) -> list[int | None]:
    """Return the sizes of values that are broadcast to each other."""
    found: list[int | None] = []
    for place in range(-rank, 0):
        sizes = {dims[place] if -place <= len(dims) else 1 for dims in all_dims}
        known = [size for size in sizes if size is not None]
        found.append(max(known) if len(known) == len(sizes) else None)
    return found
