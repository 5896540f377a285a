"""A web service over one pool: batches, deadlines, a bounded queue, health, metrics, and a clean end on SIGTERM.

pip install fastapi uvicorn; MODEL=model.onnx uvicorn --app-dir examples service:app
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

import ortmulti as om

MODEL, DEVICES = os.environ.get("MODEL", "model.onnx"), os.environ.get("DEVICES", "all")


class Request(BaseModel):
    inputs: dict[str, list[Any]]  # such as {"x": [[0.5, 1.5]]}: the values of each input, by its name


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    batching, loading, options = om.Batching(max_size=64, max_delay_ms=2), om.Loading(wait="none"), om.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the CPU's cores to the event loop
    with om.load(MODEL, DEVICES, 1, options, batching=batching, max_queue=1000, loading=loading, warmup=True) as pool:
        app.state.pool = pool  # wait="none": the probes are answered while the model loads
        gc.freeze()  # what is there stays: collecting it would stop all requests for 30 ms, several times a second
        yield  # SIGTERM: uvicorn answers its requests, then the pool closes


app = FastAPI(lifespan=lifespan)


def array_of(values: list[Any], dtype: Any) -> np.ndarray:
    if not np.can_cast((array := np.asarray(values)).dtype, dtype, "same_kind"):  # such as 1.5 for an integer
        raise ValueError(f"{array.dtype} is not {dtype}")
    return array.astype(dtype)


@app.post("/predict")
async def predict(request: Request) -> dict[str, Any]:
    pool: om.Pool = app.state.pool
    if not pool.ready:
        raise HTTPException(503, "no device is ready")
    try:
        types = {value.name: value.dtype for value in pool.get_inputs()}
        feed = {name: array_of(values, types[name]) for name, values in request.inputs.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise HTTPException(422, f"the inputs do not fit the model's: {error}") from error
    try:
        outputs = await pool.run_async(feed, timeout=5.0, when_full="reject")
    except om.Error as error:  # any other one, a ValueError too, is a fault: 500
        logging.getLogger("uvicorn.error").warning("%d: %s", error.http_status, error)
        raise HTTPException(error.http_status, error.public) from error
    return {"outputs": [output.tolist() for output in outputs]}


@app.get("/livez")
async def live() -> dict[str, bool]:
    return {"alive": True}


@app.get("/readyz")
async def ready(response: Response) -> dict[str, Any]:
    response.status_code = 200 if (pool := app.state.pool).ready and not pool.closed else 503
    return {"ready": pool.ready, "devices": {device.device: device.state for device in pool.stats().devices}}


@app.get("/metrics")
async def metrics() -> Response:
    text = app.state.pool.stats().prometheus({"model": Path(MODEL).name})
    return Response(text, media_type="text/plain; version=0.0.4")
