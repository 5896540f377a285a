"""What do sessions on OpenVINO's plug-in cost, and how far are their outputs from the CPU's?

Each case is a process of its own, in turns, with one session and with four: onnxruntime's, one after another, and
ortmulti's at the first load, at later ones (what was compiled is in the cache) and without sharing. The plug-in is
registered before. Memory is the growth of the proportional set size until every session has run once.

    python -m benchmarks.plugin_creation --json plugin.json

Exit status 1 if a later load of four sessions takes longer than --most-creation of onnxruntime's creation, or if
outputs in f32 are further from the CPU's than --most-difference of the largest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.bench.measure import fresh_process, machine, page_cache
from ortmulti.bench.measure.memory import process_memory
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case

DEVICE, PROVIDER = "openvino:CPU", "OpenVINOExecutionProvider"
F32 = {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'}
ORDINARY, FIRST, LATER, NATIVE = "onnxruntime", "first load", "later load", "native"
FOUR = 4
CASES = [(case, count) for case in (ORDINARY, FIRST, LATER, NATIVE) for count in (1, FOUR)]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create and run the sessions of a case, in this process."""
    library: Any = onnxruntime if spec["case"] == ORDINARY else ortmulti
    library.register_execution_provider_library("benchmark", spec["library"])
    feeds = read_arrays(spec["feeds"])
    before = process_memory().pss
    begin = time.perf_counter()
    sessions = create(library, spec["case"], spec["model"], spec["count"], spec["options"])
    creation = time.perf_counter() - begin
    outputs = [session.run(None, feeds) for session in sessions]
    memory = process_memory().pss - before
    on_cpu = onnxruntime.InferenceSession(spec["model"], providers=["CPUExecutionProvider"]).run(None, feeds)
    return {"creation": creation, "memory": memory, "difference": max(difference(found, on_cpu) for found in outputs)}


def create(library: Any, case: str, model: str, count: int, options: dict[str, str]) -> Sequence[Any]:
    if case != ORDINARY:
        strategy: Any = "native" if case == NATIVE else "shared"
        return ortmulti.create_sessions(model, DEVICE, count, provider_options=options, strategy=strategy)
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an .onnx file (default: ResNet-50, made for it)")
    parser.add_argument("--library", help="OpenVINO's plug-in (default: that of onnxruntime-ep-openvino)")
    parser.add_argument("--repeat", type=int, default=5, help="processes of each case (default: 5)")
    parser.add_argument("--most-creation", type=float, default=1.0, help="default: 1")
    parser.add_argument("--most-difference", type=float, default=1e-4, help="default: 1e-4")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        folder = Path(name)
        model = args.model or models.make("resnet50", folder)
        write_arrays(folder / "feeds.npz", models.sample_inputs(model))
        files = [model, *page_cache.external_files(model)]

        def run(case: str, count: int, cache: str, options: dict[str, str]) -> dict[str, Any]:
            page_cache.warm(files)
            spec = {"case": case, "count": count, "model": str(model), "feeds": str(folder / "feeds.npz")}
            spec |= {"library": args.library or installed(), "options": options}
            return fresh_process.run("benchmarks.plugin_creation", spec, 600.0, {"ORTMULTI_CACHE": str(folder / cache)})

        # The first round loads the libraries from the disk and makes the entries of later loads. It does not count.
        rounds = measure_rounds(
            CASES,
            lambda case, number: run(*case, f"{case}{number if case[0] == FIRST else ''}", {}),
            args.repeat + 1,
            order=alternating,
        )[1:]
        in_f32 = run(ORDINARY, 1, "f32", F32)["difference"]
    measured = {f"{case} x{count}": of_case(rounds, (case, count)) for case, count in CASES}
    summary = {
        key: {name: statistics.median(result[key] for result in results) for name, results in measured.items()}
        for key in ("creation", "memory", "difference")
    }
    for name, seconds in summary["creation"].items():
        print(f"{name}: created in {seconds:.3f} s, {summary['memory'][name] / 1e6:.0f} MB")
    default = max(summary["difference"].values())
    print(f"largest difference from the CPU's outputs: {default:.2g} of the largest value, in f32 {in_f32:.2g}")
    if args.json:
        report = {
            "model": model.stem,
            "device": DEVICE,
            "summary": summary,
            "difference_in_f32": in_f32,
            "measured": measured,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    later, ordinary = (summary["creation"][f"{case} x{FOUR}"] for case in (LATER, ORDINARY))
    return int(later > args.most_creation * ordinary or in_f32 > args.most_difference)


if __name__ == "__main__":
    sys.exit(main())
