"""Answers as the core has them, and JSON in both directions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ortmulti.errors import InvalidArgument
from ortmulti.serve.service import Refused

__all__ = ["JSON", "KINDS", "Reply", "as_object", "check_method", "json_reply", "loads"]

JSON = (b"content-type", b"application/json")


class Reply(NamedTuple):
    """An answer as the core has it.

    Attributes:
        status: HTTP's.
        headers: Over HTTP, without content-length.
        body: Of gRPC a message; empty where the status is not 200.
        message: Of gRPC, where the status is not 200.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    message: str = ""


# What JSON calls the types of Python.
KINDS = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}


def as_object(value: object, what: str) -> dict[str, Any]:
    """Refuse what is no object: `InvalidArgument`."""
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is a JSON object, not {KINDS[type(value)]}")
    return value


def loads(content: bytes | memoryview) -> object:
    """Read JSON; `InvalidArgument` where it is none."""
    try:
        value: object = json.loads(str(content, "utf-8-sig"))
        return value
    except (ValueError, RecursionError) as error:  # UnicodeError too
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error!s:.100}") from None


def json_reply(value: object, status: int = 200) -> Reply:
    """Make an answer of JSON."""
    # Names of files may be no UTF-8.
    content = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    return Reply(status, [JSON], content)


def check_method(method: str, *allowed: str) -> None:
    """Refuse another method: 405."""
    if method not in allowed:
        headers = [(b"allow", ", ".join(allowed).encode())]
        raise Refused(405, f"the method is {allowed[0]}, not {method[:20]}", headers)
