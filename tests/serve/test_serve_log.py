"""What `ortmulti serve` writes to its log."""

from __future__ import annotations

import re
from pathlib import Path

from tests.serve.server import SIMPLE, serving


def test_loads_swaps_failures_and_unloads_are_in_the_log_with_their_times(tmp_path: Path) -> None:
    def put(version: int, content: bytes) -> None:
        folder = tmp_path / "simple" / str(version)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(content)

    put(1, SIMPLE)
    with serving(tmp_path, "--model-control", "explicit") as server:
        model = "/v2/repository/models/simple"
        put(2, SIMPLE)
        answers = [server.ask(f"{model}/load", b"")[0]]
        put(3, b"no model")
        answers += [server.ask(f"{model}/{call}", b"")[0] for call in ("load", "unload")]
        (tmp_path / "simple/3/model.onnx").write_bytes(SIMPLE)
        answers += [server.ask(f"{model}/load", b"")[0]]
        server.process.terminate()
        log = server.process.communicate()[1]
    assert answers == [200, 400, 200, 200]
    lines = re.findall(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) (.*)", log)
    assert [(level, re.sub(r"\d+\.\d\d s", "N s", text)) for level, text in lines if "'simple'" in text] == [
        ("INFO", "the model 'simple' has version 2 now, after N s"),
        ("WARNING", next(text for _, text in lines if "load of the model 'simple' failed" in text)),
        ("INFO", "the model 'simple' is unloaded"),
        ("INFO", "the model 'simple' has version 3 now, after N s"),
    ]
