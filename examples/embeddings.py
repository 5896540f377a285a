"""A web service of embeddings as OpenAI's clients ask for them, and of ranks as those of text-embeddings-inference do.

pip install fastapi rich tokenizers uvicorn; MODEL=model.onnx uvicorn --app-dir examples embeddings:app
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from embed_table import Encoder  # type: ignore[import-not-found] # the example beside this one
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import ortmulti as om

MODEL, TOKENIZER = os.environ.get("MODEL", "model.onnx"), os.environ.get("TOKENIZER", "tokenizer.json")
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
    app.state.encoder = Encoder(MODEL, TOKENIZER, os.environ.get("DEVICES", "all"), options=options, max_queue=8192)
    with app.state.encoder.pool:
        gc.freeze()
        yield  # SIGTERM: uvicorn answers its requests, then the pool closes


app = FastAPI(lifespan=lifespan)


@app.exception_handler(om.Error)
@app.exception_handler(RequestValidationError)
async def failed(request: Request, error: Any) -> Response:
    if isinstance(error, RequestValidationError):
        error = om.InvalidArgument("{loc}: {msg}".format_map(error.errors()[0]))
    status, text = 429 if isinstance(error, om.QueueFull) else error.http_status, error.public
    kind, kind_of_openai = KINDS.get(status, ("Backend", "server_error"))
    if request.url.path == "/rerank":
        return JSONResponse({"error": text, "error_type": kind}, status)
    return JSONResponse({"error": {"message": text, "type": kind_of_openai}}, 400 if status == 422 else status)


async def run(feeds: list[dict[str, np.ndarray]], *, logits: bool) -> list[np.ndarray]:
    """Each text is a request of the pool's: it runs with those of its length, of whichever client."""
    encoder: Encoder = app.state.encoder
    if logits != (encoder.output == "logits"):
        raise om.InvalidArgument("the model has logits: ask /rerank" if not logits else "the model has no logits")
    if not all((ids := feed["input_ids"]).size and ids.min() >= 0 and ids.max() < encoder.tokens for feed in feeds):
        raise om.InvalidArgument("a text is empty, or has tokens that do not exist")  # else its neighbours run again
    ask = encoder.pool.run_async
    tasks = [asyncio.ensure_future(ask([encoder.output], feed, timeout=30, when_full="reject")) for feed in feeds]
    try:
        return [output for [output] in await asyncio.gather(*tasks)]
    finally:
        for task in tasks:  # those that are left after an error
            task.cancel()


@app.post("/v1/embeddings")
async def embeddings(asked: ToEmbed) -> dict[str, Any]:
    encoder: Encoder = app.state.encoder
    texts: list[Any] = [asked.input] if isinstance(asked.input, str) or isinstance(asked.input[0], int) else asked.input
    if isinstance(texts[0], str):
        found = await asyncio.to_thread(encoder.tokenizer.encode_batch, texts)  # without the GIL
        texts = [one.ids if text else [] for one, text in zip(found, texts, strict=True)]
    feeds = [encoder.feed(ids) for ids in texts]
    vectors = [encoder.embedding(output, asked.dimensions) for output in await run(feeds, logits=False)]
    if asked.dimensions and len(vectors[0]) < asked.dimensions:
        raise om.InvalidArgument(f"dimensions: {len(vectors[0])} at most")
    shown = [one.tolist() if asked.encoding_format == "float" else base64.b64encode(one).decode() for one in vectors]
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)]
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(feed["input_ids"].size for feed in feeds))
    return {"object": "list", "data": data, "model": Path(MODEL).name, "usage": usage}


@app.post("/rerank")
async def rerank(asked: ToRank) -> list[dict[str, Any]]:
    encoder: Encoder = app.state.encoder
    found = await asyncio.to_thread(encoder.tokenizer.encode_batch, [(asked.query, text) for text in asked.texts])
    outputs = await run([encoder.feed(one.ids, one.type_ids) for one in found], logits=True)
    scores = [float(one[0, 0] if asked.raw_scores else 1 / (1 + np.exp(-one[0, 0]))) for one in outputs]
    ranks = sorted(zip(range(len(scores)), scores, asked.texts, strict=True), key=lambda rank: -rank[1])
    return [dict(zip(("index", "score", "text")[: 2 + asked.return_text], rank, strict=False)) for rank in ranks]


@app.get("/health")
async def health() -> Response:
    return Response(status_code=200 if app.state.encoder.pool.ready else 503)


@app.get("/metrics")
async def metrics() -> Response:
    text = app.state.encoder.pool.stats().prometheus({"model": Path(MODEL).name})
    return Response(text, media_type="text/plain; version=0.0.4")
