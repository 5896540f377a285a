"""`ortmulti.fuse`: attention becomes ONNX Runtime's operators, if the outputs stay the same and runs become faster."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # noqa: F401  (it starts a thread when it is imported)
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Batching, FusedRun, fuse
from ortmulti.optimized import attention, fusion_proof
from ortmulti.optimized.attention import fuse_attention
from ortmulti.optimized.fuse import _fused
from ortmulti.optimized.graph import DOMAIN
from tests.support import command, encoders, onnx_models
from tests.support.encoders import HIDDEN, Encoder
from tests.support.processes import nothing_leaks

FORMS, MASKS = ["eager", "sdpa", "flat"], ["added", "guarded", "where", "none"]
RUN = FusedRun(1, 32, 32, 2.0, 1.0, 0.6)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fused model is."""
    monkeypatch.setattr(fusion_proof, "race", lambda *_, **__: (RUN,))


def operators(proto: onnx.ModelProto) -> dict[str, int]:
    return dict(Counter(node.op_type for node in proto.graph.node if node.domain == DOMAIN))


def difference(before: onnx.ModelProto, after: onnx.ModelProto, tolerance: float = 1e-4) -> float:
    one, other = (onnx_models.cpu_session(each.SerializeToString()) for each in (before, after))
    with one, other:
        return fusion_proof.prove(one._core, other._core, 126, tolerance, empty=True)


def interface(session: ortmulti.InferenceSession) -> list[Any]:
    return [(value.name, value.type, value.shape) for value in session.get_inputs() + session.get_outputs()]


def changed(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    change(copy)
    return copy


def node_of(proto: onnx.ModelProto, kind: str) -> onnx.NodeProto:
    return next(node for node in proto.graph.node if node.op_type == kind)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_found_in_every_form(form: str, mask: str, shared: bool, relative: bool) -> None:
    before = Encoder(form, mask, shared=shared, relative=relative).proto()
    after = changed(before, fuse_attention)
    assert operators(after) == {"Attention" if shared else "MultiHeadAttention": 2}
    assert {"Softmax", "IsNaN"}.isdisjoint(node.op_type for node in after.graph.node)
    assert 0 <= difference(before, after) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_what_gpus_get_has_more_fusions(form: str) -> None:
    before = Encoder(form, "guarded").proto()
    after = _fused(changed(before, lambda _: None))
    assert {"Attention": 2, "SkipLayerNormalization": 4}.items() <= operators(after).items()
    assert 0 <= difference(before, after) < 1e-5


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_forms_of_other_opsets(opset: int) -> None:
    before = Encoder("eager", "guarded").proto(18) if opset == 18 else _of_old_operators(opset)
    after = changed(before, fuse_attention)
    assert operators(after) == {"Attention": 2 if opset == 18 else 1}
    assert difference(before, after) < 1e-5


def _of_old_operators(opset: int) -> onnx.ModelProto:
    """Attention over floats, without a layer norm and without sizes as inputs of Unsqueeze."""
    encoder = Encoder("eager", "none")
    result = encoder._attention(encoder.add("Gather", encoder.weight(60, HIDDEN), "input_ids"), [])
    output = helper.make_tensor_value_info(result, TensorProto.FLOAT, ["batch", "sequence", HIDDEN])
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    graph = helper.make_graph(encoder._nodes, "attention", [ids], [output], encoder._weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _replace_number(proto: onnx.ModelProto, old: float, new: float) -> None:
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.dims == [] and numpy_helper.to_array(tensor) == old:
            tensor.CopyFrom(numpy_helper.from_array(np.float32(new), tensor.name))


def _softmax_over_queries(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type == "Softmax":
            node.attribute[0].i = 2


def _scale_after_the_mask(proto: onnx.ModelProto) -> None:
    for place, node in list(enumerate(proto.graph.node))[::-1]:
        if node.op_type == "Softmax":
            scaled = helper.make_node("Mul", [node.input[0], "half"], [f"scaled_{place}"])
            node.input[0] = scaled.output[0]
            proto.graph.node.insert(place, scaled)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))


@pytest.mark.parametrize(
    ("mask", "change"),
    [
        ("where", lambda proto: _replace_number(proto, encoders.LEAST, -10.0)),
        ("added", _softmax_over_queries),
        ("added", _scale_after_the_mask),
        ("guarded", lambda proto: setattr(node_of(proto, "IsNaN"), "op_type", "IsInf")),
    ],
)
def test_what_is_another_computation_stays(mask: str, change: Callable[[onnx.ModelProto], object]) -> None:
    before = changed(Encoder("eager", mask, layers=1).proto(), change)
    assert changed(before, lambda proto: fuse_attention(proto)) == before


@pytest.mark.parametrize("kind", ["Mul", "Add", "Concat", "Transpose"])
def test_long_chains_are_not_followed(kind: str) -> None:
    """Each node reads the one before twice: following both would take for ever."""
    before = Encoder("eager", "added", layers=1).proto()
    softmax = node_of(before, "Softmax")
    source = node_of(before, "Reshape").input[1] if kind == "Concat" else softmax.input[0]
    for place in range(1500):
        inputs = [source] if kind == "Transpose" else [source, source]
        attributes: dict[str, Any] = {"Transpose": {"perm": [0, 2, 1, 3]}, "Concat": {"axis": 0}}
        node = helper.make_node(kind, inputs, [f"chain_{place}"], **attributes.get(kind, {}))
        before.graph.node.insert(0, node)
        source = node.output[0]
    if kind == "Concat":
        node_of(before, "Reshape").input[1] = source
    else:
        softmax.input[0] = source
    assert changed(before, fuse_attention) == before


def test_names_that_are_taken_are_not_given_again() -> None:
    before = Encoder("eager", "added", layers=1).proto()
    for node in before.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("Softmax_", "ortmulti_attention_") for name in names]
    after = changed(before, fuse_attention)
    outputs = [name for node in after.graph.node for name in node.output]
    assert len(set(outputs)) == len(outputs)
    assert difference(before, after) < 1e-5


