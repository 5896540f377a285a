"""`serve.app` and `serve.add_to` in a program of one's own: its event loops, forks, spans, memory and gRPC server."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti.serve.limits import Limits
from tests.serve.asgi import answer, ask_json, tensors_of
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, endless_feed
from tests.support.processes import check_child

SIMPLE = onnx_models.parsed("(float[n] x) => (float[n] y) { y = Neg(x) }").SerializeToString()
ASKED = {"inputs": tensors_of({"x": np.array([1, -2], np.float32)})}
INFER = "/v2/models/simple/infer"


@pytest.fixture
def models() -> Iterator[ortmulti.ModelRepository]:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("simple", SIMPLE, version="7")
        yield repository


def test_a_build_without_a_server_is_told() -> None:
    assert "this build of ortmulti has no server: nlohmann/json's or nghttp2's headers were" in check_child(
        """
        import ortmulti
        from ortmulti import _core

        for name in ("Front", "FrontCall", "FrontLimits", "json_rows", "to_grpc", "why_no_http2"):
            delattr(_core, name)
        try:
            ortmulti.serve.app(ortmulti.ModelRepository("cpu"))
        except ortmulti.errors.LibraryError as error:
            print(error)
        """
    )


def test_an_application_that_goes_leaves_no_thread(models: ortmulti.ModelRepository) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "ortmulti-serve-calls"}

    before = threads()
    app = ortmulti.serve.app(models)
    assert ask_json(app, INFER, ASKED)[0] == 200
    [thread] = threads() - before
    del app
    gc.collect()
    thread.join(HANG)
    assert not thread.is_alive()


def test_several_event_loops_may_ask_one_application(models: ortmulti.ModelRepository) -> None:
    app = ortmulti.serve.app(models)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.extend(ask_json(app, INFER, ASKED)[0] for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 200


def test_a_child_of_a_fork_may_serve_what_it_loads() -> None:
    assert check_child(
        """
        import os, sys, warnings
        import ortmulti
        from tests.serve.asgi import ask, ask_json
        from tests.serve.test_serve_app import ASKED, INFER, SIMPLE

        warnings.simplefilter("ignore", DeprecationWarning)  # newer Python's, about forks of processes with threads
        models = ortmulti.ModelRepository("cpu")
        app = ortmulti.serve.app(models)
        assert ask(app, "/v2/health/live")[0] == 200  # so that the parent has threads
        child = os.fork()
        if child == 0:
            models.add("simple", SIMPLE)
            print(ask_json(app, INFER, ASKED)[0], flush=True)
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask(app, "/v2/health/live")[0])
        """
    ).splitlines() == ["200", "0 200"]


def test_a_task_that_is_cancelled_ends_its_run(models: ortmulti.ModelRepository) -> None:
    models.add("endless", ENDLESS, warmup=False)
    app = ortmulti.serve.app(models)
    body = json.dumps({"inputs": tensors_of(endless_feed())}).encode()

    async def run() -> None:
        task = asyncio.create_task(answer(app, "/v2/models/endless/infer", body))
        while models["endless"].stats().devices[0].busy == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    while models["endless"].stats().devices[0].busy:
        pass


def test_a_client_that_goes_before_its_body_is_there_is_not_counted(models: ortmulti.ModelRepository) -> None:
    app = ortmulti.serve.app(models)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(_message: Any) -> None:
        pass

    asyncio.run(app({"type": "http", "method": "POST", "path": INFER, "headers": []}, receive, send))
    assert not app.service.answers


def test_nothing_is_computed_for_a_client_that_has_gone(models: ortmulti.ModelRepository) -> None:
    models.add("endless", ENDLESS, warmup=False)
    app = ortmulti.serve.app(models)
    messages = [{"type": "http.request", "body": json.dumps({"inputs": tensors_of(endless_feed())}).encode()}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        while models["endless"].stats().devices[0].busy == 0:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v2/models/endless/infer", "headers": []}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), HANG))
    while models["endless"].stats().devices[0].busy:
        pass
    assert not app.service.answers


@pytest.mark.parametrize("after", ["an error", "a message"])
def test_a_server_may_have_no_news_of_its_clients(models: ortmulti.ModelRepository, after: str) -> None:
    messages = [{"type": "http.request", "body": json.dumps(ASKED).encode()}]
    messages += [{"type": "http.request"}] * (after == "a message")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": INFER, "headers": []}
    asyncio.run(ortmulti.serve.app(models)(scope, receive, send))
    assert sent[0]["status"] == 200


def test_the_reason_of_a_failed_load_is_kept(
    models: ortmulti.ModelRepository, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(SIMPLE)
    models.add("m", file)
    app = ortmulti.serve.app(models, explicit=True)

    def index() -> tuple[str, str]:
        [found] = [one for one in ask_json(app, "/v2/repository/index", {})[1] if one["name"] == "m"]
        return found["state"], found["reason"]

    def load(what: str = "load") -> int:
        return ask_json(app, f"/v2/repository/models/m/{what}", {})[0]

    file.write_bytes(b"no model")
    with caplog.at_level("WARNING", "ortmulti.serve"):
        assert load() == 400
    assert "a client's load of the model 'm' failed: " in caplog.text
    state, reason = index()
    assert state == "READY", "the one from before is"
    assert "this is not an ONNX model" in reason
    assert (load("unload"), index()) == (200, ("UNAVAILABLE", "unloaded"))
    assert (load(), index()) == (400, ("UNAVAILABLE", reason))
    file.write_bytes(SIMPLE)
    assert (load(), index()) == (200, ("READY", ""))


def test_a_websocket_is_closed_with_a_reason(models: ortmulti.ModelRepository) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ortmulti.serve.app(models)({"type": "websocket", "path": "/v2"}, receive, send))
    assert [(each["type"], each["code"]) for each in sent] == [("websocket.close", 1003)]
    assert "only HTTP is served" in sent[0]["reason"]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"models": None}, ortmulti.InvalidType, "models is an ortmulti.ModelRepository, not None: for example"),
    ({"limits": {"body": 1}}, ortmulti.InvalidType, r"limits is a Limits or None, not .*serve.limits.Limits\(body="),
    ({"token": 5}, ortmulti.InvalidType, "token is a str or None, not int"),
    ({"token": ""}, ortmulti.InvalidArgument, "token is empty: give the token"),
    *(
        ({"token": token}, ortmulti.InvalidArgument, "token has a blank, a line's end or a control character")
        for token in ("a b", "ab\n", "a\nb", "a\x7f", "\t")
    ),
]


@pytest.mark.parametrize(("given", "error", "text"), WRONG)
def test_what_cannot_be_served_is_told_at_once(
    models: ortmulti.ModelRepository, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ortmulti.serve.app(**{"models": models, **given})


def test_the_memory_for_requests_is_limited(models: ortmulti.ModelRepository) -> None:
    app = ortmulti.serve.app(models, limits=Limits(memory=200_000))
    large = {"inputs": tensors_of({"x": np.ones(100_000, np.float32)})}
    for _ in range(2):
        status, answer = ask_json(app, INFER, large)
        assert (status, answer["error"][:27]) == (503, "the server has no memory le")
        assert ask_json(app, INFER, ASKED)[0] == 200
    small = ortmulti.serve.app(models, limits=Limits(json=10))
    assert ask_json(small, INFER, ASKED)[0] == 413


def test_a_model_that_is_loaded_again_is_asked_at_once(models: ortmulti.ModelRepository) -> None:
    app = ortmulti.serve.app(models)
    for version in ("7", "8", "9"):
        models.load("simple", version=version)
        assert ask_json(app, INFER, ASKED)[1]["model_version"] == version
        assert ask_json(app, f"/v2/models/simple/versions/{version}/infer", ASKED)[0] == 200
    assert ask_json(app, "/v2/models/simple/versions/8/infer", ASKED)[0] == 404
    models["simple"].replace_model(SIMPLE.replace(b"Neg", b"Abs"))
    assert ask_json(app, INFER, ASKED)[1]["outputs"][0]["data"] == [1, 2]
    models.remove("simple")
    assert ask_json(app, INFER, ASKED) == (404, {"error": "Request for unknown model: 'simple' is not found"})


def test_names_may_have_any_character() -> None:
    with ortmulti.ModelRepository("cpu") as models:
        models.add("grün %41?", SIMPLE)
        app = ortmulti.serve.app(models)
        for what, status in (("", 200), ("/ready", 200), ("/infer", 200), ("x/infer", 404)):
            found = ask_json(app, f"/v2/models/grün %41?{what}", ASKED if what.endswith("infer") else None)
            assert found[0] == status, (what, found)


# Spans.


def test_requests_have_the_spans_of_their_callers(models: ortmulti.ModelRepository) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    spans = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    ortmulti.otel.instrument(provider)
    try:
        app = ortmulti.serve.app(models)
        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        assert ask_json(app, INFER, ASKED, traceparent=parent)[0] == 200
        assert ask_json(app, INFER, ASKED)[0] == 200
        assert ask_json(app, INFER, {"inputs": []}, traceparent=parent)[0] == 400
    finally:
        ortmulti.otel.uninstrument()
    traced, alone, failed = spans.get_finished_spans()
    assert (traced.name, traced.context.trace_id, traced.parent.span_id) == (
        "ortmulti.run", int("1" * 32, 16), int("2" * 16, 16),
    )  # fmt: skip
    assert {name.removeprefix("ortmulti.") for name in traced.attributes} == {
        "model", "version", *ortmulti.RequestTiming._fields,
    }  # fmt: skip
    assert alone.parent is None
    assert "expected 1 inputs" in failed.status.description


# gRPC.


@pytest.fixture
def grpc() -> Any:
    return pytest.importorskip("grpc")


def in_server(grpc: Any, models: ortmulti.ModelRepository, work: Any, **options: Any) -> Any:
    """Run it with a channel to a server of `grpc.aio`."""

    async def run() -> Any:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        ortmulti.serve.add_to(server, models, **options)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return await asyncio.wait_for(work(channel), HANG)
        finally:
            await server.stop(None)

    return asyncio.run(run())


def test_the_service_may_be_added_to_a_server(grpc: Any, models: ortmulti.ModelRepository) -> None:
    from tests.serve.server import asked, message, rpc_of

    async def work(channel: Any) -> None:
        infer = rpc_of(channel, "ModelInfer")
        answer = await infer(asked("simple", "8"))
        assert (answer.id, answer.model_version, answer.outputs[0].name) == ("8", "7", "y")
        assert np.frombuffer(answer.raw_output_contents[0], np.float32) == [-5]
        with pytest.raises(grpc.aio.AioRpcError, match="Request for unknown model: 'nothing' is not found") as caught:
            await infer(asked("nothing"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await rpc_of(channel, "ServerReady")(message("ServerReadyRequest")())).ready
        described = await rpc_of(channel, "ModelMetadata")(message("ModelMetadataRequest")(name="simple"))
        assert described.inputs[0].datatype == "FP32"
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff")
        assert caught.value.code() is grpc.StatusCode.INTERNAL  # as of a server whose message it is

    in_server(grpc, models, work)


def test_what_cannot_be_added_to_a_server_is_told_at_once(grpc: Any, models: ortmulti.ModelRepository) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as executor, pytest.raises(ortmulti.InvalidType, match=r"make it with grpc.aio.server"):
        ortmulti.serve.add_to(grpc.server(executor), models)
    for given, error, text in WRONG:
        with pytest.raises(error, match=text):
            ortmulti.serve.add_to(None, **{"models": models, **given})


def test_a_stream_of_a_server_answers_each_request(grpc: Any, models: ortmulti.ModelRepository) -> None:
    from tests.serve.server import asked, rpc_of

    async def requests() -> AsyncIterator[Any]:
        for model in ("simple", "nothing", "simple"):
            yield asked(model, model)

    async def work(channel: Any) -> list[Any]:
        return [answer async for answer in rpc_of(channel, "ModelStreamInfer")(requests())]

    first, wrong, last = in_server(grpc, models, work)
    assert (first.error_message, last.error_message) == ("", "")
    assert wrong.error_message == "Request for unknown model: 'nothing' is not found"
    assert [each.infer_response.id for each in (first, wrong, last)] == ["simple", "nothing", "simple"]


def test_a_server_asks_for_the_token(grpc: Any, models: ortmulti.ModelRepository) -> None:
    from tests.serve.server import asked, message, rpc_of

    async def work(channel: Any) -> None:
        for name, request in (
            ("ModelInfer", asked()),
            ("ModelMetadata", message("ModelMetadataRequest")(name="simple")),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="a token is needed") as caught:
                await rpc_of(channel, name)(request, metadata=(("authorization", "Bearer secre"),))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await rpc_of(channel, name)(request, metadata=(("authorization", "Bearer secret"),))
        stream = rpc_of(channel, "ModelStreamInfer")()
        with pytest.raises(grpc.aio.AioRpcError, match="a token is needed"):  # before a request
            await stream.read()
        assert (await rpc_of(channel, "ServerLive")(message("ServerLiveRequest")())).live

    in_server(grpc, models, work, token="secret")
