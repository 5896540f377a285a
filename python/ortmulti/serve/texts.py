"""Routes of texts over HTTP, as clients of OpenAI, text-embeddings-inference, Jina and Cohere ask for them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ortmulti import _core
from ortmulti._core import __version__
from ortmulti.errors import ClosedError, Error, InvalidArgument, QueueFull
from ortmulti.serve import text_requests as requests
from ortmulti.serve.limits import Limits
from ortmulti.serve.reply import JSON, Reply, check_method, json_reply
from ortmulti.serve.service import Refused, Service, status_and_text
from ortmulti.serve.text_requests import Asked

if TYPE_CHECKING:
    from ortmulti.serve.text_models import ServedTexts
    from ortmulti.text.model import TextModel

__all__ = ["LONG_BODIES", "Texts", "described"]

LOGGER = logging.getLogger("ortmulti.serve")

# Bytes of JSON that are read, and numbers that are written, by the event loop itself: less than a millisecond.
_MOST_READ = 64 << 10
_MOST_WRITTEN = 16 << 10
# Of a number: as a vector's, and at most in an answer.
_VECTOR_BYTES, _JSON_BYTES, _BASE64_BYTES = 4, 17, 6
# Of a byte of JSON: as Python has it, in texts and tokens.
_TEXT_BYTES = 4

_T = TypeVar("_T")


class _Route(NamedTuple):
    """What is asked for at a path.

    Attributes:
        read: Of the request.
        tasks: What the model may be for.
        form: Whose errors are sent: "openai" or "tei".
    """

    read: requests.Reader
    tasks: tuple[str, ...]
    form: str


_ALL = ("embedding", "ranking", "classification")
_ROUTES = {
    "v1/embeddings": _Route(requests.read_embeddings, ("embedding",), "openai"),
    "embeddings": _Route(requests.read_embeddings, ("embedding",), "openai"),
    "embed": _Route(requests.read_inputs, ("embedding",), "tei"),
    "rerank": _Route(requests.read_ranks, ("ranking",), "tei"),
    "v1/rerank": _Route(requests.read_ranks, ("ranking",), "openai"),
    "v2/rerank": _Route(requests.read_ranks, ("ranking",), "openai"),
    "predict": _Route(requests.read_classes, ("classification",), "tei"),
    "tokenize": _Route(requests.read_tokens, _ALL, "tei"),
}
# What "/" is, by the task of the model.
_ROOT = {"embedding": "embed", "ranking": "rerank", "classification": "predict"}
# Not of tokenize: its answer is many times as long as its texts.
LONG_BODIES = ["", *_ROUTES.keys() - {"tokenize"}]


def _routes_of(task: str) -> list[str]:
    """Return the paths that a model of a task answers, but for those that every model does."""
    return [f"/{path}" for path, route in _ROUTES.items() if task in route.tasks and route.tasks != _ALL]


def described(texts: ServedTexts) -> str:
    """Return what a model of texts is, in a line."""
    settings = texts.model.settings
    of_vectors = [f"{settings.pooling_text} pooling" if settings.pooling else "vectors of the model's own"]
    of_vectors += ["length 1"] * texts.normalize
    classes = [f"{len(settings.labels)} classes"]
    about = {"embedding": of_vectors, "classification": classes}.get(settings.task, [])
    parts = [settings.task, *about, f"up to {settings.max_length} tokens", *_routes_of(settings.task)]
    return f"texts of {texts.name}: {', '.join(parts)}"


class Texts:
    """Answers requests of texts.

    Args:
        service: Which has the models of texts.
        limits: See `Limits`.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._most = limits.texts
        self._concurrent = limits.concurrent
        self._since = int(time.time())
        # Few, since a body that is nonsense may take many times its size until it is refused.
        self._readers = ThreadPoolExecutor(2, "ortmulti-serve-texts")

    def answers(self, method: str, parts: list[str]) -> bool:
        """Return whether a path is one of texts."""
        path = "/".join(parts)
        if path == "":
            return method == "POST"
        return path in _ROUTES or path == "info" or parts[:2] == ["v1", "models"]

    async def respond(self, call: _core.FrontCall, parts: list[str]) -> Reply:
        """Answer a call; its errors have the form that its clients read."""
        form = "openai" if parts[0] == "v1" or parts == ["v2", "rerank"] else "tei"
        try:
            if parts == ["info"]:
                check_method(call.method, "GET", "HEAD")
                return json_reply(self._info())
            if parts[:2] == ["v1", "models"]:
                check_method(call.method, "GET", "HEAD")
                return json_reply(self._models("/".join(parts[2:])))
            path = "/".join(parts) or _ROOT[self._choose(_ALL, "").task]
            route = _ROUTES[path]
            form = route.form
            check_method(call.method, "POST")
            asked = await self._read(call, route)
            return await self._answer(call, path, route, asked)
        except Exception as error:
            error.__traceback__ = None if isinstance(error, (Error, Refused)) else error.__traceback__
            return _failure(error, call, form)

    async def _read(self, call: _core.FrontCall, route: _Route) -> Asked:
        body = call.body
        _reserve(call)
        if len(body) <= _MOST_READ:
            return requests.read(body, route.read, self._most)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, requests.read, body, route.read, self._most)

    async def _answer(self, call: _core.FrontCall, path: str, route: _Route, asked: Asked) -> Reply:
        while True:
            found = self._choose(route.tasks, asked.model)
            try:
                if path == "tokenize":
                    return await _tokens(found.model, asked)
                if "rerank" in path:
                    return await self._rank(found, asked)
                if path == "predict":
                    return await self._classify(found, asked)
                return await self._embed(call, found, asked, route.form)
            except ClosedError:
                if self._service.texts.get(found.name) is found:
                    raise
                # Else another model has taken its place.

    # Models.

    def _choose(self, tasks: Sequence[str], name: str) -> ServedTexts:
        """Return the model that is meant: of one, this one whatever the name is."""
        texts = self._service.texts
        if not texts:
            if not self._service.ready:
                raise Refused(503, "the models are being loaded", [_RETRY])
            raise Refused(
                404, "there is no model of texts here: serve the folder of an export, with its tokenizer.json"
            )
        fitting = list(texts.values()) if len(texts) == 1 else [texts[name]] if name in texts else []
        if not (fitting or name):
            fitting = [each for each in texts.values() if each.task in tasks]
        if len(fitting) != 1:
            names = ", ".join(map(repr, texts))
            wrong = f"there is no model {name!r:.200}" if name else "the request names no model"
            raise Refused(404 if name else 400, f"{wrong}: say which one as 'model', {names}")
        [found] = fitting
        if found.task not in tasks:
            paths = ", ".join(_routes_of(found.task))
            raise Refused(400, f"the model {found.name!r} is for {found.task}: ask {paths}")
        return found

    def _models(self, name: str) -> dict[str, Any]:
        def described(each: str) -> dict[str, Any]:
            return {"id": each, "object": "model", "created": self._since, "owned_by": self._service.name}

        names = self._service.texts_ready()
        if not name:
            return {"object": "list", "data": [described(each) for each in names]}
        if name not in names:
            raise Refused(404, f"there is no model {name!r:.200}: there are {', '.join(map(repr, names))}")
        return described(name)

    def _info(self) -> dict[str, Any]:
        """Return what text-embeddings-inference says of its model."""
        texts = self._service.texts
        found = self._choose(_ALL, "") if len(texts) <= 1 else next(iter(texts.values()))
        settings = found.model.settings
        labels = dict(enumerate(settings.labels))
        of_labels = {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}
        kinds: dict[str, dict[str, Any]] = {
            "embedding": {"embedding": {"pooling": settings.pooling_text or "none"}},
            "ranking": {"reranker": of_labels},
            "classification": {"classifier": of_labels},
        }
        return {
            "model_id": found.name,
            "model_sha": None,
            "model_dtype": "float32",
            "model_type": kinds[settings.task],
            "max_concurrent_requests": self._concurrent,
            "max_input_length": settings.max_length,
            "max_batch_tokens": settings.max_length * self._most,
            "max_batch_requests": None,
            "max_client_batch_size": self._most,
            "auto_truncate": True,
            "tokenization_workers": 1,
            "version": __version__,
            "sha": None,
            "docker_label": None,
        }

    # What is asked.

    async def _embed(self, call: _core.FrontCall, found: ServedTexts, asked: Asked, form: str) -> Reply:
        model, prompts = found.model, found.model.settings.prompts
        if asked.prompt is not None and asked.prompt not in prompts:
            known = ", ".join(map(repr, prompts)) or "none"
            raise InvalidArgument(f"the model has no prompt {asked.prompt!r:.100}: it has {known}")
        numbers = len(asked.items) * min(found.width, asked.dimensions or found.width)
        _reserve(call, numbers * (_VECTOR_BYTES + (_BASE64_BYTES if asked.base64 else _JSON_BYTES)))
        normalize = found.normalize if asked.normalize is None else asked.normalize

        embed = partial(
            model.embed_async,
            prompt=asked.prompt,
            dimensions=asked.dimensions,
            normalize=normalize,
            truncate=asked.truncate,
        )
        vectors, tokens = await self._run(found, asked, embed)
        if form == "tei":
            return await _rows(call, vectors, "[", "]")
        usage = f'"model":{json.dumps(found.name)},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}}}'
        head, around = '{"object":"list","data":[', ('{"object":"embedding","index":', ',"embedding":', "}")
        return await _rows(call, vectors, head, f"],{usage}", around, asked.base64)

    async def _rank(self, found: ServedTexts, asked: Asked) -> Reply:
        rank = partial(found.model.rank_async, asked.query, raw_scores=True, truncate=asked.truncate)
        found_scores, tokens = await self._run(found, asked, rank)
        _check_finite(found_scores)
        scores = found_scores.astype(float)
        if not asked.raw_scores:  # as text-embeddings-inference does, whatever the model's files say
            scores = 0.5 + 0.5 * np.tanh(0.5 * scores)
        best = np.argsort(-scores, kind="stable")[: asked.top].tolist()
        values, texts = scores.tolist(), asked.items
        if asked.of_documents:
            results = [
                {"index": index, "relevance_score": values[index]}
                | ({"document": {"text": texts[index]}} if asked.with_texts else {})
                for index in best
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            answer: Any = {"id": str(uuid.uuid4()), "model": found.name, "results": results, "usage": usage}
        else:
            answer = [
                {"index": index} | ({"text": texts[index]} if asked.with_texts else {}) | {"score": values[index]}
                for index in best
            ]
        return await asyncio.to_thread(json_reply, answer) if asked.with_texts else json_reply(answer)

    async def _classify(self, found: ServedTexts, asked: Asked) -> Reply:
        classify = partial(found.model.classify_async, raw_scores=asked.raw_scores, truncate=asked.truncate)
        found_classes, _ = await self._run(found, asked, classify)
        classes = [[{"score": each.score, "label": each.name} for each in one] for one in found_classes]
        _check_finite(np.array([each["score"] for one in classes for each in one]))
        return json_reply(classes if asked.batch else classes[0])

    async def _run(self, found: ServedTexts, asked: Asked, ask: Callable[..., Awaitable[_T]]) -> tuple[_T, int]:
        """Return the model's answer, and the number of all tokens."""
        counts: list[int] = []
        items = asked.items
        timeout = self._service.defaults_of(found.name).timeout
        answer = await ask(items, counts=counts, timeout=timeout, when_full="reject")
        tokens = sum(counts)
        self._service.texts.count(found.name, len(items), tokens)
        return answer, tokens


def _reserve(call: _core.FrontCall, answer: int = 0) -> None:
    """Have the memory for a request's texts, and for its answer; or refuse it."""
    if not call.reserve(_TEXT_BYTES * len(call.body) + answer):
        raise Refused(503, "the server has no memory for this request now, try again later", [_RETRY])


async def _rows(
    call: _core.FrontCall,
    vectors: Any,
    head: str,
    tail: str,
    around: tuple[str, str, str] = ("", "", ""),
    base64: bool = False,
) -> Reply:
    def write() -> bytes:
        body = _core.json_rows(vectors, head, tail, around, base64)
        if body is None:
            raise _not_finite()
        return body

    body = write() if vectors.size <= _MOST_WRITTEN else await asyncio.to_thread(write)
    call.reserve(len(body))  # the vectors are gone
    return Reply(200, [JSON], body)


async def _tokens(model: TextModel, asked: Asked) -> Reply:
    found = await model.tokenize_async(asked.items, special_tokens=asked.special_tokens)

    def of_text(text: str, encoding: Any) -> Iterator[dict[str, Any]]:
        for token, name, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        ):
            place = {"start": None, "stop": None} if special else {"start": start, "stop": stop}
            yield {"id": token, "text": name if special else text[start:stop], "special": bool(special), **place}

    def write() -> Reply:
        pairs = zip(asked.items, found, strict=True)
        return json_reply([list(of_text(text, encoding)) for text, encoding in pairs])

    return await asyncio.to_thread(write)


def _check_finite(numbers: Any) -> None:
    if not np.isfinite(numbers).all():
        raise _not_finite()


def _not_finite() -> Refused:
    return Refused(500, "the model's answer has NaN or infinity, which JSON cannot have")


# Errors.

_RETRY = (b"retry-after", b"1")
# Of a status: the one that text-embeddings-inference sends.
_TEI = {400: 422, 500: 424}


def _failure(error: Exception, call: _core.FrontCall, form: str) -> Reply:
    status, text = status_and_text(error)
    headers = [*error.headers] if isinstance(error, Refused) else []
    if isinstance(error, QueueFull):
        status, text = 429, "the queue of requests is full: try again later"
        headers.append(_RETRY)
    if status == 500:
        LOGGER.warning("a request of texts: %s", error, exc_info=not isinstance(error, (Error, Refused)))
    reply = Reply(*call.refuse(status, text))
    return reply._replace(
        status=_TEI.get(status, status) if form == "tei" else status, headers=[*reply.headers, *headers]
    )
