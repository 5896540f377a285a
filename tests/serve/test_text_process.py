"""Texts over HTTP: many clients at once, other versions, settings, metrics, and the end of the server."""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from tests.serve import text_exports as exports
from tests.serve.asgi import ask_json
from tests.serve.server import Server, serving
from tests.serve.text_exports import WORDS, tokens, vector
from tests.support.pools import HANG

CLIENTS = 512


async def asked_by(server: Server, path: str, body: object) -> tuple[int, Any]:
    """The answer to a client with a connection of its own."""
    host, _, port = server.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + content)
    answer = await asyncio.wait_for(reader.read(), HANG)
    writer.close()
    fields, _, text = answer.partition(b"\r\n\r\n")
    return int(fields[9:12] or 0), json.loads(text or b"null")


def texts_of(client: int) -> list[str]:
    return [WORDS[client % 3] + " cat" * (client % 7)] * (1 + client % 3)


def test_many_clients_get_their_own_answers(tmp_path: Path) -> None:
    async def client(server: Server, number: int) -> None:
        status, answer = await asked_by(server, "/v1/embeddings", {"input": texts_of(number)})
        assert status == 200, answer
        found = [one["embedding"] for one in answer["data"]]
        np.testing.assert_allclose(found, [vector(text) for text in texts_of(number)], rtol=1e-4, atol=1e-5)

    async def all_of(server: Server) -> None:
        await asyncio.gather(*(client(server, number) for number in range(CLIENTS)))

    with serving(exports.embedding(tmp_path / "mini")) as server:
        asyncio.run(all_of(server))
        page = server.ask("/metrics")[1].decode()
    texts = [text for number in range(CLIENTS) for text in texts_of(number)]
    assert f'ortmulti_texts_total{{model="mini"}} {len(texts)}\n' in page
    assert f'ortmulti_tokens_total{{model="mini"}} {sum(len(tokens(text)) for text in texts)}\n' in page


def test_what_is_received_is_answered_before_the_end(tmp_path: Path) -> None:
    async def client(server: Server, number: int) -> bool:
        """Ask until the server takes no more connections. Every answer is a right one."""
        answered = False
        while True:
            try:
                status, answer = await asked_by(server, "/embed", {"inputs": texts_of(number)})
            except OSError:  # it listens no more, or took the connection as it closed
                return answered
            if (status, answer) == (0, None):  # nothing was read of it
                return answered
            assert status == 200, answer
            np.testing.assert_allclose(answer, [vector(text) for text in texts_of(number)], rtol=1e-4, atol=1e-5)
            if not answered:
                began.append(number)
                if len(began) == 64:
                    server.process.send_signal(signal.SIGTERM)
            answered = True

    async def all_of(server: Server) -> list[bool]:
        return await asyncio.gather(*(client(server, number) for number in range(64)))

    began: list[int] = []
    with serving(exports.embedding(tmp_path / "mini")) as server:
        assert asyncio.run(all_of(server)) == [True] * 64
        assert server.process.wait(HANG) == 0


def test_a_request_of_many_texts_holds_up_no_other_client(tmp_path: Path) -> None:
    async def both(server: Server) -> None:
        long = asyncio.ensure_future(asked_by(server, "/embed", {"inputs": ["cats " * 60] * 2048}))
        answered = 0
        while not long.done():
            status, answer = await asked_by(server, "/embed", {"inputs": "a cat"})
            assert status == 200, answer
            answered += 1
        status, answer = await long
        assert (status, len(answer)) == (200, 2048)
        assert answered > 2

    with serving(exports.embedding(tmp_path / "mini")) as server:
        asyncio.run(both(server))


