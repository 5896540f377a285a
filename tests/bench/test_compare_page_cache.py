"""Cold is really cold: the kernel's own word for it, on real files."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ortmulti.bench import models
from ortmulti.bench.measure import page_cache
from ortmulti.errors import Error, InvalidProtobuf, NoSuchFile

SIZE = 8 << 20
# The kernel may take pages at any moment.
NEARLY_ALL = pytest.approx(1.0, abs=0.01)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """On a disk: files in memory can never leave the page cache."""
    system = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    if system.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder is in memory")
    path = tmp_path / "weights"
    path.write_bytes(b"x" * SIZE)
    return path


def test_a_dropped_file_is_not_resident_and_reading_or_warming_it_brings_every_page(file: Path) -> None:
    assert page_cache.resident_share([file]) == NEARLY_ALL  # it was just written
    for read in (page_cache.read_sequentially, page_cache.warm):
        assert page_cache.drop([file]) == 0.0
        assert page_cache.resident_share([file]) == 0.0
        assert read([file]) > 0
        assert page_cache.resident_share([file]) == NEARLY_ALL
    assert page_cache.warm([file]) == 1.0
    with pytest.raises(Error, match=r"absent"):
        page_cache.read_sequentially([file.with_name("absent")])


def test_what_the_kernel_takes_while_a_file_is_warmed_is_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, left = page_cache.resident_share, [3]

    def with_one_page_less(files: Iterable[Path]) -> float:
        if left[0]:
            left[0] -= 1
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        return share(files)

    page_cache.drop([file])
    monkeypatch.setattr(page_cache, "resident_share", with_one_page_less)
    assert page_cache.warm([file]) == 1.0


def test_share_is_by_bytes_of_all_files(file: Path) -> None:
    small, empty = file.with_name("small"), file.with_name("empty")
    small.write_bytes(bytes(SIZE // 8))
    empty.touch()
    page_cache.drop([file, small, empty])
    page_cache.warm([small, empty])
    assert page_cache.resident_share([file, small, empty]) == pytest.approx(1 / 9, abs=0.01)
    assert page_cache.resident_share([empty]) == 1.0


def test_file_that_somebody_maps_is_refused(file: Path) -> None:
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert sum(mapping[:: mmap.PAGESIZE]) > 0  # touches every page, and so maps it
        with pytest.raises(Error, match=r"100% of .*weights stayed in the page cache"):
            page_cache.drop([file])


def test_external_files_of_a_model(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=1)
    [data] = page_cache.external_files(model)
    assert data.parent == tmp_path
    assert data.stat().st_size > 900_000
    assert page_cache.external_files(models.make("identity", tmp_path)) == ()
    data.unlink()
    with pytest.raises(NoSuchFile, match=rf"external data in '{data.name}'"):
        page_cache.external_files(model)
    model.write_bytes(b"\xff" * 100)
    with pytest.raises(InvalidProtobuf, match=model.name):
        page_cache.external_files(model)
