"""The commands of `ortmulti bench`: what they print and write, exit status; and Ctrl-C in all that measure."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from onnx import TensorProto

from ortmulti.bench import models
from ortmulti.bench.repository.simulated import SimulatedModel, Simulation
from ortmulti.errors import Error
from tests.support import onnx_models, pools
from tests.support.command import COMMAND, PNG, TERMINAL, run


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_create_measures_every_strategy_and_writes_what_was_asked_for(model: Path, tmp_path: Path) -> None:
    files = ("--json", "r/result.json", "--plot", "plot.png", "--markdown", "table.md")
    shown = run("bench", "create", model, "--devices", "cpu*2", "--repeat", "1", *files, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    strategies = ["sequential", "threads", "processes", "native", "shared"]
    for name in strategies:
        assert len(re.findall(rf"\b{name} +\d", shown.stdout)) == 2
    assert shown.stderr.count("uncounted") == 5
    assert f"[10/10] {model.stem}, shared on cpu x2" in shown.stderr
    assert [line for line in shown.stderr.splitlines() if ": " in line and "[" not in line] == [
        "result: r/result.json",
        "table: table.md",
        "plot: plot.png",
    ]
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    assert (tmp_path / "table.md").read_text().count("| native |") == 2
    document = load(tmp_path / "r/result.json")
    assert document["command"][1:3] == ["bench", "create"]
    assert [(len(row["devices"]), row["strategy"], row["measured"], row["equal"]) for row in document["rows"]] == [
        (count, name, 1, None if name == "sequential" else True) for count in (1, 2) for name in strategies
    ]
    for row in document["rows"]:
        assert row["speedup"] > 0
        for key in ("creation", "session", "ready", "first_run"):
            assert 0 < row[key]["lowest"] <= row[key]["median"] <= row[key]["highest"]
        assert row["pss"]["median"] < row["peak_rss"]["median"]
        # Without GPUs and with a warm page cache there is nothing that no strategy could be faster than.
        assert (row["driver_floor"], row["above_floor"], row["sequential_read"], row["times_floors"]) == (None,) * 4
    assert all(one["resident_share"] == 1.0 for one in document["measurements"])
    *_, sequential, _threads, processes, _native, _shared = document["measurements"]  # on two devices
    assert (sequential["processes"], processes["processes"] >= 3) == (1, True)
    for memory in ("pss", "peak_rss"):  # with the workers'
        assert processes[memory] > 1.2 * sequential[memory]


@pytest.mark.essential
def test_create_takes_options_for_all_strategies_or_for_one_and_prints_json_alone(model: Path) -> None:
    options = ("--devices", "cpu", "--counts", "1,3", "--strategies", "sequential,shared", "--repeat", "1")
    more = ("--no-entry", "--second-model", "--threads", "1", "--json", "-")
    configs = ("--config", "session.use_env_allocators=0", "--config", "shared:session.set_denormal_as_zero=1")
    document = json.loads(run("bench", "create", model, *options, *configs, *more).stdout)
    settings = document["settings"]
    assert settings["config_entries"] == {"session.use_env_allocators": "0"}
    assert settings["strategy_options"] == {
        "shared": {"provider": {}, "config_entries": {"session.set_denormal_as_zero": "1"}}
    }
    assert (settings["entry"], settings["before"], settings["intra_op_num_threads"]) == (False, "model", [1, 1])
    assert [(len(row["devices"]), row["strategy"], row["equal"]) for row in document["rows"]] == [
        (1, "sequential", None), (1, "shared", True), (3, "sequential", None), (3, "shared", True),
    ]  # fmt: skip


def test_a_failed_strategy_ends_with_status_1_after_the_table_and_leaves_the_others(
    model: Path, tmp_path: Path
) -> None:
    wrong = ("--threads", "2", "--config", "native:session.intra_op_thread_affinities=no list")
    options = ("--devices", "cpu", "--strategies", "sequential,native", "--repeat", "2", "--json", "r.json")
    shown = run("bench", "create", model, *options, *wrong, cwd=tmp_path)
    assert shown.returncode == 1
    assert "2/2 failed" in shown.stdout
    assert f"failed: {model.stem}, native on cpu: " in shown.stderr
    assert [row["measured"] for row in load(tmp_path / "r.json")["rows"]] == [2, 0]


def test_run_measures_every_case_and_writes_what_was_asked_for(tmp_path: Path) -> None:
    options = ("--devices", "cpu*2", "--variants", "core+sessions=3", "--batch", "2", "--repeat", "1")
    times = ("--seconds", "0.2", "--warm-seconds", "0.05", "--rate", "0.5x,50")
    files = ("--json", "r/run.json", "--plot", "run.png", "--markdown", "run.md")
    shown = run("bench", "run", "identity", *options, *times, *files, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[6/6] identity, batch 2, core+sessions=3 on cpu x2, open, 50/s" in shown.stderr
    assert shown.stderr.count("ceiling: ") == 2
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    assert (tmp_path / "run.md").read_text().count("| open, 50/s |") == 2
    assert (tmp_path / "models/identity.onnx").is_file()
    document = load(tmp_path / "r/run.json")
    assert [facts["name"] for facts in document["models"]] == ["identity"]
    assert [(len(row["devices"]), row["load"]) for row in document["rows"]] == [
        (count, load) for count in (1, 2) for load in ("closed, 4 a session", "open, 0.5x", "open, 50/s")
    ]
    for row in document["rows"]:
        assert row["batch"] == 2
        assert row["throughput"]["median"] > 0
        assert 0 < row["p50"]["median"] <= row["p99"]["median"] <= row["p999"]["median"]
        assert row["cpu_per_request"]["median"] > 0
        assert (row["scaling"] is not None) == (len(row["devices"]) == 2 and row["kind"] == "closed")
        assert (row["ceiling"] is not None) == (row["kind"] == "closed")
        assert (row["offered"] is not None) == (row["lag"] is not None) == (row["kind"] == "open")
    closed, relative, absolute, on_two, *_ = document["measurements"]
    assert closed["stats"]["cpu"]["done"] >= closed["requests"]
    assert relative["offered"] == pytest.approx(closed["throughput"] / 2, rel=0.5)
    assert absolute["unanswered"] == 0
    assert on_two["stats"]["cpu"]["sessions"] == 6


def test_gil(model: Path, tmp_path: Path) -> None:
    shown = run("bench", "gil", model, "--repeat", "2", "--json", "g.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("matmul-1-mb on cpu: other Python threads stand still for ")
    assert re.search(r"ortmulti +\d+\.\d+\.\d+", shown.stdout)
    document = load(tmp_path / "g.json")
    assert document["kind"] == "gil"
    assert [row["library"] for row in document["rows"]] == ["onnxruntime", "ortmulti"]
    for row in document["rows"]:
        assert (row["measured"], row["errors"]) == (2, [])
        assert row["creation"]["lowest"] > 0
        assert 0 <= row["largest_share"]["median"] <= row["delay_share"]["median"] <= 1
        assert row["release"] == document["releases"]["onnxruntime"]


def test_batching_compares_settings_with_a_request_of_ones_own(tmp_path: Path) -> None:
    path, request = tmp_path / "rows.onnx", tmp_path / "request.npz"
    path.write_bytes(pools.rows())
    np.savez(request, **pools.row(0))
    options = ["--devices", "cpu", "--clients", "8", "--seconds", "0.1", "--repeat", "1", "--input", request]
    shown = run("bench", "batching", path, *options, "--json", "b.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.match(r"rows on cpu, 8 clients: (most answers by|nothing answers more than) ", shown.stdout)
    headline = shown.stdout.partition("\n")[0]
    assert ("measured once: --repeat" in headline) == ("most answers by" in headline)
    document = load(tmp_path / "b.json")
    rows = {row["case"]: row for row in document["rows"]}
    assert list(rows)[:2] == ["one at a time", "two sessions"]
    assert len(rows) == 6
    assert all(row["throughput"]["median"] > 0 and row["cpu"]["median"] > 0 for row in rows.values())
    assert 0.9 < rows["one at a time"]["requests_a_run"]["median"] < 1.1
    assert rows["batches of 64, 2 ms"]["requests_a_run"]["median"] > 1


def test_batching_says_why_a_model_cannot_be_batched(tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    path.write_bytes(onnx_models.parsed("(float[4] x) => (float[4] y) { y = Neg(x) }").SerializeToString())
    shown = run("bench", "batching", path, "--devices", "cpu", "--clients", "2", "--seconds", "0.1", "--repeat", "1")
    assert shown.returncode == 0, shown.stderr
    assert "batches of 16: not for this model: " in shown.stdout
    assert re.search(r"^batches of 16 +- ", shown.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [
        ("bench create --repeat 100000", "[3/"),
        ("bench sleep --repeat 1 --random 1000000", "[2/2]"),
        ("diagnose --quick --ways sequential,native --budget 1 --html page.html", "gil"),
        ("tune --out kept.json", "each setting alone"),
    ],
)
def test_ctrl_c_ends_all_processes_and_keeps_what_there_is(
    arguments: str, begun: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept.json").write_text("from before")
    command, options = arguments.split(" --", 1)
    devices = "cpu*2" if command == "diagnose" else "cpu"
    line = [*command.split(), str(model), "--devices", devices, "--json", "some.json", *f"--{options}".split()]
    with psutil.Popen(
        [*COMMAND, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **TERMINAL},
    ) as process:
        while begun not in process.stderr.readline():
            assert process.poll() is None
        started = process.children(recursive=True)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "partial" in printed + errors
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
    document = load(tmp_path / "some.json")
    assert document["partial"] == "interrupted"
    if command == "tune":
        assert document["best"] is None  # nothing was confirmed, so what was there stays
        assert (tmp_path / "kept.json").read_text() == "from before"
    elif command == "diagnose":
        assert {run["experiment"] for run in document["runs"]} == {"plain", "trace"}
        assert document["prediction"] is not None
        assert (tmp_path / "page.html").stat().st_size > 1000
    else:
        assert 1 <= len(document["measurements"]) < 100


# --- `ortmulti bench sleep` on the CPU, which has level "session" alone -----------------------------------------------


def test_sleeps_in_turns_and_at_random_times(tmp_path: Path) -> None:
    model, path = models.make("matmul", tmp_path, megabytes=32), tmp_path / "sleep.json"
    shown = run("bench", "sleep", model, "--devices", "cpu", "--repeat", "3", "--random", "5", "--json", path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^session +5 +5 +\d+ +0 ", shown.stdout, re.MULTILINE)
    document = load(path)
    assert (document["kind"], document["partial"], document["settings"]["kinds"]) == ("sleep", None, ["session"])
    rows = {row["kind"]: row for row in document["rows"]}
    assert list(rows) == ["shared", "awake", "session", "onnxruntime"]
    for kind, figures in {"awake": ["run"], "session": ["first_sleep", "sleep", "wake", "request", "run"]}.items():
        assert all(rows[kind][figure]["lowest"] > 0 for figure in figures)
    assert rows["onnxruntime"]["request"]["median"] > rows["onnxruntime"]["wake"]["median"]
    assert (rows["session"]["equal"], rows["onnxruntime"]["equal"]) == (True, None)
    turns, at_random = document["measurements"]
    assert (len(turns["seconds"]["session"]["wake"]), turns["different"]) == (3, {"session": 0})
    assert (at_random["slept"], at_random["woken"], at_random["different"]) == (5, 5, 0)
    assert at_random["answers"] > 0
    assert min(at_random["memory"][moment]["host"] for moment in ("settled", "end")) > 0
    assert rows["awake"]["memory"]["host"] - rows["session"]["memory"]["host"] > 24 << 20


def test_other_answers_and_a_model_that_cannot_be_loaded_are_failures_and_leave_the_others(
    model: Path, tmp_path: Path
) -> None:
    broken, noise = (tmp_path / f"{name}.onnx" for name in ("broken", "noise"))
    broken.write_bytes(onnx_models.one_node("NoSuchOperator", TensorProto.FLOAT, [4]))
    noise.write_bytes(onnx_models.one_node("RandomNormalLike", TensorProto.FLOAT, [4]))
    options = ("--devices", "cpu", "--repeat", "1", "--random", "1", "--json", "result.json")
    shown = run("bench", "sleep", broken, noise, model, *options, cwd=tmp_path)
    assert shown.returncode == 1
    assert re.search(r"failed: broken on cpu, session: .*NoSuchOperator", shown.stderr)
    assert "broken on cpu: nothing was measured." in shown.stdout
    counts = re.findall(r"failed: noise on cpu, session(?: at random times)?: (\d+) answers differ", shown.stderr)
    assert len(counts) == 2
    assert counts[0] == "3"
    assert re.search(r"^matmul-1-mb on cpu wakes in .* ms \(session\)", shown.stdout, re.MULTILINE)
    rows = load(tmp_path / "result.json")["rows"]
    equal = {row["model"]: row["equal"] for row in rows if row["kind"] == "session"}
    assert (equal["noise.onnx"], equal["matmul-1-mb.onnx"]) == (False, True)


# --- `ortmulti bench repository` on the CPU, and the simulation over the repository's own policy ----------------------


COUNT = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return onnx_models.write_matmuls(tmp_path_factory.mktemp("models"), COUNT)


def test_every_experiment_answers_within_the_budget(files: list[Path], tmp_path: Path) -> None:
    path, plot = tmp_path / "repository.json", tmp_path / "repository.png"
    budget = str(int(2.5 * files[0].stat().st_size))
    shown = run(
        "bench", "repository", *files, "--devices", "cpu", "--budget", budget, "--rate", "40", "--seconds", "1",
        "--warm-seconds", "0.2", "--json", path, "--plot", plot,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    document = load(path)
    assert (document["kind"], document["partial"], document["settings"]["fitting"]) == ("repository", None, 2)
    rows = {row["experiment"]: row for row in document["rows"]}
    assert list(rows) == ["awake", "repository", "onnxruntime", "simulated"]
    for name, row in rows.items():
        assert (row["measured"], row["different"], row["failed"], row["unanswered"]) == (1, 0, 0, 0), name
        assert 0 < row["used"] <= row["budget"]
        assert row["requests"] == rows["awake"]["requests"]
        assert 0 < row["latency"]["all"]["p50"]["median"] <= row["latency"]["all"]["max"]["median"]
    assert (rows["awake"]["misses"]["median"], rows["awake"]["wakes"]["median"]) == (0, 0)
    assert rows["repository"]["wakes"]["median"] > 0
    assert rows["simulated"]["wakes"]["median"] > 0
    assert plot.stat().st_size > 0


# --- The policy, in simulated time ------------------------------------------------------------------------------------

GB = 10**9


def test_two_hours_hold_the_budget_and_starve_no_model() -> None:
    choose = random.Random(0)
    sizes = [choose.uniform(0.2, 2.0) for _ in range(20)]
    simulated = [SimulatedModel(int(size * GB), GB // 10, 0.01, 0.004, size / 50, 0.001) for size in sizes]
    budget, hours = 12 * GB, 2
    arrivals: list[tuple[float, int]] = []
    now = 0.0
    while now < hours * 3600:
        now += choose.expovariate(4.0)
        # Few models get most requests; for some minutes each hour it is others.
        model = min(choose.randrange(20), choose.randrange(20))
        arrivals.append((now, 19 - model if now % 3600 < 600 else model))
        if choose.random() < 0.002:
            arrivals += [(now, choose.randrange(20))] * 50
    simulation = Simulation(simulated, budget)
    simulation.run(arrivals)
    assert simulation.used <= budget
    assert len(simulation.latencies) == len(arrivals)
    assert simulation.evictions > 1000
    # A request waits for the line before it: at most one wake, and what that has to wait for, of each other model.
    longest = sum(2 * model.wake + model.sleep + 50 * model.run for model in simulated)
    assert max(simulation.latencies) < longest


def test_too_many_busy_models_take_turns() -> None:
    # All of them have requests all the time, and there is room for one: each still gets its turn.
    simulated = [SimulatedModel(GB, 0, 0.01, 0.01, 0.02, 0.001) for _ in range(5)]
    arrivals = [(number * 0.0005, number % 5) for number in range(4000)]
    simulation = Simulation(simulated, GB)
    simulation.run(arrivals)
    assert simulation.used <= GB
    of_model = [
        max(one for one, (_, model) in zip(simulation.latencies, arrivals, strict=True) if model == number)
        for number in range(5)
    ]
    assert max(of_model) < 1.5 * min(of_model)


def test_a_simulation_without_room_is_an_error() -> None:
    simulated = [SimulatedModel(GB, GB, 0.01, 0.01, 0.02, level="session") for _ in range(2)]
    with pytest.raises(Error):
        Simulation(simulated, GB).run([(0.0, 0), (0.1, 1)])
