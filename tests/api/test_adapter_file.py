"""The file format of LoRA adapters: round trips with onnxruntime's AdapterFormat, and damaged files."""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ortmulti
from ortmulti.interface import adapter_file
from tests.support.values import assert_same

DTYPES = [np.dtype(kind) for kind in "bBhHiIlLefd"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
)
versions = st.integers(-(2**31), 2**31 - 1)
parameters = st.dictionaries(st.text(min_size=1, max_size=20).filter(lambda t: "\0" not in t), arrays, max_size=5)

# A folder for each test serves all of its examples: each writes its file anew.
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(module: Any, path: Path, adapter_version: int, model_version: int, values: dict[str, Any]) -> None:
    adapter = module.AdapterFormat()
    adapter.set_adapter_version(adapter_version)
    adapter.set_model_version(model_version)
    adapter.set_parameters({k: module.OrtValue.ortvalue_from_numpy(v) for k, v in values.items()})
    adapter.export_adapter(str(path))


@pytest.mark.parametrize(("writer", "reader"), list(itertools.product((ortmulti, onnxruntime), repeat=2))[:3])
@EXAMPLES
@given(adapter_version=versions, model_version=versions, values=parameters)
def test_round_trips(
    tmp_path: Path, writer: Any, reader: Any, adapter_version: int, model_version: int, values: dict[str, Any]
) -> None:
    path = tmp_path / "adapter"
    write(writer, path, adapter_version, model_version, values)
    read = reader.AdapterFormat.read_adapter(str(path))
    assert read.get_format_version() == 1
    assert read.get_adapter_version() == adapter_version
    assert read.get_model_version() == model_version
    found = {name: value.numpy() for name, value in read.get_parameters().items()}
    assert_same(dict(sorted(found.items())), dict(sorted(values.items())))
    onnxruntime.LoraAdapter().Load(str(path))
    ortmulti.LoraAdapter().Load(path)


# ONNX's numbers of the types that ONNX Runtime takes, by the bytes of an element.
TYPES = {1: (2, 3, 17, 18, 19, 20), 2: (4, 5, 10, 16), 4: (1, 6, 12), 8: (7, 11, 13)}


def test_other_types_are_refused() -> None:
    for data_type in {*range(30)} - {each for types in TYPES.values() for each in types}:
        with pytest.raises(ortmulti.InvalidArgument, match=f"ONNX's type {data_type}, which"):
            adapter_file.check_parameter("p", data_type, (1,))


@pytest.mark.parametrize(("data_type", "size"), [(each, size) for size, types in TYPES.items() for each in types])
def test_every_type(data_type: int, size: int, tmp_path: Path) -> None:
    bits = np.arange(6, dtype=f"u{size}").reshape(2, 3)
    adapter = ortmulti.AdapterFormat()
    adapter.set_parameters({"p": ortmulti.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, data_type)})
    adapter.export_adapter(tmp_path / "adapter")
    theirs = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "adapter")).get_parameters()["p"]
    assert theirs.element_type() == data_type
    assert theirs.shape() == [2, 3]
    ours = ortmulti.AdapterFormat.read_adapter(tmp_path / "adapter").get_parameters()["p"]
    assert ours.element_type() == data_type
    assert ortmulti._core.bytes_of(ours._core).tobytes() == bits.tobytes()


# --- Damaged files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    write(ortmulti, tmp_path / "good", 1, 2, {"first": np.ones((2, 3), np.float32), "second": np.arange(3)})
    return (tmp_path / "good").read_bytes()


def read(path: Path, data: bytes) -> dict[str, Any]:
    path.write_bytes(data)
    found = ortmulti.AdapterFormat.read_adapter(path).get_parameters()
    return {name: value.numpy().copy() for name, value in found.items()}


def test_every_truncation_is_an_error(good: bytes, tmp_path: Path) -> None:
    whole, messages = read(tmp_path / "bad", good), []
    for size in range(len(good)):
        try:
            found = read(tmp_path / "bad", good[:size])
        except ortmulti.InvalidArgument as error:
            messages.append(str(error))
            with pytest.raises(ortmulti.InvalidArgument):
                ortmulti.LoraAdapter().Load(tmp_path / "bad")
        else:
            assert size >= len(good) - 3, "only what aligns the end may be missing"
            assert all((found[name] == whole[name]).all() for name in whole)
    start = f"the adapter '{tmp_path / 'bad'}' cannot be read: "
    assert all(message.startswith(start) for message in messages)


