"""Routes of texts over HTTP, as clients of OpenAI, text-embeddings-inference, Jina and Cohere ask for them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ortmulti import _core
from ortmulti._core import __version__
from ortmulti.errors import ClosedError
from ortmulti.serve import text_requests as requests
from ortmulti.serve.limits import Limits
from ortmulti.serve.reply import JSON, Reply, check_method, json_reply
from ortmulti.serve.service import Refused, Service
from ortmulti.serve.text_requests import Asked
from ortmulti.serve.text_routes import (
    ALL,
    ROUTES,
    Route,
    chosen,
    failure,
    not_finite,
    reserve,
    reserve_vectors,
    root,
    written,
)

if TYPE_CHECKING:
    from ortmulti.serve.text_models import ServedTexts
    from ortmulti.text.model import TextModel

__all__ = ["Texts"]

LOGGER = logging.getLogger("ortmulti.serve")

# Bytes of JSON that are read, and numbers that are written, by the event loop itself: less than a millisecond.
_MOST_READ = 64 << 10
_MOST_WRITTEN = 16 << 10
_T = TypeVar("_T")


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
        return path in ROUTES or path == "info" or parts[:2] == ["v1", "models"]

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
            path = "/".join(parts)
            if path:
                form = ROUTES[path].form
            check_method(call.method, "POST")
            return await self._answer(call, *await self._read(call, path))
        except Exception as error:
            return failure(error, call, form)

    async def _read(self, call: _core.FrontCall, path: str) -> tuple[str, Route, Asked]:
        body = call.body

        def read() -> tuple[str, Route, Asked]:
            given = requests.read(body)
            wanted = path or root(self._service, given)
            return wanted, ROUTES[wanted], ROUTES[wanted].read(given, self._most)

        reserve(call)
        if len(body) <= _MOST_READ:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def _answer(self, call: _core.FrontCall, path: str, route: Route, asked: Asked) -> Reply:
        while True:
            found = chosen(self._service, route.tasks, asked.model)
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
        found = chosen(self._service, ALL, "") if len(texts) <= 1 else next(iter(texts.values()))
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
            "max_concurrent_requests": self._concurrent - self._concurrent // 4,  # as the core keeps some for infer
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
        reserve_vectors(call, found, asked)
        normalize = found.normalize if asked.normalize is None else asked.normalize

        embed = partial(
            found.model.embed_async,
            prompt=asked.prompt,
            dimensions=asked.dimensions,
            normalize=normalize,
            truncate=asked.truncate,
        )
        vectors, tokens = await self._run(found, asked, embed)
        return await _rows(call, vectors, written(found.name, tokens, form), asked.base64)

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


async def _rows(
    call: _core.FrontCall, vectors: Any, around: tuple[str, str, tuple[str, str, str]], base64: bool
) -> Reply:
    def write() -> bytes:
        body = _core.json_rows(vectors, *around, base64)
        if body is None:
            raise not_finite()
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
        raise not_finite()
