"""What clients ask of texts by which path, of which model, and how they are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti import _core
from ortmulti.errors import Error, InvalidArgument, QueueFull
from ortmulti.serve import text_requests as requests
from ortmulti.serve.reply import Reply
from ortmulti.serve.service import Refused, Service, status_and_text
from ortmulti.serve.text_requests import Asked

if TYPE_CHECKING:
    from ortmulti.serve.text_models import ServedTexts

__all__ = [
    "ALL",
    "LONG_BODIES",
    "ROOT",
    "ROUTES",
    "Route",
    "bytes_of_vector",
    "chosen",
    "described",
    "failure",
    "no_memory",
    "not_finite",
    "reserve",
    "reserve_vectors",
    "root",
    "routes_of",
    "written",
]

LOGGER = logging.getLogger("ortmulti.serve")

# Of a number: as a vector's, and at most in an answer.
_VECTOR_BYTES, _JSON_BYTES, _BASE64_BYTES = 4, 17, 6


class Route(NamedTuple):
    """What is asked for at a path.

    Attributes:
        read: Of the request.
        tasks: What the model may be for.
        form: Whose errors are sent: "openai" or "tei".
    """

    read: requests.Reader
    tasks: tuple[str, ...]
    form: str


ALL = ("embedding", "ranking", "classification")
ROUTES = {
    "v1/embeddings": Route(requests.read_embeddings, ("embedding",), "openai"),
    "embeddings": Route(requests.read_embeddings, ("embedding",), "openai"),
    "embed": Route(requests.read_inputs, ("embedding",), "tei"),
    "rerank": Route(requests.read_ranks, ("ranking",), "tei"),
    "v1/rerank": Route(requests.read_ranks, ("ranking",), "openai"),
    "v2/rerank": Route(requests.read_ranks, ("ranking",), "openai"),
    "predict": Route(requests.read_classes, ("classification",), "tei"),
    "tokenize": Route(requests.read_tokens, ALL, "tei"),
}
ROOT = {"embedding": "embed", "ranking": "rerank", "classification": "predict"}
"""What "/" is, by the task of the model."""
LONG_BODIES = ["", *ROUTES.keys() - {"tokenize"}]
"""Not of tokenize: its answer is many times as long as its texts."""


def routes_of(task: str) -> list[str]:
    """Return the paths that a model of a task answers, but for those that every model does."""
    return [f"/{path}" for path, route in ROUTES.items() if task in route.tasks and route.tasks != ALL]


def described(texts: ServedTexts) -> str:
    """Return what a model of texts is, in a line."""
    settings = texts.model.settings
    of_vectors = [f"{settings.pooling_text} pooling" if settings.pooling else "vectors of the model's own"]
    of_vectors += ["length 1"] * texts.normalize
    classes = [f"{len(settings.labels)} classes"]
    about = {"embedding": of_vectors, "classification": classes}.get(settings.task, [])
    parts = [settings.task, *about, f"up to {settings.max_length} tokens", *routes_of(settings.task)]
    return f"texts of {texts.name}: {', '.join(parts)}"


def chosen(service: Service, tasks: Sequence[str], name: str) -> ServedTexts:
    """Return the model that is meant: of one, this one whatever the name is. One that is not there counts, too, or else
    its requests would get another one's answers.

    Raises:
        Refused: There is none, or it is for something else.
    """
    texts = service.texts
    known = service.text_names | texts.keys()
    fitting = [texts[name]] if name in texts else []
    if not fitting and len(known) == len(texts):
        fitting = [each for each in texts.values() if len(texts) == 1 or (not name and each.task in tasks)]
    if len(fitting) != 1:
        if not service.ready and (not name or name in known):
            raise Refused(503, "the models are being loaded", [_RETRY])
        if not known:
            raise Refused(
                404, "there is no model of texts here: serve the folder of an export, with its tokenizer.json"
            )
        names = ", ".join(map(repr, texts))
        if name in known:
            raise Refused(503, f"the model {name!r:.200} is not loaded: there are {names}")
        wrong = f"there is no model {name!r:.200}" if name else "the request names no model"
        raise Refused(404 if name else 400, f"{wrong}: say which one as 'model', {names}")
    [found] = fitting
    if found.task not in tasks:
        paths = ", ".join(routes_of(found.task))
        raise Refused(400, f"the model {found.name!r} is for {found.task}: ask {paths}")
    return found


def root(service: Service, asked: Mapping[str, Any]) -> str:
    """Return the path that `/` stands for, for this request: that of the model which it names. Where it names none of
    several, that of ranks if it has a query, and else that of vectors.

    Raises:
        InvalidArgument: The name is none.
        Refused: It is not clear.
    """
    if name := requests.model_of(asked):
        return ROOT[chosen(service, ALL, name).task]
    if "query" in asked:
        return ROOT["ranking"]
    tasks = {each.task for each in service.texts.values()}
    if len(service.texts) > 1 and "embedding" in tasks and "classification" not in tasks:
        return ROOT["embedding"]
    return ROOT[chosen(service, ALL, "").task]


# Memory.


def reserve(call: _core.FrontCall, answer: int = 0) -> None:
    """Have the memory for a request's texts, and for its answer.

    Raises:
        Refused: There is none.
    """
    if not call.reserve_texts(answer):
        raise no_memory()


def no_memory() -> Refused:
    """Return the error for a request for which there is no memory."""
    return Refused(503, "the server has no memory for this request now, try again later", [_RETRY])


def reserve_vectors(call: _core.FrontCall, found: ServedTexts, asked: Asked) -> None:
    """The same for vectors, which are asked for rightly.

    Raises:
        InvalidArgument: The model has no such prompt.
    """
    prompts = found.model.settings.prompts
    if asked.prompt is not None and asked.prompt not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InvalidArgument(f"the model has no prompt {asked.prompt!r:.100}: it has {known}")
    reserve(call, len(asked.items) * bytes_of_vector(found, asked.dimensions or 0, asked.base64))


def bytes_of_vector(found: ServedTexts, dimensions: int, base64: bool) -> int:
    """Return how much memory a vector takes until it is sent; ``dimensions``: 0 for all."""
    numbers = min(found.width, dimensions or found.width)
    return numbers * (_VECTOR_BYTES + (_BASE64_BYTES if base64 else _JSON_BYTES))


# Answers.


def written(name: str, tokens: int | str, form: str) -> tuple[str, str, tuple[str, str, str]]:
    """Return what is written before vectors, behind them, and around each: for `_core.json_rows`.

    Args:
        name: The model's.
        tokens: Of all texts.
        form: The route's.
    """
    if form == "tei":
        return "[", "]", ("", "", "")
    usage = f'"model":{json.dumps(name)},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}}}'
    return '{"object":"list","data":[', f"],{usage}", ('{"object":"embedding","index":', ',"embedding":', "}")


def not_finite() -> Refused:
    """Return the error for numbers that JSON cannot have."""
    return Refused(500, "the model's answer has NaN or infinity, which JSON cannot have")


_RETRY = (b"retry-after", b"1")
# Of a status: the one that text-embeddings-inference sends.
_TEI = {400: 422, 500: 424}


def failure(error: BaseException, call: _core.FrontCall, form: str) -> Reply:
    """Return the answer that says an error, in the form that the route's clients read."""
    error.__traceback__ = None if isinstance(error, (Error, Refused)) else error.__traceback__  # its frames have bodies
    status, text = status_and_text(error)
    headers = [*error.headers] if isinstance(error, Refused) else []
    if isinstance(error, QueueFull):
        status, text = 429, "the queue of requests is full: try again later"
        headers.append(_RETRY)
    if status == 500:
        LOGGER.warning("a request of texts: %s", error, exc_info=not isinstance(error, (Error, Refused)) and error)
    reply = Reply(*call.refuse(status, text))
    return reply._replace(
        status=_TEI.get(status, status) if form == "tei" else status, headers=[*reply.headers, *headers]
    )
