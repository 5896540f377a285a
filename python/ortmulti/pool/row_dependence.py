"""Nodes of a model by which the rows of a batch depend on each other, found in its graph without a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from ortmulti import _core
from ortmulti.errors import Error

if TYPE_CHECKING:
    from ortmulti.create.model import Model

__all__ = ["dependent_rows", "warn_of_dependence", "why_dependent"]

LOGGER = logging.getLogger("ortmulti")

_MOST_TOLD = 3

_ANY = None
"""Of a value: nobody knows where its batch axis is."""
_NONE = -1
"""Of a value: it has no rows; it is the same for every batch of this size."""

Axis: TypeAlias = int | None
Entry: TypeAlias = int | str | None
"""Of a shape: a number, `_SIZE`, `_OF_SIZE`, or nobody knows."""

_SIZE = "batch"
_OF_SIZE = "computed from the batch"

_SAME = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitCast Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Dropout
    Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Pad
    QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh
    ThresholdedRelu Trilu com.microsoft:BiasGelu com.microsoft:FastGelu com.microsoft:Gelu
    com.microsoft:QuickGelu
"""
_TOGETHER = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean
    Min Mod Mul Or PRelu Pow Sub Sum Where Xor
"""
_OF_IMAGES = """
    AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
    GlobalMaxPool GridSample GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv Resize
    SpaceToDepth Upsample com.microsoft:FusedConv com.microsoft:MatMulNBits
"""
_FUSED_ATTENTION = """
    com.microsoft:Attention com.microsoft:EmbedLayerNormalization com.microsoft:GroupQueryAttention
    com.microsoft:MultiHeadAttention com.microsoft:QAttention
"""
_NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
_SOFTMAX = {"Softmax", "LogSoftmax", "Hardmax"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_QUANTIZING = {"DynamicQuantizeLinear", "com.microsoft:DynamicQuantizeMatMul", "com.microsoft:DynamicQuantizeLSTM"}
_REDUCE = "Reduce"
_VALUES = {"Shape": 0, "Size": 0, "Range": 0, "ConstantOfShape": 0, "Slice": 1, "Reshape": 1, "Expand": 1}
"""How many of the first inputs an operator computes its values with; of others all."""


def dependent_rows(nodes: _core.Nodes, axis: int = 0) -> list[str]:
    """Name what makes answers depend on the other rows of a batch, or on its size.

    Values are followed from the inputs through operators that are known. Behind others nothing is said. Only nodes
    count whose results reach an output with rows.

    Args:
        nodes: The main graph's.
        axis: The batch axis of the inputs.

    Returns:
        A text for each node that was found, such as "ReduceMean 'mean' computes over the batch".
    """
    return _Walk(nodes, axis).reached


def why_dependent(model: Model, axis: int) -> str:
    """Return what was found in a model as one text; empty: nothing, or the model's graph cannot be read."""
    try:
        with model.content() as content:
            nodes = _core.read_nodes(content)
    except Error:  # such as a model in ORT's format; whoever loads it knows
        return ""
    found = dependent_rows(nodes, axis)
    more = f", and {len(found) - _MOST_TOLD} nodes more" if len(found) > _MOST_TOLD else ""
    return ", ".join(found[:_MOST_TOLD]) + more


def warn_of_dependence(model: Model, axis: int) -> None:
    """Log a warning if something was found."""
    if why := why_dependent(model, axis):
        LOGGER.warning(
            "%s: joined requests may get other answers than alone: %s. Try it with 'ortmulti inspect --batching' or "
            "ortmulti.check_batching, or load it without batching",
            model,
            why,
        )


