"""Every program in examples/ runs, and does what it says."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti.bench import models
from tests.support import exports, onnx_models
from tests.support.exports import TEXTS
from tests.support.gpus import VISIBLE
from tests.support.http_store import HttpStore
from tests.support.pools import HANG
from tests.support.processes import ROOT, child_environment

EXAMPLES = ROOT / "examples"
WIDTH = 512  # of the rows that the model takes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=8)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=8, seed=1)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).random((1300, WIDTH), np.float32)


def check(found: object, model: Path, rows: np.ndarray) -> None:
    """Compares a program's outputs for these rows with those of a pool."""
    with ortmulti.load(model, "cpu") as pool:
        [expected] = pool.map_rows({"x": rows})
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-5)


def run(name: str, *arguments: object, folder: Path, environment: Mapping[str, str | None] | None = None) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=child_environment(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def test_every_example_is_short_and_tested() -> None:
    tested = set(re.findall(r'"(\w+)\.py"|"(\w+):app"', Path(__file__).read_text("utf-8")))
    found = sorted(EXAMPLES.glob("*.py"))
    assert {path.stem for path in found} == {one or other for one, other in tested}
    for path in found:
        most = 120 if path.stem == "embeddings" else 80  # it answers clients of two kinds
        assert 20 <= len(path.read_text("utf-8").splitlines()) <= most, path.name


def test_first_run(model: Path, tmp_path: Path) -> None:
    printed = run("first_run.py", model, folder=tmp_path)
    assert f"input x tensor(float) ['batch', {WIDTH}]" in printed
    assert "equal True\nanswers 1000\n" in printed
    runs = re.search(r"cpu: 1003 requests in (\d+) runs", printed)
    assert runs
    assert int(runs[1]) < 500  # they were joined


def test_the_examples_take_any_model(tmp_path: Path) -> None:
    text = onnx_models.parsed(
        """(int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) => (float[batch, sequence] y) {
            both = Mul(input_ids, attention_mask)
            y = Cast <to = 1> (both)
        }"""
    )
    model = tmp_path / "text.onnx"
    model.write_bytes(text.SerializeToString())
    assert "equal True\nanswers 1000\n" in run("first_run.py", model, folder=tmp_path)
    assert "identical True\n" in run("from_onnxruntime.py", model, folder=tmp_path)
    assert "101 answers" in run("several_models.py", model, folder=tmp_path)
    assert "the answer is another one now: False" in run("swap_model.py", model, model, folder=tmp_path)


def test_score_table(model: Path, rows: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows)
    assert "1300 rows scored" in run("score_table.py", model, "rows.npy", "scores.npy", folder=tmp_path)
    with ortmulti.load(model, "cpu") as pool:
        expected = np.concatenate([pool.run(None, {"x": part})[0] for part in np.split(rows, [512, 1024])])
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), expected)
    assert not (tmp_path / "scores.npy.part").exists()
    np.save(tmp_path / "rows.npy", rows[:0])
    assert "0 rows scored" in run("score_table.py", model, "rows.npy", "none.npy", folder=tmp_path)
    assert np.load(tmp_path / "none.npy").shape == (0, expected.shape[1])


def test_score_table_of_several_inputs(tmp_path: Path) -> None:
    model = onnx_models.parsed("(int64[n, 2] x, int64[n, 2] y) => (int64[n, 2] z) { z = Add(x, y) }")
    onnx.save(model, tmp_path / "m.onnx")
    x = np.arange(2000).reshape(-1, 2)
    np.savez(tmp_path / "rows.npz", y=x.astype(np.int16), x=x)
    assert "1000 rows scored" in run("score_table.py", "m.onnx", "rows.npz", "scores.npy", folder=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), 2 * x)


def test_swap_model(model: Path, other_model: Path, tmp_path: Path) -> None:
    printed = run("swap_model.py", model, other_model, folder=tmp_path)
    assert "still the old model:" in printed
    assert "the answer is another one now: True" in printed
    counts = re.search(r"failed: (\d+) (\d+) (\d+)$", printed.strip())
    assert counts
    assert int(counts[1]) > 0
    assert int(counts[3]) == 0


def test_several_models(model: Path, other_model: Path, tmp_path: Path) -> None:
    printed = run("several_models.py", model, other_model, folder=tmp_path).splitlines()
    cores = len(os.sched_getaffinity(0))
    ends = f"101 answers, {max(1, cores // 2)} of {cores} cores"
    assert printed == [f"{model}: {ends}", f"{other_model}: {ends}"]


