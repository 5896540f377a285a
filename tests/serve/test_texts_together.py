"""Short requests of vectors that are there at the same moment: each is answered as if it were alone."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import text
from ortmulti.serve.front import Front, loops
from ortmulti.serve.limits import Limits
from ortmulti.serve.service import Service
from ortmulti.serve.text_models import ServedTexts
from tests.serve import text_exports as exports
from tests.serve.server import Server, serving
from tests.serve.text_exports import DIMENSIONS, WORDS, tokens, vector
from tests.support.held_pool import Held
from tests.support.pools import HANG

_THREADS = 2  # that take groups


class Gated(Held):
    """A held pool whose blocks wait to be submitted: so those who submit take no further requests."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.holds = False
        self.gate = threading.Event()
        self.at_gate = threading.Semaphore(0)

    def submit_tokens(self, block: Any, waits: bool, limited: bool) -> None:
        self.at_gate.release()
        assert self.gate.wait(HANG)
        super().submit_tokens(block, waits, limited)


class Served:
    """A server in this process, with a model of texts."""

    def __init__(self, model: text.TextModel, **limits: Any) -> None:
        self.models = ortmulti.ModelRepository(devices="cpu")
        self.service = Service(self.models)
        self.put(model)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.front = self._call(self._start(listener.detach(), Limits(**limits)))
        self._clients = ThreadPoolExecutor(64)

    def put(self, model: text.TextModel) -> None:
        self.service.texts["mini"] = ServedTexts("mini", model, DIMENSIONS)

    async def _start(self, listener: int, limits: Limits) -> Front:
        return Front(self.service, limits, http=[listener])

    def _call(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(HANG)

    def send(self, path: str = "/embed", **asked: Any) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        connection.request("POST", path, json.dumps(asked))
        return connection

    def ask(self, path: str = "/embed", **asked: Any) -> Future[tuple[int, Any]]:
        connection = self.send(path, **asked)
        return self._clients.submit(self.answer, connection)

    def answer(self, connection: HTTPConnection) -> tuple[int, Any]:
        found = connection.getresponse()
        status, body = found.status, found.read()
        connection.close()
        return status, json.loads(body)

    def read_all(self) -> None:
        """Return when each event loop has read what was sent."""
        for _ in range(2):
            connections = [HTTPConnection("127.0.0.1", self.port, timeout=HANG) for _ in range(4 * loops())]
            for connection in connections:
                connection.request("GET", "/v2/health/live")
            for connection in connections:
                assert connection.getresponse().read() is not None
                connection.close()

    def close(self) -> None:
        self._call(self.front.end())
        self._clients.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.models.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exports.embedding(tmp_path_factory.mktemp("models") / "mini")


@pytest.fixture
def model(folder: Path) -> Iterator[text.TextModel]:
    with text.load(folder, "cpu") as loaded:
        yield loaded


@pytest.fixture
def held(model: text.TextModel) -> Gated:
    return Gated(model.pool)


@pytest.fixture
def served(model: text.TextModel, held: Gated) -> Iterator[Served]:
    """One whose threads wait at the gate, each with a request of one text."""
    server = Served(text.TextModel(held, model.settings, closes=False))
    first = []
    for _ in range(_THREADS):
        first.append(server.ask(inputs="a"))
        assert held.at_gate.acquire(timeout=HANG)
    yield server
    held.gate.set()
    held.let_go()
    for each in first:
        assert each.result(HANG)[0] in (200, 503)
    server.close()


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-4, atol=1e-5)


def test_requests_that_want_the_same_are_one_block(served: Served, held: Gated) -> None:
    asked = [served.ask(inputs=WORDS[: 1 + number % 3]) for number in range(6)]
    other = served.ask("/v1/embeddings", input=WORDS[0], dimensions=3)
    served.read_all()
    held.gate.set()
    for number, each in enumerate(asked):
        close(each.result(HANG)[1], [vector(one) for one in WORDS[: 1 + number % 3]])
    status, answer = other.result(HANG)
    close(answer["data"][0]["embedding"], vector(WORDS[0], 3))
    count = len(tokens(WORDS[0]))
    assert (status, answer["usage"]) == (200, {"prompt_tokens": count, "total_tokens": count})
    assert sorted(held.texts) == [1, 1, 1, 12]
    assert 'ortmulti_texts_total{model="mini"} 15' in served.service.metrics()


def test_a_block_has_no_more_than_its_texts(served: Served, held: Gated) -> None:
    asked = [served.ask(inputs=["a"] * 30) for _ in range(5)]
    served.read_all()
    held.gate.set()
    assert {each.result(HANG)[0] for each in asked} == {200}
    assert sorted(held.texts) == [1, 1, 30, 60, 60]