class _Walk:
    def __init__(self, nodes: _core.Nodes, axis: int) -> None:
        self._told: list[str] = []
        self._from: dict[str, set[int]] = {}  # of a value: which of those it was computed from
        self.opset = nodes.opset
        self.constants = nodes.constants
        self._ranks = nodes.ranks
        self._shapes: dict[str, list[Entry]] = {
            name: list(values) for name, values in self.constants.items() if self._ranks.get(name, 0) <= 1
        }
        self._axes: dict[str, Axis] = {}
        weights = self._ranks.keys() - set(nodes.inputs)
        for name in nodes.inputs:
            rank = self._ranks.get(name)
            self._axes[name] = _ANY if rank is None else axis if axis < rank else _NONE
        produced = {name for node in nodes.nodes for name in node.outputs}
        for name in weights - produced:
            self._axes[name] = _NONE
        for node in nodes.nodes:
            self._follow(node)
        with_rows = [self._from.get(name, set()) for name in nodes.outputs if self._axes.get(name) != _NONE]
        self.reached = [self._told[number] for number in sorted(set().union(*with_rows))]

    def _follow(self, node: _core.Node) -> None:
        inputs = [self._axes.get(name, _ANY) if name else _NONE for name in node.inputs]
        rule = _RULES.get(node.type) or (_reduce if node.type.startswith(_REDUCE) else None)
        told = len(self._told)
        of_size = any(_of_size(self._shapes.get(name, ())) for name in node.inputs)
        results: Sequence[Axis] = [_NONE if not of_size and inputs and set(inputs) == {_NONE} else _ANY]
        if rule is not None:
            with suppress(IndexError):  # it lacks what its operator needs: ONNX Runtime refuses the model
                results = rule(self, node, inputs)
        values = node.inputs[: _VALUES.get(node.type)]  # not shapes, bounds and the like
        computed_from = set(range(told, len(self._told))).union(*(self._from.get(name, ()) for name in values))
        for place, name in enumerate(node.outputs):
            if name and computed_from:
                self._from[name] = computed_from
            self._axes[name] = results[place] if place < len(results) else _ANY if _ANY in inputs else results[-1]

    def tell(self, node: _core.Node, what: str) -> None:
        output = next(filter(None, node.outputs), "")
        self._told.append(f"{node.type.rpartition(':')[2]} '{node.name or output}' {what}")

    def rank(self, name: str) -> int | None:
        return self._ranks.get(name)

    def set_rank(self, node: _core.Node, rank: int | None, *outputs: str) -> None:
        if rank is not None:
            for name in outputs or node.outputs:
                self._ranks.setdefault(name, rank)

    def shape(self, name: str) -> list[Entry] | None:
        return self._shapes.get(name)

    def set_shape(self, node: _core.Node, shape: Sequence[Entry]) -> None:
        self._shapes[node.outputs[0]] = list(shape)

    def given(self, node: _core.Node, attribute: str, place: int) -> list[int] | None:
        """Integers of an attribute, or of an input in later releases. Empty: not given; None: not constant."""
        if attribute in node.integers:
            return node.integers[attribute]
        if place >= len(node.inputs) or not node.inputs[place]:
            return []
        return self.constants.get(node.inputs[place])

    def same_rank(self, node: _core.Node) -> None:
        self.set_rank(node, self.rank(node.inputs[0]) if node.inputs else None)


_Rule: TypeAlias = Callable[[_Walk, _core.Node, Sequence[Axis]], Sequence[Axis]]