@pytest.mark.gpu
@pytest.mark.gpu_memory
def test_sleep(model: Path, other_model: Path, tmp_path: Path) -> None:
    lines = run("sleep.py", model, other_model, folder=tmp_path, environment=VISIBLE).splitlines()
    freed = re.fullmatch(r"asleep: weights, freed: (\d+) MiB", lines[0])
    assert freed
    assert int(freed[1]) > 0
    assert lines[1].startswith("answer after ")
    assert lines[2] == "identical: True"
    assert lines[3].startswith("sleeps: 1, wakes: 1, wake: ")
    assert [line.split(":")[1] for line in lines[4:]] == ["0 sleep", "0 copy weights from pinned memory"]


def test_object_store(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with HttpStore().served() as store:
        for file in (model, Path(f"{model}.data")):
            store.put(file.name, file.read_bytes())
        for _ in range(2):
            sent = len(store.ranges)
            environment = {"ORTMULTI_CACHE": str(tmp_path / "cache")}
            printed = run(
                "object_store.py", f"{store.url}/{model.name}", "--keep", folder=tmp_path, environment=environment
            )
            assert printed.splitlines()[-2] == "8.0 of 8.0 MB, sessions: 1"
            assert printed.splitlines()[-1].endswith(" s: (1, 834)")
    assert [end - begin for _, begin, end in store.ranges[sent:]] == [1, 1]  # the copy was used


def test_from_onnxruntime(model: Path, tmp_path: Path) -> None:
    printed = run("from_onnxruntime.py", model, folder=tmp_path)
    assert printed.splitlines() == ["one session: identical True", "pool, batches: close True"]


def test_torch_tensors(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    printed = run("torch_tensors.py", model, folder=tmp_path)
    assert "torch.float32" in printed
    assert "equal: True" in printed


def test_slow_start(model: Path, tmp_path: Path) -> None:
    printed = run("slow_start.py", model, folder=tmp_path)
    assert "1 of 1 sessions ready" in printed
    assert "create session" in printed
    assert json.loads((tmp_path / "load.trace.json").read_text("utf-8"))["traceEvents"]


@contextmanager
def serving(command: list[str], pattern: str, environment: dict[str, str | None], stream: str) -> Iterator[str]:
    """Runs a server until the block ends; yields its address, from the line that matches the pattern."""
    with subprocess.Popen(
        [sys.executable, *command],
        env=child_environment({**environment, "PYTHONUNBUFFERED": "1"}),
        text=True,
        **{stream: subprocess.PIPE},
    ) as process:
        try:
            lines = getattr(process, stream)
            port = next((found[1] for line in lines if (found := re.search(pattern, line))), None)
            assert port, "the server ended before it listened"
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGTERM)
            lines.read()
            # The last two are Ray's own: three of six plain services of Ray Serve 2.60 ended by SIGABRT.
            assert process.wait(30) in (0, -signal.SIGTERM, signal.SIGTERM, -signal.SIGABRT)
        finally:
            process.kill()


def ask(address: str, content: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def ready(address: str) -> bytes:
    """Waits until the service takes requests, and returns what it says then."""
    give_up = time.monotonic() + HANG
    while (answer := ask(f"{address}/readyz"))[0] != 200:
        assert answer[0] == 503
        assert time.monotonic() < give_up, "the model was not loaded: see the server's log"
    return answer[1]


@contextmanager
def service(name: str, **environment: str | Path) -> Iterator[str]:
    """Runs a service of FastAPI's until the block ends; yields its address."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package)
    command = ["-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", name]
    variables: dict[str, str | None] = {key: str(value) for key, value in environment.items()}
    with serving(command, r"running on http://127.0.0.1:(\d+)", variables, "stderr") as address:
        yield address


def predict(address: str, x: object, **inputs: object) -> tuple[int, Any]:
    status, content = ask(f"{address}/predict", json.dumps({"inputs": {"x": x, **inputs}}).encode())
    return status, json.loads(content) if status != 500 else content


def test_service(model: Path, rows: np.ndarray) -> None:
    with service("service:app", MODEL=model) as address:
        assert ask(f"{address}/livez") == (200, b'{"alive":true}')
        assert ready(address) == b'{"ready":["cpu"],"devices":{"cpu":"ready"}}'
        status, answer = predict(address, rows[:2].tolist())
        assert status == 200
        check(answer["outputs"][0], model, rows[:2])
        wrong = "the inputs do not fit the model's: "
        for x, more in (([[1, 2], [1]], {}), ([["a"]], {}), ([[1]], {"z": [1]}), ([[10**400]], {})):
            status, answer = predict(address, x, **more)
            assert status == 422
            assert answer["detail"].startswith(wrong)
        status, answer = predict(address, [[1, 2]])
        assert status == 422
        assert answer["detail"].startswith("input 'x' has the size 2 in dimension 1, and the model takes (batch, 512)")
        assert str(model.parent) not in answer["detail"]
        assert b'ortmulti_requests_total{model="' in ask(f"{address}/metrics")[1]


def test_a_service_takes_any_model_and_its_failure_is_not_the_clients_mistake(tmp_path: Path) -> None:
    model = onnx_models.with_weights(
        "(int64[batch] x, int64[batch] y) => (int64[a, b] z) { s = Add(x, y) z = Reshape(s, shape) }", shape=[2, -1]
    )
    (tmp_path / "model.onnx").write_bytes(model)
    with service("service:app", MODEL=tmp_path / "model.onnx") as address:
        ready(address)
        assert predict(address, [1, 2], y=[3, 4]) == (200, {"outputs": [[[4], [6]]]})
        assert predict(address, [1.5, 2], y=[3, 4])[0] == 422
        assert predict(address, [1, 2, 3], y=[3, 4, 5]) == (500, b'{"detail":"the request failed"}')


def test_service_whose_model_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with service("service:app", MODEL=tmp_path / "broken.onnx") as address:
        assert ask(f"{address}/livez")[0] == 200
        assert ask(f"{address}/readyz")[0] == 503
        assert predict(address, [[1]]) == (503, {"detail": "no device is ready"})


def test_model_repository(model: Path, rows: np.ndarray, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copy(model, tmp_path / f"{name}.onnx")
    shutil.copy(f"{model}.data", tmp_path)
    with service("model_repository:app", MODELS=tmp_path, DEVICES="cpu") as address:
        assert ask(f"{address}/livez")[0] == 200
        assert json.loads(ready(address)) == {"first": "READY", "second": "READY"}
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, WIDTH], "data": rows[:2].tolist()}
        for name, expected in (("first", 200), ("second", 200), ("third", 404)):
            status, answer = ask(f"{address}/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}).encode())
            assert status == expected
            if status == 200:
                [output] = json.loads(answer)["outputs"]
                check(np.reshape(output["data"], output["shape"]), model, rows[:2])
        assert ask(f"{address}/v2/repository/models/first/load", b"{}")[0] == 200
        assert json.loads(ask(f"{address}/sizes/first")[1])["cpu"] > 0
        assert b'ortmulti_requests_total{model="second",device="cpu",outcome="done"} 1' in ask(f"{address}/metrics")[1]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of an encoder of random weights, whose tokenizer pads, as those of sentence-transformers do."""
    folder = tmp_path_factory.mktemp("encoder")
    made = models.make("encoder", folder, layers=1, hidden=48)
    if made.name != "model.onnx":
        made.rename(folder / "model.onnx")
    exports.tokenizer(folder / "tokenizer.json")
    (folder / "config.json").write_text('{"max_position_embeddings": 256}')
    return folder


def embedded(folder: Path, texts: list[str]) -> np.ndarray:
    """The embeddings of the texts, each run alone."""
    session, found = ortmulti.InferenceSession(folder / "model.onnx"), []
    for text in texts:
        ids = np.array([exports.tokens(folder, text).ids])
        [vector] = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        found.append(vector[0])
    return np.array(found)


def test_embed_table(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, "", *TEXTS[::-1]]), "utf-8")
    assert "9 texts embedded" in run("embed_table.py", encoder, "texts.txt", "out.npy", folder=tmp_path)
    expected = embedded(encoder, [*TEXTS, "", *TEXTS[::-1]])
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-3, atol=1e-5)
    assert not (tmp_path / "out.npy.part").exists()


