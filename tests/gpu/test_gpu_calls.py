"""What sessions on GPUs can do besides running: runs with a callback, LoRA adapters, captured graphs."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core
from tests.support import lora, onnx_models
from tests.support.gpus import cuda_session

pytestmark = pytest.mark.gpu

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def test_runs_with_a_callback_in_their_order() -> None:
    """One thread a session, which is what sessions on GPUs have; onnxruntime refuses that."""
    called: queue.Queue[tuple[list[Any], Any, str]] = queue.Queue()
    with ortmulti.create_sessions(onnx_models.matmul(8), "all", 2) as sessions:
        expected = sessions[0].run(None, {"x": X})[0]
        for i in range(50):
            for number, session in enumerate(sessions):
                session.run_async(None, {"x": X}, lambda *call: called.put(call), (number, i))
    got: dict[int, list[int]] = {number: [] for number in range(len(sessions))}
    for _ in range(50 * len(sessions)):
        [y], (number, i), error = called.get(timeout=30)
        assert error == ""
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        got[number].append(i)
    assert all(order == list(range(50)) for order in got.values())


def test_runs_with_an_adapter(tmp_path: Path) -> None:
    adapter = lora.write(tmp_path / "adapter", lora_a=lora.A, lora_b=lora.B)
    feed = {"x": lora.X}
    with cuda_session(lora.MODEL, use_tf32=0) as session:
        for _ in range(2):
            [without] = session.run(None, feed)
            [with_adapter] = session.run(None, feed, lora.options_with(adapter))
            np.testing.assert_allclose(without, lora.theirs(), rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(with_adapter, lora.theirs(adapter), rtol=1e-3, atol=1e-4)


def test_an_adapter_of_values_on_a_gpu(tmp_path: Path) -> None:
    values = {"lora_a": lora.A, "lora_b": lora.B}
    adapter = ortmulti.AdapterFormat()
    adapter.set_parameters({k: ortmulti.OrtValue.ortvalue_from_numpy(v, "cuda", 0) for k, v in values.items()})
    adapter.export_adapter(tmp_path / "adapter")
    read = ortmulti.AdapterFormat.read_adapter(tmp_path / "adapter").get_parameters()
    for name, value in values.items():
        np.testing.assert_array_equal(read[name].numpy(), value)


def test_what_providers_can_be_told() -> None:
    with cuda_session(onnx_models.matmul(8)) as session:
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        assert session.get_tuning_results() == []
        release = tuple(map(int, _core.onnxruntime_version().split(".")[:2]))
        if release >= (1, 27):
            session.release_captured_graph()
        else:
            with pytest.raises(ortmulti.NotImplemented, match=r"1\.27"):
                session.release_captured_graph()
        assert session.run(None, {"x": X})[0].shape == (4, 8)
