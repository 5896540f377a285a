"""Inputs that are made from what a model declares, and files of inputs."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from ortmulti.bench import models
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.create.sample_inputs import first_fit, growing_inputs, sample_inputs
from ortmulti.errors import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile, OutOfMemory
from tests.support import onnx_models

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
    **{f"tensor({kind}{bits})": np.dtype(f"{kind}{bits}").type for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def declared(name: str, type: str, shape: Any) -> Any:
    return SimpleNamespace(name=name, type=type, shape=shape)


@settings(max_examples=200)
@given(
    name=st.sampled_from(["x", "input_ids", "attention_mask", "position_ids", "token_type_ids"]),
    type=st.sampled_from(sorted(NUMPY_TYPES)),
    shape=st.lists(
        st.one_of(st.integers(0, 5), st.none(), st.sampled_from(["batch", "N", "seq", "past_len"])), max_size=4
    ),
    batch=st.integers(0, 4),
    sequence=st.integers(0, 9),
    seed=st.integers(0, 3),
)
def test_inputs_have_the_declared_type_and_shape(
    name: str, type: str, shape: list[Any], batch: int, sequence: int, seed: int
) -> None:
    one = [declared(name, type, shape)]
    value = sample_inputs(one, batch, sequence, seed, tokens=50)[name]
    assert value.dtype == NUMPY_TYPES[type]
    assert value.flags.c_contiguous
    sizes = {"batch": batch, "past_len": 0, "seq": sequence}
    assert value.shape == tuple(
        size if isinstance(size, int) else sizes.get(size, sequence if axis else batch)
        for axis, size in enumerate(shape)
    )
    if np.issubdtype(value.dtype, np.integer) and value.dtype != np.uint8:
        assert ((value >= 0) & (value < 50)).all()
    np.testing.assert_array_equal(value, sample_inputs(one, batch, sequence, seed, tokens=50)[name])


def test_inputs_of_a_language_model_fit_each_other() -> None:
    declarations = [
        declared("input_ids", "tensor(int64)", ["batch", "sequence_length"]),
        declared("attention_mask", "tensor(int64)", ["batch", "past_sequence_length + sequence_length"]),
        declared("position_ids", "tensor(int64)", ["batch", "sequence_length"]),
        declared("past.0.key", "tensor(float16)", ["batch", 32, "past_sequence_length", 96]),
        declared("pixels", "tensor(float)", ["n", 3, "height", "width"]),
    ]
    inputs = sample_inputs(declarations, batch=2, sequence=5)
    assert len(np.unique(inputs["input_ids"])) > 5
    np.testing.assert_array_equal(inputs["attention_mask"], np.ones((2, 5)))
    np.testing.assert_array_equal(inputs["position_ids"], [[0, 1, 2, 3, 4]] * 2)
    assert inputs["past.0.key"].shape == (2, 32, 0, 96)
    assert inputs["pixels"].shape == (2, 3, 224, 224)
    wider = sample_inputs(declarations, batch=2, sequence=5, dimensions={"height": 8, "n": 7})
    assert wider["pixels"].shape == (7, 3, 8, 224)


def test_inputs_from_a_file_equal_those_from_its_session(tmp_path: Path) -> None:
    # The old way: the initializer "w" is declared as an input, too.
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    model = onnx_models.parsed("(float[n, m] x, float[3] w) => (float[] y) { y = Add(x, w) }", weight)
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    model.ir_version = 3
    path = tmp_path / "old.onnx"
    onnx.save(model, path)
    from_file = models.sample_inputs(path, batch=4, sequence=3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    from_session = sample_inputs(session.get_inputs(), batch=4, sequence=3)
    assert from_file.keys() == from_session.keys() == {"x"}
    assert from_file["x"].shape == (4, 3)
    np.testing.assert_array_equal(from_file["x"], from_session["x"])


@pytest.mark.parametrize(
    ("type", "arguments", "message"),
    [
        ("tensor(float)", {"dimensions": {"rows": 2}}, "no dynamic dimension called rows; its dimensions: n"),
        ("tensor(float)", {"batch": -1}, "size of batch must be at least 0, not -1"),
        ("tensor(float)", {"tokens": 0}, "tokens must be at least 1"),
        ("seq(tensor(float))", {}, r"input 'x' of type seq\(tensor\(float\)\); pass your own"),
    ],
)
def test_inputs_that_cannot_be_made_are_errors(type: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sample_inputs([declared("x", type, ["n"])], **arguments)


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="there is no model"):
        models.sample_inputs(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(InvalidProtobuf, match="is not an ONNX model"):
        models.sample_inputs(tmp_path / "text.onnx")


@pytest.mark.parametrize(
    ("shape", "shapes"),
    [
        ([None, 3, None], [(2, 3, 16), (2, 3, 64), (2, 3, 512)]),
        (["batch", 3, "height"], [(2, 3, 224)]),
        ([None, None, None, None], [(2, 16, 16, 16), (2, 64, 64, 64)]),
        (["n", "m"], [(2, 5)]),
    ],
)
def test_open_dimensions_grow_while_there_are_any_and_memory_for_them(shape: list[Any], shapes: list[Any]) -> None:
    dimensions = {"m": 5} if "m" in shape else {}
    found = growing_inputs([declared("x", "tensor(float)", shape)], 2, dimensions=dimensions)
    assert [one["x"].shape for one in found] == shapes


def test_the_open_dimension_of_a_state_is_a_batch_at_last() -> None:
    values = declared("x", "tensor(float)", [None, None]), declared("state", "tensor(float)", [2, None, 4])
    found = [(one["x"].shape, one["state"].shape) for one in growing_inputs(values, 3)]
    assert found == [*(((3, n), (2, n, 4)) for n in (16, 64, 512)), *(((3, n), (2, 3, 4)) for n in (16, 64, 512))]


def test_token_ids_get_smaller_at_last() -> None:
    values = declared("ids", "tensor(int64)", ["batch", "n"]), declared("mask", "tensor(int64)", ["batch", "n"])
    found = [(one["ids"].shape[1], int(one["ids"].max()), int(one["mask"].max())) for one in growing_inputs(values)]
    assert [length for length, _, _ in found] == [16, 64, 512] * 4
    assert [(30 <= most < 100, most < 30, most < 4, most < 2) for _, most, _ in found[::3]] == [
        *((True, False, False, False), (False, True, False, False), (False, True, True, False)),
        (False, True, True, True),
    ]
    assert {mask for _, _, mask in found} == {1}
    assert len(list(growing_inputs([declared("mask", "tensor(int64)", ["batch", "n"])]))) == 3


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_are_random_numbers(kind: str) -> None:
    type_ = f"tensor({kind.replace('8_', '8')})"
    x = sample_inputs([declared("x", type_, [4, 50])])["x"]
    assert x.dtype == getattr(ml_dtypes, kind)
    assert 0.8 < x.astype(np.float32).std() < 1.2
    assert (sample_inputs([declared("mask", type_, [4])])["mask"] == 1).all()


def test_the_first_inputs_that_fit_are_taken() -> None:
    def run(inputs: int) -> str:
        raise_for = {0: Fail("zero"), 1: OutOfMemory("one"), 2: InvalidArgument("two")}
        if inputs in raise_for:
            raise raise_for[inputs]
        return f"ran {inputs}"

    assert first_fit([0, 1, 2, 3, 4], run) == "ran 3"
    with pytest.raises(Fail, match="zero"):
        first_fit([0, 1, 2], run)
    with pytest.raises(OutOfMemory, match="one"):
        first_fit([1, 3], run)


# --- Files of inputs: good ones, and those that are none --------------------------------------------------------------


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _header(text: str, size: int = 120) -> bytes:
    """The first part of an .npy file, with this dictionary."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + text.encode().ljust(size - 1) + b"\n"


