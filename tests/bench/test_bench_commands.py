"""The commands of `ortmulti bench`: arguments, what they print and write, exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.measure import results
from tests.support.command import COMMAND, PNG, invoke, run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=1)


@pytest.mark.essential
@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        ("create", "--demo"),
        ("create absent.onnx", "absent.onnx does not exist"),
        ("create absent.onnx --devices 99", "cuda:99"),
        ("create absent.onnx --devices moon", "moon"),
        ("create absent.onnx --strategies magic", "'magic'"),
        ("create absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("create absent.onnx --threads -1", "intra_op_num_threads is at least 0, not -1"),
        ("create absent.onnx --provider-option x", "NAME=VALUE"),
        ("create absent.onnx --config shared:=1", "NAME=VALUE"),
        ("create absent.onnx --config magic:a=b", "'magic'"),
        ("create absent.onnx --contexts-ready --second-model", "exclude"),
        ("create absent.onnx --plot p.xyz", "matplotlib does not write .xyz"),
        ("gil absent.onnx", "absent.onnx does not exist"),
        ("gil absent.onnx --device cpu*2", "one device is measured at a time, not cpu x2"),
        ("repository identity.onnx --budget 10", "the budget is 10 bytes, and identity alone has"),
        ("repository identity.onnx --budget much", "budget is a share, bytes, or a size such as '8GiB', not 'much'"),
        ("repository identity.onnx --budget 1MB --trace nothing.csv", "unknown trace 'nothing.csv'"),
        ("repository identity.onnx --budget 1MB --rate 0", "rate is more than 0, not 0"),
        ("repository identity.onnx a/identity.onnx --budget 1MB", "two models have the name 'identity'"),
        ("run", "--demo"),
        ("run absent.onnx", "absent.onnx does not exist"),
        ("run magic", "'magic'"),
        ("run identity --counts 0", "numbers of sessions"),
        ("run identity --variants magic", "variant"),
        ("run identity --rate fast", "rate"),
        ("run identity --rate 1 --arrivals often", "poisson"),
        ("run identity --batch x", "batch sizes"),
        ("run identity --inputs device", "threads, processes"),
        ("run identity --in-flight 0", "in flight"),
        ("run identity --plot p.xyz", "matplotlib does not write .xyz"),
        ("sleep absent.onnx", "absent.onnx does not exist"),
        ("sleep absent.onnx --kinds deep", "unknown kind of sleep 'deep': it is one of files,"),
        ("sleep absent.onnx --kinds session,files", "session, files are not for the CPU"),
        ("sleep absent.onnx --graphs", "--graphs is not for the CPU"),
        ("sleep absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("sleep absent.onnx --random -1", "random is at least 0, not -1"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments: str, mentions: str, tmp_path: Path) -> None:
    command, *given = arguments.split()
    if command == "repository":
        for folder in (tmp_path, tmp_path / "a"):
            models.make("identity", folder)
    if not {"--devices", "--device"} & {*given}:
        given += ["--device" if command == "gil" else "--devices", "cpu"]
    shown = invoke("bench", command, *given, cwd=tmp_path)
    assert shown.returncode == (2 if mentions in ("--demo", "exclude") else 1)
    assert mentions in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "models").exists()


def test_create_prints_the_table_and_writes_what_was_asked_for(model: Path, tmp_path: Path) -> None:
    files = ("--json", "r/result.json", "--plot", "plot.png", "--markdown", "table.md")
    shown = run("bench", "create", model, "--devices", "cpu*2", "--repeat", "1", *files, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for name in ("sequential", "threads", "processes", "native", "shared"):
        assert len(re.findall(rf"\b{name} +\d", shown.stdout)) == 2
    assert f"[10/10] {model.stem}, shared on cpu x2" in shown.stderr
    assert [line for line in shown.stderr.splitlines() if ": " in line and "[" not in line] == [
        "result: r/result.json",
        "table: table.md",
        "plot: plot.png",
    ]
    document = results.load(tmp_path / "r/result.json")
    assert document["command"][1:3] == ["bench", "create"]
    assert [row["equal"] for row in document["rows"]] == [None, True, True, True, True] * 2
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    assert (tmp_path / "table.md").read_text().count("| native |") == 2


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
    assert [(len(row["devices"]), row["strategy"], row["measured"]) for row in document["rows"]] == [
        (1, "sequential", 1), (1, "shared", 1), (3, "sequential", 1), (3, "shared", 1),
    ]  # fmt: skip


def test_run_prints_tables_and_writes_what_was_asked_for(model: Path, tmp_path: Path) -> None:
    options = ("--devices", "cpu*2", "--variants", "core", "--repeat", "1", "--seconds", "0.2", "--warm-seconds", "0")
    files = ("--json", "r/run.json", "--plot", "run.png", "--markdown", "run.md", "--no-ceiling")
    shown = run("bench", "run", model, "identity", *options, "--rate", "0.5x,40", *files, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[12/12] identity, batch 1, core on cpu x2, open, 40/s" in shown.stderr
    assert shown.stdout.count("closed, 4 a session") >= 4
    document = results.load(tmp_path / "r/run.json")
    assert [facts["name"] for facts in document["models"]] == [model.stem, "identity"]
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    assert (tmp_path / "run.md").read_text().count("| open, 40/s |") == 4
    assert (tmp_path / "models/identity.onnx").is_file()


def test_gil(model: Path, tmp_path: Path) -> None:
    shown = run("bench", "gil", model, "--repeat", "2", "--json", "g.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("matmul-1-mb on cpu: other Python threads stand still for ")
    assert re.search(r"ortmulti +\d+\.\d+\.\d+", shown.stdout)
    document = results.load(tmp_path / "g.json")
    assert document["kind"] == "gil"
    assert [row["library"] for row in document["rows"]] == ["onnxruntime", "ortmulti"]
    for row in document["rows"]:
        assert (row["measured"], row["errors"]) == (2, [])
        assert row["creation"]["lowest"] > 0
        assert 0 <= row["largest_share"]["median"] <= row["delay_share"]["median"] <= 1
        assert row["release"] == document["releases"]["onnxruntime"]
    only = run("bench", "gil", model, "--repeat", "1", "--no-onnxruntime", "--json", "-")
    assert [row["library"] for row in json.loads(only.stdout)["rows"]] == ["ortmulti"]


def test_failed_measurement_ends_with_status_1_after_the_table(tmp_path: Path) -> None:
    broken = models.make("matmul", tmp_path, megabytes=1)
    data = broken.with_name(f"{broken.name}.data")
    os.truncate(data, data.stat().st_size // 2)
    options = ("--devices", "cpu", "--strategies", "sequential,native", "--repeat", "2", "--json", "r.json")
    shown = run("bench", "create", broken, *options, cwd=tmp_path)
    assert shown.returncode == 1
    assert "2/2 failed" in shown.stdout
    assert "failed: matmul-1-mb, native on cpu: " in shown.stderr
    assert [row["measured"] for row in results.load(tmp_path / "r.json")["rows"]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "begun"), [("create --repeat 100000", "[3/"), ("sleep --repeat 1 --random 1000000", "[2/2]")]
)
def test_interrupt_ends_the_measuring_processes_and_keeps_the_results(
    arguments: str, begun: str, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "some.json"
    command, *options = arguments.split()
    line = [*COMMAND, "bench", command, str(model), "--devices", "cpu", *options, "--json", str(path)]
    with psutil.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while begun not in process.stderr.readline():
            assert process.poll() is None
        started = process.children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "partial: interrupted" in rest
    assert "Traceback" not in rest
    document = results.load(path)
    assert document["partial"] == "interrupted"
    assert 1 <= len(document["measurements"]) < 100
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "names"), [("create", {"sequential", "shared"}), ("run", {"core", "threads", "processes"})]
)
def test_demo(command: str, names: set[str], model: Path, tmp_path: Path) -> None:
    ortmulti.load(model, "cpu", backend="processes").close()
    shown = run("bench", command, "--demo", "--repeat", "1", "--devices", "cpu*2", "--out", "here", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    document = results.load(tmp_path / f"here/{command}.json")
    assert names <= {row["strategy" if command == "create" else "variant"] for row in document["rows"]}
    assert all(row.get("equal") is not False for row in document["rows"])
    assert (tmp_path / f"here/{command}.png").read_bytes().startswith(PNG)
    assert f"here/{command}.md" in shown.stderr
