"""What does it cost to bring batches to sessions in other processes: pickled, through multiprocessing.shared_memory as
the report proposes; and to sessions in the same process?

A network that averages images, so that a batch is read once and the answer is small: what is measured is the way
there. Latency with one batch in flight, throughput with several for each session, by batch size.

- pickling: a ProcessPoolExecutor that is given arrays
- shared_memory: new memory for each batch, of which a worker gets the name, as in the report
- shared_memory, kept: the same with memory that is kept and stays attached
- core: `ortmulti.load()`, no process and no way

    python -m benchmarks.shared_memory_io --devices 0,1

Exit status 1 if a measurement failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import batches_worker, script
from benchmarks.published.verdicts import Cell, figures, judge, ratios
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
    return [
        {**result, "case": f"{one['case']}, {batch}", "round": one["round"], "batch": batch}
        for one in measurements
        if "error" not in one
        for batch, result in one["batches"].items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = script.parser(__doc__ or "", repeat=3)
    parser.add_argument("--model", type=Path, help="an .onnx file (default: the one that averages images)")
    parser.add_argument("--batches", default="", help=f"sizes (default: {','.join(map(str, BATCHES))})")
    parser.add_argument("--seconds", type=float, help=f"of a measurement (default: {SECONDS:g})")
    parser.add_argument(
        "--in-flight", type=int, default=4, help="batches for each session, for throughput (default: 4)"
    )
    args = script.parse(parser, arguments)
    batches = tuple(map(int, args.batches.split(","))) if args.batches else QUICK_BATCHES if args.quick else BATCHES
    settings = {
        "batches": batches,
        "seconds": args.seconds or (QUICK_SECONDS if args.quick else SECONDS),
        "in_flight": args.in_flight,
    }
    model = args.model or write_image_mean(args.models)
    common = {"model": str(model), "devices": list(args.devices), "threads": 1, **settings}
    worker = "benchmarks.published.batches_worker"
    cases = [
        # ortmulti's libraries, too, are read from the disk before anything counts.
        script.Case(way, worker, {**common, "way": way}, prepare=way == batches_worker.CORE and args.repeat > 1)
        for way in batches_worker.WAYS
    ]
    measurements = script.measure(cases, args)
    found = by_batch(measurements)
    rows: dict[str, dict[str, Cell]] = {way: {} for way in batches_worker.WAYS}
    for way, cells in rows.items():
        for batch in batches:
            case = f"{way}, {batch}"
            cells[f"latency of {batch}, ms"] = Interval.of(figures(found, case, "p50", 1e3))
            cells[f"batches of {batch} a second"] = Interval.of(figures(found, case, "throughput"))
    shared, pickled = (f"{way}, {max(batches)}" for way in (batches_worker.SHARED_MEMORY, batches_worker.PICKLING))
    verdict = judge(
        "report: shared memory brings batches to processes without copies, faster than pickling",
        f"latency of a batch of {max(batches)} over that by pickling",
        ratios(found, shared, pickled, "p50"),
        at_most=1.0,
    )
    sizes = ", ".join(
        f"{batch}: {size / 1e6:.1f} MB" for batch, size in {one["batch"]: one["bytes"] for one in found}.items()
    )
    equal = len({(one["batch"], one["outputs"]) for one in found}) == len(batches)
    remark = (
        f"{model.stem} on {describe(args.devices)}; batches of {sizes}. Latency: the median, one batch in flight. "
        f"Answers {'are the same by all ways' if equal else 'DIFFER between ways'}.\n"
        'Through shared memory "zero-copy" is one copy less: the batch is copied into it, and not out of it.'
    )
    return script.finish("shared_memory_io", args, measurements, rows, [verdict], remark, [model], settings)


if __name__ == "__main__":
    sys.exit(main())
