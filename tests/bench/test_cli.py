"""The command line: in a process of its own as users run it; arguments and their errors in the test's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from rich.table import Table

import ortmulti
from ortmulti.bench import models
from ortmulti.cli import models as cli_models
from ortmulti.cli import output
from tests.support import onnx_models
from tests.support.command import TERMINAL, invoke, run
from tests.support.processes import run_child


@pytest.mark.parametrize(
    "command",
    ["", "bench", "bench create", "bench gil", "bench repository", "bench run", "bench sleep", "models", "models make",
     "models list", "devices", "inspect", "run", "diagnose", "optimize", "tune"],
)  # fmt: skip
def test_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of a docstring ends before its sentence does; the documentation's page lists the options."""
    monkeypatch.setitem(TERMINAL, "COLUMNS", "300")
    shown = invoke(*command.split(), "--help")
    assert shown.returncode == 0
    text = shown.stdout.partition("╭")[0].split("Usage:")[1].splitlines()[1:]
    assert [line for line in map(str.strip, text) if line and not line.endswith((".", ":"))] == []


def test_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"ortmulti {ortmulti.__version__}\n")


@pytest.mark.essential
@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        ("compose", "No such command"),
        ("bench create", "--demo"),
        ("bench create absent.onnx", "absent.onnx does not exist"),
        ("bench create absent.onnx --devices 99", "cuda:99"),
        ("bench create absent.onnx --devices moon", "moon"),
        ("bench create absent.onnx --strategies magic", "'magic'"),
        ("bench create absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("bench create absent.onnx --threads -1", "intra_op_num_threads is at least 0, not -1"),
        ("bench create absent.onnx --provider-option x", "NAME=VALUE"),
        ("bench create absent.onnx --config shared:=1", "NAME=VALUE"),
        ("bench create absent.onnx --config magic:a=b", "'magic'"),
        ("bench create absent.onnx --contexts-ready --second-model", "exclude"),
        ("bench create absent.onnx --plot p.xyz", "matplotlib does not write .xyz"),
        ("bench gil absent.onnx", "absent.onnx does not exist"),
        ("bench gil absent.onnx --device cpu*2", "one device is measured at a time, not cpu x2"),
        ("bench repository identity.onnx --budget 10", "the budget is 10 bytes, and identity alone has"),
        ("bench repository identity.onnx --budget much", "a share, bytes, or a size such as '8GiB', not 'much'"),
        ("bench repository identity.onnx --budget 1MB --trace nothing.csv", "unknown trace 'nothing.csv'"),
        ("bench repository identity.onnx --budget 1MB --rate 0", "rate is more than 0, not 0"),
        ("bench repository identity.onnx a/identity.onnx --budget 1MB", "two models have the name 'identity'"),
        ("bench run", "--demo"),
        ("bench run absent.onnx", "absent.onnx does not exist"),
        ("bench run magic", "'magic'"),
        ("bench run identity matmul:megabytes", "NAME=VALUE"),
        ("bench run identity matmul:megabytes=0", "megabytes must be"),
        ("bench run identity --counts 0", "numbers of sessions"),
        ("bench run identity --variants magic", "variant"),
        ("bench run identity --rate fast", "rate"),
        ("bench run identity --rate 1 --arrivals often", "poisson"),
        ("bench run identity --batch x", "batch sizes"),
        ("bench run identity --inputs device", "threads, processes"),
        ("bench run identity --in-flight 0", "in flight"),
        ("bench run identity --plot p.xyz", "matplotlib does not write .xyz"),
        ("bench sleep absent.onnx", "absent.onnx does not exist"),
        ("bench sleep absent.onnx --kinds deep", "unknown kind of sleep 'deep': it is one of files,"),
        ("bench sleep absent.onnx --kinds session,files", "session, files are not for the CPU"),
        ("bench sleep absent.onnx --graphs", "--graphs is not for the CPU"),
        ("bench sleep absent.onnx --repeat 0", "repeat is at least 1, not 0"),
        ("bench sleep absent.onnx --random -1", "random is at least 0, not -1"),
        ("diagnose identity.onnx --devices cpu*0", "number of sessions"),
        ("diagnose identity.onnx --ways fastest", "sequential, threads, processes, native, shared"),
        ("diagnose identity.onnx --ways native,native", "named twice"),
        ("diagnose identity.onnx --faster", "No such option"),
        ("diagnose identity.onnx --repeat 0", "at least 1"),
        ("diagnose identity.onnx --quick --repeat 3", "repeat is 3"),
        ("diagnose identity.onnx --budget nan", "budget"),
        ("diagnose identity.onnx --timeout -1", "timeout"),
        ("diagnose identity.onnx --batch 0", "batch"),
        ("diagnose identity.onnx --sequence 0", "sequence"),
        ("diagnose identity.onnx --input missing.npz", "missing.npz"),
        ("diagnose identity.onnx --custom-ops missing.so", "missing.so"),
        ("diagnose identity.onnx --threads -1", "must not be negative"),
        ("diagnose identity.onnx --config novalue", "NAME=VALUE"),
        ("diagnose identity.onnx --input inputs.npz --batch 2", "inputs were given"),
        ("run identity.onnx --dim m=5", "no dynamic dimension called m"),
        ("run identity.onnx --dim n", "--dim is NAME=SIZE"),
        ("run identity.onnx --input x=absent.npy", "'absent.npy' does not exist"),
        ("run identity.onnx --output out.txt", "--output is an .npz file"),
        ("run identity.onnx --repeat 0", "--repeat is 1 or more"),
        ("run identity.onnx --device gpu", "did you mean 'cuda'?"),
        ("tune identity.onnx --only nothing_known", "no setting 'nothing_known'"),
        ("tune identity.onnx --json /nowhere/x.json", "cannot be written"),
        ("tune identity.onnx --out same.json --json same.json", "the same file"),
    ],
)
def test_wrong_arguments_say_what_is_wrong_before_any_work(arguments: str, mentions: str, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "a"):
        models.make("identity", folder)
    np.savez(tmp_path / "inputs.npz", x=np.ones((1, 128), np.float32))
    given = arguments.split()
    if given[:1] != ["compose"] and not {"--devices", "--device"} & {*given}:
        given += ["--device" if given[0] in ("run", "tune") or given[1] == "gil" else "--devices", "cpu"]
    shown = invoke(*given, cwd=tmp_path)
    usage = ("--demo", "exclude", "No such command", "No such option")
    assert shown.returncode == (2 if mentions in usage else 1)
    assert mentions in " ".join(shown.stderr.split())
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "models").exists()


