"""Models of texts beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import text
from ortmulti.text.tokenizing import Job
from ortmulti.text.tokens import Tokenizer
from tests.serve.text_exports import ENDLESS, endless
from tests.support.exports import CLOSE, TEXTS, WIDTH
from tests.support.held_pool import Held


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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_a_call_has_no_more_texts_pending_than_keep_the_pool_busy(encoder: text.TextModel) -> None:
    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 100, timeout=30, when_full="reject"))
        await until(lambda: sum(held.texts) == 8)
        other = asyncio.ensure_future(model.embed_async(["b"], when_full="reject"))
        await until(lambda: len(held.texts) == 3)  # the call before has no others there
        assert sum(held.texts) == 9
        held.let_go()
        assert len(await task) == 100
        assert len(await other) == 1

    asyncio.run(main())


def test_no_more_are_submitted_after_an_error(encoder: text.TextModel) -> None:
    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 70, when_full="reject"))
        await until(lambda: sum(held.texts) == 8)
        held.fails = ortmulti.QueueFull("full")
        held.let_go()
        with pytest.raises(ortmulti.QueueFull):
            await task
        assert sum(held.texts) <= 16

    asyncio.run(main())


def test_what_is_left_of_a_cancelled_call_is_cancelled(encoder: text.TextModel) -> None:
    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 70, when_full="reject"))
        await until(lambda: sum(held.texts) == 8)
        blocks = [*held.blocks]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(60):
                await task
        held.let_go()
        for block in blocks:
            assert block.arrived()
            assert block.take() == (None, [(i, None) for i in range(4)])
        assert sum(held.texts) == 8

    asyncio.run(main())


def test_a_closed_pool_is_said(folder: Path) -> None:
    model = text.load(folder, "cpu")
    model.close()
    with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
        asyncio.run(model.embed_async(["a"] * 100))
    for texts in (["a"], ["a"] * 100):
        with pytest.raises(ortmulti.ClosedError, match="the pool is closed"):
            model.embed(texts)


def test_a_full_queue_rejects_the_whole_call(tmp_path: Path) -> None:
    async def main() -> None:
        with text.load(endless(tmp_path), "cpu", max_queue=2) as model:
            runs = asyncio.ensure_future(model.embed_async([[ENDLESS]]))
            await until(lambda: model.pool.stats().devices[0].busy == 1)
            waits = asyncio.ensure_future(model.embed_async([[4]]))
            await until(lambda: model.pool.stats().waiting == 1)
            # The longest text is the first, and takes the last place.
            with pytest.raises(ortmulti.QueueFull):
                await model.embed_async([[4] * 9, [4]], when_full="reject")
            runs.cancel()
            with pytest.raises(asyncio.CancelledError):
                await runs
            assert len(await waits) == 1
            assert len(await model.embed_async([[4]] * 100, when_full="reject")) == 100  # a few at a time

    asyncio.run(main())


class Blind(asyncio.SelectorEventLoop):
    """A loop that watches no file descriptors of others."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        raise NotImplementedError


def test_loops_that_watch_no_descriptors(encoder: text.TextModel, expected: np.ndarray) -> None:
    with asyncio.Runner(loop_factory=Blind) as runner:
        found = runner.run(encoder.embed_async(TEXTS * 40))
        np.testing.assert_allclose(found, np.tile(expected, (40, 1)), **CLOSE)
        with pytest.raises(ortmulti.InvalidArgument, match="text 1 has half"):
            runner.run(encoder.embed_async(["a", "\ud800"]))


def test_a_deadline_is_the_whole_calls(encoder: text.TextModel) -> None:
    with pytest.raises(ortmulti.DeadlineExceeded):
        asyncio.run(encoder.embed_async(["a", "b"], timeout=0))
    with pytest.raises(ortmulti.InvalidType, match="timeout is a number"):
        asyncio.run(encoder.embed_async(["a"], timeout="1"))

    async def main() -> None:
        held = Held(encoder.pool)
        model = text.TextModel(held, encoder.settings, closes=False)
        task = asyncio.ensure_future(model.embed_async(["a"] * 100, timeout=0.3, when_full="reject"))
        await until(lambda: len(held.texts) == 2)
        [first, _] = held.blocks
        threading.Event().wait(0.35)  # the deadline passes
        held.let_go()
        first.wait()
        with pytest.raises(ortmulti.DeadlineExceeded, match=r"within 300 ms"):
            await task
        assert len(held.texts) == 2

    asyncio.run(main())


def test_what_waits_for_the_tokenizer_has_a_deadline_and_is_joined(
    encoder: text.TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    threads: list[str] = []
    batches: list[int] = []
    encode = Tokenizer._encode

    def held(self: Tokenizer, tokenizer: Any, texts: Any, *more: Any) -> Any:
        threads.append(threading.current_thread().name)
        batches.append(len(texts))
        began.set()
        assert goes_on.wait(60)
        return encode(self, tokenizer, texts, *more)

    monkeypatch.setattr(Tokenizer, "_encode", held)

    async def main() -> None:
        first = asyncio.ensure_future(encoder.embed_async(["a cat"]))
        await until(began.is_set)
        late = asyncio.ensure_future(encoder.embed_async(["b"], timeout=0.001))
        wrong = asyncio.ensure_future(encoder.embed_async(["a", "\ud800"]))
        others = [asyncio.ensure_future(encoder.embed_async([f"a cat {i}"], timeout=60)) for i in range(20)]
        await asyncio.sleep(0.01)  # the deadline passes
        goes_on.set()
        with pytest.raises(ortmulti.DeadlineExceeded, match="the texts were not tokenized within 1 ms"):
            await late
        with pytest.raises(ortmulti.InvalidArgument, match="text 1 has half of a surrogate pair"):
            await wrong
        assert (await first).shape == (1, WIDTH)
        for i, other in enumerate(others):
            np.testing.assert_allclose(await other, encoder.embed([f"a cat {i}"]), **CLOSE)

    asyncio.run(main())
    assert threads[0].startswith("ortmulti-text")
    assert batches[1] == 22  # all that waited, before the wrong one had them done one by one


def test_encodings(encoder: text.TextModel) -> None:
    found = asyncio.run(encoder.tokenize_async([TEXTS[2], "a cat"]))
    assert len(found[0].ids) > 256
    assert found[1].tokens == ["[CLS]", "a", "cat", "[SEP]"]
    assert found[1].offsets[1:3] == [(0, 1), (2, 5)]
    [bare] = asyncio.run(encoder.tokenize_async(["a cat"], special_tokens=False))
    assert bare.tokens == ["a", "cat"]
    with pytest.raises(ortmulti.InvalidArgument, match="text 0 has half of a surrogate pair"):
        asyncio.run(encoder.tokenize_async(["\udfff"]))


def test_an_error_moves_no_tokens_to_another_caller(encoder: text.TextModel) -> None:
    tokenizer = encoder._tokenizer
    texts = [["rows " * 2000, "b", "c"], ["a"], TEXTS[:2]]
    jobs = [Job(each, 1, 0, False, print, None, 0.0) for each in texts]
    wrong, *found = tokenizer._encode_jobs(jobs)
    assert isinstance(wrong, ortmulti.InvalidArgument)
    assert found == [tokenizer.encode(each) for each in texts[1:]]
