"""Models of texts on GPUs: padding is left out, and the vectors stay those of the export on the CPU."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import ortmulti as om
from ortmulti.optimized import fusion_proof
from tests.support import encoders, exports

pytest.importorskip("onnx", reason='needs onnx: pip install "ortmulti[models]"')
pytestmark = pytest.mark.gpu

WORDS = ["a", "cat", "sits", "on", "the", "mat", "and", "looks", "at", "rows", "of", "batch", "are", "independent"]


def texts(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(count)]


def export(folder: Path, form: str, mask: str, pooling: str) -> Path:
    folder.mkdir()
    exports.trained(exports.TEXTS, encoders.TOKENS).save(str(folder / "tokenizer.json"))
    encoders.write(folder / "model.onnx", form, mask)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 130}))
    (folder / "modules.json").write_text(json.dumps(exports.modules("Pooling")))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    return folder


@pytest.fixture
def without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """That form is faster than any other."""

    def race(_: Any, fused: Any, **__: Any) -> tuple[om.FusedRun, ...]:
        packed = "RemovePadding" in Path(fused.model().strip("'")).read_text("latin-1")
        return (om.FusedRun(1, 32, 32, 2.0, 1.0 if packed else 1.5, 0.9),)

    monkeypatch.setattr(fusion_proof, "race", race)


@pytest.mark.usefixtures("without_padding")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("form", "mask", "pooling"),
    [("eager", "added", "mean"), ("sdpa", "guarded", "cls"), ("flat", "where", "lasttoken"), ("sdpa", "added", "max")],
)
def test_texts_of_all_lengths_together(
    tmp_path: Path, form: str, mask: str, pooling: str, precision: Literal["fp32", "fp16"]
) -> None:
    folder = export(tmp_path / "model", form, mask, pooling)
    made = om.text.fuse(folder, tmp_path / "fused", "cuda:0", precision=precision)
    assert made.fused["RemovePadding"] == 1
    given = texts(300)
    with om.text.load(folder, "cpu") as model:
        expected = model.embed(given)
    close: dict[str, Any] = {"rtol": 0, "atol": (2e-2 if precision == "fp16" else 5e-3) * np.abs(expected).max()}
    with om.text.load(tmp_path / "fused") as model:
        assert model.settings.packed == (precision == "fp16")
        np.testing.assert_allclose(model.embed(given), expected, **close)
        with ThreadPoolExecutor(16) as threads:
            rows = list(threads.map(lambda text: model.embed([text])[0], given))
        np.testing.assert_allclose(rows, expected, **close)
        np.testing.assert_allclose(list(model.embed_stream(given)), expected, **close)
        stats = model.pool.stats().devices
        assert sum(device.runs for device in stats) < sum(device.done for device in stats)
        assert precision == "fp32" or all(device.waste == 0 for device in stats)
