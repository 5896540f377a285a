"""Requests of different lengths in one run."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, parser

import ortmulti
from ortmulti import Batching
from ortmulti.pool import many
from ortmulti.pool.many import Ahead, by_length
from ortmulti.pool.padding import Padding
from tests.support import onnx_models
from tests.support.texts import ENCODER, PAD, encoder, expected, feed, ids


def test_requests_of_different_lengths_run_together() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(8, 20, pad=PAD, lengths=4)) as pool:
        before = pool.stats().devices[0]
        feeds = [feed(1, length, length) for length in (3, 9, 5, 7) * 10]
        futures = [pool.submit(None, one) for one in feeds]
        for one, future in zip(feeds, futures, strict=True):
            for answer, right in zip(future.result(60), expected(one), strict=True):
                np.testing.assert_array_equal(answer, right)
                assert answer.dtype == right.dtype
        device = pool.stats().devices[0]
        assert device.runs - before.runs < 40
        assert device.real_elements == 240
        assert device.padded_elements > 0
        assert device.waste == device.padded_elements / (240 + device.padded_elements)
        assert "rows" in device.why_padding


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20)), min_size=1, max_size=12),
    side=st.sampled_from(["left", "right"]),
    lengths=st.sampled_from([(), (4, 8, 16), 3]),
    sizes=st.sampled_from([(), (2, 8)]),
    max_tokens=st.sampled_from([None, 40]),
    made=st.booleans(),
    packed=st.booleans(),
    names=st.sampled_from([None, ["pooled"], ["pairs", "tokens"]]),
)
def test_answers_are_those_of_single_runs(requests, side, lengths, sizes, max_tokens, made, packed, names) -> None:  # type: ignore[no-untyped-def]
    batching = Batching(
        8,
        1.0,
        sizes=sizes,
        pad=PAD,
        mask="mask" if made or packed else None,
        pad_side=side,
        lengths=() if packed else lengths,
        max_tokens=max_tokens,
        packed=packed,
    )
    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        feeds = [feed(rows, length, i) for i, (rows, length) in enumerate(requests)]
        if made:
            for one in feeds[::2]:
                del one["mask"]
        futures = [pool.submit(names, one) for one in feeds]
        of = [output.name for output in pool.get_outputs()]
        for one, future in zip(feeds, futures, strict=True):
            right = dict(zip(of, expected(one), strict=True))
            for name, answer in zip(names or of, future.result(60), strict=True):
                np.testing.assert_array_equal(answer, right[name])


@pytest.mark.parametrize("lengths", [(1, 20, 2, 6), (30,), (10, 15, 5)])
def test_packed_runs_are_full_by_their_real_tokens(lengths: tuple[int, ...]) -> None:
    """Each of these runs has all the rows or the tokens that it may have, and does not wait for others."""
    batching = Batching(4, 600_000, pad=PAD, mask="mask", max_tokens=30, packed=True)
    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        before = pool.stats().devices[0]
        feeds = [feed(1, length, length) for length in lengths]
        futures = [pool.submit(["pooled"], one) for one in feeds]
        for one, future in zip(feeds, futures, strict=True):
            np.testing.assert_array_equal(future.result(60)[0], expected(one)[1])
        device = pool.stats().devices[0]
        assert device.runs - before.runs == 1
        assert device.real_elements == sum(lengths)
        assert device.padded_elements == device.waste == 0
        assert device.why_padding.startswith("none is computed, as the model leaves padding out; an element of a run")


def test_a_packed_pool_maps_its_rows() -> None:
    batching = Batching(8, pad=PAD, mask="mask", packed=True)
    rows = [ids(1 + i % 30, seed=i).tolist() for i in range(200)]
    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        [pooled] = pool.map_rows(["pooled"], {"ids": rows})
        assert pool.stats().devices[0].waste == 0
    right = [expected({"ids": np.array([row])})[1][0] for row in rows]
    np.testing.assert_array_equal(pooled, right)


def test_no_graph_is_made_of_packed_runs() -> None:
    batching = Batching(8, pad=PAD, mask="mask", packed=True)
    with pytest.raises(ortmulti.InvalidArgument, match="wait for the GPU within, so that no CUDA graph has them"):
        ortmulti.load(encoder(), "cuda:0", batching=batching, cuda_graph=True)


def test_outputs_may_lie_in_one_run_as_rows() -> None:
    """Small outputs of a padded run that are not to be cut."""
    with ortmulti.load(encoder(), "cpu", batching=Batching(8, 20, pad=PAD)) as pool:
        feeds = [feed(1, 6, seed) for seed in range(24)]
        for one, answer in zip(feeds, pool.map(["pooled", "lengths"], feeds), strict=True):
            np.testing.assert_array_equal(answer[0], expected(one)[1])
            np.testing.assert_array_equal(answer[1], [[6]])


@pytest.mark.parametrize("lookahead", [1, 3, 100, None])
def test_many_are_answered_in_order(lookahead: int | None) -> None:
    feeds = [feed(1, int(length), i) for i, length in enumerate(np.random.default_rng(1).integers(1, 60, 300))]
    with ortmulti.load(encoder(), "cpu", batching=Batching(16, pad=PAD)) as pool:
        for one, [pooled] in zip(feeds, pool.map(["pooled"], iter(feeds), lookahead=lookahead), strict=True):
            np.testing.assert_array_equal(pooled, expected(one)[1])
        done = dict(pool.as_completed(["tokens"], feeds, lookahead=lookahead))
        for i, one in enumerate(feeds):
            np.testing.assert_array_equal(done[i].result()[0], expected(one)[0])


@pytest.mark.parametrize("batching", [Batching(8, pad=PAD), Batching(8), None])
@pytest.mark.parametrize("wrong", [{"idz": ids(1, 4)}, None, ids(1, 4), "text", KeyError("of the caller")])
def test_what_comes_before_a_failure_is_answered(batching: Batching | None, wrong: object) -> None:
    good = [feed(1, 1 + i % 30, i) for i in range(200)]

    def feeds() -> Iterator[Any]:
        yield from good
        if isinstance(wrong, Exception):
            raise wrong
        yield wrong
        yield from itertools.cycle(good)  # of which some are read

    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        answers = pool.map(["pooled"], feeds())
        for one in good:
            np.testing.assert_array_equal(next(answers)[0], expected(one)[1])
        error = KeyError if isinstance(wrong, Exception) else ortmulti.Error
        with pytest.raises(error) as raised:
            next(answers)
        assert raised.value.__notes__ == ["This is feed 200, counted from 0."]
        answered: set[int] = set()
        with pytest.raises(error):
            answered.update(i for i, _ in pool.as_completed(["pooled"], feeds()))
        assert answered >= set(range(200))
        assert 200 not in answered


def test_many_are_read_ahead_and_sorted() -> None:
    lengths = np.random.default_rng(1).permutation(np.arange(1, 401))
    read = 0

    def feeds() -> Iterator[tuple[int, dict]]:
        nonlocal read
        for length in lengths:
            read += 1
            yield int(length), {"length": int(length)}

    found: list[int] = []
    most_ahead = 0
    ahead = Ahead(10, lambda one: one["length"], 40)
    for block in by_length(feeds(), ahead):
        assert ahead.pending + len(block) <= 10
        most_ahead = max(most_ahead, read - len(found) - len(block))
        if block and not found:
            assert read == 1  # the first one runs at once
        found.extend(length for length, _ in block)
        ahead.pending += len(block)
        if ahead.full():
            ahead.answered(ahead.pending)
    assert sorted(found) == list(range(1, 401))
    assert most_ahead == 30
    steps = np.diff(found[50:])  # as many are read ahead from here on
    turns = np.count_nonzero(np.diff(np.sign(steps)))
    assert turns < 20
    assert np.abs(steps).mean() < 15  # and 133 where none are sorted
    assert found[-20:] == sorted(found[-20:], reverse=True)


def test_who_waits_for_one_answer_keeps_no_more_and_waits() -> None:
    ahead = Ahead(8, lambda one: len(one["x"]))
    ahead.pending = 1
    assert not ahead.full()
    ahead.answers = 100  # behind the one
    assert ahead.full()


def test_the_next_is_read_behind_an_answer_if_asked_to() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(16, pad=PAD)) as pool:
        answered = 0

        def feeds() -> Iterator[dict[str, np.ndarray]]:
            for i in range(20):
                assert answered == i
                yield feed(1, 1 + i, i)

        for _ in pool.map(["pooled"], feeds(), lookahead=1):
            answered += 1


def test_what_has_no_length_that_can_be_seen_is_run_or_refused_in_its_place() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(16, pad=PAD)) as pool:
        good = feed(1, 5)
        value = {name: ortmulti.OrtValue.ortvalue_from_numpy(array) for name, array in good.items()}
        for [pooled] in pool.map(["pooled"], [value, good, value]):
            np.testing.assert_array_equal(pooled, expected(good)[1])
        answers = pool.map(["pooled"], [good, {**good, "ids": [[1, 2], [3]]}, good])
        np.testing.assert_array_equal(next(answers)[0], expected(good)[1])
        with pytest.raises(ortmulti.Error) as raised:
            next(answers)
        assert raised.value.__notes__ == ["This is feed 1, counted from 0."]


def test_the_first_are_read_until_some_are_of_similar_lengths() -> None:
    read = 0

    def feeds() -> Iterator[tuple[int, dict]]:
        nonlocal read
        for length in np.random.default_rng(1).permutation(np.arange(1, 401)):
            read += 1
            yield int(length), {"x": np.broadcast_to(np.uint8(0), (int(length), 1))}

    ahead = Ahead(8, lambda one: len(one["x"]))
    blocks = by_length(feeds(), ahead)
    begin = time.monotonic()
    [[first, _]] = next(blocks)
    assert read == 1
    ahead.pending = 1
    block = next(block for block in blocks if block)
    late = time.monotonic() > begin + 0.02
    assert read >= 32 or late
    found = [length for length, _ in block]
    assert found == sorted(found, reverse=True)
    assert found[0] < first
    assert max(np.abs(np.diff(found))) < 100 or late


@pytest.mark.parametrize(("inputs", "outputs", "most"), [(1, 1, 3000), (1 << 20, 1, 128), (1, 1 << 20, 128)])
def test_more_are_read_ahead_where_they_are_small(
    inputs: int, outputs: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "time", SimpleNamespace(monotonic=lambda: 0.0))  # after a pause some are submitted
    read = 0

    def feeds() -> Iterator[tuple[int, dict]]:
        nonlocal read
        for read in range(1, 3001):
            yield read, {"x": np.broadcast_to(np.uint8(0), (read % 50, inputs))[:1]}

    ahead = Ahead(8, lambda one: len(one["x"]))
    for block in by_length(feeds(), ahead):
        ahead.pending += len(block)
        if read == 1:
            ahead.answered(len(block), [np.broadcast_to(np.uint8(0), outputs)])
        if ahead.full():
            break
    assert most - 32 < read <= most  # of 128 MiB


def test_requests_with_a_fault_fail_alone() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(4, 20, pad=PAD)) as pool:
        with pytest.raises(ortmulti.InvalidArgument, match=r"'ids' has the length 0 along .*: give 1 or more"):
            pool.run(None, feed(1, 0))
        with pytest.raises(ortmulti.InvalidArgument, match=r"'mask' has the length 5 .*input 'ids' 4: give both"):
            pool.run(None, {"ids": ids(1, 4), "mask": np.ones((1, 5), np.int64)})
        wrong = {"ids": np.full((1, 5), 1000), "mask": np.ones((1, 5), np.int64)}
        futures = [pool.submit(None, one) for one in (feed(1, 4), wrong, feed(1, 6))]
        with pytest.raises(ortmulti.InvalidArgument, match="1000"):
            futures[1].result(60)
        np.testing.assert_array_equal(futures[0].result(60)[1], expected(feed(1, 4))[1])
        np.testing.assert_array_equal(futures[2].result(60)[1], expected(feed(1, 6))[1])


def test_a_model_that_is_replaced_is_proven_again() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(4, 20, pad=PAD)) as pool:
        careless = encoder(ENCODER.replace("tokens = Mul(embedded, m3)", "tokens = Identity(embedded)"))
        with pytest.raises(ortmulti.InvalidArgument, match=r"padded, joined requests get other .*'pooled'"):
            pool.replace_model(careless)
        pool.replace_model(encoder())
        for one in (feed(1, length) for length in (3, 8, 5)):
            np.testing.assert_array_equal(pool.run(None, one)[1], expected(one)[1])


def test_devices_that_wake_pad_as_before() -> None:
    with ortmulti.load(encoder(), "cpu", batching=Batching(4, 20, pad=PAD, mask="mask")) as pool:
        pool.sleep(level="session")
        one = {"ids": ids(1, 5)}
        np.testing.assert_array_equal(pool.run(["tokens"], one)[0], expected(one)[0])


REFUSED = [
    pytest.param({"pad": {"words": 0}}, "pad has 'words', and the model's inputs are ids, mask", id="unknown"),
    pytest.param({"pad": {"ids": 0}}, "input 'mask' has the dimension 'sequence', too: say in pad", id="forgotten"),
    pytest.param({"pad": {"ids": 0.5, "mask": 0}}, r"pad\['ids'\] is 0.5, and int64 cannot hold it", id="value"),
    pytest.param(
        {"pad": PAD, "along": "words"}, "'ids' is to be padded along the dimension 'words', and its", id="dimension"
    ),
    pytest.param({"pad": PAD, "along": 2}, "'ids' is to be padded along dimension 2, and its shape", id="place"),
    pytest.param({"pad": {"ids": 0, "mask": 1}}, "padded, joined requests get other answers: .*'lengths'", id="mask"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_declarations_that_do_not_fit_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        ortmulti.load(encoder(), "cpu", batching=Batching(4, **given))


def test_dimensions_that_are_computed_from_the_length_are_refused_by_name() -> None:
    halved = """
        <ir_version: 8, opset_import: ["": 17]>
        sound (float[batch, samples] wave) => (float[batch, frames] y)
        <int64[1] zero = {0}, int64[1] end = {1000000}, int64[1] one = {1}, int64[1] two = {2}>
        { y = Slice(wave, zero, end, one, two) }
    """
    with pytest.raises(ortmulti.InvalidArgument, match="'y' has 6, 8 and 4 elements along dimension 1 for 12,"):
        ortmulti.load(parser.parse_model(halved).SerializeToString(), "cpu", batching=Batching(4, pad={"wave": 0}))
    more = """
        <ir_version: 8, opset_import: ["": 17]>
        cache (float[batch, "n"] x, float[batch, "n + 1"] past) => (float[batch, "n"] y) { y = Identity(x) }
    """
    try:
        model = parser.parse_model(more)
    except parser.ParseError:
        model = parser.parse_model(more.replace('"n + 1"', "m").replace('"n"', "n"))
        model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "n + 1"
    with pytest.raises(ortmulti.InvalidArgument, match=r"input 'past' has the dimension 'n \+ 1', which changes with"):
        ortmulti.load(model.SerializeToString(), "cpu", batching=Batching(4, pad={"x": 0}))


BAD = [
    ({"along": "n"}, "along is for requests that are padded"),
    ({"lengths": [8]}, "lengths is for requests that are padded"),
    ({"pad": {}}, "pad is a number for all inputs, or a dict"),
    ({"pad": ["ids"]}, "pad is a number for all inputs, or a dict"),
    ({"pad": True}, "pad is a number for all inputs, or a dict"),
    ({"pad": {"ids": "0"}}, "is a number"),
    ({"pad": PAD, "lengths": [16, 8]}, "lengths ascend"),
    ({"pad": PAD, "lengths": 0}, "lengths"),
    ({"pad": PAD, "max_waste": 1.5}, "max_waste is a share"),
    ({"pad": PAD, "max_tokens": 0}, "max_tokens"),
    ({"pad": PAD, "along": 0}, "another dimension than axis"),
    ({"pad": PAD, "pad_side": "both"}, "pad_side is 'right' or 'left'"),
    ({"pad": PAD, "mask": 1}, "mask is"),
    ({"packed": 1}, "packed is"),
    ({"packed": True}, "packed=True is of a model that reads a mask: give pad and mask too"),
    ({"pad": PAD, "packed": True}, "packed=True is of a model that reads a mask: give pad and mask too"),
    ({"pad": PAD, "mask": "mask", "packed": True, "lengths": 8}, "lengths and max_waste bound padding, and with pack"),
    ({"pad": PAD, "mask": "mask", "packed": True, "max_waste": 1}, "lengths and max_waste bound padding, and with"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_values_that_cannot_be_are_refused(given: dict, message: str) -> None:
    with pytest.raises((ortmulti.InvalidArgument, ortmulti.errors.InvalidType), match=message):
        Batching(4, **given)


def test_samples_of_different_lengths_are_compared() -> None:
    samples = [feed(1, 5, 1), feed(2, 9, 2)]
    found = ortmulti.check_batching(encoder(), Batching(8, pad=PAD, lengths=4), samples=samples)
    assert found.independent
    assert set(found.outputs) == {"tokens", "pooled", "pairs", "kept", "lengths"}


def test_rows_of_different_lengths_are_mapped() -> None:
    rows = [ids(int(length), seed=i) for i, length in enumerate(np.random.default_rng(2).integers(1, 40, 100))]
    masks = [[1] * len(row) for row in rows]
    with ortmulti.load(encoder(), "cpu", batching=Batching(8, pad=PAD)) as pool:
        [pooled] = pool.map_rows(["pooled"], {"ids": rows, "mask": masks})
        assert pooled.shape == (100, 4)
        for row, answer in zip(rows, pooled, strict=True):
            np.testing.assert_array_equal(answer, expected({"ids": row[None]})[1][0])
        with pytest.raises(ortmulti.InvalidArgument, match=r"needs a row of output for each row of input.* or use map"):
            pool.map_rows(["tokens"], {"ids": rows, "mask": masks})
        with pytest.raises(ortmulti.InvalidArgument, match="has the length 0 along"):
            pool.map_rows(["pooled"], {"ids": [*rows, []], "mask": [*masks, []]})


def test_a_number_pads_all_inputs_that_have_the_length() -> None:
    one = {"ids": ids(1, 5), "mask": np.ones((1, 5), np.int64)}
    with ortmulti.load(encoder(), "cpu", batching=Batching(8, 20, pad=0, mask="mask")) as pool:
        futures = [pool.submit(["tokens"], {"ids": ids(1, length, seed=length)}) for length in range(3, 20)]
        for length, future in enumerate(futures, 3):
            right = expected({"ids": ids(1, length, seed=length)})[0]
            np.testing.assert_array_equal(future.result(60)[0], right)
        np.testing.assert_array_equal(pool.run(["tokens"], one)[0], expected(one)[0])
        with pytest.raises(ortmulti.InvalidArgument, match="'mask' is made from an array with the batch's"):
            pool.run(["tokens"], {"ids": ids(5)})
    fixed = encoder(ENCODER.replace("[batch, sequence]", "[batch, 8]"))
    with pytest.raises(ortmulti.InvalidArgument, match="no dimension of the inputs in pad has a name"):
        ortmulti.load(fixed, "cpu", batching=Batching(8, pad=0))


def test_a_large_mask_is_made_without_the_gil() -> None:
    gate, ran = threading.Lock(), threading.Event()
    gate.acquire()

    def other() -> None:
        gate.acquire()
        ran.set()

    with ortmulti.load(encoder(), "cpu", batching=Batching(8, pad=0, mask="mask")) as pool:
        tokens = ids(1, 1 << 20)
        thread = threading.Thread(target=other)
        thread.start()
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(1000)  # no thread gives up the GIL but where it releases it
            gate.release()
            for _ in range(200):
                with pytest.raises(ortmulti.InvalidArgument):  # the mask is made before the outputs are looked at
                    pool.submit(["nothing"], {"ids": tokens})
                if ran.is_set():
                    break
            else:
                pytest.fail("no other thread ran")
        finally:
            sys.setswitchinterval(interval)
            thread.join()


def test_workers_have_no_frame_of_python() -> None:
    """Requests are joined and cut in threads that Python does not know."""
    with ortmulti.load(encoder(), "cpu", batching=Batching(8, 20, pad=PAD, lengths=8)) as pool:
        before = set(sys._current_frames())
        frames: set[int] = set()
        for _ in pool.map(["tokens"], [feed(1, length) for length in range(2, 200)]):
            frames |= set(sys._current_frames())
        assert pool.stats().devices[0].padded_elements > 0
    known = {thread.ident for thread in threading.enumerate()}
    assert frames <= before | known


@pytest.mark.parametrize("kind", sorted(onnx_models.NUMERIC))
def test_every_type_is_padded_with_its_value(kind: int) -> None:
    """y [batch, n] = x."""
    dtype = onnx_models.NUMERIC[kind]
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        model (T[batch, n] x) => (T[batch, n] y) { y = Identity(x) }
    """
    name = helper.tensor_dtype_to_string(kind).removeprefix("TensorProto.").lower()
    model = parser.parse_model(text.replace("T[", f"{name}[")).SerializeToString()
    rng = np.random.default_rng(kind)
    rows = [rng.integers(0, 2 if dtype.kind == "b" else 100, (1, length)).astype(dtype) for length in (3, 9, 5, 7) * 5]
    with ortmulti.load(model, "cpu", batching=Batching(8, 20, pad=1, pad_side="left", lengths=4)) as pool:
        for row, future in [(row, pool.submit(None, {"x": row})) for row in rows]:
            [answer] = future.result(60)
            np.testing.assert_array_equal(answer, row)
            assert answer.dtype == dtype
        assert pool.stats().devices[0].padded_elements > 0


