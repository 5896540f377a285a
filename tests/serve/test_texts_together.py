"""Short requests of vectors that are there at the same moment: each is answered as if it were alone."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import _core, text
from ortmulti.serve.service import Defaults
from ortmulti.serve.text_models import ServedTexts, TextModels
from ortmulti.serve.together import Together
from tests.serve import text_exports as exports
from tests.serve.server import Server, serving
from tests.serve.text_exports import DIMENSIONS, WORDS, tokens, vector
from tests.support.held_pool import Held
from tests.support.pools import HANG


class Call:
    """One of the core's."""

    grpc, method = False, "POST"

    def __init__(self, path: str, memory: int, asked: dict[str, Any]) -> None:
        self.path, self.memory = path.encode(), memory
        self.headers = [(b"content-type", b"application/json")]
        self.body = memoryview(json.dumps(asked).encode())
        self.reserved = 0

    def reserve(self, size: int) -> bool:
        self.reserved = size
        return size <= self.memory

    def refuse(self, status: int, said: str) -> tuple[int, list[tuple[bytes, bytes]], bytes, str]:
        return status, [], said.encode(), ""


class Served:
    """What has a model, and answers its calls."""

    ready = True

    def __init__(self, model: text.TextModel) -> None:
        self.texts = TextModels()
        self.put(model)
        self.answers: queue.Queue[tuple[Call, int, bytes]] = queue.Queue()
        self.together = Together(self, 2048, self)

    def put(self, model: text.TextModel) -> None:
        self.texts["mini"] = ServedTexts("mini", model, DIMENSIONS)

    def defaults_of(self, _name: str) -> Defaults:
        return Defaults()

    def reply(self, call: Call, status: int, _headers: object, body: bytes, _message: str) -> None:
        self.answers.put((call, status, body))

    def reply_rows(self, table: Any, replies: Any, _headers: object, around: Any, base64: bool) -> list[Any]:
        left = []
        for index, (call, first, count, head, tail) in enumerate(replies):
            body = _core.json_rows(table[first : first + count], head, tail, around, base64)
            if body is None:
                left.append((index, False))
            else:
                self.answers.put((call, 200, body))
        return left

    def take(self, path: str = "/embed", memory: int = 1 << 20, **asked: Any) -> Call:
        call = Call(path, memory, asked)
        assert self.together.add(call)
        return call

    def drop(self, call: Call) -> bool:
        return self.together.drop(call)

    def answered(self, count: int) -> dict[Call, tuple[int, Any]]:
        found = [self.answers.get(timeout=HANG) for _ in range(count)]
        return {call: (status, json.loads(body) if status == 200 else body.decode()) for call, status, body in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports.embedding(tmp_path_factory.mktemp("models") / "mini")


@pytest.fixture
def model(folder: Path) -> Iterator[text.TextModel]:
    with text.load(folder, "cpu") as loaded:
        yield loaded


@pytest.fixture
def held(model: text.TextModel) -> Held:
    return Held(model.pool)


@pytest.fixture
def served(model: text.TextModel, held: Held) -> Served:
    return Served(text.TextModel(held, model.settings, closes=False))


def until_run(held: Held, count: int) -> None:
    while len(held.texts) < count:
        threading.Event().wait(0.001)


def until_refused(loaded: text.TextModel) -> None:
    while loaded.pool.stats().rejected == 0:
        threading.Event().wait(0.001)


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-4, atol=1e-5)


def test_requests_that_want_the_same_are_one_block(served: Served, held: Held) -> None:
    calls = [served.take(inputs=WORDS[: 1 + number % 3]) for number in range(6)]
    other = served.take("/v1/embeddings", input=WORDS[0], dimensions=3)
    served.together.begin()
    until_run(held, 2)
    assert sorted(held.texts) == [1, 12]
    held.let_go()
    found = served.answered(7)
    for number, call in enumerate(calls):
        close(found[call][1], [vector(one) for one in WORDS[: 1 + number % 3]])
    status, answer = found[other]
    close(answer["data"][0]["embedding"], vector(WORDS[0], 3))
    count = len(tokens(WORDS[0]))
    assert (status, answer["usage"]) == (200, {"prompt_tokens": count, "total_tokens": count})
    assert served.texts._counts["texts", "mini"] == 13


def test_a_block_has_no_more_than_its_texts(served: Served, held: Held) -> None:
    held.holds = False
    for _ in range(5):
        served.take(inputs=["a"] * 30)
    served.together.begin()
    assert {status for status, _ in served.answered(5).values()} == {200}
    assert sorted(held.texts) == [30, 60, 60]


def test_what_is_not_short_is_not_taken(served: Served) -> None:
    for asked in ({"inputs": ["a"] * 65}, {"inputs": "a" * 20_000}):
        assert not served.together.add(Call("/embed", 1 << 20, asked))
    assert not served.together.add(Call("/rerank", 1 << 20, {}))
    coded = Call("/embed", 1 << 20, {"inputs": "a"})
    coded.headers.append((b"content-encoding", b"gzip"))
    assert not served.together.add(coded)


def test_an_error_is_of_its_request_alone(served: Served, held: Held) -> None:
    held.holds = False
    wrong = {
        served.take(inputs=[WORDS[0], "cats " * 200], truncate=False): "text 1 has 202 tokens",
        served.take(inputs=[[5], [5000]], truncate=False): "text 1 has the token 5000",
        served.take(inputs="a", prompt_name="best"): "no prompt 'best'",
        served.take(inputs="a", dimensions=9): "dimensions is",
        served.take(inputs="a", memory=10): "no memory",
        served.take(inputs=[]): "not empty",
    }
    right = [served.take(inputs=one, truncate=False) for one in WORDS]
    served.together.begin()
    found = served.answered(len(wrong) + len(right))
    for call, said in wrong.items():
        assert found[call][0] in (422, 503)
        assert said in found[call][1]
    for one, call in zip(WORDS, right, strict=True):
        close(found[call][1], [vector(one)])


