"""The command line: in a process of its own as users run it; arguments and their errors in the test's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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

OPTIONS = {
    "": "bench models devices inspect run --debug --version",
    "bench": "create gil repository run sleep",
    "bench create": "--devices --counts --strategies --repeat --cold --no-entry --contexts-ready --second-model "
    "--config --json --plot --demo --output",
    "bench gil": "--onnxruntime --ortmulti --repeat --json",
    "bench repository": "--budget --trace --rate --burst --json --plot",
    "bench run": "--devices --counts --variants --batch --inputs --outputs --in-flight --rate --arrivals --seconds "
    "--repeat --provider-option --config --models --timeout --budget --json --plot --markdown --demo",
    "bench sleep": "--devices --kinds --graphs --repeat --random --json",
    "models": "make list",
    "models make": "--layers --output --json",
    "models list": "--json",
    "devices": "--json",
    "inspect": "--json",
    "run": "--input --dim --batch --device --repeat --output --json",
    "diagnose": "--devices --ways --quick --input --json --html --plot",
    "optimize": "--device --list --clear --compare --json",
    "tune": "--input --for --devices --through --budget --tolerance --out --only --skip --clients --timeout --json",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TERMINAL, "COLUMNS", "300")
    shown = invoke(*command.split(), "--help")
    assert shown.returncode == 0
    # No line of a docstring ends before its sentence does.
    text = shown.stdout.partition("╭")[0].split("Usage:")[1].splitlines()[1:]
    assert [line for line in map(str.strip, text) if line and not line.endswith((".", ":"))] == []
    assert [name for name in OPTIONS[command].split() if name not in shown.stdout] == []


def test_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"ortmulti {ortmulti.__version__}\n")


def test_unknown_command_is_a_wrong_argument() -> None:
    assert invoke("compose").returncode == 2


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
    code = f"import sys; sys.modules[{package!r}] = None; from ortmulti.cli import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
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
