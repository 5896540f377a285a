"""`tune` with real models and processes: what it finds, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Tuning
from ortmulti.bench import models
from ortmulti.bench.measure.memory import process_tree
from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.candidate import Target
from ortmulti.bench.tune.measurements import Bench, CandidateProcess, Job
from ortmulti.bench.tune.space import DEFAULTS, RejectedError
from ortmulti.errors import Fail, InvalidArgument, InvalidType, NoSuchFile
from tests.support import onnx_models
from tests.support.processes import check_child, child_environment, run_child


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Path:
    return models.make("tiny-kernels", folder)


@pytest.fixture(scope="module")
def inflated(folder: Path) -> Path:
    """Needs 32 MB for a moment, and the arena keeps them."""
    shape = numpy_helper.from_array(np.array([32, 1 << 18], np.int64), "shape")
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["large"]),
        helper.make_node("ReduceMax", ["large"], ["y"], axes=[1]),
    ]
    path = folder / "inflated.onnx"
    inputs, outputs = [("x", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, None)]
    path.write_bytes(onnx_models.model(nodes, inputs, outputs, [shape], opset=13).SerializeToString())
    return path


Started = Callable[[], list[int]]


@pytest.fixture
def started() -> Started:
    """Tells which processes were started since and live; other tests leave some, such as multiprocessing's tracker."""
    before = set(process_tree(os.getpid()))
    return lambda: [process for process in process_tree(os.getpid()) if process not in before]


def job(model: Path, **changes: Any) -> Job:
    given = {"objective": "latency", "through": "pool", "clients": 2, "block_seconds": 0.01, **changes}
    return Job(str(model), ("cpu",), **given)


# --- What is found ----------------------------------------------------------------------------------------------------


def test_memory_that_an_arena_keeps_is_found(inflated: Path, tmp_path: Path) -> None:
    out = tmp_path / "inflated.tuning.json"
    stages = []
    result = ortmulti.tune(
        inflated,
        "memory",
        devices="cpu",
        only=["enable_cpu_mem_arena"],
        budget=90,
        out=out,
        progress=lambda stage, _: stages.append(stage),
    )
    assert result.tuning.settings == {"enable_cpu_mem_arena": False}
    assert result.tuning.gain["low"] > 1.5
    assert Tuning.read(out) == result.tuning
    assert {"the defaults", "each setting alone", "confirmation"} <= set(stages)
    document = result.document
    assert (document["kind"], document["partial"], document["unit"]) == ("tune", None, "bytes")
    assert document["best"]["settings"] == {"enable_cpu_mem_arena": False}
    assert document["defaults"] > 1.5 * document["best"]["cost"]
    with ortmulti.load(inflated, "cpu", tuning=out) as pool:
        np.testing.assert_array_equal(pool.run(None, {"x": np.ones(1, np.float32)})[0], np.ones((32, 1), np.float32))


def test_nothing_is_better_where_nothing_is(tmp_path: Path) -> None:
    """One product of matrices: there is nothing to optimize. An interval of 95% may say otherwise by chance, once in 64
    times where much else runs, and hardly twice in a row."""
    side = 400
    weight = numpy_helper.from_array(np.ones((side, side), np.float32), "w")
    node, shape = helper.make_node("MatMul", ["x", "w"], ["y"]), [side, side]
    model = onnx_models.model([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], [weight])
    path = tmp_path / "product.onnx"
    path.write_bytes(model.SerializeToString())
    result = ortmulti.tune(path, devices="cpu", only=["graph_optimization_level"], budget=60)
    if result.tuning.settings:
        result = ortmulti.tune(path, devices="cpu", only=["graph_optimization_level"], budget=60)
    assert result.tuning.settings == {}
    assert result.tuning.gain == {}
    assert result.document["best"] is None


@pytest.mark.parametrize("objective", ["latency", "throughput", "creation"])
def test_every_objective_is_measured(tiny: Path, objective: Any) -> None:
    inputs = models.sample_inputs(tiny, batch=3)
    result = ortmulti.tune(
        tiny, objective, devices="cpu", only=["enable_mem_pattern"], budget=60, block_seconds=0.02, inputs=inputs
    )
    document = result.document
    assert document["settings"]["objective"] == objective
    assert document["defaults"] > 0
    assert document["trials"]
    assert document["rejected"] == []
    assert result.tuning.objective == objective


