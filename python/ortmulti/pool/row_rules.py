"""Where the rows of a batch lie behind each operator, for `ortmulti.pool.row_dependence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ortmulti.pool import row_shapes
from ortmulti.pool.row_axes import (
    ANY,
    COUNT,
    FOUND,
    NONE,
    OF_SIZE,
    SIZE,
    Axis,
    Entry,
    Rule,
    aligned,
    all_counted,
    broadcast,
    common,
    counted,
    has_rows,
    of_size,
    one_for_all,
)

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti.pool.row_axes import Walk

__all__ = ["KNOW_FOUND", "KNOW_ROWS", "KNOW_SIZES", "QUANTIZING", "RULES", "reduce"]

_SAME = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitCast Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Dropout
    Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Pad
    QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh
    ThresholdedRelu Trilu com.microsoft:BiasGelu com.microsoft:FastGelu com.microsoft:Gelu com.microsoft:QuickGelu
"""
_TOGETHER = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean
    Min Mod Mul Or PRelu Pow Sub Sum Where Xor
"""
_OF_IMAGES = """
    AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
    GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool QLinearConv Resize
    SpaceToDepth Upsample com.microsoft:FusedConv com.microsoft:MatMulNBits
"""
_FUSED_ATTENTION = """
    com.microsoft:Attention com.microsoft:EmbedLayerNormalization com.microsoft:GroupQueryAttention
    com.microsoft:MultiHeadAttention com.microsoft:QAttention
