"""`tune` with real models and processes: what it finds, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import ortmulti
from ortmulti import Tuning
from ortmulti.bench import models
from ortmulti.bench.measure.memory import process_tree
from ortmulti.bench.tune import candidate
from ortmulti.bench.tune.measurements import Bench, candidate_process
from ortmulti.bench.tune.space import DEFAULTS, RejectedError
from ortmulti.cli.output import say
from ortmulti.cli.tune import _lines
from ortmulti.errors import Fail, InvalidArgument, InvalidType, NoSuchFile
from tests.support import onnx_models
from tests.support.command import invoke


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("tiny-kernels", tmp_path_factory.mktemp("models"))


Started = Callable[[], list[int]]


@pytest.fixture
def started() -> Started:
    """Tells which processes were started since and live; other tests leave some, such as multiprocessing's tracker."""
    before = set(process_tree(os.getpid()))
    return lambda: [process for process in process_tree(os.getpid()) if process not in before]


def bench(model: Path, folder: Path) -> Bench:
    measured = {"objective": "latency", "through": "pool", "clients": 2, "block_seconds": 0.01}
    return Bench({"model": str(model), "devices": ["cpu"], **measured}, folder)


# --- What is found ----------------------------------------------------------------------------------------------------


def test_memory_that_an_arena_keeps_is_found(tmp_path: Path) -> None:
    path, out, stages = tmp_path / "inflated.onnx", tmp_path / "inflated.tuning.json", set()
    # Needs 32 MB for a moment, and the arena keeps them.
    shape = numpy_helper.from_array(np.array([32, 1 << 18], np.int64), "shape")
    text = "(float[1] x) => (float[32, 1] y) { large = Expand(x, shape) y = ReduceMax <axes = [1]> (large) }"
    path.write_bytes(onnx_models.parsed(text, shape).SerializeToString())
    arena = {"enable_cpu_mem_arena": False}
    result = ortmulti.tune(
        path, "memory", devices="cpu", only=[*arena], budget=30, out=out, progress=lambda stage, _: stages.add(stage)
    )
    assert result.tuning.settings == result.document["best"]["settings"] == arena
    assert result.tuning.gain["low"] > 1.5
    best = result.document["best"]
    assert best["defaults"] / best["cost"] == pytest.approx(best["gain"]["median"], rel=0.1)
    assert (result.document["kind"], result.document["partial"], result.document["unit"]) == ("tune", None, "bytes")
    assert {"the defaults", "each setting alone", "confirmation"} <= stages
    assert Tuning.read(out) == result.tuning
    with ortmulti.load(path, "cpu", loading=ortmulti.Loading(tuning=out)) as pool:
        np.testing.assert_array_equal(pool.run(None, {"x": np.ones(1, np.float32)})[0], np.ones((32, 1), np.float32))


@pytest.mark.parametrize("objective", ["latency", "throughput", "creation"])
def test_every_objective_is_measured(tiny: Path, objective: Any, tmp_path: Path) -> None:
    """With a file of inputs that is read once: another one in its place has no effect."""
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **models.sample_inputs(tiny, batch=3))
    found = {"only": ["enable_mem_pattern"], "budget": 60, "clients": 2, "inputs": inputs}
    result = ortmulti.tune(tiny, objective, devices="cpu", progress=lambda *_: inputs.write_bytes(b""), **found)
    assert result.tuning.objective == result.document["settings"]["objective"] == objective
    assert result.document["defaults"] > 0
    assert result.document["trials"]
    assert result.document["rejected"] == []


# --- What leaves ------------------------------------------------------------------------------------------------------


def test_what_changes_the_outputs_is_named_and_refused(tiny: Path) -> None:
    result = ortmulti.tune(tiny, "memory", devices="cpu", only=["disable_prepacking"], tolerance=1e-9, budget=20)
    [rejected] = result.document["rejected"]
    assert (rejected["settings"], rejected["why"]) == ({"disable_prepacking": True}, "outputs")
    assert "output 0 (float32) differs by" in rejected["text"]
    assert "1e-09 is allowed" in rejected["text"]
    assert (result.tuning.settings, result.tuning.gain, result.document["best"]) == ({}, {}, None)


def test_outputs_that_change_anyway_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "noise.onnx"
    path.write_bytes(onnx_models.parsed("() => (float[4] y) { y = RandomNormal <shape = [4]> () }").SerializeToString())
    noise = bench(path, tmp_path)
    assert not noise.repeats.allowed
    with noise.candidate((("enable_mem_pattern", False),)) as measure:
        assert measure() > 0


@pytest.mark.parametrize(
    ("does", "why", "text"),
    [
        ("import signal; signal.pause()", "hung", "did not answer within 0.5 seconds"),
        ("import os; os.abort()", "crashed", "signal 6"),
    ],
)
def test_a_candidate_that_hangs_or_crashes_is_ended_and_named(
    does: str, why: str, text: str, tmp_path: Path, started: Started
) -> None:
    (tmp_path / "sitecustomize.py").write_text(does)
    start = candidate_process({"options": {"any": 1}}, {"PYTHONPATH": str(tmp_path)}, 0.5, tmp_path / "log")
    with pytest.raises(RejectedError, match=text) as raised, start:
        pass
    assert started() == []
    assert raised.value.why == why


