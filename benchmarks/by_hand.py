"""The batcher that one writes by hand over onnxruntime, beside which pools are measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feed = dict[str, NDArray[Any]]


def concatenated(feeds: Sequence[Feed]) -> Feed:
    """Join requests along dimension 0."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def first_ones(feeds: Sequence[Feed], size: int) -> list[int]:
    """Choose the requests that wait longest."""
    return list(range(min(size, len(feeds))))


class Batcher:
    """Joins what waits, runs it in a thread, and cuts the answers from the joint one. An async context manager.

    Args:
        sessions: onnxruntime's.
        names: of the outputs.
        size: requests of a run.
        delay: seconds that a request waits for others.
        take: chooses the places of a batch's requests; the default is in their order.
        join: makes one request of several.
        under_way: runs of each session at the same time.
    """

    def __init__(
        self,
        sessions: Sequence[Any],
        names: Sequence[str] | None,
        size: int,
        delay: float = 0.0,
        *,
        take: Callable[[Sequence[Feed], int], list[int]] = first_ones,
        join: Callable[[Sequence[Feed]], Feed] = concatenated,
        under_way: int = 1,
    ) -> None:
        self._names, self._size, self._delay, self._take, self._join = names, size, delay, take, join
        self._workers = [session for session in sessions for _ in range(under_way)]
        self._waiting: list[tuple[Feed, asyncio.Future[list[Any]]]] = []

    async def __aenter__(self) -> Batcher:
        self._came = asyncio.Event()
        self._threads = ThreadPoolExecutor(len(self._workers))
        self._tasks = [asyncio.create_task(self._work(session)) for session in self._workers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown()

    async def ask(self, feed: Feed) -> list[Any]:
        """Return a request's outputs."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((feed, future))
        self._came.set()
        return await future

    async def _work(self, session: Any) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            end = loop.time() + self._delay
            while len(self._waiting) < self._size and (left := end - loop.time()) > 0:
                self._came.clear()
                try:
                    await asyncio.wait_for(self._came.wait(), left)
                except TimeoutError:
                    break
            if not self._waiting:
                continue  # another worker took them
            places = self._take([feed for feed, _ in self._waiting], self._size)
            batch = [self._waiting[place] for place in places]
            taken = set(places)
            self._waiting = [one for place, one in enumerate(self._waiting) if place not in taken]
            joined = self._join([feed for feed, _ in batch])
            try:
                outputs = await loop.run_in_executor(self._threads, session.run, self._names, joined)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            begin = 0
            for feed, future in batch:
                rows = len(next(iter(feed.values())))
                if not future.done():
                    future.set_result([output[begin : begin + rows] for output in outputs])
                begin += rows
