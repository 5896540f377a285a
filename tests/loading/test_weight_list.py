"""Which weights of a model can be shared, and where they lie."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import _core
from tests.support import onnx_models
from tests.support.weight_lists import Fields, bytes_of, fields

FLOATS = 256
"""Of float32: 1024 bytes, the least that is shared."""


def weight(name: str, size: int = FLOATS, seed: int = 0) -> TensorProto:
    return numpy_helper.from_array(np.random.default_rng(seed).standard_normal(size, dtype=np.float32), name)


def external(name: str, size: int = FLOATS, **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def graph(*initializers: TensorProto, nodes: Any = (), inputs: Any = (), name: str = "graph") -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), [], list(initializers))


def save(path: Path, *initializers: TensorProto, ir_version: int = 8, **kwargs: Any) -> str:
    model = helper.make_model(graph(*initializers, **kwargs), ir_version=ir_version)
    path.write_bytes(model.SerializeToString())
    return str(path)


def names(weights: _core.WeightList) -> list[str]:
    return [weight.name for weight in weights.weights]


def test_inline_and_external_weights_are_listed_with_their_files(tmp_path: Path) -> None:
    inline = weight("inline", seed=1)
    data = [weight("a", seed=2).raw_data, weight("b", seed=3).raw_data]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"xyz" + b"".join(data))
    path = save(
        tmp_path / "model.onnx",
        external("a", location="sub/w.bin", offset="3"),
        inline,
        external("b", location="./sub/w.bin", offset="1027", length="1024"),
    )

    found = _core.shareable_weights(path)

    assert bytes_of(found) == {"a": data[0], "inline": inline.raw_data, "b": data[1]}
    assert [fields(w)[:3] for w in found.weights] == [(n, TensorProto.FLOAT, [FLOATS]) for n in ("a", "inline", "b")]
    assert found.left_out == []
    assert found.sources[0] == _core.file_source(path)
    assert found.sources[1:] == [_core.file_source(str(tmp_path / "sub" / "w.bin"))]


def test_a_missing_length_is_the_dense_size_and_a_missing_offset_is_the_start(tmp_path: Path) -> None:
    data = weight("w").raw_data
    (tmp_path / "w.bin").write_bytes(data + b"more")
    for entries in ({}, {"length": "0"}, {"offset": "0"}):
        found = _core.shareable_weights(save(tmp_path / "model.onnx", external("w", location="w.bin", **entries)))
        assert bytes_of(found) == {"w": data}


def test_small_weights_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", weight("small", FLOATS - 1), weight("big"))
    assert names(_core.shareable_weights(path)) == ["big"]
    assert _core.shareable_weights(path).left_out == []
    assert names(_core.shareable_weights(path, 0)) == ["small", "big"]


def test_what_cannot_be_shared_is_named_with_the_reason(tmp_path: Path) -> None:
    words = numpy_helper.from_array(np.array(["word"] * FLOATS, dtype=object), "words")
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [FLOATS], [1.0] * FLOATS)
    complex_numbers = numpy_helper.from_array(np.zeros(FLOATS, np.complex64), "complex")
    wrong = weight("wrong")
    wrong.dims[:] = [FLOATS + 1]
    (tmp_path / "w.bin").write_bytes(bytes(5000))
    path = save(
        tmp_path / "model.onnx",
        words,
        typed,
        complex_numbers,
        wrong,
        weight("nul\0nul"),
        external("long", location="w.bin", length="1028"),
        weight("input"),
        weight("twice"),
        weight("good"),
        inputs=[helper.make_tensor_value_info("input", TensorProto.FLOAT, [FLOATS])],
        nodes=[
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                then_branch=graph(weight("twice"), name="then"),
                else_branch=graph(
                    weight("branch"),
                    nodes=[helper.make_node("Constant", [], ["constant"], value=weight(""))],
                    name="else",
                ),
            ),
            helper.make_node("If", ["c"], ["z"], then_branch=graph(weight("constant")), else_branch=graph()),
        ],
    )

    found = _core.shareable_weights(path)

    assert sorted(names(found)) == ["branch", "good"]
    reasons = {one.name: one.reason for one in found.left_out}
    assert reasons.pop("typed") == "its values are in a typed field of the model"
    assert reasons.pop("complex").startswith("tensors of its type (14)")
    assert reasons.pop("wrong") == "it has 1024 bytes where its type and shape need 1028"
    assert reasons.pop("long") == "it has 1028 bytes where its type and shape need 1024"
    assert reasons.pop("nul\0nul").startswith("it has no name")
    assert reasons.pop("input").startswith("it is an input")
    assert reasons.pop("twice").startswith("another initializer")
    assert reasons.pop("constant").startswith("a constant")
    assert reasons == {}


def test_names_that_are_not_utf8_come_and_go(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", weight("w??"))
    Path(path).write_bytes(Path(path).read_bytes().replace(b"w??", b"w\xff\xfe"))
    assert names(_core.shareable_weights(path)) == [b"w\xff\xfe".decode(errors="surrogateescape")]


def test_initializers_of_functions_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph(weight("w")), else_branch=graph())
    model = helper.make_model(graph(weight("v")), ir_version=8)
    model.functions.append(
        helper.make_function("custom", "F", ["c"], ["y"], [node], [helper.make_opsetid("", 17)], [], [])
    )
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    found = _core.shareable_weights(str(tmp_path / "model.onnx"))
    assert names(found) == ["v"]
    assert [one.name for one in found.left_out] == ["w"]


def test_in_old_models_every_initializer_is_an_input_and_none_is_overridable(tmp_path: Path) -> None:
    inputs = [helper.make_tensor_value_info("w", TensorProto.FLOAT, [FLOATS])]
    assert names(_core.shareable_weights(save(tmp_path / "3.onnx", weight("w"), inputs=inputs, ir_version=3))) == ["w"]
    assert names(_core.shareable_weights(save(tmp_path / "4.onnx", weight("w"), inputs=inputs, ir_version=4))) == []


def test_operators_are_named_with_their_domains() -> None:
    inner = graph(nodes=[helper.make_node("Gather", ["a", "b"], ["c"])])
    nodes = [
        helper.make_node("MatMulNBits", ["x"], ["y"], domain="com.microsoft"),
        helper.make_node("Relu", ["x"], ["z"], domain="ai.onnx"),
        helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner),
    ]
    model = helper.make_model(graph(nodes=nodes))
    model.functions.append(
        helper.make_function("custom", "F", ["c"], ["y"], [helper.make_node("Abs", ["c"], ["y"])], [], [], [])
    )
    index = _core.index_model(model.SerializeToString())
    assert index.operators == {"com.microsoft:MatMulNBits", "Relu", "If", "Gather", "Abs"}


def test_a_folder_that_is_replaced_meanwhile_leads_nowhere_else(tmp_path: Path) -> None:
    """The path that is checked and the file that is identified belong together."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for place in (folder / "sub", tmp_path / "elsewhere"):
        (place / "w.bin").write_bytes(bytes(1024))
    inside = _core.file_source(str(folder / "sub" / "w.bin"))
    path = save(folder / "model.onnx", external("w", location="sub/w.bin"))
    code = """if True:
        import os, sys
        folder, aside, elsewhere = sys.argv[1:]
        while True:
            os.rename(folder, aside)
            os.symlink(elsewhere, folder)
            os.unlink(folder)
            os.rename(aside, folder)
    """
    places = (folder / "sub", folder / "aside", tmp_path / "elsewhere")
    found = set()
    with subprocess.Popen([sys.executable, "-S", "-c", code, *places]) as replacing:
        try:
            for _ in range(10000):  # enough for several hits between a check and an identification
                with contextlib.suppress(ortmulti.Error):
                    files = _core.shareable_weights(path).sources
                    found |= {file.identity for file in files if file.name != path}
        finally:
            replacing.kill()
    assert found <= {inside.identity, inside.identity.replace("/sub/", "/aside/")}


