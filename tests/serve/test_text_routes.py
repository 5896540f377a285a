"""Texts over HTTP: each route of `ortmulti serve`, asked rightly and wrongly."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve import text_exports as exports
from tests.serve.server import SIMPLE, Server, infer, serving
from tests.serve.text_exports import WORDS, logits, rank, tokens, vector

LONG = "cats " * 200  # more than the model takes
NAMES = "'classes', 'ranks', 'vectors'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One model of each task, and one that has no texts."""
    folder = tmp_path_factory.mktemp("models")
    exports.embedding(folder / "vectors")
    exports.ranking(folder / "ranks")
    exports.classification(folder / "classes")
    (folder / "simple.onnx").write_bytes(SIMPLE)
    with serving(folder, "--batching", "8") as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one model of texts."""
    with serving(exports.embedding(tmp_path_factory.mktemp("models") / "mini")) as running:
        yield running


def ask(server: Server, path: str, asked: object = None, **headers: str) -> tuple[int, Any]:
    status, content = server.ask(path, None if asked is None else json.dumps(asked).encode(), **headers)
    return status, json.loads(content)


def post(server: Server, path: str, **asked: object) -> Any:
    status, answer = ask(server, path, asked)
    assert status == 200, answer
    return answer


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-4, atol=1e-5)


def test_embeddings_are_those_of_openai(server: Server) -> None:
    given = [*WORDS, LONG, "Ünïcode 😀 漢字"]
    answer = post(server, "/v1/embeddings", input=given, model="vectors", user="somebody")
    assert (answer["object"], answer["model"]) == ("list", "vectors")
    assert [(one["object"], one["index"]) for one in answer["data"]] == [("embedding", at) for at in range(5)]
    close([one["embedding"] for one in answer["data"]], [vector(text) for text in given])
    count = sum(len(tokens(text)) for text in given)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert len(tokens(LONG)) == exports.MOST  # it is cut


@pytest.mark.parametrize("given", [WORDS[0], [WORDS[0]], tokens(WORDS[0]), [tokens(WORDS[0])]])
def test_a_text_may_be_its_tokens(server: Server, given: object) -> None:
    for path in ("/v1/embeddings", "/v1/embeddings/", "/embeddings"):
        answer = post(server, path, input=given, model="vectors")
        close([one["embedding"] for one in answer["data"]], [vector(WORDS[0])])
    close(post(server, "/embed", inputs=given), [vector(WORDS[0])])


def test_embeddings_are_sent_as_base64_and_cut(server: Server) -> None:
    answer = post(server, "/v1/embeddings", input=WORDS, encoding_format="base64", dimensions=3)
    found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]
    close(found, [vector(text, 3) for text in WORDS])
    close(post(server, "/embed", inputs=WORDS, dimensions=3), [vector(text, 3) for text in WORDS])


def test_many_embeddings_are_in_order(server: Server) -> None:
    given = [f"{WORDS[index % 3]} {'cats ' * (index % 50)}" for index in range(2048)]
    answer = post(server, "/v1/embeddings", input=given, model="vectors")
    close([one["embedding"] for one in answer["data"]], [vector(text) for text in given])
    assert answer["usage"]["total_tokens"] == sum(len(tokens(text)) for text in given)
    close(post(server, "/embed", inputs=given), [vector(text) for text in given])


def test_embed_is_that_of_text_embeddings_inference(server: Server) -> None:
    close(post(server, "/embed", inputs=WORDS, truncate=True, normalize=True), [vector(text) for text in WORDS])
    raw = post(server, "/embed", inputs=WORDS, normalize=False, truncation_direction="Right")
    close(raw, [vector(text, normalize=False) for text in WORDS])
    close(post(server, "/embed", inputs="a cat", prompt_name="query"), [vector("cats: a cat")])
    close(post(server, "/embed", inputs="a cat", prompt_name=None), [vector("a cat")])


def test_other_fields_are_ignored_as_their_clients_expect(server: Server) -> None:
    close(post(server, "/embed", inputs="a cat", user="me", zzz=[1]), [vector("a cat")])
    post(server, "/v1/embeddings", input="a cat", model="vectors", user="me", zzz=[1])
    post(server, "/rerank", query="a", texts=["b"], user="me", zzz=[1])


def test_openais_form_may_have_the_wishes_of_the_other_one(server: Server) -> None:
    """By ``extra_body`` of its client."""

    def asked(**wishes: object) -> Any:
        return post(server, "/v1/embeddings", input=["a cat"], model="vectors", **wishes)["data"][0]["embedding"]

    close(asked(prompt_name="query"), vector("cats: a cat"))
    raw = np.array(asked(normalize=False))
    close(raw / np.linalg.norm(raw), vector("a cat"))
    assert abs(np.linalg.norm(raw) - 1) > 1e-3
    status, answer = ask(server, "/v1/embeddings", {"input": LONG, "model": "vectors", "truncate": False})
    assert (status, "tokens, and the model takes" in answer["error"]["message"]) == (400, True)
    status, answer = ask(server, "/embed", {"inputs": LONG, "truncate": False})
    assert (status, answer["error_type"]) == (422, "Validation")
    assert "202" in answer["error"]  # tokens


def test_the_left_of_a_text_may_be_cut(server: Server) -> None:
    given = "a mat " * 10 + LONG + "looks at a mat"
    kept = exports.TOKENIZER.encode(given).ids
    kept = [kept[0], *kept[-(exports.MOST - 1) :]]
    expected = exports.TABLE[kept].mean(0)
    close(post(server, "/embed", inputs=given, truncation_direction="Left", normalize=False), [expected])


def test_ranks_are_those_of_text_embeddings_inference(server: Server) -> None:
    best = sorted(range(3), key=lambda index: -rank(WORDS[index]))
    assert len({rank(text) for text in WORDS}) == 3
    found = post(server, "/rerank", query="cat", texts=WORDS, raw_scores=True, return_text=True)
    assert [one["index"] for one in found] == best
    assert [one["text"] for one in found] == [WORDS[index] for index in best]
    close([one["score"] for one in found], [rank(WORDS[index]) for index in best])
    found = post(server, "/rerank", query="cat", texts=WORDS)
    assert [sorted(one) for one in found] == [["index", "score"]] * 3
    close([one["score"] for one in found], [1 / (1 + np.exp(-rank(WORDS[index]))) for index in best])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_ranks_are_those_of_jina_and_cohere(server: Server, path: str) -> None:
    best = sorted(range(3), key=lambda index: -rank(WORDS[index]))
    documents = [WORDS[0], {"text": WORDS[1], "title": "no part of it"}, WORDS[2]]
    answer = post(server, path, model="ranks", query="cat", documents=documents, top_n=2, return_documents=True)
    assert [one["index"] for one in answer["results"]] == best[:2]
    assert [one["document"] for one in answer["results"]] == [{"text": WORDS[index]} for index in best[:2]]
    close([one["relevance_score"] for one in answer["results"]], [1 / (1 + np.exp(-rank(WORDS[i]))) for i in best[:2]])
    count = sum(len(exports.TOKENIZER.encode("cat", text).ids) for text in WORDS)
    assert answer["usage"]["total_tokens"] == count
    answer = post(server, path, query="cat", documents=[*WORDS, ""], top_n=100)
    assert [sorted(one) for one in answer["results"]] == [["index", "relevance_score"]] * 4


def test_classes_are_those_of_text_embeddings_inference(server: Server) -> None:
    def scores(found: Any) -> dict[str, float]:
        assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
        return {one["label"]: one["score"] for one in found}

    one = post(server, "/predict", inputs=WORDS[0], raw_scores=True)
    assert scores(one) == pytest.approx(logits(WORDS[0]), rel=1e-4)
    several = post(server, "/predict", inputs=[[text] for text in WORDS], raw_scores=True)
    assert list(map(scores, several)) == [pytest.approx(logits(text), rel=1e-4) for text in WORDS]
    soft = scores(post(server, "/predict", inputs=WORDS[0]))
    weights = {label: np.exp(value) for label, value in logits(WORDS[0]).items()}
    assert soft == pytest.approx({label: value / sum(weights.values()) for label, value in weights.items()}, rel=1e-4)
    pair = exports.TOKENIZER.encode("a cat", "a mat").ids
    for given in (["a cat", "a mat"], [["a cat", "a mat"]]):
        found = post(server, "/predict", inputs=given, raw_scores=True)
        assert scores(found if given[0] == "a cat" else found[0])["good"] == pytest.approx(len(pair) / 10, rel=1e-4)


def test_tokens_are_told(server: Server) -> None:
    text = "A cat, Ünï"
    [found] = post(server, "/tokenize", inputs=text, model="vectors")
    encoding = exports.TOKENIZER.encode(text)
    assert [one["id"] for one in found] == encoding.ids
    assert found[0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert all(one["text"] == text[one["start"] : one["stop"]] for one in found if not one["special"])
    [plain, _] = post(server, "/tokenize", inputs=[text, "b"], add_special_tokens=False, model="vectors")
    assert [one["id"] for one in plain] == encoding.ids[1:-1]


def test_models_are_listed(server: Server) -> None:
    status, answer = ask(server, "/v1/models")
    assert (status, answer["object"]) == (200, "list")
    assert sorted(one["id"] for one in answer["data"]) == ["classes", "ranks", "vectors"]
    status, one = ask(server, "/v1/models/ranks")
    assert (status, one["id"], one["object"]) == (200, "ranks", "model")
    status, answer = ask(server, "/v1/models/simple")
    assert (status, answer["error"]["type"]) == (404, "invalid_request_error")


def test_the_other_models_are_served_beside_them(server: Server) -> None:
    assert infer(server)[0] == 200
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [4, 5]}
    asked = {"inputs": [ids, {**ids, "name": "attention_mask", "data": [1, 1]}]}
    assert post(server, "/v2/models/vectors/infer", **asked)["outputs"][0]["shape"] == [1, 2, exports.DIMENSIONS]


def test_a_server_of_one_model_needs_no_name(alone: Server) -> None:
    for more in ({}, {"model": "text-embedding-3-small"}, {"model": None}):
        answer = post(alone, "/v1/embeddings", input=WORDS, **more)
        assert answer["model"] == "mini"
    close(post(alone, "/", inputs=WORDS), [vector(text) for text in WORDS])
    info = ask(alone, "/info")[1]
    assert (info["model_id"], info["model_type"]) == ("mini", {"embedding": {"pooling": "mean"}})
    assert (info["max_input_length"], info["max_client_batch_size"]) == (exports.MOST, 2048)
    assert ask(alone, "/health")[0] == 200
    status, answer = ask(alone, "/rerank", {"query": "a", "texts": ["b"]})
    assert (status, answer["error"]) == (
        422,
        "the model 'mini' is for embedding: ask /v1/embeddings, /embeddings, /embed",
    )


def test_a_server_without_models_of_texts_says_so(tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    with serving(tmp_path) as plain:
        status, answer = ask(plain, "/v1/embeddings", {"input": "a"})
        assert (status, answer["error"]["message"][:32]) == (404, "there is no model of texts here:")
        assert ask(plain, "/v1/models") == (200, {"object": "list", "data": []})
        assert plain.ask("/embed")[0] == 405
        assert plain.ask("/")[0] == 404


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("/v1/embeddings", {}, 400, "input is a text, a list of texts, or lists of tokens, and not empty; it is null"),
    ("/v1/embeddings", {"input": ""}, 400, "text 0 of input is empty: leave it out"),
    ("/v1/embeddings", {"input": ["a", ""]}, 400, "text 1 of input is empty: leave it out"),
    ("/v1/embeddings", {"input": [[1], []]}, 400, "text 1 of input is empty: leave it out"),
    ("/v1/embeddings", {"input": [None]}, 400, "each of input is a text, not null"),
    (
        "/v1/embeddings",
        {"input": "a", "prompt_name": "x"},
        400,
        "the model has no prompt 'x': it has 'query', 'passage'",
    ),
    ("/v1/embeddings", {"input": []}, 400, "it is an empty list"),
    ("/v1/embeddings", {"input": {"a": 1}}, 400, "it is an object"),
    ("/v1/embeddings", {"input": 5}, 400, "it is 5"),
    ("/v1/embeddings", {"input": ["a", 5]}, 400, "each of input is a text, not 5"),
    ("/v1/embeddings", {"input": [1, "a"]}, 400, "whole numbers alone"),
    ("/v1/embeddings", {"input": [1, True]}, 400, "whole numbers alone"),
    ("/v1/embeddings", {"input": [1.5]}, 400, "each of input is a text, not 1.5"),
    ("/v1/embeddings", {"input": [[[1]]]}, 400, "whole numbers alone"),
    ("/v1/embeddings", {"input": ["a"] * 2049}, 400, "input has 2049 texts, and 2048 are allowed in one request"),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, 400, "dimensions is a whole number from 1 on, not 0"),
    ("/v1/embeddings", {"input": "a", "dimensions": 9}, 400, "dimensions"),
    ("/v1/embeddings", {"input": "a", "dimensions": 10**30}, 400, "dimensions is a whole number"),
    ("/v1/embeddings", {"input": "a", "dimensions": 2.5}, 400, "dimensions is a whole number"),
    ("/v1/embeddings", {"input": "a", "dimensions": True}, 400, "dimensions is a whole number"),
    (
        "/v1/embeddings",
        {"input": "a", "encoding_format": "int8"},
        400,
        "encoding_format is 'float' or 'base64', not 'int8'",
    ),
    ("/v1/embeddings", {"input": "a", "encoding_format": [1]}, 400, "encoding_format"),
    ("/v1/embeddings", {"input": "a", "model": 5}, 400, "model is a text, not 5"),
    ("/v1/embeddings", {"input": "a", "model": "bert"}, 404, f"say which one as 'model', {NAMES}"),
    ("/v1/embeddings", {"input": "a", "model": "ranks"}, 400, "the model 'ranks' is for ranking: ask /rerank"),
    ("/v1/embeddings", {"input": [10**6], "model": "vectors"}, 400, "1000000"),
    ("/v1/embeddings", {"input": [-1], "model": "vectors"}, 400, "-1"),
    ("/v1/embeddings", {"input": [10**40], "model": "vectors"}, 400, ""),
    ("/v1/embeddings", {"input": "half of \ud800 one", "model": "vectors"}, 400, "half of a surrogate pair"),
    ("/embed", {"inputs": ["a"] * 2049}, 413, "2048 are allowed"),
    ("/embed", {"inputs": None}, 422, "inputs is a text"),
    ("/embed", {"inputs": "a", "normalize": "yes"}, 422, "normalize is true or false, not 'yes'"),
    ("/embed", {"inputs": "a", "truncate": 1}, 422, "truncate is true or false, not 1"),
    (
        "/embed",
        {"inputs": "a", "truncation_direction": "up"},
        422,
        "truncation_direction is 'right' or 'left', not 'up'",
    ),
    ("/embed", {"inputs": "a", "prompt_name": "x"}, 422, "the model has no prompt 'x': it has 'query', 'passage'"),
    ("/embed", {"inputs": "a", "prompt_name": ["x"]}, 422, "prompt_name is a text, not a list"),
    ("/rerank", {"query": "a" * 20_000, "texts": ["a"]}, 422, "query has 20000 characters, and 16384 are allowed"),
    ("/rerank", {"texts": ["a"]}, 422, "query is a text, and not empty; it is null"),
    ("/rerank", {"query": "", "texts": ["a"]}, 422, "query is a text"),
    ("/rerank", {"query": ["a"], "texts": ["a"]}, 422, "query is a text"),
    ("/rerank", {"query": "a", "texts": []}, 422, "texts is a list of texts, and not empty; it is an empty list"),
    ("/rerank", {"query": "a", "texts": "b"}, 422, "texts is a list of texts"),
    ("/rerank", {"query": "a", "texts": [["b"]]}, 422, "each of texts is a text, not a list"),
    ("/rerank", {"query": "a", "texts": ["b"] * 2049}, 413, "2048 are allowed"),
    ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, 400, "each of documents is a text, not null"),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, 400, "top_n is a whole number from 1 on, not 0"),
    ("/v2/rerank", {"query": "a", "documents": ["b"], "model": "vectors"}, 400, "is for embedding"),
    ("/predict", {"inputs": []}, 422, "inputs is a text, a pair of texts, or a list of such lists"),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422, "inputs is a text, a pair of texts"),
    ("/predict", {"inputs": [["a"], "b"]}, 422, "inputs is a text, a pair of texts"),
    ("/predict", {"inputs": [["a", "b", "c"]]}, 422, "inputs is a text, a pair of texts"),
    ("/predict", {"inputs": [[]]}, 422, "inputs is a text, a pair of texts"),
    ("/predict", {"inputs": ["", ""]}, 422, "a text of inputs is empty"),
    ("/predict", {"inputs": [["a"]] * 2049}, 413, "2048 are allowed"),
    ("/tokenize", {"inputs": [1, 2], "model": "vectors"}, 422, "inputs is a text or a list of texts"),
    ("/tokenize", {"inputs": "a"}, 422, f"the request names no model: say which one as 'model', {NAMES}"),
]


@pytest.mark.parametrize(("path", "asked", "status", "text"), WRONG)
def test_a_wrong_request_gets_one_clear_answer(
    server: Server, path: str, asked: dict[str, Any], status: int, text: str
) -> None:
    found, answer = ask(server, path, asked)
    assert found == status, answer
    if path.startswith(("/v1", "/v2")):
        assert sorted(answer["error"]) == ["code", "message", "param", "type"]
        assert answer["error"]["type"] == "invalid_request_error"
        assert text in answer["error"]["message"]
    else:
        assert answer["error_type"] == "Validation"
        assert text in answer["error"]
    assert len(json.dumps(answer)) < 500  # what was sent is not sent back


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b"null",
        b"\xff\xfe",
        b'{"input": "\xc3"}',
        b'{"input": NaN}',
        b'{"input": [NaN]}',
        b'{"input": "a", "dimensions": NaN}',
        b'{"input": "a", "dimensions": 1e999}',
        b'{"input": "a", "dimensions": ' + b"9" * 5000 + b"}",
        b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"input": [' + b"[" * 500 + b"]" * 500 + b"]}",
        b'{"input": "\\ud800"}',
        b'{"input": ["a", "\\udfff\\ud800"]}',
        b'{"input": "a", "model": "\\ud800"}',
    ],
)
def test_what_cannot_be_read_is_refused(alone: Server, body: bytes) -> None:
    for path, name in (("/v1/embeddings", b'"input"'), ("/embed", b'"inputs"'), ("/", b'"inputs"')):
        status, content = alone.ask(path, body.replace(b'"input"', name))
        assert status in (400, 422), content[:200]
        assert "error" in json.loads(content)
        assert len(content) < 500
    close(post(alone, "/embed", inputs="a cat"), [vector("a cat")])


def test_texts_may_have_any_character(alone: Server) -> None:
    given = ["\0", "\n\t ", "\x7f\x1b", "\u202eabc", "e\u0301" * 3, "\U0010ffff", " " * 100, "{}[]\",'\\"]
    close(post(alone, "/embed", inputs=given), [vector(text) for text in given])


def test_a_text_that_is_many_times_too_long_is_cut_before_it_is_tokenized(alone: Server) -> None:
    given = "cats " * 10_000 + "mat"
    close(post(alone, "/embed", inputs=given), [vector(LONG)])
    blank = " " * 50_000 + "mat"  # what is behind is not read
    close(post(alone, "/embed", inputs=blank), [vector("")])
    close(post(alone, "/embed", inputs=blank, truncation_direction="left"), [vector("mat")])
    status, answer = ask(alone, "/embed", {"inputs": blank, "truncate": False})
    assert (status, answer["error"][:60]) == (422, "text 0 has 50003 characters, and the model takes 16384 at mo")


def test_refusals_have_the_form_that_clients_read(tmp_path: Path) -> None:
    exports.embedding(tmp_path / "mini")
    token = tmp_path / "token"
    token.write_text("secret")
    settings = tmp_path / "server.toml"
    settings.write_text("limits = { body = 100 }\ntoken_file = 'token'\n[models.mini]\npath = 'mini'\n")
    right, openai, tei = {"authorization": "Bearer secret"}, "/v1/embeddings", "/embed"
    large = json.dumps({"input": "a" * 100}).encode()
    with serving(settings) as server:
        for path, body, headers, status, kind in (
            (openai, b"{}", {}, 401, "authentication_error"),
            (openai, large, right, 413, "invalid_request_error"),
            (openai, b"{}", {**right, "x-large": "a" * 70_000}, 431, "invalid_request_error"),
            (openai, b"{}", {**right, "content-encoding": "br"}, 415, "invalid_request_error"),
            ("/v1/chat/completions", b"{}", right, 404, "invalid_request_error"),
            (openai, b"{}", {**right, "origin": "http://other.example"}, 403, "invalid_request_error"),
        ):
            found, content = server.ask(path, body, **headers)
            error = json.loads(content)["error"]
            assert (found, error["type"]) == (status, kind), (path, error)
            assert error["message"]
            found, content = server.ask(tei, body, **headers)
            answer = json.loads(content)
            if status != 404:
                assert (found, answer["error_type"]) == (status, "Validation"), answer
                assert answer["error"] == error["message"]
        found, content = server.ask("/v2/models/mini", None)
        assert (found, json.loads(content)) == (401, {"error": "a token is needed: authorization: Bearer TOKEN"})


def test_methods_paths_and_bodies_have_limits(alone: Server) -> None:
    assert alone.ask("/v1/embeddings")[0] == 405
    assert alone.ask("/v1/models", b"{}")[0] == 405
    assert alone.ask("/v1/chat/completions", b"{}")[0] == 404
    large = json.dumps({"inputs": ["cats " * 30_000]}).encode()  # more than other calls may have
    assert alone.ask("/embed", large)[0] == 200
    assert alone.ask("/tokenize", large)[0] == 413
    assert alone.ask("/embed", b" " * ((16 << 20) + 1))[0] == 413