@pytest.mark.parametrize(("dtype", "value"), [(ml_dtypes.int4, 8), (np.uint8, -1), (np.int64, 0.5)])
def test_an_integer_that_the_type_cannot_hold_is_refused(dtype: Any, value: float) -> None:
    declared = SimpleNamespace(name="x", type="tensor", shape=["batch", "n"], dtype=np.dtype(dtype))
    with pytest.raises(ortmulti.InvalidArgument, match=rf"pad\['x'\] is {value}, and \w+ cannot hold it"):
        Padding.of(Batching(4, pad={"x": value}), [declared])


def test_lengths_end_where_the_model_does() -> None:
    """The model has positions for 16 elements."""
    limited = """
        <ir_version: 8, opset_import: ["": 17]>
        limited (float[batch, n] x) => (float[batch, n] y) <int64[1] zero = {0}, int64[1] one = {1}>
        {
            size = Shape<start = 1>(x)
            places = Slice(table, zero, size, one)
            y = Add(x, places)
        }
    """
    model = parser.parse_model(limited)
    model.graph.initializer.append(helper.make_tensor("table", 1, [1, 16], np.zeros(16)))
    with pytest.raises(ortmulti.InvalidArgument, match="lengths has 32, and the model fails with so much of the dim"):
        ortmulti.load(model.SerializeToString(), "cpu", batching=Batching(4, pad=0, lengths=(8, 32)))
    with ortmulti.load(model.SerializeToString(), "cpu", batching=Batching(4, pad=0, lengths=(8, 16))) as pool:
        np.testing.assert_array_equal(pool.run(None, {"x": np.ones((1, 3), np.float32)})[0], np.ones((1, 3)))