def _bytes(count: int) -> bytes:
    return _header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},), }}")


def _archive(content: bytes, name: str = "x.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


ARRAY = _npy(np.arange(1000.0))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive", "not a zip file"),
        (_archive(_npy(np.array([{}], object))), "array 'x': Python objects are never loaded"),
        (_archive(b"hello", name="readme.txt"), "array 'readme.txt': "),
        (_archive(ARRAY)[:60] + b"\xff" * 10 + _archive(ARRAY)[70:], "Error -3 while decompressing"),
        (_archive(_header("(" * 9000, 9100)), "array 'x': "),
        (_archive(_bytes(10**13)), "array 'x': "),
        (_archive(_bytes(10**9)), "array 'x': EOF"),
    ],
)
def test_damaged_arrays_are_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    with pytest.raises(
        InvalidArgument, match=r"inputs\.npz' is no \.npz file with an array for each input: .*" + reason
    ):
        read_arrays(path)


def test_arrays_that_need_more_memory_than_there_is_are_refused(tmp_path: Path) -> None:
    """A small file that would expand to 4 TiB: its members share their data."""
    content = bytearray(_archive(_bytes(10) + bytes(10)))
    place = content.find(b"PK\x01\x02")
    struct.pack_into("<I", content, place + 24, 2**32 - 2)  # the size in the central directory
    entry, end = content[place : content.find(b"PK\x05\x06")], content[content.find(b"PK\x05\x06") :]
    struct.pack_into("<HHI", end, 8, 1024, 1024, 1024 * len(entry))
    path = tmp_path / "inputs.npz"
    path.write_bytes(content[:place] + entry * 1024 + end)
    with pytest.raises(
        InvalidArgument, match=rf"its arrays need {1024 * (2**32 - 2)} bytes of memory, and \d+ are free"
    ):
        read_arrays(path)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in {"missing.npz": "No such file", "": "Is a directory", "fifo": "not a regular file"}.items():
        with pytest.raises(NoSuchFile, match=f"cannot be read: {reason}"):
            read_arrays(tmp_path / path)
    with pytest.raises(InvalidArgument, match="embedded null byte"):
        read_arrays(tmp_path / "a\0b")


