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
from tests.support.generated_models import initializers, models


def facts(initializer: _core.Initializer) -> tuple[Any, ...]:
    return (initializer.name, initializer.data_type, tuple(initializer.shape), initializer.storage)


@given(models(external=True))
def test_every_initializer_is_found_as_the_onnx_package_finds_it(model: onnx.ModelProto) -> None:
    content = model.SerializeToString()
    for initializer, tensor in zip(_core.index_model(content).initializers, initializers(model), strict=True):
        external = {entry.key: entry.value for entry in tensor.external_data}
        storage = "external" if external else "inline" if tensor.HasField("raw_data") else "typed"
        assert facts(initializer) == (tensor.name.encode(), tensor.data_type, tuple(tensor.dims), storage)
        width = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
        assert initializer.length == int(np.prod(tensor.dims, dtype=np.int64)) * width
        if storage == "inline":
            assert content[initializer.offset : initializer.offset + initializer.length] == tensor.raw_data
        if storage == "external":
            assert (initializer.location.decode(), initializer.offset) == (
                external["location"],
                int(external["offset"]),
            )


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


@given(models(external=True), st.data())
def test_damaged_models_are_an_index_or_one_error(model: onnx.ModelProto, data: st.DataObject) -> None:
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
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


def test_large_attributes_are_counted_at_every_depth_but_no_graphs() -> None:
    def constant(name: str, size: int) -> onnx.NodeProto:
        value = numpy_helper.from_array(np.zeros(size, np.float32), name)
        return helper.make_node("Constant", [], [name], value=value)

    graphs = [
        helper.make_graph([constant(name, 1000)], name, [], [helper.make_tensor_value_info(name, 1, [1000])])
        for name in ("a", "b")
    ]
    floats = helper.make_node("Trees", ["x"], ["t"], values=[0.5] * 1000, tiny=[1.0, 2.0], domain="ai.onnx.ml")
    nodes = [
        floats,
        constant("c", 1000),
        constant("d", 10),
        helper.make_node("If", ["x"], ["y"], then_branch=graphs[0], else_branch=graphs[1]),
    ]
    content = onnx_models.model(nodes, [("x", TensorProto.BOOL, [1])], [("y", TensorProto.FLOAT, [1000])])
    weights = [graph.node[0].attribute[0] for graph in graphs] + [nodes[1].attribute[0], floats.attribute[-1]]
    large = [one for one in weights if one.ByteSize() >= 1024]
    assert len(large) == 4
    assert _core.index_model(content.SerializeToString()).attribute_bytes == sum(one.ByteSize() for one in large)