@EXAMPLES
@given(data=st.data(), anything=st.none() | st.binary(max_size=300))
def test_any_damage_gives_an_adapter_or_the_error(
    good: bytes, tmp_path: Path, data: st.DataObject, anything: bytes | None
) -> None:
    """And any bytes about the identifier."""
    damaged = bytearray(good if anything is None else anything[:4] + b"TORT" + anything[4:])
    for _ in range(data.draw(st.integers(1, 4)) if anything is None else 0):
        place = data.draw(st.integers(0, len(good) - 4))
        damaged[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
    with contextlib.suppress(ortmulti.InvalidArgument):
        read(tmp_path / "bad", bytes(damaged))
    with contextlib.suppress(ortmulti.InvalidArgument):
        ortmulti.LoraAdapter().Load(tmp_path / "bad")


def patched(good: bytes, old: bytes, new: bytes) -> bytes:
    assert good.count(old) == 1
    return good.replace(old, new)


def test_damage_by_its_kind(good: bytes, tmp_path: Path) -> None:
    shape = np.array([2, 3]).tobytes()
    cases = {
        "it has 0 bytes": b"",
        "no ONNX Runtime adapter": b"x" * 100,
        "version 2 of the format": good[: 8 + 12 + 4] + b"\2" + good[8 + 12 + 5 :],
        "two parameters of the name 'first'": patched(good, b"\6\0\0\0second", b"\5\0\0\0first\0"),
        "not UTF-8": patched(good, b"first", b"\xff\xfe\xfd\xfc\xfb"),
        "has 24 bytes and not 32": patched(good, shape, np.array([2, 4]).tobytes()),
        f"has 24 bytes and not {2**64}": patched(good, shape, np.array([2**31, 2**31]).tobytes()),
        "none may be below 0": patched(good, shape, np.array([-2, -3]).tobytes()),
        "cannot be read": patched(good, shape + b"\0\0\0\0\x18\0\0\0", np.array([0, 2**62]).tobytes() + b"\0" * 8),
    }
    for message, data in cases.items():
        with pytest.raises(ortmulti.InvalidArgument, match=message):
            read(tmp_path / "bad", data)


def _overlapping_names(count: int) -> bytes:
    """An adapter of `count` parameters whose names of some 300 bytes share one region."""
    entries = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
    file = bytearray(struct.pack("<I4s", 20, b"TORT") + entries + struct.pack("<5i", 12, 1, 0, 0, 4))
    vector, tables = len(file) + 4, len(file) + 4 + 4 * count + len(entries)
    dims = tables + 20 * count
    data, names = dims + 12, dims + 16
    file += struct.pack("<I", count)
    file += b"".join(struct.pack("<I", tables + 20 * i - (vector + 4 * i)) for i in range(count)) + entries
    for table in range(tables, dims, 20):
        name = names + (table - tables) // 5  # four bytes further for each
        file += struct.pack("<iIIiI", 12 + table - tables, name - table - 4, dims - table - 8, 1, data - table - 16)
    file += struct.pack("<IqI", 1, 0, 0)
    # Each word is the length of a name, and part of the names before it.
    return bytes(file) + b"".join(struct.pack("<I", 256 + i) for i in range(count)) + b"a" * 512


def test_names_that_overlap_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(_overlapping_names(1))
    [name] = ortmulti.AdapterFormat.read_adapter(tmp_path / "one").get_parameters()
    assert name == "a" * 256
    (tmp_path / "many").write_bytes(_overlapping_names(100))
    for read in (ortmulti.AdapterFormat.read_adapter, ortmulti.LoraAdapter().Load):
        with pytest.raises(ortmulti.InvalidArgument, match="together longer than the file"):
            read(tmp_path / "many")


def test_what_cannot_be_an_adapter_is_not_read(tmp_path: Path) -> None:
    """A FIFO, which would hang, and a file of 2 GiB without data."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**31)
    for name, message in (("fifo", "not a regular file"), ("large", "has 2147483648 bytes.*at most 2147483647")):
        for read in (ortmulti.AdapterFormat.read_adapter, ortmulti.LoraAdapter().Load):
            with pytest.raises(ortmulti.Error, match=message):
                read(tmp_path / name)


def test_many_dimensions(tmp_path: Path) -> None:
    tensor = adapter_file.Tensor(1, (1,) * 200, np.zeros(4, np.uint8))
    chunks = adapter_file.chunks(adapter_file.Adapter(parameters={"p": tensor}))
    (tmp_path / "deep").write_bytes(b"".join(bytes(chunk) for chunk in chunks))
    with pytest.raises(ortmulti.InvalidArgument, match="cannot be read"):
        ortmulti.AdapterFormat.read_adapter(tmp_path / "deep")


def test_a_file_of_more_than_2_gib_is_not_begun() -> None:
    data = np.broadcast_to(np.zeros(1, np.uint8), 2**30)
    tensors = {name: adapter_file.Tensor(2, (2**30,), data) for name in "ab"}
    with pytest.raises(ortmulti.InvalidArgument, match=str(2**31 - 1)):
        next(adapter_file.chunks(adapter_file.Adapter(parameters=tensors)))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "adapter"
    for call in (
        ortmulti.AdapterFormat.read_adapter,
        ortmulti.AdapterFormat().export_adapter,
        ortmulti.LoraAdapter().Load,
    ):
        with pytest.raises(ortmulti.NoSuchFile, match=str(missing)):
            call(missing)
        with pytest.raises(ortmulti.Fail, match="irectory"):
            call(tmp_path)
        for wrong in (5, None, b"adapter"):
            with pytest.raises(ortmulti.InvalidType, match="file_path is a str"):
                call(wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole(good: bytes, tmp_path: Path) -> None:
    adapter = ortmulti.AdapterFormat.read_adapter(tmp_path / "good")
    adapter.export_adapter(tmp_path / "good")
    assert (tmp_path / "good").read_bytes() == good
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


# --- The objects ------------------------------------------------------------------------------------------------------


def test_versions() -> None:
    adapter = ortmulti.AdapterFormat()
    assert (adapter.get_format_version(), adapter.get_adapter_version(), adapter.get_model_version()) == (1, 0, 0)
    for wrong in ("1", 1.5, None, True):
        with pytest.raises(ortmulti.InvalidType):
            adapter.set_adapter_version(wrong)
        with pytest.raises(ortmulti.InvalidType):
            adapter.set_model_version(wrong)
    for wrong in (2**31, -(2**31) - 1):
        with pytest.raises(ortmulti.InvalidArgument, match="is -2147483648 to 2147483647, not"):
            adapter.set_adapter_version(wrong)


def test_parameters_that_cannot_be() -> None:
    adapter = ortmulti.AdapterFormat()
    value = ortmulti.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32))
    adapter.set_parameters({"p": value})
    for wrong in (5, [value], None, {"p": np.ones(3)}, {1: value}, {"p": None}):
        with pytest.raises(ortmulti.InvalidType):
            adapter.set_parameters(wrong)
    scalar = ortmulti.OrtValue.ortvalue_from_numpy(np.array(1.0))
    text = ortmulti.OrtValue.ortvalue_from_numpy(np.array(["a"]))
    for bad in ({"": value}, {"\ud800": value}, {"p": scalar}, {"p": text}):
        with pytest.raises(ortmulti.InvalidArgument):
            adapter.set_parameters(bad)
    for kind in (9, 21, 22):
        other = ortmulti.OrtValue.ortvalue_from_shape_and_type([2], kind)
        with pytest.raises(ortmulti.InvalidArgument, match=f"'p' has elements of ONNX's type {kind}"):
            adapter.set_parameters({"p": other})
    assert list(adapter.get_parameters()) == ["p"], "a call that raised has changed something"


@pytest.mark.usefixtures("good")
def test_values_keep_their_memory(tmp_path: Path) -> None:
    value = ortmulti.AdapterFormat.read_adapter(tmp_path / "good").get_parameters()["first"]
    (tmp_path / "good").write_bytes(b"")
    np.testing.assert_array_equal(value.numpy(), np.ones((2, 3), np.float32))


def test_an_adapter_of_another() -> None:
    first = ortmulti.AdapterFormat()
    first.set_adapter_version(3)
    second = ortmulti.AdapterFormat(first)
    first.set_adapter_version(4)
    assert second.get_adapter_version() == 3
    with pytest.raises(ortmulti.InvalidType):
        ortmulti.AdapterFormat(5)
