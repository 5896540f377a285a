"""Programs that PyInstaller makes: they need nothing besides ortmulti's hook."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.processes import ROOT, child_environment

PROJECT = ROOT / "pyproject.toml"

PROGRAM = """
import sys
import numpy as np
import ortmulti as om

x = {"x": np.ones((1, 8), np.float32)}
with om.load(sys.argv[1], "cpu") as pool:
    print(pool.run(None, x)[0].shape)
session = om.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(session.run(None, x)[0].shape)
"""


def entry_point() -> tuple[str, str]:
    if not PROJECT.is_file():
        pytest.skip("needs the sources")
    points = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["entry-points"]["pyinstaller40"]
    module, _, function = points["hook-dirs"].partition(":")
    return module, function


def test_the_entry_point_of_pyinstaller_is_the_folder_of_the_hook() -> None:
    module, function = entry_point()
    [folder] = getattr(import_module(module), function)()
    assert [path.name for path in Path(folder).glob("hook-*.py")] == ["hook-ortmulti.py"]


def test_a_frozen_program_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.executable` is the program then."""
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.matmul(8))
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ortmulti.Fail, match=r"this program is frozen.*call tune and diagnose in an ordinary Python"):
        ortmulti.tune(model, devices="cpu")


@pytest.mark.slow
def test_a_frozen_program_loads_and_runs(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    if Path(ortmulti._core.__file__).parent != Path(ortmulti.__file__).parent:
        pytest.skip("an editable installation has its extension in another folder, where PyInstaller does not look")
    installed = tmp_path / "site" / "ortmulti-0.dist-info"  # an installation's, wherever this one's is
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ortmulti\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[pyinstaller40]\nhook-dirs = {':'.join(entry_point())}\n")
    environment = child_environment()
    environment["PYTHONPATH"] += f":{installed.parent}"
    (tmp_path / "app.py").write_text(PROGRAM)
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.matmul(8))
    make = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "app.py"]
    subprocess.run(make, cwd=tmp_path, env=environment, check=True)
    program = [tmp_path / "dist" / "app" / "app", model]
    output = subprocess.run(program, env=child_environment({"PYTHONPATH": None}), capture_output=True, text=True)
    assert (output.stdout, output.stderr) == ("(1, 8)\n(1, 8)\n", "")
