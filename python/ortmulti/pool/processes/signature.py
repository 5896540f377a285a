"""A model's inputs and outputs, and the check of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.values.ort_value import OrtValue

__all__ = ["Declared", "Metadata", "Signature"]

_DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    **{name: getattr(np, name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}
_STRINGS = "tensor(string)"


@dataclass(frozen=True)
class Declared:
    """An input or output; attributes as `NodeArg`'s."""

    name: str
    type: str
    shape: list[int | str | None]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        found = _DTYPES.get(self.type.removeprefix("tensor(").removesuffix(")"))
        return None if found is None else np.dtype(found)


@dataclass(frozen=True)
class Metadata:
    """The metadata of a model; attributes as `ModelMetadata`'s."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a session.

    Attributes:
        model: The model, for messages.
        inputs, outputs, overridable, metadata: As `InferenceSession.get_inputs` and so on.
    """

    model: str
    inputs: list[Declared]
    outputs: list[Declared]
    overridable: list[Declared]
    metadata: Metadata

    @classmethod
    def of(cls, model: str, session: Any) -> Signature:
        """Of a session of onnxruntime's."""
        inputs, outputs, overridable = (
            [Declared(each.name, each.type, list(each.shape)) for each in of_kind()]
            for of_kind in (session.get_inputs, session.get_outputs, session.get_overridable_initializers)
        )
        found = session.get_modelmeta()
        metadata = Metadata(*(getattr(found, field.name) for field in fields(Metadata)))
        return cls(model, inputs, outputs, overridable, metadata)

    def get_inputs(self) -> list[Declared]:
        """Same as `InferenceSession.get_inputs`."""
        return self.inputs

    def get_outputs(self) -> list[Declared]:
        """Same as `InferenceSession.get_outputs`."""
        return self.outputs

    def get_overridable_initializers(self) -> list[Declared]:
        """Same as `InferenceSession.get_overridable_initializers`."""
        return self.overridable

    def get_modelmeta(self) -> Metadata:
        """Same as `InferenceSession.get_modelmeta`."""
        return self.metadata

    def check(self, output_names: object, input_feed: object) -> tuple[list[str], dict[str, Any]]:
        """Return the names and the inputs of a run as onnxruntime takes them; tensors as arrays of the declared dtype.

        Raises:
            InvalidArgument: An unknown or missing name.
            InvalidType: A value of another type.
        """
        if not isinstance(input_feed, Mapping):
            raise InvalidType._of_runtime(
                f"input_feed must be a dict of the inputs' names and values, not {type(input_feed).__name__}: "
                "for example {'input': array}"
            )
        known = {each.name: each for each in (*self.overridable, *self.inputs)}
        feed = {}
        for name, value in input_feed.items():
            if not isinstance(name, str):
                raise InvalidType._of_runtime(f"the name of an input must be a str, not {type(name).__name__}")
            if name not in known:
                raise InvalidArgument._of_runtime(f"unknown input '{name}': {self.model} has {_names(self.inputs)}")
            feed[name] = _convert(known[name], value)
        missing = [each for each in self.inputs if each.name not in feed and not each.type.startswith("optional(")]
        if missing:
            raise InvalidArgument._of_runtime(
                f"Required inputs ([{_names(missing)}]) are missing from input feed "
                f"([{', '.join(map(repr, feed))}]): "
                f"{self.model} needs {_names(self.inputs)}"
            )
        return self._outputs(output_names), feed

    def _outputs(self, names: object) -> list[str]:
        known = [each.name for each in self.outputs]
        if names is None:
            return known
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InvalidType._of_runtime(
                "output_names must be a list or another iterable of str, or None for all outputs, not "
                f"{type(names).__name__}: for example ['output']"
            )
        for name in names:
            if not isinstance(name, str):
                raise InvalidType._of_runtime(f"the name of an output must be a str, not {type(name).__name__}")
            if name not in known:
                raise InvalidArgument._of_runtime(f"unknown output '{name}': {self.model} has {_names(self.outputs)}")
        return list(names) or known


def _names(declared: Sequence[Declared]) -> str:
    return ", ".join(f"'{each.name}'" for each in declared) or "none"


def _convert(declared: Declared, value: Any) -> Any:
    if isinstance(value, OrtValue):
        value = value.numpy()
    if not declared.type.startswith("tensor("):
        return value
    if value is None:
        raise InvalidType._of_runtime(
            f"input '{declared.name}' is None; {declared.type} takes an array: pass one, for example numpy.zeros(shape)"
        )
    strings = declared.type == _STRINGS
    dtype = np.dtype(object) if strings else declared.dtype
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value, dtype=dtype)
        except (ValueError, TypeError) as error:
            raise InvalidType._of_runtime(
                f"input '{declared.name}' is {declared.type} and NumPy cannot make such an array from "
                f"{type(value).__name__}: {error}"
            ) from error
    if strings:
        if value.dtype.kind not in "USOT":
            raise _refused(declared, value, "str, bytes or object")
        return value
    if dtype is None:
        return value  # onnxruntime says whether it takes it
    if value.dtype.newbyteorder("=") != dtype:
        raise _refused(declared, value, str(dtype))
    return np.require(value, dtype, ["C", "A"])


def _refused(declared: Declared, value: np.ndarray[Any, Any], dtype: str) -> InvalidType:
    text = f"input '{declared.name}' is {declared.type}, which takes an array of dtype {dtype}; got dtype {value.dtype}"
    number = value.dtype.kind != "O" and " " not in dtype
    return InvalidType._of_runtime(text + (f": convert it with array.astype(numpy.{dtype})" if number else ""))
