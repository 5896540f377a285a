"""Encoders without padding: real tokens alone are computed, whatever the mask, and the outputs stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmulti.errors import NotOptimizable
from ortmulti.optimized.attention import fuse_attention
from ortmulti.optimized.fuse import _halved
from ortmulti.optimized.packing import remove_padding
from ortmulti.text.pooling import add_pooling
from tests.support import onnx_models, packed_operators
from tests.support.encoders import HIDDEN, Encoder

MASKS = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
        [1, 0, 0, 1, 1, 0, 1],
        [0, 0, 0, 1, 0, 0, 0],
    ]
)
FEED = {"input_ids": np.random.default_rng(0).integers(60, size=MASKS.shape), "attention_mask": MASKS}


def pooled(encoder: Encoder, pooling: Any = "mean", opset: int = 17) -> onnx.ModelProto:
    model = encoder.proto(opset)
    add_pooling(model, "last_hidden_state", pooling, "sentence_embedding")
    return model


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def packed(model: onnx.ModelProto) -> onnx.ModelProto:
    made = copied(model)
    found = fuse_attention(made)
    assert remove_padding(made) == found
    return made


def answer(model: onnx.ModelProto, feed: dict[str, Any] = FEED) -> Any:
    with onnx_models.cpu_session(model.SerializeToString()) as session:
        [found] = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
        return found


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mask", ["added", "guarded", "where"])
@pytest.mark.parametrize("form", ["eager", "sdpa", "flat"])
def test_the_same_vectors_for_every_mask(form: str, mask: str, shared: bool) -> None:
    before = pooled(Encoder(form, mask, shared=shared))
    after = packed(before)
    kinds = Counter(node.op_type for node in after.graph.node)
    attention = "PackedAttention" if shared else "PackedMultiHeadAttention"
    assert (kinds[attention], kinds["RemovePadding"], kinds["Compress"]) == (2, 1, 1)
    [found] = packed_operators.run(after, FEED)
    assert np.allclose(found, answer(before), atol=2e-6)


def test_each_layer_has_real_tokens_alone() -> None:
    after = packed(pooled(Encoder("sdpa", "guarded")))
    names = [node.output[0] for node in after.graph.node if node.op_type == "LayerNormalization"]
    after.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    shapes = [one.shape for one in packed_operators.run(after, FEED)[1:]]
    assert shapes == [(MASKS.sum(), HIDDEN)] * 4


@pytest.mark.parametrize("opset", [13, 14, 18])
def test_norms_that_are_written_out(opset: int) -> None:
    """Exporters wrote a layer norm as a mean, a difference and so on before opset 17."""

    class Written(Encoder):
        def _norm(self, x: str) -> str:
            axes = {"axes": [-1]} if opset < 18 else {}
            given = [] if axes else [self.sizes(-1)]
            apart = self.add("Sub", x, self.add("ReduceMean", x, *given, **axes))
            square = self.add("ReduceMean", self.add("Pow", apart, self.constant(2)), *given, **axes)
            root = self.add("Sqrt", self.add("Add", square, self.constant(1e-5)))
            return self.add("Add", self.add("Mul", self.weight(HIDDEN), self.add("Div", apart, root)), self.weight(1))

    before = pooled(Written("eager", "added"), opset=opset)
    [found] = packed_operators.run(packed(before), FEED)
    assert np.allclose(found, answer(before), atol=2e-6)


def test_in_half_precision() -> None:
    before = pooled(Encoder("sdpa", "guarded"))
    after = _halved(packed(before))
    onnx.checker.check_model(after, full_check=False)
    [marks] = [node for node in after.graph.node if node.op_type == "RemovePadding"]
    assert len(marks.input) == 2
    [found] = packed_operators.run(after, FEED)
    assert found.dtype == np.float32
    assert np.allclose(found, answer(before), atol=2e-2)


def _relative(proto: onnx.ModelProto) -> None:
    """The bias reads the token ids."""
    for node in proto.graph.node:
        if node.op_type == "Attention":
            node.input[5] = "of_ids"
    proto.graph.node.insert(0, helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT))
    proto.graph.node.insert(1, helper.make_node("Unsqueeze", ["ids", "axes"], ["of_ids"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "axes"))


def _between_tokens(proto: onnx.ModelProto) -> None:
    """The second layer's attention reads what another operator made of several tokens."""
    second = [node for node in proto.graph.node if node.op_type == "Attention"][1]
    place = list(proto.graph.node).index(second)
    proto.graph.node.insert(place, helper.make_node("CumSum", [second.input[0], "one"], ["sums"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    second.input[0] = "sums"


@pytest.mark.parametrize(
    ("mask", "change", "why"),
    [
        ("none", lambda _: None, "not decided by a mask alone"),
        ("added", _relative, "not decided by a mask alone"),
        ("added", _between_tokens, "1 of 2 operators of attention need padding"),
    ],
)
def test_other_computations_are_refused(mask: str, change: Callable[[onnx.ModelProto], object], why: str) -> None:
    model = Encoder("eager", mask).proto()
    if mask != "none":
        model = pooled(Encoder("eager", mask))
    else:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    fuse_attention(model)
    change(model)
    with pytest.raises(NotOptimizable, match=why):
        remove_padding(model)


def test_outputs_of_each_token_are_refused() -> None:
    model = Encoder("eager", "added").proto()
    fuse_attention(model)
    with pytest.raises(NotOptimizable, match="output 'last_hidden_state' has an element for each token"):
        remove_padding(model)
    with pytest.raises(NotOptimizable, match="no attention"):
        remove_padding(pooled(Encoder("eager", "added")))
