"""Every millisecond of a process has a cause, and a delay that was planted is found under the right one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from ortmulti.bench import models
from ortmulti.bench.diagnose.causes import CAUSES
from ortmulti.bench.diagnose.report.view import LEAST_EXPLAINED
from ortmulti.bench.diagnose.trace import trace
from ortmulti.bench.strategies import SessionSettings, names
from ortmulti.errors import InvalidArgument, NoSuchFile
from tests.support import custom_ops, fake_driver, onnx_models
from tests.support.compiling import compile_library
from tests.support.diagnosis import at_start

ONE_THREAD = SessionSettings(intra_op_num_threads=1)
DELAY = 0.8
"""Seconds that a planted delay lasts at least; a loaded machine makes any delay longer."""
SAMPLED = DELAY / 2
"""What sampling has to find of it: a loaded machine also samples late."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights in a file of their own."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=16)


@pytest.fixture(scope="module")
def slow_reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    library = compile_library("slow_reader.c", tmp_path_factory.mktemp("reader") / "libslow_reader.so")
    return {"LD_PRELOAD": str(library), "SLOW_READER_MS": str(int(DELAY * 1000))}


@pytest.fixture(scope="module")
def slow_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of cuInit and contexts with a delay each."""
    driver = fake_driver.build(tmp_path_factory.mktemp("driver"))
    return {**driver.environment, "INIT_MS": str(int(DELAY * 1000)), "CONTEXT_MS": "500"}


def _check(run: dict[str, Any]) -> None:
    """What holds of every run that was watched."""
    assert sum(run["causes"].values()) == pytest.approx(run["wall"])
    assert set(run["causes"]) <= set(CAUSES)
    for span in run["spans"]:
        assert span["cause"] in CAUSES
        assert 0 <= span["start"] < span["end"] <= run["wall"] + 60
        assert span["cpu"] is None or span["cpu"] >= 0
    by_thread: dict[int, float] = {}
    for span in run["spans"]:
        assert span["start"] >= by_thread.get(span["thread"], 0) - 1e-9  # one cause at a time
        by_thread[span["thread"]] = span["end"]


@pytest.mark.parametrize("way", names())
def test_every_way_is_traced(model: Path, way: str) -> None:
    run = trace(model, way, ["cpu", "cpu"], settings=ONE_THREAD)
    assert "error" not in run, run
    _check(run)
    assert run["explained"] == pytest.approx(1 - run["causes"].get("unexplained", 0) / run["wall"])
    assert run["explained"] >= LEAST_EXPLAINED
    assert len(run["first_answers"]) == 2
    assert 0 < run["ready"] < max(run["first_answers"]) <= run["wall"]
    assert {span["session"] for span in run["spans"]} >= set(range(1 if way == "shared" else 2))
    assert ("processes" in run["causes"]) == (way == "processes")


def test_a_plain_run_is_not_watched(model: Path) -> None:
    run = trace(model, "sequential", ["cpu"], settings=ONE_THREAD, instrumented=False)
    assert "error" not in run
    assert 0 < run["ready"] < run["wall"]
    assert {span["session"] for span in run["spans"]} == {None}
    assert run["onnxruntime"] is None  # nobody looked
    assert run["first_answers"] == []


def test_a_slow_start_of_the_interpreter(model: Path, tmp_path: Path) -> None:
    slow = at_start(tmp_path, f"import time\ntime.sleep({DELAY})\n")
    run = trace(model, "sequential", ["cpu"], settings=ONE_THREAD, environment=slow)
    assert run["causes"]["interpreter"] >= DELAY


@pytest.mark.parametrize("way", ["sequential", "shared"])
@pytest.mark.parametrize(("ending", "cause"), [(".onnx", "read model"), (".data", "read weights")])
def test_a_slow_reader(model: Path, slow_reader: dict[str, str], way: str, ending: str, cause: str) -> None:
    environment = {**slow_reader, "SLOW_READER_FILE": ending}
    run = trace(model, way, ["cpu"], settings=ONE_THREAD, environment=environment)
    assert run["causes"][cause] >= SAMPLED


def test_what_came_before_a_failure_is_kept(model: Path, slow_driver: dict[str, str]) -> None:
    """Without a CUDA provider, but with a driver: the failure comes after the context."""
    run = trace(model, "sequential", ["cpu", "cuda:2"], settings=ONE_THREAD, environment=slow_driver)
    if "error" not in run or "could not use the CUDA provider" not in run["error"]:
        pytest.skip("onnxruntime-gpu reacts differently to a driver that is none")
    _check(run)
    assert run["error"].startswith("cuda:2: ")
    assert "ready" not in run
    assert run["first_answers"] == []
    assert run["causes"]["cuInit"] >= DELAY
    [context] = [span for span in run["spans"] if span["cause"] == "context"]
    assert (context["device"], context["session"]) == ("cuda:2", 1)


@pytest.fixture(scope="module")
def sleeping_operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sleeps when it is created and when it first runs."""
    milliseconds = int(DELAY * 1000)
    folder = tmp_path_factory.mktemp("operator")
    return custom_ops.build_library(folder, CREATION_MS=milliseconds, FIRST_RUN_MS=milliseconds)


