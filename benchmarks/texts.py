"""Texts of different lengths: how many a second, and how long do they take, against what one would write by hand?

    python -m benchmarks.texts encoder --json texts.json

The lengths are log-normal, 8 to 512 tokens, with a median of --median. In rounds, every case in each, one after the
other. The model has input_ids, attention_mask and sentence_embedding.

serve: --clients coroutines, each of which waits for its answer before it asks again.
offline: --texts texts at once.

Ways:
    one: a pool that runs them one by one
    longest: `Batching`, and each text padded to 512 tokens by the client
    hand: a batcher over onnxruntime: of what waits it takes the first text and those of the next lengths, up to
        --most-rows and --tokens; or, offline, all texts sorted by length, in batches of that size
    padded: `Batching(pad=...)`

With CUDA every case has all GPUs of --devices. Exit status 1 if an answer is wrong by more than 0.01 of its largest
number, or if `padded` is below the best of the others.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ortmulti
from benchmarks.by_hand import Batcher, Feed
from ortmulti import Batching
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, names, option
from ortmulti.bench.serve.clients import summarize
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package
from ortmulti.errors import Fail

LONGEST = 512
OUTPUTS = ["sentence_embedding"]
PAD = {"input_ids": 0, "attention_mask": 0}


def length(generator: random.Random, median: float) -> int:
    return min(LONGEST, max(8, round(generator.lognormvariate(np.log(median), 0.8))))


@lru_cache(4096)
def text(tokens: int, padded: int = 0) -> Feed:
    """Make one text, whose tokens follow from its length."""
    ids = np.zeros((1, max(tokens, padded)), np.int64)
    ids[0, :tokens] = 1 + (np.arange(tokens) * 7919 + tokens) % 30_000
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}


def tokens_of(feed: Feed) -> int:
    return int(feed["input_ids"].shape[1])


def together(feeds: Sequence[Feed]) -> Feed:
    """Pad texts to the longest one."""
    joined = {name: np.zeros((len(feeds), max(map(tokens_of, feeds))), np.int64) for name in PAD}
    for row, feed in enumerate(feeds):
        for name, array in feed.items():
            joined[name][row, : array.shape[1]] = array[0]
    return joined


class Case(NamedTuple):
    """How texts come, and what answers them."""

    kind: str
    way: str


@dataclass
class Texts(Script[Case]):
    """The options of the command line."""

    kind, columns = "texts", (
        Column("rate", "texts/s"),
        Column("p50", "p50, ms", scale=1e-3, rare=True),
        Column("p99", "p99, ms", scale=1e-3, rare=True),
        Column("cores", "cores"),
        Column("rows_of_a_run", "rows of a run"),
        Column("waste", "padding"),
        Column("over_hand", "over hand", summary=None),
    )  # fmt: skip
    models: Sequence[Path] = option((), "a name of `ortmulti models`, or an .onnx file")
    devices: tuple[str, ...] = option(("cpu",), "devices", names)
    ways: tuple[str, ...] = option(("one", "longest", "hand", "padded"), "ways", names)
    kinds: tuple[str, ...] = option(("serve", "offline"), "kinds", names)
    repeat: int = option(5, "rounds")
    seconds: float = option(4.0, "of serving in a round")
    clients: int = option(64, "coroutines")
    texts: int = option(4000, "texts at once; an eighth of them for the way longest")
    median: float = option(48.0, "tokens")
    most_rows: int = option(32, "of a batch")
    tokens: int = option(16_384, "of a batch")
    batching: dict[str, Any] = option(None, "more of Batching for the way padded, as JSON", json.loads)
    load: dict[str, Any] = option(None, "more arguments of load, as JSON", json.loads)

    def cases(self, number: int = 0) -> Sequence[Case]:
        return [Case(kind, way) for kind in self.kinds for way in self.ways]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        [model] = self.models
        options: dict[str, Any] = {
            "one": None,
            "longest": Batching(self.most_rows),
            "padded": Batching(self.most_rows, pad=PAD, **(self.batching or {})),
        }
        self._pools = {
            way: self.stack.enter_context(
                ortmulti.load(model, list(self.devices), batching=batching, **(self.load or {}))
            )
            for way, batching in options.items()
        }
        package = open_package(self.devices)
        self._sessions = [create_session(package, model, device) for device in self.devices]
        self._under_way = 1 if self.devices == ("cpu",) else 3
        for tokens in (8, 50, LONGEST):
            feed = text(tokens)
            [right] = self._sessions[0].run(OUTPUTS, feed)
            for way, pool in self._pools.items():
                [answer] = pool.run(OUTPUTS, feed)
                if (apart := float(np.abs(answer - right).max() / np.abs(right).max())) > 0.01:
                    raise Fail(f"{way}: an answer is wrong by {apart:.3g}")
        for case in self.cases():
            step(self.where(self.describe(case)))
            self.measure(case, -1)

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        pool = self._pools.get(case.way)
        before = pool.stats() if pool else None
        begin, used = time.monotonic(), time.process_time()
        found = asyncio.run(self._serve(case.way)) if case.kind == "serve" else self._offline(case.way)
        found["cores"] = (time.process_time() - used) / (time.monotonic() - begin)
        if pool and before:
            pairs = list(zip(before.devices, pool.stats().devices, strict=True))

            def grown(name: str) -> int:
                return sum(getattr(after, name) - getattr(one, name) for one, after in pairs)

            found["rows_of_a_run"] = grown("done") / max(1, grown("runs"))
            padded = grown("padded_elements")
            found["why_padding"] = [after.why_padding for _, after in pairs]
            found["waste"] = padded / max(1, padded + grown("real_elements"))
        return found

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        return {"over_hand": self.over(case, Case(case.kind, "hand"), rounds, "rate")}

    async def _serve(self, way: str) -> dict[str, Any]:
        if way == "hand":
            async with self._batcher() as batcher:
                return await self._drive(batcher.ask, 0)
        pool = self._pools[way]
        return await self._drive(lambda feed: pool.run_async(OUTPUTS, feed), LONGEST if way == "longest" else 0)

    def _batcher(self) -> Batcher:
        def nearest(waiting: Sequence[Feed], size: int) -> list[int]:
            own = tokens_of(waiting[0])
            order = sorted(range(len(waiting)), key=lambda place: abs(tokens_of(waiting[place]) - own))
            longest = 0
            for count, place in enumerate(order):
                longest = max(longest, tokens_of(waiting[place]))
                if count == size or (count and longest * (count + 1) > self.tokens):
                    return order[:count]
            return order

        return Batcher(self._sessions, OUTPUTS, self.most_rows, take=nearest, join=together, under_way=self._under_way)

    async def _drive(self, ask: Callable[[Feed], Awaitable[Any]], padded: int) -> dict[str, Any]:
        times: list[float] = []
        begin = time.monotonic()

        async def client(number: int) -> None:
            generator = random.Random(number)
            while time.monotonic() < begin + self.seconds:
                feed = text(length(generator, self.median), padded)
                asked = time.perf_counter()
                await ask(feed)
                times.append(time.perf_counter() - asked)

        await asyncio.gather(*(client(number) for number in range(self.clients)))
        latency = summarize(times) or {}
        return {"rate": len(times) / (time.monotonic() - begin), "p50": latency["p50"], "p99": latency["p99"]}

    def _offline(self, way: str) -> dict[str, Any]:
        generator, padded = random.Random(0), LONGEST if way == "longest" else 0
        feeds = [text(length(generator, self.median), padded) for _ in range(self.texts // (8 if padded else 1))]
        begin = time.monotonic()
        if way == "hand":
            self._sorted(feeds)
        else:
            for _ in self._pools[way].map(OUTPUTS, feeds):
                pass
        return {"rate": len(feeds) / (time.monotonic() - begin)}

    def _sorted(self, feeds: Sequence[Feed]) -> None:
        """Run all texts sorted by length, the longest ones first."""
        batches: list[list[Feed]] = [[]]
        for feed in sorted(feeds, key=tokens_of, reverse=True):
            longest = tokens_of(batches[-1][0]) if batches[-1] else 0
            if len(batches[-1]) == self.most_rows or longest * (len(batches[-1]) + 1) > self.tokens:
                batches.append([])
            batches[-1].append(feed)
        with ThreadPoolExecutor(self._under_way * len(self._sessions)) as threads:
            sessions = (self._sessions[number % len(self._sessions)] for number in range(len(batches)))
            list(threads.map(lambda session, batch: session.run(OUTPUTS, together(batch)), sessions, batches))

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        found = super().failures(document)
        for kind in document["settings"]["kinds"]:
            rates = {
                row["way"]: row["rate"]["median"] for row in document["rows"] if row["kind"] == kind and row["rate"]
            }
            if rates and rates.get("padded", max(rates.values())) < max(rates.values()):
                found.append(f"{kind}: padded is below {max(rates, key=rates.__getitem__)}")
        return found


if __name__ == "__main__":
    sys.exit(script.main(Texts))