def test_an_error_is_of_its_request_alone(served: Served, held: Gated) -> None:
    wrong = {
        served.ask(inputs=[WORDS[0], "cats " * 200], truncate=False): "text 1 has 202 tokens",
        served.ask(inputs=[[5], [5000]], truncate=False): "text 1 has the token 5000",
        served.ask(inputs="a", prompt_name="best"): "no prompt 'best'",
        served.ask(inputs="a", dimensions=9): "dimensions is",
        served.ask(inputs=[]): "not empty",
    }
    right = [served.ask(inputs=one, truncate=False) for one in WORDS]
    served.read_all()
    held.gate.set()
    for each, said in wrong.items():
        status, answer = each.result(HANG)
        assert status == 422
        assert said in answer["error"]
    for one, each in zip(WORDS, right, strict=True):
        close(each.result(HANG)[1], [vector(one)])


def test_nan_is_of_its_request_alone(tmp_path: Path) -> None:
    table = exports.TABLE.copy()
    special = tokens(WORDS[0])[1]
    table[special] = np.nan
    texts = [WORDS[0], next(one for one in WORDS if special not in tokens(one))]
    with text.load(exports.embedding(tmp_path / "mini", table=table), "cpu") as loaded:
        served = Served(loaded)
        wrong, right = (served.ask(inputs=one) for one in texts)
        status, answer = wrong.result(HANG)
        assert (status, answer["error"]) == (424, "the model's answer has NaN or infinity, which JSON cannot have")
        close(right.result(HANG)[1], [vector(texts[1])])
        served.close()


def test_a_client_that_goes_is_forgotten_and_the_others_are_answered(served: Served, held: Gated) -> None:
    gone, stays = served.send(inputs=WORDS[0]), served.ask(inputs=WORDS[1])
    before = served.send(inputs=WORDS[2])
    served.read_all()
    before.close()
    served.read_all()
    held.holds = True
    held.gate.set()
    for _ in range(1000):
        if len(held.texts) == 3:
            break
        threading.Event().wait(0.01)
    assert sorted(held.texts) == [1, 1, 2]
    gone.close()
    served.read_all()
    held.let_go()
    close(stays.result(HANG)[1], [vector(WORDS[1])])


def test_what_nobody_waits_for_is_cancelled(served: Served, held: Gated) -> None:
    connections = [served.send(inputs=WORDS) for _ in range(3)]
    served.read_all()
    held.holds = True
    held.gate.set()
    while len(held.texts) < 3:
        threading.Event().wait(0.001)
    block = next(block for block in held.blocks if len(block.lengths) == 9)
    for connection in connections:
        connection.close()
    served.read_all()
    held.let_go()
    block.wait()
    assert block.take() == (None, [(i, None) for i in range(9)])


def test_without_room_in_the_queue_the_rest_is_refused(tmp_path: Path) -> None:
    with text.load(exports.endless(tmp_path), "cpu", max_queue=1) as loaded:
        served = Served(loaded)
        served.service.texts["mini"] = ServedTexts("mini", loaded, 1)
        quiet = next(one for one in "abcdefgh" if exports.ENDLESS not in tokens(one))
        runs = served.send(inputs=[exports.ENDLESS])
        while loaded.pool.stats().devices[0].busy == 0:
            threading.Event().wait(0.001)
        one = served.ask(inputs=quiet, normalize=False)
        while loaded.pool.stats().waiting == 0:
            threading.Event().wait(0.001)
        refused = [served.ask(inputs=quiet) for _ in range(9)]
        for each in [*refused, served.ask(inputs=[quiet] * 9)]:
            status, answer = each.result(HANG)
            assert (status, answer["error"]) == (429, "the queue of requests is full: try again later")
        assert loaded.pool.stats().rejected == 10  # of the list the first one, then the others are not tried
        runs.close()
        assert one.result(HANG)[0] == 200
        served.close()


def test_a_model_that_has_taken_the_place_answers(served: Served, held: Gated, tmp_path: Path) -> None:
    held.fails = ortmulti.ClosedError("the pool is closed")
    still = [served.ask(inputs=one) for one in WORDS]
    served.read_all()
    held.gate.set()
    assert {each.result(HANG)[0] for each in still} == {503}  # it is still the model
    with text.load(exports.embedding(tmp_path / "new", table=-exports.TABLE), "cpu") as new:
        held.gate.clear()
        asked = [served.ask(inputs=one) for one in WORDS]
        assert held.at_gate.acquire(timeout=HANG)
        served.put(new)
        held.gate.set()
        for one, each in zip(WORDS, asked, strict=True):
            close(each.result(HANG)[1], [-vector(one)])


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
