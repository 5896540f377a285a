"""Diagnoses as a whole: the document, the command, what is partial, and causes that are planted."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import ortmulti
from ortmulti.bench.diagnose.diagnosis import diagnose
from ortmulti.bench.diagnose.report import load_document
from ortmulti.bench.measure import page_cache
from ortmulti.errors import Error, InvalidArgument, InvalidProtobuf, NoSuchFile
from tests.support import command, onnx_models
from tests.support.compiling import compile_library
from tests.support.diagnosis import at_start

SHORT = ("--devices", "cpu*2", "--quick", "--ways", "sequential,native", "--budget", "1")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return command.run("diagnose", *arguments)


def test_the_command_reports_and_writes_files(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / name for name in ("diagnosis.json", "page.html")]
    done = run(model, *SHORT, "--json", files[0], "--html", files[1])
    assert done.returncode == 0, done.stderr
    for text in ("Where the time goes", "sequential", "native", "Best way to create sessions here"):
        assert text in done.stdout
    document = load_document(files[0])
    assert (document["kind"], document["partial"]) == ("diagnose", None)
    assert document["settings"]["devices"] == ["cpu", "cpu"]
    assert [one["way"] for one in document["serialization"]] == ["sequential", "native"]
    assert document["prediction"]["best"] in ("sequential", "native")
    assert set(document["prediction"]["seconds"]) == {"sequential", "native"}
    assert document["findings"]
    experiments = {run["experiment"] for run in document["runs"]}
    assert experiments >= {"plain", "trace", "gil"}
    assert len({run["id"] for run in document["runs"]}) == len(document["runs"])
    assert files[1].stat().st_size > 1000
    assert str(model.parent) not in files[0].read_text()  # what is published names no folders
    again = tmp_path / "again.html"
    reported = run(files[0], "--html", again)
    assert reported.returncode == 0, reported.stderr
    folder = f"{model.parent}/"  # in the commands, which the user shall be able to run
    assert "".join(reported.stdout.split()) == "".join(done.stdout.split()).replace(folder, "")
    assert again.read_text() == files[1].read_text().replace(folder, "")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_inputs_from_a_file_and_json_to_the_terminal_of_a_model_in_memory(tmp_path: Path) -> None:
    """Which is never cold; nor is a diagnosis partial for that."""
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.ones((3, 64), np.float32))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        model = _saved(Path(folder))
        done = run(model, "--devices", "cpu", "--quick", "--ways", "native", "--input", inputs, "--json", "-")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["partial"], [run for run in document["runs"] if run.get("error")]) == (None, [])
    assert {run["cache"] for run in document["runs"]} == {"warm"}
    assert document["serialization"] == []  # one session has nothing to wait for
    assert document["prediction"]["best"] == "native"
    assert document["findings"][0]["id"] in ("nothing", "wait", "optimization")


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidProtobuf):
        diagnose(_saved(tmp_path, b"not a model"), "cpu")
    with pytest.raises(NoSuchFile):
        diagnose(tmp_path / "missing.onnx", "cpu")
    for wrong in ({"ways": ()}, {"devices": ()}, {"settings": {"colour": "red"}}, {"quick": True, "repeat": 2}):
        with pytest.raises(InvalidArgument):
            diagnose(_saved(tmp_path), **{"devices": "cpu", **wrong})


def _saved(folder: Path, content: bytes | None = None) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content or onnx_models.matmul())
    return path


def test_a_model_that_cannot_run_is_named_with_the_reason(tmp_path: Path) -> None:
    model = _saved(tmp_path, onnx_models.one_node("NoSuchOperator"))
    with pytest.raises(Error, match=r"model\.onnx cannot be run here in any way: .*NoSuchOperator"):
        diagnose(model, "cpu", ways=("sequential", "native"), quick=True)


def test_what_vanishes_meanwhile_leaves_a_partial_document(tmp_path: Path) -> None:
    """As a device would: from one measurement on all fail. Here it is the model that becomes another one."""
    model = _saved(tmp_path)

    def progress(_done: int, _total: int, text: str) -> None:
        if text.startswith("plain, native"):
            model.write_bytes(onnx_models.one_node("NoSuchOperator"))

    document = diagnose(
        model, ("cpu", "cpu"), ways=("sequential", "native"), quick=False, repeat=3, progress=progress, budget=1
    )
    assert document["partial"] is not None
    assert "NoSuchOperator" in document["partial"]
    assert document["partial"].startswith("sequential") or document["partial"].startswith("native")
    assert [run["way"] for run in document["runs"] if not run.get("error")] == ["sequential"]
    assert document["prediction"]["best"] == "sequential"


def _of(document: dict[str, Any], experiment: str) -> list[dict[str, Any]]:
    return [run for run in document["runs"] if run["experiment"] == experiment]


def test_a_whole_diagnosis_has_every_experiment(model: Path) -> None:
    document = ortmulti.diagnose(model, ("cpu", "cpu"), ways=("sequential", "shared"), repeat=2, budget=60)
    assert document["partial"] is None
    assert len(_of(document, "plain")) == 4
    assert {len(run["devices"]) for run in _of(document, "trace")} == {1, 2}
    for part in (part for one in document["serialization"] for part in one["on"]):
        assert 0 <= part["share"] <= 1
    assert {run["library"] for run in _of(document, "gil")} == {"onnxruntime", "ortmulti"}
    try:
        page_cache.drop([model])
    except Error:
        return  # the tests' files are in memory
    assert {run["cache"] for run in _of(document, "disk")} == {"cold", "warm"}
    assert {run["cache"] for run in _of(document, "trace")} == {"cold", "warm"}


# --- Causes that are planted are named as the first finding, by real measurements -------------------------------------


CPUS = ("cpu", "cpu")

PLANTED = 0.5
"""Seconds that are planted in each of two sessions. A finding has to have half of them: other load hides some."""


def _diagnose(model: Path, name: str, cause: str, **arguments: Any) -> dict[str, Any]:
    """As short as a diagnosis can be, whose first finding has to be this one, verified."""
    document = diagnose(model, CPUS, **{"ways": ("sequential", "native"), "quick": True, "budget": 1.0, **arguments})
    assert document["partial"] is None
    assert [run["error"] for run in document["runs"] if run.get("error")] == []
    finding = document["findings"][0]
    assert (finding["id"], finding["cause"]) == (name, cause)
    verified = finding["verified"]
    assert verified is not None, finding
    assert 1 < verified["interval"][0] <= verified["speedup"] <= verified["interval"][1]
    assert verified["after"] < verified["before"]
    return document


# A release of onnxruntime that holds the GIL while it creates a session, for 0.5 s.
HOLDING = """
import builtins, ctypes, sys
usual_import = builtins.__import__

