"""Sequences, maps and optionals, in and out of a run, beside onnxruntime's."""

from __future__ import annotations

import gc
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

import ortmulti
from tests.support import onnx_models
from tests.support.pools import in_threads
from tests.support.values import CPU, assert_same, check, mapping, model, one, optional, pair, same, sequence, tensor

# --- Sequences --------------------------------------------------------------------------------------------------------


any_shape = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)


@pytest.mark.parametrize("element", [*sorted(onnx_models.NUMERIC), TensorProto.STRING], ids=TensorProto.DataType.Name)
@hypothesis.settings(max_examples=20)
@hypothesis.given(data=st.data())
def test_lists_of_arrays_arrive_and_return_as_in_onnxruntime(element: int, data: st.DataObject) -> None:
    dtype = onnx_models.NUMERIC.get(element, np.dtype(object))
    each = hnp.arrays(dtype, any_shape, elements=any_text if element == TensorProto.STRING else None)
    arrays = [array.T if data.draw(st.booleans()) else array for array in data.draw(st.lists(each, max_size=5))]
    for type_ in (sequence(tensor(element)), optional(sequence(tensor(element)))):
        assert len(check(same(type_), arrays)) == len(arrays)


@pytest.mark.parametrize("element", [*sorted(onnx_models.NUMERIC), TensorProto.STRING], ids=TensorProto.DataType.Name)
def test_lists_that_are_empty_or_not_there_have_the_declared_type(element: int) -> None:
    assert check(same(sequence(tensor(element))), []) == []
    assert check(one("SequenceLength", sequence(tensor(element)), tensor(TensorProto.INT64)), []) == 0
    assert check(same(optional(sequence(tensor(element)))), None) is None


def test_sequences_that_a_model_makes_and_takes_apart() -> None:
    float32 = tensor(TensorProto.FLOAT)
    split = one("SplitToSequence", float32, sequence(float32), axis=0)
    assert len(check(split, np.arange(6, dtype=np.float32).reshape(3, 2))) == 3
    joined = one("ConcatFromSequence", sequence(float32), float32, axis=0)
    arrays = [np.full((n, 2), n, np.float32) for n in (1, 0, 3)]
    assert check(joined, arrays).shape == (4, 2)


def test_arrays_of_a_returned_list_are_the_callers_own() -> None:
    _, ours = pair(same(sequence(tensor(TensorProto.FLOAT))))
    x = np.arange(5, dtype=np.float32)
    [[first, second]] = ours.run(None, {"x": (x, x)})  # a tuple is taken as a list
    for array in (first, second):
        assert not np.shares_memory(array, x)
        assert array.flags.writeable
    first[...] = 7
    assert x.tolist() == second.tolist() == [0, 1, 2, 3, 4]


def test_arrays_of_a_returned_list_outlive_the_list_the_session_and_the_inputs() -> None:
    float32 = tensor(TensorProto.FLOAT)
    content = one("SplitToSequence", float32, sequence(float32), axis=0, keepdims=0)
    with ortmulti.InferenceSession(content, providers=[CPU]) as session:
        [arrays] = session.run(None, {"x": np.arange(4000, dtype=np.float32).reshape(4, 1000)})
        last = arrays[3]
    with ortmulti.InferenceSession(same(sequence(float32)), providers=[CPU]) as session:
        [[same_again]] = session.run(None, {"x": [np.arange(1000, dtype=np.float32)]})
    del arrays, session
    gc.collect()
    # What was freed would be given out again here.
    scratch = [np.full(1000, 9, np.float32) for _ in range(100)]
    assert last.tolist() == list(range(3000, 4000))
    assert same_again.tolist() == list(range(1000))
    assert len(scratch) == 100


def test_empty_lists_from_many_threads() -> None:
    _, ours = pair(same(sequence(tensor(TensorProto.FLOAT16))))
    assert in_threads(8, lambda _: [ours.run(None, {"x": []}) for _ in range(5)]) == [[[[]]] * 5] * 8


# --- Maps -------------------------------------------------------------------------------------------------------------

LABELS = {"classlabels_int64s": [30, -10, 20], "classlabels_strings": ["b", "", "é漢"]}


@pytest.mark.parametrize("labels", sorted(LABELS))
@pytest.mark.parametrize("shape", [(4, 3), (3,), (0, 3)])
def test_classifiers_return_dicts(labels: str, shape: tuple[int, ...]) -> None:
    key = TensorProto.INT64 if "int64" in labels else TensorProto.STRING
    content = one(
        "ZipMap",
        tensor(TensorProto.FLOAT),
        sequence(mapping(key, TensorProto.FLOAT)),
        domain="ai.onnx.ml",
        **{labels: LABELS[labels]},
    )
    scores = np.random.default_rng(1).random(shape, np.float32)
    result = check(content, scores)
    assert sum(map(len, result)) == scores.size


