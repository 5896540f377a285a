"""`ortmulti bench repository` on the CPU, and the simulation over the repository's own policy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ortmulti.bench.measure import results
from ortmulti.bench.measure.repository import read_trace
from ortmulti.bench.measure.simulated_repository import SimulatedModel, Simulation
from ortmulti.errors import InvalidArgument
from tests.support import onnx_models
from tests.support.command import run

COUNT = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / f"m{seed}.onnx" for seed in range(COUNT)]
    for seed, path in enumerate(paths):
        path.write_bytes(onnx_models.matmul(seed=seed))
    return paths


def test_every_experiment_answers_within_the_budget(files: list[Path], tmp_path: Path) -> None:
    path, plot = tmp_path / "repository.json", tmp_path / "repository.png"
    budget = str(int(2.5 * files[0].stat().st_size))
    shown = run(
        "bench", "repository", *files, "--devices", "cpu", "--budget", budget, "--rate", "40", "--seconds", "1",
        "--warm-seconds", "0.2", "--json", path, "--plot", plot,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    document = results.load(path)
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


def test_a_trace_of_a_file_is_replayed(files: list[Path], tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.csv", tmp_path / "repository.json"
    trace.write_text("seconds,model\n0.05,m0\n0.1,m1\n0.15,3\n0.2,m0\n", "utf-8")
    assert read_trace(trace, ["m0", "m1", "m2", "m3"]) == [(0.05, 0), (0.1, 1), (0.15, 2), (0.2, 0)]
    options = ("--devices", "cpu", "--budget", "1MB", "--trace", trace, "--json", path)
    assert run("bench", "repository", *files, *options).returncode == 0
    assert {row["requests"] for row in results.load(path)["rows"]} == {4}


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("0,m9", "line 2: unknown model 'm9', expected one of m0, m1, m2, m3"),
        ("soon,m1", "line 2: 'soon' is not a time"),
        ("", "has no arrivals"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(lines: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"seconds,model\n{lines}", "utf-8")
    with pytest.raises(InvalidArgument, match=text):
        read_trace(path, ["m0", "m1", "m2", "m3"])


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
