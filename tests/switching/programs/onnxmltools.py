"""onnxmltools: its own test helpers convert models, run them and compare, with LightGBM's models."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxmltools
from onnxmltools.convert.common.data_types import FloatTensorType
from onnxmltools.utils import tests_helper
from sklearn import datasets

MODELS = ("LGBMClassifier", "LGBMRegressor")


def _train(name: str) -> tuple[Any, Any]:
    data, target = datasets.make_classification(200, 6, n_informative=4, n_classes=3, random_state=0)
    model = getattr(lightgbm, name)(n_estimators=8, min_child_samples=2, n_jobs=1, verbose=-1, deterministic=True)
    data = data.astype(np.float32)  # as the converted model reads it
    return model.fit(data, target), data


def outputs(onnxruntime: Any, folder: Path) -> Any:
    """The helpers raise where onnxruntime's results are not the model's; what they ran is run once more."""
    os.chdir(folder)  # they write files beside them
    warnings.simplefilter("ignore")
    results = []
    for name in MODELS:
        model, data = _train(name)
        onnx = onnxmltools.convert_lightgbm(model, "m", [("x", FloatTensorType([None, data.shape[1]]))], zipmap=False)
        tests_helper.dump_data_and_model(data, model, onnx, basename=name, folder=str(folder))
        session = onnxruntime.InferenceSession(onnx.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append([name, session.run(None, {"x": data})])
    return results