def import_holding(*arguments, **named):
    module = usual_import(*arguments, **named)
    onnxruntime = sys.modules.get("onnxruntime")
    if hasattr(onnxruntime, "InferenceSession"):
        builtins.__import__ = usual_import

        class InferenceSession(onnxruntime.InferenceSession):
            def __init__(self, *arguments, **options):
                ctypes.PyDLL(None).usleep(500_000)
                super().__init__(*arguments, **options)

        onnxruntime.InferenceSession = InferenceSession
    return module

builtins.__import__ = import_holding
"""


def test_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*at_start(tmp_path, HOLDING).popitem())
    document = _diagnose(_saved(tmp_path), "gil", "wait for the GIL", ways=("sequential", "threads", "native"))
    finding = document["findings"][0]
    assert re.match(r"threads are \d+\.\d\dx as fast as sequential: onnxruntime \d", finding["title"])
    assert "with strategy native" in finding["title"]
    assert finding["seconds"] > PLANTED
    [threads] = [one for one in document["serialization"] if one["way"] == "threads"]
    [gil] = [part for part in threads["on"] if part["what"] == "gil"]
    assert gil["share"] > 0
    assert document["prediction"]["best"] == "native"
    assert [run["experiment"] for run in document["runs"]].count("verify") == 2 * finding["verified"]["pairs"] == 4


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_library("throttled_reader.c", tmp_path / "libthrottled.so")
    folder = tmp_path / "slow"
    folder.mkdir()
    model = _saved(folder, onnx_models.matmul(512, 8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("THROTTLED_FOLDER", str(folder))
    monkeypatch.setenv("THROTTLED_RATE", str(model.stat().st_size / PLANTED))
    finding = _diagnose(model, "slow disk", "read model")["findings"][0]
    assert finding["seconds"] > PLANTED
    assert "MB/s" in finding["title"]


def test_optimization_that_takes_most_of_the_time(tmp_path: Path) -> None:
    """Products of constants, which the first level computes."""
    products = "".join(f"v{i + 1} = MatMul(v{i}, factor) " for i in range(40))
    ones = [numpy_helper.from_array(np.eye(576, dtype=np.float32), name) for name in ("factor", "v0")]
    text = f"(float[n, 576] x) => (float[n, 576] y) {{ {products} y = MatMul(x, v40) }}"
    model = _saved(tmp_path, onnx_models.parsed(text, *ones).SerializeToString())
    document = _diagnose(model, "optimization", "optimization level 1")
    assert document["findings"][0]["share"] > 0
