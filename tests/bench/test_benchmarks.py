"""The benchmarks run and report; what they measure is no matter here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ortmulti
from benchmarks import (
    batching,
    contention,
    cpu_sharing,
    create_close_cycles,
    feeding,
    first_answers,
    gpu_feeding,
    import_time,
    plugin_creation,
    pool_overhead,
    queue_rules,
    repository_memory,
    run_overhead,
    service,
    serving,
    texts,
    weight_loading,
)
from ortmulti import Timeline
from ortmulti.bench import models
from ortmulti.bench.measure import fresh_process
from tests.support import fake_driver, onnx_models, plugins
from tests.support.processes import check_child

Measure = Callable[..., Any]


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Measure:
    """Runs a script, whose limits must hold, and returns its JSON. It must print a text."""

    def run(script: ModuleType, arguments: str, prints: str) -> Any:
        path = tmp_path / "result.json"
        assert script.main([*shlex.split(arguments), "--json", str(path)]) == 0
        assert prints in capsys.readouterr().out
        return json.loads(path.read_text())

    return run


Run = tuple[ModuleType, str, str, str, Sequence[str]]


SCRIPTS: dict[str, Run] = {
    one[0].__name__.partition(".")[2]: one
    for one in (
        (run_overhead, "--pairs 5 --runs 5 --limit inf", "upper 95% bound", "measure", ["--limit 0"]),
        (pool_overhead, "--rounds 2 --runs 5 --requests 400 --threads 3 --most-growth inf --most-overhead inf",
         "0 wrong answers", "overhead", ["--most-overhead=-inf"]),
        (batching, "--device cpu --megabytes 1 --max-size 3 --rounds 2 --seconds 0.1 --least-share=0 --most-p99=inf",
         "max_delay + 2 runs", "measure", ["--most-p99=0", "--least-share=inf"]),
        (import_time, "--pairs 2 --limit inf", "difference", "measure", ["--limit=-inf"]),
        (create_close_cycles, "--cycles 4 --warm 2 --repeat 1 --allowance inf", "median growth", "compare",
         ["--allowance=-inf"]),
        (cpu_sharing, "--megabytes 1 --repeat 1 --most-memory=inf --most-creation=inf", "8 sessions take", "measure",
         ["--most-creation=0"]),
        (feeding, "--quick --rounds 1 --seconds 0.05 --models 'MLP, 0.3 MB' 'conv net'", "wrong answers: 0", "main",
         []),
    )
}  # fmt: skip


@pytest.mark.parametrize(("script", "arguments", "prints", "measures", "limits"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_reports_and_fails_past_its_limits(
    script: ModuleType,
    arguments: str,
    prints: str,
    measures: str,
    limits: Sequence[str],
    measured: Measure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure, results = getattr(script, measures), []

    def once(*given: Any) -> Any:
        results.append(measure(*given))
        return results[-1]

    if limits:
        monkeypatch.setattr(script, measures, once)
    assert measured(script, arguments, prints)
    for limit in limits:
        again = iter(results)
        monkeypatch.setattr(script, measures, lambda *_, again=again: next(again))
        assert script.main([*shlex.split(arguments), *limit.split()]) == 1


def test_serving() -> None:
    pytest.importorskip("grpc")
    common = {
        "requests": 400,
        "clients": 4,
        "ends": 1,
        "hostile": 80,
        "bodies": 2000,
        "idle": 10,
        "most_memory": 200.0,
        "seed": 1,
    }
    for case in serving.CASES:
        assert serving.measure({**common, "most_memory": 200.0, "case": case})["right"]


def test_texts(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = models.make("encoder", tmp_path, layers=1, hidden=48)
    few = "--rounds 1 --seconds 0.2 --clients 8 --texts 80 --rows 8"
    texts.main([*f"--model {model} --json {tmp_path / 'texts.json'} {few}".split()])
    found = json.loads((tmp_path / "texts.json").read_text())
    assert found["wrong"] < 1e-4
    for kind in ("serve", "offline"):
        assert all(row["rate"] > 0 for row in found["results"][kind].values())
        assert 0 <= found["results"][kind]["padded"]["waste"] < 0.5


def test_queue_rules() -> None:
    found = queue_rules.deadlines({"requests": 40})
    assert found["counted"] == sum(found["outcomes"].values()) == 40
    found = queue_rules.soak({"seconds": 1.0})
    assert found["outcomes"].keys() <= {"answers", "CancelledError", "DeadlineExceeded", "QueueFull"}
    assert len(found["parts"]) == 10
    found = queue_rules.priorities({"seconds": 0.6, "waiting": 10})
    assert {f"{what} 2" for what in ("idle", "beside -1", "beside 0")} <= found.keys()


def test_repository_memory(tmp_path: Path, measured: Measure) -> None:
    for number in range(2):
        (tmp_path / f"{number}.onnx").write_bytes(onnx_models.matmul())
    budget = 3 * len(onnx_models.matmul()) // 2
    report = measured(repository_memory, f"{tmp_path} --budget {budget} --evictions 2 --batch 1 --repeat 1", "idle_mb")
    assert set(report["measured"]) == set(repository_memory.SETTINGS)
    for [result] in report["measured"].values():
        assert result["counted_mb"] < result["idle_mb"] <= result["peak_mb"]


def test_the_upper_bound_is_that_of_the_median() -> None:
    """Of 100 values the 60th or 61st smallest: the binomial interval for the median."""
    assert run_overhead.upper_bound(range(100)) == 60
    assert run_overhead.upper_bound([1.0, 2.0, 3.0]) == 3.0


def test_service(measured: Measure) -> None:
    for needed in ("fastapi", "uvicorn"):
        pytest.importorskip(needed)
    report = measured(service, "--rounds 1 --seconds 0.3", "0 lost")
    assert report["wrong"] == report["SIGTERM"]["lost"] == 0
    assert report["SIGTERM"]["answered"] >= 200


def test_wrong_answers_are_counted() -> None:
    with ortmulti.load(pool_overhead.add(), "cpu") as pool:
        load = pool_overhead.Load(pool, 8, 1)
        load.check(1, pool.run(None, load.feed(1)))
        load.check(2, pool.run(None, load.feed(1)))
    assert load.wrong == 1


@pytest.mark.parametrize("wait", ["none", "first"])
def test_first_answers(tmp_path: Path, measured: Measure, wait: str) -> None:
    arguments = f"{models.make('identity', tmp_path)} --devices cpu --repeat 1 --wait {wait}"
    report = measured(first_answers, arguments, "first answer after")
    assert (report["devices"], report["wait"]) == (["cpu"], wait)
    for each in report["rounds"]:
        for one in each.values():
            assert one["returned"] > 0
            assert 0 < one["ready"]["cpu"] < one["answers"]["cpu"]
            assert 0 < one["runs"]["cpu"] < one["one"] < one["answers"]["cpu"]
            assert one["contexts"] is None
    assert report["summary"]["largest_difference"] == 0


def test_first_answers_are_held_against_the_last_context_and_one_device() -> None:
    def measured(answers: dict[str, float], contexts: float, one: float, output: float) -> dict[str, Any]:
        outputs = {device: [1.0, output * number] for number, device in enumerate(answers)}
        return {"answers": answers, "contexts": contexts, "one": one, "outputs": outputs}

    rounds = [
        {
            "all": measured({"cuda:0": 2.0, "cuda:1": 4.5}, 3.0, 1.25, 0.5),
            "one": measured({"cuda:0": 2.0}, 1.0, 1.0, 0.0),
        }
    ]
    summary = first_answers.summarize(rounds)
    assert (summary["first"], summary["last"], summary["contexts"]) == (2.0, 4.5, 3.0)
    assert (summary["behind"], summary["behind_alone"], summary["ahead"]) == (0.25, 0.5, 1.0)
    assert summary["largest_difference"] == 0.5


@pytest.mark.gpu
def test_first_answers_of_gpus(tmp_path: Path) -> None:
    model, path = models.make("matmul", tmp_path, megabytes=64), tmp_path / "first.json"
    first_answers.main([str(model), "--repeat", "1", "--most-behind=inf", "--json", str(path)])
    [each] = json.loads(path.read_text())["rounds"]
    assert each["all"]["contexts"] > 0
    assert set(each["all"]["answers"]) == set(json.loads(path.read_text())["devices"])


def test_a_batch_is_judged_within_its_round() -> None:
    def one(throughput: float, p99: float, run: float) -> dict[str, Any]:
        latency = {"p50": p99 / 2, "p99": p99}
        return {"single": 10.0, "offered": 40.0, "throughput": throughput, "batch_seconds": run,
                "limit_seconds": 2 * run, "requests_a_run": 4.0, "latency": latency}  # fmt: skip

    summary = batching.summarize([one(40, 1, 1), one(20, 9, 9), one(30, 3, 1)])
    assert (summary["share"], summary["p99_over_limit"]) == (0.75, 0.5)


def test_contention(tmp_path: Path, measured: Measure) -> None:
    arguments = f"--devices cpu*2 --variants core+sessions=2 --quick --models {tmp_path}"
    document = measured(contention, arguments, "| cpu x2 | core+sessions=2 |")
    assert [len(row["devices"]) for row in document["rows"]] == [1, 2]
    assert {"machine", "releases", "settings"} <= document.keys()
    assert document["command"][0] == "benchmarks/contention.py"
    assert {verdict["outcome"] for verdict in document["verdicts"]} == {"not measured"}


def test_contention_misses_what_does_not_scale_and_a_faster_backend() -> None:
    def row(variant: str, devices: int, scaling: float | None, low: float | None) -> dict[str, Any]:
        interval = {"median": low, "low": low} if low is not None else None
        return {"variant": variant, "devices": ["cuda:0"] * devices, "measured": 1, "over_first": interval,
                "scaling": None if scaling is None else {"median": scaling}}  # fmt: skip

    rows = [row("core", 1, None, None), row("threads", 1, None, 1.5), row("core", 4, 0.5, None)]
    good = {"measurements": [], "rows": [*rows, row("threads", 4, 0.5, 0.99), row("core+graph", 4, 0.91, 3.0)]}
    assert contention.missed(good, 0.9) == []
    bad = {"measurements": [], "rows": [*rows, row("threads", 4, 0.5, 1.01), row("core+graph", 4, 0.89, 3.0)]}
    threads, graph = contention.missed(bad, 0.9)
    assert "threads on cuda:0 x4 answers 1.010 times" in threads
    assert "core+graph on cuda:0 x4 scales to 0.890" in graph


def test_import_times_are_compared_in_pairs() -> None:
    times = {
        "numpy": [(100.0, 50.0), (200.0, 60.0), (90.0, 55.0)],
        "both": [(130.0, 70.0), (210.0, 90.0), (110.0, 80.0)],
    }
    summary = import_time.summarize(times)
    assert summary["ms"] == {"numpy": 100.0, "both": 130.0}
    assert (summary["difference_ms"], summary["difference_processor_ms"]) == (20.0, 25.0)
    with pytest.raises(RuntimeError, match="failed: 3"):
        import_time.milliseconds("raise SystemExit(3)")


def test_plugin_creation(tmp_path: Path, model: Path, measured: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(plugin_creation.FIRST, 1), *((name, 4) for name in (plugin_creation.LATER, plugin_creation.ORDINARY))]
    monkeypatch.setattr(plugin_creation, "CASES", cases)
    arguments = f"--library={plugins.openvino(tmp_path)} --model={model} --repeat=1 --most-creation=inf"
    report = measured(plugin_creation, arguments, "in f32")
    assert len(report["measured"]) == len(cases)
    assert report["difference_in_f32"] <= max(report["summary"]["difference"].values()) < 0.1
    monkeypatch.setattr(fresh_process, "run", lambda *_: {"creation": 1.0, "memory": 1, "difference": 0.0})
    assert plugin_creation.main([*arguments.split(), "--most-difference=-1"]) == 1


def test_the_difference_is_a_part_of_the_largest_value() -> None:
    expected = [np.array([1.0, -4.0]), np.array([2.0])]
    assert plugin_creation.difference([np.array([1.5, -4.0]), np.array([2.0])], expected) == 0.125


def test_ratios_are_of_the_same_round() -> None:
    def results(*figures: float) -> list[dict[str, Any]]:
        return [{"pss": figure, "creation": figure, "outputs": ["a"], "details": {}} for figure in figures]

    eight, one, ordinary = results(2, 30, 4), results(1, 10, 4), results(4, 60, 8)
    names = (cpu_sharing.EIGHT_SHARED, cpu_sharing.ONE, cpu_sharing.ORDINARY)
    summary = cpu_sharing.summarize(dict(zip(names, (eight, one, ordinary), strict=True)))
    assert (summary["memory_of_one"], summary["creation_of_one"]) == (2.0, 2.0)
    assert (summary["memory_of_ordinary"], summary["creation_of_ordinary"]) == (0.5, 0.5)
    assert summary["identical"] is True
    eight[0]["outputs"] = [*"aaaaaaab"]  # one bit in one of eight sessions
    assert cpu_sharing.summarize(dict(zip(names, (eight, one, ordinary), strict=True)))["identical"] is False


def test_weight_loading_needs_a_gpu(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        weight_loading.main([str(model), "--devices", "cpu"])
    assert "this needs a GPU" in capsys.readouterr().err


def test_ceiling_copies_from_one_pinned_buffer_and_frees_everything(tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    code = """
        from benchmarks import weight_loading
        weight_loading.BUFFER_BYTES, weight_loading.TARGET_BYTES = 1000, 2000
        copy = weight_loading.PinnedCopy(1)
        assert copy.seconds(2500) > 0
        copy.close()
    """
    check_child(code, environment=driver.environment)
    assert driver.calls == [
        "init 0", "context 1", "pin 1000 1", "allocate 2000", "stream 1",
        "copy 1000 to 0", "copy 1000 to 1000", "copy 1000 to 0", "wait",
        "end of stream", "free", "unpin",
    ]  # fmt: skip


def test_loading_seconds_are_of_the_first_device_and_of_the_last() -> None:
    timeline = Timeline()
    timeline.add("load weights", 1_000_000_000, 3_000_000_000, "cuda:0")
    timeline.add("copy weights from cuda:0", 2_000_000_000, 3_250_000_000, "cuda:2")
    timeline.add("copy weights from cuda:0", 2_000_000_000, 3_125_000_000, "cuda:1")
    timeline.add("create session", 3_000_000_000, 9_000_000_000, "cuda:1")
    assert weight_loading.loading_seconds(timeline) == {"load": 2.0, "behind": 0.25}


def test_load_that_shared_nothing_is_an_error_that_says_why() -> None:
    timeline = Timeline()
    timeline.add("not shared: the model has no weights", 1, 1)
    with pytest.raises(RuntimeError, match="the model has no weights"):
        weight_loading.loading_seconds(timeline)


@pytest.mark.gpu
@pytest.mark.gpu_memory
def test_weight_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = models.make("matmul", tmp_path, megabytes=64), tmp_path / "loading.json"
    limits = ["--least-share=0", "--most-behind=inf", "--most-memory=inf", "--most-seconds=inf"]
    weight_loading.main([str(model), "--repeat", "2", "--memory-repeat", "1", *limits, "--out", str(path)])
    report = json.loads(path.read_text())
    assert report["loading"]["bytes"] > 60_000_000
    assert len(report["loading"]["pairs"]) == 2
    for pair in report["loading"]["pairs"]:
        assert 0 < pair["load"] <= pair["ready"]
        assert pair["share"] == pytest.approx(pair["rate"] / pair["ceiling"])
    assert [(one["strategy"], one["count"]) for one in report["memory"]["measured"]] == [
        ("shared", 1), ("shared", 4), ("sequential", 1),
    ]  # fmt: skip
    assert all(one["bytes"] > 0 for one in report["memory"]["measured"])
    assert "GB/s" in capsys.readouterr().out


def test_gpu_feeding(tmp_path: Path, measured: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    grid = "--in-flight 1 --sessions 1,2 --threads 2 --clients 2 --seconds 0.05 --warm 0.02 --settle 0.02"
    arguments = f"--model identity --device cpu --models {tmp_path} {grid} --least-share 0"
    document = measured(gpu_feeding, arguments, "| answers/s |")
    named = {row["case"] for row in document["rows"]}
    assert named == {"onnxruntime, 2 threads", "defaults", "in_flight=1 sessions=1", "in_flight=1 sessions=2"}
    assert document["rows"][0]["of_best"] == 1
    assert all(one[load]["cores"] > 0 for one in document["measurements"] for load in ("one", "many"))
    assert gpu_feeding.main(["--from", str(tmp_path / "result.json"), "--least-share", "2"]) == 1
    assert "missed: the defaults answer" in capsys.readouterr().out
