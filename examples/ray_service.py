"""A web service on all hosts of a Ray cluster: each replica of the model is one host with all of its GPUs.

pip install ".[cpu,ray]"; MODEL=model.onnx python examples/ray_service.py
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import ortmulti as om

MODEL, PORT = os.environ.get("MODEL", "model.onnx"), int(os.environ.get("PORT", "8000"))


class Service:
    """Takes JSON: ``{"rows": [[1.0, 2.0]]}``."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            rows = np.asarray((await request.json())["rows"], np.float32)
            outputs = await self._model.infer.remote({"x": rows}, timeout=5.0)
        except om.DeadlineExceeded:
            return JSONResponse({"detail": "not answered in time"}, 504)
        except (KeyError, ValueError) as error:  # om.InvalidArgument is a ValueError, also through Ray
            return JSONResponse({"detail": str(getattr(error, "cause", error))}, 422)
        return JSONResponse({name: value.tolist() for name, value in outputs.items()})


model = om.ray.deployment(MODEL, batching=om.Batching(64), warmup=True)
app = serve.deployment(max_ongoing_requests=1000)(Service).bind(model.bind())


if __name__ == "__main__":
    serve.start(http_options={"port": PORT})
    serve.run(app, blocking=True)
