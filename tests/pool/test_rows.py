"""Which outputs have a row for each row of the inputs: what the graph shows, what runs show, and what a pool does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import Batching, InvalidArgument, Model
from ortmulti.pool.rows import Rows, RowVerdict
from tests.support import onnx_models
from tests.support.command import invoke
from tests.support.onnx_models import with_weights as model

RANDOM = np.random.default_rng(0)
W84 = RANDOM.standard_normal((8, 4)).astype(np.float32)
CONSTANTS = {
    "last": np.array([-1]),
    "fours": np.array([-1, 4]),
    "zero": np.array([0]),
    "scalar": np.array(0),
    "one": np.array([1]),
    "two": np.array([2]),
    "eight": np.array([8]),
    "both": np.array([1, 0]),
    "pads": np.array([0, 0, 1, 0]),
    "halves": np.float32(0.5),
    "nothing": np.float32(0),
    "many": RANDOM.standard_normal((64, 8)).astype(np.float32),
    "four": RANDOM.standard_normal((4, 8)).astype(np.float32),
    "row": RANDOM.standard_normal((1, 8)).astype(np.float32),
    "w": W84,
}


def judge(made: bytes, batching: Batching, tries: Any) -> RowVerdict:
    with onnx_models.cpu_session(made) as session:
        return Rows(Model(made), lambda: session, session.run).of_batches(batching, tries)


def case(body: str, inputs: str = "float[n,8] x", outputs: str = "float[] y", opset: int = 17) -> bytes:
    used = {
        name: value for name, value in CONSTANTS.items() if any(f"{c}{name}{d}" in body for c in " (" for d in ",)")
    }
    return model(f"({inputs}) => ({outputs}) {{ {body} }}", opset, **used)


# What the graph shows, and why it is so: no run is needed.
SHOWN = {
    "Transpose": ("y = Transpose(x)", "has the rows along dimension 1, not 0"),
    "weights": ("y = Identity(w)\n z = Neg(x)", "does not depend on the rows of the inputs"),
    "total": ("y = ReduceSum <keepdims = 0> (x)", "has no rows: ReduceSum 'y' computes over the batch"),
    "mean": (
        "m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)",
        "depends on the other rows: ReduceMean 'm' computes over",
    ),
    "Shape": ("s = Shape(x)\n y = Cast <to = 1> (s)", "does not depend on the rows"),
    "Unique": ("y = Unique(x)", "has as many entries as Unique 'y' finds"),
    "Compress": (
        "s = ReduceSum <keepdims = 0> (x, one)\n c = Greater(s, halves)\n f = Compress <axis = 0> (x, c)\n y = Neg(f)",
        "has as many entries as Compress 'f' finds",
    ),
    "chosen": (
        "s = ReduceSum <keepdims = 0> (x, one)\n c = Greater(s, halves)\n f = Compress <axis = 0> (x, c)\n"
        "y = Gather <axis = 1> (f, both)",
        "has as many entries as Compress 'f' finds",
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_graph_shows_outputs_without_rows(name: str) -> None:
    body, reason = SHOWN[name]
    found = judge(case(body), Batching(4), "none").outputs["y"]
    assert found.verdict == "none"
    assert reason in found.reason


# Each looks like rows at one place of the graph, and is none: rows change with their place, others, or their number.
NOT_SHOWN = {
    "all elements": "y = Reshape(x, last)",
    "halves of rows": "y = Reshape(x, fours)",
    "columns as rows": "t = Transpose(x)\n s = Shape(x)\n y = Reshape(t, s)",
    "a weight of four rows": "y = Add(x, four)",
    "its place among weights": "s = Shape <end = 1> (x)\n p = Slice(many, zero, s)\n y = Add(x, p)",
    "its number": (
        "s = Shape <end = 1> (x)\n n = Squeeze(s)\n z = Constant <value = int64 {0}> ()\n"
        "e = Constant <value = int64 {1}> ()\n r = Range(z, n, e)\n g = Gather(many, r)\n y = Mul(x, g)"
    ),
    "a triangle": "y = Trilu(x)",
    "the first row for all": "f = Gather(x, scalar)\n y = Sub(x, f)",
    "bounds of the first row": "f = Gather(x, scalar)\n m = ReduceMax <keepdims = 0, axes = [0]> (f)\n y = Clip(x, m)",
    "rows in front": "y = Concat <axis = 0> (row, x)",
    "rows behind": "y = Pad(x, pads)",
    "the last row left out": "e = Constant <value = int64[1] {-1}> ()\n y = Slice(x, zero, e, zero)",
    "larger dimensions": "u = Unsqueeze(x, one)\n t = Transpose <perm = [2, 0, 1]> (u)\n y = Flatten <axis = 2> (t)",
    "the batch's size": "s = Shape(x)\n p = ReduceProd <keepdims = 0> (s)\n f = Cast <to = 1> (p)\n y = Mul(x, f)",
    "expanded weights": (
        "s = Shape <end = 1> (x)\n h = Concat <axis = 0> (s, eight)\n e = Expand(four, h)\n y = Add(x, e)"
    ),
    "a branch": (
        "s = ReduceSum <keepdims = 0> (row)\n c = Greater(s, halves)\n"
        "y = If (c) <then_branch = g () => (float[] o) { m = CumSum(x, scalar)\n o = Sub(x, m) },"
        "else_branch = h () => (float[] o) { a = CumSum(x, scalar)\n o = Add(x, a) }>"
    ),
    "places of maxima": (
        "u = Unsqueeze(x, one)\n m, i = MaxPool <kernel_shape = [2]> (u)\n f = Cast <to = 1> (i)\n y = Squeeze(f, one)"
    ),
    "rows as kernels": "u = Unsqueeze(x, one)\n c = Conv(u, u)\n y = Squeeze(c)",
    "no dimension for one row": "y = Squeeze(x)",
    "pairs": "t = Transpose(x)\n y = MatMul(x, t)",
}


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_rows_are_not_seen_where_there_are_none_and_runs_show_that(name: str) -> None:
    made = case(NOT_SHOWN[name])
    assert judge(made, Batching(8), "none").outputs["y"].verdict == "unknown"
    found = judge(made, Batching(8), "open").outputs["y"]
    assert found.verdict == "none"
    assert found.reason


# The graph shows rows, or runs do.
IN_ROWS = {
    "product": ("y = MatMul(x, w)", "rows"),
    "a weight for all rows": ("y = Add(x, row)", "rows"),
    "gathered for all rows": ("g = Gather(many, zero)\n y = Mul(x, g)", "rows"),
    "a mean of weights": ("m = ReduceMean(four)\n y = Add(x, m)", "rows"),
    "columns": ("t = Transpose(x)\n n = Neg(t)\n y = Transpose(n)", "rows"),
    "in two steps": (
        "a = Reshape(x, fours)\n e = Constant <value = int64[2] {-1, 8}> ()\n y = Reshape(a, e)",
        "unknown",
    ),
    "Einsum": ('y = Einsum <equation = "ij->i"> (x)', "unknown"),
    "classes": ("a = ArgMax <axis = 1> (x)\n y = Cast <to = 1> (a)", "rows"),
}


@pytest.mark.parametrize("name", IN_ROWS)
def test_rows_are_found(name: str) -> None:
    body, shown = IN_ROWS[name]
    assert judge(case(body), Batching(8), "none").outputs["y"].verdict == shown
    found = judge(case(body), Batching(8), "all").outputs["y"]
    assert found.verdict == "rows", found.reason


def test_a_wrong_declaration_refuses_no_rows() -> None:
    # Exporters write the size of their example, and name each tensor's batch anew.
    einsum = 'y = Einsum <equation = "ij->ij"> (x)'
    for declared in ("float[1,8] y", "float[unk__331,8] y", "float[k,n] y"):
        assert judge(case(einsum, outputs=declared), Batching(4), "open").outputs["y"].verdict == "rows"
        assert judge(case("y = Neg(x)", outputs=declared), Batching(4), "none").outputs["y"].verdict == "rows"
    computed = "s = Shape(x)\n q = Mul(s, one)\n y = Reshape(x, q)"  # of which ONNX Runtime infers no shape
    for declared, why in (("float[1,8] y", "fixed size 1"), ("float[k,n] y", "rows' dimension 'n' at place 1")):
        assert judge(case(computed, outputs=declared), Batching(4), "open").outputs["y"].verdict == "rows"
        found = judge(case(computed, outputs=declared), Batching(4), "none").outputs["y"]
        assert found.verdict == "unknown"
        assert why in found.reason


def test_an_output_without_the_axis_has_no_rows() -> None:
    body = 'y = Einsum <equation = "ij->"> (x)'
    assert "has the shape ()" in judge(case(body, outputs="float y"), Batching(4), "open").outputs["y"].reason
    body = 'y = Einsum <equation = "ij->j"> (x)'
    found = judge(case(body, "float[8,n] x", "float[k] y"), Batching(4, axis=1), "none").outputs["y"]
    assert found.reason == "has one dimension, and so no rows along dimension 1"


def test_another_axis_is_tried_too() -> None:
    for equation, verdict in (("ij->ij", "rows"), ("ij->ji", "none")):
        made = case(f'y = Einsum <equation = "{equation}"> (x)', "float[8,n] x")
        assert judge(made, Batching(4, axis=1), "open").outputs["y"].verdict == verdict


def test_a_model_of_one_size_is_tried_with_it() -> None:
    batching = Batching(4, sizes=[4])
    assert judge(case("y = Neg(x)", "float[4,8] x"), batching, "open").outputs["y"].verdict == "rows"
    made = case("y = Add(x, four)\n z = Add(x, row)", "float[4,8] x", "float[4,8] y, float[4,8] z")
    found = judge(made, batching, "open")
    assert found.outputs["z"].verdict == "rows"
    assert "beside other requests" in found.outputs["y"].reason
    cumulated = case("y = CumSum(x, scalar)", "float[4,8] x")
    assert judge(cumulated, batching, "open").outputs["y"].verdict == "none"


def test_random_numbers_are_named_and_not_compared() -> None:
    made = case("r = RandomNormalLike(x)\n y = Add(x, r)\n z = Transpose(r)", outputs="float[n,8] y, float[] z")
    found = judge(made, Batching(4), "open")
    assert found.outputs["y"].verdict == "rows"
    assert found.outputs["z"].verdict == "none"
    assert list(found.random) == ["RandomNormalLike 'r'"]
    # An operator that makes none is compared, though the model has one.
    mixed = case('r = RandomNormalLike(x)\n t = Einsum <equation = "ij->j"> (x)\n y = Sub(x, t)\n z = Add(x, r)')
    assert judge(mixed, Batching(4), "open").outputs["y"].verdict == "none"


def test_what_no_random_inputs_run_stays_open() -> None:
    # Each row must have 13 numbers, which the declaration does not say.
    made = case("w13 = Constant <value = int64[2] {-1, 13}> ()\n y = Reshape(x, w13)", "float[n,k] x")
    found = judge(made, Batching(4), "open").outputs["y"]
    assert found.verdict == "unknown"
    assert "no random inputs run" in found.reason
    made = case("w13 = Constant <value = int64[2] {-1, 13}> ()\n y = Reshape(x, w13)", "float[n,k] x", "float[1,13] y")
    assert judge(made, Batching(4), "open").outputs["y"].verdict == "none"


def test_trials_keep_to_a_small_vocabulary() -> None:
    made = model('(int64[n,3] x) => (float[] y) { g = Gather(w, x)\n y = Einsum <equation = "ijk->ij"> (g) }', w=W84)
    assert judge(made, Batching(8), "open").outputs["y"].verdict == "rows"


def test_a_joint_run_that_fails_shows_no_rows() -> None:
    made = case("e = Constant <value = int64[2] {1, 8}> ()\n y = Reshape(x, e)")
    found = judge(made, Batching(4), "open").outputs["y"]
    assert found.verdict == "none"
    assert "a run of 2 rows fails" in found.reason


# A sequence is made of the rows, and joined again: the graph shows nothing behind it.
PACKED = "q = SplitToSequence <axis = 0> ({0})\n y = ConcatFromSequence <axis = 0> (q)"
FLOAT_IDS = "i = Cast <to = 7> (x)\n g = Gather({0}, i)\n" + PACKED.format("g")


@pytest.mark.parametrize("vocabulary", ["four", "w", "row"])
@pytest.mark.parametrize("sizes", [(), (8,)])
def test_a_joint_run_of_rows_that_fail_alone_shows_nothing(vocabulary: str, sizes: tuple[int, ...]) -> None:
    made = case(FLOAT_IDS.format(vocabulary), "float[8] x" if sizes else "float[n] x")
    found = judge(made, Batching(8, sizes=sizes), "open").outputs["y"]
    assert found.verdict == ("unknown" if vocabulary == "row" else "rows"), found.reason


def test_ids_of_rows_are_tried_with_zeros() -> None:
    made = case("y = Gather <axis = 0> (x, k)", "float[n,8] x, int64[n] k")
    found = judge(made, Batching(8), "open").outputs["y"]
    assert found.verdict == "none"
    assert "from the answer to the request alone" in found.reason or "beside other requests" in found.reason


def test_a_run_of_as_many_rows_as_are_joined_is_tried() -> None:
    # Places end after 64 rows.
    body = "s = Shape <end = 1> (x)\n p = Slice(many, zero, s)\n z = Mul(p, nothing)\n r = Add(x, z)\n" + PACKED.format(
        "r"
    )
    for most, verdict in ((64, "rows"), (65, "none"), (256, "none")):
        assert judge(case(body), Batching(most), "open").outputs["y"].verdict == verdict


# One row that is not a number makes others so.
POISONED = {
    "a diagonal of all pairs": (
        "t = Transpose(x)\n p = MatMul(x, t)\n e = EyeLike(p)\n d = Mul(p, e)\n y = ReduceSum <keepdims = 0> (d, one)"
    ),
    "a product with ones on the diagonal": (
        "t = Transpose(x)\n p = MatMul(x, t)\n e = EyeLike <dtype = 1> (p)\n y = MatMul(e, x)"
    ),
}


@pytest.mark.parametrize("name", POISONED)
@pytest.mark.parametrize("sizes", [(), (4,)])
def test_a_row_that_is_not_a_number_leaves_others_alone(name: str, sizes: tuple[int, ...]) -> None:
    made = case(POISONED[name], "float[4,8] x" if sizes else "float[n,8] x")
    assert judge(made, Batching(4, sizes=sizes), "open").outputs["y"].verdict == "none"


@pytest.mark.parametrize("name", ["Neg", "Relu", "Sign"])
def test_a_row_that_is_not_a_number_may_have_any_answer(name: str) -> None:
    made = case(f"r = {name}(x)\n" + PACKED.format("r"))
    assert judge(made, Batching(4), "open").outputs["y"].verdict == "rows"


def test_an_output_may_have_rows_though_it_is_declared_without_dimensions() -> None:
    assert judge(case("y = Relu(x)", outputs="float y"), Batching(4), "none").outputs["y"].verdict == "rows"
    made = case('y = Einsum <equation = "ij->ij"> (x)', outputs="float y")
    assert judge(made, Batching(4), "open").outputs["y"].verdict == "rows"
    with ortmulti.load(made, "cpu", batching=Batching(3, max_delay_ms=60_000)) as pool:
        for future in [pool.submit({"x": numbers(1, 8)}) for _ in range(3)]:
            np.testing.assert_array_equal(future.result()[0], numbers(1, 8))


def test_nothing_waits_for_a_session_where_the_graph_decides() -> None:
    def session() -> None:
        raise AssertionError("a session was asked for")

    made = case("y = Neg(x)\n z = Transpose(x)", outputs="float[] y, float[] z")
    found = Rows(Model(made), session, lambda _names, _feed: [], known=False).of_batches(Batching(4))
    assert {name: one.verdict for name, one in found.outputs.items()} == {"y": "rows", "z": "none"}


def test_trials_are_few_runs_of_few_rows() -> None:
    made = case('y = Einsum <equation = "ij->ij"> (x)')
    with onnx_models.cpu_session(made) as session:
        runs: list[int] = []

        def run(names: Any, feed: Any) -> Any:
            runs.append(len(feed["x"]))
            return session.run(names, feed)

        assert Rows(Model(made), lambda: session, run).of_batches(Batching(1000)).outputs["y"].verdict == "rows"
    assert {1, 2, 3} <= set(runs)
    assert sorted(runs)[-2:] == [32, 256]  # one run is larger
    assert len(runs) < 30


# What a pool does with it.


def nms() -> bytes:
    """found [number, 3] of boxes [batch, 2, 4] and scores [batch, 1, 2]: entries of all images."""
    limits = [
        helper.make_tensor("most", TensorProto.INT64, [1], [9]),
        helper.make_tensor("iou", TensorProto.FLOAT, [1], [0.5]),
        helper.make_tensor("score", TensorProto.FLOAT, [1], [0.5]),
    ]
    return onnx_models.model(
        [helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["found"], name="nms")],
        [("boxes", TensorProto.FLOAT, ["batch", 2, 4]), ("scores", TensorProto.FLOAT, ["batch", 1, 2])],
        [("found", TensorProto.INT64, ["number", 3])],
        limits,
    ).SerializeToString()


def clip() -> bytes:
    """logits = images x texts."""
    return model(
        "(float[images,4] image, float[texts,4] text) => (float[images,texts] logits) {"
        "t = Transpose(text)\n logits = MatMul(image, t) }"
    )


FIXED = model("(float[n,4] x) => (float[n,4] p, float[4] limits) { p = Softmax(x)\n limits = Identity(w) }", w=W84[0])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


BOXES = np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
REQUESTS = {
    "nms": (nms(), [{"boxes": BOXES, "scores": np.full((1, 1, 2), score, np.float32)} for score in (0.9, 0.1)]),
    "clip": (clip(), [{"image": numbers(1, 4), "text": numbers(1, 4) + k} for k in range(3)]),
    "fixed": (FIXED, [{"x": numbers(1, 4) + k} for k in range(4)]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_joined_requests_get_the_answers_that_they_get_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    made, requests = REQUESTS[name]
    with onnx_models.cpu_session(made) as session:
        alone = [session.run(None, request) for request in requests]
    for sizes in ((), (4,)):
        with ortmulti.load(made, "cpu", batching=Batching(4, max_delay_ms=100, sizes=sizes)) as pool:
            for right, future in zip(alone, [pool.submit(request) for request in requests], strict=True):
                for one, other in zip(right, future.result(), strict=True):
                    np.testing.assert_allclose(other, one, rtol=1e-6)
            assert pool.stats().why_unbatched.startswith("output '")
    warnings = [record.getMessage() for record in caplog.records if record.name == "ortmulti"]
    assert len(warnings) == 2
    assert "run alone, not joined: output '" in warnings[0]
    assert not ortmulti.check_batching(made, Batching(4)).independent


def test_requests_for_outputs_with_rows_are_joined() -> None:
    with ortmulti.load(FIXED, "cpu", batching=Batching(4, max_delay_ms=60_000)) as pool:
        for future in [pool.submit(["p"], {"x": numbers(1, 4)}) for _ in range(4)]:
            assert future.result()[0].shape == (1, 4)
            assert future.timing is not None
            assert future.timing.batch_size == 4
        assert pool.run(["limits"], {"x": numbers(1, 4)})[0].shape == (4,)  # and waits for no others


def test_trust_tries_nothing_and_joins_all(caplog: pytest.LogCaptureFixture) -> None:
    made = case("m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)")
    with ortmulti.load(made, "cpu", batching=Batching(2, max_delay_ms=60_000, trust=True)) as pool:
        for future in [pool.submit({"x": numbers(1, 8) + k}) for k in range(2)]:
            assert np.abs(future.result()[0]).max() > 0.1
        assert pool.stats().audits == 0
    assert not [record for record in caplog.records if record.name == "ortmulti"]
    with pytest.raises(InvalidArgument, match="give one of them"):
        Batching(2, check=True, trust=True)
    with pytest.raises(ortmulti.errors.InvalidType, match="trust is True or False"):
        Batching(2, trust=1)


@pytest.mark.parametrize(
    ("body", "audits"), [("y = Neg(x)", 1), ('y = Einsum <equation = "ij->ij"> (x)', 3)], ids=["shown", "tried"]
)
def test_the_first_requests_are_a_trial_where_the_graph_shows_nothing(body: str, audits: int) -> None:
    with ortmulti.load(case(body), "cpu", batching=Batching(3, max_delay_ms=60_000)) as pool:
        for future in [pool.submit({"x": numbers(1, 8) + k}) for k in range(3)]:
            assert future.result()[0].shape == (1, 8)
        assert pool.stats().audits == audits


def test_random_numbers_elsewhere_are_no_reason_not_to_compare() -> None:
    body = "k = Cast <to = 7> (z)\n y = Gather <axis = 0> (x, k)\n u = RandomNormalLike(x)"
    made = case(body, "float[n,8] x, float[n] z", "float[n,8] y, float[n,8] u")
    with ortmulti.load(made, "cpu", batching=Batching(2, max_delay_ms=60_000)) as pool:
        given = [{"x": numbers(1, 8) + k, "z": np.zeros(1, np.float32)} for k in range(2)]
        for one, future in zip(given, [pool.submit(["y"], one) for one in given], strict=True):
            np.testing.assert_array_equal(future.result()[0], one["x"])


def test_of_random_numbers_only_shapes_are_compared() -> None:
    made = case("r = RandomNormalLike(x)\n y = Add(x, r)", outputs="float[n,8] y")
    with ortmulti.load(made, "cpu", batching=Batching(2, max_delay_ms=60_000)) as pool:
        for future in [pool.submit({"x": numbers(1, 8) + k}) for k in range(2)]:
            assert future.result()[0].shape == (1, 8)
        stats = pool.stats()
        assert (stats.audits > 0, stats.audit_differences, stats.why_unbatched) == (True, 0, "")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_load_that_checks_refuses_outputs_without_rows(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"(requests for some outputs run alone|get other answers): '"):
        ortmulti.load(REQUESTS[name][0], "cpu", batching=Batching(4, check=True))


def test_a_new_model_is_judged_before_it_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    with ortmulti.load(case("y = Neg(x)"), "cpu", batching=Batching(2, max_delay_ms=60_000)) as pool:
        pool.replace_model(case("m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)"))
        assert (pool.run({"x": numbers(1, 8)})[0] == 0).all()  # alone, at once
        assert "ReduceMean 'm'" in pool.stats().why_unbatched
        [warning] = [record for record in caplog.records if record.name == "ortmulti"]
        assert warning.levelno == logging.WARNING
    with ortmulti.load(case("y = Neg(x)"), "cpu", batching=Batching(2, check=True)) as pool:
        with pytest.raises(InvalidArgument, match="ReduceMean 'm'"):
            pool.replace_model(case("m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)"))
        assert (pool.run({"x": np.ones((1, 8), np.float32)})[0] == -1).all()


@pytest.mark.parametrize(
    ("inputs", "body", "why"),
    [
        ("float[n,8] x, float rate", "y = Mul(x, rate)", "input 'rate' is a scalar, without rows"),
        ("string[n] x", "y = Identity(x)", r"input 'x' is of type tensor\(string\)"),
        ("seq(float[n]) x", "y = SequenceLength(x)", r"input 'x' is of type seq\(tensor\(float\)\)"),
    ],
)
def test_inputs_that_can_never_be_joined_are_refused(inputs: str, body: str, why: str) -> None:
    made = case(body, inputs, "string[n] y" if "string" in inputs else "int64 y" if "seq" in inputs else "float[n,8] y")
    with pytest.raises(
        InvalidArgument, match=f"joins requests along dimension 0, but {why}.*load it without batching .batching=None"
    ):
        ortmulti.load(made, "cpu", batching=Batching(4))
    ortmulti.load(made, "cpu").close()


def test_a_table_is_refused_for_outputs_without_rows() -> None:
    x = numbers(20, 4)
    with ortmulti.load(clip(), "cpu") as pool:
        with pytest.raises(InvalidArgument, match=r"output 'logits' has the shape .* map_rows needs a row of output"):
            pool.map_rows({"image": x, "text": x})
        runs = pool.stats().devices[0].runs
        with pytest.raises(InvalidArgument, match="output 'logits'"):
            pool.map_rows(["logits"], {"image": x, "text": x})
        assert pool.stats().devices[0].runs == runs  # known from the first call
        pool.replace_model(
            model("(float[i,4] image, float[t,4] text) => (float[i,4] logits) { logits = Add(image, text) }"),
            same_interface=False,
        )
        np.testing.assert_array_equal(pool.map_rows({"image": x, "text": x})[0], 2 * x)
    with ortmulti.load(FIXED, "cpu") as pool:
        with pytest.raises(InvalidArgument, match="output 'limits' has no rows"):
            pool.map_rows({"x": x[:4]})
        assert pool.map_rows(["p"], {"x": x})[0].shape == (20, 4)
        assert pool.stats().devices[0].runs == 1


def test_a_table_may_have_rows_that_depend_on_each_other() -> None:
    with ortmulti.load(case("m = ReduceMean <axes = [0]> (x)\n y = Sub(x, m)"), "cpu") as pool:
        assert pool.map_rows({"x": numbers(20, 8)})[0].shape == (20, 8)


def test_inspect_says_what_is_known_of_each_output(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(FIXED)
    shown = " ".join(invoke("inspect", path).stdout.split())
    assert "Requests for 'p' and no other output can be joined along dimension 0" in shown
    assert "Requests for 'limits' run alone: output 'limits' has no rows" in shown
    path.write_bytes(clip())
    shown = " ".join(invoke("inspect", path).stdout.split())
    assert "It is open whether requests for 'logits' can be joined" in shown
    assert "--batching tries it" in shown
    tried = invoke("inspect", path, "--batching")
    assert tried.returncode == 1
    assert "get other answers" not in tried.stdout  # they run alone
    assert "Requests for 'logits' run alone: output 'logits' has the shape" in " ".join(tried.stdout.split())
    path.write_bytes(case("y = Identity(x)", "string[n] x", "string[n] y"))
    assert "Requests cannot be joined: batching joins" in " ".join(invoke("inspect", path).stdout.split())
    refused = " ".join(invoke("inspect", path, "--batching").stdout.split())
    assert refused.count("input 'x' is of type") == 1
    assert "samples" not in refused