def test_what_others_read_stays() -> None:
    """An output of the model, and a branch of a condition."""
    before = Encoder("eager", "added", layers=1).proto()
    shares, scores = node_of(before, "Softmax").output[0], node_of(before, "Softmax").input[0]
    one = helper.make_graph([helper.make_node("ReduceMax", [scores], ["a"], keepdims=0)], "one", [], [_number("a")])
    two = helper.make_graph([helper.make_node("ReduceMin", [scores], ["b"], keepdims=0)], "two", [], [_number("b")])
    before.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    before.graph.node.append(helper.make_node("If", ["yes"], ["largest"], then_branch=one, else_branch=two))
    before.graph.output.extend([_number("largest"), helper.make_tensor_value_info(shares, TensorProto.FLOAT, None)])
    after = changed(before, fuse_attention)
    assert operators(after) == {"Attention": 1}
    assert difference(before, after) < 1e-5


def _number(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [])


@pytest.mark.usefixtures("faster")
def test_the_new_file_has_the_same_inputs_and_outputs_and_can_be_padded(tmp_path: Path) -> None:
    model, to = encoders.write(tmp_path / "model.onnx"), tmp_path / "fused.onnx"
    with nothing_leaks():
        made = fuse(model, to, "cpu")
    assert (made.path, made.device, made.fused, made.runs) == (str(to), "cpu", {"Attention": 2}, (RUN,))
    assert made.nodes == (len(onnx.load(model).graph.node), len(onnx.load(to).graph.node))
    assert made.nodes[1] < made.nodes[0]
    assert 0 < made.difference < made.tolerance == 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused.onnx", "model.onnx"]
    with ortmulti.InferenceSession(model) as one, ortmulti.InferenceSession(to) as other:
        assert interface(one) == interface(other)
    batching = Batching(8, pad={"input_ids": 0, "attention_mask": 0}, mask="attention_mask")
    ids = {"input_ids": np.ones((1, 5), np.int64)}
    with ortmulti.load(to, "cpu", batching=batching) as pool, ortmulti.InferenceSession(model) as session:
        [found], [expected] = (
            pool.run(None, ids),
            session.run(None, ids | {"attention_mask": np.ones((1, 5), np.int64)}),
        )
        assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.usefixtures("faster")
