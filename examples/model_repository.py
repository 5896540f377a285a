"""A web service for all models of a folder, with the model's name in the path, behind one budget of GPU memory.

pip install fastapi uvicorn; MODELS=models uvicorn --app-dir examples model_repository:app
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

import ortmulti as om

MODELS = Path(os.environ.get("MODELS", "models"))
MEMORY = os.environ.get("MEMORY")  # such as 8GiB: of each GPU, or of the host for models on the CPU


class Request(BaseModel):
    inputs: dict[str, list[Any]]  # such as {"x": [[0.5, 1.5]]}: the values of each input, by its name


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with om.ModelRepository(os.environ.get("DEVICES", "all"), MEMORY or 0.8, MEMORY) as repository:
        for path in sorted(MODELS.glob("*.onnx")):
            repository.add(path.stem, path, batching=om.Batching(max_size=64), max_queue=1000)
        app.state.repository = repository
        gc.freeze()  # collecting what stays would stop all requests
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/models/{name}/predict")
async def predict(name: str, request: Request) -> dict[str, Any]:
    try:  # a model that sleeps wakes meanwhile; the deadline includes that
        model = app.state.repository[name]
        types = {value.name: value.dtype for value in model.get_inputs()}
        feed = {key: np.asarray(values, types[key]) for key, values in request.inputs.items()}
        outputs = await model.run_async(feed, timeout=5.0, when_full="reject")
    except om.Error as error:
        raise HTTPException(error.http_status, error.public) from error
    except (KeyError, TypeError, ValueError) as error:
        raise HTTPException(422, "the inputs do not fit the model's") from error
    return {"outputs": [output.tolist() for output in outputs]}


@app.get("/models")
async def index() -> list[dict[str, str]]:
    return [asdict(model) for model in app.state.repository.index()]


@app.post("/models/{name}/load")
async def load(name: str) -> dict[str, str]:
    try:  # its file was replaced; a model that is awake answers until the new one is there
        await asyncio.to_thread(app.state.repository.load, name)
    except om.NotFound as error:
        raise HTTPException(404, f"there is no model {name!r}") from error
    except om.Error as error:  # the file is no model, or both do not fit
        raise HTTPException(409, "the file cannot be loaded") from error
    return {"name": name, "state": "READY"}


@app.get("/metrics")
async def metrics() -> Response:
    return Response(app.state.repository.stats().prometheus(), media_type="text/plain; version=0.0.4")
