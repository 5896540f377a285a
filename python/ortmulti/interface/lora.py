"""LoRA adapters under onnxruntime's interface: files of parameters that take the place of a model's initializers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from ortmulti import _core, checks
from ortmulti._runtime import startup
from ortmulti._runtime.regular_file import open_regular, write_atomically
from ortmulti.errors import Fail, InvalidArgument, InvalidType, NoSuchFile, RuntimeException
from ortmulti.interface import adapter_file
from ortmulti.values.ort_value import OrtValue, core_value

__all__ = ["AdapterFormat", "LoraAdapter"]


class AdapterFormat:
    """The content of an adapter's file: parameters by name, and two version numbers that the author chooses.

    A parameter is a tensor. It replaces the overridable initializer of its name in runs whose `RunOptions` have the
    adapter. A new object has no parameters, and both versions are 0.

    Args:
        adapter: Another object to copy from; default: none.
    """

    def __init__(self, adapter: AdapterFormat | None = None) -> None:
        if adapter is not None and not isinstance(adapter, AdapterFormat):
            raise InvalidType(f"adapter is an ortmulti.AdapterFormat, not {type(adapter).__name__}")
        self._adapter_version: int = 0 if adapter is None else adapter._adapter_version
        self._model_version: int = 0 if adapter is None else adapter._model_version
        self._parameters: dict[str, OrtValue] = {} if adapter is None else dict(adapter._parameters)

    @classmethod
    def _of(cls, content: adapter_file.Adapter) -> Self:
        made = cls()
        made._adapter_version = content.adapter_version
        made._model_version = content.model_version
        made._parameters = {name: _value(tensor) for name, tensor in content.parameters.items()}
        return made

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Return the content of a file. Its parameters are on the CPU, in memory that their values keep.

        Raises:
            NoSuchFile: There is no such file.
            Fail: It cannot be read.
            InvalidArgument: The file is no adapter, damaged, or has another version of the format.
            InvalidType: ``file_path`` is not a path.
        """
        path = checks.text("file_path", file_path)
        startup.ensure_open()
        with _opened(path) as file:
            return AdapterFormat._of(adapter_file.parse(np.fromfile(file, np.uint8)))

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Raises:
            NoSuchFile: There is no such folder.
            Fail: It cannot be written.
            InvalidArgument: It would have more than 2 GiB.
            InvalidType: ``file_path`` is not a path.
        """
        path = checks.text("file_path", file_path)
        tensors = {
            name: adapter_file.Tensor(value.element_type(), tuple(value.shape()), _core.bytes_of(value._core))
            for name, value in self._parameters.items()
        }
        content = adapter_file.Adapter(self._adapter_version, self._model_version, tensors)

        def write(draft: Path) -> None:
            with draft.open("wb") as file:
                file.writelines(adapter_file.chunks(content))

        try:
            write_atomically(Path(path), write, make_folder=False)
        except OSError as error:
            raise _file_error("write", path, error) from None

    def get_format_version(self) -> int:
        """Return the version of the file format: 1."""
        return adapter_file.FORMAT_VERSION

    def set_adapter_version(self, adapter_version: int) -> None:
        """Set the version of the adapter, an int of 32 bits."""
        self._adapter_version = checks.integer("adapter_version", adapter_version, -(2**31), checks.INT_MAX)

    def get_adapter_version(self) -> int:
        """Return the version of the adapter; default 0."""
        return self._adapter_version

    def set_model_version(self, model_version: int) -> None:
        """Set the version of the model that the adapter is for, an int of 32 bits."""
        self._model_version = checks.integer("model_version", model_version, -(2**31), checks.INT_MAX)

    def get_model_version(self) -> int:
        """Return the version of the model that the adapter is for; default 0."""
        return self._model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Set all parameters.

        Args:
            params: Tensors by name: floats or ints of 8 to 64 bits, bfloat16 or float8, with at least one dimension.
                `export_adapter` reads their elements.

        Raises:
            InvalidType: ``params`` is not a dict, a name is not a str, or a value is not a tensor.
            InvalidArgument: A name is empty, or ONNX Runtime does not take such a tensor in adapters.
        """
        if not isinstance(params, Mapping):
            raise InvalidType(f"params is a dict of names and values, not {params!r}")
        for name, value in params.items():
            if not isinstance(name, str):
                raise InvalidType(f"the name of a parameter is a str, not {name!r}")
            core_value(f"parameter {name!r}", value)
            adapter_file.check_parameter(name, value.element_type(), tuple(value.shape()))
        self._parameters = dict(params)

    def get_parameters(self) -> dict[str, OrtValue]:
        """Return the parameters, by name. Changes to the dict have no effect."""
        return dict(self._parameters)


class LoraAdapter(_core.LoraAdapter):
    """An adapter for runs: load a file, then give it to `RunOptions.add_active_adapter`.

    Runs of several threads and sessions may use it at the same time. Run options keep the content that was loaded when
    the adapter was added. Several adapters may be active if their parameters differ. Runs of an IOBinding ignore
    adapters, as in onnxruntime.

    Raises:
        LibraryError: No ONNX Runtime is installed.
    """

    def __init__(self) -> None:
        startup.ensure_open()
        super().__init__()

    def Load(self, file_path: str | os.PathLike[str], /) -> None:  # noqa: N802 - onnxruntime's name
        """Map a file that `AdapterFormat.export_adapter` wrote. The file must not change while it is used.

        Raises:
            NoSuchFile: There is no such file.
            InvalidArgument: The file is no adapter, damaged, or has another version of the format.
            Fail: It cannot be read.
            InvalidType: ``file_path`` is not a path.
        """
        path = checks.text("file_path", file_path)
        with _opened(
            path
        ) as file:  # releases of ONNX Runtime differ in what they check, and crash in runs for the rest
            adapter_file.parse(np.memmap(file, np.uint8, "r"))
        try:
            self._load(path)
        except (Fail, RuntimeException) as error:  # its releases differ in the code for what they do not take
            raise InvalidArgument(str(error)) from None


def _value(tensor: adapter_file.Tensor) -> OrtValue:
    # As ints of the elements' size, since NumPy does not have all types; ONNX Runtime is told which they are.
    integers = np.dtype(f"<u{adapter_file.ELEMENT_BYTES[tensor.data_type]}")
    array: np.ndarray[Any, Any] = tensor.data.view(integers).reshape(tensor.shape)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Open an adapter's file, and raise ortmulti's errors for whatever goes wrong in reading it."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size <= adapter_file.MAX_BYTES:
                raise InvalidArgument(f"it has {size} bytes, expected at least 1 and at most {adapter_file.MAX_BYTES}")
            yield file
    except OSError as error:
        raise _file_error("read", path, error) from None
    except ValueError as error:  # NumPy's too, for shapes that it cannot have
        raise InvalidArgument(f"the adapter '{path}' cannot be read: {error}") from None


def _file_error(what: str, path: str, error: OSError) -> NoSuchFile | Fail:
    kind = NoSuchFile if isinstance(error, FileNotFoundError) else Fail
    return kind(f"cannot {what} the adapter '{path}': {error.strerror or error}")