def test_external_data_stays_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    model, to = tmp_path / "old" / "model.onnx", tmp_path / "fused.onnx"
    onnx.save(Encoder("sdpa", "guarded").proto(), model, save_as_external_data=True, location="w", size_threshold=1024)
    fuse(model, to, "cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fused.onnx", "fused.onnx.data", "old"]
    (tmp_path / "old" / "w").unlink()
    ortmulti.InferenceSession(to, providers=["CPUExecutionProvider"]).close()


@pytest.mark.usefixtures("faster")
def test_more_weights_than_one_file_holds_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortmulti.optimized.fuse._INLINE", 1000)
    fuse(encoders.write(tmp_path / "model.onnx"), tmp_path / "fused.onnx", "cpu", precision="fp16")
    assert (tmp_path / "fused.onnx.data").stat().st_size > 1000
    ortmulti.InferenceSession(tmp_path / "fused.onnx", providers=["CPUExecutionProvider"]).close()


@pytest.mark.usefixtures("faster")
def test_half_precision_is_chosen(tmp_path: Path) -> None:
    path = list(sys.path)
    model, to = encoders.write(tmp_path / "model.onnx"), tmp_path / "fused.onnx"
    made = fuse(model, to, "cpu", precision="fp16")
    assert 1e-6 < made.difference < made.tolerance == 0.02
    proto = onnx.load(to)
    assert {tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) == 2} == {TensorProto.FLOAT16}
    assert proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert sys.path == path
    again = fuse(to, tmp_path / "again.onnx", "cpu", precision="fp16")
    assert again.tolerance == 0.02


def refused(
    tmp_path: Path, match: str, model: str, error: type[Exception] = ortmulti.NotOptimizable, **kw: Any
) -> None:
    before = sorted(tmp_path.iterdir())
    with nothing_leaks(), pytest.raises(error, match=match):
        fuse(model, tmp_path / "fused.onnx", "cpu", **kw)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_not_faster_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_proof, "FASTER", 0.0)
    monkeypatch.setattr(fusion_proof, "_SECONDS", 0.0)
    times = r"not faster on this device \(1 x 32 tokens: \S+ ms before, \S+ ms after, 1 x 128 .*16 x 64 .*\)"
    match = f"no fused model is kept: with fused operators, .*{times}"
    refused(tmp_path, match, encoders.write(tmp_path / "model.onnx"))


def test_runs_of_both_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_proof, "FASTER", float("inf"))
    monkeypatch.setattr(fusion_proof, "_SECONDS", 0.0)
    with onnx_models.cpu_session(Encoder("eager", "added").proto().SerializeToString()) as session:
        runs = fusion_proof.race(session._core, session._core)
    assert [(run.rows, run.tokens) for run in runs] == list(fusion_proof.SHAPES)
    assert all(run.before > 0 and run.after > 0 for run in runs)


@pytest.mark.parametrize(
    ("after", "most", "sure"), [(0.9, 1.1, "surely "), (0.98, 0.99, ""), (1.2, 1.3, ""), (0.5, 0.6, "everywhere ")]
)
def test_one_is_kept_only_if_it_is_surely_faster(
    monkeypatch: pytest.MonkeyPatch, after: float, most: float, sure: str
) -> None:
    found = [FusedRun(1, 32, 32, 1.0, 0.5, 0.6), FusedRun(1, 32, 32, 1.0, after, most)]
    if sure == "everywhere ":
        monkeypatch.setattr(
            fusion_proof, "_timed", lambda *given: FusedRun(1, 32, 32, 1.0, 1.2, 1.3) if given[3] > 1 else found[-1]
        )
    else:
        monkeypatch.setattr(fusion_proof, "_timed", lambda *_: found[-1])
    with onnx_models.cpu_session(Encoder("eager", "added").proto().SerializeToString()) as session:
        with pytest.raises(ortmulti.NotOptimizable, match=f"it is not {sure}faster"):
            fusion_proof.race(session._core, session._core)
        monkeypatch.setattr(fusion_proof, "_timed", lambda *_: found[-1])
        found.pop()
        assert fusion_proof.race(session._core, session._core) == tuple(found * 3)