def test_files_that_are_missing_short_or_elsewhere_are_named_with_the_tensor(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside.bin").write_bytes(bytes(1024))
    (folder / "short.bin").write_bytes(bytes(1023))
    (folder / "out.link").symlink_to(tmp_path / "outside.bin")
    (folder / "sub.link").symlink_to(tmp_path)

    def problem(**entries: str) -> str:
        with pytest.raises(ortmulti.Error) as caught:
            _core.shareable_weights(save(folder / "model.onnx", external("the weight", **entries)))
        return str(caught.value)

    missing = problem(location="missing.bin")
    assert "'the weight'" in missing
    assert "missing.bin': No such file" in missing
    assert "1024 bytes from 0, and" in problem(location="short.bin")
    assert "1024 bytes from 1, and" in problem(location="sub/../short.bin", offset="1")
    assert "1024 bytes from 18446744073709551615" in problem(location="short.bin", offset=str(2**64 - 1))
    assert "names no file" in problem(location="")
    assert "names no file" in problem(offset="0")
    assert "must be relative" in problem(location=str(folder / "short.bin"))
    for location in ("../outside.bin", "sub/../../outside.bin", "out.link", "sub.link/outside.bin"):
        assert "is outside of the model's folder" in problem(location=location)
    assert "not a regular file" in problem(location="sub")
    os.mkfifo(folder / "pipe")
    assert "not a regular file" in problem(location="pipe")
    with pytest.raises(ortmulti.InvalidProtobuf, match="no number"):
        _core.shareable_weights(save(folder / "model.onnx", external("w", location="short.bin", offset="-1")))


def test_small_external_tensors_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ortmulti.NoSuchFile, match="'tiny'"):
        _core.shareable_weights(save(tmp_path / "model.onnx", external("tiny", 1, location="missing.bin")))


