"""All models of a folder by the Open Inference Protocol, beside routes of your own, behind one budget of GPU memory.

pip install fastapi uvicorn; MODELS=models uvicorn --app-dir examples model_repository:app
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Response

import ortmulti as om

MODELS = Path(os.environ.get("MODELS", "models"))
MEMORY = os.environ.get("MEMORY")  # such as 8GiB: of each GPU, and of the host for models on the CPU


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with om.ModelRepository(os.environ.get("DEVICES", "all"), MEMORY, MEMORY) as repository:
        for path in sorted(MODELS.glob("*.onnx")):
            # wait="none": the probes are answered while the models load
            repository.add(path.stem, path, batching=om.Batching(max_size=64), max_queue=1000, wait="none")
        app.state.repository = repository
        # /v2/models/NAME/infer and all the rest of the protocol, and /metrics
        app.mount("/", om.serve.app(repository, explicit=True))
        gc.freeze()  # collecting what stays would stop all requests
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/livez")
async def live() -> dict[str, bool]:
    return {"alive": True}


@app.get("/readyz")
async def ready(response: Response) -> dict[str, str]:
    states = {model.name: model.state for model in app.state.repository.index()}
    response.status_code = 200 if set(states.values()) <= {"READY"} else 503
    return states


@app.get("/sizes/{name}")
async def size(name: str) -> dict[str, int]:
    """A route of your own: bytes of GPU memory, or of the host's, that a model takes."""
    return {one.device: one.weights + one.kept for one in app.state.repository.stats().models[name].devices}
