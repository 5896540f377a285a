"""When no CUDA graphs are made by themselves; tests/gpu has the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ortmulti.pool.graphs import waits_for_gpus
from tests.support import fake_driver, onnx_models
from tests.support.processes import check_child

LIBRARIES = ("torch", "cupy", "jax", "tensorflow", "numba.cuda")


@pytest.mark.parametrize(("present", "named"), [("", ""), ("jax", "JAX"), ("numba.cuda", "Numba"), ("torch", "")])
def test_other_libraries_that_wait_for_whole_gpus_are_named(
    present: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch only if it has begun to use CUDA, which one that is just being imported has not."""
    for library in LIBRARIES:
        monkeypatch.delitem(sys.modules, library, raising=False)
    if present:
        monkeypatch.setitem(sys.modules, present, ModuleType(present))
    assert waits_for_gpus() == named


def test_sessions_for_graphs_log_no_errors_of_tries_that_harm_nobody(tmp_path: Path) -> None:
    """Requests are answered by the ordinary session, which has logged the model's warnings."""
    driver = fake_driver.build(tmp_path)
    check_child(
        """
        import sys
        from types import SimpleNamespace
        import ortmulti as om
        from ortmulti.create.model import Model
        from ortmulti.create.request import CreationRequest
        from ortmulti.pool.graphs import capturing

        session = SimpleNamespace(device=lambda: "cuda:0", inputs=lambda: [])
        for given, level in ((-1, 4), (2, 4), (4, 4), (1, 1), (0, 0)):
            options = om.SessionOptions()
            options.log_severity_level = given
            request = CreationRequest(Model.of(bytes.fromhex(sys.argv[1])), "cuda:0", options=options)
            assert capturing(request, session, {}, 1).options.log_severity_level == level
            assert options.log_severity_level == given
        """,
        onnx_models.matmul().hex(),
        environment=driver.environment,
    )


def test_sessions_for_graphs_keep_what_the_ordinary_session_fuses(tmp_path: Path) -> None:
    """Where all sizes are known, ONNX Runtime makes a Gemm of MatMul and Add instead of fusing the Add with Gelu."""
    driver = fake_driver.build(tmp_path)
    model = onnx_models.with_weights(
        """
        (float[rows, tokens, 4] x) => (float[rows, tokens, 4] y)
        {
          product = MatMul(x, w)
          sum = Add(product, bias)
          part = Div(sum, root)
          erf = Erf(part)
          more = Add(erf, one)
          twice = Mul(sum, more)
          y = Mul(twice, half)
        }
        """,
        w=np.eye(4, dtype=np.float32),
        bias=np.ones(4, np.float32),
        root=np.sqrt(np.float32(2)),
        one=np.float32(1),
        half=np.float32(0.5),
    )
    check_child(
        """
        import sys
        from types import SimpleNamespace
        import ortmulti as om
        from ortmulti.create.model import Model
        from ortmulti.create.request import CreationRequest
        from ortmulti.pool.graphs import capturing

        model = bytes.fromhex(sys.argv[1])
        def ops(options, file):
            options.optimized_model_filepath = file
            options.graph_optimization_level = om.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            om.InferenceSession(model, options, ["CPUExecutionProvider"])
            data = open(file, "rb").read()
            return {op for op in (b"BiasGelu", b"Gemm") if op in data}

        options = om.SessionOptions()
        options.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantSharing")
        request = CreationRequest(Model.of(model), "cuda:0", options=options)
        declared = SimpleNamespace(name="x", shape=["rows", "tokens", 4])
        session = SimpleNamespace(device=lambda: "cuda:0", inputs=lambda: [declared])
        captured = capturing(request, session, {"x": [2, 3, 4]}, 1).options
        assert captured.get_session_config_entry("optimization.disable_specified_optimizers") == (
            "ConstantSharing;MatMulAddFusion"
        )
        assert ops(options, sys.argv[2] + "/ordinary.onnx") == {b"BiasGelu"}
        assert ops(captured, sys.argv[2] + "/captured.onnx") == {b"BiasGelu"}
        """,
        model.hex(),
        str(tmp_path),
        environment=driver.environment,
    )
