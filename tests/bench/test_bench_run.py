"""`ortmulti bench run`: its arithmetic, its plan, its lines, its tables and plots, without a pool."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ortmulti.bench import models, serve
from ortmulti.bench.measure import results
from ortmulti.bench.serve import RunCase, RunPlan, cases, clients, plots, tables
from ortmulti.bench.serve.clients import Arrival
from ortmulti.bench.serve.summary import rows
from ortmulti.cli import bench_run
from ortmulti.errors import InvalidArgument, NoSuchFile
from tests.support.command import PNG

SECOND = cases.NANOSECONDS
MODEL = Path("folder/model.onnx")
SETS = (("cpu",), ("cpu", "cpu"))


def plan(**changes: Any) -> RunPlan:
    return RunPlan(**{"models": [MODEL], "device_sets": SETS, "repeat": 2, **changes})


def at(second: float) -> int:
    return int(second * SECOND)


def arrival(intended: float, sent: float, done: float | None) -> Arrival:
    return Arrival(at(intended), at(sent), None if done is None else at(done))


# --- Loops ------------------------------------------------------------------------------------------------------------


def test_closed_loop_counts_what_was_answered_within_the_window() -> None:
    answers = [(0, 1), (0, 2), (1, 3), (2, 5), (3, 6)]
    result = clients.closed_loop([(at(asked), at(done)) for asked, done in answers], at(1), at(5))
    assert (result["requests"], result["throughput"]) == (3, 3 / 4)
    assert result["latency"]["max"] == 3.0
    assert result["latency"]["mean"] == pytest.approx((2 + 2 + 3) / 3)


def test_closed_loop_without_an_answer_has_no_latency() -> None:
    result = clients.closed_loop([], at(0), at(2))
    assert result == {"requests": 0, "throughput": 0.0, "latency": None}


def test_latency_begins_when_a_request_was_to_arrive() -> None:
    """One slow answer delays whoever asks: the ones that should have been asked for meanwhile have waited, too."""
    # Whoever asks stood still from 1 to 4 and then asked for three at once.
    times = [(0, 0, 0.5), (1, 1, 4), (2, 4, 4.5), (3, 4, 4.5), (4, 4, 4.5)]
    result = clients.open_loop([arrival(*one) for one in times], at(0), at(5), at(5))
    assert result["latency"]["max"] == 3.0
    assert result["latency"]["mean"] == pytest.approx((0.5 + 3 + 2.5 + 1.5 + 0.5) / 5)
    assert result["lag"]["max"] == 2.0
    assert (result["offered"], result["throughput"], result["unanswered"]) == (1.0, 1.0, 0)


def test_what_was_offered_and_what_was_achieved_are_of_the_same_window() -> None:
    arrivals = [
        arrival(0, 0, 2),  # before the window, answered within it
        arrival(1, 1, 2),
        arrival(2, 2, 6),  # within it, answered after it
        arrival(3, 3, None),
        arrival(5, 5, 6),  # after it
    ]
    result = clients.open_loop(arrivals, at(1), at(5), at(9))
    assert (result["requests"], result["offered"], result["throughput"]) == (3, 3 / 4, 2 / 4)


def test_unanswered_requests_have_waited_until_now() -> None:
    result = clients.open_loop([arrival(0, 0, 1), arrival(1, 1, None)], at(0), at(2), at(11))
    assert (result["unanswered"], result["latency"]["max"]) == (1, 10.0)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2), (0.51, 3), (0.75, 3), (0.99, 4), (1.0, 4), (0.001, 1)])
def test_quantile_is_the_smallest_value_that_enough_do_not_exceed(share: float, expected: float) -> None:
    assert clients.quantile([1, 2, 3, 4], share) == expected


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_quantile_agrees_with_its_definition(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = clients.quantile(ordered, share)
    assert sum(value <= found for value in ordered) >= math.ceil(share * len(ordered))
    assert sum(value < found for value in ordered) < math.ceil(share * len(ordered))


def test_constant_arrivals_are_at_equal_distances() -> None:
    assert cases.arrival_times(4, 1, "constant", 0).tolist() == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]


def test_poisson_arrivals_have_the_rate_and_vary_with_the_seed() -> None:
    times = cases.arrival_times(1000, 20, "poisson", 7)
    assert times.tolist() == cases.arrival_times(1000, 20, "poisson", 7).tolist()
    assert times.tolist() != cases.arrival_times(1000, 20, "poisson", 8).tolist()
    assert (np.diff(times) >= 0).all()
    assert len(times) == pytest.approx(20_000, rel=0.05)
    # Of exponential distances the deviation is the mean, where of constant ones it is 0.
    assert np.diff(times).std() == pytest.approx(np.diff(times).mean(), rel=0.05)


# --- What a user writes -----------------------------------------------------------------------------------------------


def test_variants() -> None:
    assert serve.parse_variant(" processes ").load_arguments() == {"backend": "processes"}
    assert serve.parse_variant("threads+sessions=3").sessions == 3
    assert serve.parse_variant("core").load_arguments() == {}
    variant = serve.parse_variant("core+graph+sessions=2+in_flight=1")
    assert (variant.sessions, variant.load_arguments()) == (2, {"cuda_graph": True, "in_flight": 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "core+",
        "core+graph=1",
        "core+sessions=0",
        "core+in_flight",
        "core+x=1",
        "threads+graph",
        "threads+in_flight=2",
    ],
)
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="variant"):
        serve.parse_variant(text)


def test_rates() -> None:
    assert serve.parse_rate("200").name == "open, 200/s"
    assert serve.parse_rate("0.8x", "constant").at(50) == serve.parse_rate("40/s", "constant")
    assert serve.parse_rate("40").at(1000).rate == 40


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "fast", "inf", "nan", "1/m"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="rate"):
        serve.parse_rate(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": []}, "no models"),
        ({"variants": []}, "no variants"),
        ({"device_sets": []}, "no device sets"),
        ({"batches": [0]}, "at least one item"),
        ({"repeat": 0}, "repeat is at least 1"),
        ({"budget": -1}, "budget is at least 0"),
        ({"sequence": 0}, "sequence is at least 1"),
        ({"seconds": 0.0}, "more than 0 seconds"),
        ({"seconds": math.nan}, "more than 0 seconds"),
        ({"warm_seconds": -1}, "warm_seconds is at least 0"),
        ({"intra_op_num_threads": -1}, "intra_op_num_threads"),
        ({"inputs": "moon"}, "host or device"),
        ({"outputs": "device"}, "for threads, processes"),
        ({"device_sets": [("cuda:0", "cuda:0", "cuda:1")]}, "as many sessions on each device"),
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        plan(**changes)


def test_closed_loop_needs_a_request_and_arrivals_a_kind() -> None:
    with pytest.raises(InvalidArgument, match="at least one request"):
        serve.closed(0)
    with pytest.raises(InvalidArgument, match="poisson or constant"):
        serve.parse_rate("5", "often")


def test_models_by_name_and_by_path(tmp_path: Path) -> None:
    path = models.make("identity", tmp_path)
    found = bench_run.make_models([str(path), "matmul:megabytes=1", str(path)], tmp_path / "made", silent)
    assert found == [path, tmp_path / "made" / "matmul-1-mb.onnx"]
    assert found[1].is_file()


@contextmanager
def silent(text: str) -> Iterator[Callable[[int, int], None]]:
    assert text.startswith("making ")
    yield lambda _done, _total: None


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("absent.onnx", NoSuchFile, "absent.onnx does not exist"),
        ("magic", InvalidArgument, "'magic'"),
        ("matmul:megabytes", InvalidArgument, "NAME=VALUE"),
        ("matmul:depth=3", InvalidArgument, "depth"),
        ("matmul:megabytes=0", InvalidArgument, "megabytes must be"),
    ],
)
def test_wrong_models_are_refused_before_any_is_made(
    text: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        bench_run.make_models(["identity", text], tmp_path / "made", silent)
    assert not (tmp_path / "made").exists()


def test_doubling() -> None:
    assert [serve.doubling(most) for most in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


# --- Plan and rows ----------------------------------------------------------------------------------------------------


def test_variants_take_turns_and_each_round_begins_with_another_one() -> None:
    def order(number: int) -> list[tuple[int, str]]:
        return [(len(case.devices), case.variant.name) for case in plan().round(number)]

    assert order(0) == [(n, name) for n in (1, 2) for name in ("core", "threads", "processes")]
    assert order(1) == [(n, name) for n in (2, 1) for name in ("threads", "processes", "core")]
    assert order(2) == [(n, name) for n in (1, 2) for name in ("processes", "core", "threads")]


def test_closed_loop_comes_before_the_loads_that_are_parts_of_it() -> None:
    chosen = plan(loads=[serve.parse_rate("0.5x"), serve.parse_rate("9")], variants=[serve.Variant("core")])
    for number in range(2):
        names = [case.load.name for case in chosen.round(number)]
        assert names == ["closed, 4 a session", "open, 0.5x", "open, 9/s"] * 2
        assert sorted(map(str, chosen.round(number))) == sorted(map(str, chosen.cases()))


def measurement(throughput: float, **more: Any) -> dict[str, Any]:
    latency = {"count": 9, "mean": 0.01, "max": 0.2, "p50": 0.01, "p95": 0.02, "p99": 0.03, "p999": 0.04}
    return {
        "throughput": throughput,
        "latency": latency,
        "cpu_seconds": 3.0,
        "cpu_per_request": 3.0 / throughput,
        "window": 2.0,
        "gpu_memory": {},
        "pss": 1 << 20,
        **more,
    }


def test_ratios_are_of_the_same_round() -> None:
    """The machine is half as fast in the second round: the ratios do not change."""
    chosen = plan(variants=[serve.parse_variant("core"), serve.parse_variant("threads")])
    rates = {(1, "core"): 100.0, (2, "core"): 180.0, (1, "threads"): 50.0, (2, "threads"): 90.0}
    rounds = [
        {case: measurement(rates[len(case.devices), case.variant.name] / slow) for case in chosen.cases()}
        for slow in (1, 2)
    ]
    found = {(len(row.devices), row.variant): row for row in rows(chosen, rounds, {(2, "core"): 1e5})}
    one, two, threads = found[1, "core"], found[2, "core"], found[2, "threads"]
    assert (one.scaling, one.over_first, one.ceiling) == (None, None, None)
    assert two.scaling is not None
    assert (two.scaling.lowest, two.scaling.highest) == pytest.approx((0.9, 0.9))
    assert threads.over_first is not None
    assert (threads.over_first.lowest, threads.over_first.highest) == pytest.approx((0.5, 0.5))
    assert two.throughput is not None
    assert (two.throughput.lowest, two.throughput.highest, two.ceiling) == (90.0, 180.0, 1e5)
    assert two.cores is not None
    assert two.cores.median == 1.5


def test_failed_measurements_stay_in_the_row_and_out_of_the_figures() -> None:
    chosen = plan(variants=[serve.parse_variant("core")])
    one, two = chosen.cases()
    rounds: list[dict[RunCase, dict[str, Any]]] = [
        {one: {"error": "no"}, two: measurement(150.0)},
        {one: measurement(100.0), two: measurement(120.0)},
    ]
    first, second = rows(chosen, rounds, {})
    assert (first.measured, first.errors) == (1, ("no",))
    assert second.measured == 2
    assert second.scaling is not None
    assert second.scaling.median == 0.6  # of the second round alone


# --- Tables and plots -------------------------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    chosen = plan(loads=[serve.parse_rate("0.5x")], **changes)
    rounds = []
    for slow in (1.0, 1.1):
        this_round = {}
        for case in chosen.cases():
            rate = 100.0 * len(case.devices) / slow
            lag = {"p99": 0.001}
            opened = {"offered": rate / 2, "unanswered": 1, "lag": lag} if case.load.kind == "open" else {}
            this_round[case] = measurement(rate, **opened)
        rounds.append(this_round)
    return results.document(
        "run",
        settings={"rounds": 2, "seconds": 3.0, "inputs": "host", "outputs": "host"},
        models=[{"name": "model", "path": str(MODEL), "bytes": 10, "external_bytes": 0}],
        measurements=[],
        rows=[row.as_json() for row in rows(chosen, rounds, {})],
    )


def test_tables_and_markdown_have_every_case() -> None:
    whole = document()
    console = Console(width=400)
    [table] = tables.run_tables(whole, console, details=True)
    assert table.row_count == len(whole["rows"])
    narrow = tables.run_tables(whole, Console(width=90), details=True)
    assert len(narrow) > 1
    assert len(tables.run_tables(whole, Console(width=90))) == 1
    text = tables.markdown(whole)
    assert "asked late" not in text
    assert text.count("| open, 0.5x |") == 6
    assert "processes (2 unanswered)" in text
    assert "of 50.0" not in text.split("\n")[4]  # a closed loop is offered nothing
    assert "in brackets" in text


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ((100.0, 50.0), "core wins with 100 answers a second, 2.00 times as many as threads, the next one."),
        ((50.0, 50.0), "core gives 50.0 answers a second, with no clear difference from threads."),
    ],
)
def test_the_first_sentence_says_who_won(rates: tuple[float, float], sentence: str) -> None:
    chosen = plan(variants=[serve.parse_variant(name) for name in ("core", "threads")])
    round_of = {case: measurement(rates[case.variant.name == "threads"]) for case in chosen.cases()}
    whole = document()
    found = [row.as_json() for row in rows(chosen, [round_of, round_of], {})]
    whole["rows"] = [row | {"model": whole["models"][0]["path"]} for row in found]
    assert tables.headline(whole).endswith(sentence)


@pytest.mark.parametrize("loads_there", [True, False])
def test_plot(loads_there: bool, tmp_path: Path) -> None:
    whole = document()
    if not loads_there:
        whole["rows"] = [row for row in whole["rows"] if row["kind"] == "closed"]
    plots.save_run_plot(whole, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_nothing_measured_is_nothing_to_plot(tmp_path: Path) -> None:
    whole = document()
    for row in whole["rows"]:
        row["measured"] = 0
    with pytest.raises(InvalidArgument, match="nothing to plot"):
        plots.save_run_plot(whole, tmp_path / "run.png")


def test_loads_are_json() -> None:
    load = serve.parse_rate("0.5x")
    assert cases.Load(**json.loads(json.dumps(load.as_json()))) == load
    assert dataclasses.asdict(load) == load.as_json()
