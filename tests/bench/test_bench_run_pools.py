"""`ortmulti bench run` with real pools: clients, measuring processes, the command."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.bench import models, serve
from ortmulti.bench.measure import results
from ortmulti.bench.serve import measure_pool
from ortmulti.bench.serve.clients import ClosedLoop, ask_at
from ortmulti.bench.serve.measure_pool import ProcessorTime
from ortmulti.bench.serve.onnxruntime_threads import OnnxruntimeThreads
from ortmulti.interface.onnxruntime_sessions import session_specs
from tests.support.command import PNG, invoke, run
from tests.support.processes import nothing_leaks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=1)


def small(model: Path, **changes: Any) -> serve.RunPlan:
    settings = {
        "models": [model],
        "device_sets": [("cpu",)],
        "variants": [serve.parse_variant("core")],
        "repeat": 1,
        "seconds": 0.2,
        "warm_seconds": 0.05,
        "ceiling": False,
        "intra_op_num_threads": 1,
        "timeout": 120.0,
    }
    return serve.RunPlan(**{**settings, **changes})


# --- Clients ----------------------------------------------------------------------------------------------------------


def test_closed_loop_keeps_as_many_in_flight_as_it_has_clients() -> None:
    meeting = threading.Barrier(3)  # passed only by three calls at the same time
    with nothing_leaks(), ClosedLoop([lambda: meeting.wait(30)] * 3) as loop:
        loop.until_answered()
        begin, end = loop.go_on(0.01)
        assert begin < end
        loop._stop.set()
        meeting.abort()
        loop.close()
    assert all(loop.answers)


def test_what_a_client_raises_ends_the_loop() -> None:
    def fail() -> None:
        raise KeyError("x")

    with nothing_leaks(), pytest.raises(KeyError), ClosedLoop([fail, lambda: None]) as loop:
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


def test_open_loop_gives_up_and_cancels_what_is_never_answered() -> None:
    never: Future[Any] = Future()
    arrivals, _, _ = ask_at(lambda _: never, np.zeros(1, np.int64), patience=0.0)
    assert [one.done for one in arrivals] == [None]
    assert never.cancelled()


def test_open_loop_raises_what_a_request_raised() -> None:
    failed: Future[Any] = Future()
    failed.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        ask_at(lambda _: failed, np.zeros(3, np.int64), patience=30)


def test_processor_time_is_of_this_process() -> None:
    processor = ProcessorTime()
    begin, before = processor.seconds(), time.process_time()
    while time.process_time() - before < 0.05:
        pass
    assert processor.seconds() - begin >= 0.05


# --- Measurements -----------------------------------------------------------------------------------------------------


def test_result_has_every_case_and_its_figures(model: Path) -> None:
    loads = [serve.parse_rate(rate, "constant") for rate in ("0.5x", "50")]
    sets = [("cpu",), ("cpu", "cpu")]
    told: list[serve.RunProgress] = []
    chosen = small(model, device_sets=sets, loads=loads, ceiling=True, batches=[2])
    document = serve.bench(chosen, told.append)
    assert serve.failures(document) == []
    assert (document["kind"], document["schema_version"]) == ("run", results.SCHEMA_VERSION)
    assert {"machine", "releases", "created", "command", "settings", "models"} <= document.keys()
    json.dumps(document)
    assert [progress.counted for progress in told] == [False, False] + [True] * 7
    assert [(row["devices"], row["load"]) for row in document["rows"]] == [
        (list(devices), load) for devices in sets for load in ("closed, 4 a session", "open, 0.5x", "open, 50/s")
    ]
    for row in document["rows"]:
        assert row["batch"] == 2
        assert row["throughput"]["median"] > 0
        assert 0 < row["p50"]["median"] <= row["p99"]["median"] <= row["p999"]["median"]
        assert row["cpu_per_request"]["median"] > 0
        assert (row["scaling"] is not None) == (len(row["devices"]) == 2 and row["kind"] == "closed")
        assert (row["ceiling"] is not None) == (row["kind"] == "closed")
        assert (row["offered"] is not None) == (row["lag"] is not None) == (row["kind"] == "open")
    closed, relative, constant = document["measurements"][:3]
    assert closed["stats"]["cpu"]["done"] >= closed["requests"]
    assert relative["offered"] == pytest.approx(closed["throughput"] / 2, abs=10)
    assert constant["offered"] == 50.0
    assert constant["unanswered"] == 0


def test_sessions_of_a_variant_are_on_each_device(model: Path) -> None:
    variant = serve.parse_variant("core+sessions=3")
    document = serve.bench(small(model, device_sets=[("cpu", "cpu")], variants=[variant]))
    assert document["measurements"][0]["stats"]["cpu"]["sessions"] == 6


def test_no_round_begins_that_the_budget_has_no_time_for(model: Path) -> None:
    document = serve.bench(small(model, repeat=1000, budget=0.0))
    assert (document["settings"]["repeat"], document["settings"]["rounds"]) == (1000, 1)
    assert document["rows"][0]["measured"] == 1


def test_failed_measurement_is_part_of_the_result(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(model.read_bytes())  # without its file of weights
    (tmp_path / f"{model.name}.data").write_bytes(b"")
    document = serve.bench(small(broken, loads=[serve.parse_rate("0.5x")]))
    assert [row["measured"] for row in document["rows"]] == [0, 0]
    first, second = serve.failures(document)
    assert "broken, batch 1, core on cpu, closed" in first
    assert "closed loop that was not measured" in second


def test_measurement_that_takes_too_long_is_ended(model: Path) -> None:
    document = serve.bench(small(model, seconds=600.0, timeout=3.0))
    assert "took longer than 3 seconds" in serve.failures(document)[0]


def test_window_without_a_request_says_so(model: Path) -> None:
    once_in_a_while = serve.parse_rate("0.001", "constant")
    closed, opened = serve.bench(small(model, loads=[once_in_a_while]))["measurements"]
    assert closed["requests"] > 0
    assert opened["error"] == "no request arrives within 0.2 seconds at 0.001 a second; measure for longer"


def test_an_answer_that_differs_is_an_error() -> None:
    good = [np.array([1.0, 2.0], np.float32)]
    measure_pool._compare(good, [good[0] * np.float32(1.001)])
    for wrong in (good[0] * 2, good[0][:1], np.array([1.0, np.nan], np.float32)):
        with pytest.raises(measure_pool.WrongAnswerError):
            measure_pool._compare(good, [wrong])


def spec(model: Path, tmp_path: Path, variant: str = "core", **changes: Any) -> dict[str, Any]:
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, **models.sample_inputs(model))
    return {
        "model": str(model),
        "devices": ["cpu"],
        "variant": serve.parse_variant(variant).__dict__,
        "load": serve.closed().as_json(),
        "feeds": str(feeds),
        "inputs": "host",
        "outputs": "host",
        "seconds": 0.1,
        "warm_seconds": 0.0,
        "seed": 0,
        "intra_op_num_threads": 1,
        "provider_options": {},
        "config_entries": {},
        **changes,
    }


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("core", {}),
        ("core", {"inputs": "device"}),
        ("core", {"load": serve.parse_rate("100").as_json(), "inputs": "device"}),
        ("core", {"inputs": "device", "outputs": "device"}),
        ("core+in_flight=1", {}),
        ("threads", {}),
        ("threads", {"load": serve.parse_rate("100").as_json()}),
        ("processes", {}),
        ("processes", {"load": serve.parse_rate("100").as_json()}),
    ],
)
def test_worker(variant: str, changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    result = measure_pool.measure(spec(model, tmp_path, variant, **changes))
    assert result["requests"] > 0
    assert result["latency"]["p50"] > 0
    assert {device: stats["failed"] for device, stats in result["stats"].items()} == (
        {} if variant == "threads" else {"cpu": 0}
    )
    assert result["processes"] == (1 if variant.partition("+")[0] != "processes" else result["processes"])


@pytest.mark.timeout(60)
def test_onnxruntime_in_threads_answers_every_client(model: Path) -> None:
    """A client that finds the session free whenever it asks leaves nothing to the others."""
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 1
    feed = models.sample_inputs(model)
    with (
        OnnxruntimeThreads(session_specs(model, ["cpu"], 1, options, None)) as peer,
        ClosedLoop([lambda: peer.run(None, feed)] * 4) as loop,
    ):
        while min(len(client) for client in loop.answers) < 100:
            loop.go_on(0.001)


# --- The command ------------------------------------------------------------------------------------------------------


def test_help() -> None:
    shown = invoke("bench", "run", "--help")
    assert shown.returncode == 0
    wanted = (
        "--devices --counts --variants --batch --inputs --outputs --in-flight --rate --arrivals --seconds --repeat "
        "--provider-option --config --models --timeout --budget --json --plot --markdown --demo"
    )
    assert [name for name in wanted.split() if name not in shown.stdout] == []


def test_command_prints_tables_and_writes_what_was_asked_for(model: Path, tmp_path: Path) -> None:
    options = ("--devices", "cpu*2", "--variants", "core", "--repeat", "1", "--seconds", "0.2", "--warm-seconds", "0")
    files = ("--json", "r/run.json", "--plot", "run.png", "--markdown", "run.md", "--no-ceiling")
    shown = run("bench", "run", model, "identity", *options, "--rate", "0.5x,40", *files, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[12/12] identity, batch 1, core on cpu x2, open, 40/s" in shown.stderr
    assert shown.stdout.count("closed, 4 a session") >= 4
    document = results.load(tmp_path / "r/run.json")
    assert document["command"][1:3] == ["bench", "run"]
    assert [facts["name"] for facts in document["models"]] == [model.stem, "identity"]
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    assert (tmp_path / "run.md").read_text().count("| open, 40/s |") == 4
    assert (tmp_path / "models/identity.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "status", "mentions"),
    [
        ((), 2, "--demo"),
        (("absent.onnx",), 1, "absent.onnx"),
        (("magic",), 1, "'magic'"),
        (("identity", "--devices", "99"), 1, "cuda:99"),
        (("identity", "--counts", "0"), 1, "numbers of sessions"),
        (("identity", "--variants", "magic"), 1, "variant"),
        (("identity", "--rate", "fast"), 1, "rate"),
        (("identity", "--rate", "1", "--arrivals", "often"), 1, "poisson"),
        (("identity", "--batch", "x"), 1, "batch sizes"),
        (("identity", "--batch", "0"), 1, "at least one item"),
        (("identity", "--inputs", "device"), 1, "threads, processes"),
        (("identity", "--repeat", "0"), 1, "repeat"),
        (("identity", "--seconds", "0"), 1, "seconds"),
        (("identity", "--in-flight", "0"), 1, "in flight"),
        (("identity", "--provider-option", "x"), 1, "NAME=VALUE"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(
    arguments: tuple[str, ...], status: int, mentions: str, tmp_path: Path
) -> None:
    shown = invoke("bench", "run", "--devices", "cpu", *arguments, cwd=tmp_path)
    assert shown.returncode == status, shown.stderr
    assert mentions in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "models").exists()


def test_failures_end_with_status_1_after_the_table(model: Path, tmp_path: Path) -> None:
    options = ("--devices", "cpu", "--variants", "core", "--repeat", "1", "--seconds", "60", "--no-ceiling")
    shown = run("bench", "run", model, *options, "--timeout", "2", cwd=tmp_path)
    assert shown.returncode == 1
    assert "1/1 failed" in shown.stdout
    assert "failed: matmul-1-mb, batch 1, core on cpu, closed" in shown.stderr


@pytest.mark.slow
def test_demo_compares_the_backends(model: Path, tmp_path: Path) -> None:
    ortmulti.load(model, "cpu", backend="processes").close()
    shown = run("bench", "run", "--demo", "--devices", "cpu*2", "--out", "here", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    document = results.load(tmp_path / "here/run.json")
    assert {row["variant"] for row in document["rows"]} == {"core", "threads", "processes"}
    assert (tmp_path / "here/run.png").read_bytes().startswith(PNG)
    assert "here/run.md" in shown.stderr
