"""What public reports claim is held against what was measured: each verdict comes out both ways."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gil_detection, init_options, session_diagnostics, shared_memory_io, thread_settings
from benchmarks.published import claims, creation, of_results, reports, thread_cases
from benchmarks.published.releases import Release
from benchmarks.published.verdicts import Verdict, figures, judge, ratios, side_by_side
from ortmulti.bench.measure.rounds import Interval


def outcomes(verdicts: Sequence[Verdict]) -> dict[str, str]:
    return {verdict.claim.id: verdict.outcome for verdict in verdicts}


def measured(cases: Mapping[str, Mapping[str, Any]], count: int = 6) -> list[dict[str, Any]]:
    """Rounds in which each case gives the same figures."""
    return [
        {"case": case, "release": "1.0", "round": number, **values}
        for number in range(count)
        for case, values in cases.items()
    ]


@pytest.mark.parametrize(
    ("values", "outcome"),
    [([2.0] * 6, "holds"), ([1.0] * 6, "does not hold"), ([1.0, 2.0] * 3, "undecided"), ([], "not measured")],
)
def test_a_claim_holds_if_the_whole_interval_is_on_its_side(values: list[float], outcome: str) -> None:
    claim = claims.GIL_IS_HELD
    assert judge(claim, "1.0", "figure", values, at_least=1.5, missing="no reason").outcome == outcome
    mirrored = judge(claim, "1.0", "figure", [-value for value in values], at_most=-1.5)
    assert mirrored.outcome == outcome
    assert outcome in mirrored.line


def test_one_round_decides_nothing() -> None:
    verdict = judge(claims.GIL_IS_HELD, "1.0", "figure", [2.0], at_least=1.5)
    assert (verdict.outcome, verdict.because) == ("undecided", "figure 2.00 in one round")


def test_a_figure_on_the_bound_is_on_the_claims_side() -> None:
    assert judge(claims.GIL_IS_HELD, "1.0", "figure", [1.5, 1.5], at_least=1.5).outcome == "holds"
    assert judge(claims.GIL_IS_HELD, "1.0", "figure", [1.5, 1.5], at_most=1.5).outcome == "holds"


def test_ratios_are_of_the_same_round_and_release() -> None:
    found = [
        {"case": "a", "release": "1.0", "round": 0, "s": 6.0},
        {"case": "b", "release": "1.0", "round": 0, "s": 2.0},
        {"case": "a", "release": "1.0", "round": 1, "s": 8.0},
        {"case": "b", "release": "1.0", "round": 1, "error": "died"},
        {"case": "b", "release": "2.0", "round": 1, "s": 1.0},
        {"case": "a", "release": "1.0", "round": 2, "s": 9.0},
        {"case": "b", "release": "1.0", "round": 2, "s": 9.0},
    ]
    assert ratios(found, "1.0", "a", "b", "s") == [3.0, 1.0]
    assert figures(found, "1.0", "a", "s") == [6.0, 8.0, 9.0]


def test_a_published_table_stands_beside_what_was_measured() -> None:
    rows: dict[str, dict[str, Any]] = {
        "threads": {reports.WALL: Interval.of([1.0, 3.0, 2.0])},
        "shared": {reports.WALL: 0.5},
        "native": {reports.WALL: None},
    }
    text = side_by_side(reports.SMALL_MODEL, {"1.30.0": rows, "1.31.1": {}})
    assert reports.INITIALIZATION.title in text
    assert reports.INITIALIZATION.link in text
    assert "| way | wall, s: published | wall, s: 1.30.0 | S: published | (S-1)/(N-1): published |" in text
    assert "| threads | 0.84 | 2.00 (1.00 to 3.00) | 4.60 | 0.84 |" in text
    assert "| shared |  | 0.50 |  |  |" in text
    assert "native" not in text


def test_efficiency_is_the_reports() -> None:
    """Of its times for the large model, and not of those that it prints for the small one."""
    for name in ("threads", "processes"):
        row = reports.LARGE_MODEL.rows[name]
        speedup = float(reports.LARGE_MODEL.rows["sequential"][reports.WALL]) / float(row[reports.WALL])
        [efficiency] = creation.parallel([speedup], 4)
        assert efficiency == pytest.approx(float(row[reports.EFFICIENCY]), abs=0.001)
    assert creation.parallel([3.87 / 0.84], 4)[0] == pytest.approx(1.20, abs=0.01)
    assert creation.parallel([1.0], 1) == []


@pytest.mark.parametrize(
    ("threads", "processes", "expected"),
    [
        (7.48, 4.38, {"large-threads": "holds", "large-processes": "holds", "near-linear": "does not hold"}),
        (4.0, 5.0, {"large-threads": "does not hold", "large-processes": "does not hold"}),
        (10.0, 2.8, {"near-linear": "holds"}),
    ],
)
def test_a_large_model(threads: float, processes: float, expected: dict[str, str]) -> None:
    found = measured({"sequential": {"ready": 10.87}, "threads": {"ready": threads}, "processes": {"ready": processes}})
    verdicts = outcomes(creation.judged(reports.LARGE_MODEL, found, "1.0", 4))
    assert expected.items() <= verdicts.items()


def test_a_small_model() -> None:
    found = measured({"sequential": {"ready": 4.0}, "threads": {"ready": 1.5}, "processes": {"ready": 2.5}})
    assert outcomes(creation.judged(reports.SMALL_MODEL, found, "1.0", 4)) == {
        "small-threads": "holds",
        "small-processes": "holds",
    }
    found = measured({"sequential": {"ready": 4.0}, "threads": {"ready": 3.0}, "processes": {"ready": 2.5}})
    assert set(outcomes(creation.judged(reports.SMALL_MODEL, found, "1.0", 4)).values()) == {"does not hold"}
    alone = creation.judged(reports.SMALL_MODEL, found, "1.0", 1)
    assert alone[0].line.endswith("it takes two devices.")


def test_the_gil_is_held_and_for_longer_with_a_larger_model() -> None:
    def verdicts(share: float, delay: float) -> dict[str, str]:
        cases = {
            gil_detection.case_name("onnxruntime", 1): {"delay_share": 0.9, "delay": 0.1},
            gil_detection.case_name("onnxruntime", 8): {"delay_share": share, "delay": delay},
        }
        return outcomes(gil_detection.verdicts(measured(cases), "1.0", (1, 8)))

    assert verdicts(0.9, 0.8) == {"gil-held": "holds", "gil-by-size": "holds"}
    assert verdicts(0.9, 0.15) == {"gil-held": "holds", "gil-by-size": "does not hold"}
    assert verdicts(0.1, 0.8) == {"gil-held": "does not hold", "gil-by-size": "does not hold"}


def test_options_of_one_session() -> None:
    def verdicts(heuristic: float, others: float, device: str = "cuda:0") -> dict[str, str]:
        cases = {
            "m: default": {"creation": 4.0, "both": 8.0},
            "m: HEURISTIC": {"creation": 3.9, "both": heuristic},
            "m: no optimization": {"creation": others, "both": 8.0},
            "m: pre-optimized": {"creation": others, "both": 8.0},
        }
        if device == "cpu":
            del cases["m: HEURISTIC"]
        return outcomes(init_options.verdicts(measured(cases), "1.0", "m", device))

    good = verdicts(4.0, 1.0)
    assert good == {
        "heuristic-creation": "does not hold",
        "heuristic-first-run": "holds",
        "no-optimization": "holds",
        "pre-optimized": "holds",
    }
    bad = verdicts(7.0, 3.0)
    assert set(bad.values()) == {"does not hold"}
    assert verdicts(7.0, 3.0, "cpu")["heuristic-first-run"] == "not measured"


def test_shared_memory_against_pickling() -> None:
    def verdict(shared: float) -> str:
        by_shared = {"1": {"p50": 9.0}, "8": {"p50": shared}}
        by_pickling = {"1": {"p50": 1.0}, "8": {"p50": 2.0}}
        found = measured({"shared_memory": {"batches": by_shared}, "pickling": {"batches": by_pickling}}, 2)
        found.append({"case": "pickling", "release": "1.0", "round": 2, "error": "died"})
        return shared_memory_io.verdict(shared_memory_io.by_batch(found), "1.0", (1, 8)).outcome

    assert (verdict(1.0), verdict(3.0)) == ("holds", "does not hold")


def test_default_threads() -> None:
    def verdicts(threads: int, bound: int, explicit: int) -> dict[str, str]:
        cases = {
            "m: default": {"threads": threads, "bound": bound},
            "m: 4 threads": {"threads": 3, "bound": explicit},
        }
        return outcomes(thread_settings.default_threads(measured(cases), "1.0", "m", 4))

    assert verdicts(3, 3, 0) == {"threads-per-core": "holds", "default-affinity": "holds"}
    assert verdicts(7, 0, 0) == {"threads-per-core": "does not hold", "default-affinity": "does not hold"}
    assert verdicts(3, 3, 3)["default-affinity"] == "does not hold"
    assert outcomes(thread_settings.default_threads([], "1.0", "m", 4))["threads-per-core"] == "not measured"


def test_spinning() -> None:
    def verdicts(without: tuple[float, float], backoff: float) -> dict[str, str]:
        cases = {
            "m: default": {"run": 2.0, "cpu": 4.0},
            f"m: {thread_cases.NO_SPINNING}": {"run": without[0], "cpu": without[1]},
            f"m: {thread_cases.SPIN_DURATION}": {"run": 2.0, "cpu": 4.0},
            f"m: {thread_cases.SPIN_AND_BACKOFF}": {"run": backoff, "cpu": 4.0},
        }
        return outcomes(thread_settings.about_spinning(measured(cases), "1.0", ["m"], ""))

    assert verdicts((3.0, 3.0), 2.0) == {"spinning": "holds", "spin-backoff": "holds"}
    assert verdicts((1.0, 3.0), 2.0) == {"spinning": "does not hold", "spin-backoff": "does not hold"}
    assert verdicts((3.0, 5.0), 2.1) == {"spinning": "does not hold", "spin-backoff": "does not hold"}
    [_, refused] = thread_settings.about_spinning(
        measured({"m: default": {"run": 1.0, "cpu": 1.0}}), "1.0", ["m"], "too old"
    )
    assert (refused.outcome, refused.because) == ("not measured", "too old")


def test_other_thread_settings() -> None:
    def verdicts(good: float) -> dict[str, str]:
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
        return outcomes(thread_settings.others(measured(cases), "1.0", "m", "b"))

    assert set(verdicts(1.25).values()) == {"holds"}
    assert set(verdicts(0.8).values()) == {"does not hold"}
    assert set(outcomes(thread_settings.others([], "1.0", "m", "b")).values()) == {"not measured"}


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


def test_a_setting_that_a_release_does_not_know_is_refused(tmp_path: Path) -> None:
    old, new = Release("1.21.1", "onnxruntime"), Release("1.26.0", "onnxruntime")
    model = thread_cases.write_branches(tmp_path)
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes())
    cases = thread_cases.cases([other, model], [old, new], tmp_path, 0.1)
    refusing = {case.name for case in cases if case.refused}
    assert refusing == {
        f"{name}: {setting}"
        for name in ("other", "branches")
        for setting in (thread_cases.SPIN_DURATION, thread_cases.SPIN_AND_BACKOFF)
    }
    assert all(set(case.refused) == {"1.21.1"} for case in cases if case.refused)


def contention(threads: float, processes: float) -> dict[str, Any]:
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
    text, verdicts = of_results.kernels(contention(100.0, 195.0))
    found = {verdict.release: verdict.outcome for verdict in verdicts}
    assert (found["1.0, threads"], found["1.0, processes"]) == ("holds", "holds")
    assert found["1.0, core"] == "not measured"
    assert "| threads, cuda:0-3 |  | 40.0 |  | 4.00 |" in text
    assert reports.CONTENTION.title in text
    _, verdicts = of_results.kernels(contention(390.0, 100.0))
    found = {verdict.release: verdict.outcome for verdict in verdicts}
    assert (found["1.0, threads"], found["1.0, processes"]) == ("does not hold", "does not hold")


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


def test_pytorch() -> None:
    text, verdicts = of_results.pytorch(torch_document(0.008, 0.005, (1.1, 1.2), graphs=False))
    assert [verdict.outcome for verdict in verdicts] == ["holds", "holds", *["not measured"] * 3]
    assert "| PyTorch, host |  | 200 |" in text
    assert "| ONNX Runtime, host |  | 125 |  | 0.62 |" in text
    _, verdicts = of_results.pytorch(torch_document(0.004, 0.005, (0.9, 1.0), graphs=True))
    assert [verdict.outcome for verdict in verdicts] == [
        "does not hold", "does not hold", "not measured", "not measured", "does not hold",
    ]  # fmt: skip
    _, verdicts = of_results.pytorch(torch_document(0.004, 0.005, (0.9, 1.1), graphs=True))
    assert verdicts[1].outcome == "undecided"


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
        "findings": [{"title": "It waits.", "change": "Do not.", "verified": None}],
    }


def test_diagnoses_are_held_against_the_report() -> None:
    good, bad = diagnosis(0.9, 0.6, "processes"), diagnosis(0.2, 0.4, "shared")
    assert set(outcomes(session_diagnostics.verdicts(good, "1.0")).values()) == {"holds"}
    assert set(outcomes(session_diagnostics.verdicts(bad, "1.0")).values()) == {"does not hold"}
    assert session_diagnostics.rows(good) == {
        "algorithm search": {"sequential x1, share": pytest.approx(0.6)},
        "run": {"sequential x1, share": pytest.approx(0.4), "threads x2, share": 0.5},
        "wait for the GIL": {"threads x2, share": 0.5},
    }
    unexplained, first = session_diagnostics.remarks(good, "1.0")
    assert "1.0%" in unexplained
    assert "It waits; change: Do not." in first


def test_documents_of_diagnoses_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for number, partial in enumerate((None, None, "interrupted")):
        facts = {"schema_version": 3, "partial": partial, "releases": {"onnxruntime": f"1.{number}"}}
        document = {**diagnosis(0.9, 0.6, "processes"), **facts}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(document))
    assert session_diagnostics.main(["--devices", "cpu", "--from", *map(str, paths[:2])]) == 0
    shown = capsys.readouterr().out
    assert "sequential x1, share: 1.0 | sequential x1, share: 1.1" in shown
    assert "- 1.1: holds: Threads fail because the GIL is held" in shown
    assert session_diagnostics.main(["--devices", "cpu", "--from", str(paths[2])]) == 1
    assert "partial: interrupted" in capsys.readouterr().err
