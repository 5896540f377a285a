"""Releases of ONNX Runtime to compare: the installed one, and others unpacked in folders of their own.

    python -m benchmarks.published.releases onnxruntime==1.30.0

unpacks one into build/releases and prints its folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortmulti._runtime.libraries import find_onnxruntime, inspect_package, release_of
from ortmulti.errors import InvalidArgument, LibraryError

FOLDER = Path("build/releases")


@dataclass(frozen=True)
class Release:
    """A release that can be measured.

    Attributes:
        name: what results call it: its version.
        distribution: "onnxruntime" or "onnxruntime-gpu".
        folder: what is to come first on PYTHONPATH; None for the installed one.
    """

    name: str
    distribution: str
    folder: Path | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version, to be compared: (1, 31, 1)."""
        return release_of(self.name)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process imports this release."""
        if self.folder is None:
            return {}
        rest = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), *([rest] if rest else [])])}

    def as_json(self) -> dict[str, str | bool]:
        """The release as JSON can carry it."""
        return {"name": self.name, "distribution": self.distribution, "installed": self.folder is None}


def find(names: Sequence[str], folders: Mapping[str, Path], root: Path = FOLDER) -> tuple[Release, ...]:
    """The releases that are named; what is not there is unpacked from the package index.

    Args:
        names: versions such as "1.30.0"; none means the installed one and all of `folders`.
        folders: where releases lie unpacked, by version.
        root: where others lie, or are unpacked to.

    Raises:
        InvalidArgument: a folder holds another release than was said.
        LibraryError: a folder holds none, or one could not be unpacked.
    """
    found = find_onnxruntime()
    installed = Release(found.version, found.distribution)
    wanted = list(names) or [installed.name, *(name for name in folders if name != installed.name)]
    return tuple(_find(name, folders.get(name), installed, root) for name in dict.fromkeys(wanted))


def _find(name: str, folder: Path | None, installed: Release, root: Path) -> Release:
    if folder is None:
        if name == installed.name:
            return installed
        folder = unpack(installed.distribution or "onnxruntime", name, root)
    package = inspect_package(folder.resolve() / "onnxruntime")
    if package.version != name:
        raise InvalidArgument(f"{folder} holds ONNX Runtime {package.version or 'of no known release'}, not {name}")
    return Release(name, package.distribution, folder.resolve())


def unpack(distribution: str, version: str, root: Path = FOLDER) -> Path:
    """Unpacks a release, without what it needs; on a machine with NVIDIA hardware with the CUDA libraries of its
    extras, which differ in their major version.

    Args:
        distribution, version: what to install.
        root: the folder in which it gets one; it stays there, and is only made once.

    Returns:
        The folder.

    Raises:
        LibraryError: pip failed.
    """
    folder = root / f"{distribution}-{version}"
    complete = folder / ".complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder)]
        _run([*pip, "--no-deps", f"{distribution}=={version}"], f"{distribution} {version}")
        needed = cuda_requirements(folder)
        if needed and (Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi")):
            _run([*pip, *needed], f"the CUDA libraries of {distribution} {version}")
        complete.touch()
    return folder


def cuda_requirements(folder: Path) -> list[str]:
    """The CUDA libraries that the extras of the distribution in `folder` ask for."""
    requires = [
        requirement
        for distribution in importlib.metadata.distributions(path=[str(folder)])
        if distribution.name.startswith("onnxruntime")
        for requirement in distribution.requires or ()
    ]
    parts = (requirement.partition(";") for requirement in requires)
    return [name.strip() for name, _, condition in parts if "extra" in condition and "nvidia" in name]


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LibraryError(f"{what} could not be unpacked: {last}; name a folder that holds it by --release-dir")


def parse_folder(text: str) -> tuple[str, Path]:
    """A version and its folder from "1.30.0=path".

    Raises:
        InvalidArgument: it is not of that form, or there is no such folder.
    """
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise InvalidArgument(f"{text!r} is not of the form VERSION=FOLDER")
    if not Path(folder).is_dir():
        raise InvalidArgument(f"there is no folder {folder} with ONNX Runtime {name}")
    return name, Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Unpacks DISTRIBUTION==VERSION and prints its folder."""
    (requirement,) = sys.argv[1:] if arguments is None else arguments
    distribution, _, version = requirement.partition("==")
    print(unpack(distribution, version).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
