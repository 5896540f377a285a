"""The core's reader of ONNX models against the onnx package, on generated and on hostile models."""

from __future__ import annotations

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

TYPES = [np.float32, np.float16, np.float64, np.int8, np.int64, np.uint16, np.bool_]


@st.composite
def tensors(draw: st.DrawFn, name: str) -> TensorProto:
    array = np.zeros(draw(st.lists(st.integers(0, 5), max_size=3)), draw(st.sampled_from(TYPES)))
    kind = draw(st.sampled_from(["inline", "typed", "external", "external without length"]))
    if kind == "typed":
        return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.ravel())
    tensor = numpy_helper.from_array(array, name)
    if kind != "inline":
        entries: dict[str, Any] = {"location": draw(st.sampled_from(["w.bin", "folder/w é.bin"])), "checksum": "none"}
        entries["offset"] = draw(st.integers(0, 2**63))
        if kind == "external":
            entries["length"] = array.nbytes
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    return tensor


@st.composite
def graphs(draw: st.DrawFn, depth: int = 0) -> onnx.GraphProto:
    weights = [draw(tensors(f"w{depth}.{i}")) for i in range(draw(st.integers(0, 3)))]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="é")]
    for _ in range(draw(st.integers(0, 2 if depth < 2 else 0))):
        branches = {name: draw(graphs(depth + 1)) for name in ("then_branch", "else_branch")}
        nodes.append(helper.make_node("If", ["c"], ["y"], **branches))
    return helper.make_graph(nodes, f"graph {depth}", [], [], weights, doc_string="text" * depth)


def expected(graph: onnx.GraphProto) -> list[TensorProto]:
    """All initializers: a graph's own, then those of its nodes' graphs, depth first."""
    found = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += expected(attribute.g)
    return found


def facts(initializer: _core.Initializer) -> tuple[Any, ...]:
    return (initializer.name, initializer.data_type, tuple(initializer.shape), initializer.storage)


@given(graphs())
def test_every_initializer_is_found_as_the_onnx_package_finds_it(graph: onnx.GraphProto) -> None:
    model = helper.make_model(graph).SerializeToString()
    found = _core.index_model(model).initializers

    wanted = expected(graph)
    assert sorted(facts(initializer) for initializer in found) == sorted(
        (
            tensor.name.encode(),
            tensor.data_type,
            tuple(tensor.dims),
            "external"
            if tensor.data_location == TensorProto.EXTERNAL
            else "inline"
            if tensor.HasField("raw_data")
            else "typed",
        )
        for tensor in wanted
    )
    lengths = {tensor.name.encode(): [] for tensor in wanted}  # type: dict[bytes, list[int]]
    for tensor in wanted:
        width = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
        lengths[tensor.name.encode()].append(int(np.prod(tensor.dims, dtype=np.int64)) * width)
    for initializer in found:
        assert initializer.length in lengths[initializer.name]
        if initializer.storage == "inline":
            raw = model[initializer.offset : initializer.offset + initializer.length]
            assert any(t.raw_data == raw for t in wanted if t.name.encode() == initializer.name)
        if initializer.storage == "external":
            entries = [
                {entry.key: entry.value for entry in t.external_data}
                for t in wanted
                if t.name.encode() == initializer.name
            ]
            assert (initializer.location.decode(), str(initializer.offset)) in [
                (entry["location"], entry["offset"]) for entry in entries if entry
            ]


@pytest.mark.parametrize("place", onnx_models.external_places())
def test_external_files_of_every_tensor_are_found(place: str) -> None:
    model = onnx_models.external_places()[place]
    files = [b"a.bin", b"b.bin"] if "sparse" in place else [b"a.bin"]
    assert _core.index_model(model.SerializeToString()).external_locations == files
    model.graph.initializer.append(onnx_models.external_tensor("w", "0.bin", 4))
    model.graph.initializer.append(onnx_models.external_tensor("v", "a.bin", 4))
    assert _core.index_model(model.SerializeToString()).external_locations == [b"0.bin", *files]


def test_tensors_of_the_model_itself_name_no_external_file() -> None:
    model = onnx_models.external_places()["attribute"]
    tensor = model.graph.node[0].attribute[0].t
    tensor.data_location = TensorProto.DEFAULT  # its external_data does not count
    assert _core.index_model(model.SerializeToString()).external_locations == []


def field(number: int, payload: bytes) -> bytes:
    """A field of protobuf's wire format that holds bytes."""

    def varint(value: int) -> bytes:
        parts = bytearray()
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        parts.append(value)
        return bytes(parts)

    return varint(number << 3 | 2) + varint(len(payload)) + payload


def test_tensor_given_in_two_fields_is_merged() -> None:
    location = TensorProto()
    location.external_data.add(key="location", value="a.bin")
    parts = location, TensorProto(data_location=TensorProto.EXTERNAL)
    attribute = b"".join(field(5, part.SerializeToString()) for part in parts)
    model = field(7, field(1, field(5, attribute)))
    assert onnx.ModelProto.FromString(model).graph.node[0].attribute[0].t.external_data == location.external_data
    assert _core.index_model(model).external_locations == [b"a.bin"]


def test_graph_given_in_two_fields_is_merged() -> None:
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    declared = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    parts = onnx.GraphProto(initializer=[weight]), onnx.GraphProto(input=[declared])
    version = b"\x08\x08"  # ir_version 8
    for order in (parts, parts[::-1]):
        model = version + b"".join(field(7, part.SerializeToString()) for part in order)
        inner, separate = (b"".join(field(number, part.SerializeToString()) for part in order) for number in (6, 11))
        sub_graph, two_graphs = (version + field(7, field(1, field(5, value))) for value in (inner, separate))
        [of_model] = _core.index_model(model).initializers
        [of_attribute] = _core.index_model(sub_graph).initializers
        assert (of_model.overridable, of_model.graph) == (True, 0)
        assert (of_attribute.overridable, of_attribute.graph) == (True, 1)
        assert not _core.index_model(two_graphs).initializers[0].overridable


@given(st.binary(max_size=200))
def test_any_bytes_are_an_index_or_one_error(data: bytes) -> None:
    message = "not an ONNX model"
    try:
        _core.index_model(data)
    except ortmulti.InvalidProtobuf as error:
        message = str(error)
    assert "not an ONNX model" in message


@given(graphs(), st.data())
def test_damaged_models_are_an_index_or_one_error(graph: onnx.GraphProto, data: st.DataObject) -> None:
    model = bytearray(helper.make_model(graph).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(model[: data.draw(st.integers(0, len(model)))])
    try:
        found = _core.index_model(cut).initializers
    except ortmulti.InvalidProtobuf:
        return
    inline = [initializer for initializer in found if initializer.storage == "inline"]
    assert all(initializer.offset + initializer.length <= len(cut) for initializer in inline)


def test_graphs_nested_beyond_measure_are_an_error_and_no_crash() -> None:
    # Built from the inside out as bytes: a node with an attribute with a graph, 5,000 times.
    graph = b""
    for _ in range(5000):
        graph = field(1, field(5, field(6, graph)))
    with pytest.raises(ortmulti.InvalidProtobuf, match="nested too deeply"):
        _core.index_model(field(7, graph))