def test_samples_may_lack_the_mask_that_the_pool_makes() -> None:
    samples = [{"ids": ids(1, 5)}, {"ids": ids(2, 9)}]
    assert ortmulti.check_batching(encoder(), Batching(8, pad=0, mask="mask"), samples=samples).independent


@pytest.mark.parametrize("batching", [Batching(4, pad=PAD), None])
@pytest.mark.parametrize("way", ["map", "map_rows", "as_completed"])
def test_a_failure_keeps_nothing_for_ever(batching: Batching | None, way: str) -> None:
    """Not even where its error is in a cycle with what was to be run."""

    def fail(pool: ortmulti.Pool) -> weakref.ref[np.ndarray]:
        tokens = np.full((9, 4), 2**40)  # too large
        masks = np.ones_like(tokens)
        feeds = [{"ids": tokens[i : i + 1], "mask": masks[i : i + 1]} for i in range(9)]

        def first_done() -> None:
            answers = pool.as_completed(["pooled"], feeds)
            next(answers)[1].result()

        run = {
            "map": lambda: list(pool.map(["pooled"], feeds)),
            "map_rows": lambda: pool.map_rows(["pooled"], {"ids": tokens, "mask": masks}, rows=1, lookahead=3),
            "as_completed": first_done,
        }[way]
        with pytest.raises(ortmulti.Error):
            run()
        return weakref.ref(tokens)

    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        tokens = fail(pool)
        until = time.monotonic() + 20
        while tokens() is not None and time.monotonic() < until:
            gc.collect()  # one that still ran when it was cancelled has them up to its end
        assert tokens() is None