def test_nan_is_of_its_request_alone(tmp_path: Path) -> None:
    table = exports.TABLE.copy()
    special = tokens(WORDS[0])[1]
    table[special] = np.nan
    texts = [WORDS[0], next(one for one in WORDS if special not in tokens(one))]
    with text.load(exports.embedding(tmp_path / "mini", table=table), "cpu") as loaded:
        served = Served(loaded)
        wrong, right = (served.take(inputs=one) for one in texts)
        served.together.begin()
        found = served.answered(2)
    assert found[wrong] == (424, "the model's answer has NaN or infinity, which JSON cannot have")
    close(found[right][1], [vector(texts[1])])


def test_a_client_that_goes_is_forgotten_and_the_others_are_answered(served: Served, held: Held) -> None:
    gone, stays = served.take(inputs=WORDS[0]), served.take(inputs=WORDS[1])
    before = served.take(inputs=WORDS[2])
    assert served.drop(before)
    served.together.begin()
    until_run(held, 1)
    assert held.texts == [2]
    assert served.drop(gone)
    assert not served.drop(gone)
    freed = weakref.ref(gone)
    del gone
    assert freed() is None
    held.let_go()
    close(served.answered(1)[stays][1], [vector(WORDS[1])])
    assert not served.drop(stays)
    assert served.answers.empty()


def test_what_nobody_waits_for_is_cancelled(served: Served, held: Held) -> None:
    calls = [served.take(inputs=WORDS) for _ in range(3)]
    served.together.begin()
    until_run(held, 1)
    block = held.blocks[0]
    served.together.end()
    held.let_go()
    block.wait()
    assert not any(map(served.drop, calls))
    assert block.take() == (None, [(i, None) for i in range(9)])
    assert served.answers.empty()


def test_without_room_in_the_queue_the_rest_is_refused(tmp_path: Path) -> None:
    with text.load(exports.endless(tmp_path), "cpu", max_queue=1) as loaded:
        served = Served(loaded)
        runs = served.take(inputs=[exports.ENDLESS])
        served.together.begin()
        while loaded.pool.stats().devices[0].busy == 0:
            threading.Event().wait(0.001)
        calls = [served.take(inputs=[4] * count, normalize=False) for count in (1, 9, 2)]
        served.together.begin()
        until_refused(loaded)
        assert served.drop(runs)
        found = served.answered(3)
    refused = (429, "the queue of requests is full: try again later")
    assert [found[call] for call in calls] == [(200, [[2.0]]), refused, refused]


def test_a_model_that_has_taken_the_place_answers(served: Served, held: Held, tmp_path: Path) -> None:
    with text.load(exports.embedding(tmp_path / "new", table=-exports.TABLE), "cpu") as new:
        calls = [served.take(inputs=one) for one in WORDS]
        held.fails = ortmulti.ClosedError("the pool is closed")
        before = served.texts["mini"]
        served.together.begin()
        found = served.answered(3)
        assert {status for status, _ in found.values()} == {503}  # it is still the model
        calls = [served.take(inputs=one) for one in WORDS]
        served.put(new)
        assert served.texts["mini"] is not before
        served.together.begin()
        found = served.answered(3)
    for one, call in zip(WORDS, calls, strict=True):
        close(found[call][1], [-vector(one)])


ASKED = [
    ("/v1/embeddings", {"input": WORDS}),
    ("/v1/embeddings", {"input": WORDS[0], "encoding_format": "base64", "dimensions": 3}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}),
    ("/v1/embeddings", {"input": [[1, 2], [10**9]]}),
    ("/embeddings", {"input": WORDS[1], "model": "any"}),
    ("/embed", {"inputs": WORDS[2]}),
    ("/embed", {"inputs": [WORDS[0], "cats " * 200], "truncate": False}),
    ("/embed", {"inputs": WORDS[0], "truncate": False}),
    ("/embed", {"inputs": "a", "prompt_name": "query", "normalize": False}),
    ("/embed", {"inputs": "a", "prompt_name": "none"}),
    ("/embed", {"inputs": []}),
    ("/embed", {"inputs": "\ud800"}),
    ("/embed", {"inputs": "a", "dimensions": 100}),
    ("/embed/", {"inputs": "a"}),
    ("/", {"inputs": "a", "truncation_direction": "left"}),
    ("/embed", [1]),
]


def test_right_and_wrong_requests_at_once_are_answered_as_one_by_one(folder: Path) -> None:
    async def one(server: Server, path: str, body: object) -> tuple[int, Any]:
        return await asyncio.to_thread(server.ask, path, json.dumps(body).encode())

    async def at_once(server: Server) -> list[tuple[int, Any]]:
        return await asyncio.gather(*(one(server, path, body) for path, body in ASKED * 8))

    with serving(folder) as server:
        expected = [server.ask(path, json.dumps(body).encode()) for path, body in ASKED]
        assert {status for status, _ in expected} == {200, 400, 422}
        found = asyncio.run(at_once(server))
    for index, (status, content) in enumerate(found):
        assert (status, content) == expected[index % len(ASKED)], ASKED[index % len(ASKED)]
