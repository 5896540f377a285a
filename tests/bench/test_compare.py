"""Whole comparisons and fresh processes, for real."""

from __future__ import annotations

import dataclasses
import json
import os
import select
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortmulti.bench import models
from ortmulti.bench.create import Case, Options, Plan, compare, comparison, failures
from ortmulti.bench.create.summary import rows
from ortmulti.bench.measure import floor, fresh_process, gil, page_cache, results
from ortmulti.bench.measure.memory import process_memory, process_tree
from ortmulti.errors import InvalidArgument, NoSuchFile
from tests.support import fake_driver

TIMES = ("starting", "creation", "session", "ready", "first_run")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=2)


def test_every_strategy_is_measured_and_agrees(model: Path) -> None:
    steps: list[tuple[int, int, bool]] = []
    plan = Plan(models=[model], device_sets=[("cpu",), ("cpu", "cpu")], repeat=2, cores=2)
    document = compare(plan, lambda progress: steps.append((progress.done, progress.total, progress.counted)))

    assert failures(document) == []
    assert document["schema_version"] == results.SCHEMA_VERSION
    assert {"kind", "created", "command", "machine", "releases", "settings", "models"} <= set(document)
    assert document["releases"]["onnxruntime"]
    facts = document["models"][0]
    assert facts["bytes"] == model.stat().st_size
    assert facts["external_bytes"] > 1_000_000
    assert steps == [*[(0, 20, False)] * 5, *((done, 20, True) for done in range(21))]

    assert len(document["measurements"]) == 20
    assert all(measured["resident_share"] == 1.0 for measured in document["measurements"])
    assert [(len(row["devices"]), row["strategy"]) for row in document["rows"]] == [
        (count, name) for count in (1, 2) for name in ("sequential", "threads", "processes", "native", "shared")
    ]
    for row in document["rows"]:
        assert row["measured"] == 2
        assert row["equal"] is True
        assert row["speedup"] > 0
        for key in TIMES:
            assert 0 <= row[key]["lowest"] <= row[key]["median"] <= row[key]["highest"]
            assert row[key]["lowest"] > 0 or key == "starting"  # where onnxruntime's import is all there is
        assert row["pss"]["median"] < row["peak_rss"]["median"]
        # Without GPUs and with a warm page cache there is nothing that no strategy could be faster than.
        assert (row["driver_floor"], row["above_floor"], row["sequential_read"], row["times_floors"]) == (None,) * 4
    processes = {measured["strategy"]: measured["processes"] for measured in document["measurements"]}
    assert processes["sequential"] == processes["threads"] == processes["native"] == processes["shared"] == 1
    assert processes["processes"] >= 3
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(document, allow_nan=False))


def test_failing_device_is_a_row_and_the_others_go_on(model: Path) -> None:
    sets = [("cpu",), ("cpu", "cuda:99")]
    document = compare(Plan(models=[model], device_sets=sets, strategies=["sequential", "native"], repeat=1))
    good, bad = document["rows"][:2], document["rows"][2:]
    assert [row["measured"] for row in good] == [1, 1]
    assert [row["measured"] for row in bad] == [0, 0]
    assert all("cuda:99" in row["errors"][0] for row in bad)
    assert len(failures(document)) == 2


def test_cold_measurements_begin_without_the_model_in_memory(model: Path) -> None:
    plan = Plan(models=[model], device_sets=[("cpu",)], strategies=["sequential"], repeat=2, cold=True)
    document = compare(plan)
    if any("stayed in the page cache" in text for text in failures(document)):
        pytest.skip("the temporary folder is in memory")
    assert [measured["resident_share"] for measured in document["measurements"]] == [0.0, 0.0]
    assert document["settings"]["page_cache"] == "cold"
    for measured in document["measurements"]:
        assert measured["sequential_read"] > 0
    [row] = document["rows"]
    first, second = (m["creation"] / m["sequential_read"] for m in document["measurements"])
    assert row["times_floors"]["median"] == pytest.approx((first + second) / 2)
    assert row["sequential_read"]["highest"] == max(m["sequential_read"] for m in document["measurements"])


@pytest.mark.parametrize("before", ["contexts", "model"])
def test_what_is_there_before_the_creation_changes_no_outputs(before: Any, model: Path) -> None:
    plan = Plan(models=[model], device_sets=[("cpu", "cpu")], repeat=1, cores=2, before=before)
    document = compare(plan)
    assert failures(document) == []
    assert [row["equal"] for row in document["rows"]] == [None, True, True, True, True]
    assert document["settings"]["before"] == before


