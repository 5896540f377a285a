"""The scripts of the reports' experiments run on the CPU and report; what they measure is no matter here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ortmulti
from benchmarks import (
    contention,
    gil_detection,
    init_options,
    parallel_init,
    phi3_parallel,
    session_diagnostics,
    shared_memory_io,
    thread_settings,
    torch_compare,
)
from benchmarks.published import claims, reports

Main = Callable[[Sequence[str]], int]

SCRIPTS = (
    contention, gil_detection, init_options, parallel_init, phi3_parallel, session_diagnostics, shared_memory_io,
    thread_settings, torch_compare,
)  # fmt: skip
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def run(main: Main, models: Path, tmp_path: Path, *arguments: str, devices: str = "cpu*2") -> dict[str, Any]:
    path = tmp_path / "result.json"
    common = ["--quick", "--devices", devices, "--models", str(models), "--json", str(path)]
    assert main([*common, *arguments]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def check(document: dict[str, Any], name: str, table: reports.Table, *claimed: claims.Claim) -> None:
    assert (document["kind"], document["experiment"]) == ("experiment", name)
    assert document["command"][0] == f"benchmarks/{name}.py"
    assert {"machine", "releases", "settings"} <= document.keys()
    [shown, *_] = document["tables"]
    assert shown["published"] == json.loads(json.dumps(table.as_json()))
    assert shown["measured"]
    assert [verdict["id"] for verdict in document["verdicts"]] == [claim.id for claim in claimed]
    assert all("error" not in one for one in document["measurements"])
    assert str(Path.home()) not in json.dumps(document["models"])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_script_says_what_it_takes(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as shown:
        script.main(["--help"])
    assert shown.value.code == 0
    text = capsys.readouterr().out
    for option in ("--devices", "--quick", "--json"):
        assert option in text


def test_gil_detection(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(gil_detection.main, models, tmp_path, devices="cpu")
    check(document, "gil_detection", reports.GIL_BY_SIZE, claims.GIL_IS_HELD, claims.GIL_BY_MODEL_SIZE)
    text = capsys.readouterr().out
    assert reports.INITIALIZATION.link in text
    assert "| 7.2 GB | ~15% |" in text


def test_parallel_init(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(parallel_init.main, models, tmp_path)
    check(document, "parallel_init", reports.SMALL_MODEL, claims.SMALL_THREADS, claims.SMALL_PROCESSES)
    [measured] = document["tables"][0]["measured"].values()
    assert set(measured) == {"sequential", "threads", "processes", "native", "shared"}
    for cells in measured.values():
        assert cells["wall, s"]["median"] > 0
    outputs = {tuple(one["outputs"]) for one in document["measurements"]}
    assert len(outputs) == 1
    assert "| threads | 0.84 |" in capsys.readouterr().out


def test_init_options(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(init_options.main, models, tmp_path, devices="cpu")
    check(
        document, "init_options", reports.OPTIONS,
        claims.HEURISTIC_CREATION, claims.HEURISTIC_FIRST_RUN, claims.NO_OPTIMIZATION, claims.PRE_OPTIMIZED,
    )  # fmt: skip
    cases = {one["case"].partition(": ")[2]: one for one in document["measurements"]}
    assert set(cases) == {"default", "no optimization", "pre-optimized", "ortmulti"}
    assert len({one["outputs"] for one in cases.values()}) == 1
    assert [verdict["outcome"] for verdict in document["verdicts"][:2]] == ["not measured"] * 2
    assert "HEURISTIC and DEFAULT need a GPU" in capsys.readouterr().out


def test_shared_memory_io(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(shared_memory_io.main, models, tmp_path)
    check(document, "shared_memory_io", reports.SHARED_MEMORY, claims.ZERO_COPY)
    assert len(document["measurements"]) == 5
    for one in document["measurements"]:
        assert set(one["batches"]) == {"1", "2"}
        assert all(result["p50"] > 0 and result["throughput"] > 0 for result in one["batches"].values())
    assert "the same by all ways" in capsys.readouterr().out


def test_thread_settings(models: Path, tmp_path: Path) -> None:
    document = run(thread_settings.main, models, tmp_path, devices="cpu")
    found = {verdict["id"]: verdict for verdict in document["verdicts"]}
    assert {"threads-per-core", "default-affinity", "spinning", "spin-backoff", "global-pool"} <= found.keys()
    cases = {one["case"]: one for one in document["measurements"]}
    assert "error" not in {key for one in cases.values() for key in one}
    own, together = (cases[f"matmul-4-mb: 4 sessions, {pools}"] for pools in ("own pools", "global pool"))
    cores = document["machine"]["cpu"]["usable_physical_cores"]
    assert own["threads"] - together["threads"] >= 3 * (cores - 1) - 1
    assert cases["matmul-4-mb: 1 threads"]["threads"] == 0


@pytest.mark.slow
def test_session_diagnostics(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("ortmulti.bench.diagnose")
    document = run(session_diagnostics.main, models, tmp_path)
    check(
        document, "session_diagnostics", reports.CAUSES,
        claims.ROOT_CAUSE, claims.SLOW_FIRST_SESSION, claims.USE_PROCESSES,
    )  # fmt: skip
    [measured] = document["tables"][0]["measured"].values()
    assert "libraries" in measured


def test_results_of_bench_create_are_shown_beside_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(RESULTS / f"create-{release}-4xh200.json") for release in ("1.30.0", "1.31.1")]
    for script in (phi3_parallel, parallel_init):
        assert script.main(["--devices", "cpu", "--from", *paths]) == 0
        text = capsys.readouterr().out
        assert "wall, s: 1.30.0 | wall, s: 1.31.1" in text
        assert "on cuda:0-3" in text
    assert phi3_parallel.main(["--devices", "cpu", "--from", str(RESULTS / "create-matmul-1.31.1-2-cores.json")]) == 0
    text = capsys.readouterr().out
    assert "- 1.31.1: does not hold: For a large model threads are effectively serial" in text
    assert "Because: not all of these were measured." in text
    with pytest.raises(SystemExit) as refused:
        phi3_parallel.main(["--devices", "cpu", "--from", str(RESULTS / "contention-1.31.1-2xh200.json")])
    assert refused.value.code == 2
    assert "no comparison of the creation of phi3-mini" in capsys.readouterr().err


def test_results_of_bench_run_are_shown_beside_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    contention.main(["--from", str(RESULTS / "contention-1.31.1-2xh200.json")])
    assert "| threads, cuda:0, cuda:1 |  | 2.14" in capsys.readouterr().out
    torch_compare.main(["--from", str(RESULTS / "torch-1.31.1-h200.json")])
    text = capsys.readouterr().out
    assert "| PyTorch | 200 |" in text
    assert "1.31.1, fp32, batch 1, host: does not hold: ONNX Runtime at its default" in text


def test_contention_quickly(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(contention.main, models, tmp_path, "--variants", "core")
    assert {verdict["outcome"] for verdict in document["verdicts"]} == {"not measured"}
    assert "it takes two GPUs" in capsys.readouterr().out


def test_a_measurement_that_fails_is_the_scripts_failure(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.onnx"
    missing.write_bytes(b"no model")
    with pytest.raises(ortmulti.Error):
        shared_memory_io.main(["--quick", "--devices", "cpu", "--model", str(missing)])
    arguments = ["--quick", "--devices", "cpu", "--models", str(models), "--timeout", "0.01"]
    assert gil_detection.main(arguments) == 1
    assert "took longer than 0.01 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--release-dir", "1.0"], "is not of the form"),
        (["--repeat", "0"], "at least once"),
        (["--devices", "tpu"], "tpu"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        gil_detection.main(arguments)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_the_findings_name_scripts_and_results_that_there_are() -> None:
    text = (RESULTS.parents[1] / "docs" / "findings.md").read_text("utf-8")
    results, scripts = (set(re.findall(pattern, text)) for pattern in (r"\bR/([\w.-]+\.json)", r"`(\w+\.py) "))
    assert len(results) > 5
    assert len(scripts) > 5
    assert {name for name in results if not (RESULTS / name).is_file()} == set()
    assert {name for name in scripts if not (RESULTS.parent / name).is_file()} == set()
