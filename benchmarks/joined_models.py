"""Are the answers of joined requests those that the same requests get alone? Over the ONNX files of a folder.

    python -m benchmarks.joined_corpus /tmp/corpus/models
    python -m benchmarks.joined_models /tmp/corpus/models --json models.json

Each model has a process of its own and is loaded twice: without batching, and with `Batching(8)`. Requests with values
of one sign, of both, large, equal and masked get their answers alone first. Then they are sent in random groups, in
--runs groups or for --seconds. Each answer is compared with the one alone. Besides, onnxruntime itself runs groups that
NumPy joined: "truth" says whether the model may be joined, without a word of ortmulti.

Of wrong answers, those count as "after_notice" that came after the pool's statistics said that it does not join.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ortmulti as om
from benchmarks.joined_answers import (
    KINDS,
    Answer,
    Feed,
    compare,
    groups,
    make_feed,
    notice,
    truth_by_hand,
    usual_sizes,
)
from ortmulti.bench.measure import fresh_process, machine
from ortmulti.create.sample_inputs import TOKENS, first_fit, growing_inputs, sample_inputs

LARGEST = 8


class Records(logging.Handler):
    """Keeps the warnings of the library's logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("ortmulti.onnxruntime"):
            self.texts.append(record.getMessage())


def find_requests(pool: om.Pool, count: int, sequence: int) -> tuple[list[Feed], list[Answer], dict[str, Any]]:
    """Make requests of 1, 2 and 3 rows that the model takes alone, with their answers; and what was seen."""
    shapes, tokens = fitting_shapes(pool, sequence)
    feeds: list[Feed] = []
    answers: list[Answer] = []
    seen: Counter[str] = Counter()
    begin, most, numbers = time.perf_counter(), 1, random.Random(0)
    for seed in range(4 * count):
        if len(feeds) >= count or time.perf_counter() - begin > 60:
            break
        if seed == 2:
            most = 3
        rows = 1 + numbers.randrange(most) if numbers.random() < 0.4 else 1
        sized = {name: (rows, *shape[1:]) if rows > 1 and shape else shape for name, shape in shapes.items()}
        feed = make_feed(pool.get_inputs(), sized, seed, KINDS[seed % len(KINDS)], tokens)
        try:
            answer = pool.run(None, feed)
            if compare(answer, pool.run(None, feed)).is_wrong:
                seen["random"] += 1
                continue
        except om.Error:
            seen[f"failed alone, rows {rows}"] += 1
            continue
        feeds.append(feed)
        answers.append(answer)
    return feeds, answers, {"shapes": shapes, "tokens": tokens, **seen}


def fitting_shapes(pool: om.Pool, sequence: int) -> tuple[dict[str, tuple[int, ...]], int]:
    """Find shapes of inputs of one row that the model takes, and a number of token ids that it has at least.

    Open dimensions of `sequence` are tried first, unless it is 0.
    """
    declared = pool.get_inputs()
    small = [sample_inputs(declared, 1, sequence)] if sequence else []
    first: om.Error | None = None
    for tokens in (TOKENS, 24, 4):

        def run(feed: Feed, tokens: int = tokens) -> dict[str, tuple[int, ...]]:
            shapes = {name: value.shape for name, value in feed.items()}
            pool.run(None, make_feed(declared, shapes, 0, "normal", tokens))
            return shapes

        try:
            return first_fit(itertools.chain(small, growing_inputs(declared)), run), tokens
        except om.Error as error:
            first = first or error
    assert first is not None
    raise first