def test_data_may_lie_where_a_link_to_the_model_leads(tmp_path: Path) -> None:
    # As in caches that keep content in one folder and links to it in another.
    blobs, snapshot, elsewhere = (tmp_path / name for name in ("blobs", "snapshot", "elsewhere"))
    for folder in (blobs, snapshot, elsewhere):
        folder.mkdir()
    data = weight("w").raw_data
    (blobs / "2").write_bytes(data)
    (elsewhere / "3").write_bytes(data)
    save(blobs / "1", external("w", location="model.data"))
    (snapshot / "model.onnx").symlink_to(blobs / "1")
    (snapshot / "model.data").symlink_to(blobs / "2")
    assert bytes_of(_core.shareable_weights(str(snapshot / "model.onnx"))) == {"w": data}

    (snapshot / "model.data").unlink()
    (snapshot / "model.data").symlink_to(elsewhere / "3")
    with pytest.raises(ortmulti.Fail, match="is outside of the model's folder"):
        _core.shareable_weights(str(snapshot / "model.onnx"))


def test_a_model_in_the_working_folder_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "model.onnx", external("w", location="w.bin"))
    (tmp_path / "w.bin").write_bytes(weight("w").raw_data)
    monkeypatch.chdir(tmp_path)
    assert bytes_of(_core.shareable_weights("model.onnx")) == {"w": weight("w").raw_data}


@pytest.mark.parametrize("name", ["missing.onnx", "."])
def test_a_model_that_is_no_file_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ortmulti.NoSuchFile, match=name):
        _core.shareable_weights(str(tmp_path / name))


tensor_names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
FILE_BYTES = 1 << 40


@st.composite
def weights_in_file(draw: st.DrawFn) -> Fields:
    """A weight of floats in the second of two files."""
    shape = draw(st.lists(st.integers(0, 2**7), max_size=4))
    length = 4 * math.prod(shape)
    return draw(tensor_names), 1, shape, 1, draw(st.integers(0, FILE_BYTES - length)), length


