"""Requests to an ASGI application in this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from ortmulti import _core
from ortmulti.serve.asgi import Application

if not hasattr(_core, "Front"):
    pytest.skip("this build has no server", allow_module_level=True)


async def answer(
    app: Application,
    path: str,
    body: bytes | None = None,
    *,
    method: str = "",
    root: str = "",
    client: tuple[str, int] | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer. A body is sent by POST, in pieces."""
    pieces = [] if body is None else [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]
    messages = [
        {"type": "http.request", "body": piece, "more_body": number + 1 < len(pieces)}
        for number, piece in enumerate(pieces)
    ] or [{"type": "http.request"}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # the client stays
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method or ("GET" if body is None else "POST"),
        "path": root + path,
        "root_path": root,
        "client": client,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await app(scope, receive, send)
    start, *rest = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(each["body"] for each in rest)


def ask(app: Application, path: str, body: bytes | None = None, **more: Any) -> tuple[int, dict[str, str], bytes]:
    """As `answer`, in an event loop of its own."""
    return asyncio.run(answer(app, path, body, **more))


def ask_json(app: Application, path: str, body: object = None, **more: Any) -> tuple[int, Any]:
    """Status and JSON of the answer to a body of JSON; no body: GET."""
    status, _, content = ask(app, path, None if body is None else json.dumps(body).encode(), **more)
    return status, json.loads(content) if content else None


def tensors_of(feed: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A request's inputs in JSON, of arrays of float32 and int64."""
    return [
        {
            "name": name,
            "datatype": "FP32" if value.dtype == np.float32 else "INT64",
            "shape": list(value.shape),
            "data": value.ravel().tolist(),
        }
        for name, value in feed.items()
    ]
