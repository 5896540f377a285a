"""What do options of one session gain: cuDNN's algorithm search, no graph optimization, a model optimized before?

Creation, the first run and later ones apart, since an algorithm search happens in the first run, and what is not
optimized or not searched for may cost in every later one. The cases of the report, and besides: cuDNN's search turned
off (DEFAULT), everything that the report recommends at once, and ortmulti with its cache of optimized models. Without
a GPU the algorithm search is left out.

    python -m benchmarks.init_options --devices 0

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import script
from benchmarks.published.verdicts import Cell, Verdict, figures, half_of, judge, ratios
from ortmulti.bench import models
from ortmulti.bench.files import write_arrays
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
WORKER = "benchmarks.published.init_worker"

Measurements = Sequence[Mapping[str, Any]]


def cases_of(model: Path, device: str, folder: Path, threads: int, runs: int) -> list[script.Case]:
    """The model's cases; the first one, which is prepared and not measured, saves the optimized model."""
    feeds = folder / f"{model.stem}.npz"
    write_arrays(feeds, models.sample_inputs(model))
    optimized = folder / "optimized" / f"{model.stem}.onnx"
    files = script.files_of(model)
    common: dict[str, Any] = {"device": device, "feeds": str(feeds), "threads": threads, "runs": runs,
                              "model": str(model)}  # fmt: skip
    theirs = {**common, "library": "onnxruntime", "optimize": True, "provider_options": {}}
    save = {**theirs, "runs": 0, "save": str(optimized), "external": len(files) > 1}
    found = [script.Case(f"{model.stem}: {SAVE}", WORKER, save, files, prepare=True, counted=False)]
    for name, (optimize, before, provider_options) in OPTIONS.items():
        if device != "cpu" or name not in ON_GPUS_ONLY:
            spec = {**theirs, "optimize": optimize, "provider_options": provider_options}
            if before:
                spec["model"] = str(optimized)
            found.append(script.Case(f"{model.stem}: {name}", WORKER, spec, () if before else files))
    cache = {"ORTMULTI_CACHE": str(folder / "cache")}
    ours = {**common, "library": "ortmulti"}
    found.append(script.Case(f"{model.stem}: {OURS}", WORKER, ours, files, cache, prepare=True))
    return found


def rows(measurements: Measurements, case: script.Case) -> dict[str, Cell]:
    """The measured cells of a case."""
    default = f"{case.name.partition(':')[0]}: default"
    return {
        **{column: Interval.of(figures(measurements, case.name, key)) for column, key in SECONDS.items()},
        **{column: Interval.of(ratios(measurements, default, case.name, key)) for column, key in SPEEDUPS.items()},
    }


def judged(measurements: Measurements, model: str, device: str) -> list[Verdict]:
    """On the report's gains."""
    no_search = "cuDNN's algorithm search is the CUDA provider's" if device == "cpu" else "it failed"
    return [
        judge(
            f"report: {claim}, {model}",
            "speedup",
            ratios(measurements, f"{model}: default", f"{model}: {name}", key),
            at_least=half_of(published),
            missing=no_search if name in ON_GPUS_ONLY else "it failed",
        )
        for claim, name, key, published in (
            ("HEURISTIC makes creation 2.0x as fast", "HEURISTIC", "creation", 2.0),
            ("HEURISTIC makes creation and first run 2-10x as fast", "HEURISTIC", "both", 2.0),
            ("without graph optimization creation is 2.5x as fast", "no optimization", "creation", 2.5),
            ("a model that was optimized before loads 4.3x as fast", "pre-optimized", "creation", 4.3),
        )
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "")
    parser.add_argument("--threads", type=int, default=0, help="of a session on the CPU (default: 0, ONNX Runtime's)")
    parser.add_argument("--only", help="one of resnet50 and phi3-mini (default: both)")
    args = script.parse(parser, arguments)
    device = args.devices[0]
    if args.quick:
        paths = [models.make("matmul", args.models, megabytes=4)]
    else:
        layers = {"phi3-mini": LAYERS_ON_CPU if device == "cpu" else LAYERS}
        names = (args.only,) if args.only else ("resnet50", "phi3-mini")
        paths = [models.make(name, args.models, layers=layers.get(name)) for name in names]
    runs = 2 if args.quick else RUNS
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
        cases = [case for path in paths for case in cases_of(path, device, Path(folder), args.threads, runs)]
        measurements = script.measure(cases, args)
    return script.finish(
        "init_options",
        args,
        measurements,
        {case.name: rows(measurements, case) for case in cases if case.counted},
        [verdict for path in paths for verdict in judged(measurements, path.stem, device)],
        f"On {device}. creation: the constructor alone, the libraries were opened before, except ortmulti's; speedups "
        "are over the default's, in the same round.",
        paths,
        {"threads": args.threads, "runs": runs},
    )


if __name__ == "__main__":
    sys.exit(main())
