"""What is said of the package in several places agrees, and the tools that make its wheels notice what is wrong."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pytest
from onnx import checker, load_from_string, numpy_helper

import ortmulti
from tests.support.processes import ROOT
from tools import check_version, check_wheel, publish_links, requirements, smoke_wheel, unpack_release

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = ROOT / ".github/workflows"
HAS_SOURCES = pytest.mark.skipif(not (ROOT / "cpp").is_dir(), reason="needs the sources")


def supported() -> list[str]:
    """The releases of Python that the classifiers name."""
    prefix = "Programming Language :: Python :: 3."
    return [f"3.{line.removeprefix(prefix)}" for line in PYPROJECT["project"]["classifiers"] if line.startswith(prefix)]


def test_the_version_is_in_one_place() -> None:
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert "version" not in PYPROJECT["project"]
    assert ortmulti.__version__ == check_version.version()
    try:
        assert metadata.version("ortmulti") == ortmulti.__version__
    except metadata.PackageNotFoundError:
        pytest.skip("no distribution: make PYTHON_READY=1 installs none")


def test_supported_releases_of_python_agree() -> None:
    releases = supported()
    assert releases == ["3.11", "3.12", "3.13", "3.14"]
    assert PYPROJECT["project"]["requires-python"] == f">={releases[0]}"
    wheels = [name.removesuffix("-*") for name in PYPROJECT["tool"]["cibuildwheel"]["build"]]
    assert wheels == [f"cp{release.replace('.', '')}" for release in releases] + ["cp314t"]
    assert any(":: Free Threading ::" in line for line in PYPROJECT["project"]["classifiers"])
    assert PYPROJECT["tool"]["ruff"]["target-version"] == wheels[0].replace("cp", "py")


def test_the_oldest_onnxruntime_agrees() -> None:
    """What the extras ask for is the oldest release whose headers wheels are built with."""
    script = (ROOT / "tools/fetch_onnxruntime_headers.sh").read_text("utf-8")
    [headers] = re.findall(r"version=\$\{2:-(\d+\.\d+)\.\d+\}", script)
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert [extras["gpu"], extras["cpu"]] == [[f"onnxruntime-gpu[cuda,cudnn]>={headers}"], [f"onnxruntime>={headers}"]]
    [needed] = re.findall(r"find_package\(ONNXRuntimeHeaders (\d+)", (ROOT / "CMakeLists.txt").read_text("utf-8"))
    assert headers == f"1.{needed}"


@HAS_SOURCES
def test_the_page_of_what_is_supported_agrees() -> None:
    page = (ROOT / "docs/stability.md").read_text("utf-8")
    rows = {row[0]: row for row in (re.split(r" *\| *", line.strip("| ")) for line in page.splitlines())}
    project = PYPROJECT["project"]
    assert f"The version is {ortmulti.__version__}," in page
    named = set(re.findall(r"3\.\d+", "".join(rows["Python"][1:3])))
    assert named == set(supported())
    [oldest] = re.findall(r">=([\d.]+)", project["optional-dependencies"]["cpu"][0])
    assert all(rows[name][2].startswith(f"{oldest} to ") for name in ("onnxruntime", "onnxruntime-gpu"))
    assert project["dependencies"] == [f"numpy>={rows['numpy'][2].removesuffix(' and newer')}"]
    glibc = PYPROJECT["tool"]["cibuildwheel"]["linux"]["manylinux-x86_64-image"].removeprefix("manylinux_")
    assert f"glibc {glibc.replace('_', '.')} and newer" in rows["system"][2]
    assert "Development Status :: 3 - Alpha" in project["classifiers"]
    assert "alpha" in page


@pytest.mark.skipif(not WORKFLOWS.is_dir(), reason="needs the workflows")
def test_workflows_use_what_is_there() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        text = path.read_text("utf-8")
        for script in re.findall(r"(?:run: |\s)((?:tools|\.ci)/[\w./]+)", text):
            assert (ROOT / script).is_file(), f"{path.name} runs {script}"
        assert set(re.findall(r"python: \"([\d.]+)\"", text)) <= set(supported())
        for action, commit in re.findall(r"uses: (\S+)@(.+)", text):
            assert re.fullmatch(r"[0-9a-f]{40} # v\d+\.\d+\.\d+", commit), action
    wheels = (WORKFLOWS / "wheels.yml").read_text("utf-8")
    assert re.search(r"runner: \[ubuntu-24\.04, ubuntu-24\.04-arm\]", wheels)
    linux = PYPROJECT["tool"]["cibuildwheel"]["linux"]
    assert {"manylinux-x86_64-image", "manylinux-aarch64-image"} <= set(linux)
    for command in linux["before-all"]:
        script, dest = re.fullmatch(r"bash \{project\}/(\S+) (\S+)", command).groups()  # type: ignore[union-attr]
        assert (ROOT / script).is_file()
        assert any(value.startswith(dest) for value in linux["environment"].values())
    assert Path(linux["environment"]["ORTMULTI_BUNDLE_NGHTTP2"]).name == Path(check_wheel.BUNDLED).name
    assert all(f"{name}: ${{{{ vars.{name} }}}}" in wheels for name in linux["environment-pass"])


@HAS_SOURCES
def test_every_fuzz_target_has_its_parsers_sources() -> None:
    lines = [line.split(" ", 1) for line in (ROOT / "tests/fuzz/targets").read_text("utf-8").splitlines()]
    targets = [path.stem.removeprefix("fuzz_") for path in (ROOT / "tests/fuzz").glob("fuzz_*")]
    assert sorted(name for name, _ in lines) == sorted(targets)
    files = [str(path.relative_to(ROOT)) for top in ("cpp", "python") for path in (ROOT / top).rglob("*.?[yp]*")]

    def asked_for(*changed: str) -> list[str]:
        tool = [str(ROOT / "tools/fuzz_targets.sh")]
        return subprocess.run(tool, input="\n".join(changed), capture_output=True, text=True, check=True).stdout.split()

    for name, pattern in lines:
        sources = [file for file in files if re.match(pattern, file)]
        assert sources, name
        assert name in asked_for(sources[0])
    assert asked_for("README.md", "cpp/core/onnx/wire.cpp", "tests/fuzz/fuzz_config.py") == ["onnx", "config"]
    assert asked_for("tests/fuzz/driver.cpp") == [name for name, _ in lines]
    assert asked_for("README.md", "docs/a.md") == []


def test_requirements_of_the_group_that_builds_wheels(capsys: pytest.CaptureFixture[str]) -> None:
    requirements.main(["wheel"])
    printed = capsys.readouterr().out.splitlines()
    assert set(PYPROJECT["dependency-groups"]["wheel"]) <= set(printed)
    assert set(PYPROJECT["build-system"]["requires"]) <= set(printed)
    assert not any("onnxruntime" in line for line in printed)


@pytest.mark.parametrize(
    ("tag", "heading", "message"),
    [
        ("v1.2.3", "1.2.3 (2026-11-21)", ""),
        ("v1.2.4", "1.2.3 (2026-11-21)", "the tag is v1.2.4, and CMakeLists.txt says 1.2.3"),
        ("1.2.3", "1.2.3 (2026-11-21)", "the tag is 1.2.3"),
        ("v1.2.3", "1.2.3 (unreleased)", "begins with '1.2.3 (unreleased)'"),
        ("v1.2.3", "1.2.2 (2026-11-21)", "begins with '1.2.2 (2026-11-21)'"),
        ("v1.2.3", "1.2.3 (2026-11-21)\n\n## 1.2.2 (2026-11-20)", "says nothing of 1.2.3 (2026-11-21)"),
    ],
)
def test_a_tag_is_the_version_and_a_date_is_in_the_changelog(
    tag: str, heading: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "CMakeLists.txt").write_text("project(ortmulti VERSION 1.2.3 LANGUAGES CXX)\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n- Something\n\n## 1.2.3 (2026-11-21)\n")
    assert check_version.main(tag, tmp_path) == bool(message)
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ("" if message else "- Something\n")


def test_the_registry_gets_absolute_links(tmp_path: Path) -> None:
    for name in ("README.md", "CHANGELOG.md", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    publish_links.main("someone/ortmulti", "v1.2.3", tmp_path)
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert "](https://github.com/someone/ortmulti/blob/v1.2.3/docs/tutorial.md#install)" in readme
    assert 'src="https://raw.githubusercontent.com/someone/ortmulti/v1.2.3/docs/images/start-light.svg"' in readme
    assert not re.search(r"\]\((?!https:)|src(set)?=\"(?!https:)", readme)
    notes = (tmp_path / "CHANGELOG.md").read_text("utf-8")
    assert "](https://github.com/someone/ortmulti/blob/v1.2.3/docs/stability.md)" in notes
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"]["Issues"] == "https://github.com/someone/ortmulti/issues"
    assert project["scripts"] == PYPROJECT["project"]["scripts"]


WHEEL = {
    "ortmulti/__init__.py": b"",
    "ortmulti/__init__.pyi": b"",
    "ortmulti/_core.pyi": b"",
    "ortmulti/_core.cpython-314t-x86_64-linux-gnu.so": b"\x7fELF",
    "ortmulti/pool/__init__.pyi": b"",
    "ortmulti/py.typed": b"",
    **{f"{check_wheel.PAGE}{name}": b"" for name in check_wheel.PAGE_FILES},
    "ortmulti-1.2.3.dist-info/METADATA": b"Name: ortmulti\n",
    **{f"ortmulti-1.2.3.dist-info/licenses/{name}": b"" for name in check_wheel.LICENSES},
}
BILL = "ortmulti-1.2.3.dist-info/sboms/ortmulti.cdx.json"


def bill(**versions: str) -> bytes:
    """A bill of materials with what every wheel has, and these parts."""
    parts = {**dict.fromkeys(check_wheel.PARTS, "1.21"), **versions}
    return json.dumps({"components": [{"name": name, "version": parts[name]} for name in parts]}).encode()


WHEEL[BILL] = bill()
OF_RELEASE = {check_wheel.BUNDLED: b"\x7fELF", BILL: bill(**{"nlohmann-json": "3.11.3", "nghttp2": "1.70.0"})}
SDIST = dict.fromkeys(check_wheel.NEEDED_IN_SDIST, b"")


def write_wheel(folder: Path, files: Mapping[str, bytes]) -> Path:
    path = folder / "ortmulti-1.2.3-cp314-cp314t-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_archive(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"ortmulti.libs/libcudart.so.13": b""}, "does not belong here: ortmulti.libs/libcudart.so.13"),
        ({"tests/test_a.py": b""}, "does not belong here: tests/test_a.py"),
        ({"ortmulti/_other.so": b""}, "one extension module is expected"),
        ({"ortmulti/_core.pyi": None}, "type information is missing: ortmulti/_core.pyi"),
        ({"ortmulti/__init__.pyi": None}, "type information is missing: ortmulti/__init__.pyi"),
        ({f"{check_wheel.PAGE}page.css": None}, f"is missing: {check_wheel.PAGE}page.css"),
        ({"ortmulti/page.html": b""}, "does not belong here: ortmulti/page.html"),
        ({"ortmulti-1.2.3.dist-info/licenses/LICENSE": None}, "the license is missing: LICENSE"),
        (
            {"ortmulti-1.2.3.dist-info/licenses/LICENSES/nghttp2.txt": None},
            "the license is missing: LICENSES/nghttp2.txt",
        ),
        (OF_RELEASE, ""),
        ({check_wheel.BUNDLED: b"\x7fELF"}, "the bill of materials lacks nghttp2"),
        ({BILL: OF_RELEASE[BILL]}, "names nghttp2, which is not there"),
        ({BILL: bill(pybind11="")}, "has no version of pybind11"),
        ({BILL: None}, "the bill of materials is missing"),
        ({"ortmulti/a.py": f"'{ROOT}/cpp'".encode()}, f"ortmulti/a.py names {ROOT}"),
        ({"ortmulti/a.py": os.urandom(check_wheel.LIMIT)}, "more than 5000000"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_named(
    changes: Mapping[str, bytes | None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: content for name, content in {**WHEEL, **changes}.items() if content is not None}
    assert check_wheel.main([str(write_wheel(tmp_path, files))]) == bool(message)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("bundled", [False, True])
def test_a_wheel_of_a_release_brings_nghttp2(bundled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = write_wheel(tmp_path, {**WHEEL, **(OF_RELEASE if bundled else {})})
    assert check_wheel.main(["--with-nghttp2", str(wheel)]) == (not bundled)
    assert ("is missing: ortmulti/libortmulti_nghttp2.so" in capsys.readouterr().err) == (not bundled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"tests/conftest.py": None}, "is missing: tests/conftest.py"),
        ({"tests/__pycache__/conftest.cpython-311.pyc": b""}, "does not belong here: tests/__pycache__"),
        ({"python/ortmulti/_core.cpython-311-x86_64-linux-gnu.so": b""}, "does not belong here: python/ortmulti/_core"),
        ({".venv/pyvenv.cfg": b""}, "does not belong here: .venv/pyvenv.cfg"),
        ({".git": b""}, "does not belong here: .git"),
        ({"notes.md": f"see {ROOT}/notes".encode()}, f"notes.md names {ROOT}"),
    ],
)
def test_what_is_wrong_with_an_sdist_is_named(
    changes: Mapping[str, bytes | None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"ortmulti-1.2.3/{name}": data for name, data in {**SDIST, **changes}.items() if data is not None}
    path = write_archive(tmp_path / "ortmulti-1.2.3.tar.gz", files)
    assert check_wheel.main([str(path)]) == bool(message)
    assert message in capsys.readouterr().err


@HAS_SOURCES
def test_the_sdist_of_these_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scikit_build_core")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    [path] = tmp_path.iterdir()
    assert path.name == f"ortmulti-{check_version.version()}.tar.gz"
    assert check_wheel.main([str(path)]) == 0, capsys.readouterr().err
    names = {name for name, _ in check_wheel.read_sdist(path)}
    for folder, pattern in (("cpp", "*.?pp"), ("python", "*.py"), ("tests", "*.py"), ("tests/cpp", "*.?pp")):
        assert {str(file.relative_to(ROOT)) for file in (ROOT / folder).rglob(pattern)} <= names


def test_the_page_s_files_are_those_that_a_wheel_needs() -> None:
    folder = Path(ortmulti.__file__).parents[1] / check_wheel.PAGE
    assert {file.name for file in folder.iterdir() if file.suffix in (".html", ".css", ".js")} == set(
        check_wheel.PAGE_FILES
    )


def test_the_smoke_test_runs_the_model_that_it_describes() -> None:
    """Its bytes are stored, since the environments that it runs in have no onnx."""
    model = load_from_string(smoke_wheel.MODEL)
    checker.check_model(model, full_check=True)
    nodes = [(node.op_type, list(node.input), list(node.output)) for node in model.graph.node]
    assert nodes == [("MatMul", ["x", "w"], ["h"]), ("Relu", ["h"], ["y"])]
    assert [numpy_helper.to_array(weights).tolist() for weights in model.graph.initializer] == [[[1, -1], [0.5, 2]]]
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 13)]
    smoke_wheel.compare()


def test_the_smoke_test_tells_strange_files(tmp_path: Path) -> None:
    ours = [Path(sys.prefix, "lib/a.so"), tmp_path / "onnxruntime/a.so", Path("/usr/lib/libc.so.6"), Path(os.__file__)]
    assert Path(os.__file__) in set(smoke_wheel.modules())
    assert Path(sys.executable).resolve() in {path.resolve() for path in smoke_wheel.mapped()}
    assert list(smoke_wheel.foreign(iter(ours), tmp_path)) == []
    debians = Path("/etc", f"python3.{sys.version_info.minor}", "sitecustomize.py")
    assert list(smoke_wheel.foreign(iter([debians]), None)) == []
    if sys.prefix == sys.base_prefix:
        pytest.skip("this interpreter is not of a virtual environment")
    base = Path(os.__file__).parent / "site-packages/numpy/__init__.py"
    strange = {tmp_path / "a.so", ROOT / "elsewhere/_core.so", base}
    assert set(smoke_wheel.foreign(iter([*ours[:1], *strange]), None)) == {path.resolve() for path in strange}


def fetch_headers(archive: Path, dest: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "tools/fetch_onnxruntime_headers.sh"), str(dest), "1.2.3"],
        env={**os.environ, "ONNXRUNTIME_RELEASES": archive.as_uri(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_headers_are_fetched_from_an_archive(tmp_path: Path) -> None:
    name, dest = "onnxruntime-linux-x64-1.2.3", tmp_path / "headers"
    (tmp_path / "v1.2.3").mkdir()
    headers = {"onnxruntime_c_api.h": b"#define ORT_API_VERSION 21\n", "onnxruntime_cxx_api.h": b"// C++\n"}
    files = {f"{name}/include/{file}": content for file, content in headers.items()}
    archive = write_archive(tmp_path / f"v1.2.3/{name}.tgz", {**files, f"{name}/lib/libonnxruntime.so": b"\x7fELF"})

    wrong = fetch_headers(tmp_path, dest, ONNXRUNTIME_HEADERS_SHA256="0" * 64)
    assert (wrong.returncode, dest.exists()) == (1, False)
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert f"has the SHA-256 {checksum}, not 000" in wrong.stderr

    right = fetch_headers(tmp_path, dest, ONNXRUNTIME_HEADERS_SHA256=checksum)
    assert (right.returncode, checksum in right.stderr) == (0, True), right.stderr
    assert {path.name: path.read_bytes() for path in dest.iterdir()} == headers

    write_archive(archive, {f"{name}/lib/libonnxruntime.so": b"\x7fELF"})
    assert "has no headers" in fetch_headers(tmp_path, tmp_path / "none").stderr
    archive.unlink()
    assert "cannot fetch" in fetch_headers(tmp_path, tmp_path / "none").stderr
    assert not (tmp_path / "none").exists()


# What the build of nghttp2 does, in short.
NGHTTP2_CMAKE = """
cmake_minimum_required(VERSION 3.14)
project(nghttp2 C)
add_library(nghttp2 STATIC nghttp2.c)
install(TARGETS nghttp2 ARCHIVE DESTINATION lib)
install(FILES nghttp2.h DESTINATION include/nghttp2)
"""


@pytest.mark.skipif(not all(map(shutil.which, ("cc", "cmake"))), reason="needs a compiler and cmake")
def test_libraries_of_the_server_are_fetched_and_built(tmp_path: Path) -> None:
    dest, name = tmp_path / "serve", "nghttp2-1.2.3"
    (tmp_path / "v1.2.3").mkdir()
    (tmp_path / "v1.2.3/json.hpp").write_text("// JSON\n")
    files = {
        "CMakeLists.txt": NGHTTP2_CMAKE.encode(),
        "nghttp2.c": b"int nghttp2_number(void) { return 3; }\n",
        "nghttp2.h": b"// nghttp2\n",
    }
    write_archive(tmp_path / f"v1.2.3/{name}.tar.gz", {f"{name}/{file}": content for file, content in files.items()})

    def fetch(**environment: str) -> subprocess.CompletedProcess[str]:
        releases = dict.fromkeys(("NGHTTP2_RELEASES", "NLOHMANN_JSON_RELEASES"), tmp_path.as_uri())
        return subprocess.run(
            [str(ROOT / "tools/fetch_serve_libraries.sh"), str(dest), "1.2.3", "1.2.3"],
            env={**os.environ, **releases, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    wrong = fetch(NGHTTP2_SHA256="0" * 64)
    assert (wrong.returncode, dest.exists()) == (1, False)
    assert f"{name}.tar.gz has the SHA-256" in wrong.stderr
    right = fetch(NLOHMANN_JSON_SHA256=hashlib.sha256(b"// JSON\n").hexdigest())
    assert right.returncode == 0, right.stderr
    found = {str(path.relative_to(dest)) for path in dest.rglob("*") if path.is_file()}
    assert found == {"include/nghttp2/nghttp2.h", "include/nlohmann/json.hpp", "lib/libortmulti_nghttp2.so"}
    assert ctypes.CDLL(str(dest / "lib/libortmulti_nghttp2.so")).nghttp2_number() == 3


def test_the_cuda_libraries_of_an_unpacked_release_are_those_of_its_extras(tmp_path: Path) -> None:
    info = tmp_path / "onnxruntime_gpu-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.2.3\nRequires-Dist: numpy>=1\n"
        'Requires-Dist: nvidia-cublas~=13.0; extra == "cuda"\n'
    )
    assert unpack_release.cuda_requirements(tmp_path) == ["nvidia-cublas~=13.0"]
