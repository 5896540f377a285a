"""Diagnoses without the measuring: documents of runs that were made up, and what runs experiments alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.diagnose.runs import Bench, DiagnosisPlan
from tests.support import onnx_models

GPUS = ("cuda:0", "cuda:1")


def run(way: str, ready: float, devices: tuple[str, ...] = GPUS, **fields: Any) -> dict[str, Any]:
    """A trace of a start whose creation begins after 0.1 s."""
    causes = {"interpreter": 0.02, "imports": 0.08, **fields.pop("causes", {})}
    return {
        "id": "",
        "experiment": "trace",
        "way": way,
        "devices": list(devices),
        "cache": "warm",
        "settings": {},
        "ready": 0.1 + ready,
        "wall": 0.2 + ready,
        "first_answers": [],
        "spans": [],
        "causes": causes,
        "explained": 1.0,
        **fields,
    }


def experiment(name: str, measured: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {**run("native", 0.0), "experiment": name, "measured": dict(measured), **fields}


def document(*runs: dict[str, Any], devices: tuple[str, ...] = GPUS, **fields: Any) -> dict[str, Any]:
    """A document with these runs, from which nothing has been concluded yet."""
    return {
        "runs": list(runs),
        "settings": {
            "devices": list(devices),
            "ways": ["sequential", "threads", "processes", "native", "shared"],
            "session": {},
            "visible_gpus": fields.pop("visible", None),
        },
        "environment": fields.pop("environment", {}),
        "machine": {"environment": fields.pop("variables", {})},
        "releases": {"onnxruntime": fields.pop("release", "1.31.1")},
        "models": [{"name": "model", "path": "model.onnx", "bytes": 10**6, "external_bytes": 10**9}],
        "partial": None,
    }


def from_a_cold_disk(*runs: dict[str, Any]) -> dict[str, Any]:
    """A document where one session takes 10 s from the disk instead of 1 s, which `cat` confirms; and these runs."""
    rates = [
        experiment("disk", {"bytes": 10**9, "seconds": seconds}, cache=cache)
        for cache, seconds in (("cold", 9.0), ("warm", 0.1))
    ]
    one = GPUS[:1]
    return document(run("sequential", 1.0, one), run("sequential", 10.0, one, cache="cold"), *runs, *rates)


def found(of: dict[str, Any]) -> list[str]:
    return [finding.id for finding in conclude(of)]


def bench_of(folder: Path) -> Bench:
    model = folder / "model.onnx"
    model.write_bytes(onnx_models.identity())
    plan = DiagnosisPlan(model, GPUS, quick=True)
    nothing = folder / "nothing"
    return Bench(plan, GPUS, 2, (model,), nothing, nothing, lambda *_: None, lambda: None)
