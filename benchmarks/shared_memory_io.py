"""What does it cost to bring batches to sessions in other processes: pickled, through multiprocessing.shared_memory as
the report proposes, by ortmulti's processes; and to sessions in the same process?

A network that averages images, so that a batch is read once and the answer is small: what is measured is the way
there. Latency with one batch in flight, throughput with several for each session, by batch size.

- pickling: a ProcessPoolExecutor that is given arrays
- shared_memory: new memory for each batch, of which a worker gets the name, as in the report
- shared_memory, kept: the same with memory that is kept and stays attached
- processes: `ortmulti.load(backend="processes")`
- core: `ortmulti.load()`, no process and no way

    python benchmarks/shared_memory_io.py --devices 0,1

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import batches_worker, claims, releases, reports, script
from benchmarks.published.verdicts import Verdict, figures, judge, ratios
from ortmulti.bench.measure.devices import describe
from ortmulti.bench.measure.rounds import Interval

BATCHES, QUICK_BATCHES = (1, 8, 32), (1, 2)
SECONDS, QUICK_SECONDS = 1.0, 0.05


def write_image_mean(folder: Path) -> Path:
    """A network of one node: each channel's mean, of float32 images [batch, 3, 224, 224]."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["images"], ["means"])],
        "image-mean",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, ["batch", 3, 1, 1])],
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "image-mean.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def by_batch(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A measurement for each size of a batch."""
    found = []
    for one in measurements:
        if "error" in one:
            continue
        for batch, result in one["batches"].items():
            found.append(
                {**result, "case": f"{one['case']}, {batch}", "release": one["release"], "round": one["round"]}
            )
    return found


def rows(measurements: Sequence[dict[str, Any]], release: str, batches: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The measured lines, by way."""
    found: dict[str, dict[str, Any]] = {}
    for way in batches_worker.WAYS:
        cells: dict[str, Any] = {}
        for batch in batches:
            case = f"{way}, {batch}"
            latency = Interval.of(1e3 * value for value in figures(measurements, release, case, "p50"))
            cells[f"latency of {batch}, ms"] = latency
            cells[f"batches of {batch} a second"] = Interval.of(figures(measurements, release, case, "throughput"))
        found[way] = cells
    return found


def verdict(measurements: Sequence[dict[str, Any]], release: str, batches: Sequence[int]) -> Verdict:
    """On shared memory against pickling, for the largest batch."""
    shared, pickled = (f"{way}, {max(batches)}" for way in (batches_worker.SHARED_MEMORY, batches_worker.PICKLING))
    over = ratios(measurements, release, shared, pickled, "p50")
    what = f"latency of a batch of {max(batches)} through shared memory over that by pickling"
    return judge(claims.ZERO_COPY, release, what, over, at_most=1.0, missing="it failed")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "", repeat=3)
    parser.add_argument("--model", type=Path, help="an .onnx file (default: the one that averages images)")
    parser.add_argument("--batches", default="", help=f"sizes (default: {','.join(map(str, BATCHES))})")
    parser.add_argument("--seconds", type=float, help=f"of a measurement (default: {SECONDS:g})")
    parser.add_argument(
        "--in-flight", type=int, default=4, help="batches for each session, for throughput (default: 4)"
    )
    args = script.parse(parser, arguments)
    own = args.own
    batches = tuple(map(int, own.batches.split(","))) if own.batches else QUICK_BATCHES if args.quick else BATCHES
    seconds = own.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    model = own.model or write_image_mean(args.models)
    common = {"model": str(model), "devices": list(args.devices), "threads": 1, "batches": batches,
              "seconds": seconds, "in_flight": own.in_flight}  # fmt: skip
    worker = "benchmarks.published.batches_worker"
    cases = [
        # ortmulti's libraries, too, are read from the disk before anything counts.
        releases.Case(way, worker, {**common, "way": way}, prepare=way == batches_worker.CORE and args.repeat > 1)
        for way in batches_worker.WAYS
    ]
    measurements = releases.measure(
        cases, args.releases, args.repeat, timeout=args.timeout, budget=args.budget, tell=args.tell
    )
    found = by_batch(measurements)
    columns = [name for batch in batches for name in (f"latency of {batch}, ms", f"batches of {batch} a second")]
    measured = {release.name: rows(found, release.name, batches) for release in args.releases}
    sizes = ", ".join(f"{batch}: {one['bytes'] / 1e6:.1f} MB" for batch in batches
                      for one in found[:len(batches)] if one["case"].endswith(f", {batch}"))  # fmt: skip
    outputs = {(one["case"].rpartition(", ")[2], one["outputs"]) for one in found}
    report = script.Report(
        "shared_memory_io",
        measurements,
        tables=[(reports.SHARED_MEMORY, measured, columns)],
        verdicts=[verdict(found, release.name, batches) for release in args.releases],
        remarks=[
            f"{model.stem} on {describe(args.devices)}; batches of {sizes}. Latency: the median, one batch in flight. "
            f"Answers {'are the same by all ways' if len(outputs) == len(batches) else 'DIFFER between ways'}.",
            'Through shared memory "zero-copy" is one copy less: the batch is copied into it, and not out of it.',
        ],
        models=[script.model_facts(model)],
        settings={"batches": batches, "seconds": seconds, "in_flight": own.in_flight},
    )
    return script.finish(report, args)


if __name__ == "__main__":
    sys.exit(main())
