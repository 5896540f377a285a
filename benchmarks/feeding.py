"""How fast a pool takes requests and gives answers, beside what one writes by hand over onnxruntime.

Three parts, each with all its ways in one process, in turns; the figures are the medians of the rounds:

- rates: 64 coroutines, each with one request under way, over an MLP of 0.3 MB, a small convolutional net and an MLP of
  306 MB, with asyncio's event loop and uvloop's. The ways: `run_in_executor(8)` over onnxruntime, a batcher by hand
  over onnxruntime (size 64, 1 ms), `Pool.run_async` without batching and with `Batching(64, 1 ms)`. "loop alone": the
  same coroutines, answered by the loop without a model. Answers a second.
- latencies: one request at a time over a model of one node: `session.run`, `pool.run`, `submit` plus `result`,
  `run_async`, and bare round trips between two threads, over locks and over `call_soon_threadsafe`. Microseconds.
- map: single rows through `Pool.map` and `Pool.as_completed` with batching, with several lookaheads. The whole array
  through `Pool.map_rows` beside a loop over onnxruntime, with chunks of several sizes. Rows a second.

    python -m benchmarks.feeding --json feeding.json

Exit status 1 if an answer is not onnxruntime's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import queue
import random
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

import ortmulti
from benchmarks import graphs
from benchmarks.by_hand import Batcher
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, names, option
from ortmulti.errors import Fail

CLIENTS, INPUTS = 64, 32
BATCH, DELAY_MS = 64, 1.0
MAP_BATCH = 256
KEPT = 4096  # answers that are compared

SMALL, CONV, LARGE = "MLP 0.3 MB", "conv net", "MLP 306 MB"
MODELS: dict[str, tuple[Callable[[], bytes], tuple[int, ...]]] = {
    SMALL: (graphs.mlp, (64,)),
    CONV: (partial(graphs.convolutions, (16, 32, 64), 64, stride=2, scores=10), (3, 64, 64)),
    LARGE: (partial(graphs.mlp, (1024, 8192, 8192, 128)), (1024,)),
}
# Rows, and the sizes of chunks for onnxruntime.
MAPS: dict[str, tuple[int, tuple[int, ...]]] = {SMALL: (20_000, (64, 256, 1024, 4096)), CONV: (2048, (8, 64, 512))}
LOOPS = ("asyncio", "uvloop")
BASES = {"rates": "batcher by hand", "latencies": "session.run", "map": "map_rows"}

Array = NDArray[np.float32]
Call = Callable[[Array], Awaitable[Array]]


class Case(NamedTuple):
    """A part, its model or what stands for it, and a way."""

    part: str
    of: str
    way: str


def open_session(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def check(found: Array, expected: Array) -> None:
    if not np.allclose(found, expected, atol=1e-4):
        raise Fail("an answer is not onnxruntime's")


@dataclass
class Feeding(Script[Case]):
    """The options of the command line."""

    kind, columns = "feeding", (Column("figure", "figure", text="{:,.1f}".format), Column("over", "over", summary=None))
    parts: tuple[str, ...] = option(tuple(BASES), "parts", names)
    which: tuple[str, ...] = option(tuple(MODELS), "models of the rates", names)
    repeat: int = option(11, "rounds")
    seconds: float = option(1.0, "of a way in a round")
    share: int = option(1, "part of the rows of map and of the runs of latencies: 1 / this")

    def cases(self, number: int = 0) -> Sequence[Case]:
        # What runs before a way, such as one whose threads still spin, differs between rounds.
        return [*self._ways] if number == 0 else random.Random(number).sample([*self._ways], len(self._ways))

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
        with ExitStack() as self._open:
            self._ways: dict[Case, Callable[[], float]] = {}
            for part in self.parts:
                getattr(self, f"_add_{part}")()
            return super().run(progress)

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        return {"figure": self._ways[case]()}

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        return {"over": self.over(case, Case(case.part, case.of, BASES[case.part]), rounds, "figure")}

    def _pool(self, model: bytes, batch: int = 0) -> ortmulti.Pool:
        batching = ortmulti.Batching(batch, max_delay_ms=DELAY_MS) if batch else None
        return self._open.enter_context(ortmulti.load(model, "cpu", batching=batching))

    # Rates

    def _add_rates(self) -> None:
        for name in self.which:
            make, row = MODELS[name]
            rates = Rates(make(), row, self)
            for loop in LOOPS:
                if importlib.util.find_spec(loop):
                    new_loop = importlib.import_module(loop).new_event_loop
                    for way in rates.ways:
                        self._ways[Case("rates", f"{name}, {loop}", way)] = partial(rates.measure, way, new_loop)

    # Latencies

    def _add_latencies(self) -> None:
        pool, feed = self._pool(graphs.one_node("Add(x, x)", "float[1]")), {"x": np.ones(1, np.float32)}
        session, runs = pool.sessions[0], 5000 // self.share

        def timed(call: Callable[[], Any]) -> float:
            begin = time.perf_counter_ns()
            for _ in range(runs):
                answer = call()
            taken = (time.perf_counter_ns() - begin) / 1e3 / runs
            if answer is not None:
                check(answer[0], np.array([2.0], np.float32))
            return taken

        async def run_async() -> float:
            begin = time.perf_counter_ns()
            for _ in range(runs):
                [answer] = await pool.run_async(None, feed)
            taken = (time.perf_counter_ns() - begin) / 1e3 / runs
            check(answer, np.array([2.0], np.float32))
            return taken

        for way, call in {
            "session.run": lambda: timed(lambda: session.run(None, feed)),
            "pool.run": lambda: timed(lambda: pool.run(None, feed)),
            "two threads, locks": lambda: locks_round_trip(timed),
            "submit, result": lambda: timed(lambda: pool.submit(None, feed).result()),
            "call_soon_threadsafe": lambda: asyncio.run(threadsafe_round_trip(runs)),
            "run_async": lambda: asyncio.run(run_async()),
        }.items():
            self._ways[Case("latencies", "one node", way)] = call

    # Map

    def _add_map(self) -> None:
        for name, (count, chunks) in MAPS.items():
            make, row = MODELS[name]
            model = make()
            plain, joining, session = self._pool(model), self._pool(model, MAP_BATCH), open_session(model)
            rows = np.random.default_rng(0).standard_normal((count // self.share, *row)).astype(np.float32)
            expected = session.run(None, {"x": rows})[0]
            ways: dict[str, Callable[[Array], Array]] = {"map_rows": partial(_map_rows, plain)}
            if name == SMALL:
                for lookahead in (None, 64, 1024):
                    ways[f"map, lookahead {lookahead or 'default'}"] = partial(_map, joining, lookahead)
                ways["as_completed"] = partial(_as_completed, joining)
            ways |= {f"onnxruntime, chunks of {size}": partial(_chunks, session, size) for size in chunks}
            for way, call in ways.items():
                self._ways[Case("map", name, way)] = partial(self._passes, call, rows, expected)

    def _passes(self, call: Callable[[Array], Array], rows: Array, expected: Array) -> float:
        """Return the median of passes over the rows: in the first moments threads of the way before still spin."""
        end, rates = time.perf_counter() + self.seconds, list[float]()
        while not rates or time.perf_counter() < end:
            begin = time.perf_counter()
            found = call(rows)
            rates.append(len(rows) / (time.perf_counter() - begin))
            check(found, expected)
        return statistics.median(rates)


def _map_rows(pool: ortmulti.Pool, rows: Array) -> Array:
    [found] = pool.map_rows({"x": rows})
    return np.asarray(found)


def _map(pool: ortmulti.Pool, lookahead: int | None, rows: Array) -> Array:
    feeds = ({"x": rows[i : i + 1]} for i in range(len(rows)))
    return np.concatenate([y for [y] in pool.map(feeds, lookahead=lookahead)])


def _as_completed(pool: ortmulti.Pool, rows: Array) -> Array:
    feeds = ({"x": rows[i : i + 1]} for i in range(len(rows)))
    found = {index: future.result()[0] for index, future in pool.as_completed(feeds)}
    return np.concatenate([found[index] for index in range(len(rows))])


def _chunks(session: Any, size: int, rows: Array) -> Array:
    return np.concatenate([session.run(None, {"x": rows[i : i + size]})[0] for i in range(0, len(rows), size)])


class Rates:
    """The ways to ask one model, all of them open, and the answers that they have to give."""

    def __init__(self, model: bytes, row: tuple[int, ...], feeding: Feeding) -> None:
        random_ = np.random.default_rng(0)
        self._seconds = feeding.seconds
        self._inputs = [random_.standard_normal((1, *row)).astype(np.float32) for _ in range(INPUTS)]
        self._session = open_session(model)
        self._expected = [self._session.run(None, {"x": x})[0] for x in self._inputs]
        pool, joining = feeding._pool(model), feeding._pool(model, BATCH)
        self.ways: dict[str, Callable[[], Awaitable[float]]] = {
            "loop alone": self._loop_alone,
            "run_in_executor(8)": self._executor,
            "batcher by hand": self._by_hand,
            "run_async": lambda: self._asked(pool),
            "run_async, Batching": lambda: self._asked(joining),
        }

    def measure(self, way: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
        """Return answers a second."""
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(self.ways[way]())  # type: ignore[arg-type]

    async def _loop_alone(self) -> float:
        loop = asyncio.get_running_loop()
        expected = dict(zip(map(id, self._inputs), self._expected, strict=True))

        async def call(x: Array) -> Array:
            future: asyncio.Future[Array] = loop.create_future()
            loop.call_soon(future.set_result, expected[id(x)])
            return await future

        return await self._drive(call)

    async def _executor(self) -> float:
        loop, run = asyncio.get_running_loop(), self._session.run
        with ThreadPoolExecutor(8) as threads:

            async def call(x: Array) -> Array:
                answer: Array = (await loop.run_in_executor(threads, run, None, {"x": x}))[0]
                return answer

            return await self._drive(call)

    async def _by_hand(self) -> float:
        async with Batcher([self._session], None, BATCH, DELAY_MS / 1000) as batcher:

            async def call(x: Array) -> Array:
                answer: Array = (await batcher.ask({"x": x}))[0]
                return answer

            return await self._drive(call)

    async def _asked(self, pool: ortmulti.Pool) -> float:
        async def call(x: Array) -> Array:
            answer: Array = (await pool.run_async(None, {"x": x}))[0]
            return answer

        return await self._drive(call)

    async def _drive(self, call: Call) -> float:
        kept: deque[tuple[int, Array]] = deque(maxlen=KEPT)
        answered = 0
        begin = time.perf_counter()
        stop = begin + self._seconds

        async def ask(place: int) -> None:
            nonlocal answered
            while time.perf_counter() < stop:
                place = (place + 5) % INPUTS
                kept.append((place, await call(self._inputs[place])))
                answered += 1

        await asyncio.gather(*(ask(client) for client in range(CLIENTS)))
        rate = answered / (time.perf_counter() - begin)
        for place, y in kept:
            check(y, self._expected[place])
        return rate


def locks_round_trip(timed: Callable[[Callable[[], None]], float]) -> float:
    """Return the time of a hand-over to another thread and back."""
    there, back, over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def answer() -> None:
        while not over.is_set():
            there.acquire()
            back.release()

    def trip() -> None:
        there.release()
        back.acquire()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        return timed(trip)
    finally:
        over.set()
        there.release()
        thread.join()


async def threadsafe_round_trip(runs: int) -> float:
    """Return the time of a hand-over to another thread and back to the event loop."""
    loop = asyncio.get_running_loop()
    asked: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

    def answer() -> None:
        while (future := asked.get()) is not None:
            loop.call_soon_threadsafe(future.set_result, None)

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.perf_counter_ns()
    for _ in range(runs):
        future = loop.create_future()
        asked.put(future)
        await future
    taken = time.perf_counter_ns() - begin
    asked.put(None)
    thread.join()
    return taken / 1e3 / runs


if __name__ == "__main__":
    sys.exit(script.main(Feeding))