def test_nothing_more_is_computed_for_a_client_that_has_gone(tmp_path: Path) -> None:
    body = json.dumps({"inputs": ["cats " * 1500] * 2000}).encode()
    with serving(exports.embedding(tmp_path / "mini")) as server:

        def done() -> int:
            page = server.ask("/metrics")[1].decode()
            [count] = re.findall(r'ortmulti_requests_total{model="mini",device="cpu",outcome="done"} (\d+)', page)
            return int(count)

        before = now = done()  # of the load
        with server.socket() as client:
            client.sendall(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            while now == before:
                now = done()
        quiet = 0
        while quiet < 500:  # requests that are the only ones, one after another
            last = now
            assert server.ask("/embed", b'{"inputs": "a cat"}')[0] == 200
            now = done()
            quiet = quiet + 1 if now == last + 1 else 0
        assert now - quiet - before < 2000


def test_the_start_says_what_texts_there_are(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    exports.ranking(tmp_path / "ranks")
    exports.classification(tmp_path / "classes")
    with serving(tmp_path) as server:
        assert server.process.stdout is not None
        said = sorted(server.process.stdout.readline() for _ in range(3))
    assert said == [
        "texts of classes: classification, 3 classes, up to 64 tokens, /predict\n",
        "texts of mini: embedding, mean pooling, length 1, up to 64 tokens, /v1/embeddings, /embeddings, /embed\n",
        "texts of ranks: ranking, up to 64 tokens, /rerank, /v1/rerank, /v2/rerank\n",
    ]


def test_a_toml_file_has_settings_of_texts(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    table = (
        "[models.cut]\npath = 'mini'\npooling = 'cls'\nnormalize = false\nmax_length = 5\nversion = 3\ntimeout = 60\n"
    )
    settings.write_text(f"limits = {{ texts = 2 }}\n{table}")
    with serving(settings) as server:
        status, content = server.ask("/v1/embeddings", json.dumps({"input": WORDS[:2]}).encode())
        answer = json.loads(content)
        assert (status, answer["usage"]["total_tokens"]) == (200, 10)
        found = [one["embedding"] for one in answer["data"]]
        np.testing.assert_allclose(found, [exports.TABLE[2]] * 2, rtol=1e-4, atol=1e-5)
        assert server.ask("/embed", json.dumps({"inputs": WORDS}).encode())[0] == 413
        assert json.loads(server.ask("/v2/models/cut")[1])["versions"] == ["3"]


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("path = 'mini'\npooling = 'best'", "pooling"),
        ("path = 'mini'\nmax_length = 1000", "max_length"),
        ("path = 'mini'\nfile = 'other.onnx'", "other.onnx"),
        ("path = 'mini/model.onnx'\npooling = 'cls'", "pooling of 'm': these are for the folder of an exported model"),
    ],
)
def test_wrong_settings_of_texts_are_told(tmp_path: Path, table: str, error: str) -> None:
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    settings.write_text(f"[models.m]\n{table}\n")
    with serving(settings, wait="") as server:
        said = server.process.communicate(timeout=HANG)[1]
    assert server.process.returncode == 1
    assert error in said


def test_a_full_queue_is_told(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    settings.write_text("[models.mini]\npath = 'mini'\nmax_queue = 0\nbatching = false\n")

    async def many(server: Server) -> list[tuple[int, Any]]:
        asked = (asked_by(server, path, {"inputs": WORDS * 20, "input": WORDS * 20}) for path in ["/embed"] * 16)
        return await asyncio.gather(*asked)

    def refused_at(server: Server, path: str) -> tuple[Any, bytes]:
        while True:  # each text may find the session idle, if this machine has time for it
            connection = server.connect()
            connection.request("POST", path, json.dumps({"inputs": WORDS * 100, "input": WORDS * 100}).encode())
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if answer.status != 200:
                return answer, content

    with serving(settings) as server:
        found = asyncio.run(many(server))
        answer, content = refused_at(server, "/v1/embeddings")
        assert refused_at(server, "/embed")[0].headers["retry-after"] == "1"
    refused = {"error": "the queue of requests is full: try again later", "error_type": "Overloaded"}
    assert all(answer == refused for status, answer in found if status == 429)
    assert {status for status, _ in found} <= {200, 429}, [one for one in found if one[0] not in (200, 429)]
    assert (answer.status, json.loads(content)["error"]["type"]) == (429, "rate_limit_error")


def test_a_signal_ends_the_making_of_a_faster_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("ORTMULTI_CACHE", str(cache))
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another process has it, which the load waits for
        with serving(exports.embedding(tmp_path / "mini"), "--fuse", "fp32", wait="") as server:
            while server.ask("/health")[0] != 503:
                pass
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(HANG) == 0
            assert server.process.stderr is not None
            assert "what was being loaded is given up" in server.process.stderr.read()


def test_a_request_of_more_texts_than_may_wait_is_answered(tmp_path: Path) -> None:
    """By a few at a time; otherwise it could never be."""
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    settings.write_text("[models.mini]\npath = 'mini'\nmax_queue = 4\n")
    with serving(settings) as server:
        for count in (3, 5, 60, 300):
            status, content = server.ask("/embed", json.dumps({"inputs": ["a cat"] * count}).encode())
            assert (status, len(json.loads(content))) == (200, count)


def test_the_root_is_vectors_where_one_model_has_them(tmp_path: Path) -> None:
    """Clients of text-embeddings-inference cannot name a model."""
    exports.embedding(tmp_path / "mini")
    exports.ranking(tmp_path / "ranks")
    with serving(tmp_path) as server:
        for texts in (["a cat"], ["a cat"] * 100):  # read together with others, and alone
            status, content = server.ask("/", json.dumps({"inputs": texts}).encode())
            assert (status, len(json.loads(content))) == (200, len(texts))


def test_answers_have_a_budget(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    settings.write_text("limits = { memory = 200_000 }\n[models.mini]\npath = 'mini'\n")
    with serving(settings) as server:

        def asked(texts: int, coding: str) -> tuple[int, bytes]:
            return server.ask(
                "/v1/embeddings", json.dumps({"input": ["a"] * texts, "encoding_format": coding}).encode()
            )

        for _ in range(20):  # each gives its memory back
            assert asked(500, "float")[0] == 200
        assert asked(1500, "base64")[0] == 200
        status, content = asked(1500, "float")
        assert (status, json.loads(content)["error"]["type"]) == (503, "server_error")


def test_a_late_answer_is_told(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    settings = tmp_path / "server.toml"
    settings.write_text("[models.mini]\npath = 'mini'\ntimeout = 0.0\n")
    with serving(settings) as server:
        status, content = server.ask("/v1/embeddings", b'{"input": "a"}')
        assert (status, json.loads(content)["error"]["type"]) == (504, "server_error")


def test_a_new_version_brings_its_own_tokenizer(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini" / "1")
    with serving(tmp_path, "--model-control", "explicit") as server:

        def embedded() -> Any:
            status, content = server.ask("/embed", b'{"inputs": "a cat", "normalize": false}')
            assert status == 200, content
            return json.loads(content)[0]

        np.testing.assert_allclose(embedded(), vector("a cat", normalize=False), rtol=1e-4, atol=1e-5)
        exports.embedding(tmp_path / "mini" / "2", table=exports.TABLE * 2)
        config = tmp_path / "mini" / "2" / "1_Pooling" / "config.json"
        config.write_text(json.dumps({"pooling_mode_cls_token": True}))
        assert server.ask("/v2/repository/models/mini/load", b"")[0] == 200
        np.testing.assert_allclose(embedded(), exports.TABLE[2] * 2, rtol=1e-4, atol=1e-5)
        assert server.ask("/v2/repository/models/mini/unload", b"")[0] == 200
        assert json.loads(server.ask("/v1/models")[1])["data"] == []
        assert server.ask("/embed", b'{"inputs": "a cat"}')[0] == 503
        assert server.ask("/v2/repository/models/mini/load", b"")[0] == 200
        np.testing.assert_allclose(embedded(), exports.TABLE[2] * 2, rtol=1e-4, atol=1e-5)


def test_a_version_has_the_layout_of_its_export(tmp_path: Path) -> None:
    for number, scale in ((1, 1), (2, 2)):
        version = exports.embedding(tmp_path / "models" / "mini" / str(number), table=exports.TABLE * scale)
        (version / "onnx").mkdir()
        (version / "model.onnx").rename(version / "onnx" / "model.onnx")
    for place in ("models", "models/mini"):
        with serving(tmp_path / place) as server:
            status, content = server.ask("/embed", b'{"inputs": "a cat", "normalize": false}')
            assert status == 200, content
            np.testing.assert_allclose(
                json.loads(content)[0], 2 * vector("a cat", normalize=False), rtol=1e-4, atol=1e-5
            )
            assert json.loads(server.ask("/v2/models/mini")[1])["versions"] == ["2"]


def test_a_model_that_is_not_there_gets_no_other_ones_answers(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "there")
    broken = exports.embedding(tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"none")
    with serving(tmp_path, "--no-exit-on-error") as server:

        def asked(path: str, **body: object) -> tuple[int, str]:
            status, content = server.ask(path, json.dumps(body).encode())
            return status, content.decode()

        assert asked("/embed", inputs="a", model="there")[0] == 200
        assert asked("/", inputs="a", model="there")[0] == 200
        for path, name in (("/embed", "inputs"), ("/v1/embeddings", "input")):
            status, answer = asked(path, **{name: "a", "model": "broken"})
            assert (status, "'broken' is not loaded: there are 'there'" in answer) == (503, True), answer
            status, answer = asked(path, **{name: "a", "model": "other"})
            assert (status, "there is no model 'other'" in answer) == (404, True), answer
            status, answer = asked(path, **{name: "a"})
            assert (status, "say which one" in answer) == (422 if path == "/embed" else 400, True), answer


def test_the_root_is_of_the_model_that_is_named(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "vectors")
    exports.ranking(tmp_path / "ranks")
    exports.classification(tmp_path / "classes")
    with serving(tmp_path) as server:

        def asked(**body: object) -> Any:
            status, content = server.ask("/", json.dumps(body).encode())
            return json.loads(content) if status == 200 else (status, content.decode())

        np.testing.assert_allclose(asked(inputs="a cat", model="vectors"), [vector("a cat")], rtol=1e-4, atol=1e-5)
        assert {one["label"] for one in asked(inputs="a cat", model="classes")} == set(exports.LABELS)
        assert [one["index"] for one in asked(query="a", texts=["a cat"], model="ranks")] == [0]
        assert [one["index"] for one in asked(query="a", texts=["a cat"])] == [0]
        status, answer = asked(inputs="a cat", model=1)
        assert (status, "model is a text" in answer) == (422, True)


def test_a_version_that_is_no_export_is_served_without_its_tokenizer(tmp_path: Path) -> None:
    version = exports.embedding(tmp_path / "mini" / "1")
    (version / "config.json").write_text("[]")
    with serving(tmp_path) as server:
        assert server.ask("/v2/models/mini/ready")[0] == 200
        assert server.ask("/embed", b'{"inputs": "a cat"}')[0] == 404


def test_an_application_serves_models_of_texts(tmp_path: Path) -> None:
    with (
        ortmulti.ModelRepository("cpu") as models,
        ortmulti.text.load(exports.embedding(tmp_path / "mini"), "cpu") as mini,
    ):
        app = ortmulti.serve.app(models, texts={"mini": mini})
        status, answer = ask_json(app, "/v1/embeddings", {"input": WORDS})
        assert status == 200
        found = [one["embedding"] for one in answer["data"]]
        np.testing.assert_allclose(found, [vector(text) for text in WORDS], rtol=1e-4, atol=1e-5)
        assert ask_json(app, "/v1/models")[1]["data"][0]["id"] == "mini"
        large = {"inputs": ["cats " * 60] * 300}  # more than other calls may have
        assert len(ask_json(app, "/embed", large)[1]) == 300
        assert ask_json(ortmulti.serve.app(models), "/embed", {"inputs": "a"})[0] == 404


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ("mini", "texts is a Mapping, not 'mini'"),
        ({1: None}, "a name of texts is a str, not 1"),
        ({"m": "mini"}, "the model 'm' of texts is an ortmulti.TextModel, not 'mini'"),
    ],
)
def test_what_is_no_model_of_texts_is_told(texts: Any, error: str) -> None:
    with ortmulti.ModelRepository("cpu") as models, pytest.raises(ortmulti.InvalidType) as caught:
        ortmulti.serve.app(models, texts=texts)
    assert error in str(caught.value)