def _same(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    if (shape := walk.shape(node.inputs[0])) is not None:
        kept = node.type in ("Cast", "Identity", "CastLike")
        walk.set_shape(node, shape if kept else [_OF_SIZE if isinstance(entry, str) else None for entry in shape])
    return inputs[:1]


def _has_rows(axis: Axis) -> TypeGuard[int]:
    return axis is not None and axis != _NONE


def _at(axis: int, rank: int | None) -> int | None:
    """Where an axis lies that may count from the end; None: nobody knows."""
    return axis if axis >= 0 else None if rank is None else axis + rank


def _places(axes: Iterable[int], rank: int | None) -> set[int] | None:
    """The same of several axes; None where it is not known of one."""
    places = {_at(axis, rank) for axis in axes}
    return None if None in places else {place for place in places if place is not None}


def _common(axes: Sequence[Axis], ranks: Sequence[int | None], rank: int) -> Axis:
    """Where the rows of operands lie that are aligned at their last dimensions."""
    found = {axis + rank - own for axis, own in zip(axes, ranks, strict=True) if _has_rows(axis) and own is not None}
    return found.pop() if len(found) == 1 else _ANY


def _of_size(shape: Sequence[Entry]) -> bool:
    return any(isinstance(entry, str) for entry in shape)


def _computed_shape(node: _core.Node, shapes: Sequence[list[Entry] | None]) -> list[Entry]:
    """What is computed with the sizes of shapes, entry by entry. A quotient or difference may have lost the batch's."""
    length = max(len(shape) for shape in shapes if shape is not None)
    entries: list[Entry] = []
    for place in range(length):
        here = [shape[place if len(shape) > 1 else 0] for shape in shapes if shape and len(shape) in (1, length)]
        of_size = sum(isinstance(entry, str) for entry in here)
        lost = of_size > 1 and node.type in ("Div", "Sub")
        entries.append(_OF_SIZE if of_size and not lost else None)
    return entries


def _together(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    ranks = [walk.rank(name) for name in node.inputs]
    shapes = [walk.shape(name) for name in node.inputs]
    computed = any(shape is not None and _of_size(shape) for shape in shapes)
    rank = None if None in ranks else max((one for one in ranks if one is not None), default=0)
    walk.set_rank(node, rank)
    if all(one == _NONE for one in inputs):
        if computed:
            walk.set_shape(node, _computed_shape(node, shapes))
        return [_NONE]
    if computed and any(_has_rows(one) for one in inputs) and node.type in ("Add", "Div", "Mul", "Pow", "Sub"):
        walk.tell(node, "computes with the size of the batch")
    if rank is None or _ANY in inputs:
        return [_ANY]
    return [_common(inputs, ranks, rank)]


def _matmul(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    one, other = inputs[0], inputs[1]
    ranks = walk.rank(node.inputs[0]), walk.rank(node.inputs[1])
    if one == _NONE and other == _NONE:
        return [_NONE]
    if None in (*ranks, one, other) or min(r for r in ranks if r is not None) < 2:
        return [_ANY]
    left, right = (rank or 0 for rank in ranks)
    rank = max(left, right)
    walk.set_rank(node, rank)
    if any(node.integers.get(name, [0]) != [0] for name in ("transBatchA", "transBatchB")):
        return [_ANY]
    one = _swapped(one, left) if node.integers.get("transA", [0]) != [0] else one
    other = _swapped(other, right) if node.integers.get("transB", [0]) != [0] else other
    if one == left - 1 or other == right - 2:
        walk.tell(node, "sums over the batch")
        return [_ANY]
    return [_common((one, other), ranks, rank)]


def _swapped(axis: Axis, rank: int) -> Axis:
    """Where an axis lies when the last two are exchanged."""
    return {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis) if _has_rows(axis) else axis


def _fused_attention(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 3, *node.outputs[:1])
    return [inputs[0] if inputs[0] in (0, _NONE) else _ANY, *[_ANY] * len(node.outputs[1:])]


def _gemm(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 2)
    if inputs[0] == 0 and all(one == _NONE for one in inputs[1:]):
        if node.integers.get("transA", [0]) != [0]:
            walk.tell(node, "sums over the batch")
            return [_ANY]
        return [0]
    return [_NONE if all(one == _NONE for one in inputs) else _ANY]


def _of_images(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    trains = node.type == "BatchNormalization" and node.integers.get("training_mode", [0]) != [0]
    if trains and _has_rows(inputs[0]):
        walk.tell(node, "normalizes over the batch")
    return [inputs[0] if inputs[0] in (0, _NONE) else _ANY]


def _norm(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, begin = inputs[0], _at(node.integers.get("axis", [-1])[0], walk.rank(node.inputs[0]))
    if _has_rows(own) and begin is not None and own >= begin:
        walk.tell(node, "normalizes over the batch")
    return inputs[:1]


def _softmax(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, flattens = inputs[0], walk.opset < 13
    over = _at(node.integers.get("axis", [1 if flattens else -1])[0], walk.rank(node.inputs[0]))
    if over is not None and _has_rows(own) and (own == over or (flattens and own >= over)):
        walk.tell(node, "normalizes over the batch")
    return inputs[:1]


def _reduce(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    arg = node.type.startswith("Arg")
    axes = node.integers.get("axis", [0]) if arg else walk.given(node, "axes", 1)
    own, rank = inputs[0], walk.rank(node.inputs[0])
    keeps = node.integers.get("keepdims", [1]) != [0]
    if axes is None:
        return [_NONE if own == _NONE else _ANY]
    if not axes and node.integers.get("noop_with_empty_axes", [0]) != [0]:
        return _same(walk, node, inputs)
    over = _places(axes, rank)
    if over is None:
        return [_NONE if own == _NONE else _ANY]
    if rank is not None:
        walk.set_rank(node, rank if keeps else rank - len(over) if over else 0)
    if not _has_rows(own):
        return [own]
    if not over or own in over:
        walk.tell(node, "computes over the batch")
        return [_NONE]
    return [own if keeps else own - sum(axis < own for axis in over)]


def _along(default: int, place: int | None, what: str) -> _Rule:
    """Operators that compute along one axis."""

    def rule(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
        walk.same_rank(node)
        axes = node.integers.get("axis", [default]) if place is None else walk.given(node, "axis", place)
        own = inputs[0]
        if axes and _has_rows(own) and own == _at(axes[0], walk.rank(node.inputs[0])):
            walk.tell(node, what)
        return [own] * len(node.outputs)

    return rule


def _mean_variance(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    over = {_at(axis, walk.rank(node.inputs[0])) for axis in node.integers.get("axes", [0, 2, 3])}
    if _has_rows(inputs[0]) and inputs[0] in over:
        walk.tell(node, "normalizes over the batch")
    return inputs[:1]


def _quantize(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    if _has_rows(inputs[0]):
        walk.tell(node, "has one scale for all rows")
    if node.type == "DynamicQuantizeLinear":
        walk.set_rank(node, walk.rank(node.inputs[0]), *node.outputs[:1])
        walk.set_rank(node, 0, *node.outputs[1:])
        return [inputs[0], _NONE, _NONE]
    return [_ANY]


def _recurrent(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    if inputs[0] == 0 and node.integers.get("layout", [0]) == [0]:
        walk.tell(node, "goes along the batch as if it were time")
    return [_ANY]


def _transpose(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, rank = inputs[0], walk.rank(node.inputs[0])
    order = node.integers.get("perm") or (None if rank is None else list(reversed(range(rank))))
    if not _has_rows(own):
        return [own]
    return [order.index(own) if order is not None and own in order else _ANY]


def _reshape(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    shape = walk.shape(node.inputs[1])
    if shape is not None:
        walk.set_rank(node, len(shape))
    if not _has_rows(inputs[0]):
        return inputs[:1]
    if shape is None:
        return [_ANY]
    places = [place for place, entry in enumerate(shape) if entry == _SIZE]
    if len(places) == 1:
        return [places[0]]
    return [0 if inputs[0] == 0 and shape and shape[0] in (0, -1) and not places else _ANY]


def _flatten(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 2)
    if not _has_rows(inputs[0]):
        return inputs[:1]
    return [0 if inputs[0] == 0 and node.integers.get("axis", [1])[0] >= 1 else _ANY]


def _squeeze(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    axes, rank, own = walk.given(node, "axes", 1), walk.rank(node.inputs[0]), inputs[0]
    more = node.type == "Unsqueeze"
    if (shape := walk.shape(node.inputs[0])) is not None:
        walk.set_shape(node, shape)
    places = _places(axes or (), None if rank is None else rank + len(axes or ()) * more)
    if not places:
        return [_NONE if own == _NONE else _ANY]
    if rank is not None:
        walk.set_rank(node, rank + len(places) * (1 if more else -1))
    if not _has_rows(own):
        return [own]
    if more:
        for place in sorted(places):
            own += place <= own
        return [own]
    return [_ANY if own in places else own - sum(place < own for place in places)]


def _concat(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    shapes = [walk.shape(name) for name in node.inputs]
    if any(shape is not None for shape in shapes):
        if all(shape is not None for shape in shapes):
            walk.set_shape(node, [entry for shape in shapes for entry in shape or ()])
        elif all(walk.rank(name) == 1 for name in node.inputs):
            return [_NONE if all(one == _NONE for one in inputs) else _ANY]
    if all(one == _NONE for one in inputs):
        return [_NONE]
    own = {one for one in inputs if one != _NONE}
    at = _at(node.integers.get("axis", [0])[0], walk.rank(node.inputs[0]))
    found = own.pop() if len(own) == 1 else _ANY
    return [_ANY if at is None or found == at else found]


def _slice(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    starts, ends = walk.given(node, "starts", 1), walk.given(node, "ends", 2)
    axes, steps = walk.given(node, "axes", 3), walk.given(node, "steps", 4)
    shape = walk.shape(node.inputs[0])
    if shape is not None and starts and ends and steps in ([], [1]):
        walk.set_shape(node, shape[starts[0] : ends[0]])
    own = inputs[0]
    if not _has_rows(own):
        return [own]
    if axes is None:
        return [_ANY]
    over = _places(axes or range(len(starts or [0] * 64)), walk.rank(node.inputs[0]))
    return [_ANY if over is None or own in over else own]


def _gather(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    data, places = inputs[0], inputs[1]
    rank, of_places = walk.rank(node.inputs[0]), walk.rank(node.inputs[1])
    shape, chosen = walk.shape(node.inputs[0]), walk.constants.get(node.inputs[1])
    if shape is not None and chosen is not None:
        walk.set_shape(node, [shape[at] if -len(shape) <= at < len(shape) else None for at in chosen])
    at = _at(node.integers.get("axis", [0])[0], rank)
    if rank is not None and of_places is not None:
        walk.set_rank(node, rank - 1 + of_places)
    if data == _NONE and places == _NONE:
        return [_NONE]
    if data is None or places is None or at is None:
        return [_ANY]
    if data == _NONE:
        return [at + places]
    if places != _NONE or data == at:
        return [_ANY]
    return [data if data < at else _ANY if of_places is None else data - 1 + of_places]


def _split(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, at = inputs[0], _at(node.integers.get("axis", [0])[0], walk.rank(node.inputs[0]))
    return [_ANY if _has_rows(own) and at in (None, own) else own] * len(node.outputs)


def _filled(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    """Expand, ConstantOfShape."""
    expands = node.type == "Expand"
    shape = walk.shape(node.inputs[1 if expands else 0])
    rank = walk.rank(node.inputs[0]) if expands else 0
    full = None if shape is None or rank is None else max(len(shape), rank)
    walk.set_rank(node, full)
    own = inputs[0]
    if shape is None or full is None or rank is None or own is None:
        return [_ANY]
    if expands and own != _NONE:
        return [own + full - rank]
    places = [place for place, entry in enumerate(shape) if entry == _SIZE]
    return [places[0] + full - len(shape) if len(places) == 1 else _ANY if _of_size(shape) else _NONE]


def _shape_of(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    own, rank = inputs[0], walk.rank(node.inputs[0])
    walk.set_rank(node, 1)
    start, end = node.integers.get("start", [0])[0], node.integers.get("end", [1 << 62])[0]
    if own is None:
        return [_NONE]
    if rank is not None:
        walk.set_shape(node, [_SIZE if place == own else None for place in range(rank)][start:end])
    elif (start, end) == (0, 1):
        walk.set_shape(node, [_SIZE if own == 0 else None])
    return [_NONE]


def _size_of(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 0)
    if _has_rows(inputs[0]):
        walk.set_shape(node, [_OF_SIZE])
    return [_NONE]


def _range(walk: _Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 1)
    of_size = any(_of_size(walk.shape(name) or ()) for name in node.inputs)
    return [_NONE if not of_size and all(one == _NONE for one in inputs) else _ANY]


def _constant(_walk: _Walk, _node: _core.Node, _inputs: Sequence[Axis]) -> Sequence[Axis]:
    return [_NONE]


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(_TOGETHER.split(), _together),
    **dict.fromkeys(("MatMul", "MatMulInteger", "com.microsoft:FusedMatMul"), _matmul),
    **dict.fromkeys(_OF_IMAGES.split(), _of_images),
    **dict.fromkeys(_FUSED_ATTENTION.split(), _fused_attention),
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(_SOFTMAX, _softmax),
    **dict.fromkeys(_QUANTIZING, _quantize),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduce),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _squeeze),
    **dict.fromkeys(("Expand", "ConstantOfShape"), _filled),
    "CumSum": _along(0, 1, "sums over the batch"),
    "TopK": _along(-1, None, "chooses within the batch"),
    "LpNormalization": _along(-1, None, "normalizes over the batch"),
    "MeanVarianceNormalization": _mean_variance,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Split": _split,
    "Shape": _shape_of,
    "Size": _size_of,
    "Range": _range,
    "Constant": _constant,
}
