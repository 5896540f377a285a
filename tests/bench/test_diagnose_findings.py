"""Causes that are planted are named as the first finding, by real measurements; and the change is seen to help."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmulti.bench.diagnose.diagnosis import diagnose
from tests.support import onnx_models
from tests.support.compiling import compile_library
from tests.support.diagnosis import at_start

CPUS = ("cpu", "cpu")

PLANTED = 0.5
"""Seconds that are planted in each of two sessions. A finding has to have half of them: other load hides some."""


def _diagnose(model: Path, **arguments: Any) -> dict[str, Any]:
    """As short as a diagnosis can be."""
    document = diagnose(model, CPUS, **{"ways": ("sequential", "native"), "quick": True, "budget": 1.0, **arguments})
    assert document["partial"] is None
    assert [run["error"] for run in document["runs"] if run.get("error")] == []
    return document


def _verified(finding: dict[str, Any]) -> None:
    verified = finding["verified"]
    assert verified is not None, finding
    assert verified["interval"][0] > 1, finding
    assert verified["interval"][0] <= verified["speedup"] <= verified["interval"][1]
    assert verified["after"] < verified["before"]


def _save(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


# A release of onnxruntime that holds the GIL while it creates a session, for 0.5 s.
HOLDING = """
import ctypes, importlib.abc, importlib.machinery, sys

class Holding(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            usual = module.InferenceSession

            class InferenceSession(usual):
                def __init__(self, *arguments, **options):
                    ctypes.PyDLL(None).usleep(500_000)
                    super().__init__(*arguments, **options)

            module.InferenceSession = InferenceSession

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Holding())
"""


def test_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*at_start(tmp_path, HOLDING).popitem())
    document = _diagnose(_save(onnx_models.matmul_proto(), tmp_path), ways=("sequential", "threads", "native"))
    finding = document["findings"][0]
    assert (finding["id"], finding["cause"]) == ("gil", "wait for the GIL")
    assert re.match(r"threads are \d+\.\d\dx as fast as sequential: onnxruntime \d", finding["title"])
    assert "holds the GIL for" in finding["title"]
    assert "with strategy native" in finding["title"]
    assert finding["seconds"] > PLANTED
    _verified(finding)
    [threads] = [one for one in document["serialization"] if one["way"] == "threads"]
    [gil] = [part for part in threads["on"] if part["what"] == "gil"]
    assert gil["share"] > 0
    assert document["prediction"]["best"] == "native"
    assert [run["experiment"] for run in document["runs"]].count("verify") == 2 * finding["verified"]["pairs"] == 4


def test_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_library("throttled_reader.c", tmp_path / "libthrottled.so")
    folder = tmp_path / "slow"
    folder.mkdir()
    model = _save(onnx_models.matmul_proto(512, 8), folder)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("THROTTLED_FOLDER", str(folder))
    monkeypatch.setenv("THROTTLED_RATE", str(model.stat().st_size / PLANTED))
    finding = _diagnose(model)["findings"][0]
    assert (finding["id"], finding["cause"]) == ("slow disk", "read model")
    assert finding["seconds"] > PLANTED
    assert "MB/s" in finding["title"]
    _verified(finding)


def test_optimization_that_takes_most_of_the_time(tmp_path: Path) -> None:
    """Products of constants, which the first level computes."""
    size, products = 768, 40
    nodes = [helper.make_node("MatMul", [f"value{i}", "factor"], [f"value{i + 1}"]) for i in range(products)]
    nodes.append(helper.make_node("MatMul", ["x", f"value{products}"], ["y"]))
    ones = np.eye(size, dtype=np.float32)
    model = onnx_models.model(
        nodes,
        [("x", TensorProto.FLOAT, ["n", size])],
        [("y", TensorProto.FLOAT, ["n", size])],
        [numpy_helper.from_array(ones, name) for name in ("factor", "value0")],
    )
    document = _diagnose(_save(model, tmp_path))
    finding = document["findings"][0]
    assert (finding["id"], finding["cause"]) == ("optimization", "optimization level 1")
    assert finding["share"] > 0
    _verified(finding)
