"""Where the rows of a batch lie behind operators that move, join or choose elements: for `row_rules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortmulti.pool.row_axes import (
    ANY,
    COUNT,
    FOUND,
    NONE,
    OF_SIZE,
    SIZE,
    Axis,
    Entry,
    all_counted,
    broadcast,
    counted,
    has_rows,
    of_size,
    one_for_all,
)

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti.pool.row_axes import Walk

__all__ = [
    *("follow_concat", "follow_filled", "follow_flatten", "follow_gather", "follow_range", "follow_reshape"),
    *("follow_shape_of", "follow_size_of", "follow_slice", "follow_split", "follow_squeeze", "follow_transpose"),
]


def follow_transpose(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, rank, dims = inputs[0], walk.rank(node.inputs[0]), walk.dims.get(node.inputs[0])
    counted_at = walk.counted.get(node.inputs[0])
    order = node.integers.get("perm") or (None if rank is None else list(reversed(range(rank))))
    if counted_at is not None and order is not None and counted_at in order:
        walk.counted[node.outputs[0]] = order.index(counted_at)
    if not has_rows(own):
        if dims is not None and order is not None:
            walk.set_dims(node, [dims[place] for place in order])
        return [own]
    return [order.index(own) if order is not None and own in order else ANY]


def follow_reshape(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    shape, sizes = walk.shape(node.inputs[1]), walk.shape(node.inputs[0])
    own = inputs[0]
    if shape is not None:
        walk.set_rank(node, len(shape))
    if own == NONE and inputs[1] == NONE and not of_size(shape or ()):
        if sizes is not None and shape in ([-1], [1]):
            walk.set_shape(node, sizes)
        elif of_size(sizes or ()):
            return [ANY]
        if shape is not None:
            walk.set_dims(node, [one if isinstance(one, int) and one > 0 else None for one in shape])
        return [NONE]
    if not has_rows(own) or shape is None or own >= len(shape):
        return [ANY]
    # All dimensions up to the rows' stay: then each row keeps its elements, in their order.
    copies = node.integers.get("allowzero", [0]) == [0]
    stay = copies and all(entry == 0 for entry in shape[:own])
    stay = stay and (shape[own] == SIZE or (shape[own] == 0 and copies))
    return [own if stay and not of_size(shape[own + 1 :]) else ANY]


def follow_flatten(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 2)
    if not has_rows(inputs[0]):
        return inputs[:1]
    return [0 if inputs[0] == 0 and node.integers.get("axis", [1])[0] == 1 else ANY]


def follow_squeeze(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    axes, rank, own = walk.given(node, "axes", 1), walk.rank(node.inputs[0]), inputs[0]
    more = node.type == "Unsqueeze"
    if (shape := walk.shape(node.inputs[0])) is not None:
        walk.set_shape(node, shape)
    places = all_counted(axes or (), None if rank is None else rank + len(axes or ()) * more)
    if not places:
        return [NONE if own == NONE else ANY]
    if rank is not None:
        walk.set_rank(node, rank + len(places) * (1 if more else -1))
    if not more and places == {0} and walk.counted.get(node.inputs[0]) == 1:
        walk.counted[node.outputs[0]] = 0
    dims = walk.dims.get(node.inputs[0])
    if own == NONE and dims is not None:
        kept = [size for place, size in enumerate(dims) if more or place not in places]
        for place in sorted(places) if more else ():
            kept.insert(place, 1)
        walk.set_dims(node, kept)
    if own == FOUND:
        return [own if 0 not in places else ANY]
    if not has_rows(own):
        return [own]
    if more:
        for place in sorted(places):
            own += place <= own
        return [own]
    return [ANY if own in places else own - sum(place < own for place in places)]


def follow_concat(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    shapes = [walk.shape(name) for name in node.inputs]
    if any(shape is not None for shape in shapes):
        if all(shape is not None for shape in shapes):
            walk.set_shape(node, [entry for shape in shapes for entry in shape or ()])
        elif all(walk.rank(name) == 1 for name in node.inputs):
            return [NONE if all(one == NONE for one in inputs) else ANY]
    if all(one == NONE for one in inputs):
        return [NONE]
    if NONE in inputs:  # whose size at the rows' dimension fits one number of rows alone
        return [ANY]
    own = set(inputs)
    at = counted(node.integers.get("axis", [0])[0], walk.rank(node.inputs[0]))
    found = own.pop() if len(own) == 1 else ANY
    return [ANY if at is None or found == at or (found == FOUND and at == 0) else found]


def follow_slice(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    starts, ends = walk.given(node, "starts", 1), walk.given(node, "ends", 2)
    axes, steps = walk.given(node, "axes", 3), walk.given(node, "steps", 4)
    shape = walk.shape(node.inputs[0])
    if shape is not None and starts and ends and steps in ([], [1]):
        walk.set_shape(node, shape[starts[0] : ends[0]])
    own, dims = inputs[0], walk.dims.get(node.inputs[0])
    over = None if axes is None else all_counted(axes or range(len(starts or [0] * 64)), walk.rank(node.inputs[0]))
    if own == NONE and dims is not None and over is not None:
        walk.set_dims(node, [None if place in over else size for place, size in enumerate(dims)])
    if own in (ANY, NONE):
        return [own]
    return [ANY if over is None or (0 if own == FOUND else own) in over else own]


def follow_gather(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    data, places = inputs[0], inputs[1]
    rank, of_places = walk.rank(node.inputs[0]), walk.rank(node.inputs[1])
    shape, chosen = walk.shape(node.inputs[0]), walk.constants.get(node.inputs[1])
    if shape is not None and chosen is not None:
        walk.set_shape(node, [shape[at] if -len(shape) <= at < len(shape) else None for at in chosen])
    at = counted(node.integers.get("axis", [0])[0], rank)
    if rank is not None and of_places is not None:
        walk.set_rank(node, rank - 1 + of_places)
    counted_at = walk.counted.get(node.inputs[0])
    if counted_at is not None and at is not None and of_places is not None and counted_at != at:
        walk.counted[node.outputs[0]] = counted_at + (of_places - 1) * (at < counted_at)
    if data == NONE and places == NONE:
        dims, chosen_dims = walk.dims.get(node.inputs[0]), walk.dims.get(node.inputs[1])
        if dims is not None and chosen_dims is not None and at is not None:
            walk.set_dims(node, [*dims[:at], *chosen_dims, *dims[at + 1 :]])
        return [NONE]
    if FOUND in inputs:
        kept = (data == FOUND and places == NONE and bool(at)) or (places == FOUND and data != FOUND and at == 0)
        return [FOUND if kept else ANY]
    if data is None or places is None or at is None:
        return [ANY]
    if data == NONE:
        return [at + places]
    if places != NONE or data == at:
        return [ANY]
    return [data if data < at else ANY if of_places is None else data - 1 + of_places]


def follow_split(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, at = inputs[0], counted(node.integers.get("axis", [0])[0], walk.rank(node.inputs[0]))
    return [ANY if has_rows(own) and at in (None, own) else own] * len(node.outputs)


def follow_filled(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    """Expand, ConstantOfShape."""
    expands = node.type == "Expand"
    shape = walk.shape(node.inputs[1 if expands else 0])
    rank = walk.rank(node.inputs[0]) if expands else 0
    full = None if shape is None or rank is None else max(len(shape), rank)
    walk.set_rank(node, full)
    own = inputs[0]
    if shape is None or full is None or rank is None or own is None or COUNT in shape:
        return [ANY]
    if expands and of_size(walk.shape(node.inputs[0]) or ()):
        return [ANY]
    entries: list[Entry] = [*[1] * (full - len(shape)), *shape]
    places = [place for place, entry in enumerate(entries) if isinstance(entry, str)]
    if expands and own != NONE:
        # Of two rows or more none become another number: the run would fail.
        place = own + full - rank
        return [place if places in ([], [place]) and (places or entries[place] == 1) else ANY]
    if not places:
        dims = walk.dims.get(node.inputs[0]) if expands else []
        if dims is not None:
            sizes = [entry if isinstance(entry, int) else None for entry in entries]
            walk.set_dims(node, broadcast([dims, sizes], full))
        return [NONE]
    if places != [place for place, entry in enumerate(entries) if entry == SIZE] or len(places) != 1:
        return [ANY]
    return [places[0] if not expands or one_for_all(walk, node.inputs[0], full - places[0]) else ANY]


def follow_shape_of(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    own, rank = inputs[0], walk.rank(node.inputs[0])
    walk.set_rank(node, 1)
    found = 0 if own == FOUND else walk.counted.get(node.inputs[0])
    start, end = node.integers.get("start", [0])[0], node.integers.get("end", [1 << 62])[0]
    if found is not None and rank is not None:
        walk.set_shape(node, [COUNT if place == found else None for place in range(rank)][start:end])
    if own in (ANY, FOUND):
        return [ANY]
    if rank is not None:
        walk.set_shape(node, [SIZE if place == own else None for place in range(rank)][start:end])
    elif (start, end) == (0, 1):
        walk.set_shape(node, [SIZE if own == 0 else None])
    return [NONE]


def follow_size_of(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 0)
    if inputs[0] == FOUND or node.inputs[0] in walk.counted:
        walk.set_shape(node, [COUNT])
        return [ANY]
    if has_rows(inputs[0]):
        walk.set_shape(node, [OF_SIZE])
    return [ANY if inputs[0] is None else NONE]


def follow_range(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 1)
    sizes = any(of_size(walk.shape(name) or ()) for name in node.inputs)
    return [NONE if not sizes and all(one == NONE for one in inputs) else ANY]
