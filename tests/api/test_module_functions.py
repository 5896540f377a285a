"""Functions of the module, against the installed onnxruntime's."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import ortmulti
from ortmulti._runtime.libraries import OVERRIDE
from tests.support.elf_files import write_elf
from tests.support.processes import check_child

NEEDED = ("libcudart.so.13", "libcublas.so.13")
CUDNN = "libcudnn.so.9"

# Says which CUDA libraries are loaded after preload_dlls with these arguments, and what it warned of.
PRELOAD = """
import json, logging, sys
import ortmulti
from pathlib import Path
warnings = []
class Handler(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("ortmulti").addHandler(Handler())
logging.getLogger("ortmulti").propagate = False
ortmulti.preload_dlls(**json.loads(sys.argv[1]))
mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
loaded = {path.rsplit("/")[-1]: path for path in mapped if path.rsplit("/")[-1].startswith(("libcu", "libnvrtc"))}
print(json.dumps([loaded, warnings]))
"""


@pytest.mark.parametrize(
    "name",
    [
        *("get_all_providers", "get_available_providers", "get_device", "get_version_string", "get_build_info"),
        *("disable_telemetry_events", "enable_telemetry_events"),
    ],
)
def test_the_answers_are_onnxruntimes(name: str) -> None:
    assert getattr(ortmulti, name)() == getattr(onnxruntime, name)()


def compile_libraries(folder: Path, names: Sequence[str]) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        flags = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([compiler, *flags, "-xc", "/dev/null"], check=True)
    return folder


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """The library of a pretended ONNX Runtime with a CUDA provider, which is never opened."""
    folder = tmp_path / "runtime"
    write_elf(folder / "libonnxruntime_providers_cuda.so", [*NEEDED, "libc.so.6"])
    return write_elf(folder / "libonnxruntime.so.1.31.1", ["libc.so.6"])


def preload(runtime: Path, **arguments: Any) -> tuple[dict[str, str], list[str]]:
    loaded, warnings = json.loads(check_child(PRELOAD, json.dumps(arguments), environment={OVERRIDE: str(runtime)}))
    return loaded, warnings


@pytest.mark.parametrize("relative", [False, True])
def test_libraries_of_a_directory_are_opened(relative: bool, runtime: Path) -> None:
    """A relative one is beside the library."""
    folder = compile_libraries(runtime.parent / "own" / "lib", [*NEEDED, CUDNN])
    loaded, _ = preload(runtime, directory="own/lib" if relative else str(folder))
    for name in (*NEEDED, CUDNN):
        assert loaded[name] == str(folder / name)


def test_cuda_and_cudnn_are_chosen_apart(runtime: Path, tmp_path: Path) -> None:
    folder = str(compile_libraries(tmp_path / "cuda", [*NEEDED, CUDNN]))
    without_cudnn, _ = preload(runtime, cudnn=False, directory=folder)
    assert set(NEEDED) <= set(without_cudnn)
    assert CUDNN not in without_cudnn
    without_cuda, _ = preload(runtime, cuda=False, directory=folder)
    assert CUDNN in without_cuda
    assert not set(NEEDED) & set(without_cuda)
    assert preload(runtime, cuda=False, cudnn=False, directory=folder) == ({}, [])


def test_what_is_not_there_or_cannot_be_opened_is_said(runtime: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cuda"
    write_elf(folder / NEEDED[0], ["libno_such_thing.so"])
    _, warnings = preload(runtime, cudnn=False, directory=str(folder))
    assert any(f"could not open {folder / NEEDED[0]}" in text and "libno_such_thing" in text for text in warnings)
    # A machine that has the CUDA toolkit has the other one somewhere else.
    assert any("libcublas.so.13" in text for text in warnings) or shutil.which("nvidia-smi")


def test_without_a_cuda_provider_nothing_is_done(tmp_path: Path) -> None:
    runtime = write_elf(tmp_path / "libonnxruntime.so.1.31.1", ["libc.so.6"])
    assert preload(runtime, directory=str(tmp_path)) == ({}, [])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"directory": "/no/such/folder"}, ortmulti.InvalidArgument, "/no/such/folder"),
        ({"directory": 3}, ortmulti.InvalidType, "directory is a path, not 3"),
        ({"cuda": "yes"}, ortmulti.InvalidType, "cuda is True or False"),
        ({"cudnn": None}, ortmulti.InvalidType, "cudnn is True or False"),
        ({"msvc": []}, ortmulti.InvalidType, "msvc is True or False"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ortmulti.preload_dlls(**arguments)
