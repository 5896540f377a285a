"""The keyword arguments of InferenceSession that onnxruntime does not document, and what programs read of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmulti
from tests import _models

MODEL = _models.matmul()
DISABLED = "optimization.disable_specified_optimizers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "model.onnx"
    result.write_bytes(MODEL)
    return result


def fusible() -> bytes:
    """y = relu(x) after two identities, which one optimizer takes out."""
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node(kind, [names[i]], [names[i + 1]]) for i, kind in enumerate(["Identity", "Relu", "Identity"])
    ]
    graph = helper.make_graph(
        nodes,
        "identities",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17)]
    result: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return result


def optimized(package: Any, file: Path, entry: str | None = None, **kwargs: Any) -> list[str]:
    """The operators of the graph that ONNX Runtime made of `fusible`."""
    options = package.SessionOptions()
    options.optimized_model_filepath = str(file)
    if entry is not None:
        options.add_session_config_entry(DISABLED, entry)
    package.InferenceSession(fusible(), options, providers=["CPUExecutionProvider"], **kwargs)
    if entry is None:
        with pytest.raises((ortmulti.Error, RuntimeError)):
            options.get_session_config_entry(DISABLED)
    else:
        assert options.get_session_config_entry(DISABLED) == entry
    return sorted(node.op_type for node in onnx.load(file).graph.node)


@pytest.mark.parametrize("names", [["EliminateIdentity"], {"EliminateIdentity", "Other"}, ("EliminateIdentity",), []])
def test_disabled_optimizers_are_left_out_as_in_onnxruntime(names: Any, tmp_path: Path) -> None:
    theirs = optimized(onnxruntime, tmp_path / "theirs.onnx", disabled_optimizers=names)
    assert optimized(ortmulti, tmp_path / "ours.onnx", disabled_optimizers=names) == theirs
    assert (theirs.count("Identity") > 0) == bool(names)


def test_disabled_optimizers_are_added_to_those_of_the_options(tmp_path: Path) -> None:
    """And the options are not changed, which `optimized` looks at."""
    kept = optimized(ortmulti, tmp_path / "a.onnx", "EliminateIdentity", disabled_optimizers=["ConstantFolding"])
    assert "Identity" in kept
    kept = optimized(ortmulti, tmp_path / "b.onnx", "ConstantFolding", disabled_optimizers=["EliminateIdentity"])
    assert "Identity" in kept


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"disabled_optimizers": "EliminateIdentity"}, ortmulti.InvalidType, "a list or a set of names"),
        ({"disabled_optimizers": 3}, ortmulti.InvalidType, "a list or a set of names"),
        ({"disabled_optimizers": [3]}, ortmulti.InvalidType, "holds names"),
        ({"disabled_optimizers": [""]}, ortmulti.InvalidArgument, "no optimizer's name"),
        ({"disabled_optimizers": ["a;b"]}, ortmulti.InvalidArgument, "no optimizer's name"),
        ({"enable_fallback": True}, ortmulti.NotImplemented, "a provider that cannot be used is an error"),
        ({"enable_fallback": "no"}, ortmulti.InvalidType, "True or False"),
        ({"read_config_from_model": 1}, ortmulti.NotImplemented, "C interface"),
        ({"provider": "CPU", "options": 1}, ortmulti.InvalidType, "argument 'options', 'provider'"),
    ],
)
def test_what_cannot_be_kept_is_an_error(arguments: Any, error: type[Exception], message: str, path: Path) -> None:
    with pytest.raises(error, match=message):
        ortmulti.InferenceSession(path, **arguments)


def test_flags_that_are_off_are_taken() -> None:
    session = ortmulti.InferenceSession(MODEL, enable_fallback=0, read_config_from_model=False)
    assert session.get_inputs()


@pytest.mark.parametrize("convert", [str, Path])
def test_the_models_path_is_where_onnxruntime_has_it(convert: Any, path: Path) -> None:
    """Not in the interface, and yet optimum reads it."""
    for package in (onnxruntime, ortmulti):
        assert package.InferenceSession(convert(path))._model_path == str(path)
        assert package.InferenceSession(MODEL)._model_path is None
