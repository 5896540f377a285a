"""Are joined answers right for random graphs, and are those joined that may be? Some rows depend on each other there.

    python -m benchmarks.joined_graphs --graphs 50000 --seed 1 --json graphs.json
    python -m benchmarks.joined_graphs --only 123456

Each graph's truth comes from onnxruntime and NumPy alone: requests with values of one sign, of both, large, equal and
zero run alone, and in groups that NumPy joins and splits. Then a pool with `Batching` gets groups of them. Counted are:

wrong: answers that differ from those alone, before the pool's statistics say that it does not join.
wrong after notice: those in groups that were sent later.
kept apart: graphs whose requests are not joined though they may be, and that have no special part.
kept apart, perhaps: those with a part that could mix rows, and whose answers never show it.
tried in vain: graphs whose joint runs fail, and that are joined again and again.
at risk: other graphs that are joined although the truth says no, without a wrong answer so far.

For each kind of graph that failed, the seed of one is given.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.joined_answers import (
    JOINT_RUNS_FAIL,
    KINDS,
    Answer,
    Feed,
    compare,
    groups,
    make_feed,
    notice,
    rows_of,
    truth_by_hand,
    usual_sizes,
)
from benchmarks.joined_parts import WIDTH
from benchmarks.joined_random import IDS, make_graph
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.script import Script, option

HAND_GROUPS, MORE_GROUPS, POOL_GROUPS = 24, 500, 12
REQUESTS = 3 * len(KINDS)
FAILS = ("wrong", "wrong after notice", "kept apart", "kept apart, perhaps", "tried in vain", "at risk", "failed")


def make_feeds(inputs: Sequence[str]) -> list[Feed]:
    """Requests of 1 to 3 rows, of each kind of values."""
    types = {name: "tensor(int64)" if name == "ids" else "tensor(float)" for name in inputs}
    widths = {name: IDS if name == "ids" else WIDTH for name in inputs}
    declared = [SimpleNamespace(name=name, type=types[name]) for name in inputs]
    return [
        make_feed(
            declared,
            {name: (1 + seed // len(KINDS), widths[name]) for name in inputs},
            seed,
            KINDS[seed % len(KINDS)],
        )
        for seed in range(REQUESTS)
    ]


class Measurement:
    """Takes graphs in a process of its own."""

    def __init__(self) -> None:
        import onnxruntime

        import ortmulti as om

        self.onnxruntime, self.om = onnxruntime, om
        self.feeds: dict[tuple[str, ...], list[Feed]] = {}
        self.options = {}
        for library in (onnxruntime, om):
            options: Any = library.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 4
            self.options[library] = options

    def take(self, seed: int) -> dict[str, Any]:
        """Decide the truth about one graph and ask a pool."""
        model, parts, inputs = make_graph(seed)
        key = tuple(inputs)
        if key not in self.feeds:
            self.feeds[key] = make_feeds(inputs)
        return self.judge(model, self.feeds[key], {"seed": seed, "parts": parts})

    def judge(self, model: bytes, feeds: Sequence[Feed], found: dict[str, Any]) -> dict[str, Any]:
        """Decide the truth about a model with these requests, and ask a pool; `found` names its seed and parts."""
        numbers = random.Random(found["seed"])
        try:
            session = self.onnxruntime.InferenceSession(
                model, self.options[self.onnxruntime], providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            return {**found, "truth": "no model", "detail": str(error)[:300]}
        usable: list[tuple[Feed, Answer]] = []
        for feed in feeds:
            try:
                answer = session.run(None, feed)
                if not compare(answer, session.run(None, feed)).is_wrong:  # nothing random
                    usable.append((feed, answer))
            except Exception as error:
                found["detail"] = str(error)[:300]
        if len(usable) < 4:
            return {**found, "truth": "no model"}
        found["truth"] = self._truth(session, usable, numbers, HAND_GROUPS)
        found.update(self._ask_pool(model, usable, numbers))
        if not found["truth"] and failures(found):
            found["truth"] = self._truth(session, usable, numbers, MORE_GROUPS)
        return found

    def _truth(self, session: Any, usable: list[tuple[Feed, Answer]], numbers: random.Random, count: int) -> str:
        """Empty if requests may be joined; otherwise why not."""
        drawn = (groups(numbers, len(usable), 5) for _ in range(count))
        feeds, answers = zip(*usable, strict=True)
        return truth_by_hand(partial(session.run, None), feeds, answers, drawn).why_not

    def _ask_pool(self, model: bytes, usable: list[tuple[Feed, Answer]], numbers: random.Random) -> dict[str, Any]:
        largest, om = numbers.randint(4, 8), self.om
        sizes = usual_sizes([alone for _, alone in usable])
        batching = om.Batching(largest, max_delay_ms=1)
        counts: Counter[str] = Counter()
        try:
            pool = om.load(model, "cpu", 1, self.options[om], batching=batching)
        except Exception as error:
            return {"notice": f"load: {type(error).__name__}: {error}"[:300], "joined": False}
        with pool:
            example, noticed = "", ""
            for turn in range(POOL_GROUPS):
                noticed = noticed or notice(pool.stats())
                # A full run need not wait for others; a smaller one has a number of rows that comes by chance.
                group = _filling(usable, numbers, largest if turn % 3 else numbers.randint(2, largest))
                futures = [pool.submit(None, feed) for feed, _ in group]
                for (_, alone), future in zip(group, futures, strict=True):
                    try:
                        difference = compare(alone, future.result(), sizes)
                    except Exception as error:
                        counts["failed"] += 1
                        example = example or f"{type(error).__name__}: {error}"[:200]
                        continue
                    counts["answers"] += 1
                    if difference.is_wrong:
                        counts["wrong after notice" if noticed else "wrong"] += 1
                        example = example or f"{difference.kind} {difference.size:.3g}"
            stats = pool.stats()
        joined = stats.devices[0].batch_size.mean > 1 and not notice(stats)
        return {**counts, "joined": joined, "notice": notice(stats)[:300], "example": example}


def _filling(usable: list[tuple[Feed, Answer]], numbers: random.Random, rows: int) -> list[tuple[Feed, Answer]]:
    """Choose requests of so many rows in all."""
    chosen: list[tuple[Feed, Answer]] = []
    while rows:
        fitting = [one for one in usable if rows_of(one[0]) <= rows]
        if not fitting:
            return chosen
        chosen.append(numbers.choice(fitting))
        rows -= rows_of(chosen[-1][0])
    return chosen


def failures(found: dict[str, Any]) -> list[str]:
    """What is wrong with one graph's result."""
    if found["truth"] == "no model":
        return []
    fails = [kind for kind in ("wrong", "wrong after notice", "failed") if found.get(kind)]
    if not found["truth"] and not found["joined"]:
        fails.append(
            "kept apart" if all(part.startswith("safe: ") for part in found["parts"]) else "kept apart, perhaps"
        )
    if found["truth"] and found["joined"] and not found.get("wrong"):
        fails.append("tried in vain" if found["truth"] == JOINT_RUNS_FAIL else "at risk")
    return fails


