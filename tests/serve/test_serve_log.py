"""What `ortmulti serve` writes to its log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortmulti.serve.log import log_access
from tests.serve.server import ASKED, SIMPLE, asked, serving


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


def test_the_access_log_has_the_id_that_the_client_gave(tmp_path: Path) -> None:
    (tmp_path / "simple.onnx").write_bytes(SIMPLE)
    with serving(tmp_path, "--access-log") as server:
        path = "/v2/models/simple/infer"
        server.ask(path, b'{"id":"a \\n b",' + ASKED[1:])
        server.ask(path, ASKED)
        server.ask("/v2/nothing", **{"x-request-id": "of nginx" + 100 * "x"})
        server.rpc("ModelInfer", asked(request_id="of a stub"))
        server.process.terminate()
        log = server.process.communicate()[1]
    lines = re.findall(r"INFO 127\.0\.0\.1 \w+ (\S+) (\d+) \d+ [\d.]+ ms (.*)", log)
    assert lines == [
        (path, "200", r"a \n b"),
        (path, "200", "-"),
        ("/v2/nothing", "404", "of nginx" + 92 * "x"),
        ("/inference.GRPCInferenceService/ModelInfer", "200", "of a stub"),
    ]


def test_a_line_of_the_access_log_has_the_time_of_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ortmulti.serve.access")
    log_access("", "GET", "/v2", 200, 7, 0.0012, "", at=1234.5678)
    [record] = caplog.records
    assert (record.created, round(record.msecs)) == (1234.5678, 568)
    assert record.getMessage() == "- GET /v2 200 7 1.2 ms -"
