"""`ortmulti bench run` on GPUs: every variant, inputs and outputs on the device, CUDA graphs, PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ortmulti.bench.measure.devices import device_sets, parse_devices
from ortmulti.bench.serve.plan import RunPlan

pytestmark = pytest.mark.gpu


def plan(model: Path, variant: str, **changes: Any) -> RunPlan:
    available = parse_devices("all")
    settings: dict[str, Any] = {
        "models": [model],
        "device_sets": device_sets(available, None),
        "variants": [variant],
        "repeat": 1,
        "seconds": 2.0,
        "warm_seconds": 0.2,
        "ceiling": False,
        "timeout": 120.0,
    }
    return RunPlan(**{**settings, **changes})


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("core", {"rates": ["0.5x"], "batches": [1, 8]}),
        ("core", {"inputs": "device"}),
        ("core", {"inputs": "device", "outputs": "device"}),
        *((variant, {}) for variant in ("core+graph", "core+in_flight=1", "threads", "processes")),
    ],
)
def test_every_gpu_answers(variant: str, changes: dict[str, Any], tiny: Path) -> None:
    document = plan(tiny, variant, **changes).run()
    assert RunPlan.failures(document) == []
    for measurement in document["measurements"]:
        assert set(measurement["stats"]) == (set(measurement["devices"]) if variant.startswith("core") else set())
        assert all(device["done"] > 0 for device in measurement["stats"].values())
        assert all(device["failed"] == 0 for device in measurement["stats"].values())
        assert set(measurement["gpu_memory"]) in (set(), set(measurement["devices"]))  # empty without NVML
