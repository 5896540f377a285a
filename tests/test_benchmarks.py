"""The benchmarks run and report; what they measure is no matter here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu_sharing, create_close_cycles, run_overhead


def test_run_overhead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "overhead.json"
    assert run_overhead.main(["--pairs", "5", "--runs", "5", "--limit", "inf", "--json", str(path)]) == 0
    assert run_overhead.main(["--pairs", "5", "--runs", "5", "--limit", "0"]) == 1
    report = json.loads(path.read_text())
    assert set(report["models"]) == set(run_overhead.CASES)
    for result in report["models"].values():
        assert 0 < result["ratio"] <= result["upper_bound"]
    assert "upper 95% bound" in capsys.readouterr().out


def test_the_upper_bound_is_that_of_the_median() -> None:
    """Of 100 values the 60th or 61st smallest: the binomial interval for the median."""
    assert run_overhead.upper_bound(range(100)) == 60
    assert run_overhead.upper_bound([1.0, 2.0, 3.0]) == 3.0


def test_create_close_cycles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cycles.json"
    arguments = ["--cycles", "4", "--warm", "2", "--repeat", "1"]
    assert create_close_cycles.main([*arguments, "--allowance", "inf", "--json", str(path)]) == 0
    assert create_close_cycles.main([*arguments, "--allowance=-inf"]) == 1
    report = json.loads(path.read_text())
    for library in create_close_cycles.LIBRARIES:
        [measured] = report["measured"][library]
        assert measured["growth_mb"] == pytest.approx(measured["end_mb"] - measured["warm_mb"])
        assert measured["end_mb"] > 10
    assert "median growth" in capsys.readouterr().out


def test_cpu_sharing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sharing.json"
    arguments = ["--megabytes", "1", "--repeat", "1"]
    assert cpu_sharing.main([*arguments, "--most-memory=inf", "--most-creation=inf", "--json", str(path)]) == 0
    assert cpu_sharing.main([*arguments, "--most-memory=inf", "--most-creation=0"]) == 1
    report = json.loads(path.read_text())
    assert set(report["measured"]) == set(cpu_sharing.CASES)
    [eight] = report["measured"][cpu_sharing.EIGHT_SHARED]
    assert len(eight["outputs"]) == 8
    assert report["summary"]["identical"] is True
    assert report["summary"]["pss"][cpu_sharing.EIGHT_SHARED] == eight["pss"]
    assert "8 sessions take" in capsys.readouterr().out


def test_one_other_bit_in_one_of_eight_sessions_is_seen() -> None:
    def result(*outputs: str) -> dict[str, Any]:
        return {"pss": 10, "creation": 1.0, "outputs": outputs, "details": {}}

    measured = {name: [result(*["a"] * count)] for name, (_, count) in cpu_sharing.CASES.items()}
    assert cpu_sharing.summarize(measured)["identical"] is True
    measured[cpu_sharing.EIGHT_SHARED].append(result(*["a"] * 7, "b"))
    assert cpu_sharing.summarize(measured)["identical"] is False
