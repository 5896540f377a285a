"""Does `ortmulti serve` answer every request, right, whatever happens beside, and until the end?

    python -m benchmarks.serving --json serving.json

requests: --requests requests of --clients connections, a fourth of them over gRPC, while the model is replaced by one
    with other answers, back and forth, and another one is loaded and unloaded. Each answer must be that of the
    version that it names.
ends: --ends times, SIGTERM while --clients connections ask, a fourth of them over gRPC. The process must end with
    status 0, and each request that the server's access log has must have got its whole answer.
hostile: --hostile requests that were changed at random, of 8 connections, beside --idle connections that say nothing.
    Another client must be answered meanwhile, and the server's memory grow by less than --most-memory MB.
bodies: --bodies bodies of requests, of JSON and with binary tensors, that were changed at random, in one process
    without sockets. Each must be answered, or refused as the client's mistake.

But for the last one the server and the clients are processes of their own, on the CPU. Exit status 1 if something is
not so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.graphs import one_node
from benchmarks.servers import Server
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.script import Script, names, option

CASES = ("requests", "ends", "hostile", "bodies")
VERSIONS = {"1": "Neg(x)", "2": "Add(x, x)"}
HEAD = b"POST /v2/models/%s/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


def request(value: float, name: bytes = b"m") -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [value, -value]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return HEAD % (name, len(body)) + body


class Serve(Server):
    """`ortmulti serve` of a folder with the model m, whose version 1 negates and whose version 2 doubles."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        for version, operator in VERSIONS.items():
            self.add(version, operator)
        (folder / "other.onnx").write_bytes(one_node(VERSIONS["1"]))
        command = ["-m", "ortmulti.cli", "serve", str(folder), "--devices", "cpu", *arguments]
        command += ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--model-control", "explicit"]
        super().__init__(command, r"^listening: HTTP ([\d.]+):(\d+), gRPC (\S+)", folder / "log")
        self.wait_for("^ready")
        self.address, self.grpc = (self.ready[1], int(self.ready[2])), self.ready[3]

    def add(self, version: str, operator: str) -> None:
        path = self.folder / "m" / version / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one_node(operator))

    def remove(self, version: str) -> None:
        (self.folder / "m" / version / "model.onnx").unlink()


@contextlib.asynccontextmanager
async def connection(server: Serve) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*server.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer_to(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and JSON; an `IncompleteReadError` where the connection ended."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length
    body = await reader.readexactly(int(length[1]))
    return int(head[9:12]), json.loads(body) if body else None


def is_right(value: float, answer: Any) -> bool:
    """Whether an answer is that of its version."""
    factor = {"1": -1, "2": 2}[answer["model_version"]]
    return bool(answer["outputs"][0]["data"] == [factor * value, -factor * value])


async def http_client(server: Serve, count: int, found: Counter[str]) -> None:
    async with connection(server) as (reader, writer):
        for number in range(count):
            writer.write(request(number))
            status, answer = await answer_to(reader)
            found["answered" if status == 200 and is_right(number, answer) else f"wrong {status} {answer}"[:200]] += 1


async def grpc_client(server: Serve, count: int, found: Counter[str]) -> None:
    import grpc
    import numpy as np

    from benchmarks.messages import message

    asked = message("ModelInferRequest")(model_name="m")
    asked.inputs.add(name="x", datatype="FP32", shape=[2])
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=message("ModelInferRequest").SerializeToString,
            response_deserializer=message("ModelInferResponse").FromString,
        )
        for number in range(count):
            del asked.raw_input_contents[:]
            asked.raw_input_contents.append(np.array([number % 1000, -(number % 1000)], np.float32).tobytes())
            try:
                answer = await call(asked)
            except grpc.aio.AioRpcError as error:
                closed = error.code() is grpc.StatusCode.UNAVAILABLE
                found["closed, gRPC" if closed else f"wrong {error.code()} {error.details()}"] += 1
                return
            data = np.frombuffer(answer.raw_output_contents[0], np.float32).tolist()
            said = {"model_version": answer.model_version, "outputs": [{"data": data}]}
            found["answered by gRPC" if is_right(number % 1000, said) else f"wrong {said}"[:200]] += 1