# --- What leaves ------------------------------------------------------------------------------------------------------


def test_what_changes_the_outputs_is_named_and_refused(tiny: Path) -> None:
    result = ortmulti.tune(tiny, "memory", devices="cpu", only=["disable_prepacking"], tolerance=1e-9, budget=20)
    [rejected] = result.document["rejected"]
    assert rejected["settings"] == {"disable_prepacking": True}
    assert rejected["why"] == "outputs"
    assert "output 0 (float32) differs by" in rejected["text"]
    assert "1e-09 is allowed" in rejected["text"]
    assert result.tuning.settings == {}


def test_outputs_that_change_anyway_are_not_compared(tmp_path: Path) -> None:
    noise = helper.make_node("RandomNormal", [], ["y"], shape=[4])
    path = tmp_path / "noise.onnx"
    path.write_bytes(onnx_models.model([noise], [], [("y", TensorProto.FLOAT, [4])]).SerializeToString())
    bench = Bench(job(path), tmp_path, None)
    assert not bench.repeats.allowed
    with bench.candidate((("enable_mem_pattern", False),)) as measure:
        assert measure() > 0


def candidate_that(does: str, folder: Path, started: Started) -> RejectedError:
    """What a candidate is rejected for whose process runs this code first; it is ended."""
    (folder / "sitecustomize.py").write_text(does)
    with pytest.raises(RejectedError) as raised:
        CandidateProcess({}, {"PYTHONPATH": str(folder)}, 0.5, folder / "log")
    assert started() == []
    return raised.value


def test_a_candidate_that_hangs_or_crashes_is_ended_and_named(tmp_path: Path, started: Started) -> None:
    error = candidate_that("import signal; signal.pause()", tmp_path, started)
    assert (error.why, str(error)) == ("hung", "did not answer within 0.5 seconds")
    error = candidate_that("import os; os.abort()", tmp_path, started)
    assert error.why == "crashed"
    assert "signal 6" in str(error)


def test_a_candidate_that_fails_or_dies_leaves_the_others(tiny: Path, tmp_path: Path, started: Started) -> None:
    bench = Bench(job(tiny), tmp_path, None)
    fails = (("thread_affinity", "node:4000"), ("intra_op_num_threads", 2))
    # The error is the candidate's, not that of the defaults beside it.
    with (
        pytest.raises(RejectedError, match="no NUMA node 4000") as raised,
        bench.candidate(DEFAULTS),
        bench.candidate(fails),
    ):
        pass
    assert raised.value.why == "failed"
    with bench.candidate(DEFAULTS) as defaults:
        [reference] = started()
        with bench.candidate((("enable_mem_pattern", False),)) as measure:
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
    spec = {"model": str(tiny), "devices": ["cpu"], "options": {}, "through": through,
            "feeds": str(tmp_path / "feeds.npz")}  # fmt: skip
    with Target(spec) as target, ortmulti.InferenceSession(tiny, providers=["CPUExecutionProvider"]) as session:
        [found] = outputs.flatten(target.warm_up())
        np.testing.assert_array_equal(found, session.run(None, feed)[0])
        assert target.latency(0.01) > 0
        if through == "pool":
            assert target.throughput(0.01, clients=2) > 0


