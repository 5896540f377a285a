"""What the commands measure with: devices as a user writes them, figures, files, fresh processes, memory, delays."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench import gil, models
from ortmulti.bench.measure import devices, floor, fresh_process, page_cache, results
from ortmulti.bench.measure.rounds import Interval, spread
from ortmulti.errors import Error, InvalidArgument, InvalidProtobuf, NoSuchFile
from tests.support import fake_driver
from tests.support.processes import child_environment

# --- Devices ----------------------------------------------------------------------------------------------------------

FOUR = [f"cuda:{index}" for index in range(4)]


def test_devices_and_counts_as_written() -> None:
    for text, expected in {"cpu": 1, "cpu*3": 3, "cpu, cpu*2": 3}.items():
        assert devices.parse_devices(text) == ("cpu",) * expected
    assert [devices.parse_counts(text) for text in ("1", "1,2, 4")] == [(1,), (1, 2, 4)]
    for text in ("", "gpu", "cpu*", "cpu*0", "cpu*two", "cpu,,cpu"):
        with pytest.raises(InvalidArgument):
            devices.parse_devices(text)
    for text in ("", "0", "1,x", "-1"):
        with pytest.raises(InvalidArgument, match="list of numbers"):
            devices.parse_counts(text)


def test_device_sets_are_the_first_devices() -> None:
    assert devices.device_sets(FOUR, (1, 2)) == (("cuda:0",), ("cuda:0", "cuda:1"))
    assert devices.device_sets(FOUR, None) == (("cuda:0",), tuple(FOUR))
    assert devices.device_sets(["cpu"], None) == (("cpu",),)
    assert devices.device_sets(["cpu", "cpu"], (3,)) == (("cpu",) * 3,)
    with pytest.raises(InvalidArgument, match="5 sessions need 5 devices, not 4"):
        devices.device_sets(FOUR, (5,))


def test_devices_in_short() -> None:
    names = (["cpu"], ["cpu", "cpu"], FOUR[1:], FOUR[:2], ["cuda:0", "cuda:2", "cpu"])
    texts = ["cpu", "cpu x2", "cuda:1-3", "cuda:0, cuda:1", "cuda:0, cuda:2, cpu"]
    assert [*map(devices.describe, names)] == texts


# --- Figures and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        # Of ten values the second and the ninth: the median is outside with a probability of 22 in 1024.
        ([7, 3, 1, 10, 5, 9, 2, 8, 6, 4], Interval(5.5, 1, 10, 2, 9, pytest.approx(1 - 22 / 1024))),
        ([6.0, 5, 4, 3, 2, 1], Interval(3.5, 1, 6, 1, 6, pytest.approx(1 - 2 / 64))),
        # As in the tables of the sign test.
        (range(1, 21), Interval(10.5, 1, 20, 6, 15, pytest.approx(0.9586, abs=1e-4))),
        # Of few values the range, and what it is worth.
        ([1.0, 2, 3, 4, 5], Interval(3.0, 1, 5, 1, 5, pytest.approx(0.9375))),
        ([2.0], Interval(2.0, 2, 2, 2, 2, 0.0)),
    ],
)
def test_spreads_and_intervals_of_the_median(values: Any, expected: Interval | None) -> None:
    assert Interval.of(values) == expected
    assert Interval.json(values) == (expected and vars(expected))
    found = spread(values)
    assert found == (expected and {name: getattr(expected, name) for name in ("median", "lowest", "highest")})


def test_results_keep_no_folders_and_tell_models_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["bench", "/home/a/m.onnx", "--json", "/home/a/out.json", "1.30.0=/home/a/b", "/home/c=/home/d"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/ortmulti", *arguments])
    paths = ["/home/a/m.onnx", "/home/b/m.onnx", "/home/b/n.onnx"]
    document = results.document(
        "create", models=[{"path": path, "name": "m"} for path in paths], rows=[{"model": path} for path in paths]
    )
    assert document["command"] == ["ortmulti", "bench", "a/m.onnx", "--json", "out.json", "1.30.0=b", "d"]
    assert [model["path"] for model in document["models"]] == ["a/m.onnx", "b/m.onnx", "b/n.onnx"]
    assert [row["model"] for row in document["rows"]] == ["a/m.onnx", "b/m.onnx", "b/n.onnx"]
    assert "/home" not in json.dumps(document)


def test_results_are_written_into_new_folders(tmp_path: Path) -> None:
    document, file = results.document("create", rows=[]), tmp_path / "new folder" / "result.json"
    results.save(document, file)
    assert json.loads(file.read_text()) == json.loads(json.dumps(document))
    assert [entry.name for entry in file.parent.iterdir()] == ["result.json"]


def test_interrupted_writing_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("old")

    def broken(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, broken)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# --- Fresh processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the body of a ``measure(spec)`` in a fresh process."""
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([path] if path else [])]))

    def run(body: str, timeout: float = 60, **spec: Any) -> dict[str, Any]:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (tmp_path / "measured.py").write_text(f"import os, signal, subprocess, sys, time\ndef measure(spec):\n{lines}")
        return fresh_process.run("measured", spec, timeout)

    return run


