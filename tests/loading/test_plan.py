"""The plan of a creation: which ways it tries, in which order, found without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Device, Loading, Model
from ortmulti.create.request import CreationRequest, core_options
from ortmulti.loading.plan import Plan, plan
from tests.support import onnx_models

CPU, GPU, PLUGIN = Device("cpu"), Device("cuda", 1), Device("openvino:GPU")


def planned(model: object, *devices: Device, options: Any = None, **loading: Any) -> Plan:
    request = CreationRequest(Model.of(model), devices, options=options, loading=Loading(**loading))
    return plan(request, devices, core_options(request.options))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(onnx_models.write_external(tmp_path_factory.mktemp("large"))[0])


@pytest.mark.parametrize(
    ("devices", "loading", "ways"),
    [
        ([CPU, CPU], {}, ("alone",)),
        ([CPU], {"optimize": "never"}, ("alone",)),
        ([GPU, GPU], {}, ("entry", "alone")),
        ([GPU], {"optimize": "offline"}, ("entry", "alone")),
        ([GPU], {"optimize": "never"}, ("model", "alone")),
        ([GPU], {"strategy": "native"}, ("alone",)),
        ([PLUGIN, CPU], {}, ("contexts", "alone")),
        ([PLUGIN], {"optimize": "never"}, ("alone",)),
    ],
)
def test_devices_and_arguments_choose_the_ways(
    large: str, devices: list[Device], loading: dict[str, Any], ways: tuple[str, ...]
) -> None:
    assert planned(large, *devices, **loading) == Plan(ways)


def test_without_optimizations_the_model_is_taken_as_it_is(large: str) -> None:
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert planned(large, GPU, options=options).ways == ("model", "alone")


def test_a_cpu_beside_gpus_is_a_reason_to_share_nothing(large: str) -> None:
    found = planned(large, GPU, CPU)
    assert found.ways == ("alone",)
    assert "beside GPUs" in found.reason


def test_values_that_the_options_give_are_shared_before_they_are_copied(tmp_path: Path) -> None:
    model, _ = onnx_models.write_external(tmp_path)
    options = ortmulti.SessionOptions()
    options.add_external_initializers(["any"], [ortmulti.OrtValue.ortvalue_from_numpy(np.zeros(4))])
    assert planned(model, CPU, options=options).ways == ("values", "alone")
