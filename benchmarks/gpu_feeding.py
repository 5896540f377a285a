"""How many requests under way and sessions keep one GPU busy, with CUDA graphs and without, and how many cores?

A closed loop over every combination of `in_flight` 1 to 6, `sessions_per_device` 1 to 3 and `cuda_graph` off and on;
over `load`'s defaults; and over one session of the onnxruntime package with several Python threads. Each case is
measured with one client ("one": latency without a queue) and with many ("many": the rate). The cases take turns.

    python benchmarks/gpu_feeding.py --model bert-base --json feeding.json
    python benchmarks/gpu_feeding.py --model resnet50 --batch 32 --rounds 2 --budget 500
    python benchmarks/gpu_feeding.py --from feeding.json

`bert-base` is exported from transformers with random weights, which needs PyTorch. Other names are those of
`ortmulti models`, or paths.

Exit status 1 if a case failed, or the defaults answer less than --least-share of what the best case does.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import _core
from ortmulti.bench import models
from ortmulti.bench.measure import page_cache, results
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import alternating, failure, measure_rounds
from ortmulti.bench.serve.clients import NANOSECONDS, ClosedLoop, closed_loop
from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import Error

LEAST_SHARE = 0.95
DEFAULTS = "defaults"


@dataclass(frozen=True)
class Case:
    """One way to run the model.

    Attributes:
        way: "pool", "defaults" (a pool without options) or "onnxruntime".
        in_flight, sessions, cuda_graph: A pool's.
        threads: Of onnxruntime: how many clients run its session, each in a thread.
    """

    way: str
    in_flight: int = 0
    sessions: int = 1
    cuda_graph: bool = False
    threads: int = 0

    @property
    def name(self) -> str:
        if self.way == DEFAULTS:
            return DEFAULTS
        if self.way == "onnxruntime":
            return f"onnxruntime, {self.threads} threads"
        return f"in_flight={self.in_flight} sessions={self.sessions}" + (" graph" if self.cuda_graph else "")


def cases(
    in_flight: Sequence[int], sessions: Sequence[int], graphs: Sequence[bool], threads: Sequence[int]
) -> list[Case]:
    """All cases, the ones without a pool first."""
    return [
        *(Case("onnxruntime", threads=count) for count in threads),
        Case(DEFAULTS),
        *(Case("pool", flying, count, graph) for graph in graphs for count in sessions for flying in in_flight),
    ]


@contextmanager
def opened(case: Case, model: Path, device: str, feed: Mapping[str, Any]) -> Iterator[tuple[Callable[[], Any], Any]]:
    """What a client calls, and the pool, warm; None for onnxruntime."""
    if case.way == "onnxruntime":
        session = SessionSettings.side_by_side([device], _core.usable_cores()).creator(model, device)()
        session.run(None, feed)
        yield lambda: session.run(None, feed), None
        return
    options: dict[str, Any] = (
        {} if case.way == DEFAULTS else {"in_flight": case.in_flight, "cuda_graph": case.cuda_graph}
    )
    with ortmulti.load(model, device, case.sessions, **options, warmup=ortmulti.Warmup(feed)) as pool:
        yield lambda: pool.run(None, feed), pool


def loop(asks: Sequence[Callable[[], Any]], warm_seconds: float, seconds: float) -> dict[str, Any]:
    """Measure a closed loop with a client for each of `asks`.

    Returns:
        "clients", "requests", "throughput", "latency", and "cores": processor seconds a second.
    """
    with ClosedLoop(asks) as running:
        running.until_answered()
        running.go_on(warm_seconds)
        before = time.process_time()
        begin, end = running.go_on(seconds)
        used = time.process_time() - before
    answers = [answer for client in running.answers for answer in client]
    cores = used * NANOSECONDS / (end - begin)
    return {"clients": len(asks), **closed_loop(answers, begin, end), "cores": cores}


def measure(case: Case, model: Path, device: str, feed: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """A case's "one" and "many", and the pool's "serving" where its statistics say it, in a pool made for it."""
    begin = time.perf_counter()
    with opened(case, model, device, feed) as (ask, pool):
        load_seconds = time.perf_counter() - begin
        # Settings that are chosen while the pool runs need longer.
        warm = args.settle if case.way == DEFAULTS else args.warm
        many = loop([ask] * (case.threads or args.clients), warm, args.seconds)
        one = loop([ask], args.warm / 2, args.seconds / 2)
        result = {"load_seconds": load_seconds, "many": many, "one": one}
        if pool is not None:
            [stats] = pool.stats().devices
            result |= {
                "memory_used": stats.memory_used,
                "in_flight": stats.in_flight,
                "why_in_flight": stats.why_in_flight,
            }
    return result


def summarize(rounds: Sequence[Mapping[Case, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each case, the best rate first: medians over the rounds, and "of_best", its part of the best rate."""
    rows: list[dict[str, Any]] = []
    for case in dict.fromkeys(case for one in rounds for case in one):
        found = [one[case] for one in rounds if case in one and "error" not in one[case]]
        if not found:
            continue

        def median(value: Callable[[Mapping[str, Any]], float], found: list[Mapping[str, Any]] = found) -> float:
            return statistics.median(map(value, found))

        rows.append({
            "case": case.name,
            "throughput": median(lambda one: one["many"]["throughput"]),
            "cores": median(lambda one: one["many"]["cores"]),
            "p50": median(lambda one: one["many"]["latency"]["p50"]),
            "one_p50": median(lambda one: one["one"]["latency"]["p50"]),
            "one_p99": median(lambda one: one["one"]["latency"]["p99"]),
            "one_cores": median(lambda one: one["one"]["cores"]),
            "chosen": found[-1].get("in_flight"),
            "why": found[-1].get("why_in_flight"),
        })  # fmt: skip
    best = max((row["throughput"] for row in rows), default=0.0)
    return sorted(({**row, "of_best": row["throughput"] / best} for row in rows), key=lambda row: -row["throughput"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| case | answers/s | of the best | cores | p50, ms | alone: p50, ms | p99, ms | cores |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        chosen = "" if row["chosen"] is None else f" ({row['chosen']}: {row['why']})"
        lines.append(
            f"| {row['case']}{chosen} | {row['throughput']:.0f} | {row['of_best']:.3f} | {row['cores']:.2f} | "
            f"{row['p50'] * 1e3:.2f} | {row['one_p50'] * 1e3:.2f} | {row['one_p99'] * 1e3:.2f} | "
            f"{row['one_cores']:.2f} |"
        )
    return "\n".join(lines)


def missed(document: Mapping[str, Any], least_share: float) -> list[str]:
    """What is not as it should be, a text each."""
    texts = [f"{one['case']['name']}: {one['error']}" for one in document["measurements"] if "error" in one]
    for row in document["rows"]:
        if row["case"] == DEFAULTS and row["of_best"] < least_share:
            texts.append(f"the defaults answer {row['of_best']:.3f} of the best, less than {least_share:g}")
    return texts


def make_model(name: str, folder: Path, batch: int, sequence: int) -> Path:
    """The model's path; made unless it is there."""
    if name != "bert-base":
        return models.make(name, folder) if name in models.MODELS else Path(name)
    path = folder / f"bert-base-{batch}x{sequence}.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # In a process of its own: PyTorch brings CUDA libraries that the measured process must not have.
        command = [sys.executable, __file__, "--export", str(path), "--batch", str(batch), "--sequence", str(sequence)]
        subprocess.run(command, check=True)
    return path


def export_bert(path: Path, batch: int, sequence: int) -> None:
    """Export BERT-base with random weights and fixed shapes."""
    import onnx
    import torch
    import transformers  # type: ignore[import-not-found]

    torch.manual_seed(0)
    bert = transformers.BertModel(transformers.BertConfig(attn_implementation="eager")).eval()

    class Outputs(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)

    ids = torch.randint(0, 30_000, (batch, sequence))
    names = ["input_ids", "attention_mask"], ["last_hidden_state", "pooler_output"]
    problems = []
    for dynamo in (True, False):  # the first cannot export every release of transformers
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            part = Path(scratch) / "model.onnx"
            try:
                torch.onnx.export(
                    Outputs(), (ids, torch.ones_like(ids)), str(part), input_names=names[0], output_names=names[1],
                    opset_version=18 if dynamo else 17, dynamo=dynamo,
                )  # fmt: skip
                exported = onnx.load(part)  # one file, whatever the exporter wrote
            except Exception as error:  # exporters raise anything
                problems.append(f"dynamo={dynamo}: {type(error).__name__}: {error}")
                continue
            onnx.save(exported, part.with_suffix(".whole"))
            part.with_suffix(".whole").rename(path)
            return
    raise SystemExit("BERT could not be exported:\n" + "\n".join(problems))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The result, of kind "feeding"."""
    device = str(parse_devices(args.device)[0])
    model = make_model(args.model, args.models, args.batch, args.sequence)
    feed = models.sample_inputs(model, args.batch, args.sequence)
    graphs = [False, True] if device.startswith("cuda") else [False]
    grid = cases(args.in_flight, args.sessions, [graph for graph in graphs if graph in args.graphs], args.threads)

    number_of_case = itertools.count(1)

    def one(case: Case, _: int) -> dict[str, Any]:
        print(f"{next(number_of_case)} of {args.rounds * len(grid)}: {case.name}", file=sys.stderr, flush=True)
        try:
            return measure(case, model, device, feed, args)
        except Error as error:
            return failure(error)

    rounds = measure_rounds(grid, one, args.rounds, order=alternating, budget=args.budget)
    document = results.document(
        "feeding",
        settings={key: getattr(args, key) for key in ("batch", "sequence", "seconds", "warm", "settle", "clients")},
        device=device,
        models=[results.model_facts(model, page_cache.external_files(model))],
        measurements=[
            {"round": number, "case": {**asdict(case), "name": case.name}, **result}
            for number, this in enumerate(rounds)
            for case, result in this.items()
        ],
        rows=summarize(rounds),
    )
    document["command"][0] = "benchmarks/gpu_feeding.py"
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-base", help="bert-base, a name of `ortmulti models`, or a path")
    parser.add_argument("--batch", type=int, default=1, help="rows of a request (default: 1)")
    parser.add_argument("--sequence", type=int, default=128, help="of dynamic dimensions (default: 128)")
    parser.add_argument("--device", default="all", help="one device (default: the first)")
    parser.add_argument("--in-flight", type=numbers, default=(1, 2, 3, 4, 5, 6), help="default: 1,2,3,4,5,6")
    parser.add_argument("--sessions", type=numbers, default=(1, 2, 3), help="default: 1,2,3")
    parser.add_argument("--graphs", type=numbers, default=(0, 1), help="0: without, 1: with CUDA graphs (default: 0,1)")
    parser.add_argument("--threads", type=numbers, default=(1, 4, 8, 16), help="of onnxruntime (default: 1,4,8,16)")
    parser.add_argument("--clients", type=int, default=32, help="of the closed loop (default: 32)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measurement; half for one client (default: 2)")
    parser.add_argument("--warm", type=float, default=0.4, help="seconds before it (default: 0.4)")
    parser.add_argument("--settle", type=float, default=3.0, help="the same for the defaults (default: 3)")
    parser.add_argument("--rounds", type=int, default=1, help="default: 1")
    parser.add_argument("--budget", type=float, help="seconds for all rounds (default: any number)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="the models' folder (default: models)")
    parser.add_argument("--least-share", type=float, default=LEAST_SHARE, help=f"default: {LEAST_SHARE}")
    parser.add_argument("--from", type=Path, dest="result", help="show this result instead of measuring")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--export", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.export:
        export_bert(args.export, args.batch, args.sequence)
        return 0
    document = results.load(args.result) if args.result else measured(args)
    print(table(document["rows"]))
    if args.json:
        results.save(document, args.json)
    texts = missed(document, args.least_share)
    for text in texts:
        print(f"missed: {text}")
    return int(bool(texts))


if __name__ == "__main__":
    sys.exit(main())