def vectorizer(key: int, value: int) -> bytes:
    vocabulary: dict[str, Any] = (
        {"string_vocabulary": ["b", "é", "a"]} if key == TensorProto.STRING else {"int64_vocabulary": [3, -1, 2]}
    )
    return one("DictVectorizer", mapping(key, value), tensor(value), domain="ai.onnx.ml", **vocabulary)


numbers = st.floats(width=32, allow_nan=False)


@hypothesis.given(st.dictionaries(st.sampled_from(["a", "b", "é", "not in it", ""]), numbers, min_size=1))
def test_dicts_of_text_arrive_as_in_onnxruntime(items: dict[str, float]) -> None:
    check(vectorizer(TensorProto.STRING, TensorProto.FLOAT), items)


@hypothesis.given(st.dictionaries(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([3, -1, 2]), numbers, min_size=1))
def test_dicts_of_integers_arrive_as_in_onnxruntime(items: dict[int, float]) -> None:
    check(vectorizer(TensorProto.INT64, TensorProto.FLOAT), items)
    check(vectorizer(TensorProto.INT64, TensorProto.FLOAT), {np.int64(k): np.float32(v) for k, v in items.items()})


@pytest.mark.parametrize(
    ("key", "value", "items", "expected"),
    [
        (TensorProto.STRING, TensorProto.INT64, {"a": -(2**63), "b": True}, [[1, 0, -(2**63)]]),
        (TensorProto.STRING, TensorProto.DOUBLE, {"é": 1e300}, [[0, 1e300, 0]]),
        (TensorProto.INT64, TensorProto.DOUBLE, {3: 2, 4: 5}, [[2, 0, 0]]),
        (TensorProto.INT64, TensorProto.STRING, {2: "zwei", -1: "é漢"}, [["", "é漢", "zwei"]]),
    ],
)
def test_dicts_that_onnxruntime_makes_of_float_alone(key: int, value: int, items: Any, expected: Any) -> None:
    theirs, ours = pair(vectorizer(key, value))
    [result] = ours.run(None, {"x": items})
    assert result.tolist() == expected
    with pytest.raises(Exception, match="Unexpected"):
        theirs.run(None, {"x": items})


@pytest.mark.parametrize("key", [TensorProto.INT64, TensorProto.STRING], ids=TensorProto.DataType.Name)
@pytest.mark.parametrize(
    ("element", "values"),
    [
        (TensorProto.INT64, [2**63 - 1, -1]),
        (TensorProto.FLOAT, [0.5, -2.0]),
        (TensorProto.DOUBLE, [1e-300, -0.1]),
        (TensorProto.STRING, ["", "é漢\0"]),
    ],
    ids=["int64", "float", "double", "string"],
)
def test_dicts_of_every_kind_pass_through(key: int, element: int, values: list[Any]) -> None:
    type_ = mapping(key, element)
    _, ours = pair(model([], {"x": type_}, {"x": type_}))
    items = dict(zip([-(2**63), 5] if key == TensorProto.INT64 else ["a\0b", "漢"], values, strict=True))
    [result] = ours.run(None, {"x": items})
    assert_same(result, items)


def test_lists_of_dicts() -> None:
    """onnxruntime takes no list of them, and a tuple of several comes out as other dicts."""
    type_ = sequence(mapping(TensorProto.INT64, TensorProto.FLOAT))
    content = model([], {"x": type_}, {"x": type_})
    _, ours = pair(content)
    items = [{1: 2.0, -5: 0.5}, {7: 1.0}]
    assert ours.run(None, {"x": items}) == ours.run(None, {"x": tuple(items)}) == [items]
    check(content, ({1: 2.0, -5: 0.5},))


# --- Optionals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING])
def test_none_is_an_optional_that_is_not_there(element: int) -> None:
    content = same(optional(tensor(element)))
    assert check(content, None) is None
    theirs, ours = pair(content)
    assert ours.run(None, {}) == theirs.run(None, {}) == [None]
    dtype = object if element == TensorProto.STRING else onnx_models.NUMERIC[element]
    for value in (np.array(["3", "4"], dtype), np.array("5", dtype), np.zeros((0, 2), dtype)):
        check(content, value)
    has = one("OptionalHasElement", optional(tensor(element)), tensor(TensorProto.BOOL), opset=16)
    assert not check(has, None)
    assert check(has, np.array(["1"], dtype))


