"""`ortmulti bench sleep` on the CPU, which has level "session" alone; tests/gpu/test_gpu_sleep.py has the others."""

from __future__ import annotations

import re
from pathlib import Path

from onnx import TensorProto

from ortmulti.bench import models
from ortmulti.bench.measure import results
from tests.support import onnx_models
from tests.support.command import run


def test_sleeps_in_turns_and_at_random_times(tmp_path: Path) -> None:
    model, path = models.make("matmul", tmp_path, megabytes=32), tmp_path / "sleep.json"
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
    rows = results.load(tmp_path / "result.json")["rows"]
    equal = {row["model"]: row["equal"] for row in rows if row["kind"] == "session"}
    assert (equal["noise.onnx"], equal["matmul-1-mb.onnx"]) == (False, True)
