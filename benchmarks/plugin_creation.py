"""What do sessions on OpenVINO's plug-in cost, and how far are their outputs from the CPU's?

Each case is a process of its own, in turns, with one session and with four: onnxruntime's, one after another, and
ortmulti's at the first load, at later ones (what was compiled is in the cache) and without sharing. The plug-in is
registered before. Memory is the growth of the proportional set size until every session has run once.

    python -m benchmarks.plugin_creation resnet50 --json plugin.json

Exit status 1 if a later load of four sessions takes longer than --most-creation of onnxruntime's creation, or if
outputs in f32 are further from the CPU's than --most-difference of the largest value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

import ortmulti
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.bench.measure import page_cache
from ortmulti.bench.measure.memory import process_memory
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, highest, option

DEVICE, PROVIDER = "openvino:CPU", "OpenVINOExecutionProvider"
F32 = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
ORDINARY, FIRST, LATER, NATIVE, IN_F32 = "onnxruntime", "first load", "later load", "native", "onnxruntime, f32"


class Case(NamedTuple):
    """Who creates how many sessions."""

    way: str
    sessions: int


@dataclass
class PluginCreation(Script[Case]):
    """The options of the command line."""

    kind, columns = "plugin creation", (
        Column("creation", "creation, s"),
        Column("memory", "memory, MB", scale=1e6),
        Column("difference", "difference", summary=highest, text="{:.2g}".format),
    )  # fmt: skip
    models: Sequence[Path] = option((), "a name of `ortmulti models`, or an .onnx file")
    library: str = option("", "OpenVINO's plug-in (default: that of onnxruntime-ep-openvino)")
    repeat: int = option(5, "processes of each case")
    most_creation: float = option(1.0, "of a later load over onnxruntime's creation")
    most_difference: float = option(1e-4, "of outputs in f32")

    def cases(self, number: int = 0) -> Sequence[Case]:
        ways = [Case(way, count) for way in (ORDINARY, FIRST, LATER, NATIVE) for count in (1, 4)]
        return alternating([*ways, Case(IN_F32, 1)], number)

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folder, [model] = folder, self.models
        write_arrays(folder / "feeds.npz", models.sample_inputs(model))
        for case in self.cases():
            self.measure(case, -1)  # loads the libraries from the disk, and makes the entries of later loads

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        [model] = self.models
        page_cache.warm([model, *page_cache.external_files(model)])
        cache = f"{case.way}-{case.sessions}" + (f"-{number}" if case.way == FIRST else "")
        spec = {**case._asdict(), "model": str(model), "feeds": str(self._folder / "feeds.npz")}
        spec |= {"library": self.library or installed(), "options": F32 if case.way == IN_F32 else {}}
        return self.fresh(spec, {"ORTMULTI_CACHE": str(self._folder / cache)})

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        found, limits = super().failures(document), document["settings"]
        rows = {Case(row["way"], row["sessions"]): row for row in document["rows"]}
        later, ordinary = (rows[Case(way, 4)]["creation"]["median"] for way in (LATER, ORDINARY))
        if later > limits["most_creation"] * ordinary:
            found.append(f"a later load takes {later / ordinary:.2f} times onnxruntime's creation")
        if (apart := rows[Case(IN_F32, 1)]["difference"]) > limits["most_difference"]:
            found.append(f"outputs in f32 differ by {apart:.2g} of the largest value")
        return found


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create and run the sessions of a case, in this process."""
    library: Any = onnxruntime if spec["way"] in (ORDINARY, IN_F32) else ortmulti
    library.register_execution_provider_library("benchmark", spec["library"])
    feeds = read_arrays(spec["feeds"])
    before = process_memory().pss
    begin = time.perf_counter()
    sessions = create(library, spec)
    creation = time.perf_counter() - begin
    outputs = [session.run(None, feeds) for session in sessions]
    memory = process_memory().pss - before
    on_cpu = onnxruntime.InferenceSession(spec["model"], providers=["CPUExecutionProvider"]).run(None, feeds)
    return {"creation": creation, "memory": memory, "difference": max(difference(found, on_cpu) for found in outputs)}


def create(library: Any, spec: dict[str, Any]) -> Sequence[Any]:
    model, count, options = spec["model"], spec["sessions"], spec["options"]
    if library is ortmulti:
        strategy: Any = "native" if spec["way"] == NATIVE else "shared"
        return ortmulti.create_sessions(
            model, DEVICE, count, provider_options=options, loading=ortmulti.Loading(strategy=strategy)
        )
    cpu = library.OrtHardwareDeviceType.CPU
    devices = [found for found in library.get_ep_devices() if found.ep_name == PROVIDER and found.device.type == cpu]
    settings = library.SessionOptions()
    settings.add_provider_for_devices(devices[:1], options)
    return [library.InferenceSession(model, settings) for _ in range(count)]


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference of outputs, as a part of the largest value of the output."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(one - other).max() / np.abs(other).max()) for one, other in pairs)


def installed() -> str:
    import onnxruntime_ep_openvino  # type: ignore[import-not-found,unused-ignore]

    return str(onnxruntime_ep_openvino.get_library_path())


if __name__ == "__main__":
    sys.exit(script.main(PluginCreation))
