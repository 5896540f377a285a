"""Plug-ins of execution providers for tests: a fake one, compiled here, and OpenVINO's where its package is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ortmulti
from ortmulti._runtime.libraries import release_of
from tests.support.compiling import compile_library

FAKE = "fake_plugin.c"
_INTEL = 0x8086


def build(folder: Path, source: str = FAKE, **macros: object) -> Path:
    """Compiles a plug-in of this folder with these macros, of which text becomes a string."""
    if release_of(ortmulti.get_version_string()) < (1, 23):
        pytest.skip("needs onnxruntime 1.23 or newer")
    texts = {name: f'"{value}"' if isinstance(value, (str, Path)) else value for name, value in macros.items()}
    definitions = [f"-D{name}={value}" for name, value in texts.items()]
    return compile_library(source, folder / f"lib{Path(source).stem}.so", "-Wl,-z,nodelete", *definitions)


def openvino(folder: Path) -> Path:
    """OpenVINO's plug-in takes Intel's processors alone. It is told here that this machine has one."""
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        pytest.skip("needs onnxruntime-ep-openvino")
    if release_of(ortmulti.get_version_string()) < (1, 30):
        pytest.skip("onnxruntime-ep-openvino 1.8.1 needs onnxruntime 1.30 or newer")
    import onnxruntime_ep_openvino

    return build(folder, "any_vendor.c", VENDOR=_INTEL, REAL=onnxruntime_ep_openvino.get_library_path())


def plugin_package(folder: Path, name: str, library: Path, provider: str = "FakeExecutionProvider") -> None:
    """Makes an installed package of a plug-in, for processes that have the folder in sys.path."""
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(
        f"def get_library_path():\n    return {str(library)!r}\n\n\ndef get_ep_name():\n    return {provider!r}\n"
    )


@contextmanager
def registered(path: Path, name: str = "tests") -> Iterator[None]:
    """Registers a plug-in for a while; sessions on its devices are closed before the end."""
    ortmulti.register_execution_provider_library(name, path)
    try:
        yield
    finally:
        ortmulti.unregister_execution_provider_library(name)
