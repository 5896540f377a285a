"""Runs with LoRA adapters, beside onnxruntime's."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.lora import MODEL, A, B, X, options_with, theirs, write
from tests.support.pools import in_threads


@pytest.fixture
def session() -> ortmulti.InferenceSession:
    return onnx_models.cpu_session(MODEL)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write(tmp_path / "adapter", lora_a=A, lora_b=B)


def test_a_model_with_and_without_an_adapter(session: ortmulti.InferenceSession, adapter: Path) -> None:
    [without] = session.run(None, {"x": X})
    [with_adapter] = session.run(None, {"x": X}, options_with(adapter))
    np.testing.assert_array_equal(without, theirs())
    np.testing.assert_array_equal(with_adapter, theirs(adapter))
    np.testing.assert_allclose(with_adapter - without, X @ A @ B, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], without)


def test_adapters_at_once_and_one_after_another(
    session: ortmulti.InferenceSession, adapter: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", lora_a=A[:, :1], lora_b=B[:1])  # of another rank
    halves = write(tmp_path / "a", lora_a=A), write(tmp_path / "b", lora_b=B)
    for paths in ((adapter,), (other,), halves, (adapter,)):
        np.testing.assert_array_equal(session.run(None, {"x": X}, options_with(*paths))[0], theirs(*paths))


def test_other_kinds_of_runs(session: ortmulti.InferenceSession, adapter: Path) -> None:
    options, expected = options_with(adapter), theirs(adapter)
    value = ortmulti.OrtValue.ortvalue_from_numpy(X)
    np.testing.assert_array_equal(session.run_with_ort_values(None, {"x": value}, options)[0].numpy(), expected)
    told, got = threading.Event(), []

    def callback(results: list[Any], _: Any, error: str) -> None:
        got.append((results, error))
        told.set()

    session.run_async(None, {"x": X}, callback, None, options)
    del options
    gc.collect()
    assert told.wait(30)
    [([y], error)] = got
    assert error == ""
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("library", [ortmulti, onnxruntime])
def test_runs_of_bindings_leave_adapters_aside(library: Any, adapter: Path) -> None:
    """As the C API does, which says so in the log."""
    session = library.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    loaded, options = library.LoraAdapter(), library.RunOptions()
    loaded.Load(str(adapter))
    options.add_active_adapter(loaded)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], theirs())


def test_options_keep_what_their_adapter_had_loaded_last(
    session: ortmulti.InferenceSession, adapter: Path, tmp_path: Path
) -> None:
    expected = theirs(adapter)
    other = write(tmp_path / "other", lora_a=2 * A, lora_b=B)
    loaded, options = ortmulti.LoraAdapter(), ortmulti.RunOptions()
    loaded.Load(other)
    loaded.Load(adapter)
    with pytest.raises(ortmulti.NoSuchFile):
        loaded.Load(tmp_path / "missing")
    options.add_active_adapter(loaded)
    np.testing.assert_array_equal(session.run(None, {"x": X}, options)[0], expected)
    loaded.Load(other)
    del loaded
    gc.collect()
    adapter.unlink()  # it is mapped
    np.testing.assert_array_equal(session.run(None, {"x": X}, options)[0], expected)


def test_one_adapter_in_many_threads(adapter: Path) -> None:
    expected = theirs(adapter)
    loaded = ortmulti.LoraAdapter()
    loaded.Load(adapter)
    sessions = [onnx_models.cpu_session(MODEL) for _ in range(2)]
    [base] = sessions[0].run(None, {"x": X})

    def work(number: int) -> None:
        for _ in range(100):
            options = ortmulti.RunOptions()
            if number < 4:
                options.add_active_adapter(loaded)
            [y] = sessions[number % 2].run(None, {"x": X}, options)
            np.testing.assert_array_equal(y, expected if number < 4 else base)

    in_threads(6, work)


def test_adapters_that_do_not_fit(session: ortmulti.InferenceSession, adapter: Path, tmp_path: Path) -> None:
    unknown = write(tmp_path / "unknown", lora_c=A)
    other_type = write(tmp_path / "type", lora_a=A.astype(np.float64), lora_b=B)
    other_shape = write(tmp_path / "shape", lora_a=A[:-1], lora_b=B)
    for path in (unknown, other_type, other_shape):
        with pytest.raises(Exception):  # noqa: B017, PT011 - onnxruntime's classes have no common base
            theirs(path)
        with pytest.raises(ortmulti.Error):
            session.run(None, {"x": X}, options_with(path))
    np.testing.assert_array_equal(session.run(None, {"x": X}, options_with(adapter))[0], theirs(adapter))


def test_what_is_no_adapter(adapter: Path) -> None:
    options = ortmulti.RunOptions()
    for wrong in (None, 5, onnxruntime.LoraAdapter(), ortmulti.AdapterFormat()):
        with pytest.raises(ortmulti.InvalidType, match="LoraAdapter"):
            options.add_active_adapter(wrong)
    with pytest.raises(ortmulti.InvalidArgument, match="loaded nothing"):
        options.add_active_adapter(ortmulti.LoraAdapter())
    loaded = ortmulti.LoraAdapter()
    loaded.Load(adapter)
    options.add_active_adapter(loaded)
    with pytest.raises(ortmulti.InvalidArgument, match="already"):
        options.add_active_adapter(loaded)