@given(st.lists(weights_in_file()), st.lists(st.tuples(st.text(), st.text())))
def test_a_list_is_what_it_was_made_of(
    tmp_path_factory: pytest.TempPathFactory, weights: list[Fields], left_out: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "sparse"
    path.touch()
    os.truncate(path, FILE_BYTES)
    files = [_core.memory_source("first", b"abc"), _core.file_source(str(path))]
    found = _core.WeightList(
        files, [_core.Weight(*each) for each in weights], [_core.LeftOut(*each) for each in left_out]
    )
    assert found.sources == files
    assert [fields(weight) for weight in found.weights] == weights
    assert [(each.name, each.reason) for each in found.left_out] == left_out


def test_a_list_names_only_files_that_it_has() -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="names source 1 of 1"):
        _core.WeightList([_core.memory_source("a", bytes(4))], [_core.Weight("w", 1, [1], 1, 0, 4)])


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (("w", 8, [2], 0, 0, 64), "its type .8. cannot"),  # strings: ONNX Runtime would follow pointers from the file
        (("w", 0, [2], 0, 0, 0), "its type .0. cannot"),
        (("w", -1, [2], 0, 0, 8), "its type .-1. cannot"),
        (("w", 1, [2], 0, 0, 4), "4 bytes where its type and shape need 8"),
        (("w", 1, [-1, -2], 0, 0, 8), "8 bytes where"),
        (("w", 1, [2**62, 4], 0, 0, 0), "0 bytes where"),
        (("w", 1, [2], 0, 93, 8), "outside of its source"),
        (("w", 1, [2], 0, 2**64 - 4, 8), "outside of its source"),
        (("", 1, [2], 0, 0, 8), "no name"),
        (("a\0b", 1, [2], 0, 0, 8), "no name"),
    ],
)
def test_a_list_has_no_weight_that_onnx_runtime_cannot_be_given(weight: Any, message: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        _core.WeightList([_core.memory_source("a", bytes(100))], [_core.Weight(*weight)])


BLOCK = 4 << 20


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_a_checksum_notices_every_kind_of_damage(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    path = tmp_path / "file"

    def checksum(data: bytes) -> int:
        path.write_bytes(data)
        return _core.file_checksum(str(path))

    sums = {checksum(content.tobytes())}
    assert sums == {checksum(content.tobytes())}
    damaged = [content.tobytes() + b"\0"]
    if size:
        damaged.append(content.tobytes()[:-1])
        for position in {0, size // 2, size - 1}:
            for bit in (0, 7):
                flipped = content.copy()
                flipped[position] ^= 1 << bit
                damaged.append(flipped.tobytes())
    if size > 16:
        damaged.append(np.roll(content, 8).tobytes())
        damaged.append(bytes(size))
    if size > 2 * BLOCK:
        damaged.append(np.concatenate([content[BLOCK : 2 * BLOCK], content[:BLOCK], content[2 * BLOCK :]]).tobytes())
    sums |= {checksum(data) for data in damaged}
    assert len(sums) == 1 + len(damaged)


def test_the_checksum_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ortmulti.NoSuchFile, match="nowhere"):
        _core.file_checksum(str(tmp_path / "nowhere"))
    with pytest.raises(ortmulti.NoSuchFile, match="not a regular file"):
        _core.file_checksum(str(tmp_path))


def test_a_checksum_ends_when_its_caller_wants_no_more(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 42)  # hours of reading
    with pytest.raises(ZeroDivisionError):
        _core.file_checksum(str(large), lambda: 1 / 0)


def test_weights_within_a_model_become_external_data_of_the_same_file(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.arange(200, dtype=np.int64), "shape")
    large, small = (numpy_helper.from_array(np.ones(size, np.float32), f"w{size}") for size in (300, 20))
    nodes = [helper.make_node("Add", ["x", "w300"], ["y"])]
    proto = onnx_models.model(
        nodes, [("x", TensorProto.FLOAT, [300])], [("y", TensorProto.FLOAT, [300])], [shape, large, small]
    )
    path, link = tmp_path / "blobs" / "file", tmp_path / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(proto.SerializeToString())
    link.symlink_to(path)
    content, folder, weights = _core.put_weights_outside(str(link))
    assert folder == str(path.parent)
    assert names(weights) == ["w300"]
    outside = onnx.load_from_string(content)
    found = {tensor.name: tensor for tensor in outside.graph.initializer}
    assert {name: tensor.data_location for name, tensor in found.items()} == {"shape": 0, "w300": 1, "w20": 0}
    onnx.external_data_helper.load_external_data_for_model(outside, folder)
    np.testing.assert_array_equal(numpy_helper.to_array(found["w300"]), np.ones(300, np.float32))
    # Nothing is left to do.
    assert _core.put_weights_outside(str(onnx_models.write_external(tmp_path / "external")[0]))[0] == b""


def test_weights_stay_in_a_model_whose_external_data_lies_in_the_folder_of_a_link(tmp_path: Path) -> None:
    model, data = onnx_models.write_external(tmp_path / "blobs")
    proto = onnx.load(model, load_external_data=False)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(300, np.float32), "within"))
    model.write_bytes(proto.SerializeToString())
    for file in (model, data):
        (tmp_path / file.name).symlink_to(file)
    content, _, weights = _core.put_weights_outside(str(tmp_path / model.name))
    assert content == b""
    assert sorted(names(weights)) == ["weight0", "weight1"]
