"""The script that repeats a report's options of a session works on GPUs; what it measures is no matter here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import init_options
from ortmulti.bench import models

pytestmark = pytest.mark.gpu


def test_options_of_cudnn_are_measured(tmp_path: Path) -> None:
    model = models.make("matmul", tmp_path, megabytes=4)
    document = init_options.InitOptions(models=[model], device="cuda:0", repeat=1, runs=1).run()
    assert {one["options"] for one in document["measurements"]} == set(init_options.OPTIONS)
    assert all("error" not in one for one in document["measurements"])