def test_arrays_are_written_for_reading(tmp_path: Path) -> None:
    """Under any name, and strings without Python objects in the file."""
    arrays: dict[str, Any] = {
        "file": np.arange(6, dtype=np.int16).reshape(2, 3),
        "allow_pickle": np.asfortranarray(np.ones((2, 3))),
        "x.npy": np.array(2.5, np.float16),
        "a/b": np.zeros((0, 4)),
        "str": np.array([["a", "bc"], ["", "\u00e4"]], object),
        "bytes": np.array([b"a", b"bc"]),
        "mixed": np.array(["\u00e4", "\u00e4".encode()], object),
        "none": np.array([], object),
    }
    write_arrays(tmp_path / "arrays.npz", arrays)
    with np.load(tmp_path / "arrays.npz") as archive:  # without pickle
        assert len(archive.files) == len(arrays)
    found = read_arrays(tmp_path / "arrays.npz")
    assert list(found) == list(arrays)
    for name in ("file", "allow_pickle", "x.npy", "a/b"):
        assert found[name].dtype == arrays[name].dtype
        np.testing.assert_array_equal(found[name], arrays[name])
    assert found["str"].tolist() == arrays["str"].tolist()
    assert found["bytes"].tolist() == ["a", "bc"]
    assert found["mixed"].tolist() == ["\u00e4", "\u00e4"]
    assert found["none"].shape == (0,)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([None], "type NoneType"),
        (["a\0"], "NUL at the end"),
        ([b"\xff"], "UTF-8"),
    ],
)
def test_objects_that_no_file_keeps_are_refused(value: list[Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"input 'x' has .*{what}"):
        write_arrays(tmp_path / "arrays.npz", {"x": np.array(value, object)})


def test_dtypes_that_no_file_keeps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"'x' has the dtype bfloat16, which a \.npz file cannot keep"):
        write_arrays(tmp_path / "arrays.npz", {"x": np.ones(2, ml_dtypes.bfloat16)})
