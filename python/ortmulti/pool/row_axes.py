"""Where the rows of a batch lie in a value, and what shapes have of their number: for `row_rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti.pool.row_dependence import Walk

__all__ = [
    *("ANY", "FOUND", "NONE", "OF_SIZE", "SIZE", "Axis", "Entry", "Rule"),
    *("aligned", "all_counted", "broadcast", "common", "counted", "has_rows", "of_size", "one_for_all"),
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

Rule: TypeAlias = "Callable[[Walk, _core.Node, Sequence[Axis]], Sequence[Axis]]"


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
