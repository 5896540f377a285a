"""Releases in folders of their own, and cases measured with them in rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from benchmarks.published import releases
from benchmarks.published.releases import Release
from ortmulti import InvalidArgument
from ortmulti.bench.measure import fresh_process

INSTALLED = Release(onnxruntime.__version__, "onnxruntime")


def unpacked(folder: Path) -> Path:
    """The installed release as if it were unpacked in a folder."""
    folder.mkdir()
    package = Path(onnxruntime.__file__).parent
    for path in (package, *package.parent.glob("onnxruntime*.dist-info")):
        (folder / path.name).symlink_to(path)
    return folder


def test_a_release_in_a_folder_is_the_one_that_a_process_imports(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "unpacked")
    name = onnxruntime.__version__
    [release] = releases.find([name], {name: folder})
    assert (release.name, release.folder) == (name, folder.resolve())
    code = "import onnxruntime\ndef measure(spec):\n    return {'file': onnxruntime.__file__}\n"
    (folder / "which_release.py").write_text(code)
    result = fresh_process.run("which_release", {}, 60.0, release.environment)
    assert Path(result["file"]).parent.parent == folder


def test_releases_that_are_named_wrongly(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "unpacked")
    with pytest.raises(InvalidArgument, match=rf"holds ONNX Runtime {onnxruntime.__version__}, not 1\.2\.3"):
        releases.find(["1.2.3"], {"1.2.3": folder})
    for text in ("1.2.3", "=folder", f"1.2.3={tmp_path / 'none'}"):
        with pytest.raises(InvalidArgument):
            releases.parse_folder(text)
    assert releases.find([], {}) == (releases.find([onnxruntime.__version__], {})[0],)


def test_the_cuda_libraries_of_a_release_are_those_of_its_extras(tmp_path: Path) -> None:
    info = tmp_path / "onnxruntime_gpu-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.2.3\nRequires-Dist: numpy>=1\n"
        'Requires-Dist: nvidia-cublas~=13.0; extra == "cuda"\n'
    )
    assert releases.cuda_requirements(tmp_path) == ["nvidia-cublas~=13.0"]


def test_rounds_begin_with_another_case_and_failures_do_not_end_them(tmp_path: Path) -> None:
    (tmp_path / "a_worker.py").write_text(
        "def measure(spec):\n"
        "    with open(spec['log'], 'a') as log:\n"
        "        log.write(spec['name'] + ' ')\n"
        "    if spec['name'] == 'b':\n"
        "        raise RuntimeError('it broke')\n"
        "    return {'text': spec['text']}\n"
    )
    log = tmp_path / "log"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def case(name: str, **more: Any) -> releases.Case:
        spec = {"log": str(log), "name": name, "text": f"it is {releases.RELEASE}"}
        return releases.Case(name, "a_worker", spec, environment=environment, **more)

    refused = case("c", refused={INSTALLED.name: "too old"})
    found = releases.measure([case("a"), case("b"), refused, case("d", counted=False, prepare=True)], [INSTALLED], 2)
    assert log.read_text().split() == ["a", "d", "a", "b", "b", "a"]
    assert [(one["case"], one["round"], "error" in one) for one in found] == [
        ("a", 0, False), ("b", 0, True), ("b", 1, True), ("a", 1, False),
    ]  # fmt: skip
    assert found[0]["text"] == f"it is {INSTALLED.name}"
    assert releases.failures(found) == [f"b, {INSTALLED.name}: RuntimeError: it broke"] * 2
    with pytest.raises(InvalidArgument, match="nothing to measure"):
        releases.measure([], [INSTALLED], 1)
