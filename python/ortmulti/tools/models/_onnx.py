"""From a described graph to an ONNX model. The only place that needs the onnx package to write one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortmulti._create.sample_inputs import require_onnx
from ortmulti.tools.models._graph import IR_VERSION, OPSET, Graph, Node, Value, Weight
from ortmulti.tools.models._random import NormalSource


def serialize(graph: Graph, data_name: str, source: NormalSource) -> bytes:
    """The .onnx file's bytes.

    Args:
        graph: The model.
        data_name: Name of the file beside it that holds, or will hold, the external weights.
        source: Where the values of the weights inside the file come from.

    Returns:
        The serialized model.
    """
    onnx = require_onnx()
    offsets = {weight.name: offset for weight, offset in graph.external_layout()[0]}
    tensors = [
        _external(onnx, weight, data_name, offsets[weight.name])
        if weight.name in offsets
        else onnx.numpy_helper.from_array(source.array(weight), weight.name)
        for weight in graph.weights
    ]
    body = onnx.helper.make_graph(
        [_node(onnx, node) for node in graph.nodes],
        graph.name,
        [_value(onnx, value) for value in graph.inputs],
        [_value(onnx, value) for value in graph.outputs],
        tensors,
        value_info=[_value(onnx, value) for value in graph.values],
    )
    model = onnx.helper.make_model(
        body,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ortmulti",
    )
    result: bytes = model.SerializeToString(deterministic=True)
    return result


def _node(onnx: Any, node: Node) -> Any:
    attributes = {
        key: onnx.helper.np_dtype_to_tensor_dtype(value) if isinstance(value, np.dtype) else value
        for key, value in node.attributes.items()
    }
    return onnx.helper.make_node(node.op, node.inputs, node.outputs, name=node.name, **attributes)


def _value(onnx: Any, value: Value) -> Any:
    element_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_value_info(value.name, element_type, value.shape)


def _external(onnx: Any, weight: Weight, data_name: str, offset: int) -> Any:
    tensor = onnx.TensorProto(
        name=weight.name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(weight.dtype),
        dims=weight.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", data_name), ("offset", offset), ("length", weight.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
