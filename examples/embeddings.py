"""A web service of embeddings as OpenAI's clients ask for them, and of ranks as those of text-embeddings-inference do.

pip install ".[cpu,examples,text]"; MODEL=model-folder uvicorn --app-dir examples embeddings:app
"""

from __future__ import annotations

import base64
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import ortmulti as om

KINDS = {422: ("Validation", "invalid_request_error"), 429: ("Overloaded", "rate_limit_error")}
Some = Field(min_length=1, max_length=2048)


class ToEmbed(BaseModel):
    input: str | Annotated[list[str] | list[int] | list[list[int]], Some]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)


class ToRank(BaseModel):
    query: str
    texts: Annotated[list[str], Some]
    raw_scores: bool = False
    return_text: bool = False


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    options = om.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the CPU's cores to the event loop
    folder, devices = os.environ.get("MODEL", "model"), os.environ.get("DEVICES", "all")
    async with om.text.load(folder, devices, options=options, max_queue=8192) as app.state.model:
        gc.freeze()
        yield  # SIGTERM: uvicorn answers its requests, then the model closes


app = FastAPI(lifespan=lifespan)


@app.exception_handler(om.Error)
@app.exception_handler(RequestValidationError)
async def failed(request: Request, error: Any) -> Response:
    if isinstance(error, RequestValidationError):
        last = error.errors()[-1]  # of several types that a field may have, the last one says most
        error = om.InvalidArgument(f"{'.'.join(map(str, last['loc'][:2]))}: {last['msg']}")
    status, text = 429 if isinstance(error, om.QueueFull) else error.http_status, error.public
    kind, kind_of_openai = KINDS.get(status, ("Backend", "server_error"))
    if request.url.path == "/rerank":
        return JSONResponse({"error": text, "error_type": kind}, status)
    return JSONResponse({"error": {"message": text, "type": kind_of_openai}}, 400 if status == 422 else status)


@app.post("/v1/embeddings")
async def embeddings(asked: ToEmbed) -> dict[str, Any]:
    model: om.text.TextModel = app.state.model
    texts: list[Any] = [asked.input] if isinstance(asked.input, str) or isinstance(asked.input[0], int) else asked.input
    counts: list[int] = []
    found = await model.embed_async(
        texts, dimensions=asked.dimensions, normalize=True, counts=counts, timeout=30, when_full="reject"
    )
    vectors = found.astype("<f4")
    shown = [one.tolist() if asked.encoding_format == "float" else base64.b64encode(one).decode() for one in vectors]
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(counts))
    return {"object": "list", "data": data, "model": model.settings.name, "usage": usage}


@app.post("/rerank")
async def rerank(asked: ToRank) -> list[dict[str, Any]]:
    model: om.text.TextModel = app.state.model
    scores = await model.rank_async(
        asked.query, asked.texts, raw_scores=asked.raw_scores, timeout=30, when_full="reject"
    )
    ranks = sorted(zip(range(len(scores)), scores.tolist(), asked.texts, strict=True), key=lambda rank: -rank[1])
    return [dict(zip(("index", "score", "text")[: 2 + asked.return_text], rank, strict=False)) for rank in ranks]


@app.get("/health")
async def health() -> Response:
    return Response(status_code=200 if app.state.model.pool.ready else 503)


@app.get("/metrics")
async def metrics() -> Response:
    text = app.state.model.pool.stats().prometheus({"model": app.state.model.settings.name})
    return Response(text, media_type="text/plain; version=0.0.4")