"""
_NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
_SOFTMAX = {"Softmax", "LogSoftmax", "Hardmax"}
_RECURRENT = {"LSTM", "GRU", "RNN"}
_FINDING = {"NonMaxSuppression", "Compress", "Unique"}
QUANTIZING = {"DynamicQuantizeLinear", "com.microsoft:DynamicQuantizeMatMul", "com.microsoft:DynamicQuantizeLSTM"}
"""Operators with one scale for all that they are given, as those of `quantize_dynamic`."""
KNOW_SIZES = {"Reshape", "Expand", "ConstantOfShape", "Resize"}
"""Operators whose rules look at sizes in a shape."""
KNOW_ROWS = {
    *_TOGETHER.split(),
    *_FUSED_ATTENTION.split(),
    *_NORMS,
    *_RECURRENT,
    *_FINDING,
    *("Concat", "Expand", "Gather", "Gemm", "GridSample", "MatMul", "MatMulInteger", "Range", "Reshape", "CastLike"),
    *("com.microsoft:FusedMatMul", "com.microsoft:SkipLayerNormalization"),
}
"""Operators whose rules look at the rows of all inputs, not of the first one alone."""
KNOW_FOUND = {*_SAME.split(), "Concat", "Gather", "Shape", "Size", "Slice", "Squeeze", "Unsqueeze"}
"""Operators whose rules know `FOUND`."""


def _computed(*entries: Entry) -> Entry:
    """Return what is computed with these entries of shapes."""
    return COUNT if COUNT in entries else OF_SIZE if of_size(entries) else None


def _same(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, rank = inputs[0], walk.rank(node.inputs[0])
    if node.type != "Pad":
        walk.set_dims(node, walk.dims.get(node.inputs[0]))
        if (shape := walk.shape(node.inputs[0])) is not None:
            kept = node.type in ("Cast", "Identity", "CastLike")
            walk.set_shape(node, shape if kept else [_computed(entry) for entry in shape])
    elif has_rows(own):
        pads = walk.given(node, "pads", 1)
        whole = rank is not None and len(pads or ()) == 2 * rank and not any(node.inputs[3:])  # which has axes
        if not pads or not whole or pads[own] or pads[own + len(pads) // 2]:
            return [ANY]
    # What a row loses depends on its place.
    return [ANY if node.type == "Trilu" and has_rows(own) and (rank is None or own >= rank - 2) else own]


def _computed_shape(node: _core.Node, shapes: Sequence[list[Entry] | None]) -> list[Entry] | None:
    """Return what is computed with the sizes of shapes, entry by entry. None: nobody knows.

    A quotient or difference of two sizes may have lost the batch's.
    """
    length = max(len(shape) for shape in shapes if shape is not None)
    entries: list[Entry] = []
    for place in range(length):
        here = [shape[place if len(shape) > 1 else 0] for shape in shapes if shape and len(shape) in (1, length)]
        sizes = sum(isinstance(entry, str) for entry in here)
        if sizes > 1 and node.type in ("Div", "Sub"):
            return None
        entries.append(_computed(*here))
    return entries


def _together(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    ranks = [walk.rank(name) for name in node.inputs]
    shapes = [walk.shape(name) for name in node.inputs]
    computed = any(shape is not None and of_size(shape) for shape in shapes)
    rank = None if None in ranks else max((one for one in ranks if one is not None), default=0)
    walk.set_rank(node, rank)
    counts = any(COUNT in (shape or ()) for shape in shapes)
    if counts and any(has_rows(one) for one in inputs):
        walk.tell(node, "counts over the batch")
    elif counts and (entries := _computed_shape(node, shapes)) is not None:
        walk.set_shape(node, entries)
    if all(one == NONE for one in inputs):
        if computed and (entries := _computed_shape(node, shapes)) is not None:
            walk.set_shape(node, entries)
        all_dims = [walk.dims.get(name) for name in node.inputs]
        if rank is not None and None not in all_dims:
            walk.set_dims(node, broadcast([dims or [] for dims in all_dims], rank))
        return [NONE]
    scales = computed and not counts and node.type in ("Add", "Div", "Mul", "Pow", "Sub")
    if scales and any(has_rows(one) for one in inputs):
        walk.tell(node, "computes with the size of the batch")
    return [aligned(walk, node.inputs, inputs)]


def _matmul(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    one, other = inputs[0], inputs[1]
    ranks = walk.rank(node.inputs[0]), walk.rank(node.inputs[1])
    if all(each == NONE for each in inputs):
        return [NONE]
    if None in (*ranks, one, other) or min(r for r in ranks if r is not None) < 2:
        return [ANY]
    left, right = (rank or 0 for rank in ranks)
    rank = max(left, right)
    walk.set_rank(node, rank)
    if any(node.integers.get(name, [0]) != [0] for name in ("transBatchA", "transBatchB")):
        return [ANY]
    one = _swapped(one, left) if node.integers.get("transA", [0]) != [0] else one
    other = _swapped(other, right) if node.integers.get("transB", [0]) != [0] else other
    if one == left - 1 or other == right - 2:
        walk.tell(node, "sums over the batch")
        return [ANY]
    found = common((one, other), ranks, rank)
    if found is None or any(each != NONE for each in inputs[2:]):
        return [ANY]
    behind = rank - found  # 1 and 2 are the matrices' own dimensions
    beside = [name for name, axis in zip(node.inputs, (one, other), strict=False) if axis == NONE]
    return [found if behind <= 2 or all(one_for_all(walk, name, behind) for name in beside) else ANY]


def _swapped(axis: Axis, rank: int) -> Axis:
    """Where an axis lies when the last two are exchanged."""
    return {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis) if has_rows(axis) else axis


def _fused_attention(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 3, *node.outputs[:1])
    known = all(one in (0, NONE) for one in inputs)
    return [inputs[0] if known and inputs[0] == 0 else ANY, *[ANY] * len(node.outputs[1:])]


def _gemm(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 2)
    if inputs[0] == 0 and all(one == NONE for one in inputs[1:]):
        if node.integers.get("transA", [0]) != [0]:
            walk.tell(node, "sums over the batch")
            return [ANY]
        return [0 if not node.inputs[2:] or not node.inputs[2] or one_for_all(walk, node.inputs[2], 2) else ANY]
    return [NONE if all(one == NONE for one in inputs) else ANY]


def _of_images(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    trains = node.type == "BatchNormalization" and node.integers.get("training_mode", [0]) != [0]
    if trains and has_rows(inputs[0]):
        walk.tell(node, "normalizes over the batch")
    if node.type == "Resize" and len(node.inputs) > 3 and node.inputs[3] and "axes" not in node.integers:
        sizes = walk.shape(node.inputs[3])  # scales, of Upsample too, that change the batch give another number of rows
        if sizes is None or sizes[0] != SIZE or of_size(sizes[1:]):
            return [NONE if inputs[0] == NONE else ANY]
    over = all_counted(node.integers.get("axes", ()), walk.rank(node.inputs[0]))
    if over is None or 0 in over:
        return [NONE if inputs[0] == NONE else ANY]
    return [inputs[0] if inputs[0] in (0, NONE) else ANY]


def _grid_sample(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    return [inputs[0] if inputs[0] == inputs[1] and inputs[0] in (0, NONE) else ANY]


def _norm(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, begin = inputs[0], counted(node.integers.get("axis", [-1])[0], walk.rank(node.inputs[0]))
    if not has_rows(own):
        return [NONE if all(one == NONE for one in inputs) else ANY]
    if begin is not None and own >= begin:
        walk.tell(node, "normalizes over the batch")
        return [ANY]
    return [ANY if begin is None else aligned(walk, *_given(node, inputs))]


def _given(node: _core.Node, inputs: Sequence[Axis]) -> tuple[list[str], list[Axis]]:
    """The inputs that are not left out."""
    return [name for name in node.inputs if name], [one for name, one in zip(node.inputs, inputs, strict=True) if name]


def _skip_norm(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, rank = inputs[0], walk.rank(node.inputs[0])
    if has_rows(own) and (rank is None or own == rank - 1):
        return [ANY]
    return [NONE if all(one == NONE for one in inputs) else aligned(walk, *_given(node, inputs))]


def _softmax(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    own, flattens = inputs[0], walk.opset < 13
    over = counted(node.integers.get("axis", [1 if flattens else -1])[0], walk.rank(node.inputs[0]))
    if not has_rows(own):
        return [own]
    if over is not None and (own == over or (flattens and own >= over)):
        walk.tell(node, "normalizes over the batch")
    return [ANY if over is None else own]


def reduce(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    """ReduceMean and the like, ArgMax, ArgMin."""
    arg = node.type.startswith("Arg")
    axes = node.integers.get("axis", [0]) if arg else walk.given(node, "axes", 1)
    own, rank = inputs[0], walk.rank(node.inputs[0])
    keeps = node.integers.get("keepdims", [1]) != [0]
    if axes is None:
        return [NONE if own == NONE else ANY]
    if not axes and node.integers.get("noop_with_empty_axes", [0]) != [0]:
        return _same(walk, node, inputs)
    over = all_counted(axes, rank)
    if over is None:
        return [NONE if own == NONE else ANY]
    if rank is not None:
        walk.set_rank(node, rank if keeps else rank - len(over) if over else 0)
    dims = walk.dims.get(node.inputs[0])
    if own == NONE and dims is not None:
        kept = [1 if not over or place in over else size for place, size in enumerate(dims)]
        walk.set_dims(node, kept if keeps else [size for place, size in enumerate(kept) if over and place not in over])
    if not has_rows(own):
        return [own]
    if not over or own in over:
        walk.tell(node, "computes over the batch")
        return [NONE]
    return [own if keeps else own - sum(axis < own for axis in over)]


def _along(default: int, place: int | None, what: str) -> Rule:
    """Operators that compute along one axis."""

    def rule(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
        walk.same_rank(node)
        axes = node.integers.get("axis", [default]) if place is None else walk.given(node, "axis", place)
        own = inputs[0]
        over = counted(axes[0], walk.rank(node.inputs[0])) if axes else None
        if has_rows(own) and own == over:
            walk.tell(node, what)
        return [ANY if has_rows(own) and over is None else own] * len(node.outputs)

    return rule


def _mean_variance(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.same_rank(node)
    over = {counted(axis, walk.rank(node.inputs[0])) for axis in node.integers.get("axes", [0, 2, 3])}
    if has_rows(inputs[0]) and inputs[0] in over:
        walk.tell(node, "normalizes over the batch")
    return [ANY if has_rows(inputs[0]) and None in over else inputs[0]]


def _quantize(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    if has_rows(inputs[0]):
        walk.tell(node, "has one scale for all rows")
    if node.type == "DynamicQuantizeLinear":
        walk.set_rank(node, walk.rank(node.inputs[0]), *node.outputs[:1])
        walk.set_rank(node, 0, *node.outputs[1:])
        shared = ANY if inputs[0] is None else NONE
        return [inputs[0], shared, shared]
    return [ANY]


def _recurrent(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    if node.integers.get("layout", [0]) != [0]:
        return [ANY]
    if inputs[0] == 0:
        walk.tell(node, "goes along the batch as if it were time")
    # The input, its weights, the rows' lengths, their states, and weights again.
    expected = ((1,), (NONE,), (NONE,), (NONE,), (0, NONE), (1, NONE), (1, NONE), (NONE,))
    if not all(one in known for one, known in zip(inputs, expected, strict=False)):
        return [ANY]
    walk.set_rank(node, 4, *node.outputs[:1])
    walk.set_rank(node, 3, *filter(None, node.outputs[1:]))
    return [2, 1, 1]


def _finds(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    along = "axis" in node.integers
    if node.type == "NonMaxSuppression":
        walk.set_rank(node, 2)
    else:
        walk.set_rank(node, walk.rank(node.inputs[0]) if along else 1, *node.outputs[:1])
    if all(one == NONE for one in inputs):
        return [NONE] * len(node.outputs)
    own = node.integers.get("axis", [0])[0]
    return [FOUND if own == 0 else ANY]


def _places(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    walk.set_rank(node, 2)
    if has_rows(inputs[0]):
        walk.counted[node.outputs[0]] = 1
    return [NONE if inputs[0] == NONE else ANY]


def _choose(walk: Walk, node: _core.Node, _inputs: Sequence[Axis]) -> Sequence[Axis]:
    condition = walk.shape(node.inputs[0]) or ()
    if of_size(condition):
        walk.tell(node, "counts over the batch" if COUNT in condition else "chooses by the size of the batch")
    return [ANY]


def _scan(walk: Walk, node: _core.Node, inputs: Sequence[Axis]) -> Sequence[Axis]:
    scanned = node.integers.get("num_scan_inputs", [0])[0]
    states = len(inputs) - scanned
    axes = node.integers.get("scan_input_axes", [0] * scanned)
    for name, own, axis in zip(node.inputs[states:], inputs[states:], axes, strict=True):
        if states and has_rows(own) and counted(axis, walk.rank(name)) == own:
            walk.tell(node, "goes along the batch as if it were time")
            break
    return [ANY]


def _constant(_walk: Walk, _node: _core.Node, _inputs: Sequence[Axis]) -> Sequence[Axis]:
    return [NONE]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME.split(), _same),
    **dict.fromkeys(_TOGETHER.split(), _together),
    **dict.fromkeys(("MatMul", "MatMulInteger", "com.microsoft:FusedMatMul"), _matmul),
    **dict.fromkeys(_OF_IMAGES.split(), _of_images),
    **dict.fromkeys(_FUSED_ATTENTION.split(), _fused_attention),
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(_SOFTMAX, _softmax),
    **dict.fromkeys(QUANTIZING, _quantize),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), reduce),
    **dict.fromkeys(_FINDING, _finds),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), row_shapes.follow_squeeze),
    **dict.fromkeys(("Expand", "ConstantOfShape"), row_shapes.follow_filled),
    "NonZero": _places,
    "If": _choose,
    "Scan": _scan,
    "CumSum": _along(0, 1, "sums over the batch"),
    "TopK": _along(-1, None, "chooses within the batch"),
    "LpNormalization": _along(-1, None, "normalizes over the batch"),
    "MeanVarianceNormalization": _mean_variance,
    "com.microsoft:SkipLayerNormalization": _skip_norm,
    "GridSample": _grid_sample,
    "Gemm": _gemm,
    "Transpose": row_shapes.follow_transpose,
    "Reshape": row_shapes.follow_reshape,
    "Flatten": row_shapes.follow_flatten,
    "Concat": row_shapes.follow_concat,
    "Slice": row_shapes.follow_slice,
    "Gather": row_shapes.follow_gather,
    "Split": row_shapes.follow_split,
    "Shape": row_shapes.follow_shape_of,
    "Size": row_shapes.follow_size_of,
    "Range": row_shapes.follow_range,
    "Constant": _constant,
}
