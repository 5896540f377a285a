"""Writing models: whole or not at all, once, and what is said when it fails."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ortmulti.bench import models
from ortmulti.errors import InvalidArgument, LibraryError
from tests.support.processes import run_child


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def make(directory: Path, megabytes: int = 3, **more: Any) -> Path:
    return models.make("matmul", directory, megabytes=megabytes, **more)


def test_an_existing_model_is_reused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ortmulti.bench.models")
    assert models.find("matmul", tmp_path, megabytes=3) is None
    calls: list[tuple[int, int]] = []
    path = make(tmp_path, progress=lambda *call: calls.append(call))
    total = models.describe("matmul", megabytes=3).weight_bytes
    assert calls == sorted(calls)
    assert (calls[-1], {of for _, of in calls}) == ((total, total), {total})
    before = [(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in tmp_path.iterdir()]
    calls.clear()
    assert make(tmp_path, progress=lambda *call: calls.append(call)) == path
    assert models.find("matmul", tmp_path, megabytes=3) == path
    assert [(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in tmp_path.iterdir()] == before
    assert calls == [(total, total)]
    assert caplog.messages[-1] == f"reusing {path}"


def test_models_of_different_options_stand_side_by_side(tmp_path: Path) -> None:
    paths = [make(tmp_path, size, seed=seed) for size in (1, 2) for seed in (0, 1)]
    assert [path.stem for path in paths] == [
        f"matmul-{name}" for name in ("1-mb", "1-mb-seed-1", "2-mb", "2-mb-seed-1")
    ]
    assert models.find("matmul", tmp_path, megabytes=1) == paths[0]


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def age(path: Path) -> None:
    record = json.loads(path.read_text())
    record["parameters"]["generator"] = 0
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("matmul-3-mb.onnx.data", shorten),
        ("matmul-3-mb.onnx.data", Path.unlink),
        ("matmul-3-mb.onnx", shorten),
        ("matmul-3-mb.json", age),
        ("matmul-3-mb.json", lambda path: path.write_text("[]")),
        ("matmul-3-mb.json", Path.unlink),
    ],
)
def test_a_damaged_or_older_model_is_made_anew(name: str, damage: Any, tmp_path: Path) -> None:
    make(tmp_path)
    whole = contents(tmp_path)
    damage(tmp_path / name)
    assert models.find("matmul", tmp_path, megabytes=3) is None
    make(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(("name", "options"), [("matmul", {"megabytes": 3}), ("tiny-kernels", {})])
def test_an_interrupt_leaves_nothing(name: str, options: dict[str, int], tmp_path: Path) -> None:
    def interrupt(*_: int) -> None:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.make(name, tmp_path, progress=interrupt, **options)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_gives_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files stops a write in the middle, as a full disk does.
    code = """
import resource, sys
from ortmulti.bench import models
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    models.make("matmul", sys.argv[1], megabytes=3)
except models.WriteError as error:
    print(error.errno, error)
"""
    done = run_child(code, tmp_path)
    reason = f"{errno.EFBIG} cannot write model matmul-3-mb to {tmp_path}: {os.strerror(errno.EFBIG)}"
    assert (done.stdout.strip(), done.stderr) == (reason, "")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_noticed_before_writing(tmp_path: Path) -> None:
    megabytes = min(10**7, shutil.disk_usage(tmp_path).free // 10**6 * 2)
    if megabytes == 10**7:
        pytest.skip("the disk has room for every model")
    with pytest.raises(models.WriteError, match=r"it needs .* GB and .* GB are free") as caught:
        make(tmp_path, megabytes)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "no model is called 'resnet'; there are resnet50, phi3-mini"),
        ("identity", {"layers": 2}, "does not take the option layers; its options: none"),
        ("resnet50", {"precision": "fp8"}, "precision must be one of fp16, fp32, not 'fp8'"),
        ("phi3-mini", {"layers": 0}, "layers must be an integer from 1 to 1024, not 0"),
        ("matmul", {"megabytes": 10**9}, "megabytes must be an integer from 1 to"),
        ("identity", {"seed": -1}, "seed must be an integer of at least 0, not -1"),
    ],
)
def test_bad_arguments_are_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=message):
        models.make(name, tmp_path / "models", **options)
    assert not (tmp_path / "models").exists()


def test_without_the_onnx_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for call in (lambda: models.make("identity", tmp_path / "models"), lambda: models.sample_inputs("model.onnx")):
        with pytest.raises(LibraryError, match=r'pip install "ortmulti\[models\]"'):
            call()
    assert not (tmp_path / "models").exists()
