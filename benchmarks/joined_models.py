"""Are the answers of joined requests those that the same requests get alone? Over the ONNX files of a folder.

    python -m benchmarks.joined_corpus /tmp/corpus/models
    python -m benchmarks.joined_models --folder /tmp/corpus/models --json models.json

Each model has a process of its own and is loaded twice: without batching, and with `Batching(8)`. Requests with values
of one sign, of both, large, equal and masked get their answers alone first. Then they are sent in random groups, in
--runs groups or for --seconds. Each answer is compared with the one alone. Besides, onnxruntime itself runs groups that
NumPy joined: "truth" says whether the model may be joined, without a word of ortmulti.

Of wrong answers, those count as "after_notice" that came after the pool's statistics said that it does not join.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.create.sample_inputs import TOKENS, first_fit, growing_inputs, sample_inputs

LARGEST = 8
WRONG = ("silently_wrong", "after_notice", "failed")


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


def _text(key: str) -> Column:
    return Column(key, key, summary=None, show=lambda row: (str(row[key])[:80], ""))


@dataclass
class JoinedModels(Script[str]):
    """The options of the command line."""

    kind, columns = "joined models", (
        _text("truth"),
        Column("requests_a_run", "requests a run"),
        *(Column(key, key, summary=sum, text="{:.0f}".format) for key in ("answers", *WRONG)),
        Column("largest_difference", "largest difference", text="{:.1e}".format),
        Column("load_s", "load, s"),
        Column("load_batching_s", "with batching, s"),
        _text("why_not"),
    )  # fmt: skip
    folder: Path = option(Path("models"), "has .onnx files, also in folders")
    runs: int = option(200, "groups of 2 to 8 requests")
    requests: int = option(32, "different requests")
    sequence: int = option(0, "of open dimensions, tried first; below 8 it may be a joint run's number of rows")
    seconds: float = option(60.0, "at most for the groups of a model")
    delay_ms: float = option(5.0, "of Batching")
    only: str = option("", "models with this in their path")

    def __post_init__(self) -> None:
        self.timeout = 4 * self.seconds + 240

    def cases(self, number: int = 0) -> Sequence[str]:
        paths = sorted(path.relative_to(self.folder) for path in self.folder.rglob("*.onnx"))
        return [str(path) for path in paths if self.only in str(path)]

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return self.fresh({"model": str(self.folder / case)})

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Any]) -> dict[str, Any]:
        return {key: good[0].get(key, "") if good else "error" for key in ("truth", "why_not")}

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        wrong = [f"{measurement[key]} {key}" for key in WRONG if measurement.get(key)]
        return [*super().complaints(measurement), *wrong]


if __name__ == "__main__":
    sys.exit(script.main(JoinedModels))
