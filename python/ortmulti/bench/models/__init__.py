"""Models of known shape and size with random weights, and inputs for any model.

    from ortmulti.bench import models

    path = models.make("resnet50", "models")
    inputs = models.sample_inputs(path, batch=8)

Writing and reading .onnx files needs the onnx package: ``pip install "ortmulti[models]"``.
"""

from __future__ import annotations

from ortmulti.bench.models._inputs import sample_inputs
from ortmulti.bench.models._registry import MODELS, Description, Model, describe, find, make
from ortmulti.bench.models._writer import WriteError

__all__ = ["MODELS", "Description", "Model", "WriteError", "describe", "find", "make", "sample_inputs"]
