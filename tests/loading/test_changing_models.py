"""A model file that is overwritten in place while it is read gives an error, or loads; it never ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import _core
from ortmulti.errors import NotOptimizable, WeightsError
from ortmulti.loading import tuning
from ortmulti.optimized import key as cache_key
from tests.support import onnx_models
from tests.support.processes import run_child


def many_initializers(count: int = 20_000) -> bytes:
    """A large graph: y = x + c0, beside ``count`` initializers of 256 bytes."""
    values = [
        helper.make_tensor(f"c{i}", TensorProto.FLOAT, [64], np.full(64, i, np.float32).tobytes(), raw=True)
        for i in range(count)
    ]
    x, y = ((name, TensorProto.FLOAT, [64]) for name in "xy")
    return onnx_models.model([helper.make_node("Add", ["x", "c0"], ["y"])], [x], [y], values).SerializeToString()


WRITER = """
import sys, time
from pathlib import Path
good, live = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
while True:
    live.write_bytes(good)  # truncates first, as cp does
    print(flush=True)
    time.sleep(0.02)
"""

USES = {
    "load": "ortmulti.load(live, 'cpu', 2).close()",
    "optimize": "ortmulti.optimize(live, 'cpu')",
    "replace_model": "pool.replace_model(live)",
}


@pytest.mark.parametrize("use", list(USES))
def test_a_model_that_is_overwritten_in_place_does_not_end_the_process(tmp_path: Path, use: str) -> None:
    good, live = tmp_path / "good.onnx", tmp_path / "live.onnx"
    good.write_bytes(many_initializers())
    code = f"""
        import sys
        import numpy as np
        import ortmulti

        live = sys.argv[2]
        pool = ortmulti.load(sys.argv[1], "cpu", 2)
        failed = 0
        for _ in range(4):
            try:
                {USES[use]}
            except ortmulti.Error:
                failed += 1
            [y] = pool.run(None, {{"x": np.ones(64, np.float32)}})  # goes on, with whichever model
            assert y.tolist() == [1.0] * 64
        print("failed", failed)
    """
    with subprocess.Popen([sys.executable, "-c", WRITER, str(good), str(live)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"\n"
            child = run_child(code, good, live, environment={"ORTMULTI_CACHE": str(tmp_path / "cache")})
        finally:
            writer.kill()
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("failed ")


def test_a_model_that_shrinks_between_its_index_and_its_digest_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    model = onnx_models.matmul()
    index = _core.index_model

    def index_and_cut(model: _core.Source | memoryview) -> object:
        result = index(model)
        os.truncate(path, 100)
        return result

    monkeypatch.setattr(_core, "index_model", index_and_cut)
    path.write_bytes(model)
    with pytest.raises(NotOptimizable, match=r"model\.onnx' was changed or replaced while"):
        cache_key.read_content(ortmulti.Model(path), None)
    path.write_bytes(model)
    with pytest.raises(WeightsError, match=r"model\.onnx' was changed or replaced while"):
        tuning.describe_model(ortmulti.Model(path))


def test_a_file_that_became_a_fifo_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8))
    source = _core.file_source(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(WeightsError, match="not a regular file"):
        cache_key.digest_without(source, [])


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    for model in (onnx_models.matmul(), many_initializers(100)):
        path = tmp_path / "model.onnx"
        path.write_bytes(model)
        assert tuning.describe_model(ortmulti.Model(path)) == tuning.describe_model(ortmulti.Model(model))
    with pytest.raises(ortmulti.NoSuchFile):
        tuning.describe_model(ortmulti.Model(tmp_path / "none"))