def test_embeddings(encoder: Path) -> None:
    expected = embedded(encoder, TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    ids = exports.tokens(encoder, TEXTS[0]).ids
    counts = [len(exports.tokens(encoder, text).ids) for text in TEXTS]
    assert counts[2] == 256  # it is cut
    with service("embeddings:app", MODEL=encoder, DEVICES="cpu") as address:

        def embed(given: object, **more: object) -> tuple[int, Any]:
            status, content = ask(
                f"{address}/v1/embeddings", json.dumps({"input": given, "model": "m", **more}).encode()
            )
            return status, json.loads(content)

        def vectors(given: object, **more: object) -> np.ndarray:
            status, answer = embed(given, **more)
            assert status == 200, answer
            assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
            return np.array([one["embedding"] for one in answer["data"]])

        assert ask(f"{address}/health")[0] == 200
        several = vectors(TEXTS)
        np.testing.assert_allclose(several, expected, rtol=1e-3, atol=1e-5)
        for given in ([TEXTS[0]], TEXTS[0], ids, [ids]):
            np.testing.assert_allclose(vectors(given), several[:1], rtol=1e-3, atol=1e-5)
        assert embed(TEXTS)[1]["usage"] == {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
        coded = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors(TEXTS, encoding_format="base64")]
        np.testing.assert_allclose(coded, several, rtol=1e-3, atol=1e-5)
        cut = several[:, :5] / np.linalg.norm(several[:, :5], axis=1, keepdims=True)
        np.testing.assert_allclose(vectors(TEXTS, dimensions=5), cut, rtol=1e-3, atol=1e-5)
        with ThreadPoolExecutor(16) as clients:
            for index, answer in enumerate(clients.map(vectors, TEXTS * 20)):
                np.testing.assert_allclose(answer[0], several[index % len(TEXTS)], rtol=1e-3, atol=1e-5)

        wrong: list[tuple[object, dict[str, object], str]] = [
            ([[1], []], {}, "text 1 has no tokens"),
            ([], {}, "body.input: Value should have at least 1 item"),
            (["a"] * 2049, {}, "body.input: Value should have at most 2048 items"),
            (None, {}, "body.input: "),
            ([1, 10**6], {}, "text 0 has the token 1000000"),
            ("a", {"dimensions": 49}, "dimensions is 1 to 48, not 49"),
            ("a", {"dimensions": 0}, "dimensions"),
            ("a", {"encoding_format": "int8"}, "encoding_format"),
        ]
        for wanted, more, message in wrong:
            status, answer = embed(wanted, **more)
            assert status == 400
            assert message in answer["error"]["message"]
            assert answer["error"]["type"] == "invalid_request_error"
        status, content = ask(f"{address}/rerank", json.dumps({"query": "a", "texts": ["b"]}).encode())
        assert (status, json.loads(content)["error_type"]) == (422, "Validation")
        printed = ask(f"{address}/metrics")[1].decode()
        assert f'ortmulti_requests_total{{model="{encoder.name}",device="cpu",outcome="failed"}} 0' in printed


def test_rerank(tmp_path: Path) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    inputs = (*exports.INPUTS, "token_type_ids")
    exports.export(tmp_path, "logits", files={"config.json": config}, inputs=inputs)
    texts = [TEXTS[0], TEXTS[3], TEXTS[1]]
    logits = [float(exports.logits_of(tmp_path, "cat", text, typed=True)[0]) for text in texts]
    with service("embeddings:app", MODEL=tmp_path, DEVICES="cpu") as address:

        def rank(**asked: object) -> tuple[int, Any]:
            status, content = ask(f"{address}/rerank", json.dumps(asked).encode())
            return status, json.loads(content)

        best = sorted(range(3), key=lambda index: -logits[index])
        status, found = rank(query="cat", texts=texts, raw_scores=True, return_text=True)
        assert status == 200
        assert [(one["index"], one["text"]) for one in found] == [(index, texts[index]) for index in best]
        np.testing.assert_allclose([one["score"] for one in found], [logits[index] for index in best], rtol=1e-4)
        status, found = rank(query="cat", texts=texts)
        assert [sorted(one) for one in found] == [["index", "score"]] * 3
        assert all(0 < one["score"] < 1 for one in found)
        assert rank(query="cat", texts=[])[0] == 422
        assert rank(query="cat")[1]["error_type"] == "Validation"
        status, content = ask(f"{address}/v1/embeddings", b'{"input": "a"}')
        assert status == 400
        assert "is for ranking: call rank()" in json.loads(content)["error"]["message"]


def test_container(model: Path, rows: np.ndarray) -> None:
    command = [str(EXAMPLES / "container.py"), str(model), "0"]
    with serving(command, r"listening on port (\d+)", {}, "stdout") as address:
        assert ask(f"{address}/livez") == (200, b"alive\n")
        assert ready(address) == b"ready: cpu\n"
        status, content = ask(address, rows[:3].tobytes())
        assert status == 200
        check(np.frombuffer(content, np.float32).reshape(3, -1), model, rows[:3])
        assert ask(address, b"1234")[0] == 400
        assert b"ortmulti_requests_total" in ask(f"{address}/metrics")[1]


def test_ray_batch(model: Path, rows: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not a cluster that runs beside
    np.save(tmp_path / "rows.npy", rows)
    assert "1300 rows scored" in run("ray_batch.py", model, "rows.npy", "scores", folder=tmp_path)
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(file)["y"] for file in sorted((tmp_path / "scores").glob("*.parquet"))]
    check([row for table in tables for row in table.to_pylist()], model, rows)


def test_ray_service(model: Path, rows: np.ndarray) -> None:
    pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
    command = [str(EXAMPLES / "ray_service.py")]  # as "ray_service:app" it is what `serve deploy` imports
    environment: dict[str, str | None] = {
        "MODEL": str(model),
        "PORT": "8123",
        "RAY_ADDRESS": "local",  # not a cluster that runs beside
        "RAY_SERVE_LOG_TO_STDERR": "1",
    }
    with serving(command, r"is ready at http://127\.0\.0\.1:(\d+)", environment, "stderr") as address:
        status, content = ask(address, json.dumps({"rows": rows[:2].tolist()}).encode())
        assert status == 200
        check(json.loads(content)["y"], model, rows[:2])
        assert ask(address, b'{"rows": [[1, 2]]}')[0] == 422
