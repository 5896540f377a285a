"""skl2onnx: scikit-learn's models converted, run, and compared with what scikit-learn predicts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import skl2onnx
from sklearn import (
    cluster,
    datasets,
    decomposition,
    ensemble,
    feature_extraction,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

X, Y = datasets.make_classification(150, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
X = X.astype(np.float32)
TEXTS = np.array([["a session on each GPU"], ["weights are read once"], ["a GPU, a session"], ["once more"]] * 10)

CLASSIFIERS = (
    ensemble.ExtraTreesClassifier(10, random_state=0),
    ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0),
    ensemble.RandomForestClassifier(10, random_state=0),
    ensemble.VotingClassifier(
        [("a", linear_model.LogisticRegression(max_iter=500)), ("b", naive_bayes.GaussianNB())],
        flatten_transform=False,
    ),
    linear_model.LogisticRegression(max_iter=500),
    linear_model.SGDClassifier(random_state=0),
    naive_bayes.GaussianNB(),
    neighbors.KNeighborsClassifier(),
    neural_network.MLPClassifier((8,), max_iter=200, tol=1e-2, random_state=0),
    svm.SVC(random_state=0),
    tree.DecisionTreeClassifier(random_state=0),
    pipeline.make_pipeline(preprocessing.StandardScaler(), decomposition.PCA(2), linear_model.RidgeClassifier()),
)
REGRESSORS = (
    ensemble.AdaBoostRegressor(n_estimators=5, random_state=0),
    ensemble.IsolationForest(n_estimators=10, random_state=0),
    linear_model.BayesianRidge(),
    linear_model.LinearRegression(),
    neighbors.KNeighborsRegressor(),
    svm.NuSVR(),
    tree.DecisionTreeRegressor(random_state=0),
)
CLUSTERERS = (cluster.KMeans(3, n_init=2, random_state=0),)


def prepare(folder: Path) -> None:
    """Converts them, once for all ways: training may give other bits on other threads."""
    converted = []

    def add(model: Any, onnx: Any, data: Any, expected: Any) -> None:
        converted.append((type(model).__name__, onnx.SerializeToString(), data, expected))

    for model in (*CLASSIFIERS, *REGRESSORS, *CLUSTERERS):
        model.fit(X, Y if model in CLASSIFIERS else X[:, 0] + X[:, 1] * Y)
        expected = model.predict(X)
        for zipmap in (True, False) if model in CLASSIFIERS else (None,):
            options = None if zipmap is None else {id(model): {"zipmap": zipmap}}
            if isinstance(model, pipeline.Pipeline):
                options = None
            onnx = skl2onnx.to_onnx(model, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
            add(model, onnx, X, expected)
    # Strings go in, and labels come out as strings. Lower case would need a locale that a machine may not have.
    words = pipeline.make_pipeline(
        feature_extraction.text.TfidfVectorizer(lowercase=False), linear_model.LogisticRegression(max_iter=500)
    )
    labels = np.array(["devices", "weights", "devices", "weights"] * 10)
    words.fit(TEXTS[:, 0], labels)
    types = [("text", skl2onnx.common.data_types.StringTensorType([None, 1]))]
    add(words, skl2onnx.to_onnx(words, initial_types=types), TEXTS, words.predict(TEXTS[:, 0]))
    (folder / "models.pickle").write_bytes(pickle.dumps(converted))


def outputs(onnxruntime: Any, folder: Path) -> Any:
    """Every output of each model, for all rows and for one."""
    results = []
    for name, model, data, expected in pickle.loads((folder / "models.pickle").read_bytes()):
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        feed = session.get_inputs()[0].name
        found = session.run(None, {feed: data})
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(np.ravel(found[0]), expected, rtol=1e-3, atol=1e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(np.ravel(found[0]), expected, err_msg=name)
        kinds = [(x.name, x.type, str(x.shape)) for x in (*session.get_inputs(), *session.get_outputs())]
        results.append([name, kinds, found, session.run(None, {feed: data[:1]})])
    return results