def truth(path: str, feeds: list[Feed], answers: list[Answer], seconds: float) -> dict[str, Any]:
    """Say whether joint runs of onnxruntime, joined and split by NumPy, have the answers of each request alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    numbers, end = random.Random(1), time.perf_counter() + seconds
    drawn = (groups(numbers, len(feeds), LARGEST) for _ in range(60))
    in_time = itertools.takewhile(lambda _: time.perf_counter() < end, drawn)
    found = truth_by_hand(partial(session.run, None), feeds, answers, in_time)
    return {
        "truth": found.why_not or "may be joined",
        "truth_difference": found.largest,
        "truth_detail": found.detail,
    }


def send(pool: om.Pool, feeds: list[Feed], answers: list[Answer], spec: dict[str, Any]) -> dict[str, Any]:
    numbers, counts, kinds, largest = random.Random(2), Counter[str](), Counter[str](), 0.0
    end, example, sizes = time.perf_counter() + spec["seconds"], "", usual_sizes(answers)
    while counts["groups"] < spec["runs"] and time.perf_counter() < end:
        chosen = groups(numbers, len(feeds), LARGEST)
        noticed = notice(pool.stats())
        futures = [pool.submit(None, feeds[index]) for index in chosen]
        counts["groups"] += 1
        for index, future in zip(chosen, futures, strict=True):
            try:
                found = compare(answers[index], future.result(), sizes)
            except om.Error as error:
                counts["failed"] += 1
                example = example or f"{type(error).__name__}: {str(error)[:200]}"
                continue
            counts["answers"] += 1
            kinds[found.kind] += 1
            largest = max(largest, found.size)
            if found.is_wrong:
                counts["after_notice" if noticed else "silently_wrong"] += 1
                example = example or f"request {index} ({KINDS[index % len(KINDS)]}): {found.kind} {found.size:.3g}"
    stats = pool.stats()
    [device] = stats.devices
    return {
        "runs": device.runs,
        "joined": device.batch_size.mean > 1,
        "requests_a_run": device.batch_size.mean,
        **{name: counts[name] for name in ("groups", "answers", "silently_wrong", "after_notice", "failed")},
        "differences": {kind or "equal": number for kind, number in kinds.items()},
        "largest_difference": largest,
        "example": example,
        "why_not": notice(stats),
        "unbatched": stats.unbatched,
        "audit_differences": getattr(stats, "audit_differences", None),
    }


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One model in this process."""
    records = Records()
    logging.getLogger("ortmulti").addHandler(records)
    logging.getLogger("ortmulti").propagate = False
    path, options = spec["model"], om.SessionOptions()
    options.intra_op_num_threads = 1
    found: dict[str, Any] = {"megabytes": Path(path).stat().st_size / 1e6}
    with om.load(path, "cpu", 1, options) as pool:
        found["inputs"] = [[one.name, one.type, one.shape] for one in pool.get_inputs()][:8]
        found["outputs"] = [[one.name, one.type, one.shape] for one in pool.get_outputs()][:8]
        try:
            feeds, answers, found["seen"] = find_requests(pool, spec["requests"], spec["sequence"])
        except om.Error as error:
            return {**found, "joined": False, "truth": "no random inputs fit", "why_not": str(error)[:300]}
    if len(feeds) < 2:
        return {**found, "joined": False, "truth": "no random inputs fit", "why_not": str(found["seen"])}
    found.update(truth(path, feeds, answers, spec["seconds"]))
    records.texts.clear()
    begin = time.perf_counter()
    om.load(path, "cpu", 1, options).close()
    found["load_s"] = time.perf_counter() - begin
    begin = time.perf_counter()
    try:
        pool = om.load(path, "cpu", 1, options, batching=om.Batching(LARGEST, max_delay_ms=spec["delay_ms"]))
    except om.Error as error:
        return {**found, "joined": False, "refused": True, "why_not": str(error)[:400]}
    with pool:
        found["load_batching_s"] = time.perf_counter() - begin
        found["warnings_at_load"] = [text[:400] for text in records.texts]
        found.update(send(pool, feeds, answers, spec))
    later = records.texts[len(found["warnings_at_load"]) :]
    return {**found, "requests": len(feeds), "warnings_later": [text[:400] for text in later[:3]]}


def is_right(found: dict[str, Any]) -> bool:
    return not any(found.get(name) for name in ("error", "silently_wrong", "after_notice", "failed"))


