"""Environments are built from real ELF files in real folder layouts; only the size of the libraries is not real."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

import ortmulti
from ortmulti._runtime import libraries as _libraries
from ortmulti._runtime.cuda_libraries import (
    CudaSearch,
    cuda_major,
    find_cuda_libraries,
    open_by_name,
    owner,
    run_time_use,
    why_driver_too_old,
    why_no_cuda,
)
from ortmulti._runtime.libraries import (
    OVERRIDE,
    OnnxRuntime,
    find_onnxruntime,
    inspect_package,
)
from ortmulti.errors import LibraryError
from tests.support.elf_files import write_elf
from tests.support.processes import check_child

CUDA12 = (
    "libcublasLt.so.12",
    "libcublas.so.12",
    "libcurand.so.10",
    "libcufft.so.11",
    "libcudart.so.12",
    "libcudnn.so.9",
)
CUDA13 = ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudart.so.13", "libcuda.so.1")


def add_wheel(site: Path, name: str, version: str, files: Sequence[Path] = ()) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"{file.relative_to(site).as_posix()},sha256=x,1" for file in files]
    (info / "RECORD").write_text("\n".join(lines) + "\n")


def add_onnxruntime(site: Path, version: str, cuda: Sequence[str] | None = None, name: str | None = None) -> Path:
    """Install a pretended ONNX Runtime; with `cuda`, one whose CUDA provider needs these libraries."""
    package = site / "onnxruntime"
    files = [write_elf(package / "capi" / f"libonnxruntime.so.{version}", ["libc.so.6"])]
    if cuda is not None:
        files.append(write_elf(package / "capi" / "libonnxruntime_providers_cuda.so", [*cuda, "libc.so.6"]))
    (package / "__init__.py").write_text("raise RuntimeError('onnxruntime was imported')\n")
    add_wheel(site, name or ("onnxruntime" if cuda is None else "onnxruntime_gpu"), version, files)
    return package


# The wheels of each release of CUDA, with their libraries below the folder "nvidia".
WHEELS = {
    12: {
        "nvidia_cublas_cu12-12.9.1.4": ("cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12"),
        "nvidia_cuda_runtime_cu12-12.9.79": ("cuda_runtime/lib/libcudart.so.12",),
        "nvidia_curand_cu12-10.3.10.19": ("curand/lib/libcurand.so.10",),
        "nvidia_cufft_cu12-11.4.1.4": ("cufft/lib/libcufft.so.11",),
        "nvidia_cuda_nvrtc_cu12-12.9.86": ("cuda_nvrtc/lib/libnvrtc.so.12",),
        "nvidia_cudnn_cu12-9.10.0.56": ("cudnn/lib/libcudnn.so.9",),
    },
    13: {
        "nvidia_cublas-13.1.0.3": ("cu13/lib/libcublas.so.13", "cu13/lib/libcublasLt.so.13"),
        "nvidia_cuda_runtime-13.0.96": ("cu13/lib/libcudart.so.13",),
        "nvidia_curand-10.4.0.35": ("cu13/lib/libcurand.so.10",),
        "nvidia_cufft-12.0.0.61": ("cu13/lib/libcufft.so.12",),
        "nvidia_cuda_nvrtc-13.0.88": ("cu13/lib/libnvrtc.so.13",),
        "nvidia_cudnn_cu13-9.14.0.64": ("cudnn/lib/libcudnn.so.9",),
    },
}
NEEDED = {
    "cublas/lib/libcublas.so.12": ["libcublasLt.so.12"],
    "cu13/lib/libcublas.so.13": ["libcublasLt.so.13"],
    "cu13/lib/libcurand.so.10": ["libcudart.so.13"],
}


def add_cuda(site: Path, major: int) -> None:
    for wheel, libraries in WHEELS[major].items():
        files = [write_elf(site / "nvidia" / library, NEEDED.get(library, ())) for library in libraries]
        name, version = wheel.split("-")
        add_wheel(site, name, version, files)


def search(*sites: Path, system: Path | None = None, loaded: dict[str, Path] | None = None) -> CudaSearch:
    """A search that sees these folders and nothing of the machine that the test runs on."""

    def find(name: str, search: bool) -> Path | None:
        path = system / name if search and system is not None else (loaded or {}).get(name)
        return path if path is not None and path.is_file() else None

    return CudaSearch(sites, find)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def find_in(site: Path, *, alone: bool = False) -> str:
    """What a fresh interpreter with this folder first on its path finds, as text; or the error's, if it finds none.

    With `alone`, nothing that is installed for the interpreter of the tests is seen, ortmulti's own sources apart.
    """
    program = (
        "import sys\n"
        "from ortmulti._runtime.libraries import find_onnxruntime\n"
        "from ortmulti.errors import LibraryError\n"
        "try: print(find_onnxruntime())\n"
        "except LibraryError as e: print(e)\n"
        "assert 'onnxruntime' not in sys.modules\n"
    )
    path, options = [str(site), *sys.path], []
    if alone:
        # Linked one by one: the modules in question load without the rest of the package, and without NumPy.
        sources = site.parent / "sources" / "ortmulti"
        sources.mkdir(parents=True)
        package = Path(find_onnxruntime.__code__.co_filename).parents[1]
        (sources / "_runtime").symlink_to(package / "_runtime")
        (sources / "errors.py").symlink_to(package / "errors.py")
        path, options = [str(site), str(sources.parent)], ["-S"]
    environ = {key: value for key, value in os.environ.items() if key != OVERRIDE}
    environ["PYTHONPATH"] = os.pathsep.join(path)
    result = subprocess.run([sys.executable, *options, "-c", program], env=environ, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


class TestFindOnnxRuntime:
    def test_the_installed_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(OVERRIDE, raising=False)
        if importlib.util.find_spec("onnxruntime") is None:
            pytest.skip("needs an installed onnxruntime distribution")
        runtime = find_onnxruntime()
        name = runtime.distribution
        assert runtime.capi is not None
        beside = {d.metadata["Name"]: d.version for d in metadata.distributions(path=[str(runtime.capi.parents[1])])}
        assert runtime.version == beside[name]
        assert runtime.path.name == f"libonnxruntime.so.{runtime.version}"
        assert runtime.path.is_file()
        assert runtime.has_cuda == (name == "onnxruntime-gpu") == bool(runtime.cuda_needed)
        assert find_onnxruntime() is runtime

    def test_ortmulti_under_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(OVERRIDE, raising=False)
        runtime = find_onnxruntime()
        monkeypatch.setitem(sys.modules, "onnxruntime", ortmulti)
        _libraries._from_environment.cache_clear()
        assert find_onnxruntime() == runtime

    def test_without_importing_it(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.31.1")
        capi = package / "capi"
        found = OnnxRuntime(capi / "libonnxruntime.so.1.31.1", "1.31.1", "onnxruntime", capi, None, ())
        assert find_in(site) == str(found)

    def test_a_gpu_distribution_and_what_it_is_linked_to(self, site: Path) -> None:
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", CUDA13))
        assert runtime.distribution == "onnxruntime-gpu"
        assert runtime.has_cuda
        assert runtime.cuda_needed == CUDA13[:-1]  # without the driver's
        assert cuda_major(runtime) == 13

    def test_other_distributions_of_the_same_package(self, site: Path) -> None:
        runtime = inspect_package(add_onnxruntime(site, "1.24.1", name="onnxruntime_openvino"))
        assert runtime.distribution == "onnxruntime-openvino"

    def test_relatives_with_folders_of_their_own_do_not_count(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.31.1")
        add_wheel(
            site, "onnxruntime_genai", "0.9.0", [write_elf(site / "onnxruntime_genai" / "libonnxruntime-genai.so")]
        )
        add_wheel(site, "onnxruntime_extensions", "0.14.0")
        assert inspect_package(package).distribution == "onnxruntime"

    def test_two_distributions_over_each_other(self, site: Path) -> None:
        add_onnxruntime(site, "1.31.1")
        add_onnxruntime(site, "1.30.0", CUDA13)
        message = find_in(site)
        assert "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0 are installed over each other" in message
        assert "pip uninstall -y onnxruntime onnxruntime-gpu" in message
        assert 'pip install "ortmulti[gpu]"' in message

    def test_none(self, site: Path) -> None:
        message = find_in(site, alone=True)
        assert "ONNX Runtime is not installed" in message
        assert 'pip install "ortmulti[gpu]"' in message
        assert 'pip install "ortmulti[cpu]"' in message

    @pytest.mark.parametrize("version", ["1.20.1", "1.9.0", "1.20.2+cu118", "1.20.0.dev20241101"])
    def test_too_old(self, site: Path, version: str) -> None:
        package = add_onnxruntime(site, version, CUDA12)
        with pytest.raises(LibraryError, match=r"too old.*1\.21 or newer: pip install --upgrade onnxruntime-gpu"):
            inspect_package(package)

    @pytest.mark.parametrize("version", ["1.21.0", "1.31.1", "1.32.0.dev20260101001", "2.0.0"])
    def test_new_enough(self, site: Path, version: str) -> None:
        assert inspect_package(add_onnxruntime(site, version)).version == version

    def test_a_library_of_another_release_beside_it(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.23.2")
        write_elf(package / "capi" / "libonnxruntime.so.1.30.0")
        assert inspect_package(package).path.name == "libonnxruntime.so.1.23.2"

    @pytest.mark.parametrize("everything", [False, True])
    def test_files_gone_after_uninstalling_the_other_distribution(self, site: Path, everything: bool) -> None:
        package = add_onnxruntime(site, "1.31.1", CUDA13)
        (package / "__init__.py").unlink()
        (package / "capi" / "libonnxruntime.so.1.31.1").unlink()
        if everything:
            shutil.rmtree(package)
        message = find_in(site, alone=True)
        assert "onnxruntime-gpu 1.31.1 is installed" in message
        assert "pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1" in message

    def test_a_package_without_the_library(self, site: Path) -> None:
        (site / "onnxruntime" / "capi").mkdir(parents=True)
        with pytest.raises(LibraryError, match=f"carries no libonnxruntime.so.*{OVERRIDE}"):
            inspect_package(site / "onnxruntime")

    def test_a_truncated_library(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.31.1", CUDA13)
        library = package / "capi" / "libonnxruntime.so.1.31.1"
        data = library.read_bytes()
        library.write_bytes(data[:70])
        with pytest.raises(LibraryError, match=r"libonnxruntime\.so\.1\.31\.1 is damaged or truncated"):
            inspect_package(package)
        library.write_bytes(data)
        (package / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(b"")
        with pytest.raises(LibraryError, match=r"libonnxruntime_providers_cuda\.so is not an ELF file"):
            inspect_package(package)

    def test_a_library_for_another_processor(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.31.1")
        write_elf(package / "capi" / "libonnxruntime.so.1.31.1", machine=8)
        with pytest.raises(LibraryError, match="another processor"):
            inspect_package(package)


class TestOverride:
    def test_it_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = write_elf(tmp_path / "libonnxruntime.so.1.25.3")
        link = tmp_path / "libonnxruntime.so"
        link.symlink_to(library.name)
        provider = write_elf(tmp_path / "libonnxruntime_providers_cuda.so", CUDA13)
        monkeypatch.setenv(OVERRIDE, str(link))
        assert find_onnxruntime() == OnnxRuntime(library, "1.25.3", "", None, provider, CUDA13[:-1])

    def test_its_release_may_be_unknown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(OVERRIDE, str(write_elf(tmp_path / "libort.so")))
        assert find_onnxruntime().version == ""

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("absent.so", rf"{OVERRIDE} is set to .*absent\.so"),
            ("text.so", "is not an ELF file"),
            ("libonnxruntime.so.1.20.0", "too old"),
        ],
    )
    def test_it_must_be_a_library_and_new_enough(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
    ) -> None:
        (tmp_path / "text.so").write_text("no library")
        write_elf(tmp_path / "libonnxruntime.so.1.20.0")
        monkeypatch.setenv(OVERRIDE, str(tmp_path / name))
        with pytest.raises(LibraryError, match=message):
            find_onnxruntime()


class TestFindCudaLibraries:
    def test_none_for_the_cpu(self, site: Path) -> None:
        libraries = find_cuda_libraries(inspect_package(add_onnxruntime(site, "1.31.1")))
        assert (libraries.found, libraries.missing) == ((), ())

    @pytest.mark.parametrize(("needed", "major"), [(CUDA12, 12), (CUDA13, 13)])
    def test_all_in_nvidias_wheels(self, site: Path, needed: tuple[str, ...], major: int) -> None:
        add_cuda(site, major)
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", needed))
        libraries = search(site).find(runtime)
        names = [path.name for path in libraries.found]
        assert libraries.missing == libraries.missing_optional == libraries.unusable == ()
        assert set(libraries.sources) == {"nvidia"}
        assert set(names) == {*runtime.cuda_needed, f"libcufft.so.{major - 1}", f"libnvrtc.so.{major}", "libcudnn.so.9"}
        assert names.index(f"libcublasLt.so.{major}") < names.index(f"libcublas.so.{major}")
        assert why_no_cuda(runtime, search(site)) == ()

    @pytest.mark.parametrize(
        ("present", "found", "missing"),
        [
            (
                {"cublas": ["cublasLt"], "cublasLt": ["nvJitLink"], "nvJitLink": [], "cudart": []},
                ["nvJitLink", "cublasLt", "cublas", "cudart"],
                [],
            ),
            ({"cublas": ["cublasLt"], "cublasLt": ["cublas"], "cudart": []}, ["cublasLt", "cublas", "cudart"], []),
            ({"cublas": ["cublasLt"], "cudart": []}, ["cublas", "cudart"], ["cublasLt"]),
        ],
        ids=["in a chain", "in a circle", "one missing"],
    )
    def test_dependencies_come_first_whatever_the_provider_names_first(
        self, site: Path, present: dict[str, list[str]], found: list[str], missing: list[str]
    ) -> None:
        def files(names: list[str]) -> list[str]:
            return [f"lib{name}.so.13" for name in names]

        for name, needed in present.items():
            write_elf(site / "nvidia" / "cu13" / "lib" / f"lib{name}.so.13", files(needed))
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", files(["cublas", "cudart"])))
        libraries = search(site).find(runtime)
        assert [path.name for path in libraries.found] == files(found)
        assert libraries.missing == tuple(files(missing))

    def test_missing_ones_and_the_remedy(self, site: Path) -> None:
        add_cuda(site, 13)
        (site / "nvidia" / "cu13" / "lib" / "libcurand.so.10").unlink()
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", CUDA13))
        assert search(site).find(runtime).missing == ("libcurand.so.10",)
        reasons = why_no_cuda(runtime, search(site))
        assert reasons == (
            "onnxruntime-gpu 1.31.1 is built for CUDA 13, and of its libraries are missing: libcurand.so.10",
            f"looked for in {site}/nvidia/*/lib, and by the system's loader (LD_LIBRARY_PATH, ldconfig)",
            'install the libraries of CUDA 13 with pip install "onnxruntime-gpu[cuda,cudnn]==1.31.1"',
        )

    def test_missing_ones_that_only_some_operators_need(self, site: Path) -> None:
        add_cuda(site, 13)
        (site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").unlink()
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", CUDA13))
        libraries = search(site).find(runtime)
        assert (libraries.missing, libraries.missing_optional) == ((), ("libcudnn.so.9",))
        assert why_no_cuda(runtime, search(site)) == ()
        assert "convolution" in run_time_use("libcudnn.so.9")

    def test_another_release_of_cuda(self, site: Path) -> None:
        add_cuda(site, 13)
        runtime = inspect_package(add_onnxruntime(site, "1.23.2", CUDA12))
        libraries = search(site).find(runtime)
        # The two whose names are the same in CUDA 12 and 13 must not be taken from the wrong one.
        assert set(libraries.missing) == set(CUDA12)
        assert libraries.found == ()
        reasons = why_no_cuda(runtime, search(site))
        assert "built for CUDA 12" in reasons[0]
        assert all(name in reasons[0] for name in CUDA12)
        assert "libcublas.so.13 (nvidia-cublas 13.1.0.3)" in reasons[1]
        assert "libcufft.so.12 (nvidia-cufft 12.0.0.61)" in reasons[1]
        assert any("libcurand.so.10 belongs to CUDA 13" in reason for reason in reasons)
        assert any("libcudnn.so.9 belongs to CUDA 13" in reason for reason in reasons)
        assert reasons[-1].endswith('pip install "onnxruntime-gpu[cuda,cudnn]==1.23.2"')

    def test_both_releases_of_cuda_side_by_side(self, site: Path) -> None:
        add_cuda(site, 13)
        add_cuda(site, 12)
        for version, needed, curand in (("1.23.2", CUDA12, "curand"), ("1.31.1", CUDA13, "cu13")):
            place = site.parent / version
            libraries = search(site).find(inspect_package(add_onnxruntime(place, version, needed)))
            assert libraries.missing == ()
            [path] = [path for path in libraries.found if path.name == "libcurand.so.10"]
            assert path.parent.parent.name == curand

    def test_the_order_of_the_places(self, site: Path, tmp_path: Path) -> None:
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", ["libcudart.so.13"]))
        system = write_elf(tmp_path / "lib64" / "libcudart.so.13")
        torch = site / "torch" / "lib" / "libcudart.so.13"
        nvidia = site / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
        loaded = write_elf(tmp_path / "elsewhere" / "libcudart.so.13")

        def where(loaded: dict[str, Path] | None = None) -> tuple[Path, str]:
            libraries = search(site, system=system.parent, loaded=loaded).find(runtime)
            return libraries.found[0], libraries.sources[0]

        assert where() == (system, "system")
        write_elf(torch)
        assert where() == (torch, "torch")
        write_elf(nvidia)
        assert where() == (nvidia, "nvidia")
        assert where({"libcudart.so.13": loaded}) == (loaded, "loaded")

    def test_a_damaged_file_is_passed_over_and_named(self, site: Path, tmp_path: Path) -> None:
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", ["libcudart.so.13"]))
        broken = write_elf(site / "nvidia" / "cu13" / "lib" / "libcudart.so.13")
        broken.write_bytes(broken.read_bytes()[:80])
        reasons = why_no_cuda(runtime, search(site))
        assert any(f"{broken} is damaged or truncated" in reason for reason in reasons)
        system = write_elf(tmp_path / "lib64" / "libcudart.so.13")
        libraries = search(site, system=system.parent).find(runtime)
        assert libraries.found == (system,)
        assert str(broken) in libraries.unusable[0]

    def test_complete_answers_are_kept_and_others_are_not(self, site: Path) -> None:
        # A release of CUDA that the machine of the tests cannot have.
        folder = site / "nvidia" / "cu99" / "lib"
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", ["libcudart.so.99"]))
        assert find_cuda_libraries(runtime).missing == ("libcudart.so.99",)
        assert "libcudart.so.99" in why_no_cuda(runtime)[0]
        for name in ("libcudart.so.99", "libnvrtc.so.99", "libcufft.so.98", "libcudnn.so.9"):
            write_elf(folder / name)
        libraries = find_cuda_libraries(runtime)
        assert libraries.missing == ()
        assert libraries.found[0].parent == folder
        assert why_no_cuda(runtime) == ()
        assert find_cuda_libraries(runtime) is libraries


class TestWhyNoCuda:
    def test_the_cpu_distribution(self, site: Path) -> None:
        [reason] = why_no_cuda(inspect_package(add_onnxruntime(site, "1.31.1")))
        assert "onnxruntime 1.31.1, which has no CUDA provider" in reason
        assert 'pip uninstall -y onnxruntime, then pip install "ortmulti[gpu]"' in reason

    def test_the_providers_file_is_missing(self, site: Path) -> None:
        package = add_onnxruntime(site, "1.31.1", CUDA13)
        (package / "capi" / "libonnxruntime_providers_cuda.so").unlink()
        [reason] = why_no_cuda(inspect_package(package))
        assert "libonnxruntime_providers_cuda.so is missing" in reason
        assert "--force-reinstall --no-deps onnxruntime-gpu==1.31.1" in reason

    def test_an_override_without_cuda(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(OVERRIDE, str(write_elf(tmp_path / "libonnxruntime.so.1.31.1")))
        [reason] = why_no_cuda(find_onnxruntime())
        assert f"is missing beside {tmp_path}" in reason

    def test_an_override_whose_libraries_are_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(OVERRIDE, str(write_elf(tmp_path / "libonnxruntime.so.1.31.1")))
        write_elf(tmp_path / "libonnxruntime_providers_cuda.so", ["libcudart.so.13"])
        reasons = why_no_cuda(find_onnxruntime(), search(tmp_path))
        assert "libcudart.so.13" in reasons[0]
        assert reasons[-1] == "install the libraries of CUDA 13 and cuDNN, or add their folder to LD_LIBRARY_PATH"

    def test_a_driver_that_is_too_old(self, site: Path) -> None:
        runtime = inspect_package(add_onnxruntime(site, "1.31.1", CUDA13))
        reason = why_driver_too_old(runtime, 12040)
        assert reason is not None
        assert "built for CUDA 13" in reason
        assert "supports CUDA 12.4" in reason
        assert why_driver_too_old(runtime, 13000) is None
        assert why_driver_too_old(runtime, 14010) is None

    def test_the_wheel_that_brought_a_file(self, site: Path) -> None:
        add_cuda(site, 12)
        assert owner(site / "nvidia" / "cublas" / "lib" / "libcublas.so.12") == "nvidia-cublas-cu12 12.9.1.4"
        assert owner(Path("/usr/lib/libcublas.so.12")) == ""


class TestSystemsLoader:
    def test_a_loaded_library_is_found_by_its_name(self) -> None:
        path = open_by_name("libc.so.6", False)
        assert path is not None
        assert path.is_file()
        assert path.name == "libc.so.6"

    def test_a_library_that_is_nowhere(self) -> None:
        assert open_by_name("libcublas.so.99", False) is None
        assert open_by_name("libcublas.so.99", True) is None

    def test_a_folder_of_the_environment_is_searched(self, tmp_path: Path) -> None:
        shutil.copy(str(open_by_name("libm.so.6", True)), tmp_path / "libcublas.so.99")
        (tmp_path / "libcudart.so.99").write_text("no library")
        program = """
            from ortmulti._runtime.cuda_libraries import open_by_name
            assert open_by_name("libcublas.so.99", False) is None
            print(open_by_name("libcublas.so.99", True))
            assert str(open_by_name("libcublas.so.99", False)).startswith("/")
            try:
                open_by_name("libcudart.so.99", True)
            except OSError as error:
                print(error)
        """
        found, damaged, *_ = check_child(program, environment={"LD_LIBRARY_PATH": str(tmp_path)}).splitlines()
        assert found == str(tmp_path / "libcublas.so.99")
        assert "libcudart.so.99" in damaged
        assert "invalid ELF header" in damaged or "too short" in damaged
