"""The Open Inference Protocol over HTTP, in this process: what clients send, and what they get."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ortmulti
from ortmulti.errors import InvalidArgument
from ortmulti.serve.asgi import Application
from ortmulti.serve.compression import COMPRESSED_FROM
from ortmulti.serve.limits import Limits
from ortmulti.serve.service import Defaults
from tests.serve.asgi import answer, ask, ask_json, tensors_of
from tests.support import onnx_models
from tests.support.pools import ENDLESS, endless_feed

SIMPLE = onnx_models.parsed(
    "(int32[n, 4] INPUT0, int32[n, 4] INPUT1) => (int32[n, 4] OUTPUT0, int32[n, 4] OUTPUT1)"
    " { OUTPUT0 = Add(INPUT0, INPUT1) OUTPUT1 = Sub(INPUT0, INPUT1) }"
).SerializeToString()
ONES = {"name": "INPUT1", "datatype": "INT32", "shape": [1, 4], "data": [1, 1, 1, 1]}
COUNT = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}
INFER = "/v2/models/simple/infer"
TABLE = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")


@pytest.fixture(scope="module")
def models() -> Iterator[ortmulti.ModelRepository]:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE, version="3")
        yield repository


@pytest.fixture(scope="module")
def app(models: ortmulti.ModelRepository) -> Application:
    return ortmulti.serve.app(models)


def test_a_request_of_json_is_answered_in_json(app: Application) -> None:
    status, answer = ask_json(app, INFER, {"id": "7", "inputs": [ONES, COUNT]})
    assert status == 200
    assert answer == {
        "id": "7",
        "model_name": "simple",
        "model_version": "3",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 4], "data": [2, 3, 4, 5]},
            {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 4], "data": [0, 1, 2, 3]},
        ],
    }
    for path in ("/v2/models/simple/versions/3/infer", INFER):
        asked = {"inputs": [COUNT, ONES], "outputs": [{"name": "OUTPUT1"}]}
        assert ask_json(app, path, asked, root="/mounted")[1]["outputs"] == answer["outputs"][1:]


def binary(arrays: dict[str, tuple[str, list[int], bytes]], **more: object) -> tuple[bytes, str]:
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, (datatype, shape, data) in arrays.items()
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(data for *_, data in arrays.values()), str(len(head))


def test_binary_tensors_go_in_and_out(app: Application) -> None:
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    for pad in ("", "-", "--", "---"):  # at any address
        body, length = binary(
            {"INPUT0": ("INT32", [2, 4], x.tobytes()), "INPUT1": ("INT32", [2, 4], x.tobytes())},
            outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0", "parameters": {"binary_data": True}}],
            id=pad,
        )
        status, headers, content = ask(app, INFER, body, inference_header_content_length=length)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        size = int(headers["inference-header-content-length"])
        first, second = json.loads(content[:size])["outputs"]
        assert first["data"] == [0] * 8
        assert second["parameters"] == {"binary_data_size": 32}
        np.testing.assert_array_equal(np.frombuffer(content[size:], np.int32), 2 * x.ravel())
    body, length = binary(
        {"INPUT0": ("INT32", [2, 4], x.tobytes()), "INPUT1": ("INT32", [2, 4], x.tobytes())},
        parameters={"binary_data_output": True},
    )
    _, headers, content = ask(app, INFER, body, inference_header_content_length=length)
    assert len(content) == int(headers["inference-header-content-length"]) + 64


TYPES: dict[str, tuple[str, Any, list[Any]]] = {
    "BOOL": ("bool", np.bool_, [True, False]), "UINT8": ("uint8", np.uint8, [0, 255]),
    "UINT16": ("uint16", np.uint16, [1, 65535]), "UINT32": ("uint32", np.uint32, [1, 2**32 - 1]),
    "UINT64": ("uint64", np.uint64, [1, 2**64 - 1]), "INT8": ("int8", np.int8, [-128, 127]),
    "INT16": ("int16", np.int16, [-1, 32767]), "INT32": ("int32", np.int32, [-1, 2**31 - 1]),
    "INT64": ("int64", np.int64, [-(2**63), 2**63 - 1]), "FP16": ("float16", np.float16, [0.5, -65504.0]),
    "FP32": ("float", np.float32, [0.5, 2.0**100]), "FP64": ("double", np.float64, [0.1, -1e300]),
    "BF16": ("bfloat16", ml_dtypes.bfloat16, [0.5, -1.0]), "BYTES": ("string", np.object_, ["", "grün"]),
}  # fmt: skip


@pytest.mark.parametrize("datatype", TYPES)
def test_every_type_goes_in_and_out(datatype: str) -> None:
    onnx_type, dtype, values = TYPES[datatype]
    model = onnx_models.parsed(f"({onnx_type}[n] x) => ({onnx_type}[n] y) {{ y = Identity(x) }}").SerializeToString()
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", model)
        app = ortmulti.serve.app(repository)
        assert ask_json(app, "/v2/models/m")[1]["inputs"] == [{"name": "x", "datatype": datatype, "shape": [-1]}]
        for shape, data in (([2], values), ([0], [])):
            asked = {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}
            status, answer = ask_json(app, "/v2/models/m/infer", asked)
            assert (status, answer["outputs"][0]["data"]) == (200, data)
        raw = np.array(values, dtype).tobytes()
        if datatype == "BYTES":
            raw = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in values)
        body, length = binary({"x": (datatype, [2], raw)}, parameters={"binary_data_output": True})
        status, headers, content = ask(app, "/v2/models/m/infer", body, inference_header_content_length=length)
        assert status == 200
        assert content[int(headers["inference-header-content-length"]) :] == raw


X = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}
WRONG: list[tuple[Any, int, str]] = [
    ({"inputs": [ONES]}, 400, "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT1'], but"),
    ({"inputs": [ONES, ONES]}, 400, "input 'INPUT1' already exists in request"),
    ({"inputs": [ONES, X | {"name": "Z"}]}, 400, "unexpected inference input 'Z' for model 'simple'"),
    ({"inputs": [X | {"datatype": "FP32"}]}, 400, "data-type is 'FP32', but model 'simple' expects 'INT32'"),
    ({"inputs": [X | {"shape": [4]}]}, 400, "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,4]"),
    ({"inputs": [X | {"shape": [1, 5]}]}, 400, "got [1,5]"),
    ({"inputs": [X | {"shape": [-1, 4]}]}, 400, "got [-1,4]"),
    ({"inputs": [X | {"shape": [1.0, 4]}]}, 400, "got [1.0,4]"),
    ({"inputs": [X | {"shape": [2**62, 4]}]}, 400, f"which is {2**64} values, and its data are 4"),
    ({"inputs": [X | {"shape": [2**64, 4]}]}, 400, "unexpected shape"),
    ({"inputs": [X | {"shape": [True, 4]}]}, 400, "unexpected shape"),
    ({"inputs": [X | {"shape": "14"}]}, 400, "a 'shape', which is a list"),
    ({"inputs": [X | {"data": [1, 2, 3]}]}, 400, "which is 4 values, and its data are 3"),
    ({"inputs": [X | {"data": [1, 2, 3, 4.5]}]}, 400, "are not all INT32"),
    ({"inputs": [X | {"shape": [-1, 4]}]}, 400, "(-1 is any size of 0 or more)"),
    ({"inputs": [X | {"data": [1, 2, 3, True]}]}, 400, "are not all INT32"),
    ({"inputs": [X | {"data": [1, 2, 3, "4"]}]}, 400, "are not all INT32"),
    ({"inputs": [X | {"data": [[1, 2], 3, 4]}]}, 400, "nested unevenly"),
    ({"inputs": [X | {"data": "1234"}]}, 400, "its data are"),
    ({"inputs": [X | {"data": None}]}, 400, "neither 'data' nor the parameter 'binary_data_size'"),
    ({"inputs": [X | {"data": [1, 2, 3, 2**31]}]}, 400, "are not INT32: 2147483648 is outside the range of INT32, -21"),
    (
        {"inputs": [X | {"data": [1, 2, 3, 10**30]}]},
        400,
        f"are not INT32: {10**29}... is outside",
    ),
    ({"inputs": [X, ONES], "parameters": {"timeout": True}}, 400, "an integer of microseconds, not true"),
    ({"inputs": [X | {"name": 7}]}, 400, "an input has a 'name'"),
    ({"inputs": [X | {"parameters": {"binary_data_size": 16}}]}, 400, "and 0 bytes are left"),
    ({"inputs": [X | {"parameters": {"binary_data_size": -1}}]}, 400, "binary_data_size -1"),
    ({"inputs": [X | {"parameters": {"shared_memory_region": "r"}}]}, 501, "shared memory is not supported"),
    ({"inputs": [X | {"parameters": 1}]}, 400, "an input's parameters is a JSON object, not a number"),
    ({"inputs": 5}, 400, "inputs is a list, not a number"),
    ({}, 400, "inputs is missing, or null: give a list"),
    ({"inputs": None}, 400, "inputs is missing, or null: give a list"),
    ([], 400, "the request is a JSON object, not a list"),
    ({"inputs": [X] * 2000}, 400, "2000 inputs were sent, and 1024 are allowed"),
    ({"inputs": [X, ONES], "outputs": [{"name": "Z"}]}, 400, "unexpected inference output 'Z' for model 'simple'"),
    ({"inputs": [X, ONES], "outputs": [{}]}, 400, "an output has a 'name'"),
    (
        {"inputs": [X, ONES], "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT1"}, {"name": "OUTPUT0"}]},
        400,
        "output 'OUTPUT0' is requested more than once for model 'simple'",
    ),
    ({"inputs": [X, ONES], "id": "\ud800"}, 400, "surrogates not allowed"),
    ({"inputs": [X | {"name": "\udfff"}, ONES]}, 400, "surrogates not allowed"),
    ({"inputs": [X, ONES], "outputs": [{"name": "\udbff"}]}, 400, "surrogates not allowed"),
    ({"inputs": [X | {"data": ["\ud83d"]}, ONES]}, 400, "surrogates not allowed"),
    (
        {"inputs": [X, ONES], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]},
        501,
        "classification",
    ),
    ({"inputs": [X, ONES], "id": 7}, 400, "the 'id' of a request is a string"),
    ({"inputs": [X, ONES], "parameters": {"timeout": "5"}}, 400, "an integer of microseconds, not '5'"),
    ({"inputs": [X, ONES], "parameters": {"priority": -1}}, 400, "'priority' is 1 to"),
]


@pytest.mark.parametrize(("asked", "status", "text"), WRONG, ids=[text[:40] for _, _, text in WRONG])
def test_a_wrong_request_gets_one_clear_answer(app: Application, asked: Any, status: int, text: str) -> None:
    found, answer = ask_json(app, INFER, asked)
    assert found == status
    assert text in answer["error"]
    assert ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "text"),
    [
        (INFER, b"{", {}, 400, "failed to parse the request JSON buffer"),
        (INFER, b"[" * 100_000, {}, 400, "failed to parse"),
        (INFER, b"\xff\xfe", {}, 400, "failed to parse"),
        (INFER, b'{"id":"\xed\xa0\x80"}', {}, 400, "failed to parse"),  # half a surrogate pair, as bytes
        (INFER, b"{}", {"inference_header_content_length": "9"}, 400, "is 0 to 2 for this body"),
        (INFER, b"{}", {"inference_header_content_length": "-1"}, 400, "is 0 to 2"),
        (INFER, b"{}", {"inference_header_content_length": "9" * 50}, 400, "is 0 to 2"),
        (INFER, b'{"inputs":[]}xx', {"inference_header_content_length": "13"}, 400, "2 bytes behind the inputs'"),
        (INFER, b"no gzip", {"content_encoding": "gzip"}, 400, "the body is not gzip"),
        (INFER, gzip.compress(b"{}")[:-4], {"content_encoding": "gzip"}, 400, "it is incomplete"),
        (INFER, gzip.compress(b"{}") + b"more", {"content_encoding": "gzip"}, 400, "the body is not gzip"),
        (INFER, gzip.compress(b"{}") * 2 + b"\x1f\x8b", {"content_encoding": "gzip"}, 400, "it is incomplete"),
        (INFER, zlib.compress(b"{}") + b"more", {"content_encoding": "deflate"}, 400, "the body is not deflate"),
        (INFER, b"", {"content_encoding": "gzip"}, 400, "it is incomplete"),
        (INFER, gzip.compress(bytes(10**7)) * 10, {"content_encoding": "gzip"}, 413, " bytes, decompressed"),
        (INFER, b"{}", {"content_encoding": "br"}, 415, "gzip or deflate, not br"),
        (INFER, gzip.compress(bytes(10**8)), {"content_encoding": "gzip"}, 413, "the request's body is larger"),
        (INFER, bytes(2000), {"content_length": "99999999999"}, 413, "the request's body is larger"),
        (INFER, None, {}, 405, "the method is POST, not GET"),
        ("/v2/models/simple", b"{}", {}, 405, "the method is GET, not POST"),
        ("/v2/models/x/infer", b'{"inputs":[]}', {}, 404, "Request for unknown model: 'x' is not found"),
        ("/v2/models/simple/versions/1/infer", b'{"inputs":[]}', {}, 404, "'simple' version 1 is not found"),
        ("/v2/models/../../etc/passwd", None, {}, 404, "Not Found"),
        ("/v2/models/", None, {}, 404, "Not Found"),
        ("/v2/models/simple/what", None, {}, 404, "Not Found"),
        ("/v2/models/simple/generate", b"{}", {}, 404, "Not Found"),
        ("/v2/repository/index", b"null", {}, 400, "the body is a JSON object, not null"),
        ("/v2/systemsharedmemory/status", None, {}, 404, "Not Found"),
        ("/", None, {}, 404, "Not Found"),
        ("/v2/repository/models/simple/load", b"", {}, 400, "explicit model load / unload is not allowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    app: Application, path: str, body: bytes | None, headers: dict[str, str], status: int, text: str
) -> None:
    found, _, content = ask(app, path, body, **headers)
    assert (found, text in json.loads(content)["error"]) == (status, True), content


def test_bodies_are_compressed_as_the_client_wants(app: Application) -> None:
    rows = 2000
    tensors = [
        {"name": name, "datatype": "INT32", "shape": [rows, 4], "data": [1] * 4 * rows} for name in ("INPUT0", "INPUT1")
    ]
    asked = json.dumps({"inputs": tensors}).encode()
    plain = ask(app, INFER, asked)[2]
    for coding, compress, expand in (
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ):
        status, headers, content = ask(
            app, INFER, compress(asked), content_encoding=coding, accept_encoding=f"br;q=1, {coding}"
        )
        assert (status, headers["content-encoding"]) == (200, coding)
        assert len(content) < len(plain) / 5
        assert expand(content) == plain
    assert len(plain) > COMPRESSED_FROM
    for refused in ("gzip;q=0", "gzip; q=0.0", "gzip;Q=0.000"):
        assert "content-encoding" not in ask(app, INFER, asked, accept_encoding=refused)[1]
    assert ask(app, INFER, gzip.compress(asked), content_encoding="GZIP")[2] == plain  # their case does not matter
    assert ask(app, INFER, asked, accept_encoding="br, GZip")[1]["content-encoding"] == "gzip"
    for tensor in tensors:
        tensor.update(shape=[1, 4], data=[1] * 4)
    small = json.dumps({"inputs": tensors}).encode()
    assert "content-encoding" not in ask(app, INFER, small, accept_encoding="gzip")[1]
    for size in (1, 700, len(asked)):  # of the members
        members = b"".join(gzip.compress(asked[at : at + size]) for at in range(0, len(asked), size))
        assert ask(app, INFER, members, content_encoding="gzip")[2] == plain


def test_health_metadata_configuration_and_statistics(app: Application, models: ortmulti.ModelRepository) -> None:
    assert ask_json(app, "/v2/health/live") == (200, {"live": True})  # KServe's client reads the body
    assert ask_json(app, "/v2/health/ready") == (200, {"ready": True})
    assert ask_json(app, "/v2")[1]["name"] == "ortmulti"
    assert ask_json(app, "/v2/models/simple/ready") == (200, {"name": "simple", "ready": True})
    assert ask(app, "/v2/models/simple/versions/4/ready")[0] == ask(app, "/v2/models/x/ready")[0] == 400
    metadata = ask_json(app, "/v2/models/simple")[1]
    assert (metadata["versions"], metadata["platform"]) == (["3"], "onnxruntime_onnx")
    before = ask_json(app, "/v2/models/simple/stats")[1]["model_stats"][0]
    assert ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0] == 200
    after = ask_json(app, "/v2/models/stats")[1]["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert b'ortmulti_requests_total{model="simple"' in ask(app, "/metrics")[2]
    models.add("joined", onnx_models.matmul(), batching=ortmulti.Batching(8, max_delay_ms=2))
    config = ask_json(app, "/v2/models/joined/config")[1]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, [64])
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 2000
    models.remove("joined")


def test_models_are_loaded_and_unloaded_where_clients_may() -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE)
        app = ortmulti.serve.app(repository, explicit=True)
        assert ask(app, "/v2/repository/models/simple/unload", b"{}")[0] == 200
        assert ask_json(app, "/v2/repository/index", {})[1][0]["state"] == "UNAVAILABLE"
        assert ask_json(app, "/v2/repository/index", {"ready": True})[1] == []
        assert ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0] == 503
        assert ask(app, "/v2/health/ready")[0] == 200  # it was the client's wish
        assert ask(app, "/v2/repository/models/simple/load", b"")[0] == 200
        assert ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0] == 200
        assert ask(app, "/v2/repository/models/x/load", b"")[0] == 404
        assert ask_json(app, "/v2/repository/models/simple/load", {"parameters": {"config": "{}"}})[0] == 501
        repository._entry("simple").model = ortmulti.Model(b"nothing")
        status, answer = ask_json(app, "/v2/repository/models/simple/load", {})
        assert (status, "failed to load 'simple': creating a session" in answer["error"]) == (400, True), answer
        assert ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0] == 200  # by the former one


def test_a_deadline_of_the_model_is_not_overridden() -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE)
        repository.add("endless", ENDLESS, warmup=False)
        for name, inputs, defaults, asked, status in (
            ("endless", tensors_of(endless_feed()), Defaults(0.01), 60_000_000, 503),  # a later one never
            ("endless", tensors_of(endless_feed()), Defaults(60.0), 10_000, 503),
            ("simple", [COUNT, ONES], Defaults(60.0, may_override=False), 1, 200),
        ):
            app = ortmulti.serve.app(repository)
            app.service.defaults[name] = defaults
            found = ask_json(app, f"/v2/models/{name}/infer", {"inputs": inputs, "parameters": {"timeout": asked}})
            assert found[0] == status, (defaults, found)


def test_rows_are_counted_where_they_are_joined() -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE, batching=ortmulti.Batching(8))
        app = ortmulti.serve.app(repository)
        tensors = [{"name": f"INPUT{n}", "datatype": "INT32", "shape": [3, 4], "data": [1] * 12} for n in (0, 1)]
        assert ask_json(app, INFER, {"inputs": tensors})[0] == 200
        [stats] = ask_json(app, "/v2/models/simple/stats")[1]["model_stats"]
        assert (stats["inference_count"], stats["execution_count"]) == (3, 1)


def test_requests_of_a_connection_whose_requests_fail_are_not_joined_with_others() -> None:
    model = onnx_models.parsed("(int64[n] at) => (float[n] y) { y = Gather(table, at) }", TABLE).SerializeToString()
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", model, batching=ortmulti.Batching(8))
        pool, app = repository["m"], ortmulti.serve.app(repository)

        def ask_as(port: int, at: int) -> int:
            tensors = [{"name": "at", "datatype": "INT64", "shape": [1], "data": [at]}]
            body = json.dumps({"inputs": tensors}).encode()
            return ask(app, "/v2/models/m/infer", body, client=("10.0.0.1", port))[0]

        assert [ask_as(1, 10) for _ in range(2)] == [400, 400]
        assert pool.stats().apart == 0
        assert ask_as(1, 10) == 400
        assert pool.stats().apart == 1
        assert ask_as(2, 2) == 200
        assert pool.stats().apart == 1


def test_what_would_end_the_process_is_refused(app: Application) -> None:
    """onnxruntime 1.32 ends the process where an LSTM, a GRU or an RNN has an empty input."""
    weights = [onnx.numpy_helper.from_array(np.ones((1, 3, 1), np.float32), name) for name in ("w", "r")]
    source = "(float[s, b, 1] x) => (float[s, d, b, 1] y) { y = GRU<hidden_size=1>(x, w, r) }"
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("tagger", onnx_models.parsed(source, *weights).SerializeToString())
        own = ortmulti.serve.app(repository)
        for shape in ([0, 1, 1], [1, 0, 1]):
            tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
            status, answer = ask_json(own, "/v2/models/tagger/infer", {"inputs": [tensor]})
            assert (status, answer["error"][:17]) == (400, "input 'x' is empt")
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1, 1], "data": [1.0]}
        assert ask_json(own, "/v2/models/tagger/infer", {"inputs": [tensor]})[0] == 200
    empty = [{**one, "shape": [0, 4], "data": []} for one in (ONES, COUNT)]
    status, answer = ask_json(app, INFER, {"inputs": empty})
    assert (status, [one["shape"] for one in answer["outputs"]]) == (200, [[0, 4], [0, 4]])


def test_rows_are_limited_beside_an_input_without_rows() -> None:
    model = onnx_models.parsed("(float a, float[n] x) => (float[n] y) { y = Mul(a, x) }").SerializeToString()
    with ortmulti.ModelRepository("cpu") as repository:
        with pytest.raises(InvalidArgument, match="input 'a' is a scalar, without rows"):
            repository.add("m", model, batching=ortmulti.Batching(8))
        repository.add("m", model)
        app = ortmulti.serve.app(repository)
        app.service.defaults["m"] = Defaults(max_batch_size=2)
        for rows, status in ((2, 200), (3, 400)):
            tensors = tensors_of({"a": np.array(2, np.float32), "x": np.ones(rows, np.float32)})
            assert ask_json(app, "/v2/models/m/infer", {"inputs": tensors})[0] == status


def test_an_initializer_that_is_an_input_may_be_sent() -> None:
    model = onnx_models.parsed(
        "(float[n] x, float[1] w) => (float[n] y) { y = Mul(x, w) }",
        onnx.numpy_helper.from_array(np.array([3], np.float32), "w"),
    ).SerializeToString()
    x, w = np.array([1, 2], np.float32), np.array([5], np.float32)
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", model)
        repository.add("joins", model, batching=ortmulti.Batching(8))
        app = ortmulti.serve.app(repository)
        for name in ("m", "joins"):
            answer = ask_json(app, f"/v2/models/{name}/infer", {"inputs": tensors_of({"x": x})})[1]
            assert answer["outputs"][0]["data"] == [3, 6]
        both = {"inputs": tensors_of({"x": x, "w": w})}
        assert ask_json(app, "/v2/models/m/infer", both)[1]["outputs"][0]["data"] == [5, 10]
        status, answer = ask_json(app, "/v2/models/joins/infer", both)
        assert (status, "requests that are joined have one value of it" in answer["error"]) == (400, True)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"bdy": 3}, "did you mean 'body'"),
        ({"body": "64MiB"}, "body is an int, not '64MiB'"),
        ({"body": 0}, "body is 1 or more"),
        ({"receive": -1}, "receive is 0 or more"),
        ({"idle": 0}, "idle is more than 0 seconds"),
    ],
)
def test_limits_that_cannot_be_are_errors(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Limits(**wrong)


def test_a_deadline_a_full_queue_and_a_priority() -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("endless", ENDLESS, warmup=False, max_queue=1)
        app = ortmulti.serve.app(repository)
        [count] = [value for value in repository["endless"].get_inputs() if value.name == "count"]
        held = repository.submit("endless", endless_feed())
        inputs = tensors_of(endless_feed())
        assert count.dtype == np.int64
        status, answer = ask_json(
            app, "/v2/models/endless/infer", {"inputs": inputs, "parameters": {"timeout": 10_000, "priority": 1}}
        )
        assert (status, answer["error"]) == (503, "Request timeout expired")
        waits = repository.submit("endless", endless_feed(), priority=1)
        status, answer = ask_json(app, "/v2/models/endless/infer", {"inputs": inputs, "parameters": {"priority": 2}})
        assert (status, answer["error"]) == (503, "Exceeds maximum queue size")
        for each in (waits, held):
            each.cancel()


def test_a_request_goes_to_the_model_that_was_loaded_meanwhile() -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE)
        app = ortmulti.serve.app(repository)
        over = threading.Event()
        statuses = []

        def client() -> None:
            while not over.is_set():
                statuses.append(ask_json(app, INFER, {"inputs": [COUNT, ONES]})[0])

        threads = [threading.Thread(target=client) for _ in range(2)]
        for thread in threads:
            thread.start()
        for version in range(10):
            repository.load("simple", version=str(version))
        over.set()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200}


def test_a_token_is_needed_but_for_health(models: ortmulti.ModelRepository) -> None:
    app = ortmulti.serve.app(models, token="secret")
    assert ask(app, "/v2/health/ready")[0] == 200
    for authorization in ("", "Bearer", "Bearer secre", "secret", "Bearer secret "):
        assert ask(app, "/v2/models/simple", authorization=authorization)[0] == 401
        assert ask(app, "/metrics", authorization=authorization)[0] == 401
    for authorization in ("Bearer secret", "bearer secret", "BEARER   secret"):
        assert ask(app, "/v2/models/simple", authorization=authorization)[0] == 200
    assert ask(app, "/v2/models/simple/ready")[0] == 200  # a probe
    assert ask(app, "/v2/models/simple/versions/3/ready")[0] == 200
    for path in (
        "/v2/models/ready",
        "/v2/models/simple/versions/ready",
    ):  # metadata of a model, or version, of this name
        assert ask(app, path)[0] == 401


def test_more_requests_than_are_allowed_at_once_are_refused(models: ortmulti.ModelRepository) -> None:
    models.add("endless", ENDLESS, warmup=False)
    app = ortmulti.serve.app(models, limits=Limits(concurrent=1))
    endless = json.dumps({"inputs": tensors_of(endless_feed())}).encode()
    simple = json.dumps({"inputs": [COUNT, ONES]}).encode()

    async def run() -> None:
        held = asyncio.create_task(answer(app, "/v2/models/endless/infer", endless))
        while models["endless"].stats().devices[0].busy == 0:
            await asyncio.sleep(0)
        for path, body, status in ((INFER, simple, 503), ("/v2", None, 503), ("/v2/health/live", None, 200)):
            found = await answer(app, path, body)
            assert found[0] == status, (path, found)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held

    asyncio.run(run())
    models.remove("endless")
    assert ask(app, INFER, simple)[0] == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["inputs", "outputs", "name", "shape", "data", "datatype", "parameters", "id", "binary_data_size"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.binary(max_size=20), st.text("0123456789-x", max_size=4) | st.integers(0, 300).map(str))
def test_nothing_that_is_sent_is_a_fault_of_the_server(app: Application, value: Any, tail: bytes, length: str) -> None:
    body = json.dumps(value).encode()
    for header in (length, str(len(body))):
        status, _, answer = ask(app, INFER, body + tail, inference_header_content_length=header)
        assert status in (200, 400, 501), answer


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_no_tensor_that_is_sent_is_a_fault_of_the_server(app: Application, value: Any) -> None:
    tensor = {**X, **(value if isinstance(value, dict) else {"data": value})}
    status, answer = ask_json(app, INFER, {"inputs": [tensor, ONES]})
    assert status in (200, 400, 501), answer