async def control(server: Serve, found: Counter[str], over: asyncio.Event) -> None:
    """Replaces the model, and loads and unloads the other one, until it is over."""
    newest = 2
    async with connection(server) as (reader, writer):
        while not over.is_set():
            if newest == 2:
                server.remove("2")
            else:
                server.add("2", VERSIONS["2"])
            newest = 3 - newest
            for path in ("other/unload", "m/load", "other/load"):
                head = f"POST /v2/repository/models/{path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
                writer.write(head.encode())
                status, answer = await answer_to(reader)
                found["controlled" if status == 200 else f"wrong {status} {answer}"[:200]] += 1
            await asyncio.sleep(0.05)  # requests beside no load


async def requests_case(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    server = Serve(folder)
    found: Counter[str] = Counter()
    over = asyncio.Event()
    controlling = asyncio.create_task(control(server, found, over))
    over_grpc = spec["clients"] // 4
    each = spec["requests"] // spec["clients"]
    begin = time.perf_counter()
    await asyncio.gather(
        *(grpc_client(server, each, found) for _ in range(over_grpc)),
        *(http_client(server, each, found) for _ in range(spec["clients"] - over_grpc)),
    )
    taken = time.perf_counter() - begin
    over.set()
    await controlling
    status = server.close()
    answered = found["answered"] + found["answered by gRPC"]
    wrong = [text for text in found if text.startswith("wrong")]
    good = not wrong and status == 0 and answered == each * spec["clients"]
    return {**found, "seconds": round(taken, 1), "status": status, "right": good}


async def ends_case(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    for number in range(spec["ends"]):
        place = folder / str(number)
        place.mkdir()
        server = Serve(place, "--access-log")
        found: Counter[str] = Counter()

        async def until_the_end(server: Serve = server, found: Counter[str] = found) -> None:
            try:
                async with connection(server) as (reader, writer):
                    while True:
                        writer.write(request(1))
                        status, answer = await answer_to(reader)
                        found["answered" if status == 200 and is_right(1, answer) else "wrong"] += 1
            except asyncio.IncompleteReadError as error:
                found["cut off" if error.partial else "closed"] += 1
            except ConnectionError:
                found["closed"] += 1

        over_grpc = spec["clients"] // 4
        clients = [asyncio.create_task(until_the_end()) for _ in range(spec["clients"] - over_grpc)]
        clients += [asyncio.create_task(grpc_client(server, 1 << 40, found)) for _ in range(over_grpc)]
        while not found["answered"] or not found["answered by gRPC"]:
            await asyncio.sleep(0.01)  # the load has begun
        await asyncio.sleep(random.Random(number).uniform(0, 0.2))
        found["status 0"] += await asyncio.to_thread(server.close) == 0
        await asyncio.gather(*clients)
        found["logged"] = server.text().count("/infer 200 ")
        found["ends with all answers"] += found["logged"] == found["answered"]
        totals.update(found)
    wrong = totals["cut off"] or any(text.startswith("wrong") for text in totals)
    good = totals["status 0"] == totals["ends with all answers"] == spec["ends"] and not wrong
    return {**totals, "right": good}


def changed(sent: bytes, rng: random.Random) -> bytes:
    """The request with some of it replaced, doubled or left out."""
    data = bytearray(sent)
    for _ in range(rng.randint(1, 6)):
        at, size = rng.randrange(len(data) + 1), rng.randint(0, 8)
        kind = rng.randrange(5)
        if kind == 0:
            data[at : at + size] = rng.randbytes(size)
        elif kind == 1:
            del data[at : at + size]
        elif kind == 2:
            data[at:at] = data[at : at + size] * rng.randint(1, 50)
        elif kind == 3:
            data[at:at] = rng.choice(
                [b"999999999999999999", b"-1", b"[[[[", b"\x00", b"\r\n\r\n", b"\xff", b"../", b'":{"']
            )
        elif found := [each.span() for each in re.finditer(rb"\d+", data)]:
            begin, end = rng.choice(found)
            data[begin:end] = b"%d" % rng.choice([0, 1, 2**31, 2**63, 2**64, 10**30])
    return bytes(data)


async def hostile_case(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["idle"] + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    limits = folder / "server.toml"
    limits.write_text("limits = { receive = 0.5, idle = 600 }\n")
    place = folder / "models"
    place.mkdir()
    server = Serve(place, str(limits))
    process = psutil.Process(server.pid)
    found: Counter[str] = Counter()
    silent = contextlib.AsyncExitStack()
    for _ in range(spec["idle"]):
        await silent.enter_async_context(connection(server))
    before = process.memory_info().rss
    most = before
    over = asyncio.Event()

    async def honest() -> None:
        nonlocal most
        while not over.is_set():
            begin = time.perf_counter()
            await http_client(server, 1, found)
            found["honest, at most ms"] = max(found["honest, at most ms"], round((time.perf_counter() - begin) * 1e3))
            most = max(most, process.memory_info().rss)

    async def attack(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(spec["hostile"] // 8):
            try:
                async with connection(server) as (reader, writer):
                    writer.write(changed(request(rng.random()), rng))
                    if rng.random() < 0.5:
                        writer.write_eof()
                    status = (await asyncio.wait_for(reader.read(12), 5))[9:12].decode() or "closed"
            except ConnectionError:
                status = "closed"
            found[f"status {status}"] += 1

    watching = asyncio.create_task(honest())
    await asyncio.gather(*(attack(seed) for seed in range(8 * spec["seed"], 8 * spec["seed"] + 8)))
    over.set()
    await watching
    await silent.aclose()
    grown = (most - before) / 1e6
    status = server.close()
    # 501 and 505 are clients' mistakes: a transfer coding, or a version of HTTP, that nobody has.
    mistakes = {"status 501", "status 505"}
    wrong = [text for text in found.keys() - mistakes if text.startswith(("wrong", "status 5"))]
    good = not wrong and status == 0 and grown < spec["most_memory"]
    return {**found, "grown_mb": round(grown, 1), "status": status, "right": good}


async def ask(app: Any, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": headers}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def bodies_case(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    import ortmulti

    path = folder / "m.onnx"
    path.write_bytes(one_node(VERSIONS["1"]))
    rng = random.Random(spec["seed"])
    process = psutil.Process()
    found: Counter[str] = Counter()
    data = bytes(range(8))
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    plain = request(1.0).partition(b"\r\n\r\n")[2]
    with ortmulti.ModelRepository("cpu") as models:
        models.add("m", path)
        app = ortmulti.serve.app(models)
        before = 0
        for number in range(spec["bodies"]):
            body, headers = changed(plain, rng), []
            if number % 2:
                length = len(head) if rng.random() < 0.7 else rng.randint(-1, 200)
                body, headers = changed(head + data, rng), [(b"inference-header-content-length", b"%d" % length)]
            status, answer = await ask(app, headers, body)
            if status >= 500 and status != 501:
                found[f"wrong {status} {answer!r} {body!r} {headers}"[:500]] += 1
            found[f"status {status}"] += 1
            if number == spec["bodies"] // 10:
                before = process.memory_info().rss
    grown = (process.memory_info().rss - before) / 1e6
    good = not any(text.startswith("wrong") for text in found) and grown < spec["most_memory"]
    return {**found, "grown_mb": round(grown, 1), "right": good}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    cases = (requests_case, ends_case, hostile_case, bodies_case)
    case = dict(zip(CASES, cases, strict=True))[spec["case"]]
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(case(spec, Path(folder)))


@dataclass
class Serving(Script[str]):
    """The options of the command line."""

    kind, timeout = "serving", 7200.0
    which: tuple[str, ...] = option(CASES, "cases", names)
    requests: int = option(1_000_000, "of the case requests")
    clients: int = option(64, "connections")
    ends: int = option(200, "of the case ends")
    hostile: int = option(300_000, "of the case hostile")
    bodies: int = option(5_000_000, "of the case bodies")
    idle: int = option(5000, "connections that say nothing")
    most_memory: float = option(200.0, "MB")
    seed: int = option(0, "of what is changed at random")

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.which

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        return super().complaints(measurement) or ([] if measurement["right"] else ["something is not right"])


if __name__ == "__main__":
    sys.exit(script.main(Serving))