def shorten(found: dict[str, Any]) -> dict[str, Any]:
    """Keep what tells whether a model's answers are right, and why it is not joined."""
    names = ("error", "truth", "refused", "requests_a_run", "answers", "silently_wrong", "after_notice", "failed")
    more = ("largest_difference", "load_s", "load_batching_s", "audit_differences", "why_not")
    values = {name: found[name] for name in names + more if found.get(name)}
    short: dict[str, Any] = {
        name: float(f"{value:.2g}") if isinstance(value, float) else value for name, value in values.items()
    }
    if "why_not" in short:
        text = short["why_not"].rpartition("INVALID_ARGUMENT : ")[2]
        short["why_not"] = text.replace("batching joins requests along dimension 0, but ", "")[:70]
    return {**short, "warned": len(found["warnings_at_load"])} if found.get("warnings_at_load") else short


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'model':56} {'truth':26} {'joined':>7} {'wrong':>9} {'largest':>8} {'load s':>13}  why not")
    for name, found in results.items():
        joined = "refused" if found.get("refused") else f"{found.get('requests_a_run', 0):.1f}"
        wrong = f"{found.get('silently_wrong', 0)}+{found.get('after_notice', 0)}/{found.get('answers', 0)}"
        loads = f"{found.get('load_s', 0):.2f} {found.get('load_batching_s', 0):.2f}"
        why = found.get("error") or found.get("why_not", "")
        print(
            f"{name[-56:]:56} {found.get('truth', '?'):26} {joined:>7} {wrong:>9}"
            f" {found.get('largest_difference', 0):8.1e} {loads:>13}  {str(why)[:90]}"
        )
    print(Counter(found.get("truth", "error") for found in results.values()))
    wrong_models = [name for name, found in results.items() if not is_right(found)]
    print(f"{len(results)} models, not right: {len(wrong_models)}", *wrong_models, sep="\n  ")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200, help="groups of 2 to 8 requests (%(default)s)")
    parser.add_argument("--requests", type=int, default=32, help="different requests (%(default)s)")
    parser.add_argument(
        "--sequence",
        type=int,
        default=0,
        help="size of open dimensions that is tried first; one below 8 is sometimes the number of rows of a joint run",
    )
    parser.add_argument("--seconds", type=float, default=60, help="at most for the groups of a model (%(default)s)")
    parser.add_argument("--delay-ms", type=float, default=5, help="of Batching (%(default)s)")
    parser.add_argument("--only", default="", help="models with this in their path")
    parser.add_argument("--json", type=Path, help="one line for each model")
    parser.add_argument("--details", type=Path, help="JSON with inputs, outputs, warnings and examples besides")
    arguments = parser.parse_args(argv)
    paths = sorted(path for path in arguments.folder.rglob("*.onnx") if arguments.only in str(path))
    common = {name: getattr(arguments, name) for name in ("runs", "requests", "sequence", "seconds", "delay_ms")}
    results: dict[str, dict[str, Any]] = {}
    for path in paths:
        name = str(path.relative_to(arguments.folder))
        limit = 4 * arguments.seconds + 240
        try:
            found = fresh_process.run(
                "benchmarks.joined_models",
                {**common, "model": str(path)},
                limit,
                {"PYTHONPATH": ":".join(sys.path)},
            )
        except fresh_process.MeasurementError as error:
            found = {"error": str(error)[:400], "stderr": error.stderr[-400:]}
        results[name] = found
        short = {key: found[key] for key in ("truth", "joined", "silently_wrong", "why_not", "error") if key in found}
        print(name, json.dumps(short), flush=True)
        if arguments.details:
            arguments.details.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print_table(results)
    if arguments.json:
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(shorten(found))}" for name, found in results.items())
        head = json.dumps({**common, "machine": machine.describe()}, indent=1)
        arguments.json.write_text(f'{head[:-2]},\n "results": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    return int(not all(map(is_right, results.values())))


if __name__ == "__main__":
    sys.exit(main())
