"""What requests of texts say: those of OpenAI's clients, of text-embeddings-inference's, of Jina's and Cohere's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import InvalidArgument
from ortmulti.serve.reply import KINDS, as_object, loads
from ortmulti.serve.service import Refused

__all__ = ["Asked", "model_of", "read", "read_classes", "read_embeddings", "read_inputs", "read_ranks", "read_tokens"]

# Characters: a query is tokenized again with each text.
_MOST_OF_QUERY = 16 << 10


class Asked(NamedTuple):
    """A request of texts.

    Attributes:
        items: What the model gets one by one: texts, their tokens, pairs of texts.
        model: The model's name; "": the request names none.
        query: Of ranks.
        prompt: The name of a prompt.
        dimensions: Of a vector; None: all.
        normalize: Whether vectors have the length 1; None: as the server's settings say.
        truncate: As `TextModel` has it.
        raw_scores: Whether scores are the model's own numbers.
        base64: Whether vectors are sent as base64.
        top: How many results are wanted at most.
        with_texts: Whether ranks have their texts.
        batch: Whether there are several items, in the protocol's sense.
        special_tokens: Of tokens, whether they have special ones.
        of_documents: Whether ranks are asked for in the form of Jina and Cohere.
    """

    items: Sequence[Any]
    model: str = ""
    query: str = ""
    prompt: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    truncate: bool | Literal["right", "left"] = True
    raw_scores: bool = False
    base64: bool = False
    top: int | None = None
    with_texts: bool = False
    batch: bool = True
    special_tokens: bool = True
    of_documents: bool = False


Reader = Callable[[Mapping[str, Any], int], Asked]
"""Reads a request for vectors, ranks or labels from its JSON, which may have at most so many texts.

It raises `InvalidArgument` for a wrong request, and `Refused` for one with more texts.
"""


def read(body: bytes | memoryview) -> Mapping[str, Any]:
    """Read the JSON object of a request's body, for a `Reader`.

    Raises:
        InvalidArgument: The body is no JSON object.
    """
    return as_object(loads(body), "the body")


def model_of(asked: Mapping[str, Any]) -> str:
    """Return the name of the model that is asked; "": none.

    Raises:
        InvalidArgument: It is no name.
    """
    return _text(asked, "model")


def read_embeddings(asked: Mapping[str, Any], most: int) -> Asked:
    """Read a request of OpenAI's embeddings, which may have the wishes of /embed, too."""
    coding = asked.get("encoding_format")
    if coding not in (None, "float", "base64"):
        raise InvalidArgument(f"encoding_format is 'float' or 'base64', not {_shown(coding)}")
    items = _inputs(asked, "input", most)
    dimensions = _whole(asked, "dimensions")
    return Asked(
        items,
        _text(asked, "model"),
        prompt=_text(asked, "prompt_name") or None,
        dimensions=dimensions,
        normalize=_boolean(asked, "normalize"),
        truncate=_cut(asked),
        base64=coding == "base64",
    )


def read_inputs(asked: Mapping[str, Any], most: int) -> Asked:
    """Read a request of text-embeddings-inference's /embed."""
    return Asked(
        _inputs(asked, "inputs", most, 413),
        _text(asked, "model"),
        prompt=_text(asked, "prompt_name") or None,
        dimensions=_whole(asked, "dimensions"),
        normalize=_boolean(asked, "normalize"),
        truncate=_cut(asked),
    )


def read_ranks(asked: Mapping[str, Any], most: int) -> Asked:
    """Read a request of ranks, of text-embeddings-inference's form, or with ``documents`` of Jina's and Cohere's."""
    of_documents = "documents" in asked
    name = "documents" if of_documents else "texts"
    given: Any = asked.get(name)
    if not isinstance(given, list) or not given:
        raise InvalidArgument(f"{name} is a list of texts, and not empty; it is {_shown(given)}")
    _check_count(name, given, most, 400 if of_documents else 413)
    if of_documents:
        given = [each.get("text") if isinstance(each, dict) else each for each in given]
    texts = [_checked(each, f"each of {name}") for each in given]
    query = asked.get("query")
    if not query or not isinstance(query, str):
        raise InvalidArgument(f"query is a text, and not empty; it is {_shown(query)}")
    if len(query) > _MOST_OF_QUERY:
        raise Refused(400, f"query has {len(query)} characters, and {_MOST_OF_QUERY} are allowed")
    return Asked(
        texts,
        _text(asked, "model"),
        _checked(query, "query"),
        truncate=_cut(asked),
        raw_scores=_boolean(asked, "raw_scores") or False,
        top=_whole(asked, "top_n"),
        with_texts=_boolean(asked, "return_documents" if of_documents else "return_text") or False,
        of_documents=of_documents,
    )