def test_none_beside_another_input() -> None:
    float32 = tensor(TensorProto.FLOAT, ["n"])
    content = model(
        [helper.make_node("OptionalHasElement", ["a"], ["has"]), helper.make_node("Neg", ["b"], ["y"])],
        {"a": optional(float32), "b": float32},
        {"has": tensor(TensorProto.BOOL, []), "y": float32},
    )
    theirs, ours = pair(content)
    x = np.ones(3, np.float32)
    for a in (None, x):
        assert_same(ours.run(None, {"a": a, "b": x}), theirs.run(None, {"a": a, "b": x}))
    with pytest.raises(ortmulti.InvalidArgument, match=r"Required inputs .*'b'"):
        ours.run(None, {"a": None})


# --- Errors -----------------------------------------------------------------------------------------------------------

X = np.ones(2, np.float32)
FLOATS = same(sequence(tensor(TensorProto.FLOAT)))
WORDS = vectorizer(TensorProto.STRING, TensorProto.FLOAT)
NUMBERS = vectorizer(TensorProto.INT64, TensorProto.DOUBLE)
COUNTS = vectorizer(TensorProto.STRING, TensorProto.INT64)


@pytest.mark.parametrize(
    ("content", "value", "message"),
    [
        (FLOATS, X, "'x'.*list of arrays; got ndarray"),
        (FLOATS, None, "'x'.*list of arrays; got NoneType"),
        (FLOATS, "text", "'x'.*list of arrays; got str"),
        (FLOATS, {"a": X}, "'x'.*list of arrays; got dict"),
        (FLOATS, [X, 1], r"'x\[1\]'.*an array; got int"),
        (FLOATS, [X, None], r"'x\[1\]'.*an array; got NoneType"),
        (FLOATS, [X, [X]], r"'x\[1\]'.*an array; got list"),
        (FLOATS, [X, X.astype(np.float64)], r"'x\[1\]'.*float32; got dtype float64"),
        (FLOATS, [np.array(["a"])], r"'x\[0\]'.*float32"),
        (same(sequence(tensor(TensorProto.STRING))), [X], r"'x\[0\]'.*str"),
        (same(optional(sequence(tensor(TensorProto.FLOAT)))), X, "'x'.*optional.*list of arrays; got ndarray"),
        (same(optional(tensor(TensorProto.FLOAT))), X.astype(np.int8), "'x'.*optional.*float32; got dtype int8"),
        (WORDS, [("a", 1)], "'x'.*a dict; got list"),
        (WORDS, X, "'x'.*a dict; got ndarray"),
        (WORDS, {}, "'x'.*at least one key"),
        (WORDS, {1: 1}, "'x'.*1 as key"),
        (WORDS, {b"b": 1}, "'x'.*b'b' as key"),
        (WORDS, {"\ud800": 1}, "'x'.* as key"),
        (WORDS, {"a": "1"}, "'x'.*'1' as value"),
        (WORDS, {"a": None}, "'x'.*None as value"),
        (NUMBERS, {1.0: 1}, "'x'.*1.0 as key"),
        (NUMBERS, {2**63: 1}, "'x'.*9223372036854775808 as key"),
        (COUNTS, {"a": 1.5}, "'x'.*1.5 as value"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(content: bytes, value: Any, message: str) -> None:
    theirs, ours = pair(content)
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        ours.run(None, {"x": value})
    with pytest.raises(Exception):  # noqa: B017, PT011 - of any class
        theirs.run(None, {"x": value})


def test_exceptions_of_the_callers_own_are_passed_on() -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("of the test")

    _, ours = pair(NUMBERS)
    with pytest.raises(KeyError, match="of the test"):
        ours.run(None, {"x": {1: Broken()}})


def test_a_dict_and_a_list_that_change_while_they_are_read() -> None:
    items: dict[int, Any] = {}
    arrays: list[Any] = []

    class Clears:
        def __index__(self) -> int:
            items.clear()
            return 4

        def __str__(self) -> str:
            arrays.clear()
            return "text"

    items.update({3: Clears(), 2: 5})
    assert pair(NUMBERS)[1].run(None, {"x": items})[0].tolist() == [[4, 0, 5]]
    arrays.extend([np.array([Clears()], object), np.array(["kept"])])
    [result] = pair(same(sequence(tensor(TensorProto.STRING))))[1].run(None, {"x": arrays})
    assert [array.tolist() for array in result] == [["text"], ["kept"]]
