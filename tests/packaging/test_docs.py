"""What the documents show works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import onnx_models
from tests.support.processes import ROOT, run_child

SNIPPETS = [
    pytest.param(code, id=f"{document}-{number}")
    for document in ("docs/loading.md", "docs/switching.md", "docs/threads-and-memory.md")
    for number, code in enumerate(re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / document).read_text("utf-8")), 1)
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_every_snippet_runs(code: str, tmp_path: Path) -> None:
    onnx_models.write_external(tmp_path)
    child = run_child(
        "import os, sys; os.chdir(sys.argv[1]); exec(sys.argv[2])",
        tmp_path,
        code,
        environment={"ORTMULTI_CACHE": str(tmp_path / "cache")},
    )
    assert (child.returncode, child.stderr) == (0, "")