def test_a_candidate_that_fails_or_dies_leaves_the_others(tiny: Path, tmp_path: Path, started: Started) -> None:
    tried = bench(tiny, tmp_path)
    fails = (("thread_affinity", "node:4000"), ("intra_op_num_threads", 2))
    with tried.candidate(DEFAULTS) as defaults:
        [reference] = started()
        # The error is the candidate's, not that of the defaults beside it.
        with pytest.raises(RejectedError, match="no NUMA node 4000") as raised, tried.candidate(fails):
            pass
        assert raised.value.why == "failed"
        with tried.candidate((("enable_mem_pattern", False),)) as measure:
            assert measure() > 0
            [child] = set(started()) - {reference}
            os.kill(child, signal.SIGKILL)
            with pytest.raises(RejectedError, match="signal 9"):
                measure()
        assert defaults() > 0
        os.kill(reference, signal.SIGKILL)
        with pytest.raises(Fail, match=r"cannot be run with the defaults: .*signal 9"):
            defaults()
    assert started() == []


# --- What is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["pool", "session"])
def test_a_candidate_gives_the_model_s_outputs(tiny: Path, tmp_path: Path, through: str) -> None:
    feed = models.sample_inputs(tiny, batch=2)
    np.savez(tmp_path / "feeds.npz", **feed)
    spec = {"model": str(tiny), "devices": ["cpu"], "options": {}, "through": through, "measure": "latency",
            "feeds": str(tmp_path / "feeds.npz")}  # fmt: skip
    with candidate.prepared(spec) as run, onnx_models.cpu_session(tiny) as session:
        [found] = candidate.warm_up(spec, run)
        np.testing.assert_array_equal(found, session.run(None, feed)[0])
        assert candidate.latency(run, 0.01) > 0
        if through == "pool":
            assert candidate.throughput(run, 0.01, clients=2) > 0


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"objective": "speed"}, InvalidArgument, "'latency' or 'throughput' or 'creation' or 'memory', not 'speed'"),
        ({"through": "tunnel"}, InvalidArgument, "'pool' or 'session'"),
        ({"objective": "throughput", "through": "session"}, InvalidArgument, "throughput is that of a pool"),
        ({"budget": 0}, InvalidArgument, "budget is a number of seconds above 0"),
        ({"clients": 0}, InvalidArgument, "clients is 1 or more"),
        ({"only": ["use_tf32"]}, InvalidArgument, "no setting 'use_tf32' to tune here"),
        ({"out": "/nowhere/at/all.json"}, InvalidArgument, "cannot be written: No such file"),
        ({"out": "/"}, InvalidArgument, "is a folder"),
        ({"inputs": __file__}, InvalidArgument, r"is no \.npz file.*not a zip file"),
        ({"inputs": 7}, InvalidType, "path of an .npz file"),
        ({"model": "/nowhere.onnx"}, NoSuchFile, "no model file"),
        ({"model": b"bytes"}, InvalidType, "needs the path of a model"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_measured(
    tiny: Path, arguments: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortmulti.bench.tune.measurements.ChildProcess", None)  # no process is started
    with pytest.raises(error, match=message):
        ortmulti.tune(**{"model": tiny, "devices": "cpu", **arguments})


def test_a_model_that_cannot_run_is_an_error(tiny: Path) -> None:
    with pytest.raises(Fail, match=r"tiny-kernels\.onnx cannot be run with the defaults: .*unknown"):
        ortmulti.tune(tiny, devices="cpu", inputs={"unknown": np.zeros(3)})


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes_what_it_found(tiny: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "found.json", tmp_path / "all.json"
    shown = invoke(
        "tune", tiny, "--device", "cpu", "--only", "enable_mem_pattern", "--budget", "60", "--out", out,
        "--json", results,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    found, document = Tuning.read(out), json.loads(results.read_text())
    if found.settings:
        assert "times as good as the defaults" in shown.stdout
        assert "held up when measured again" in shown.stdout
        assert document["best"]["settings"] == found.settings
    else:
        assert "nothing better than the defaults for latency" in shown.stdout
        assert document["best"] is None
    assert "enable_mem_pattern=true" in shown.stdout
    assert "each setting alone" in shown.stderr
    assert f"written to {out}" in shown.stdout


def test_a_gain_has_the_times_of_its_pairs_and_a_confirmation_that_ended_early_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    setting = {"enable_mem_pattern": False}
    first, again = ({"median": middle, "low": 0.5, "high": 0.9, "confidence": 0.95} for middle in (0.7, 0.8))
    trial = {"settings": setting, "ratio": first, "samples": 16, "outputs": 0.0}
    best = {"settings": setting, "defaults": 0.002, "cost": 0.0014, "gain": first, "outputs": 0.0}
    document = {
        "settings": {"objective": "latency"}, "partial": "budget", "defaults": 0.007, "best": best, "trials": [trial],
        "confirmation": {"settings": setting, "ratio": again, "pairs": 5, "held_up": None}, "rejected": [],
        "outputs_repeat": {"compared": True},
    }  # fmt: skip
    say(*_lines(document))
    shown = capsys.readouterr().out
    assert "2 ms -> 1.4 ms" in shown
    assert "measured again in 5 pairs only: 0.800 (0.500 to 0.900)" in shown
