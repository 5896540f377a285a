"""Batches on their way to sessions, by one of several ways, and the answers back; runs in a process of its own."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.create.measure_strategy import digest
from ortmulti.bench.serve.clients import ClosedLoop, closed_loop
from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import InvalidArgument

PICKLING, SHARED_MEMORY, KEPT = "pickling", "shared_memory", "shared_memory, kept"
CORE = "core"
WAYS = (PICKLING, SHARED_MEMORY, KEPT, CORE)

Feeds = Mapping[str, Any]
Ask = Callable[[Feeds], list[Any]]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Asks for batches of several sizes.

    Args:
        spec: "way" (one of `WAYS`), "model" (path), "devices" (one for each session), "threads" (of each session on the
            CPU), "batches" (sizes), "seconds" (of each measurement), "in_flight" (of a session, for throughput).

    Returns:
        By the batch's size as text: "bytes" of a batch; "p50" and "p99" of the latency, in seconds, with one batch in
        flight; "throughput", batches a second with `in_flight` for each session; "outputs": an answer's digest.

    Raises:
        InvalidArgument: there is no such way.
    """
    found = {}
    with _way(spec) as ask:
        for batch in spec["batches"]:
            feeds = models.sample_inputs(spec["model"], batch)
            answer = ask(feeds)
            one = _asked(ask, feeds, 1, spec["seconds"])
            many = _asked(ask, feeds, spec["in_flight"] * len(spec["devices"]), spec["seconds"])
            found[str(batch)] = {
                "bytes": sum(array.nbytes for array in feeds.values()),
                "p50": one["latency"]["p50"],
                "p99": one["latency"]["p99"],
                "throughput": many["throughput"],
                "outputs": digest(answer),
            }
    return {"batches": found}


def _asked(ask: Ask, feeds: Feeds, clients: int, seconds: float) -> dict[str, Any]:
    with ClosedLoop([lambda: ask(feeds)] * clients) as loop:
        loop.until_answered()
        begin, end = loop.go_on(seconds)
        # At least one answer, however slow it is.
        while not (result := closed_loop([a for one in loop.answers for a in one], begin, end))["requests"]:
            _, end = loop.go_on(seconds)
    return result


@contextmanager
def _way(spec: Mapping[str, Any]) -> Iterator[Ask]:
    """What asks for one batch and waits for its answer."""
    way = spec["way"]
    if way == CORE:
        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = spec["threads"]
        devices = list(dict.fromkeys(spec["devices"]))
        sessions = spec["devices"].count(devices[0])
        with ortmulti.load(spec["model"], devices, sessions, options) as pool:
            yield lambda feeds: pool.run(None, feeds)
    elif way in WAYS:
        context = multiprocessing.get_context("spawn")
        waiting = context.SimpleQueue()
        for device in spec["devices"]:
            waiting.put(device)
        arguments = (waiting, spec["model"], spec["threads"])
        with ProcessPoolExecutor(len(spec["devices"]), context, _start, arguments) as executor:
            if way == PICKLING:
                yield lambda feeds: executor.submit(_answer, dict(feeds)).result()
            elif way == SHARED_MEMORY:
                yield functools.partial(_through_new_memory, executor)
            else:
                with _KeptMemory(executor) as kept:
                    yield kept
    else:
        raise InvalidArgument(f"unknown way {way!r}; there are {', '.join(WAYS)}")


def _through_new_memory(executor: ProcessPoolExecutor, feeds: Feeds) -> list[Any]:
    """As the report proposes: new memory for each batch, of which the worker gets the name; answers are pickled."""
    memory = SharedMemory(create=True, size=_size(feeds))
    try:
        layout = _fill(memory, feeds)
        answer: list[Any] = executor.submit(_answer_from, memory.name, layout, False).result()
        return answer
    finally:
        memory.close()
        memory.unlink()


class _KeptMemory:
    """The same through memory that is kept, one for each thread that asks, and to which workers stay attached."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor
        self._own = threading.local()
        self._all: list[SharedMemory] = []

    def __enter__(self) -> _KeptMemory:
        return self

    def __exit__(self, *_: object) -> None:
        for memory in self._all:
            memory.close()
            memory.unlink()

    def __call__(self, feeds: Feeds) -> list[Any]:
        memory: SharedMemory | None = getattr(self._own, "memory", None)
        if memory is None or memory.size < _size(feeds):
            memory = self._own.memory = SharedMemory(create=True, size=_size(feeds))
            self._all.append(memory)
        layout = _fill(memory, feeds)
        answer: list[Any] = self._executor.submit(_answer_from, memory.name, layout, True).result()
        return answer


_Layout = list[tuple[str, str, tuple[int, ...], int]]


def _size(feeds: Feeds) -> int:
    return sum(array.nbytes for array in feeds.values())


def _fill(memory: SharedMemory, feeds: Feeds) -> _Layout:
    """Copies arrays into the memory. Returns the name, dtype, shape and place of each."""
    layout: _Layout = []
    place = 0
    for name, array in feeds.items():
        _array(memory, array.dtype.str, array.shape, place)[...] = array
        layout.append((name, array.dtype.str, array.shape, place))
        place += array.nbytes
    return layout


def _array(memory: SharedMemory, dtype: str, shape: tuple[int, ...], place: int) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, np.dtype(dtype), buffer=memory.buf, offset=place)


# What a worker process has: its session, and memory to which it stays attached.
_session: Any = None
_attached: dict[str, SharedMemory] = {}


def _start(waiting: Any, model: str, threads: int) -> None:
    """A worker's beginning: takes a device and creates its session there."""
    global _session
    _session = SessionSettings(threads).creator(model, waiting.get())()


def _answer(feeds: dict[str, Any]) -> list[Any]:
    answer: list[Any] = _session.run(None, feeds)
    return answer


def _answer_from(name: str, layout: _Layout, keep: bool) -> list[Any]:
    memory = _attached.get(name) or SharedMemory(name)
    feeds = {key: _array(memory, dtype, shape, place) for key, dtype, shape, place in layout}
    answer: list[Any] = _session.run(None, feeds)
    if keep:
        _attached[name] = memory
    else:
        feeds.clear()  # memory that an array looks into cannot be closed
        memory.close()
    return answer
