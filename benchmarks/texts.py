"""Texts of different lengths: how many a second, and how long do they take, against what one would write by hand?

    python -m benchmarks.texts --json texts.json

The lengths are log-normal, 8 to 512 tokens, with a median of --median. In rounds, every case in each, one after the
other; the medians of the rounds are printed, as shares of this one's best.

serve: --clients coroutines, each of which waits for its answer before it asks again.
offline: --texts texts at once.

Cases:
    one: a pool that runs them one by one
    longest: `Batching`, and each text padded to 512 tokens by the client
    hand: a batcher over onnxruntime: of what waits it takes the first text and those of the next lengths, up to
        --rows and --tokens; or, offline, all texts sorted by length, in batches of that size
    padded: `Batching(pad=...)`

With CUDA every case has all GPUs of --devices. Exit status 1 if an answer is wrong by more than 0.01 of its largest
number, or if `padded` is below the best of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ortmulti
from ortmulti import Batching
from ortmulti.bench import models
from ortmulti.bench.measure import machine

LONGEST = 512
OUTPUTS = ["sentence_embedding"]
PAD = {"input_ids": 0, "attention_mask": 0}
Feed = dict[str, NDArray[Any]]


def length(generator: random.Random, median: float) -> int:
    return min(LONGEST, max(8, round(generator.lognormvariate(np.log(median), 0.8))))


@lru_cache(4096)
def text(tokens: int, padded: int = 0) -> Feed:
    """One text, whose tokens follow from its length."""
    ids = np.zeros((1, max(tokens, padded)), np.int64)
    ids[0, :tokens] = 1 + (np.arange(tokens) * 7919 + tokens) % 30_000
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}


def together(feeds: list[Feed]) -> Feed:
    longest = max(feed["input_ids"].shape[1] for feed in feeds)
    joined = {name: np.zeros((len(feeds), longest), np.int64) for name in PAD}
    for row, feed in enumerate(feeds):
        for name, array in feed.items():
            joined[name][row, : array.shape[1]] = array[0]
    return joined


class ByHand:
    """A batcher over onnxruntime."""

    def __init__(self, options: argparse.Namespace) -> None:
        import onnxruntime

        self.rows, self.tokens = options.rows, options.tokens
        self.sessions = []
        for device in options.devices.split(","):
            name, _, number = device.partition(":")
            cuda = ("CUDAExecutionProvider", {"device_id": int(number or 0)})
            provider: Any = "CPUExecutionProvider" if name == "cpu" else cuda
            self.sessions.append(onnxruntime.InferenceSession(options.model, providers=[provider]))
        self.under_way = 1 if options.devices == "cpu" else 3  # runs of each session
        self.waiting: list[tuple[Feed, asyncio.Future[Any]]] = []
        self.threads = {session: ThreadPoolExecutor(self.under_way) for session in self.sessions}

    def take(self) -> list[tuple[Feed, asyncio.Future[Any]]]:
        """The first that waits, and those of the lengths next to it."""
        own = self.waiting[0][0]["input_ids"].shape[1]
        order = sorted(self.waiting, key=lambda one: abs(one[0]["input_ids"].shape[1] - own))
        batch: list[tuple[Feed, asyncio.Future[Any]]] = []
        longest = 0
        for one in order:
            longest = max(longest, one[0]["input_ids"].shape[1])
            if len(batch) == self.rows or (batch and longest * (len(batch) + 1) > self.tokens):
                break
            batch.append(one)
        taken = {id(one) for one in batch}
        self.waiting = [one for one in self.waiting if id(one) not in taken]
        return batch

    def start(self) -> list[asyncio.Task[None]]:
        self.came = asyncio.Event()  # of this loop
        sessions = [session for session in self.sessions for _ in range(self.under_way)]
        return [asyncio.create_task(self.work(session)) for session in sessions]

    async def work(self, session: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.waiting:
                self.came.clear()
                await self.came.wait()
            batch = self.take()
            joined = together([feed for feed, _ in batch])
            [answers] = await loop.run_in_executor(self.threads[session], session.run, OUTPUTS, joined)
            for (_, future), answer in zip(batch, answers, strict=True):
                future.set_result([answer[None]])

    async def ask(self, feed: Feed) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((feed, future))
        self.came.set()
        return await future

    def offline(self, feeds: list[Feed]) -> list[Any]:
        order = sorted(range(len(feeds)), key=lambda place: -feeds[place]["input_ids"].shape[1])
        batches: list[list[int]] = [[]]
        for place in order:
            first = feeds[batches[-1][0]]["input_ids"].shape[1] if batches[-1] else 0
            if len(batches[-1]) == self.rows or first * (len(batches[-1]) + 1) > self.tokens:
                batches.append([])
            batches[-1].append(place)

        def run(session: Any, batch: list[int]) -> Any:
            return session.run(OUTPUTS, together([feeds[place] for place in batch]))[0]

        answers: list[Any] = [None] * len(feeds)
        several = [self.sessions[number % len(self.sessions)] for number in range(len(batches))]
        futures = [self.threads[one].submit(run, one, batch) for one, batch in zip(several, batches, strict=True)]
        for batch, future in zip(batches, futures, strict=True):
            found = future.result()
            for place, answer in zip(batch, found, strict=True):
                answers[place] = [answer[None]]
        return answers


async def drive(ask: Callable[[Feed], Awaitable[Any]], options: argparse.Namespace, padded: int) -> dict[str, Any]:
    times: list[float] = []
    begin = time.monotonic()
    end = begin + options.seconds

    async def client(number: int) -> None:
        generator = random.Random(number)
        while time.monotonic() < end:
            feed = text(length(generator, options.median), padded)
            asked = time.perf_counter()
            await ask(feed)
            times.append(time.perf_counter() - asked)

    await asyncio.gather(*(client(number) for number in range(options.clients)))
    milliseconds = sorted(1e3 * each for each in times)
    return {
        "rate": len(times) / (time.monotonic() - begin),
        "p50_ms": milliseconds[len(times) // 2],
        "p99_ms": milliseconds[int(len(times) * 0.99)],
    }


class Case:
    """A way to answer texts, in memory for all rounds."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.hand = ByHand(options) if name == "hand" else None
        self.pool: Any = None
        if name != "hand":
            batching = {
                "one": None,
                "longest": Batching(options.rows),
                "padded": Batching(options.rows, pad=PAD, **json.loads(options.batching)),
            }[name]
            more = json.loads(options.load)
            self.pool = ortmulti.load(options.model, options.devices.split(","), batching=batching, **more)

    def ask_once(self, feed: Feed) -> Any:
        return self.pool.run(OUTPUTS, feed) if self.pool else self.hand.offline([feed])[0]  # type: ignore[union-attr]

    def serve(self) -> dict[str, Any]:
        padded = LONGEST if self.name == "longest" else 0

        async def run() -> dict[str, Any]:
            if self.hand is None:
                return await drive(lambda feed: self.pool.run_async(OUTPUTS, feed), self.options, padded)
            workers = self.hand.start()
            found = await drive(self.hand.ask, self.options, padded)
            for worker in workers:
                worker.cancel()
            return found

        return self.measured(lambda: asyncio.run(run()))

    def offline(self) -> dict[str, Any]:
        generator = random.Random(0)
        padded = LONGEST if self.name == "longest" else 0
        texts = self.options.texts // (8 if padded else 1)
        feeds = [text(length(generator, self.options.median), padded) for _ in range(texts)]

        def run() -> dict[str, Any]:
            begin = time.monotonic()
            if self.hand is not None:
                self.hand.offline(feeds)
            else:
                for _ in self.pool.map(OUTPUTS, feeds):
                    pass
            return {"rate": texts / (time.monotonic() - begin)}

        return self.measured(run)

    def measured(self, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before = self.pool.stats() if self.pool else None
        begin, used = time.monotonic(), time.process_time()
        found = run()
        found["cores"] = (time.process_time() - used) / (time.monotonic() - begin)
        if before:
            pairs = list(zip(before.devices, self.pool.stats().devices, strict=True))
            runs = sum(after.runs - one.runs for one, after in pairs)
            found["rows_of_a_run"] = sum(after.done - one.done for one, after in pairs) / max(1, runs)
            padded = sum(after.padded_elements - one.padded_elements for one, after in pairs)
            real = sum(after.real_elements - one.real_elements for one, after in pairs)
            found["waste"] = padded / max(1, padded + real)
        return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="with input_ids, attention_mask and sentence_embedding; default: one is made")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--cases", default="one,longest,hand,padded")
    parser.add_argument("--kinds", default="serve,offline")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--median", type=float, default=48)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--batching", default="{}", help="more of Batching for the case padded, as JSON")
    parser.add_argument("--load", default="{}", help="more arguments of load, as JSON")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.model is None:
        sizes = {"layers": options.layers, "hidden": options.hidden, "precision": options.precision}
        options.model = str(models.make("encoder", "models", **sizes))
    cases = [Case(name, options) for name in options.cases.split(",")]
    wrong = 0.0
    for tokens in (8, 50, LONGEST):
        answers = [case.ask_once(text(tokens))[0] for case in cases]
        wrong = max(wrong, *(float(np.abs(one - answers[0]).max() / np.abs(one).max()) for one in answers))
    results: dict[str, Any] = {}
    least = float("inf")
    for kind in options.kinds.split(","):
        rounds = [{case.name: getattr(case, kind)() for case in cases} for _ in range(options.rounds + 1)][1:]
        found = {
            case.name: {key: statistics.median(one[case.name][key] for one in rounds) for key in rounds[0][case.name]}
            for case in cases
        }
        for row in found.values():
            row["times_best"] = row["rate"] / max(other["rate"] for other in found.values())
        for name, row in found.items():
            print(f"{kind:8} {name:8}", ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
        least = min(least, found.get("padded", {"times_best": 1})["times_best"])
        results[kind] = found
    padded = next((case.pool for case in cases if case.name == "padded"), None)
    if padded:
        results["why_padding"] = [device.why_padding for device in padded.stats().devices]
        print(*results["why_padding"], sep="\n")
    if options.json:
        report = {**vars(options), "json": None, "wrong": wrong, "results": results, "machine": machine.describe()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(wrong > 0.01 or least < 1)


if __name__ == "__main__":
    sys.exit(main())
