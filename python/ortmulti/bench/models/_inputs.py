"""Random inputs for a model in a file."""

from __future__ import annotations

import os
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray

from ortmulti.create import sample_inputs as of_declarations
from ortmulti.create.sample_inputs import SEQUENCE, Declaration
from ortmulti.errors import InvalidProtobuf, LibraryError, NoSuchFile


def require_onnx() -> Any:
    """Import the onnx package.

    Raises:
        ortmulti.errors.LibraryError: It is not installed; the message says how to install it.
    """
    try:
        return import_module("onnx")
    except ImportError as error:
        message = f'models need the onnx package ({error}); install it with: pip install "ortmulti[models]"'
        raise LibraryError(message) from error


def sample_inputs(
    model: str | os.PathLike[str], batch: int = 1, sequence: int = SEQUENCE, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Make an array for each input that a model in a file declares.

    Args:
        model: Path of an .onnx file (needs the onnx package).
        batch, sequence, seed: As for `ortmulti.create.sample_inputs.sample_inputs`, which makes the arrays.

    Raises:
        ortmulti.errors.NoSuchFile: The file does not exist.
        ortmulti.errors.InvalidProtobuf: The file is not an ONNX model.
        ortmulti.errors.LibraryError: The onnx package is not installed.
        ortmulti.errors.InvalidArgument: As there.
    """
    onnx = require_onnx()
    decode_error = import_module("google.protobuf.message").DecodeError
    try:
        graph = onnx.load(os.fspath(model), load_external_data=False).graph
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no model {os.fspath(model)}") from error
    except decode_error as error:
        raise InvalidProtobuf(f"{os.fspath(model)} is not an ONNX model: {error}") from error
    # Before IR version 4 every initializer was declared as an input, too.
    initializers = {tensor.name for tensor in graph.initializer}
    declarations = [_declaration(onnx, value) for value in graph.input if value.name not in initializers]
    return of_declarations.sample_inputs(declarations, batch, sequence, seed)


def _declaration(onnx: Any, value: Any) -> Declaration:
    """Return what a session would say of an input."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return SimpleNamespace(name=value.name, type=kind or "undeclared", shape=[])
    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    shape = [size.dim_value if size.HasField("dim_value") else (size.dim_param or None) for size in tensor.shape.dim]
    return SimpleNamespace(name=value.name, type=f"tensor({name})", shape=shape)