def _another_scale(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "scale":
                attribute.f *= 1.5


def _without_bias(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type == "Attention":
            node.input[5] = ""


def _without_left_masks(proto: onnx.ModelProto) -> None:
    """Masks that end the row alone are respected, as by ONNX Runtime's mask index."""
    mask = [node for node in proto.graph.node if "attention_mask" in node.input]
    for node in proto.graph.node:
        if node in mask:
            node.input[list(node.input).index("attention_mask")] = "ends"
    steps = helper.make_node("CumSum", ["attention_mask", "axis"], ["ends_"], reverse=1)
    proto.graph.node.insert(0, helper.make_node("Sign", ["ends_"], ["ends"]))
    proto.graph.node.insert(0, steps)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(1), "axis"))


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("wrong", [_another_scale, _without_bias, _without_left_masks])
def test_another_computation_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[onnx.ModelProto], object]
) -> None:
    def fuse_wrongly(proto: onnx.ModelProto) -> int:
        found = fuse_attention(proto)
        wrong(proto)
        return found

    monkeypatch.setattr(attention, "fuse_attention", fuse_wrongly)
    model = encoders.write(tmp_path / "model.onnx", "sdpa", "added")
    refused(
        tmp_path,
        "fused operators, it (computes another 'last_hidden_state' for .* is rounding|has other inputs or outputs)",
        model,
    )


@pytest.mark.usefixtures("faster")
def test_another_interface_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(proto: onnx.ModelProto) -> int:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "other"
        return 1

    monkeypatch.setattr(attention, "fuse_attention", rename)
    refused(tmp_path, "other inputs or outputs", encoders.write(tmp_path / "model.onnx"))


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    refused(
        tmp_path,
        "with fused operators, no attention is found: ",
        str(path),
    )


def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoders.write(tmp_path / "model.onnx")
    refused(tmp_path, "precision is 'fp32' or 'fp16'", model, ortmulti.InvalidArgument, precision="int8")
    (tmp_path / "fused.onnx.data").touch()
    refused(tmp_path, "'.*fused.onnx.data' is there already", model, ortmulti.InvalidArgument)
    (tmp_path / "fused.onnx.data").unlink()
    with pytest.raises(ortmulti.InvalidArgument, match="takes the path"):
        fuse("https://example.org/model.onnx", tmp_path / "fused.onnx")
    with pytest.raises(ortmulti.Error, match="cannot be written"):
        fuse(model, tmp_path / "none" / "fused.onnx", "cpu")
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(tmp_path, r"needs onnx .*ortmulti\[models\]", model, ortmulti.LibraryError)


@pytest.mark.usefixtures("faster")
def test_the_command(tmp_path: Path) -> None:
    model = encoders.write(tmp_path / "model.onnx")
    shown = command.invoke("fuse", model, tmp_path / "one.onnx", "--device", "cpu")
    assert (shown.returncode, "2 Attention" in shown.stdout, "1 x 32" in shown.stdout) == (0, True, True)
    shown = command.invoke("fuse", model, tmp_path / "two.onnx", "--device", "cpu", "--json")
    assert json.loads(shown.stdout)["fused"]["Attention"] == 2
    assert command.invoke("fuse", model, tmp_path / "two.onnx").returncode == 1
    assert command.invoke("fuse", model, tmp_path / "three.onnx", "--precision", "int8").returncode == 2