def test_options_of_one_strategy_are_for_it_alone(model: Path) -> None:
    wrong = Options(config_entries={"session.intra_op_thread_affinities": "no list"})
    plan = Plan(
        models=[model], device_sets=[("cpu",)], strategies=["sequential", "threads"], repeat=1,
        intra_op_num_threads=2, strategy_options={"threads": wrong},
    )  # fmt: skip
    document = compare(plan)
    assert [row["measured"] for row in document["rows"]] == [1, 0]
    assert document["settings"]["strategy_options"]["threads"]["config_entries"] == wrong.config_entries


@pytest.mark.parametrize("entry", [True, False])
def test_cache_is_a_scratch_one_that_first_loads_find_empty(
    entry: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands for an entry, since sessions on the CPU need none."""
    mine = tmp_path / "mine"
    monkeypatch.setenv("ORTMULTI_CACHE", str(mine))
    bench = comparison._Bench(Plan(models=[model], device_sets=[("cpu",)], entry=entry), None)
    prepared = comparison._prepare(model, tmp_path / "prepared")
    folder = prepared.cache / "entries" / "digest"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(bytes(1000))
    (folder / "shared").touch()
    (prepared.cache / "lock").write_bytes(b"x")
    measured = bench.measure(Case(model, ("cpu",), "shared"), prepared, "none")
    assert "error" not in measured
    assert measured["entry"] == ({"present": True, "bytes": 1000} if entry else None)
    assert measured["resident_share"] == 1.0
    assert not mine.exists()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The fresh processes that a comparison starts, which do nothing: module and spec of each."""
    started: list[tuple[str, dict[str, Any]]] = []

    def start(module: str, spec: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        started.append((module.rpartition(".")[2], spec))
        if module.endswith("floor"):
            return {"driver_floor": 2.0, "cuInit": 1.0, "contexts": [1.0]}
        memory = {"peak_rss": 1, "pss": 1, "gpu_memory": {}}
        return {"starting": 0.0, "creation": 3.0, "sessions": [3.0], "first_run": 1.0, "outputs": ["a"], **memory}

    monkeypatch.setattr(fresh_process, "run", start)
    return started


def test_driver_floor_comes_before_a_creation_and_after_it_in_turns(
    processes: list[tuple[str, dict[str, Any]]], model: Path
) -> None:
    plan = Plan(models=[model], device_sets=[("cuda:1", "cuda:0")], strategies=["threads", "native"], repeat=2)
    document = compare(plan)
    assert [module for module, _ in processes] == [
        *("measure_strategy", "measure_strategy"),  # uncounted
        *("floor", "measure_strategy", "floor", "measure_strategy"),
        *("measure_strategy", "floor", "measure_strategy", "floor"),
    ]
    assert all(spec["devices"] == ["cuda:1", "cuda:0"] for _, spec in processes)
    assert [row["above_floor"]["median"] for row in document["rows"]] == [1.0, 1.0]


@pytest.mark.parametrize("before", ["contexts", "model"])
def test_contexts_that_are_there_have_no_floor(
    before: Any, processes: list[tuple[str, dict[str, Any]]], model: Path
) -> None:
    compare(Plan(models=[model], device_sets=[("cuda:0",)], strategies=["threads"], repeat=1, before=before))
    assert [module for module, _ in processes] == ["measure_strategy", "measure_strategy"]
    assert all((spec["before"] == "contexts") == (before == "contexts") for _, spec in processes)


@pytest.mark.parametrize("floors", ["before", "after"])
def test_cold_measurements_find_neither_the_model_nor_its_entry_in_memory(
    floors: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = comparison._prepare(model, tmp_path / "prepared")
    entry = prepared.cache / "entries" / "digest" / "weights.bin"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(bytes(1 << 20))
    resident: list[float] = []

    def start(*_: object, **__: object) -> dict[str, Any]:
        resident.append(page_cache.resident_share([*prepared.files, entry]))
        return {}

    monkeypatch.setattr(fresh_process, "run", start)
    bench = comparison._Bench(Plan(models=[model], device_sets=[("cpu",)], cold=True), None)
    measured = bench.measure(Case(model, ("cpu",), "shared"), prepared, floors)
    if "stayed in the page cache" in measured.get("error", ""):
        pytest.skip("the temporary folder is in memory")
    assert resident == [0.0]
    assert measured["sequential_read"] > 0


def test_every_kind_of_devices_has_its_entry_before_anything_counts() -> None:
    models = [Path("a.onnx"), Path("b.onnx")]
    sets = [("cpu",), ("cpu", "cuda:0"), ("cuda:0",), ("cuda:0", "cuda:1")]
    plan = Plan(models=models, device_sets=sets, strategies=["shared", "native"])
    assert comparison._uncounted(plan) == [
        *(Case(model, devices, "shared") for model in models for devices in (("cpu",), ("cuda:0",), ("cpu", "cuda:0"))),
        Case(models[0], ("cpu",), "native"),
    ]
    without = dataclasses.replace(plan, entry=False)
    assert comparison._uncounted(without) == [Case(models[0], ("cpu",), name) for name in ("shared", "native")]


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
    devices = floor.cuda_devices(("cuda:2", "cpu", "cuda:0", "cuda:2"))
    result = fresh_process.run("ortmulti.bench.measure.floor", {"devices": devices}, 60, driver.environment)
    assert driver.calls == ["init 0", "context 2", "context 0"]
    assert len(result["contexts"]) == 2
    assert result["driver_floor"] == pytest.approx(result["cuInit"] + sum(result["contexts"]))


@pytest.mark.gpu
def test_driver_floor_is_measured_beside_each_creation(model: Path) -> None:
    plan = Plan(models=[model], device_sets=[("cuda:0",)], strategies=["sequential", "shared"], repeat=2)
    document = compare(plan)
    assert failures(document) == []
    for measured in document["measurements"]:
        assert 0 < measured["cuInit"] < measured["driver_floor"]
        assert len(measured["contexts"]) == 1
    for row in document["rows"]:
        mine = [m for m in document["measurements"] if m["strategy"] == row["strategy"]]
        differences = sorted(m["creation"] - m["driver_floor"] for m in mine)
        assert [row["above_floor"]["low"], row["above_floor"]["high"]] == differences
    assert document["rows"][1]["after_contexts"]["median"] > 0


@pytest.mark.gpu
def test_contexts_that_are_there_are_no_part_of_the_creation(model: Path) -> None:
    plan = Plan(models=[model], device_sets=[("cuda:0",)], strategies=["native"], repeat=1, before="contexts")
    document = compare(plan)
    assert failures(document) == []
    [measured] = document["measurements"]
    assert "driver_floor" not in measured
    assert measured["details"]["after_contexts"] is None


def test_missing_model_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"absent\.onnx"):
        compare(Plan(models=[tmp_path / "absent.onnx"], device_sets=[("cpu",)]))


def test_sessions_with_other_weights_are_not_equal(tmp_path: Path) -> None:
    paths = [models.make("matmul", tmp_path, megabytes=1, seed=seed) for seed in (0, 1)]
    np.savez(tmp_path / "feeds.npz", **models.sample_inputs(paths[0]))
    measured = []
    for path, strategy in zip((paths[0], paths[1], paths[0]), ("sequential", "threads", "native"), strict=True):
        settings = {"intra_op_num_threads": 1, "provider_options": {}, "config_entries": {}}
        spec = {"strategy": strategy, "devices": ["cpu"], "settings": settings, "feeds": str(tmp_path / "feeds.npz")}
        result = fresh_process.run("ortmulti.bench.create.measure_strategy", {**spec, "model": str(path)}, timeout=60)
        measured.append({**spec, **result, "model": str(paths[0])})
    cases = [Case(paths[0], ("cpu",), strategy) for strategy in ("sequential", "threads", "native")]
    assert [row.equal for row in rows(cases, measured)] == [None, False, True]


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
    body = "print('{', flush=True)\nos.write(1, b'stray')\nreturn {'pid': os.getpid(), 'sum': sum(spec['numbers'])}"
    result = measure(body, numbers=[1, 2])
    assert result["sum"] == 3
    assert result["pid"] != os.getpid()


def test_import_of_ortmulti_is_timed(measure: Any) -> None:
    assert measure("return {'seconds': spec['import_seconds']}")["seconds"] > 0


def test_exception_is_brought_back_with_what_was_written(measure: Any) -> None:
    with pytest.raises(fresh_process.MeasurementError, match="ValueError: no such thing") as caught:
        measure("print('before it')\nraise ValueError('no such thing')")
    assert "before it" in caught.value.stderr
    assert "Traceback" in caught.value.stderr


def test_death_by_signal_is_said(measure: Any) -> None:
    with pytest.raises(fresh_process.MeasurementError, match=r"signal 11 .*last line: last words"):
        measure("print('last words', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)")


def test_silent_exit_is_said(measure: Any) -> None:
    with pytest.raises(fresh_process.MeasurementError, match="exit code 3 without a result"):
        measure("os._exit(3)")


def test_what_takes_too_long_is_ended_with_its_children(measure: Any, tmp_path: Path) -> None:
    body = (
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "open(spec['pids'], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "signal.pause()"
    )
    with pytest.raises(fresh_process.MeasurementError, match="longer than 5 seconds"):
        measure(body, timeout=5, pids=str(tmp_path / "pids"))
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(ends(pid) for pid in pids)


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


def test_memory_counts_children(measure: Any) -> None:
    body = (
        "from ortmulti.bench.measure.memory import process_memory, process_tree\n"
        "alone = process_memory()\n"
        "code = \"held = bytearray(b'x') * (64 << 20); print(flush=True); input()\"\n"
        "pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child = subprocess.Popen([sys.executable, '-c', code], **pipes)\n"
        "child.stdout.readline()\n"
        "both, tree = process_memory(), process_tree(os.getpid())\n"
        "child.kill()\n"
        "names = ('peak_rss', 'pss', 'processes')\n"
        "return {'tree': tree == [os.getpid(), child.pid],\n"
        "    'alone': [getattr(alone, n) for n in names], 'both': [getattr(both, n) for n in names]}"
    )
    result = measure(body)
    assert result["tree"]
    assert (result["alone"][2], result["both"][2]) == (1, 2)
    for alone, both in zip(result["alone"][:2], result["both"][:2], strict=True):
        assert both - alone > 60 << 20


def test_memory_of_this_process() -> None:
    assert process_tree(os.getpid())[0] == os.getpid()
    memory = process_memory()
    assert 0 < memory.pss <= memory.peak_rss


def test_lateness_against_values_computed_by_hand() -> None:
    # Due 1 ms after the one before: 1.000 is 0 late, 1.101 is 100 ms late, 1.106 is 4 ms late, 1.127 is 20 ms late.
    beats = [0.999, 1.000, 1.101, 1.106, 1.127]
    delay = gil.delay(beats, begin=0.9, end=2.0, tolerance=0.005)
    assert delay.total == pytest.approx(0.120)
    assert delay.largest == pytest.approx(0.100)


def test_lateness_outside_the_creation_does_not_count() -> None:
    beats = [0.0, 0.5, 1.0]
    delay = gil.delay(beats, begin=0.4, end=0.6, tolerance=0.005)
    assert delay.total == pytest.approx(0.1 + 0.099)
    assert delay.largest == pytest.approx(0.1)
    assert gil.delay(beats, begin=0.4, end=0.4, tolerance=0.005) == gil.Delay(0.0, 0.0)


def test_work_that_holds_the_gil_delays_the_heartbeat() -> None:
    import ctypes

    holding = ctypes.PyDLL(None).usleep  # PyDLL, unlike CDLL, keeps the GIL during a call
    seconds, delay = gil.beside(lambda: holding(300_000))
    assert 0.25 < delay.largest <= delay.total <= seconds


def test_bench_of_the_delay(model: Path) -> None:
    steps: list[int] = []
    document = gil.bench(model, repeat=2, progress=lambda done, _total, _text: steps.append(done))
    assert [row["library"] for row in document["rows"]] == ["onnxruntime", "ortmulti"]
    for row in document["rows"]:
        assert (row["measured"], row["errors"]) == (2, [])
        assert row["creation"]["lowest"] > 0
        assert 0 <= row["largest_share"]["median"] <= row["delay_share"]["median"] <= 1
        assert row["release"] == document["releases"]["onnxruntime"]
    assert steps == [0, 0, 0, 1, 2, 3, 4]
    assert [measured["library"] for measured in document["measurements"]] == [
        "onnxruntime", "ortmulti", "ortmulti", "onnxruntime",
    ]  # fmt: skip


@pytest.mark.parametrize("changes", [{"libraries": ["torch"]}, {"libraries": []}, {"repeat": 0}])
def test_impossible_benches_are_refused(changes: dict[str, Any], model: Path) -> None:
    with pytest.raises(InvalidArgument):
        gil.bench(model, **changes)


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


def test_what_is_imported_for_the_first_call_is_creation(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", **models.sample_inputs(model))
    settings = {"intra_op_num_threads": 1, "provider_options": {}, "config_entries": {}}
    found = {}
    for strategy in ("sequential", "native"):
        for first in ("", "time.sleep(1)"):
            spec = {"strategy": strategy, "devices": ["cpu"], "settings": settings, "model": str(model)}
            spec["feeds"] = str(tmp_path / "feeds.npz")
            result = fresh_process.run("ortmulti.bench.create.measure_strategy", spec, timeout=60, first=first)
            found[strategy, first] = result["creation"] + result["starting"]
    assert found["native", "time.sleep(1)"] > 1
    assert all(found[case] < 1 for case in found if case != ("native", "time.sleep(1)"))