def read_classes(asked: Mapping[str, Any], most: int) -> Asked:
    """Read a request of text-embeddings-inference's /predict."""
    given = asked.get("inputs")
    # As there: a text, or a list of one or two texts, is one item; a list of such lists has several.
    batch = isinstance(given, list) and given != [] and isinstance(given[0], list)
    items: list[Any] = given if batch else [given]  # type: ignore[assignment]
    _check_count("inputs", items, most, 413)
    what = "inputs is a text, a pair of texts, or a list of such lists, [[text], [text, text], ...]"
    found = []
    for each in items:
        texts = each if isinstance(each, list) else [each]
        if not 1 <= len(texts) <= 2 or (batch and not isinstance(each, list)):
            raise InvalidArgument(f"{what}; it is {_shown(given)}")
        one, *other = (_checked(text, what) for text in texts)
        if not any(texts):
            raise InvalidArgument("a text of inputs is empty")
        found.append((one, other[0]) if other else one)
    raw = _boolean(asked, "raw_scores") or False
    return Asked(found, _text(asked, "model"), truncate=_cut(asked), raw_scores=raw, batch=batch)


def read_tokens(asked: Mapping[str, Any], most: int) -> Asked:
    """Read a request of text-embeddings-inference's /tokenize."""
    special = _boolean(asked, "add_special_tokens")
    items = _inputs(asked, "inputs", most, 413)
    if not all(isinstance(item, str) for item in items):
        raise InvalidArgument("inputs is a text or a list of texts")
    return Asked(items, _text(asked, "model"), special_tokens=special is not False)


def _inputs(asked: Mapping[str, Any], name: str, most: int, status: int = 400) -> list[Any]:
    """Return texts, and lists of tokens, of which each is one item."""
    given: Any = asked.get(name)
    if isinstance(given, str) or (isinstance(given, list) and given and type(given[0]) is int):
        given = [given]
    if not isinstance(given, list) or not given:
        raise InvalidArgument(
            f"{name} is a text, a list of texts, or lists of tokens, and not empty; it is {_shown(given)}"
        )
    _check_count(name, given, most, status)
    if (empty := next((i for i, each in enumerate(given) if each in ("", [])), None)) is not None:
        raise InvalidArgument(f"text {empty} of {name} is empty: leave it out")
    return [_tokens(each, name) if isinstance(each, list) else _checked(each, f"each of {name}") for each in given]


def _tokens(given: list[Any], name: str) -> NDArray[np.int64]:
    """Return tokens as an array, which takes a fifth of the list's memory."""
    if not all(type(token) is int for token in given):
        raise InvalidArgument(f"a list of tokens in {name} has whole numbers alone")
    try:
        return np.array(given, np.int64)
    except OverflowError:
        raise InvalidArgument(f"a list of tokens in {name} has a number that is no token's") from None


def _check_count(name: str, given: Sequence[Any], most: int, status: int) -> None:
    if len(given) > most:
        raise Refused(status, f"{name} has {len(given)} texts, and {most} are allowed in one request")


def _checked(text: object, what: str) -> str:
    """Return a text that can be sent; JSON may have halves of surrogate pairs."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is a text, not {_shown(text)}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"{what} is Unicode; a text has half of a surrogate pair") from None
    return text


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    return "" if value is None else _checked(value, name)


def _boolean(asked: Mapping[str, Any], name: str) -> bool | None:
    value = asked.get(name)
    if not (value is None or isinstance(value, bool)):
        raise InvalidArgument(f"{name} is true or false, not {_shown(value)}")
    return value


def _whole(asked: Mapping[str, Any], name: str) -> int | None:
    value = asked.get(name)
    if value is not None and (type(value) is not int or not 1 <= value < 1 << 31):
        raise InvalidArgument(f"{name} is a whole number from 1 on, not {_shown(value)}")
    return value


def _cut(asked: Mapping[str, Any]) -> Any:
    side = _text(asked, "truncation_direction").lower() or "right"
    if side not in ("right", "left"):
        raise InvalidArgument(f"truncation_direction is 'right' or 'left', not {_shown(side)}")
    return False if _boolean(asked, "truncate") is False else side


def _shown(value: object) -> str:
    """Return a value of JSON for a message."""
    if value is None or isinstance(value, (list, dict)):
        return "an empty list" if value == [] else KINDS.get(type(value), "an object")
    return f"{value!r:.50}".encode(errors="backslashreplace").decode()
