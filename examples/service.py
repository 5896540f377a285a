"""A web service over one pool: batches, deadlines, a bounded queue, health, metrics, and a clean end on SIGTERM.

pip install fastapi uvicorn
MODEL=model.onnx uvicorn --app-dir examples service:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

import ortmulti as om

MODEL = os.environ.get("MODEL", "model.onnx")
DEVICES = os.environ.get("DEVICES", "all")


class Rows(BaseModel):
    rows: list[list[float]]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    batching = om.Batching(max_size=64, max_delay_ms=2)
    with om.load(MODEL, DEVICES, batching=batching, max_queue=1000, warmup=True) as pool:
        app.state.pool = pool
        app.state.input = pool.get_inputs()[0].name
        yield  # SIGTERM: uvicorn answers its requests, then the pool closes


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Rows) -> dict[str, Any]:
    feed = {app.state.input: np.asarray(request.rows, np.float32)}
    try:
        outputs = await app.state.pool.run_async(feed, timeout=5.0, when_full="reject")
    except om.InvalidArgument as error:  # the client's mistake, such as a wrong number of columns
        raise HTTPException(422, str(error)) from error
    except (om.QueueFull, om.ClosedError) as error:  # too much to do, or the service is ending
        raise HTTPException(503, str(error)) from error
    except om.DeadlineExceeded as error:
        raise HTTPException(504, str(error)) from error
    return {"outputs": [output.tolist() for output in outputs]}


@app.get("/livez")
async def live() -> dict[str, bool]:
    return {"alive": True}


@app.get("/readyz")
async def ready(response: Response) -> dict[str, Any]:
    pool = app.state.pool
    if pool.closed or not pool.ready:
        response.status_code = 503
    return {"ready": pool.ready, "devices": {device.device: device.state for device in pool.stats().devices}}


@app.get("/metrics")
async def metrics() -> PlainTextResponse:
    text = app.state.pool.stats().prometheus({"model": Path(MODEL).name})
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
