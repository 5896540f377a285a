"""Initializers of session options, and custom operators, on GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ortmulti
from tests.support import custom_ops
from tests.support.additions import (
    ADDED,
    LARGE_X,
    MODEL,
    WEIGHT,
    X,
    external,
    large_graph,
    of_onnxruntime_alone,
    run,
    with_initializer,
    with_large,
)
from tests.support.gpus import CUDA, needs_gpus

__all__ = ["external"]  # a fixture

pytestmark = pytest.mark.gpu


def on_gpu(options: ortmulti.SessionOptions, model: bytes = MODEL) -> ortmulti.InferenceSession:
    return ortmulti.InferenceSession(model, options, providers=[CUDA])


def test_a_value_on_the_gpu_is_used_in_place() -> None:
    value = ortmulti.OrtValue.ortvalue_from_numpy(np.zeros_like(WEIGHT), "cuda", 0)
    options = ortmulti.SessionOptions()
    options.add_initializer("weight0", value)
    session = on_gpu(options)
    value.update_inplace(WEIGHT)
    del options
    np.testing.assert_allclose(run(session), X @ WEIGHT)
    del value
    np.testing.assert_allclose(run(session), X @ WEIGHT)


def test_a_value_elsewhere_is_left_aside_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime's rule: the model's own weights are used."""
    with caplog.at_level("WARNING", "ortmulti.onnxruntime"):
        session = on_gpu(with_initializer())
    np.testing.assert_array_equal(run(session), 0 * X)
    assert "weight0" in caplog.text


@pytest.mark.parametrize("kind", ["external", "file"])
def test_sessions_do_not_share_such_weights_and_say_so(kind: str, external: tuple[Path, Path]) -> None:
    make, _ = ADDED[kind]
    with ortmulti.create_sessions(external[0], 0, 2, make()) as sessions:
        for session in sessions:
            np.testing.assert_allclose(run(session), X @ WEIGHT)
        assert "weights of their own (add_external_initializers" in str(sessions.timeline.not_shared)


@pytest.mark.parametrize("transposed", [False, True], ids=["in place", "read by an optimization"])
def test_sessions_share_large_values_for_a_model_in_memory(transposed: bool) -> None:
    model = large_graph(transposed=transposed)
    expected = of_onnxruntime_alone(model, CUDA)
    with ortmulti.load(model, 0, sessions_per_device=2, options=with_large()) as pool:
        assert [session._core.weight_use()[0] for session in pool.sessions] == [int(not transposed)] * 2
        for session in pool.sessions:
            np.testing.assert_array_equal(session.run(None, {"x": LARGE_X})[0], expected)
        if not transposed:
            pool.sleep()
            np.testing.assert_array_equal(pool.run({"x": LARGE_X})[0], expected)


def test_every_gpu_has_them(external: tuple[Path, Path]) -> None:
    needs_gpus(2)
    with ortmulti.load(external[0], [0, 1], options=ADDED["file"][0]()) as pool:
        for session in pool.sessions:
            np.testing.assert_allclose(run(session), X @ WEIGHT)


def test_custom_operators_run_on_the_cpu_of_a_session_on_the_gpu(tmp_path: Path) -> None:
    options = ortmulti.SessionOptions()
    options.register_custom_ops_library(custom_ops.build_library(tmp_path))
    x = np.array([1, 2], np.float32)
    model = custom_ops.scaled()
    np.testing.assert_array_equal(on_gpu(options, model).run(None, {"x": x})[0], 3 * x)
    with ortmulti.create_sessions(model, 0, 2, options) as sessions:
        for session in sessions:
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], 3 * x)
