"""How fast a pool takes requests and gives answers, beside what one writes by hand over onnxruntime.

Three parts, each with all its ways in one process, in turns; the median of the rounds with its interval:

- rates: 64 coroutines, each with one request under way, over an MLP of 0.3 MB, a small convolutional net and an MLP of
  306 MB, with asyncio's event loop and uvloop's. The ways: `run_in_executor(8)` over onnxruntime, a batcher by hand
  over onnxruntime (size 64, 1 ms), `Pool.run_async` without batching and with `Batching(64, 1 ms)`. "loop alone": the
  same coroutines, answered by the loop without a model;
- latencies: one request at a time over a model of one node: `submit` plus `result` beside `session.run` and a bare
  round trip of two threads over condition variables (in C, compiled for it; without a compiler over Python's locks);
  `run_async` beside a bare round trip over `call_soon_threadsafe`;
- map: single rows through `Pool.map` and `Pool.as_completed` with batching: the default lookahead beside others. The
  whole array through `Pool.map_rows` beside a loop over onnxruntime, with chunks of several sizes, also for the
  convolutional net. A pass over the rows is repeated: the median is that of the passes, without the first moments in
  which the threads of the way before still spin.

The answers are compared with onnxruntime's after the timed part.

    python benchmarks/feeding.py --json feeding.json

Exit status 1 if an answer is wrong, or with --check if a way misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import itertools
import json
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import Interval, measure_rounds, of_case, ratios

CLIENTS, INPUTS = 64, 32
BATCH, DELAY_MS = 64, 1.0
MAP_ROWS, MAP_BATCH = 20_000, 256
LOOKAHEADS = (64, 256, 512, 1024)
CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096, MAP_ROWS)
CONV_ROWS, CONV_CHUNKS = 2048, (4, 8, 16, 32, 64, 128, 512)
KEPT = 4096  # answers that are compared
LEAST_BATCHED, LEAST_SINGLE, LEAST_OF_OTHERS, LEAST_MAP, LEAST_ROWS, MOST_BEYOND_US = 1.1, 1.5, 1.0, 0.9, 1.0, 10.0

Array = NDArray[np.float32]
Call = Callable[[Array], Awaitable[Array]]

PING = r"""
#include <pthread.h>
#include <time.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t there = PTHREAD_COND_INITIALIZER, back = PTHREAD_COND_INITIALIZER;
static long asked, answered, most;
static void* answer(void* unused) {
  pthread_mutex_lock(&m);
  while (answered < most) {
    while (asked == answered) pthread_cond_wait(&there, &m);
    answered++;
    pthread_cond_signal(&back);
  }
  pthread_mutex_unlock(&m);
  return unused;
}
double round_trip(long count) {
  pthread_t thread;
  struct timespec begin, end;
  asked = answered = 0;
  most = count;
  pthread_create(&thread, 0, answer, 0);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < count; ++i) {
    pthread_mutex_lock(&m);
    asked++;
    pthread_cond_signal(&there);
    while (answered != asked) pthread_cond_wait(&back, &m);
    pthread_mutex_unlock(&m);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  pthread_join(thread, 0);
  return ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / count;
}
"""


def mlp(directory: Path, sizes: Sequence[int] = (64, 256, 256, 10)) -> Path:
    """Features, hidden layers and probabilities: 0.3 MB with these sizes."""
    rng = np.random.default_rng(2)
    nodes, weights, last = [], [], "x"
    for layer, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        matrix = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights += [numpy_helper.from_array(matrix, f"w{layer}")]
        weights += [numpy_helper.from_array(np.full(columns, 0.1, np.float32), f"b{layer}")]
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"h{layer}"]))
        last = f"h{layer}"
        if layer < len(sizes) - 2:
            nodes.append(helper.make_node("Relu", [last], [f"r{layer}"]))
            last = f"r{layer}"
    nodes.append(helper.make_node("Softmax", [last], ["y"], axis=-1))
    return _save(directory / f"mlp-{sizes[0]}.onnx", nodes, ["n", sizes[0]], ["n", sizes[-1]], weights)


def conv(directory: Path) -> Path:
    """Images of 64 by 64 pixels, three convolutions that halve them, 10 logits: 0.1 MB."""
    rng = np.random.default_rng(1)
    nodes, weights, last, channels = [], [], "x", 3
    for layer, filters in enumerate((16, 32, 64)):
        kernels = (rng.standard_normal((filters, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernels, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1] * 4, strides=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        last, channels = f"r{layer}", filters
    weights.append(numpy_helper.from_array(rng.standard_normal((channels, 10)).astype(np.float32), "w"))
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["g"]))
    nodes.append(helper.make_node("Flatten", ["g"], ["f"]))
    nodes.append(helper.make_node("MatMul", ["f", "w"], ["y"]))
    return _save(directory / "conv.onnx", nodes, ["n", 3, 64, 64], ["n", 10], weights)


# Each model's maker, and the shape of a row.
MODELS: dict[str, tuple[Callable[[Path], Path], tuple[int, ...]]] = {
    "MLP, 0.3 MB": (mlp, (64,)),
    "conv net": (conv, (3, 64, 64)),
    "MLP, 306 MB": (partial(mlp, sizes=(1024, 8192, 8192, 128)), (1024,)),
}


def add(directory: Path) -> Path:
    """y = x + x, of one float32."""
    return _save(directory / "add.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], [1], [1], [])


def _save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


class Batcher:
    """What one writes by hand over onnxruntime: a queue, one thread, and the answers cut from the joint one."""

    def __init__(self, session: onnxruntime.InferenceSession, size: int, delay: float) -> None:
        self._session, self._size, self._delay = session, size, delay
        self._queue: asyncio.Queue[tuple[Array, asyncio.Future[Array]]] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def __call__(self, x: Array) -> Array:
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((x, future))
        answer: Array = await future
        return answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            items = [await self._queue.get()]
            end = time.perf_counter() + self._delay
            while len(items) < self._size:
                try:
                    items.append(self._queue.get_nowait())
                except asyncio.QueueEmpty:
                    left = end - time.perf_counter()
                    if left <= 0:
                        break
                    try:
                        items.append(await asyncio.wait_for(self._queue.get(), left))
                    except TimeoutError:
                        break
            joint = {"x": np.concatenate([x for x, _ in items])}
            try:
                [y] = await loop.run_in_executor(self._thread, self._session.run, None, joint)
            except Exception as error:
                for _, future in items:
                    if not future.done():
                        future.set_exception(error)
                continue
            offset = 0
            for x, future in items:
                if not future.done():
                    future.set_result(y[offset : offset + len(x)])
                offset += len(x)

    async def close(self) -> None:
        self._task.cancel()
        self._thread.shutdown()


class Rates:
    """The ways of asking, all of them open, and the answers that they have to give."""

    def __init__(self, model: Path, row: tuple[int, ...], seconds: float) -> None:
        rng = np.random.default_rng(0)
        self._seconds = seconds
        self._inputs = [rng.standard_normal((1, *row)).astype(np.float32) for _ in range(INPUTS)]
        self._close = ExitStack()
        self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._expected = [self._session.run(None, {"x": x})[0] for x in self._inputs]
        self._pool = self._close.enter_context(ortmulti.load(model, "cpu"))
        batching = ortmulti.Batching(BATCH, max_delay_ms=DELAY_MS)
        self._batching = self._close.enter_context(ortmulti.load(model, "cpu", batching=batching))
        self.wrong = 0
        self.ways: dict[str, Callable[[], Coroutine[Any, Any, float]]] = {
            "loop alone": self._loop_alone,
            "run_in_executor(8)": self._executor,
            "batcher by hand": self._by_hand,
            "run_async": lambda: self._asked(self._pool),
            "run_async, Batching": lambda: self._asked(self._batching),
        }

    def close(self) -> None:
        self._close.close()

    def measure(self, way: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> float:
        """Answers a second."""
        loop = new_loop()
        try:
            return loop.run_until_complete(self.ways[way]())
        finally:
            loop.close()

    async def _loop_alone(self) -> float:
        loop = asyncio.get_running_loop()
        expected = dict(zip(map(id, self._inputs), self._expected, strict=True))

        async def call(x: Array) -> Array:
            future: asyncio.Future[Array] = loop.create_future()
            loop.call_soon(future.set_result, expected[id(x)])
            answer: Array = await future
            return answer

        return await self._drive(call)

    async def _executor(self) -> float:
        loop, run = asyncio.get_running_loop(), self._session.run
        with ThreadPoolExecutor(8) as threads:

            async def call(x: Array) -> Array:
                answer: Array = (await loop.run_in_executor(threads, run, None, {"x": x}))[0]
                return answer

            return await self._drive(call)

    async def _by_hand(self) -> float:
        batcher = Batcher(self._session, BATCH, DELAY_MS / 1000)
        try:
            return await self._drive(batcher)
        finally:
            await batcher.close()

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
        self.wrong += sum(not np.allclose(y, self._expected[place], atol=1e-4) for place, y in kept)
        return rate


class Latencies:
    """One request at a time; each way returns microseconds a request."""

    def __init__(self, model: Path, runs: int, directory: Path) -> None:
        self._runs = runs
        self._close = ExitStack()
        self._pool = self._close.enter_context(ortmulti.load(model, "cpu"))
        self._session = self._pool.sessions[0]
        self._bare = bare_round_trip(directory)
        self.wrong = 0
        self.ways: dict[str, Callable[[], float]] = {
            "session.run": self._run,
            "condition variables": lambda: self._bare(self._runs),
            "submit, result": self._submit,
            "call_soon_threadsafe": lambda: asyncio.run(self._threadsafe()),
            "run_async": lambda: asyncio.run(self._run_async()),
        }

    def close(self) -> None:
        self._close.close()

    def _run(self) -> float:
        run, feed = self._session.run, {"x": np.ones(1, np.float32)}
        return self._timed(lambda: run(None, feed))

    def _submit(self) -> float:
        submit, feed = self._pool.submit, {"x": np.ones(1, np.float32)}
        return self._timed(lambda: submit(None, feed).result())

    def _timed(self, call: Callable[[], Sequence[Any]]) -> float:
        begin = time.perf_counter_ns()
        for _ in range(self._runs):
            outputs = call()
        taken = time.perf_counter_ns() - begin
        self._check(outputs)
        return taken / 1e3 / self._runs

    async def _run_async(self) -> float:
        run, feed = self._pool.run_async, {"x": np.ones(1, np.float32)}
        await run(None, feed)
        begin = time.perf_counter_ns()
        for _ in range(self._runs):
            outputs = await run(None, feed)
        taken = time.perf_counter_ns() - begin
        self._check(outputs)
        return taken / 1e3 / self._runs

    async def _threadsafe(self) -> float:
        loop = asyncio.get_running_loop()
        asked: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

        def answer() -> None:
            while (future := asked.get()) is not None:
                loop.call_soon_threadsafe(future.set_result, None)

        thread = threading.Thread(target=answer)
        thread.start()
        begin = time.perf_counter_ns()
        for _ in range(self._runs):
            future = loop.create_future()
            asked.put(future)
            await future
        taken = time.perf_counter_ns() - begin
        asked.put(None)
        thread.join()
        return taken / 1e3 / self._runs

    def _check(self, outputs: Sequence[Any]) -> None:
        self.wrong += [float(y[0]) for y in outputs] != [2.0]


def bare_round_trip(directory: Path) -> Callable[[int], float]:
    """Microseconds of a round trip between two threads, as a function of how many are made."""
    source, library = directory / "ping.c", directory / "ping.so"
    source.write_text(PING, encoding="utf-8")
    try:
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return _locks_round_trip
    round_trip = ctypes.CDLL(str(library)).round_trip
    round_trip.argtypes, round_trip.restype = [ctypes.c_long], ctypes.c_double
    return lambda count: float(round_trip(count)) / 1e3


def _locks_round_trip(count: int) -> float:
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()

    def answer() -> None:
        for _ in range(count):
            there.acquire()
            back.release()

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.perf_counter_ns()
    for _ in range(count):
        there.release()
        back.acquire()
    taken = time.perf_counter_ns() - begin
    thread.join()
    return taken / 1e3 / count


class Mapped:
    """The rows of an array through pools and through onnxruntime; each way returns rows a second."""

    def __init__(
        self, model: Path, row: tuple[int, ...], rows: int, chunks: Sequence[int], seconds: float, singly: bool
    ) -> None:
        rng = np.random.default_rng(0)
        self._seconds = seconds
        self._rows = rng.standard_normal((rows, *row)).astype(np.float32)
        self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._expected = self._session.run(None, {"x": self._rows})[0]
        self._close = ExitStack()
        self._plain = self._close.enter_context(ortmulti.load(model, "cpu"))
        batching = ortmulti.Batching(MAP_BATCH, max_delay_ms=DELAY_MS)
        self._pool = self._close.enter_context(ortmulti.load(model, "cpu", batching=batching))
        self.wrong = 0
        self.ways: dict[str, Callable[[], float]] = {}
        if singly:
            self.ways["map, default"] = lambda: self._map(None)
            self.ways |= {f"map, lookahead {number}": partial(self._map, number) for number in LOOKAHEADS}
            self.ways["as_completed, default"] = self._as_completed
        self.ways["map_rows, default"] = self._map_rows
        self.ways |= {f"onnxruntime, chunks of {size}": partial(self._loop, size) for size in chunks}

    def close(self) -> None:
        self._close.close()

    def _map(self, lookahead: int | None) -> float:
        rows = self._rows
        begin = time.perf_counter()
        feeds = ({"x": rows[i : i + 1]} for i in range(len(rows)))
        found = [y for [y] in self._pool.map(feeds, lookahead=lookahead)]
        return self._rate(begin, time.perf_counter(), np.concatenate(found))

    def _as_completed(self) -> float:
        rows = self._rows
        begin = time.perf_counter()
        feeds = ({"x": rows[i : i + 1]} for i in range(len(rows)))
        found = {index: future.result()[0] for index, future in self._pool.as_completed(feeds)}
        end = time.perf_counter()
        return self._rate(begin, end, np.concatenate([found[index] for index in range(len(rows))]))

    def measure(self, way: str, _round: int) -> float:
        """Rows a second: the median of passes."""
        end = time.perf_counter() + self._seconds
        rates = [self.ways[way]()]
        while time.perf_counter() < end:
            rates.append(self.ways[way]())
        return statistics.median(rates)

    def _map_rows(self) -> float:
        begin = time.perf_counter()
        [found] = self._plain.map_rows({"x": self._rows})
        return self._rate(begin, time.perf_counter(), found)

    def _loop(self, size: int) -> float:
        rows = self._rows
        begin = time.perf_counter()
        parts = [self._session.run(None, {"x": rows[i : i + size]})[0] for i in range(0, len(rows), size)]
        found = np.concatenate(parts)
        return self._rate(begin, time.perf_counter(), found)

    def _rate(self, begin: float, end: float, found: Array) -> float:
        self.wrong += not np.allclose(found, self._expected, atol=1e-4)
        return len(self._rows) / (end - begin)


def new_loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops that are installed."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        return {**loops, "uvloop": importlib.import_module("uvloop").new_event_loop}
    except ImportError:
        return loops


def in_any_order(cases: Sequence[Any], number: int) -> list[Any]:
    """A round's order: what runs before a way, such as one whose threads still spin, differs between rounds."""
    return random.Random(number).sample(cases, len(cases))


