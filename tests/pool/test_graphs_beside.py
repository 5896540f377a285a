"""When no CUDA graphs are made by themselves; tests/gpu has the rest."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from ortmulti.pool.graphs import waits_for_gpus

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
