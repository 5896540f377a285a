"""Check what is in a wheel and an sdist that were built here: size, files, and no trace of this source tree.

python3 tools/check_wheel.py [--with-nghttp2] dist/*.whl dist/*.tar.gz

With --with-nghttp2, as for a release, a wheel must bring nghttp2 along. A wheel's bill of materials must name what it
has of others.

Prints a line for each; exit status 1 and a line for each finding where something is wrong.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 5_000_000
"""Bytes of a wheel."""

PAGE = "ortmulti/bench/diagnose/report/page/"
PAGE_FILES = ("page.html", "page.css")
"""What the page of a diagnosis is made of, beside its modules."""

COMPILED = ("nghttp2", "nlohmann-json", "onnxruntime", "pybind11")  # in, or bundled
LICENSES = ("LICENSE", *(f"LICENSES/{name}.txt" for name in COMPILED))
"""Ours, and those of what an extension is built with or brings along."""

BUNDLED = "ortmulti/libortmulti_nghttp2.so"
"""The one library that a wheel may bring along: cmake's ORTMULTI_BUNDLE_NGHTTP2."""

PARTS = {"onnxruntime-headers", "pybind11"}
"""What every extension is compiled with. One with a server has nlohmann-json too."""

TYPES = ("ortmulti/py.typed", "ortmulti/_core.pyi", "ortmulti/__init__.pyi", "ortmulti/pool/__init__.pyi")

WHEEL = re.compile(
    rf"ortmulti/[\w./-]+\.(py|pyi|so)|ortmulti/py\.typed|{PAGE}\w+\.(html|css|js)|ortmulti-[\w.]+\.dist-info/.+"
)
NEEDED_IN_SDIST = (
    "CHANGELOG.md",
    "CMakeLists.txt",
    *LICENSES,
    "Makefile",
    "PKG-INFO",
    "README.md",
    "benchmarks/run_overhead.py",
    "cmake/FindONNXRuntimeHeaders.cmake",
    "cmake/ortmulti.cdx.json.in",
    "cpp/bindings/module.cpp",
    "cpp/core/CMakeLists.txt",
    "docs/inside/architecture.md",
    "examples/service.py",
    "mkdocs.yml",
    "pyproject.toml",
    *(f"python/{PAGE}{name}" for name in PAGE_FILES),
    "python/ortmulti/py.typed",
    "tests/conftest.py",
    "tests/cpp/CMakeLists.txt",
    "tools/fetch_debian_package.sh",
    "tools/fetch_serve_libraries.sh",
)
UNWANTED = re.compile(
    r"(^|/)(__pycache__|build|dist|\.[\w-]+|[\w.]+\.egg-info|results)/|\.(so|pyc|o|onnx|whl)$|(^|/)\.git"
)


def main(arguments: Iterable[str]) -> int:
    paths = list(arguments)
    bundled = "--with-nghttp2" in paths
    findings = []
    for path in (Path(each) for each in paths if each != "--with-nghttp2"):
        files = dict(read_wheel(path) if path.suffix == ".whl" else read_sdist(path))
        found = [*(check_wheel if path.suffix == ".whl" else check_sdist)(set(files)), *traces(files)]
        if path.suffix == ".whl":
            found += check_bill(files)
        if bundled and path.suffix == ".whl" and BUNDLED not in files:
            found.append(f"is missing: {BUNDLED}")
        if path.stat().st_size > LIMIT:
            found.append(f"{path.stat().st_size} bytes, more than {LIMIT}")
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(files)} files")
        findings += [f"{path.name}: {finding}" for finding in found]
    print(*findings, sep="\n", end="\n" if findings else "", file=sys.stderr)
    return int(bool(findings))


def read_wheel(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        yield from ((entry.filename, archive.read(entry)) for entry in archive.infolist() if not entry.is_dir())


def read_sdist(path: Path) -> Iterator[tuple[str, bytes]]:
    """Its files, without the folder that they are all in."""
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, name = member.name.partition("/")
            if folder != path.name.removesuffix(".tar.gz"):
                raise ValueError(f"{path.name} unpacks {member.name} beside its folder")
            content = archive.extractfile(member)
            if content is not None:
                yield name, content.read()


def check_wheel(names: set[str]) -> Iterator[str]:
    """The package, and nghttp2 at most: a folder ortmulti.libs would be libraries that auditwheel had to bundle."""
    yield from (f"does not belong here: {name}" for name in sorted(names) if not WHEEL.fullmatch(name))
    extensions = [name for name in names if name.endswith(".so") and name != BUNDLED]
    if len(extensions) != 1:
        yield f"one extension module is expected, not {extensions}"
    yield from (f"type information is missing: {name}" for name in TYPES if name not in names)
    yield from (f"is missing: {PAGE}{name}" for name in PAGE_FILES if f"{PAGE}{name}" not in names)
    for license in LICENSES:
        if not any(name.endswith(f".dist-info/licenses/{license}") for name in names):
            yield f"the license is missing: {license}"


def check_bill(files: dict[str, bytes]) -> Iterator[str]:
    """The bill of materials, in CycloneDX's form: PEP 770 says where."""
    bills = [name for name in files if name.endswith(".dist-info/sboms/ortmulti.cdx.json")]
    if len(bills) != 1:
        yield "the bill of materials is missing: sboms/ortmulti.cdx.json"
        return
    parts = {part["name"]: part["version"] for part in json.loads(files[bills[0]])["components"]}
    needed = PARTS | ({"nlohmann-json", "nghttp2"} if BUNDLED in files else set())
    yield from (f"the bill of materials lacks {name}" for name in sorted(needed - parts.keys()))
    yield from (
        f"the bill of materials has no version of {name}" for name in parts if not re.match(r"\d+\.\d", parts[name])
    )
    if "nghttp2" in parts and BUNDLED not in files:
        yield "the bill of materials names nghttp2, which is not there"


def check_sdist(names: set[str]) -> Iterator[str]:
    yield from (f"is missing: {name}" for name in NEEDED_IN_SDIST if name not in names)
    yield from (f"does not belong here: {name}" for name in sorted(names) if UNWANTED.search(name))


def traces(files: dict[str, bytes]) -> Iterator[str]:
    """Files that name a folder of whoever built them."""
    for folder in {str(ROOT), str(Path.home())} - {"/"}:
        pattern = re.compile(re.escape(folder.encode()) + rb"/")
        yield from (f"{name} names {folder}" for name, content in files.items() if pattern.search(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
