"""Additions of SessionOptions to a model: initializers, external data in memory, custom operators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsInt

from ortmulti import _core, checks
from ortmulti._runtime import startup
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.values.ort_value import OrtValue, core_value

__all__ = ["ModelAdditions", "replacing_weights"]


class ModelAdditions:
    """The part of `SessionOptions` for values and libraries. Sessions keep them alive."""

    __slots__ = ("_core",)

    def __init__(self) -> None:
        self._core = _core.SessionOptions()

    def add_initializer(self, name: str, ort_value: OrtValue) -> None:
        """Replace the model's initializer of this name by a value.

        Every session with these options uses the value in place and keeps it alive. Its elements must not change
        meanwhile. As in onnxruntime, ONNX Runtime may ignore the value and use the model's own. That happens if the
        optimized graph no longer has the initializer (constant folding uses the model's own). It also happens, with a
        warning in the log, if the kernel reads it on another device than the value's.

        Args:
            name: The initializer's name, not empty.
            ort_value: A tensor with the initializer's type and shape, but not of strings; this package's or
                onnxruntime's. ONNX Runtime does not check type and shape. If they differ, the creation or the runs
                fail, or the results have other shapes.

        Raises:
            InvalidArgument: The name is empty, or was added before.
            InvalidType: It is not an `OrtValue`, or not a tensor.
        """
        name, value = _name("an initializer", name), core_value(f"initializer {name!r}", ort_value)
        changed = self._core.copy()
        _check_new("initializer", name, changed.initializers)
        _check_tensor(name, value)
        changed.add_initializer(name, value)
        self._core = changed

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[OrtValue]) -> None:
        """Replace initializers with external data by values.

        ONNX Runtime's optimizations use the values, and may copy some. Sessions keep all of them alive. For a model
        whose external data is all given, `load` and `create_sessions` share values of 1 MiB or more, as docs/loading.md
        explains: these must not change.

        Args:
            names: The initializers' names, not empty. A session cannot be created if one of them is no initializer with
                external data, or has another type or shape.
            ort_values: As many tensors, of any type except strings.

        Raises:
            InvalidArgument: The numbers of values and names differ, or a name is empty or was added before.
            InvalidType: An argument is not a list, or a value not an `OrtValue` or not a tensor.
        """
        wanted, given = checks.sequence("names", names), checks.sequence("ort_values", ort_values)
        if len(wanted) != len(given):
            raise InvalidArgument(f"there are {len(wanted)} names and {len(given)} ort_values")
        changed = self._core.copy()
        for each, ort_value in zip(wanted, given, strict=True):
            name, value = _name("an initializer", each), core_value(f"initializer {each!r}", ort_value)
            _check_new("external initializer", name, changed.external_initializers)
            _check_tensor(name, value)
            changed.add_external_initializer(name, value)
        self._core = changed

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[SupportsInt]
    ) -> None:
        """Read the model's external data from memory instead of files.

        Args:
            names: The files' names in the model.
            buffers: The files' contents: contiguous objects with the buffer protocol (bytes, bytearray, memoryview,
                arrays). Sessions keep them alive; they must not change meanwhile.
            lengths: The number of bytes to use of each buffer.

        Raises:
            InvalidArgument: The arguments have different lengths. Or a name is empty or was added before, a buffer is
                not contiguous, or a length is negative or larger than its buffer.
            InvalidType: An argument has the wrong type.
        """
        files, memory, sizes = (
            checks.sequence("names", names),
            checks.sequence("buffers", buffers),
            checks.sequence("lengths", lengths),
        )
        if not len(files) == len(memory) == len(sizes):
            raise InvalidArgument(f"there are {len(files)} names, {len(memory)} buffers and {len(sizes)} lengths")
        changed = self._core.copy()
        for each, buffer, size in zip(files, memory, sizes, strict=True):
            name = _name("a file", each)
            _check_new("file", name, changed.files_in_memory)
            length = checks.integer(f"the length of file {name!r}", size, 0, checks.SIZE_MAX)
            changed.add_file_in_memory(name, _core.memory_source(name, _memory(name, buffer), length))
        self._core = changed

    def register_custom_ops_library(self, path: str | os.PathLike[str]) -> None:
        """Load a shared library of custom operators for sessions with these options.

        The library is loaded, and its ``RegisterCustomOps`` called, now and for each session. It stays loaded as long
        as these options and their sessions exist.

        Args:
            path: Path of the library. The system's loader searches for a name without a slash.

        Raises:
            Fail: It cannot be loaded, or is no library of custom operators; the message has the loader's reason.
            InvalidArgument, InvalidType: The path is empty, or not a path.
            LibraryError: No ONNX Runtime is installed.
        """
        library = _name("a library's path", path)
        if "/" in library:
            library = str(Path(library).absolute())  # the folder may be another one when a session is created
        startup.ensure_open()
        changed = self._core.copy()
        changed.add_custom_op_library(library)
        self._core = changed


def replacing_weights(options: _core.SessionOptions) -> str:
    """Return the methods that have replaced the model's own weights; empty if none."""
    found = {
        "add_initializer": options.initializers,
        "add_external_initializers": options.external_initializers,
        "add_external_initializers_from_files_in_memory": options.files_in_memory,
    }
    return ", ".join(method for method, names in found.items() if names)


def _name(what: str, value: object) -> str:
    name = checks.text(what, value)
    if not name or "\0" in name:
        raise InvalidArgument(f"{what} takes a name that is not empty and has no zero byte, not {name!r}")
    return name


def _memory(name: str, buffer: Any) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise InvalidType(f"the buffer of file {name!r} has no buffer protocol: {type(buffer).__name__}") from None
    except (BufferError, ValueError) as error:  # as of a memoryview that was released
        raise InvalidArgument(f"the buffer of file {name!r} cannot be used: {error}") from error
    if not view.c_contiguous:
        raise InvalidArgument(f"the buffer of file {name!r} is not contiguous")
    return view


def _check_new(what: str, name: str, known: list[str]) -> None:
    if name in known:
        raise InvalidArgument(f"{what} {name!r} was added to these SessionOptions before")


def _check_tensor(name: str, value: _core.OrtValue) -> None:
    if not value.is_tensor() or value.data_type() == "tensor(string)":
        kind = value.data_type() if value.has_value() else "an empty value"
        raise InvalidType(f"initializer {name!r} takes a tensor, except of strings, not {kind}")
