"""Public reports' claims are held against what was measured, each verdict both ways; the scripts run on the CPU."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    contention,
    creation_claims,
    gil_detection,
    init_options,
    session_diagnostics,
    shared_memory_io,
    thread_settings,
    torch_compare,
)
from benchmarks.published import thread_cases
from benchmarks.published.verdicts import Verdict, figures, judge, ratios, table
from ortmulti.bench.measure.rounds import Interval

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def measured(cases: Mapping[str, Mapping[str, Any]], of: str = "", count: int = 6) -> list[dict[str, Any]]:
    """Rounds in which each case, of a model, gives the same figures."""
    return [{"case": of + case, "round": number, **values} for number in range(count) for case, values in cases.items()]


@pytest.mark.parametrize(
    ("values", "outcome"),
    [([2.0] * 6, "holds"), ([1.5] * 6, "holds"), ([1.0] * 6, "does not hold"), ([1.0, 2.0] * 3, "undecided"),
     ([2.0], "undecided"), ([], "not measured")],
)  # fmt: skip
def test_a_claim_holds_if_the_whole_interval_is_on_its_side(values: list[float], outcome: str) -> None:
    assert judge("claim", "figure", values, at_least=1.5).outcome == outcome
    mirrored = judge("claim", "figure", [-value for value in values], at_most=-1.5)
    assert mirrored.outcome == outcome
    assert mirrored.line.startswith(f"{outcome}: claim: ")


def test_ratios_are_of_the_same_round() -> None:
    seconds = [("a", 6.0), ("b", 2.0), ("a", 8.0), ("b", None), ("a", 9.0), ("b", 9.0)]
    found = [{"case": case, "round": place // 2, "s": taken} for place, (case, taken) in enumerate(seconds)]
    found[3] = {"case": "b", "round": 1, "error": "died"}
    assert ratios(found, "a", "b", "s") == [3.0, 1.0]
    assert figures(found, "a", "s", 2.0) == [12.0, 16.0, 18.0]


def test_a_table_has_the_measured_columns() -> None:
    shown = table({"threads": {"wall": Interval.of([1.0, 3.0, 2.0]), "S": None}, "shared": {"wall": 0.5}})
    assert shown == "|  | wall |\n| --- | ---: |\n| threads | 2.00 (1.00 to 3.00) |\n| shared | 0.50 |"


# --- Verdicts ---------------------------------------------------------------------------------------------------------

CODES = {"holds": "+", "does not hold": "-", "undecided": "?", "not measured": "0"}


def codes(verdicts: Sequence[Verdict]) -> str:
    return "".join(CODES[verdict.outcome] for verdict in verdicts)


def gil(share: float, delay: float) -> list[dict[str, Any]]:
    figures = {1: {"delay_share": 0.9, "delay": 0.1}, 8: {"delay_share": share, "delay": delay}}
    return measured({gil_detection.case_name("onnxruntime", size): found for size, found in figures.items()})


def options(others: float, **heuristic: dict[str, float]) -> list[dict[str, Any]]:
    with_option = {"creation": others, "both": 8.0}
    cases = {"default": {"creation": 4.0, "both": 8.0}, "no optimization": with_option, "pre-optimized": with_option}
    return measured({**cases, **heuristic}, "m: ")


def threads(count: int, bound: int, explicit: int) -> list[dict[str, Any]]:
    default, four = {"threads": count, "bound": bound}, {"threads": 3, "bound": explicit}
    return measured({"default": default, "4 threads": four}, "m: ")


def spinning(run: float, cpu: float, backoff: float) -> list[dict[str, Any]]:
    spins = {"run": 2.0, "cpu": 4.0}
    without, with_backoff = {"run": run, "cpu": cpu}, {**spins, "run": backoff}
    names = ("default", thread_cases.SPIN_DURATION, thread_cases.NO_SPINNING, thread_cases.SPIN_AND_BACKOFF)
    return measured(dict(zip(names, (spins, spins, without, with_backoff), strict=True)), "m: ")


def other_threads(good: float) -> list[dict[str, Any]]:
    slow = (thread_cases.BOUND, thread_cases.TWO_NODES, "default")
    runs = {**dict.fromkeys(slow, 1.0), **dict.fromkeys((thread_cases.FREE, thread_cases.ONE_NODE), 1 / good)}
    rates = {thread_cases.OWN_POOLS: {"throughput": 1.0}, thread_cases.ONE_POOL: {"throughput": good}}
    cases = {name: {"run": run} for name, run in {**runs, "parallel": good}.items()}
    branches = {"default": {"run": 1.0}, "parallel": {"run": 1 / good}}
    return measured({**cases, **rates}, "m: ") + measured(branches, "b: ")


@pytest.mark.parametrize(
    ("judged", "arguments", "expected"),
    [
        (gil_detection.judged, (gil(0.9, 0.8), (1, 8)), "++"),
        (gil_detection.judged, (gil(0.9, 0.15), (1, 8)), "+-"),
        (gil_detection.judged, (gil(0.1, 0.8), (1, 8)), "--"),
        (init_options.judged, (options(1.0, HEURISTIC={"creation": 3.9, "both": 4.0}), "m", "cuda:0"), "-+++"),
        (init_options.judged, (options(3.0, HEURISTIC={"creation": 3.9, "both": 7.0}), "m", "cuda:0"), "----"),
        (init_options.judged, (options(3.0), "m", "cpu"), "00--"),
        (thread_settings.default_threads, (threads(3, 3, 0), "m", 4), "++"),
        (thread_settings.default_threads, (threads(7, 0, 0), "m", 4), "--"),
        (thread_settings.default_threads, (threads(3, 3, 3), "m", 4), "+-"),
        (thread_settings.default_threads, ([], "m", 4), "00"),
        (thread_settings.about_spinning, (spinning(3.0, 3.0, 2.0), ["m"]), "++"),
        (thread_settings.about_spinning, (spinning(1.0, 3.0, 2.0), ["m"]), "--"),
        (thread_settings.about_spinning, (spinning(3.0, 5.0, 2.1), ["m"]), "--"),
        (thread_settings.others, (other_threads(1.25), "m", "b"), "+++++"),
        (thread_settings.others, (other_threads(0.8), "m", "b"), "-----"),
        (thread_settings.others, ([], "m", "b"), "00000"),
    ],
)
def test_a_claim_is_judged_both_ways(judged: Any, arguments: tuple[Any, ...], expected: str) -> None:
    assert codes(judged(*arguments)) == expected


@pytest.mark.parametrize(
    ("main", "arguments", "expected", "status", "says"),
    [
        (creation_claims.main, "create-1.30.0-4xh200.json", "-?++-", 0, "wall over threads' 0.99 (0.95 to 1.12)"),
        (creation_claims.main, "create-1.31.1-4xh200.json", "-++?-", 0, "(S-1)/(N-1) of threads 0.18 (0.10 to 0.21)"),
        (creation_claims.main, "create-matmul-1.31.1-2-cores.json", "-00", 0, "on cpu x2, onnxruntime 1.31.1:"),
        (
            contention.main,
            "--from contention-1.31.1-4xh200.json",
            "----",
            0,
            "times one GPU's, 1.00 (1.00 to 1.01)",
        ),
        (
            contention.main,
            "--from contention-1.31.1-2xh200.json",
            "?-?-",
            0,
            "a run takes, times one GPU's, 1.03",
        ),
        (torch_compare.main, "--from torch-1.31.1-h200.json", "-?-?-", 1, "time over PyTorch's 0.83 (0.82 to 0.85)"),
        (torch_compare.main, "--from torch-1.31.1-h200.json", "-?-?-", 1, "batch 32, host: ortmulti takes 1.272 times"),
        (session_diagnostics.main, "diagnose-phi3-1.30.0-2xh200.json", "+--", 0, "gil 100%, driver 5%"),
        (session_diagnostics.main, "diagnose-resnet50-1.31.1-4xh200.json", "-+-", 0, "cuInit 36%, algorithm"),
    ],
)
def test_recorded_results_are_held_against_the_reports(
    main: Any, arguments: str, expected: str, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(RESULTS / one) if one.endswith(".json") else one for one in arguments.split()]
    assert main(given) == status
    text = capsys.readouterr().out
    found = re.findall(rf"^- ({'|'.join(CODES)}): ", text, re.MULTILINE)
    assert "".join(CODES[one] for one in found) == expected
    assert says in text


def test_what_is_no_whole_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        creation_claims.main([str(RESULTS / "contention-1.31.1-2xh200.json")])
    assert refused.value.code == 2
    assert "no result of `ortmulti bench create`" in capsys.readouterr().err
    whole = json.loads((RESULTS / "diagnose-resnet50-1.31.1-4xh200.json").read_text())
    partial = tmp_path / "partial.json"
    partial.write_text(json.dumps({**whole, "partial": "interrupted"}))
    assert session_diagnostics.main([str(partial)]) == 1
    assert "is partial: interrupted" in capsys.readouterr().err


def test_seven_threads_are_bound_to_one_node_or_split_over_two() -> None:
    two = [list(range(24)), list(range(24, 48))]
    assert thread_cases.node_bindings(two) == {
        "one node": [1, 2, 3, 4, 5, 6, 7],
        "two nodes": [1, 2, 3, 4, 24, 25, 26],
    }
    assert thread_cases.affinities([1, 2, 24]) == "2;3;25"
    assert thread_cases.node_bindings([[0, 1], [2, 3]]) == {}
    assert thread_cases.node_bindings([list(range(24))]) == {}
    assert sum(map(len, thread_cases.nodes())) == len(os.sched_getaffinity(0))


def test_a_setting_that_a_release_does_not_know_is_left_out(tmp_path: Path) -> None:
    model = thread_cases.write_branches(tmp_path)
    names = [
        {case.name.partition(": ")[2] for case in thread_cases.cases([model, model], release, tmp_path, 0.1)}
        for release in ("1.25.0", "1.26.0")
    ]
    assert names[1] - names[0] == {thread_cases.SPIN_DURATION, thread_cases.SPIN_AND_BACKOFF}


# --- Scripts ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("module", [gil_detection, init_options, shared_memory_io, thread_settings])
def test_an_experiment_runs_and_reports(
    module: Any, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module.__name__.partition(".")[2]
    path = tmp_path / "result.json"
    assert module.main(["--quick", "--devices", "cpu", "--models", str(models), "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert (document["kind"], document["experiment"]) == ("experiment", name)
    assert document["command"][0] == f"benchmarks/{name}.py"
    assert {"machine", "releases", "settings"} <= document.keys()
    assert all("error" not in one for one in document["measurements"])
    assert str(Path.home()) not in json.dumps(document["models"])
    printed = capsys.readouterr().out
    assert all(f"- {one['outcome']}: {one['claim']}" in printed for one in document["verdicts"])
    assert all(f"| {line} | " in printed for line in document["rows"])
    cases = {one["case"].partition(": ")[2] or one["case"]: one for one in document["measurements"]}
    if module is init_options:
        assert set(cases) == {"default", "no optimization", "pre-optimized", "ortmulti"}
        assert len({one["outputs"] for one in cases.values()}) == 1
    elif module is shared_memory_io:
        assert len(cases) == 4
        assert all(one["p50"] > 0 for one in shared_memory_io.by_batch(document["measurements"]))
        assert "the same by all ways" in printed
    elif module is thread_settings:
        cores = document["machine"]["cpu"]["usable_physical_cores"]
        own, together = (cases[f"4 sessions, {pools}"]["threads"] for pools in ("own pools", "global pool"))
        assert own - together >= 3 * (cores - 1) - 1
        assert cases["1 threads"]["threads"] == 0


def test_a_measurement_that_fails_is_the_scripts_failure(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--devices", "cpu", "--models", str(models), "--timeout", "0.01"]
    assert gil_detection.main(arguments) == 1
    assert "took longer than 0.01 seconds" in capsys.readouterr().err
    for wrong, message in (["--repeat", "0"], "at least once"), (["--devices", "tpu"], "tpu"):
        with pytest.raises(SystemExit) as refused:
            gil_detection.main(wrong)
        assert refused.value.code == 2
        assert message in capsys.readouterr().err


def test_the_findings_and_the_readme_name_scripts_and_results_that_there_are() -> None:
    folder = RESULTS.parent
    findings = (folder.parent / "docs" / "findings.md").read_text("utf-8")
    readme = (folder / "README.md").read_text("utf-8")
    results = {*re.findall(r"\bR/([\w.-]+\.json)", findings), *re.findall(r"\bR/([\w.*-]+\.json)", readme)}
    scripts = {path.stem for path in folder.glob("*.py")}
    assert len(results) > 20
    assert {name for name in results if not list(RESULTS.glob(name))} == set()
    assert scripts <= set(re.findall(r"\w+", readme))
    assert set(re.findall(r"`benchmarks\.([a-z_]+)[ `]", findings)) <= scripts
