"""A model with LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import numpy_helper

import ortmulti
from tests.support import onnx_models

SIZE, RANK = 8, 2
X = np.linspace(-1, 1, 3 * SIZE, dtype=np.float32).reshape(3, SIZE)
A = np.linspace(0, 1, SIZE * RANK, dtype=np.float32).reshape(SIZE, RANK)
B = np.linspace(1, 2, RANK * SIZE, dtype=np.float32).reshape(RANK, SIZE)


def lora_model() -> bytes:
    """ "y" = x w + x lora_a lora_b, with both of these overridable and empty by default."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    return onnx_models.parsed(
        f"""(float[n, {SIZE}] x, float[{SIZE}, rank] lora_a, float[rank, {SIZE}] lora_b) => (float[n, {SIZE}] y) {{
            base = MatMul(x, w)
            low = MatMul(x, lora_a)
            delta = MatMul(low, lora_b)
            y = Add(base, delta)
        }}""",
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.zeros((SIZE, 0), np.float32), "lora_a"),
        numpy_helper.from_array(np.zeros((0, SIZE), np.float32), "lora_b"),
    ).SerializeToString()


MODEL = lora_model()


def write(path: Path, **parameters: np.ndarray[Any, Any]) -> Path:
    adapter = ortmulti.AdapterFormat()
    adapter.set_parameters({k: ortmulti.OrtValue.ortvalue_from_numpy(v) for k, v in parameters.items()})
    adapter.export_adapter(path)
    return path


def options_with(*paths: Path) -> ortmulti.RunOptions:
    options = ortmulti.RunOptions()
    for path in paths:
        adapter = ortmulti.LoraAdapter()
        adapter.Load(path)
        options.add_active_adapter(adapter)
    return options


def theirs(*paths: Path) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    options = onnxruntime.RunOptions()
    adapters = [onnxruntime.LoraAdapter() for _ in paths]
    for adapter, path in zip(adapters, paths, strict=True):
        adapter.Load(str(path))
        options.add_active_adapter(adapter)
    [y] = session.run(None, {"x": X}, options)
    return np.asarray(y)