def test_error_is_one_line_and_debug_shows_the_traceback() -> None:
    shown = invoke("models", "make", "magic")
    assert (shown.returncode, shown.stdout) == (1, "")
    [line] = [line for line in shown.stderr.splitlines() if line.startswith("error:")]
    assert "'magic'" in line
    assert "Traceback" not in shown.stderr
    shown = invoke("--debug", "models", "make", "magic")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    assert "InvalidArgument" in shown.stderr


ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
"""A terminal's title, its colours, and a right-to-left override."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tensor and file of weights have escapes in their names."""
    weight = TensorProto(name=f"w{ESCAPES}", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=f"{ESCAPES}.bin")
    x, y = ((name, TensorProto.FLOAT, [3]) for name in "xy")
    node = helper.make_node("Add", ["x", weight.name], ["y"], name=f"node{ESCAPES}")
    path = tmp_path_factory.mktemp("hostile") / "hostile.onnx"
    path.write_bytes(onnx_models.model([node], [x], [y], [weight]).SerializeToString())
    return path


@pytest.mark.essential
@pytest.mark.parametrize("options", [(), ("--debug",)])
def test_names_in_files_do_not_control_the_terminal(hostile: Path, options: tuple[str, ...]) -> None:
    """Neither in errors and tracebacks nor in the log and warnings."""
    shown = run(*options, "optimize", hostile)
    assert shown.returncode == 1
    assert "\\u001b]0;owned" in shown.stderr
    assert not [c for c in shown.stdout + shown.stderr if not c.isprintable() and c != "\n"]


@pytest.mark.essential
def test_consoles_show_control_characters() -> None:
    table = Table("a", title=f"title{ESCAPES}")
    table.add_row(f"cell{ESCAPES}")
    for make in (output.stdout, output.stderr):
        console = make()
        with console.capture() as captured:
            console.print(f"text{ESCAPES}", style="red")
            console.print(f"a :cat: of [lists]{ESCAPES}", markup=False)
            console.print(table)
        assert not [c for c in captured.get() if not c.isprintable() and c != "\n"]
        assert captured.get().count("\\u001b]0;owned") == 4
        assert "a :cat: of [lists]" in captured.get()


def test_log_and_warnings_show_control_characters() -> None:
    code = """
        import logging, sys, warnings
        from ortmulti.cli import app
        def command(): logging.getLogger("any").warning("log\\x1b[31m"); warnings.warn("warning\\x1b[31m")
        app.app = command
        app.run()
    """
    shown = run_child(code)
    assert "log\\u001b[31m\n" in shown.stderr
    assert "UserWarning: warning\\u001b[31m\n" in shown.stderr
    assert "\x1b" not in shown.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_missing_package_is_one_line_that_names_the_extra(package: str) -> None:
    shown = run_child(f"import sys; sys.modules[{package!r}] = None; from ortmulti.cli import main; main()")
    assert shown.returncode == 1
    assert shown.stderr == f'ortmulti: the command line needs {package}: pip install "ortmulti[cli]"\n'


def test_models_are_listed() -> None:
    listed = json.loads(invoke("models", "list", "--json").stdout)
    assert [model["name"] for model in listed] == list(models.MODELS)
    assert all(name in invoke("models", "list").stdout for name in models.MODELS)


def test_model_is_made_where_asked(tmp_path: Path) -> None:
    arguments = ("models", "make", "matmul", "--megabytes", "1", "--output", "there")
    made = invoke(*arguments, cwd=tmp_path)
    assert made.returncode == 0
    assert (tmp_path / made.stdout.strip()).is_file()
    facts = json.loads(invoke(*arguments, "--json", cwd=tmp_path).stdout)
    assert (facts["path"], facts["options"]) == (made.stdout.strip(), {"megabytes": 1})


def test_demo_takes_fewer_layers_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [("cpu",), ("cpu", "cpu")]
    monkeypatch.setattr(cli_models, "available_memory", lambda: 1 << 40)
    assert cli_models.choose_layers(tmp_path, sets) == 2
    monkeypatch.setattr(cli_models, "available_memory", lambda: 1 << 30)
    assert cli_models.choose_layers(tmp_path, sets) == 1
