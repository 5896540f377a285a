"""The scripts of the reports' experiments on GPUs: every case works there; what they measure is no matter here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contention, gil_detection, init_options, shared_memory_io

pytestmark = pytest.mark.gpu

Main = Callable[[Sequence[str]], int]


def run(main: Main, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "result.json"
    assert main(["--quick", "--models", str(tmp_path), "--json", str(path), *arguments]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_options_of_cudnn_are_measured(tmp_path: Path) -> None:
    document = run(init_options.main, tmp_path, "--devices", "0")
    assert "not measured" not in {verdict["outcome"] for verdict in document["verdicts"]}
    assert {one["case"].partition(": ")[2] for one in document["measurements"]} == {*init_options.OPTIONS, "ortmulti"}


def test_batches_reach_every_gpu_by_every_way(tmp_path: Path) -> None:
    document = run(shared_memory_io.main, tmp_path)
    assert len(document["measurements"]) == 4


def test_the_gil(tmp_path: Path) -> None:
    assert len(run(gil_detection.main, tmp_path, "--devices", "0")["measurements"]) == 4


def test_contention_is_judged_from_two_gpus_on(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    # The status is of limits, for which these measurements are too short.
    contention.main(["--quick", "--models", str(tmp_path), "--json", str(path), "--variants", "core,threads"])
    document = json.loads(path.read_text())
    gpus = len({device for row in document["rows"] for device in row["devices"]})
    judged = {one["claim"].rpartition(", ")[2] for one in document["verdicts"] if one["outcome"] != "not measured"}
    assert judged == ({"core", "threads"} if gpus > 1 else set())
