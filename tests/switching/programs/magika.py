"""magika: what the files of this repository are, and a few that are made."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from magika import Magika

from tests.support.processes import ROOT


def outputs(onnxruntime: Any, folder: Path) -> Any:  # noqa: ARG001  # magika imports it
    model = Magika()
    paths = [path for name in ("tests", "tools", "docs") for path in sorted((ROOT / name).glob("*.*"))]
    made = [
        b"#!/bin/sh\nset -e\necho hello\n" * 5,
        b"<html><body><p>hello</p></body></html>\n" * 5,
        json.dumps({"a": [1, 2, 3], "b": {"c": None}}, indent=1).encode() * 3,
        zlib.compress(b"hello" * 100),
        np.random.default_rng(0).bytes(5000),
        b"",
        b"short",
    ]
    results = [*model.identify_paths(paths), *map(model.identify_bytes, made)]
    labels = [str(result.output.label) for result in results]
    assert {"shell", "python", "html"} <= set(labels), labels
    return [[str(r.dl.label), str(r.output.label), r.output.mime_type, float(r.score)] for r in results]
