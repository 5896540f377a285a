"""When no CUDA graphs are made by themselves; tests/gpu has the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

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
