"""Conversion of onnxruntime's own values by DLPack. Their class's name identifies them: onnxruntime is not imported."""

from __future__ import annotations

from typing import Any

from ortmulti import _core, errors
from ortmulti._runtime import startup
from ortmulti._runtime.libraries import release_of


def lacks_types(version: str) -> bool:
    """Return whether this release of onnxruntime's Python package lacks types in DLPack, as those before 1.32.

    These call bool uint8, and have neither floats of 8 bits nor integers of 4 bits.
    """
    return release_of(version) < (1, 32)


def is_one(value: object) -> bool:
    """Return whether it is onnxruntime's OrtValue, of either of its namespaces."""
    return any(
        kind.__name__ == "OrtValue" and kind.__module__.partition(".")[0] == "onnxruntime"
        for kind in type(value).__mro__
    )


def take(value: Any) -> _core.OrtValue:
    """Return a value over the memory of onnxruntime's value, without a copy. It keeps that value alive.

    Raises:
        NotImplemented: DLPack does not have its type, it is empty, or its device is neither the CPU nor a CUDA device.
    """
    native = getattr(value, "_ortvalue", value)
    if not native.has_value():
        raise errors.NotImplemented("an onnxruntime.OrtValue that is empty cannot be handed over: there is no memory")
    type_name = native.data_type()
    if not native.is_tensor():
        raise errors.NotImplemented(
            f"an onnxruntime.OrtValue of {type_name} cannot be handed over: DLPack has dense tensors only"
        )
    export = getattr(native, "__dlpack__", None) or getattr(native, "to_dlpack", None)
    if export is None:
        raise errors.NotImplemented("this release of onnxruntime does not hand its OrtValues over: it has no DLPack")
    try:
        capsule = export()
    except Exception as error:  # which one depends on the release
        raise errors.NotImplemented(
            f"an onnxruntime.OrtValue of {type_name} on {native.device_name().lower()} cannot be handed over by DLPack"
        ) from error
    startup.ensure_open()
    return _core.OrtValue.from_dlpack(capsule, type_name == "tensor(bool)", value)
