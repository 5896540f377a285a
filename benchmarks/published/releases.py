"""Releases of ONNX Runtime, and cases measured with each of them in turns, each measurement in a fresh process.

The installed release is one of them, the others are unpacked in folders of their own:

    python -m benchmarks.published.releases onnxruntime==1.30.0

unpacks one into build/releases and prints its folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti._runtime.libraries import find_onnxruntime, inspect_package, release_of
from ortmulti.bench.measure import fresh_process, page_cache
from ortmulti.bench.measure.rounds import RoundsInterrupted, failure, measure_rounds, rotated
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


RELEASE = "{release}"
"""What stands for the release's name in the texts of a `Case.spec`."""


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: by which results know it.
        module: the module whose `measure` a fresh process calls.
        spec: its argument, which JSON can carry; `RELEASE` in a text is replaced.
        files: read into the page cache before.
        environment: variables of the process.
        prepare: whether it is measured once before anything counts, with each release: what makes something that
            later measurements are to find. Of several rounds the first case always is, since it loads the libraries
            from the disk.
        counted: whether it is measured at all, besides that.
        refused: by release, why it cannot be measured there; it is left out then.
    """

    name: str
    module: str
    spec: Mapping[str, Any]
    files: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: bool = False
    counted: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)


Tell = Callable[[str], None]


def measure(
    cases: Sequence[Case],
    releases: Sequence[Release],
    repeat: int,
    *,
    timeout: float = 600.0,
    budget: float | None = None,
    tell: Tell = lambda _: None,
) -> list[dict[str, Any]]:
    """Measures every case with every release, `repeat` times.

    A round measures each once. Cases and releases take turns, and each round begins with others, so that what changes
    with time meets all of them alike. What fails becomes part of the result, and the others go on. Ctrl-C ends the
    rounds: what was measured by then is returned, and the measurement that comes next has failed.

    Args:
        cases: what to measure; their names are unique.
        releases: with which.
        repeat: rounds.
        timeout: seconds that one measurement may take.
        budget: seconds for all rounds; no round begins that would end later, going by the last one. The
            first is always measured. None: any number.
        tell: called with a text before each measurement.

    Returns:
        For each measurement "case", "release", "round" and what `measure` of the module returned, or "error" and
        "stderr".

    Raises:
        InvalidArgument: nothing to measure.
    """
    if not cases or not releases or repeat < 1:
        raise InvalidArgument(f"nothing to measure: {len(cases)} cases, {len(releases)} releases, {repeat} rounds")
    found: list[dict[str, Any]] = []
    for release in releases:
        for case in cases:
            if (case.prepare or (case is cases[0] and repeat > 1)) and release.name not in case.refused:
                tell(f"uncounted: {case.name}, {release.name}")
                result = once(case, release, timeout)
                if "error" in result and not case.counted:  # others will show themselves again, counted
                    found.append({**result, "case": case.name, "release": release.name, "round": -1})
    chosen = {
        (case.name, release.name): (case, release)
        for case in cases
        for release in releases
        if case.counted and release.name not in case.refused
    }

    def order(_: object, number: int) -> list[tuple[str, str]]:
        both = [(case.name, release.name) for case in rotated(cases, number) for release in rotated(releases, number)]
        return [one for one in both if one in chosen]

    def measure_one(one: tuple[str, str], number: int) -> dict[str, Any]:
        case, release = chosen[one]
        tell(f"round {number + 1} of {repeat}: {case.name}, {release.name}")
        result = once(case, release, timeout)
        return {**result, "case": case.name, "release": release.name, "round": number}

    stopped: list[dict[str, Any]] = []
    try:
        measured = measure_rounds([*chosen], measure_one, repeat, order=order, budget=budget)
    except RoundsInterrupted as interrupt:
        measured = interrupt.rounds
        last = len(measured) - 1
        case_name, release_name = next(
            (one for one in order(None, last) if one not in measured[-1]), next(iter(chosen))
        )
        stopped = [{"error": "interrupted", "stderr": "", "case": case_name, "release": release_name, "round": last}]
    return found + [result for results in measured for result in results.values()] + stopped


def once(case: Case, release: Release, timeout: float) -> dict[str, Any]:
    """One measurement: what `measure` of the case's module returns, or "error" and "stderr"."""
    page_cache.warm(case.files)
    environment = {**case.environment, **release.environment}
    spec = {
        key: value.replace(RELEASE, release.name) if isinstance(value, str) else value
        for key, value in case.spec.items()
    }
    try:
        return fresh_process.run(case.module, spec, timeout, environment)
    except fresh_process.MeasurementError as error:
        return failure(error)


def failures(measurements: Sequence[Mapping[str, Any]]) -> list[str]:
    """What went wrong, one text for each measurement that failed."""
    return [f"{one['case']}, {one['release']}: {one['error']}" for one in measurements if "error" in one]