_measurement: Measurement | None = None


def take_many(seeds: range) -> list[dict[str, Any]]:
    """Take graphs in this process, which is a worker."""
    global _measurement
    if _measurement is None:
        import onnxruntime

        logging.getLogger("ortmulti").setLevel(logging.CRITICAL)
        onnxruntime.set_default_logger_severity(4)
        _measurement = Measurement()
    return [_measurement.take(seed) for seed in seeds]


def summarize(results: list[dict[str, Any]]) -> dict[str, Any]:
    truths = Counter(found["truth"] or "may be joined" for found in results)
    fails: Counter[str] = Counter()
    gates: Counter[str] = Counter()
    kinds: dict[str, dict[str, dict[str, Any]]] = {fail: defaultdict(lambda: {"graphs": 0}) for fail in FAILS}
    for found in results:
        for fail in failures(found):
            fails[fail] += 1
            if fail == "wrong":
                gates.update(part.split(": ")[0] for part in found["parts"] if ": " in part and "safe" not in part)
            of_kind = kinds[fail][_kind(found["parts"])]
            of_kind["graphs"] += 1
            of_kind.setdefault("seed", found["seed"])
            of_kind.setdefault("truth", found["truth"] or "may be joined")
            if text := found.get("notice") or found.get("example"):
                of_kind.setdefault("text", text[:120])
    right = [found for found in results if found["truth"] != "no model" and not failures(found)]
    return {
        "graphs": len(results),
        "truths": dict(truths),
        "answers": sum(found.get("answers", 0) for found in results),
        "wrong answers": sum(found.get("wrong", 0) for found in results),
        "wrong answers after notice": sum(found.get("wrong after notice", 0) for found in results),
        "joined rightly": sum(found["joined"] for found in right),
        "rightly not joined": sum(not found["joined"] for found in right),
        "graphs that fail": dict(fails),
        "gates of wrong graphs": dict(gates),
        "kinds": {fail: _most(of_kind) for fail, of_kind in kinds.items()},
    }


def _kind(parts: list[str]) -> str:
    """The special parts without gates; those that only look special count where there are no others."""
    special = [part.split(": ")[-1] for part in parts if not part.startswith("safe: ")]
    return " + ".join(sorted(special) or sorted(parts)) or "plain"


def _most(kinds: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The kinds with one special part, and some with two of which none fails alone."""
    single = {name: kind for name, kind in kinds.items() if " + " not in name}
    ordered = dict(sorted(single.items(), key=lambda item: -item[1]["graphs"]))
    pairs = {name: kind for name, kind in kinds.items() if " + " in name and not set(name.split(" + ")) & set(single)}
    return {**ordered, **dict(list(pairs.items())[:10])}


@dataclass
class JoinedGraphs(Script[str]):
    """The options of the command line."""

    kind = "joined graphs"
    graphs: int = option(2000, "number of graphs")
    seed: int = option(1, "the first graph is a million times this")
    workers: int = option(2, "processes")
    only: int = option(0, "print this graph, and take no other")

    def cases(self, number: int = 0) -> Sequence[str]:
        return ("graphs",)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        if self.only:
            import onnx

            print(onnx.printer.to_text(onnx.load_model_from_string(make_graph(self.only)[0])))
            return summarize([Measurement().take(self.only)])
        first, step = self.seed * 1_000_000, 50
        seeds = range(first, first + self.graphs)
        results = list[dict[str, Any]]()
        with ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn")) as workers:
            for piece in workers.map(take_many, [seeds[at : at + step] for at in range(0, self.graphs, step)]):
                results += piece
        return summarize(results)

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        return [f"{count} graphs: {fail}" for fail, count in measurement["graphs that fail"].items()]


if __name__ == "__main__":
    sys.exit(script.main(JoinedGraphs))
