"""`ortmulti bench sleep` on the CPU, which has level "session" alone; tests/gpu/test_gpu_sleep.py has the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto

from ortmulti.bench import models
from ortmulti.bench.measure import results
from tests.support import onnx_models
from tests.support.command import run


def test_sleeps_in_turns_and_at_random_times(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "sleep.json"
    shown = run("bench", "sleep", model, "--devices", "cpu", "--repeat", "3", "--random", "5", "--json", path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^session +5 +5 +\d+ +0 ", shown.stdout, re.MULTILINE)
    document = results.load(path)
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


def test_a_sleeping_pool_keeps_less_than_one_that_is_awake(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=64)
    path = tmp_path / "sleep.json"
    assert run("bench", "sleep", model, "--devices", "cpu", "--repeat", "1", "--json", path).returncode == 0
    host = {row["kind"]: row["memory"]["host"] for row in results.load(path)["rows"] if row["memory"]}
    assert host["awake"] - host["session"] > 48 << 20


def test_answers_that_differ_are_a_failure(tmp_path: Path) -> None:
    model = tmp_path / "noise.onnx"
    model.write_bytes(onnx_models.one_node("RandomNormalLike", TensorProto.FLOAT, [4]))
    shown = run("bench", "sleep", model, "--devices", "cpu", "--repeat", "1", "--random", "1", "--json", "-")
    assert shown.returncode == 1
    counts = re.findall(r"failed: noise on cpu, session(?: at random times)?: (\d+) answers differ", shown.stderr)
    assert len(counts) == 2
    assert counts[0] == "3"
    assert '"equal": false' in shown.stdout


def test_a_model_that_cannot_be_loaded_leaves_the_others(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(onnx_models.one_node("NoSuchOperator", TensorProto.FLOAT, [4]))
    shown = run("bench", "sleep", broken, model, "--devices", "cpu", "--repeat", "1")
    assert shown.returncode == 1
    assert re.search(r"failed: broken on cpu, session: .*NoSuchOperator", shown.stderr)
    assert "broken on cpu: nothing was measured." in shown.stdout
    assert re.search(r"^matmul-1-mb on cpu wakes in .* ms \(session\)", shown.stdout, re.MULTILINE)
