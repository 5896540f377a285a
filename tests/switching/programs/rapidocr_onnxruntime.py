"""rapidocr-onnxruntime: text read from a picture that is drawn here, with the three models of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

LINES = ["One model on every GPU", "weights are read once", "0123456789 + 42 = ?"]


def picture() -> Any:
    """The lines in black on white."""
    image = Image.new("RGB", (640, 240), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(LINES):
        draw.text((20, 20 + 70 * number), line, fill="black", font=ImageFont.load_default(size=36))
    return np.asarray(image)


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # rapidocr imports it
    results: list[Any] = []
    for options in ({}, {"intra_op_num_threads": 1, "inter_op_num_threads": 1}):
        found, _ = RapidOCR(**options)(picture())
        assert "weights" in " ".join(text for _, text, _ in found), found
        results.append([[np.asarray(box), text, float(score)] for box, text, score in found])
    return results
