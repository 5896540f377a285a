"""What do options of one session gain: cuDNN's algorithm search, no graph optimization, a model optimized before?

Creation, the first run and later ones apart, since an algorithm search happens in the first run, and what is not
optimized or not searched for may cost in every later one. The cases of the report, and besides: cuDNN's search turned
off (DEFAULT), everything that the report recommends at once, and ortmulti with its cache of optimized models. Without
a GPU the algorithm search is left out.

    python benchmarks/init_options.py --devices 0 --releases 1.30.0,1.31.1

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import claims, releases, reports, script
from benchmarks.published.verdicts import Verdict, figures, judge, ratios
from ortmulti.bench import models
from ortmulti.bench.files import write_arrays
from ortmulti.bench.measure import page_cache
from ortmulti.bench.measure.rounds import Interval

RUNS = 10
LAYERS, LAYERS_ON_CPU = 32, 3
SEARCH = "cudnn_conv_algo_search"
ON_GPUS_ONLY = ("HEURISTIC", "DEFAULT", "pre-optimized, HEURISTIC")
# options -> (whether the graph is optimized, whether the model was before, options of the CUDA provider)
OPTIONS: dict[str, tuple[bool, bool, dict[str, str]]] = {
    "default": (True, False, {}),
    "HEURISTIC": (True, False, {SEARCH: "HEURISTIC"}),
    "DEFAULT": (True, False, {SEARCH: "DEFAULT"}),
    "no optimization": (False, False, {}),
    "pre-optimized": (False, True, {}),
    "pre-optimized, HEURISTIC": (False, True, {SEARCH: "HEURISTIC"}),
}
SAVE, OURS = "saving the optimized model", "ortmulti"
SECONDS = {"creation, s": "creation", "first run, s": "first_run", "a later run, s": "run"}
SPEEDUPS = {"creation, speedup": "creation", "both, speedup": "both"}


def cases_of(model: Path, device: str, folder: Path, threads: int, runs: int) -> list[releases.Case]:
    """The model's cases; the first one, which is prepared and not measured, saves the optimized model."""
    feeds = folder / f"{model.stem}.npz"
    write_arrays(feeds, models.sample_inputs(model))
    optimized = folder / releases.RELEASE / f"{model.stem}.onnx"
    common: dict[str, Any] = {"device": device, "feeds": str(feeds), "threads": threads, "runs": runs}
    files = (model, *page_cache.external_files(model))
    worker, own = "benchmarks.published.init_worker", {"library": "onnxruntime", "provider_options": {}}
    save = {**common, **own, "model": str(model), "optimize": True, "runs": 0, "save": str(optimized),
            "external": len(files) > 1}  # fmt: skip
    found = [releases.Case(f"{model.stem}: {SAVE}", worker, save, files, prepare=True, counted=False)]
    for name, (optimize, before, provider_options) in OPTIONS.items():
        if device == "cpu" and name in ON_GPUS_ONLY:
            continue
        spec = {
            **common,
            "library": "onnxruntime",
            "model": str(optimized if before else model),
            "optimize": optimize,
            "provider_options": provider_options,
        }
        found.append(releases.Case(f"{model.stem}: {name}", worker, spec, () if before else files))
    cache = {"ORTMULTI_CACHE": str(folder / "cache")}
    ours = {**common, "library": "ortmulti", "model": str(model)}
    found.append(releases.Case(f"{model.stem}: {OURS}", worker, ours, files, cache, prepare=True))
    return found


def rows(measurements: Sequence[dict[str, Any]], release: str, model: str) -> dict[str, dict[str, Any]]:
    """The measured lines of a model."""
    found = {}
    for name in (*OPTIONS, OURS):
        case = f"{model}: {name}"
        cells: dict[str, Any] = {
            column: Interval.of(figures(measurements, release, case, key)) for column, key in SECONDS.items()
        }
        cells |= {
            column: Interval.of(ratios(measurements, release, f"{model}: default", case, key))
            for column, key in SPEEDUPS.items()
        }
        if any(cells.values()):
            found[f"{name}" if name != OURS else f"{OURS} (opening the libraries included)"] = cells
    return found


def verdicts(measurements: Sequence[dict[str, Any]], release: str, model: str, device: str) -> list[Verdict]:
    """On the report's gains."""

    def gain(name: str, key: str) -> list[float]:
        return ratios(measurements, release, f"{model}: default", f"{model}: {name}", key)

    where = f"{release}, {model}"
    no_search = "cuDNN's algorithm search is the CUDA provider's" if device == "cpu" else "it failed"
    return [
        judge(claims.HEURISTIC_CREATION, where, "creation's speedup", gain("HEURISTIC", "creation"),
              at_least=claims.half_of(2.0), missing=no_search),
        judge(claims.HEURISTIC_FIRST_RUN, where, "speedup of both", gain("HEURISTIC", "both"),
              at_least=claims.half_of(2.0), missing=no_search),
        judge(claims.NO_OPTIMIZATION, where, "creation's speedup", gain("no optimization", "creation"),
              at_least=claims.half_of(2.5), missing="it failed"),
        judge(claims.PRE_OPTIMIZED, where, "creation's speedup", gain("pre-optimized", "creation"),
              at_least=claims.half_of(4.3), missing="it failed"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--threads", type=int, default=0, help="of a session on the CPU (default: 0, ONNX Runtime's)")
    parser.add_argument("--only", help="one of resnet50 and phi3-mini (default: both)")
    args = script.parse(parser, arguments)
    names = (args.own.only,) if args.own.only else ("resnet50", "phi3-mini")
    if args.quick:
        paths = [models.make("matmul", args.models, megabytes=4)]
    else:
        layers = LAYERS if args.on_gpus else LAYERS_ON_CPU
        paths = [models.make(name, args.models, layers=layers if name == "phi3-mini" else None) for name in names]
    device = args.devices[0]
    runs = 2 if args.quick else RUNS
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        cases = [case for path in paths for case in cases_of(path, device, Path(folder), args.own.threads, runs)]
        measurements = releases.measure(
            cases, args.releases, args.repeat, timeout=args.timeout, budget=args.budget, tell=args.tell
        )
    report = script.Report(
        "init_options",
        measurements,
        remarks=[
            f"On {device}. creation: the constructor alone, the libraries were opened before; speedups are over the "
            "default's, in the same round.",
            *(["On the CPU there is no algorithm search: HEURISTIC and DEFAULT need a GPU."] * (device == "cpu")),
        ],
        models=[script.model_facts(path) for path in paths],
        settings={"threads": args.own.threads, "runs": runs},
    )
    for path in paths:
        report.tables.append(
            (
                reports.OPTIONS,
                {f"{path.stem}, {one.name}": rows(measurements, one.name, path.stem) for one in args.releases},
                (*list(SECONDS)[1:], *list(SPEEDUPS)[1:]),
            )
        )
        for release in args.releases:
            report.verdicts += verdicts(measurements, release.name, path.stem, device)
    return script.finish(report, args)


if __name__ == "__main__":
    sys.exit(main())
