"""What the proof of padding accepts and refuses: models whose answers padding changes, and right ones."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Batching
from ortmulti.bench import models
from ortmulti.pool.padding_proof import prove_padding
from tests.support.onnx_models import with_weights
from tests.support.texts import PAD, encoder

RANDOM = np.random.default_rng(0)
LOWEST = float(np.finfo(np.float32).min)


def random(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


def model(text: str, **weights: Any) -> bytes:
    """A model with those of the weights that its text names."""
    return with_weights(text, **{name: value for name, value in weights.items() if re.search(rf"\b{name}\b", text)})


def refused(path: bytes, said: str = "padded, joined requests get other answers: 'y' ", **batching: Any) -> None:
    given = {"max_size": 8, "pad": 0, **batching}
    with pytest.raises(ortmulti.InvalidArgument, match=rf"{said}.*\. Give pad the values that the model ignores"):
        ortmulti.load(path, "cpu", batching=Batching(**given))


def accepted(path: bytes | str, **batching: Any) -> None:
    given = {"max_size": 8, "pad": 0, **batching}
    with ortmulti.load(path, "cpu", batching=Batching(**given)) as pool:
        assert pool.ready == ["cpu"]


# y[batch, 2] of x[batch, time, 2], without a mask.
REDUCING = {
    "ReduceMax": "y = ReduceMax <axes=[1], keepdims=0> (x)",
    "ReduceMin": "y = ReduceMin <axes=[1], keepdims=0> (x)",
    "ReduceMean": "y = ReduceMean <axes=[1], keepdims=0> (x)",
    "ReduceL2 of a shift": "a = Add(x, w)\n y = ReduceL2 <axes=[1], keepdims=0> (a)",
    "ReduceProd": "y = ReduceProd <axes=[1], keepdims=0> (x)",
    "ReduceLogSumExp": "y = ReduceLogSumExp <axes=[1], keepdims=0> (x)",
    "GlobalMaxPool": "t = Transpose <perm = [0, 2, 1]> (x)\n p = GlobalMaxPool(t)\n y = Squeeze(p, two)",
    "GlobalAveragePool": "t = Transpose <perm = [0, 2, 1]> (x)\n p = GlobalAveragePool(t)\n y = Squeeze(p, two)",
    "TopK": "v, i = TopK <axis = 1> (x, one)\n y = Squeeze(v, one)",
    "smallest of TopK": "v, i = TopK <axis = 1, largest = 0> (x, one)\n y = Squeeze(v, one)",
    "last": "y = Gather <axis = 1> (x, last)",
    "softmax": "s = Softmax <axis = 1> (x)\n p = Mul(s, x)\n y = ReduceSum <keepdims=0> (p, one)",
    "range": "a = ReduceMax <axes=[1], keepdims=0> (x)\n b = ReduceMin <axes=[1], keepdims=0> (x)\ny = Sub(a, b)",
    "a floor": "c = ReduceMax <axes=[1], keepdims=0> (x)\n d = Max(c, low)\n y = Mul(d, w)",
}


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("pad", [0, -5])
def test_what_padding_changes_is_refused(name: str, pad: float) -> None:
    text = f"(float[batch,time,2] x) => (float[batch,2] y) {{ {REDUCING[name]} }}"
    weights = {"w": random(2) + 3, "one": [1], "two": [2], "last": np.int64(-1), "low": np.float32(-1e6)}
    refused(model(text, **weights), pad=pad)


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceMax", "last"])
@pytest.mark.parametrize("masked", [640, -1e4, -1e9, np.finfo(np.float32).min])
def test_what_padding_changes_is_seen_beside_larger_numbers(operator: str, masked: float) -> None:
    reduced = REDUCING[operator].replace("y =", "r =")
    text = f"{reduced}\n z = Sub(r, r)\n m = Add(z, masked)\n y = Concat <axis = 1> (r, m)"
    path = model(
        f"(float[batch,time,2] x) => (float[batch,4] y) {{ {text} }}", masked=np.float32(masked), last=np.int64(-1)
    )
    refused(path, pad=0)


def test_the_message_says_what_differs_and_what_to_do() -> None:
    text = "(float[batch,time,2] x) => (float[batch,2] y) { y = ReduceMax <axes=[1], keepdims=0> (x) }"
    said = r"'y' differs by \S+ of its largest value, for a request with \w.* and the length \d+ that is filled up to 8"
    with pytest.raises(ortmulti.InvalidArgument, match=rf"{said}\. Give pad .*A maximum ignores the lowest number"):
        ortmulti.load(model(text), "cpu", batching=Batching(8, pad=0))


@pytest.mark.parametrize("operator", ["ReduceMax", "GlobalMaxPool", "TopK"])
def test_a_maximum_is_right_with_the_lowest_number(operator: str) -> None:
    text = f"(float[batch,time,2] x) => (float[batch,2] y) {{ {REDUCING[operator]} }}"
    path = model(text, one=[1], two=[2])
    accepted(path, pad=LOWEST)
    accepted(path, pad=-math.inf)
    refused(path, pad=-1e4)


def test_the_place_of_the_largest_is_refused() -> None:
    text = "(float[batch,time,2] x) => (int64[batch,2] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }"
    refused(model(text))
    accepted(model(text), pad=LOWEST)
    refused(model(text), pad=LOWEST, pad_side="left")


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8", "float16", "double"])
def test_other_types_are_tried(kind: str) -> None:
    text = f"({kind}[batch,time] x) => (float[batch] y) {{ f = Cast <to = 1> (x)\n y = "
    refused(model(text + "ReduceMin <axes=[1], keepdims=0> (f) }"))
    accepted(model(text + "ReduceSum <keepdims=0> (f, one) }", one=[1]))
    if kind not in ("int32", "uint8"):  # integers that may be token ids are not negative
        refused(model(text + "ReduceMax <axes=[1], keepdims=0> (f) }"))


EMBEDDED = (
    "(int64[batch,n] ids, int64[batch,n] mask) => (float[batch,4] y) { e = Gather(table, ids)\n"
    "m = Cast <to = 1> (mask)\n m3 = Unsqueeze(m, two)\n i = Sub(f1, m3)\n"
)
SOFTMAX = "p = Softmax <axis = 1> (s)\n q = Mul(p, e)\n y = ReduceSum <keepdims=0> (q, one)"
MASKED = {
    "largest of the masked": (False, "a = Mul(e, m3)\n y = ReduceMax <axes=[1], keepdims=0> (a)"),
    "smallest of the masked": (False, "a = Mul(e, m3)\n y = ReduceMin <axes=[1], keepdims=0> (a)"),
    "mean over all": (False, "a = Mul(e, m3)\n y = ReduceMean <axes=[1], keepdims=0> (a)"),
    "no mask": (
        False,
        "a = ReduceSum <keepdims=0> (e, one)\n b = ReduceMin <axes=[1], keepdims=0> (m3)\n y = Mul(a, b)",
    ),
    "a weak mask": (
        False,
        "b = Mul(i, weak)\n s = Add(e, b)\n" + SOFTMAX,
    ),
    "a mask": (
        True,
        "b = Mul(i, strong)\n s = Add(e, b)\n" + SOFTMAX,
    ),
    "largest with a mask": (
        True,
        "b = Mul(i, strong)\n s = Add(e, b)\n y = ReduceMax <axes=[1], keepdims=0> (s)",
    ),
    "mean by the mask": (
        True,
        "a = Mul(e, m3)\n s = ReduceSum <keepdims=0> (a, one)\n c = ReduceSum <keepdims=0> (m3, one)\n y = Div(s, c)",
    ),
    "first": (True, "y = Gather <axis = 1> (e, zero)"),
    "last by the mask": (
        True,
        "l = ReduceSum <keepdims=0> (mask, one)\n k = Sub(l, one)\n r = Shape <end = 1> (ids)\n"
        "k2 = Unsqueeze(k, one)\n y = GatherND <batch_dims = 1> (e, k2)",
    ),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("declared", [None, "mask"])
def test_models_with_a_mask(name: str, declared: str | None) -> None:
    right, text = MASKED[name]
    weights = {
        **{"table": random(100, 4), "one": [1], "two": [2], "zero": np.int64(0), "f1": np.float32(1)},
        **{"weak": np.float32(-5), "strong": np.float32(-1e9)},
    }
    path = model(EMBEDDED + text + " }", **weights)
    (accepted if right else refused)(path, mask=declared)


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_that_are_counted_from_the_mask_are_right(side: str) -> None:
    text = (
        "(int64[batch,n] ids, int64[batch,n] mask) => (float[batch,n,4] y) { e = Gather(table, ids)\n"
        "c = CumSum(mask, axis)\n p = Sub(c, one)\n q = Mul(p, mask)\n d = Gather(table, q)\n y = Add(e, d) }"
    )
    accepted(model(text, table=random(100, 4), axis=np.int64(1), one=[1]), pad_side=side)


def test_positions_that_are_counted_from_the_left_are_refused() -> None:
    text = (
        "(int64[batch,n] ids) => (float[batch,n,4] y) { e = Gather(table, ids)\n s = Shape <start = 1> (ids)\n"
        "z = Squeeze(s)\n r = Range(none, z, step)\n d = Gather(table, r)\n y = Add(e, d) }"
    )
    path = model(text, table=random(100, 4), none=np.int64(0), step=np.int64(1))
    accepted(path)
    refused(path, pad_side="left")


def test_a_mask_made_of_the_padding_token_is_right() -> None:
    """Other ids in the padded places would be no padding."""
    text = (
        "(int64[batch,n] ids) => (float[batch,4] y, int64[batch] last) { e = Gather(table, ids)\n"
        "same = Equal(ids, pad)\n real = Not(same)\n m = Cast <to = 1> (real)\n m3 = Unsqueeze(m, two)\n"
        "a = Mul(e, m3)\n s = ReduceSum <keepdims=0> (a, one)\n c = ReduceSum <keepdims=0> (m3, one)\n y = Div(s, c)\n"
        "i = Cast <to = 7> (real)\n l = ReduceSum <keepdims=0> (i, one)\n last = Sub(l, one) }"
    )
    path = model(text, table=random(100, 4), pad=np.int64(3), one=[1], two=[2])
    accepted(path, pad=3)
    refused(path, pad=0)


HARMLESS = {
    "each element": "(float[batch,n,2] x) => (float[batch,n,2] y) { y = Tanh(x) }",
    "sum": "(float[batch,n,2] x) => (float[batch,2] y) { y = ReduceSum <keepdims=0> (x, one) }",
    "sums before and behind": (
        "(float[batch,n] x) => (float[batch,n] y, float[batch,n] z) {"
        "y = CumSum(x, axis)\n z = CumSum <reverse = 1> (x, axis) }"
    ),
    "a convolution": "(float[batch,2,n] x) => (float[batch,2,n] y) { y = Conv <pads = [1, 1]> (x, filter) }",
    "largest of what is above": (
        "(float[batch,n] x) => (float[batch] y) { r = Relu(x)\n y = ReduceMax <axes=[1], keepdims=0> (r) }"
    ),
    "banned tokens": "(float[batch,n,2] x) => (float[batch,n,2] y) { s = Mul(x, half)\n y = Add(s, banned) }",
    "a mask that only divides": (
        "(float[batch,n,2] x, float[batch,n] mask) => (float[batch,2] y) {"
        "s = ReduceSum <keepdims=0> (x, one)\n c = ReduceSum <keepdims=1> (mask, one)\n y = Div(s, c) }"
    ),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_padding_does_not_change_is_accepted(name: str) -> None:
    weights = {
        **{"one": [1], "axis": np.int64(1), "filter": random(2, 2, 3), "half": np.float32(0.5)},
        "banned": np.array([0, -np.inf], np.float32),
    }
    accepted(model(HARMLESS[name], **weights), along="n")


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_models_know_lengths_or_are_refused(direction: str) -> None:
    """[n, batch, 3], with the lengths as an input."""
    count = 1 if direction == "forward" else 2
    weights = {"w": random(count, 16, 3), "r": random(count, 16, 4), "bias": random(count, 32)}
    text = (
        "(float[batch,n,3] x, int32[batch] lens) => (float[batch,n,DIRECTIONS,4] y, float[batch,DIRECTIONS,4] last) {"
        "t = Transpose <perm = [1, 0, 2]> (x)\n"
        f'a, b, c = LSTM <direction = "{direction}", hidden_size = 4> (t, w, r, bias, lens)\n'
        "y = Transpose <perm = [2, 0, 1, 3]> (a)\n last = Transpose <perm = [1, 0, 2]> (b) }"
    ).replace("DIRECTIONS", str(count))
    accepted(model(text, **weights))
    unknown = text.replace(", lens)", ")").replace(", int32[batch] lens", "")
    refused(model(unknown, **weights), "padded, joined requests get other answers: ")


def test_small_differences_are_refused_if_they_change_with_what_is_padded() -> None:
    text = (
        "(float[batch,n] x) => (float[batch] y) { a = ReduceMax <axes=[1], keepdims=0> (x)\n b = Tanh(a)\n"
        "y = Add(b, hundred) }"
    )
    path = model(text, hundred=np.float32(150))
    refused(path, r"'y' differs by 0\.00\d+ of its largest value, and changes with what is in the padded places")
    accepted(model(text, hundred=np.float32(10_000)))  # as documented


@pytest.mark.parametrize("tokens", [2, 4, 20, 33])
def test_small_vocabularies_are_proven(tokens: int) -> None:
    text = "(int64[batch,n] ids) => (float[batch,n,8] y) { e = Gather(table, ids)\n y = MatMul(e, w) }"
    accepted(model(text, table=random(tokens, 8), w=random(8, 8)))
    samples = [{"ids": np.array([[1, 0, 1]])}, {"ids": np.array([[1, 0, 1, 1]])}]
    for given in (samples, None):
        path = model(text, table=random(tokens, 8), w=random(8, 8))
        assert ortmulti.check_batching(path, Batching(8, pad=0), samples=given).independent
    largest = text.replace("y = MatMul(e, w)", "a = MatMul(e, w)\n y = ReduceMax <axes=[1], keepdims=0> (a)")
    refused(model(largest.replace("n,8] y", "8] y"), table=random(tokens, 8), w=random(8, 8)))


@pytest.mark.parametrize("seed", range(6))
def test_small_text_cnns_are_refused(seed: int) -> None:
    numbers = np.random.default_rng(seed)

    def weight(*shape: int) -> Any:
        return (numbers.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    text = (
        "(int64[batch,n] ids) => (float[batch,4] y) { e = Gather(table, ids)\n t = Transpose <perm = [0, 2, 1]> (e)\n"
        "a = Conv <pads = [1, 1]> (t, w)\n b = Relu(a)\n m = ReduceMax <axes = [2], keepdims = 0> (b)\n"
        "y = MatMul(m, o) }"
    )
    refused(model(text, table=weight(500, 16), w=weight(8, 16, 3), o=weight(8, 4)))


def test_models_that_take_no_random_inputs_say_so() -> None:
    text = "(int64[batch,n] ids) => (float[batch,n,8] y) { i = Add(ids, far)\n y = Gather(table, i) }"
    with pytest.raises(ortmulti.InvalidArgument, match=r"with random inputs, and the model takes none.*out of data"):
        ortmulti.load(model(text, table=random(4, 8), far=np.int64(100)), "cpu", batching=Batching(8, pad=0))


def test_the_encoders_are_accepted(tmp_path: Path) -> None:
    for side in ("left", "right"):
        accepted(encoder(), pad=PAD, pad_side=side)
    for precision in ("fp32", "fp16"):
        folder = tmp_path / precision
        folder.mkdir()
        accepted(models.make("encoder", folder, layers=2, hidden=48, precision=precision), mask="attention_mask")


@pytest.mark.parametrize("size", [2, 4])
def test_a_batch_of_one_size_is_proven(size: int) -> None:
    text = f"(float[{size},n,2] x) => (float[{size},2] y) {{ y = ReduceSum <keepdims=0> (x, one) }}"
    accepted(model(text, one=[1]), max_size=size, sizes=[size])
    largest = text.replace("ReduceSum <keepdims=0> (x, one)", "ReduceMax <axes=[1], keepdims=0> (x)")
    refused(model(largest), max_size=size, sizes=[size])


def test_the_batch_may_be_another_dimension() -> None:
    text = "(float[seq,batch,2] x) => (float[seq,batch,2] y, float[1,batch,2] z) { y = Tanh(x)\n z = %s }"
    accepted(model(text % "ReduceSum(x, first)", first=[0]), axis=1, along="seq")
    largest = model(text % "ReduceMax <axes = [0]> (x)")
    refused(largest, "padded, joined requests get other answers: 'z' ", axis=1, along="seq")


def test_the_proof_takes_few_runs() -> None:
    runs: list[int] = []

    class Counted:
        def __init__(self, pool: Any) -> None:
            self._pool, self.get_inputs, self.get_outputs = pool, pool.get_inputs, pool.get_outputs

        def run(self, *arguments: Any) -> Any:
            runs.append(1)
            return self._pool.run(*arguments)

    batching = Batching(8, pad=PAD)
    with ortmulti.load(encoder(), "cpu", batching=batching) as pool:
        prove_padding(Counted(pool), batching)
    assert len(runs) <= 30
