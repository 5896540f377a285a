"""Bound runs of `onnx_models.add_mul(3)`, whose outputs sum, product and first are of the inputs a and b."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from ortmulti import OrtValue
from ortmulti._runtime.libraries import release_of

make = OrtValue.ortvalue_from_numpy

# Whether onnxruntime calls bool uint8 in DLPack, and has to be told which uint8 is bool.
BOOL_IS_UINT8 = release_of(onnxruntime.__version__) < (1, 32)


def from_dlpack(value: OrtValue) -> Any:
    """onnxruntime's value over ours, by what every release of it has."""
    native = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue
    is_bool = (value.data_type() == "tensor(bool)",) if BOOL_IS_UINT8 else ()
    return onnxruntime.OrtValue(native.from_dlpack(value.__dlpack__(), *is_bool))


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 2, np.float32)


def bound(session: Any, outputs: tuple[str, ...] = ("sum",)) -> Any:
    """A binding of A and B, in either package."""
    binding = session.io_binding()
    binding.bind_cpu_input("a", A)
    binding.bind_cpu_input("b", B)
    for name in outputs:
        binding.bind_output(name)
    return binding
