"""Public reports' claims are held against what was measured, each verdict both ways; the scripts run on the CPU."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
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
from benchmarks.published import script, thread_cases
from benchmarks.published.verdicts import Verdict, figures, judge, ratios, table
from ortmulti.bench.measure.rounds import Interval

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def outcomes(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.outcome for verdict in verdicts]


def measured(cases: Mapping[str, Mapping[str, Any]], count: int = 6) -> list[dict[str, Any]]:
    """Rounds in which each case gives the same figures."""
    return [{"case": case, "round": number, **values} for number in range(count) for case, values in cases.items()]


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
    found = [
        {"case": "a", "round": 0, "s": 6.0},
        {"case": "b", "round": 0, "s": 2.0},
        {"case": "a", "round": 1, "s": 8.0},
        {"case": "b", "round": 1, "error": "died"},
        {"case": "a", "round": 2, "s": 9.0},
        {"case": "b", "round": 2, "s": 9.0},
    ]
    assert ratios(found, "a", "b", "s") == [3.0, 1.0]
    assert figures(found, "a", "s", 2.0) == [12.0, 16.0, 18.0]


def test_a_table_has_the_measured_columns() -> None:
    shown = table({"threads": {"wall": Interval.of([1.0, 3.0, 2.0]), "S": None}, "shared": {"wall": 0.5}})
    assert shown == "|  | wall |\n| --- | ---: |\n| threads | 2.00 (1.00 to 3.00) |\n| shared | 0.50 |"


def test_rounds_take_turns_and_failures_do_not_end_them(tmp_path: Path) -> None:
    (tmp_path / "a_worker.py").write_text(
        "def measure(spec):\n"
        "    with open(spec['log'], 'a') as log:\n"
        "        log.write(spec['name'] + ' ')\n"
        "    if spec['name'] == 'b':\n"
        "        raise RuntimeError('it broke')\n"
        "    return {}\n"
    )
    log = tmp_path / "log"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    def case(name: str, **more: Any) -> script.Case:
        return script.Case(name, "a_worker", {"log": str(log), "name": name}, environment=environment, **more)

    args = script.parse(script.parser(""), ["--devices", "cpu", "--repeat", "2"])
    found = script.measure([case("a"), case("b"), case("d", counted=False, prepare=True)], args)
    assert log.read_text().split() == ["a", "d", "a", "b", "b", "a"]
    assert [(one["case"], one["round"], one.get("error")) for one in found] == [
        ("a", 0, None), ("b", 0, "RuntimeError: it broke"), ("b", 1, "RuntimeError: it broke"), ("a", 1, None),
    ]  # fmt: skip


# --- Verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "processes", "small", "expected"),
    [
        (7.48, 4.38, False, ["holds", "holds", "does not hold"]),  # the report's own times
        (4.0, 5.0, False, ["does not hold"] * 3),
        (10.0, 2.8, False, ["holds"] * 3),
        (3.0, 5.0, True, ["holds"] * 2),
        (9.0, 7.0, True, ["does not hold"] * 2),
    ],
)
def test_creation_of_a_model(threads: float, processes: float, small: bool, expected: list[str]) -> None:
    found = measured({"sequential": {"wall": 10.87}, "threads": {"wall": threads}, "processes": {"wall": processes}})
    assert outcomes(creation_claims.judged(found, 4, small)) == expected
    alone = creation_claims.judged(found, 1, small)[0]
    assert alone.because == "it takes two devices"


def test_the_gil_is_held_and_for_longer_with_a_larger_model() -> None:
    def verdicts(share: float, delay: float) -> list[str]:
        cases = {
            gil_detection.case_name("onnxruntime", 1): {"delay_share": 0.9, "delay": 0.1},
            gil_detection.case_name("onnxruntime", 8): {"delay_share": share, "delay": delay},
        }
        return outcomes(gil_detection.judged(measured(cases), (1, 8)))

    assert verdicts(0.9, 0.8) == ["holds", "holds"]
    assert verdicts(0.9, 0.15) == ["holds", "does not hold"]
    assert verdicts(0.1, 0.8) == ["does not hold", "does not hold"]


def test_options_of_one_session() -> None:
    def verdicts(heuristic: float, others: float, device: str = "cuda:0") -> list[str]:
        cases = {
            "m: default": {"creation": 4.0, "both": 8.0},
            "m: HEURISTIC": {"creation": 3.9, "both": heuristic},
            "m: no optimization": {"creation": others, "both": 8.0},
            "m: pre-optimized": {"creation": others, "both": 8.0},
        }
        if device == "cpu":
            del cases["m: HEURISTIC"]
        return outcomes(init_options.judged(measured(cases), "m", device))

    assert verdicts(4.0, 1.0) == ["does not hold", "holds", "holds", "holds"]
    assert verdicts(7.0, 3.0) == ["does not hold"] * 4
    assert verdicts(7.0, 3.0, "cpu")[:2] == ["not measured"] * 2


def test_default_threads() -> None:
    def verdicts(threads: int, bound: int, explicit: int) -> list[str]:
        cases = {
            "m: default": {"threads": threads, "bound": bound},
            "m: 4 threads": {"threads": 3, "bound": explicit},
        }
        return outcomes(thread_settings.default_threads(measured(cases), "m", 4))

    assert verdicts(3, 3, 0) == ["holds", "holds"]
    assert verdicts(7, 0, 0) == ["does not hold", "does not hold"]
    assert verdicts(3, 3, 3)[1] == "does not hold"
    assert outcomes(thread_settings.default_threads([], "m", 4)) == ["not measured"] * 2


def test_spinning() -> None:
    def verdicts(without: tuple[float, float], backoff: float) -> list[str]:
        cases = {
            "m: default": {"run": 2.0, "cpu": 4.0},
            f"m: {thread_cases.NO_SPINNING}": {"run": without[0], "cpu": without[1]},
            f"m: {thread_cases.SPIN_DURATION}": {"run": 2.0, "cpu": 4.0},
            f"m: {thread_cases.SPIN_AND_BACKOFF}": {"run": backoff, "cpu": 4.0},
        }
        return outcomes(thread_settings.about_spinning(measured(cases), ["m"]))

    assert verdicts((3.0, 3.0), 2.0) == ["holds", "holds"]
    assert verdicts((1.0, 3.0), 2.0) == ["does not hold", "does not hold"]
    assert verdicts((3.0, 5.0), 2.1) == ["does not hold", "does not hold"]


def test_other_thread_settings() -> None:
    def verdicts(good: float) -> set[str]:
        cases = {
            "m: default": {"run": 1.0},
            "b: default": {"run": 1.0},
            "m: parallel": {"run": good},
            "b: parallel": {"run": 1 / good},
            f"m: {thread_cases.FREE}": {"run": 1 / good},
            f"m: {thread_cases.BOUND}": {"run": 1.0},
            f"m: {thread_cases.ONE_NODE}": {"run": 1 / good},
            f"m: {thread_cases.TWO_NODES}": {"run": 1.0},
            f"m: {thread_cases.OWN_POOLS}": {"throughput": 1.0},
            f"m: {thread_cases.ONE_POOL}": {"throughput": good},
        }
        return set(outcomes(thread_settings.others(measured(cases), "m", "b")))

    assert verdicts(1.25) == {"holds"}
    assert verdicts(0.8) == {"does not hold"}
    assert set(outcomes(thread_settings.others([], "m", "b"))) == {"not measured"}


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


def contention_document(threads: float, processes: float) -> dict[str, Any]:
    rates = {("threads", 1): 100.0, ("processes", 1): 50.0, ("threads", 4): threads, ("processes", 4): processes}
    cases = [
        {
            "variant": variant,
            "devices": [f"cuda:{index}" for index in range(count)],
            "throughput": rate,
            "round": number,
        }
        for (variant, count), rate in rates.items()
        for number in range(2)
    ]
    return {"releases": {"onnxruntime": "1.0"}, "rows": cases, "measurements": cases}


def test_contention_of_threads_and_of_processes() -> None:
    def verdicts(threads: float, processes: float) -> list[str]:  # core, threads, processes, core+graph
        return outcomes(contention.judged(contention_document(threads, processes)))

    assert verdicts(100.0, 195.0) == ["not measured", "holds", "holds", "not measured"]
    assert verdicts(390.0, 100.0) == ["not measured", "does not hold", "does not hold", "not measured"]


def torch_document(pool: float, eager: float, ratio: tuple[float, float], graphs: bool) -> dict[str, Any]:
    def way(side: str, name: str, seconds: float) -> dict[str, Any]:
        return {"side": side, "name": name, "seconds": [seconds] * 6, "equal": True}

    ways = [way("ortmulti", "pool", pool), way("pytorch", "eager", eager)]
    ways += [way("ortmulti", "pool, graph", pool)] if graphs else []
    interval = {"median": sum(ratio) / 2, "low": ratio[0], "high": ratio[1]}
    return {
        "releases": {"onnxruntime": "1.0"},
        "measurements": [{"setting": "fp32, batch 1, host", "ways": ways}],
        "rows": [{"setting": "fp32, batch 1, host", "ratio": interval}],
    }


@pytest.mark.parametrize(
    ("pool", "ratio", "graphs", "expected"),
    [
        (0.008, (1.1, 1.2), False, ["holds", "holds", *["not measured"] * 3]),
        (0.004, (0.9, 1.0), True, ["does not hold", "does not hold", *["not measured"] * 2, "does not hold"]),
        (0.004, (0.9, 1.1), True, ["does not hold", "undecided", *["not measured"] * 2, "does not hold"]),
    ],
)
def test_pytorch(pool: float, ratio: tuple[float, float], graphs: bool, expected: list[str]) -> None:
    assert outcomes(torch_compare.judged(torch_document(pool, 0.005, ratio, graphs))) == expected


def diagnosis(gil: float, search: float, best: str) -> dict[str, Any]:
    def run(way: str, devices: int, causes: dict[str, float]) -> dict[str, Any]:
        return {
            "experiment": "trace",
            "way": way,
            "devices": ["cpu"] * devices,
            "cache": "warm",
            "wall": 2.0,
            "causes": causes,
            "explained": 0.99,
        }

    causes = {"algorithm search": 2.0 * search, "run": 2.0 * (1 - search)}
    return {
        "partial": None,
        "runs": [run("sequential", 1, causes), run("threads", 2, {"run": 1.0, "wait for the GIL": 1.0})],
        "serialization": [{"way": "threads", "devices": 2, "on": [{"what": "gil", "share": gil}]}],
        "prediction": {"best": best, "seconds": {"processes": 1.0, "shared": 1.0}},
    }


def test_diagnoses_are_held_against_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = diagnosis(0.9, 0.6, "processes"), diagnosis(0.2, 0.4, "shared")
    assert outcomes(session_diagnostics.judged(good)) == ["holds"] * 3
    assert outcomes(session_diagnostics.judged(bad)) == ["does not hold"] * 3
    for partial, status in ((None, 0), ("interrupted", 1)):
        facts = {"schema_version": 3, "partial": partial, "releases": {"onnxruntime": "1.1"}, "models": [{"name": "m"}]}
        path = tmp_path / "diagnosis.json"
        path.write_text(json.dumps({**good, **facts}))
        assert session_diagnostics.main([str(path)]) == status
    shown = capsys.readouterr()
    assert "| run | 0.40 | 0.50 |" in shown.out
    assert "- holds: report: threads fail because of the GIL: threads serialize on: gil 90%" in shown.out
    assert "is partial: interrupted" in shown.err


# --- Scripts ----------------------------------------------------------------------------------------------------------

Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def run(main: Main, models: Path, tmp_path: Path, *arguments: str, devices: str = "cpu") -> dict[str, Any]:
    path = tmp_path / "result.json"
    common = ["--quick", "--devices", devices, "--models", str(models), "--json", str(path)]
    assert main([*common, *arguments]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.parametrize("module", [gil_detection, init_options, shared_memory_io, thread_settings])
def test_an_experiment_runs_and_reports(
    module: Any, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = module.__name__.partition(".")[2]
    document = run(module.main, models, tmp_path)
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
        assert len(cases) == 5
        assert all(one["p50"] > 0 for one in shared_memory_io.by_batch(document["measurements"]))
        assert "the same by all ways" in printed
    elif module is thread_settings:
        cores = document["machine"]["cpu"]["usable_physical_cores"]
        own, together = (cases[f"4 sessions, {pools}"]["threads"] for pools in ("own pools", "global pool"))
        assert own - together >= 3 * (cores - 1) - 1
        assert cases["1 threads"]["threads"] == 0


def test_results_are_held_against_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    assert creation_claims.main([str(RESULTS / "create-1.30.0-4xh200.json")]) == 0
    text = capsys.readouterr().out
    assert "phi3-mini on cuda:0-3, onnxruntime 1.30.0:" in text
    assert "- holds: report: for a large model threads are effectively serial" in text
    with pytest.raises(SystemExit) as refused:
        creation_claims.main([str(RESULTS / "contention-1.31.1-2xh200.json")])
    assert refused.value.code == 2
    assert "no result of `ortmulti bench create`" in capsys.readouterr().err
    contention.main(["--from", str(RESULTS / "contention-1.31.1-2xh200.json")])
    assert "threads: a run takes, times one GPU's, 1.03 (0.61 to 1.12)" in capsys.readouterr().out
    torch_compare.main(["--from", str(RESULTS / "torch-1.31.1-h200.json")])
    assert "- does not hold: article: ONNX Runtime's defaults are slower" in capsys.readouterr().out


def test_a_measurement_that_fails_is_the_scripts_failure(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--devices", "cpu", "--models", str(models), "--timeout", "0.01"]
    assert gil_detection.main(arguments) == 1
    assert "took longer than 0.01 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
