"""Unpacks a release of ONNX Runtime into build/releases and prints its folder, which comes first on PYTHONPATH.

python -m tools.unpack_release onnxruntime==1.30.0
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path("build/releases")


def unpack(distribution: str, version: str) -> Path:
    """Unpack a release without its requirements, once, and return its folder.

    On a machine with NVIDIA hardware the CUDA libraries of its extras come with it: they differ in their major version.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    folder = FOLDER / f"{distribution}-{version}"
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder)]
        subprocess.run([*pip, "--no-deps", f"{distribution}=={version}"], stdout=sys.stderr, check=True)
        needed = cuda_requirements(folder)
        if needed and (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
            subprocess.run([*pip, *needed], stdout=sys.stderr, check=True)
        complete.touch()
    return folder


def cuda_requirements(folder: Path) -> list[str]:
    """Return the CUDA libraries that the extras of the distribution in `folder` ask for."""
    requires = [
        requirement
        for distribution in importlib.metadata.distributions(path=[str(folder)])
        if distribution.name.startswith("onnxruntime")
        for requirement in distribution.requires or ()
    ]
    parts = (requirement.partition(";") for requirement in requires)
    return [name.strip() for name, _, condition in parts if "extra" in condition and "nvidia" in name]


if __name__ == "__main__":
    wanted, _, number = sys.argv[1].partition("==")
    print(unpack(wanted, number).resolve())