def test_prints_do_not_damage_the_result(measure: Any) -> None:
    body = "print('{', flush=True)\nos.write(1, b'stray')\nreturn {**spec, 'pid': os.getpid()}"
    result = measure(body, numbers=[1, 2])
    assert result["numbers"] == [1, 2]
    assert result["pid"] != os.getpid()
    assert result["import_seconds"] > 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"signal 11 .*last line: last words"),
        ("os._exit(3)", "exit code 3 without a result"),
    ],
)
def test_how_a_process_failed_is_brought_back_with_what_was_written(body: str, message: str, measure: Any) -> None:
    with pytest.raises(fresh_process.MeasurementError, match=message) as caught:
        measure(f"print('last words', flush=True)\n{body}")
    assert "last words" in caught.value.stderr
    assert ("Traceback" in caught.value.stderr) == body.startswith("raise")


def test_what_takes_too_long_is_ended_with_its_children(measure: Any, tmp_path: Path) -> None:
    body = (
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "open(spec['pids'], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "signal.pause()"
    )
    with pytest.raises(fresh_process.MeasurementError, match="longer than 3 seconds"):
        measure(body, timeout=3, pids=str(tmp_path / "pids"))
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(ends(pid) for pid in pids)


def test_a_measuring_process_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    """A command that is killed cleans up nothing."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    (tmp_path / "measured.py").write_text(
        "import os, subprocess, signal\n"
        "def measure(spec):\n"
        "    child = subprocess.Popen(['sleep', '1000'])\n"
        "    open(spec['pids'], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "    signal.pause()\n"
    )
    code = (
        "import sys; sys.path.append(sys.argv[1]); from ortmulti.bench.measure import fresh_process\n"
        "fresh_process.run('measured', {'pids': sys.argv[1] + '/pids'}, 600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], env=child_environment()) as waits:
        measuring, child = map(int, pids.read_text().split())
        waits.kill()
    assert ends(measuring)
    assert ends(child)


def ends(pid: int) -> bool:
    """Whether a process that was killed does end; collecting it may be left to init."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30)[0])
    finally:
        os.close(descriptor)


def test_driver_floor_opens_nothing_but_the_driver(measure: Any) -> None:
    body = (
        "from ortmulti.bench.measure import floor\n"
        "measured = floor.measure({'devices': []})\n"
        "maps = open('/proc/self/maps').read()\n"
        "opened = [name for name in ('onnxruntime', 'libcublas', 'libcudart', 'libcudnn') if name in maps]\n"
        "return {'measured': measured, 'opened': opened}"
    )
    result = measure(body)
    assert result["opened"] == []
    assert result["measured"]["contexts"] == []
    assert result["measured"]["driver_floor"] == result["measured"]["cuInit"] >= 0


def test_driver_floor_is_cuinit_and_the_contexts_in_their_order(tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    found = floor.cuda_devices(("cuda:2", "cpu", "cuda:0", "cuda:2"))
    result = fresh_process.run("ortmulti.bench.measure.floor", {"devices": found}, 60, driver.environment)
    assert driver.calls == ["init 0", "context 2", "context 0"]
    assert len(result["contexts"]) == 2
    assert result["driver_floor"] == pytest.approx(result["cuInit"] + sum(result["contexts"]))


# --- Memory and delays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beats", "begin", "end", "late"),
    [
        # Due 1 ms after the one before: 1.000 is 0 late, 1.101 is 100 ms late, 1.106 is 4 ms late, 1.127 is 20 ms late.
        ([0.999, 1.000, 1.101, 1.106, 1.127], 0.9, 2.0, [0.1, 0.02]),
        # What is outside the creation does not count.
        ([0.0, 0.5, 1.0], 0.4, 0.6, [0.1, 0.099]),
        ([0.0, 0.5, 1.0], 0.4, 0.4, []),
    ],
)
def test_delays_against_values_computed_by_hand(
    beats: list[float], begin: float, end: float, late: list[float]
) -> None:
    assert gil.delays(beats, begin, end, tolerance=0.005) == pytest.approx(late)


@pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="needs a GIL")
def test_work_that_holds_the_gil_delays_the_heartbeat() -> None:
    holding = ctypes.PyDLL(None).usleep  # PyDLL, unlike CDLL, keeps the GIL during a call
    seconds, late, _ = gil.beside(lambda: holding(300_000))
    assert 0.25 < max(late) <= sum(late) <= seconds


# --- Cold is really cold: the kernel's own word for it, on real files -------------------------------------------------


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