def show(title: str, unit: str, rounds: Sequence[dict[str, float]], names: Sequence[str]) -> dict[str, Any]:
    """Print the medians with their intervals, and return them."""
    print(f"\n{title} ({unit}; median of {len(rounds)} rounds, interval)")
    found = {}
    for name in names:
        interval = Interval.of(of_case(rounds, name))
        if interval is not None:
            print(f"  {name:34s} {interval.median:12,.1f}  {interval.low:,.1f} to {interval.high:,.1f}")
            found[name] = {"median": interval.median, "low": interval.low, "high": interval.high}
    return found


def compare(what: str, values: Sequence[float], target: float, *, at_most: bool = False) -> dict[str, Any]:
    """Print a figure that has a target, and return it."""
    interval = Interval.of(values)
    assert interval is not None
    met = interval.median <= target if at_most else interval.median >= target
    bound = "at most" if at_most else "at least"
    print(
        f"  {what}: {interval.median:.2f} ({interval.low:.2f} to {interval.high:.2f}); target: {bound} {target:g}"
        f"{'' if met else ': MISSED'}"
    )
    return {"median": interval.median, "low": interval.low, "high": interval.high, "target": target, "met": met}


def measure_rates(directory: Path, models: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    report: dict[str, Any] = {"wrong": 0}
    for model in models:
        report[model] = _measure_rates(directory, model, rounds, seconds)
        report["wrong"] += report[model].pop("wrong")
    return report


def _measure_rates(directory: Path, model: str, rounds: int, seconds: float) -> dict[str, Any]:
    make, row = MODELS[model]
    rates, loops = Rates(make(directory), row, seconds), new_loops()
    report: dict[str, Any] = {}
    try:
        cases = [(loop, way) for way in rates.ways for loop in loops]
        found = measure_rounds(
            cases, lambda case, _: rates.measure(case[1], loops[case[0]]), rounds, order=in_any_order
        )
    finally:
        rates.close()
    ours, single, by_hand, executor = "run_async, Batching", "run_async", "batcher by hand", "run_in_executor(8)"
    for loop in loops:
        of_loop = [{way: value for (name, way), value in results.items() if name == loop} for results in found]
        report[loop] = show(f"{model}, {CLIENTS} coroutines, {loop}", "answers a second", of_loop, [*rates.ways])
        best = max((single, by_hand, executor), key=lambda name: statistics.median(of_case(of_loop, name)))
        targets = [(ours, best, LEAST_OF_OTHERS)]
        if model == "MLP, 0.3 MB":
            targets = [(ours, by_hand, LEAST_BATCHED), (single, executor, LEAST_SINGLE)]
        for way, base, target in targets:
            name = f"{way} over {base}"
            report[loop][name] = compare(name, ratios(of_loop, way, base, float), target)
    report["wrong"] = rates.wrong
    return report


def measure_latencies(directory: Path, rounds: int, runs: int) -> dict[str, Any]:
    latencies = Latencies(add(directory), runs, directory)
    try:
        found = measure_rounds([*latencies.ways], lambda way, _: latencies.ways[way](), rounds, order=in_any_order)
    finally:
        latencies.close()
    report = show("One request at a time", "microseconds", found, [*latencies.ways])
    for way, bare in (("submit, result", "condition variables"), ("run_async", "call_soon_threadsafe")):
        beyond = [each[way] - each["session.run"] - each[bare] for each in found]
        name = f"{way} beyond session.run and {bare}, us"
        report[name] = compare(name, beyond, MOST_BEYOND_US, at_most=True)
    report["wrong"] = latencies.wrong
    return report


def measure_map(directory: Path, rounds: int, share: int, seconds: float) -> dict[str, Any]:
    """Measure with a part of the rows."""
    report: dict[str, Any] = {"wrong": 0}
    for model, rows, chunks in (("MLP, 0.3 MB", MAP_ROWS, CHUNKS), ("conv net", CONV_ROWS, CONV_CHUNKS)):
        make, row = MODELS[model]
        singly = chunks is CHUNKS
        mapped = Mapped(make(directory), row, rows // share, chunks, seconds, singly)
        try:
            found = measure_rounds([*mapped.ways], mapped.measure, rounds, order=in_any_order)
        finally:
            mapped.close()
        title = f"{model}, map of {rows // share} rows, Batching({MAP_BATCH}, {DELAY_MS:g} ms)"
        report[model] = show(title, "rows a second", found, [*mapped.ways])
        targets = [("map_rows, default", [f"onnxruntime, chunks of {size}" for size in chunks], LEAST_ROWS)]
        if singly:
            targets.append(("map, default", [f"map, lookahead {number}" for number in LOOKAHEADS], LEAST_MAP))
        for way, others, least in targets:
            best = max(others, key=lambda name: statistics.median(of_case(found, name)))
            name = f"{way} over {best}"
            report[model][name] = compare(name, ratios(found, way, best, float), least)
        report["wrong"] += mapped.wrong
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--rounds", type=int, help="of each way (default: 11; quick: 3)")
    parser.add_argument("--seconds", type=float, help="of each way in a round of rates (default: 1.0; quick: 0.2)")
    parser.add_argument("--only", choices=("rates", "latencies", "map"), help="one of the parts")
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS], help="of the rates (default: all)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a target is missed")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    rounds = args.rounds or (3 if args.quick else 11)
    seconds = args.seconds or (0.2 if args.quick else 1.0)
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "rates": lambda directory: measure_rates(directory, args.models, rounds, seconds),
        "latencies": lambda directory: measure_latencies(directory, rounds, 500 if args.quick else 5000),
        "map": lambda directory: measure_map(directory, rounds, 10 if args.quick else 1, seconds),
    }
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        report = {part: measure(Path(name)) for part, measure in parts.items() if args.only in (None, part)}
    wrong = sum(part["wrong"] for part in report.values())
    print(f"\nwrong answers: {wrong}")
    if args.json:
        args.json.write_text(json.dumps({**report, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    missed = '"met": false' in json.dumps(report)
    return int(wrong > 0 or (args.check and missed))


if __name__ == "__main__":
    sys.exit(main())