def test_importing_the_package_imports_nothing_of_it() -> None:
    check_child("import sys, ortmulti; assert not any(name.startswith('ortmulti.bench.tune') for name in sys.modules)")
    # The function, whatever was imported before it.
    check_child("import ortmulti.bench.tune.tuner, ortmulti; assert callable(ortmulti.tune)")


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"objective": "speed"}, InvalidArgument, "'latency' or 'throughput' or 'creation' or 'memory', not 'speed'"),
        ({"through": "tunnel"}, InvalidArgument, "'pool' or 'session'"),
        ({"objective": "throughput", "through": "session"}, InvalidArgument, "throughput is that of a pool"),
        ({"budget": 0}, InvalidArgument, "budget is a number of seconds above 0"),
        ({"tolerance": -1}, InvalidArgument, "tolerance is 0 or more"),
        ({"minimum_gain": 1}, InvalidArgument, "minimum_gain"),
        ({"clients": 0}, InvalidArgument, "clients is 1 or more"),
        ({"only": ["use_tf32"]}, InvalidArgument, "no setting 'use_tf32' to tune here"),
        ({"out": "/nowhere/at/all.json"}, InvalidArgument, "cannot be written: No such file"),
        ({"out": "/"}, InvalidArgument, "is a folder"),
        ({"inputs": "/nowhere.npz"}, NoSuchFile, "cannot be read"),
        ({"inputs": 7}, InvalidType, "path of an .npz file"),
        ({"model": "/nowhere.onnx"}, NoSuchFile, "no model file"),
        ({"model": b"bytes"}, InvalidType, "needs the path of a model"),
        ({"devices": "tpu"}, InvalidArgument, "tpu"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_measured(
    tiny: Path, arguments: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortmulti.bench.tune.measurements.ChildProcess", None)  # no process is started
    with pytest.raises(error, match=message):
        ortmulti.tune(**{"model": tiny, "devices": "cpu", **arguments})


def test_inputs_that_are_no_archive_are_an_error(tiny: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InvalidArgument, match=r"is no \.npz file.*not a zip file"):
        ortmulti.tune(tiny, devices="cpu", inputs=tmp_path / "one.npy")


class _Unpickled:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_the_file_of_inputs_is_read_once(tiny: Path, tmp_path: Path) -> None:
    """Another file in its place has no effect, and its Python objects are not loaded."""
    path, mark = tmp_path / "inputs.npz", tmp_path / "unpickled"
    feed = models.sample_inputs(tiny)
    np.savez(path, **feed)

    def replace(*_: str) -> None:
        np.savez(path, **dict.fromkeys(feed, np.array([_Unpickled(mark)], object)))

    result = ortmulti.tune(
        tiny, devices="cpu", inputs=path, only=["enable_mem_pattern"], budget=60, block_seconds=0.01, progress=replace
    )
    assert not mark.exists()
    assert result.document["rejected"] == []
    assert len(result.document["trials"]) == 1


def test_a_model_that_cannot_run_is_an_error(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(Fail, match=r"tiny-kernels\.onnx cannot be run with the defaults: .*unknown"):
        ortmulti.tune(tiny, devices="cpu", inputs={"unknown": np.zeros(3)})
    broken = onnx.load(tiny)
    broken.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    with pytest.raises(Fail, match=r"broken\.onnx cannot be run with the defaults: .*NoSuchOperator"):
        ortmulti.tune(tmp_path / "broken.onnx", devices="cpu")


# --- The command ------------------------------------------------------------------------------------------------------

_COMMAND = "import sys; from ortmulti.cli import main; sys.argv[0] = 'ortmulti'; main()"


def test_the_command_prints_and_writes_what_it_found(tiny: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "found.json", tmp_path / "all.json"
    child = run_child(
        _COMMAND, "tune", tiny, "--device", "cpu", "--only", "enable_mem_pattern", "--budget", "40",
        "--out", out, "--json", results, timeout=60,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found, document = Tuning.read(out), json.loads(results.read_text())
    if found.settings:
        assert "times as good as the defaults" in child.stdout
        assert "held up when measured again" in child.stdout
        assert document["best"]["settings"] == found.settings
    else:
        assert "nothing better than the defaults for latency" in child.stdout
        assert document["best"] is None
    assert "enable_mem_pattern=false" in child.stdout
    assert "each setting alone" in child.stderr
    assert f"written to {out}" in child.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing_known"], "no setting 'nothing_known'"),
        (["--out", "/nowhere/x.json"], "cannot be written"),
        (["--json", "/nowhere/x.json"], "cannot be written"),
        (["--out", "/tmp/same.json", "--json", "/tmp/same.json"], "the same file"),
        (["--for", "speed"], "not 'speed'"),
    ],
)
def test_the_command_s_errors(tiny: Path, arguments: list[str], message: str) -> None:
    child = run_child(_COMMAND, "tune", tiny, "--device", "cpu", *arguments)
    assert child.returncode == 1
    assert message in child.stderr
    assert "Traceback" not in child.stderr


def test_ctrl_c_gives_what_is_confirmed_by_then(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "partial.json"
    out.write_text("from before")
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "tune", tiny, "--device", "cpu", "--out", out, "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("each setting alone"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    document = json.loads(printed)
    assert document["partial"] == "interrupted"
    assert document["best"] is None
    # Nothing was confirmed, so what was there stays.
    assert out.read_text() == "from before"
    assert "Traceback" not in errors
