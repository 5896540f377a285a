"""Models of texts beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import text
from ortmulti.text.tokens import Tokenizer
from tests.support.exports import CLOSE, TEXTS, WIDTH


def test_many_callers_of_an_event_loop(encoder: text.TextModel, expected: np.ndarray) -> None:
    async def ask(number: int) -> None:
        counts: list[int] = []
        texts = [TEXTS[(number + i) % len(TEXTS)] for i in range(1 + number % 90)]
        found = await encoder.embed_async(texts, counts=counts, timeout=60)
        np.testing.assert_allclose(found, [expected[(number + i) % len(TEXTS)] for i in range(len(texts))], **CLOSE)
        assert len(counts) == len(texts)

    async def all_of_them() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*map(ask, range(100)))
        assert (await encoder.embed_async([])).shape == (0, WIDTH)

    asyncio.run(all_of_them())


class Held:
    """A pool whose runs wait until they are let go, and that knows what is asked of it."""

    def __init__(self, pool: Any, at_once: int = 8) -> None:
        self.pool, self.at_once = pool, at_once
        self.running = self.most = self.cancelled = 0
        self.timeouts: list[float | None] = []
        self.let_go = asyncio.Event()
        self.fails: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    async def run_async(self, names: Any, feed: Any, *, timeout: float | None, when_full: str) -> Any:
        assert when_full == "reject"
        self.timeouts.append(timeout)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.let_go.wait()
            if self.fails is not None:
                raise self.fails
            return self.pool.run(names, feed)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_a_call_has_no_more_texts_pending_than_keep_the_pool_busy(encoder: text.TextModel) -> None:
    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 100, timeout=30, when_full="reject"))
        await until(lambda: held.running == 8)
        other = asyncio.ensure_future(model.embed_async(["b"], when_full="reject"))
        await until(lambda: held.running == 9)
        held.let_go.set()
        assert len(await task) == 100
        assert len(await other) == 1
        assert held.most <= 9
        assert held.timeouts.count(None) == 1
        assert all(0 < one <= 30 for one in held.timeouts if one is not None)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_what_is_left_after_an_error_is_cancelled(encoder: text.TextModel, how: str) -> None:
    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 70, when_full="reject"))
        await until(lambda: held.running == 8)
        if how == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(60):
                    await task
            assert held.cancelled == 8
        else:
            held.fails = ortmulti.QueueFull("full")
            held.let_go.set()
            with pytest.raises(ortmulti.QueueFull):
                await task
        assert held.running == 0
        assert len(held.timeouts) < 70

    asyncio.run(main())


def test_a_deadline_is_the_whole_calls(encoder: text.TextModel) -> None:
    with pytest.raises(ortmulti.DeadlineExceeded):
        asyncio.run(encoder.embed_async(["a", "b"], timeout=0))
    with pytest.raises(ortmulti.InvalidType, match="timeout is a number"):
        asyncio.run(encoder.embed_async(["a"], timeout="1"))


def test_large_texts_are_tokenized_in_other_threads(encoder: text.TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    encode = Tokenizer.encode

    def recorded(self: Tokenizer, *arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return encode(self, *arguments)

    monkeypatch.setattr(Tokenizer, "encode", recorded)
    asyncio.run(encoder.embed_async(["a cat"]))
    assert threads == {threading.current_thread().name}
    threads.clear()
    asyncio.run(encoder.embed_async(["a cat " * 400, "b"]))
    assert len(threads) == 1
    assert next(iter(threads)).startswith("ortmulti-text")


def test_encodings(encoder: text.TextModel) -> None:
    found = asyncio.run(encoder.tokenize_async([TEXTS[2], "a cat"]))
    assert len(found[0].ids) > 256
    assert found[1].tokens == ["[CLS]", "a", "cat", "[SEP]"]
    assert found[1].offsets[1:3] == [(0, 1), (2, 5)]
    [bare] = asyncio.run(encoder.tokenize_async(["a cat"], special_tokens=False))
    assert bare.tokens == ["a", "cat"]
    with pytest.raises(ortmulti.InvalidArgument, match="text 0 has half of a surrogate pair"):
        asyncio.run(encoder.tokenize_async(["\udfff"]))