@pytest.mark.parametrize("way", ["sequential", "native"])
def test_a_custom_operator_that_sleeps(way: str, sleeping_operator: Path, tmp_path: Path) -> None:
    path = tmp_path / "scaled.onnx"
    path.write_bytes(custom_ops.scaled())
    settings = SessionSettings(intra_op_num_threads=1, custom_op_libraries=[str(sleeping_operator)])
    run = trace(path, way, ["cpu"], settings=settings, feeds={"x": np.ones(3, np.float32)})
    _check(run)
    for cause in ("wait", "first use"):
        assert run["causes"][cause] >= SAMPLED
        longest = max((span for span in run["spans"] if span["cause"] == cause), key=lambda s: s["end"] - s["start"])
        assert longest["cpu"] < SAMPLED  # it slept
        assert "make kernels" in longest["name"] or cause != "wait"


def test_a_process_that_dies_leaves_what_it_did(model: Path, tmp_path: Path) -> None:
    code = """
import os, sys, threading, time
def die():
    while "onnxruntime" not in sys.modules:
        time.sleep(0.01)
    os.abort()
threading.Thread(target=die, daemon=True).start()
"""
    run = trace(model, "sequential", ["cpu"], settings=ONE_THREAD, environment=at_start(tmp_path, code))
    assert "signal 6" in run["error"]
    _check(run)
    assert run["causes"]["imports"] > 0
    assert math.isfinite(run["wall"])


def test_a_process_that_takes_too_long_leaves_what_it_did(model: Path, slow_reader: dict[str, str]) -> None:
    environment = {**slow_reader, "SLOW_READER_FILE": ".onnx", "SLOW_READER_MS": "60000"}
    run = trace(model, "processes", ["cpu", "cpu"], settings=ONE_THREAD, environment=environment, timeout=6)
    assert run["error"] == "took longer than 6 seconds and was ended"
    _check(run)
    assert run["wall"] > 0
    assert run["causes"]["read model"] > 0
    assert {span["session"] for span in run["spans"] if span["cause"] == "read model"} == {0, 1}


def test_bad_input_is_refused(model: Path, tmp_path: Path) -> None:
    hot: Any = "hot"
    with pytest.raises(InvalidArgument, match="unknown strategy 'fast'"):
        trace(model, "fast", ["cpu"])
    with pytest.raises(InvalidArgument, match="'hot'"):
        trace(model, "native", ["cpu"], cache=hot)
    with pytest.raises(InvalidArgument, match="some device"):
        trace(model, "native", [])
    with pytest.raises(NoSuchFile, match=r"absent\.onnx"):
        trace(tmp_path / "absent.onnx", "native", ["cpu"])
    run = trace(model, "native", ["gpu7"])
    assert "'gpu7' is not a device" in run["error"]


def test_inputs_come_from_a_file(tmp_path: Path) -> None:
    """Strings, too."""
    path = tmp_path / "strings.onnx"
    path.write_bytes(onnx_models.identity(TensorProto.STRING, [2]))
    np.savez(tmp_path / "inputs.npz", x=np.array(["a", "b"]))
    for feeds in (tmp_path / "inputs.npz", {"x": np.array(["a", "b"], object)}):
        run = trace(path, "native", ["cpu"], settings=ONE_THREAD, feeds=feeds)
        assert "error" not in run
        assert len(run["first_answers"]) == 1
