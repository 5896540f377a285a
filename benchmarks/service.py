"""How fast a web service over a pool answers, beside a handler without a model; and what SIGTERM under load loses.

Both are FastAPI applications under uvicorn on this machine: `examples/service.py` over a 0.3 MB MLP, and a handler
that parses the same body and answers as many bytes. In turns, 64 clients in another process send requests on
connections that stay open. The answers are compared with onnxruntime's after the timed part.

    pip install fastapi uvicorn uvloop httptools
    python -m benchmarks.service --json service.json

Exit status 1 if an answer is wrong or lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks import graphs
from benchmarks.servers import ROOT, Server
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.serve.clients import summarize

CLIENTS, BODIES = 64, 50
ANSWER = "BENCHMARK_ANSWER"
SERVICE, WITHOUT = "service", "without a model"
LOGGED = re.compile(r'"POST /predict HTTP/1\.1" 200')


def without_model() -> Any:
    """Make the other application; its answer for a row is given by the environment."""
    from fastapi import FastAPI
    from pydantic import create_model

    inputs = create_model("Request", inputs=(dict[str, list[Any]], ...))
    answer = json.loads(os.environ[ANSWER])
    app = FastAPI()

    async def predict(request: Any) -> dict[str, Any]:
        return {"outputs": [[answer] * len(request.inputs["x"])]}

    predict.__annotations__["request"] = inputs
    app.post("/predict")(predict)
    app.get("/readyz")(lambda: {"ready": True})
    return app


@dataclass
class Service(Script[str]):
    """The options of the command line."""

    kind, columns = "service", (
        Column("rate", "answers/s"),
        Column("p99", "p99, ms", scale=1e-3),
        Column("rate_over", "rate", summary=None),
        Column("p99_over", "p99", summary=None),
    )  # fmt: skip
    repeat: int = option(5, "rounds")
    seconds: float = option(5.0, "of each round")

    def cases(self, number: int = 0) -> Sequence[str]:
        return (SERVICE, WITHOUT)

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
        return {**super().run(progress), "SIGTERM": self._lost}

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))  # logs are read after the last round
        model = folder / "mlp.onnx"
        model.write_bytes(graphs.mlp())
        random = np.random.default_rng(0)
        inputs = [random.standard_normal((int(random.integers(1, 4)), 64)).astype(np.float32) for _ in range(BODIES)]
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        right = [session.run(None, {"x": x})[0].tolist() for x in inputs]
        self._bodies = [x.tolist() for x in inputs]
        self._expected = {SERVICE: right, WITHOUT: [[right[0][0]] * len(x) for x in inputs]}
        commands = {SERVICE: ["--app-dir", str(ROOT / "examples"), "service:app"],
                    WITHOUT: ["--factory", "benchmarks.service:without_model"]}  # fmt: skip
        environment = {"MODEL": str(model), "DEVICES": "cpu", ANSWER: json.dumps(right[0][0])}
        self._servers = {}
        for name, command in commands.items():
            line = r"running on http://127\.0\.0\.1:(\d+)"
            server = Server(["-m", "uvicorn", "--port", "0", *command], line, folder / name, environment)
            self.stack.callback(server.close)
            while asyncio.run(_ready(int(server.ready[1]))) != 200:
                time.sleep(0.05)
            self._servers[name] = server

    def _load(self, case: str, seconds: float) -> dict[str, Any]:
        port = int(self._servers[case].ready[1])
        return self.fresh({"port": port, "seconds": seconds, "bodies": self._bodies, "expected": self._expected[case]})

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return self._load(case, self.seconds)

    def rows(self, rounds: Sequence[Mapping[str, Json]]) -> list[dict[str, Any]]:
        self._lost = self._end()
        return super().rows(rounds)

    def _end(self) -> dict[str, int]:
        """End the service under load: count the answers that it logged, and those that clients got."""
        server = self._servers[SERVICE]
        before = len(LOGGED.findall(server.text()))
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(self._load, SERVICE, 60.0)
            while len(LOGGED.findall(server.text())) < before + 200 and not running.done():
                time.sleep(0.05)
            server.terminate()
            answered = running.result()["answers"]
        server.wait()
        logged = len(LOGGED.findall(server.text())) - before
        return {"logged": logged, "answered": answered, "lost": logged - answered}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
        return {f"{key}_over": self.over(case, WITHOUT, rounds, key) for key in ("rate", "p99")}

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        wrong = measurement.get("wrong", 0) + measurement.get("refused", 0)
        return [*super().complaints(measurement), *([f"{wrong} wrong answers"] if wrong else [])]

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        lost = document["SIGTERM"]["lost"]
        return [*super().failures(document), *([f"SIGTERM lost {lost} answers"] if lost else [])]


async def _ready(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head[9:12])


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Be the clients, for so long or until the server closes their connections; in this process."""
    requests = []
    for rows in spec["bodies"]:
        body = json.dumps({"inputs": {"x": rows}})
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        requests.append(f"{head}\r\n\r\n{body}".encode())
    latencies: list[float] = []
    answers: list[tuple[int, int, bytes]] = []

    async def ask(number: int, stop: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", spec["port"])
        try:
            while time.perf_counter() < stop:
                number = (number + 7) % len(requests)
                begin = time.perf_counter()
                writer.write(requests[number])
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                body = await reader.readexactly(int(length[1])) if length else b""
                latencies.append(time.perf_counter() - begin)
                answers.append((number, int(head[9:12]), body))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def ask_all() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(ask(number, begin + spec["seconds"]) for number in range(CLIENTS)))
        return time.perf_counter() - begin

    taken = asyncio.run(ask_all())
    good = [(number, json.loads(body)["outputs"][0]) for number, status, body in answers if status == 200]
    latency = summarize(latencies or [0.0])
    assert latency is not None
    return {
        "rate": len(good) / taken,
        "p99": latency["p99"],
        "answers": len(good),
        "refused": len(answers) - len(good),
        "wrong": sum(not np.allclose(answer, spec["expected"][number], atol=1e-4) for number, answer in good),
    }


if __name__ == "__main__":
    sys.exit(script.main(Service))
