"""`ortmulti bench run`: its arithmetic, its plan, its rows, what it says, and real pools."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortmulti.bench import models
from ortmulti.bench.measure import results
from ortmulti.bench.measure.memory import process_memory
from ortmulti.bench.measure.rounds import Interval
from ortmulti.bench.serve import clients, measure_pool
from ortmulti.bench.serve.clients import Arrival, ClosedLoop, ask_at
from ortmulti.bench.serve.measure_pool import OnnxruntimeSessions
from ortmulti.bench.serve.plan import REPORT, RunPlan, doubling, headline, parse_rate, save_plot
from ortmulti.bench.strategies import SessionSettings
from ortmulti.cli import bench_run
from ortmulti.errors import Error, InvalidArgument
from tests.support.command import PNG
from tests.support.processes import nothing_leaks

SECOND = clients.NANOSECONDS
MODEL = Path("folder/model.onnx")
SETS = (("cpu",), ("cpu", "cpu"))
VARIANTS = ("core", "threads", "processes")


def plan(**changes: Any) -> RunPlan:
    usual = {"models": [MODEL], "device_sets": SETS, "variants": VARIANTS, "repeat": 2}
    return RunPlan(**{**usual, **changes})


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
    nothing = clients.closed_loop([], at(0), at(2))
    assert nothing == {"requests": 0, "throughput": 0.0, "latency": None}


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
    # Before the window and answered within it; within it and answered after it; never answered; after it.
    arrivals = [arrival(*one) for one in ((0, 0, 2), (1, 1, 2), (2, 2, 6), (3, 3, None), (5, 5, 6))]
    result = clients.open_loop(arrivals, at(1), at(5), at(9))
    assert (result["requests"], result["offered"], result["throughput"]) == (3, 3 / 4, 2 / 4)
    assert (result["unanswered"], result["latency"]["max"]) == (1, 6.0)  # it has waited until now


def test_arrivals_have_the_rate() -> None:
    times = clients.arrival_times(1000, 20, 7)
    assert times.tolist() == clients.arrival_times(1000, 20, 7).tolist()
    assert times.tolist() != clients.arrival_times(1000, 20, 8).tolist()
    assert (np.diff(times) >= 0).all()
    assert len(times) == pytest.approx(20_000, rel=0.05)
    # Of exponential distances the deviation is the mean, where of constant ones it is 0.
    assert np.diff(times).std() == pytest.approx(np.diff(times).mean(), rel=0.05)


# --- What a user writes -----------------------------------------------------------------------------------------------


def test_variants_and_rates() -> None:
    assert measure_pool.parse_variant("processes") == {"way": "processes", "sessions": 1}
    assert measure_pool.parse_variant("threads+sessions=3")["sessions"] == 3
    assert measure_pool.parse_variant("core+graph=off")["cuda_graph"] is False
    variant = measure_pool.parse_variant("core+graph+sessions=2+in_flight=1")
    assert variant == {"way": "core", "sessions": 2, "cuda_graph": True, "in_flight": 1}
    assert [parse_rate(text) for text in ("200", "40/s", " 0.8x")] == [(200, False), (40, False), (0.8, True)]


@pytest.mark.parametrize(
    ("parse", "what", "texts"),
    [
        (
            measure_pool.parse_variant,
            "variant",
            " core+ core+graph=1 core+sessions=0 core+in_flight core+x=1 threads+graph processes+in_flight=2",
        ),
        (parse_rate, "rate", " x -1 0 inf nan 1/m"),
    ],
)
def test_what_is_no_variant_or_rate_is_refused(parse: Callable[[str], Any], what: str, texts: str) -> None:
    for text in texts.split(" "):
        with pytest.raises(InvalidArgument, match=what):
            parse(text)


def test_a_pool_has_as_many_sessions_on_each_device() -> None:
    with pytest.raises(InvalidArgument, match="as many sessions on each device"):
        plan(device_sets=[("cuda:0", "cuda:0", "cuda:1")])


def test_models_by_name_and_by_path(tmp_path: Path) -> None:
    path = models.make("identity", tmp_path)
    found = bench_run.make_models([str(path), "matmul:megabytes=1", str(path)], tmp_path / "made")
    assert found == [path, tmp_path / "made" / "matmul-1-mb.onnx"]
    assert found[1].is_file()


def test_doubling() -> None:
    assert [doubling(most) for most in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


# --- Plan and rows ----------------------------------------------------------------------------------------------------


def test_variants_take_turns_and_the_closed_loop_comes_before_the_loads_that_are_parts_of_it() -> None:
    chosen = plan(rates=["0.5x", "9"])

    def order(number: int) -> list[tuple[int, str]]:
        found = chosen.cases(number)
        assert [case.load for case in found] == ["closed, 4 a session", "open, 0.5x", "open, 9/s"] * 6
        return [(len(case.devices), case.variant) for case in found[::3]]

    assert order(0) == [(n, name) for n in (1, 2) for name in ("core", "threads", "processes")]
    assert order(1) == [(n, name) for n in (2, 1) for name in ("threads", "processes", "core")]
    assert order(2) == [(n, name) for n in (1, 2) for name in ("processes", "core", "threads")]


def measurement(throughput: float, **more: Any) -> dict[str, Any]:
    latency = {"count": 9, "mean": 0.01, "max": 0.2, "p50": 0.01, "p95": 0.02, "p99": 0.03, "p999": 0.04}
    figures = {"cpu_seconds": 3.0, "cpu_per_request": 3.0 / throughput, "window": 2.0, "pss": 1 << 20}
    return {"throughput": throughput, "latency": latency, **figures, "gpu_memory": {}, **more}


def test_ratios_are_of_the_same_round() -> None:
    """The machine is half as fast in the second round: the ratios do not change."""
    chosen = plan(variants=["core", "threads"])
    chosen._ceilings[2, "core"] = 1e5
    rates = {(1, "core"): 100.0, (2, "core"): 180.0, (1, "threads"): 50.0, (2, "threads"): 90.0}
    rounds = [
        {case: measurement(rates[len(case.devices), case.variant] / slow) for case in chosen.cases()} for slow in (1, 2)
    ]
    found = {(len(row["devices"]), row["variant"]): row for row in chosen.rows(rounds)}
    one, two = found[1, "core"], found[2, "core"]
    assert (one["scaling"], one["over_first"], one["ceiling"]) == (None, None, None)
    assert two["scaling"] == Interval.json([0.9, 0.9])
    assert found[2, "threads"]["over_first"] == Interval.json([0.5, 0.5])
    assert (two["throughput"], two["ceiling"]) == (Interval.json([90.0, 180.0]), 1e5)
    assert two["cores"]["median"] == 1.5
    rounds[0][chosen.cases()[0]] = {"error": "no"}
    one, _, two, _ = chosen.rows(rounds)
    assert (one["measured"], one["errors"], two["measured"]) == (1, ["no"], 2)
    assert two["scaling"] == Interval.json([0.9])  # of the second round alone


# --- What it says -----------------------------------------------------------------------------------------------------


def document(rounds: int = 2, rates: dict[str, float] | None = None) -> dict[str, Any]:
    """A result of pools that answer 100 requests a second on each device, or `rates` by variant."""
    chosen = plan(rates=["0.5x"])
    made = []
    for number in range(rounds):
        this_round = {}
        for case in chosen.cases():
            rate = (rates or {}).get(case.variant, 100.0) * len(case.devices) / (1 + number / 10)
            opened = (
                {"offered": rate / 2, "unanswered": 1, "lag": {"p99": 0.001}} if case.load.startswith("open") else {}
            )
            this_round[case] = measurement(rate, **opened)
        made.append(this_round)
    return results.document(
        "run",
        settings={"rounds": rounds, "seconds": 3.0, "inputs": "host", "outputs": "host"},
        models=[{"name": "model", "path": str(MODEL), "bytes": 10, "external_bytes": 0}],
        rows=chosen.rows(made),
    )


def test_markdown_has_every_case() -> None:
    text = REPORT.markdown(document())
    assert text.count("| open, 0.5x |") == 6
    assert "| processes (2 unanswered) | open, 0.5x | 95.5 (of 47.7) |" in text
    assert "asked late" not in text
    assert "ceiling" not in text
    assert "asked late" in REPORT.markdown(document(), details=True)


@pytest.mark.parametrize(
    ("rounds", "rates", "sentence"),
    [
        (2, {"threads": 50.0, "processes": 1.0}, "core wins with 191 answers a second, 2.00 times as many as threads, "
         "the next one."),
        (2, {"processes": 1.0}, "core gives 191 answers a second, with no clear difference from threads."),
        (1, {"threads": 50.0, "processes": 1.0}, "core gives 200 answers a second, 2.00 times as many as threads, the "
         "next one, measured once: --repeat 6 shows whether that is certain."),
    ],
)  # fmt: skip
def test_the_first_sentence_says_who_won(rounds: int, rates: dict[str, float], sentence: str) -> None:
    assert headline(document(rounds, rates)) == f"model, batch 1, on cpu x2: {sentence}"


def test_plot_of_closed_loops_alone_and_of_nothing(tmp_path: Path) -> None:
    whole = document()
    whole["rows"] = [row for row in whole["rows"] if row["kind"] == "closed"]
    save_plot(whole, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    with pytest.raises(InvalidArgument, match="nothing to plot"):
        save_plot({**whole, "rows": []}, tmp_path / "run.png")


# --- Clients of real pools --------------------------------------------------------------------------------------------


def small(model: Path, **changes: Any) -> RunPlan:
    settings = {
        "models": [model],
        "device_sets": [("cpu",)],
        "variants": ["core"],
        "repeat": 1,
        "seconds": 0.2,
        "warm_seconds": 0.05,
        "ceiling": False,
        "intra_op_num_threads": 1,
        "timeout": 120.0,
    }
    return RunPlan(**{**settings, **changes})


def test_closed_loop_keeps_as_many_in_flight_as_it_has_clients_and_raises_what_they_raise() -> None:
    meeting = threading.Barrier(3)  # passed only by three calls at the same time
    with nothing_leaks(), ClosedLoop([lambda: meeting.wait(30)] * 3) as loop:
        loop.until_answered()
        begin, end = loop.go_on(0.01)
        assert begin < end
        loop._stop.set()
        meeting.abort()
        loop.close()
    assert all(loop.answers)
    failing: dict[str, Any] = {}
    with nothing_leaks(), pytest.raises(KeyError), ClosedLoop([lambda: failing["x"], lambda: None]) as loop:
        loop.until_answered()


def test_open_loop_does_not_wait_for_answers() -> None:
    """The first answer comes when all have been asked for: one that waited for it would never end."""
    futures: list[Future[Any]] = []

    def submit(number: int) -> Future[Any]:
        futures.append(Future())
        if number == 4:
            for future in futures:
                future.set_result(None)
        return futures[-1]

    times = np.arange(5) * 1_000_000
    arrivals, start, now = ask_at(submit, times, patience=30)
    assert [one.intended - start for one in arrivals] == times.tolist()
    assert all(one.intended <= one.sent <= (one.done or 0) <= now for one in arrivals)
    assert arrivals[0].done is not None
    assert arrivals[0].done >= arrivals[4].intended


def test_open_loop_cancels_what_is_never_answered_and_raises_what_a_request_raised() -> None:
    never: Future[Any] = Future()
    arrivals, _, _ = ask_at(lambda _: never, np.zeros(1, np.int64), patience=0.0)
    assert [one.done for one in arrivals] == [None]
    assert never.cancelled()
    failed: Future[Any] = Future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        ask_at(lambda _: failed, np.zeros(3, np.int64), patience=30)
    numbers: list[int] = []
    ask_at(lambda _: failed, np.zeros(3, np.int64), 30, lambda number, _: numbers.append(number))
    assert sorted(numbers) == [0, 1, 2]


# --- Measurements -----------------------------------------------------------------------------------------------------


def test_failed_measurement_is_part_of_the_result(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(model.read_bytes())  # without its file of weights
    (tmp_path / f"{model.name}.data").write_bytes(b"")
    document = small(broken, rates=["0.5x"]).run()
    assert [row["measured"] for row in document["rows"]] == [0, 0]
    first, second = RunPlan.failures(document)
    assert "broken, batch 1, core on cpu, closed" in first
    assert "closed loop that was not measured" in second


def test_window_without_a_request_says_so(model: Path) -> None:
    closed, opened = small(model, rates=["0.001"]).run()["measurements"]
    assert closed["requests"] > 0
    assert opened["error"] == "no request arrives within 0.2 seconds at 0.001 a second; measure for longer"


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_an_answer_that_differs_is_an_error(dtype: Any) -> None:
    good = [np.array([1.0, 2.0], dtype)]
    measure_pool.compare(good, [np.array([1.001, 2.0], dtype)])
    for wrong in (good[0] * dtype(2), good[0][:1], np.array([1.0, np.nan], dtype)):
        with pytest.raises(Error):
            measure_pool.compare(good, [wrong])


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("core+in_flight=1", {}),
        ("core", {"inputs": "device"}),
        ("core", {"inputs": "device", "outputs": "device"}),
        ("threads", {}),
        ("processes", {}),
    ],
)
def test_every_variant_answers_both_loads(variant: str, changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    chosen = small(model, variants=[variant], seconds=0.1, warm_seconds=0.0, **changes)
    chosen.prepare(tmp_path, lambda _: None)
    [case] = chosen.cases()
    processes = process_memory().processes  # this one, and what other tests have left
    for rate in (None, 100.0):
        result = measure_pool.measure({**chosen.spec(case), "rate": rate})
        assert result["requests"] > 0
        assert result["latency"]["p50"] > 0
        failed = {device: stats["failed"] for device, stats in result["stats"].items()}
        assert failed == ({"cpu": 0} if variant.startswith("core") else {})
        assert (result["processes"] == processes) == (variant != "processes")


@pytest.mark.timeout(60)
def test_onnxruntime_in_threads_answers_every_client(model: Path) -> None:
    """A client that finds the session free whenever it asks leaves nothing to the others."""
    feed = models.sample_inputs(model)
    with (
        OnnxruntimeSessions(str(model), ["cpu"], SessionSettings(1), apart=False) as peer,
        ClosedLoop([lambda: peer.run(None, feed)] * 4) as loop,
    ):
        while min(len(client) for client in loop.answers) < 100:
            loop.go_on(0.001)
