"""How fast a web service over a pool answers, beside a handler without a model; and what SIGTERM under load loses.

Both are FastAPI applications under uvicorn on this machine: `examples/service.py` over a 0.3 MB MLP, and a handler
that parses the same body and answers as many bytes. In turns, 64 clients in another process send requests on
connections that stay open. The answers are compared with onnxruntime's after the timed part.

    pip install fastapi uvicorn uvloop httptools
    python -m benchmarks.service --json service.json

Exit status 1 if an answer is wrong or lost, or with --check if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.feeding import compare, mlp, show
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import measure_rounds, ratios

CLIENTS, BODIES = 64, 50
LEAST_RATE, MOST_P99 = 0.9, 1.5
ROOT = Path(__file__).resolve().parents[1]
ANSWER = "BENCHMARK_ANSWER"


def without_model() -> Any:
    """The other application; its answer for a row is given by the environment."""
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


class Server:
    """An application under uvicorn, in a process of its own, which logs each request."""

    def __init__(self, application: Sequence[str], environment: dict[str, str], directory: Path) -> None:
        self._log = directory / f"{application[-1].replace(':', '-')}.log"
        command = [sys.executable, "-m", "uvicorn", "--port", "0", *application]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path, **environment}
            )
        self.port = int(self._wait_for(r"running on http://127\.0\.0\.1:(\d+)")[1])
        self.wait_ready()

    def _wait_for(self, pattern: str) -> re.Match[str]:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and self._process.poll() is None:
            if found := re.search(pattern, self._log.read_text()):
                return found
            time.sleep(0.05)
        raise RuntimeError(f"uvicorn did not start:\n{self._log.read_text()}")

    def wait_ready(self) -> None:
        """Wait until the application takes requests."""
        give_up = time.monotonic() + 60
        while asyncio.run(_ask_ready(self.port)) != 200:
            if time.monotonic() > give_up:
                raise RuntimeError(f"the service is not ready:\n{self._log.read_text()}")
            time.sleep(0.05)

    def logged(self) -> int:
        """How many predictions uvicorn has logged as answered."""
        return len(re.findall(r'"POST /predict HTTP/1\.1" 200', self._log.read_text()))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End it, if it has not ended."""
        self.terminate()
        self._process.wait(60)


async def _ask_ready(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head[9:12])


@dataclass
class Load:
    """What clients measured."""

    rate: float
    p99: float
    answers: int
    refused: int
    wrong: int


def drive(port: int, seconds: float, requests: list[bytes], expected: list[list[list[float]]]) -> Load:
    """Have clients ask for so long, or until the server closes their connections; called in another process."""
    latencies: list[float] = []
    answers: list[tuple[int, int, bytes]] = []

    async def ask(number: int, stop: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
        await asyncio.gather(*(ask(number, begin + seconds) for number in range(CLIENTS)))
        return time.perf_counter() - begin

    taken = asyncio.run(ask_all())
    good = [(number, body) for number, status, body in answers if status == 200]
    wrong = sum(not np.allclose(json.loads(body)["outputs"][0], expected[number], atol=1e-4) for number, body in good)
    p99 = float(np.percentile(latencies, 99)) if latencies else 0.0
    return Load(len(good) / taken, p99, len(good), len(answers) - len(good), wrong)


def measure(directory: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure both applications in turns, then end the first one under load."""
    model = mlp(directory)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((int(rng.integers(1, 4)), 64)).astype(np.float32) for _ in range(BODIES)]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    expected = [session.run(None, {"x": x})[0].tolist() for x in inputs]
    constant = [[expected[0][0]] * len(x) for x in inputs]
    requests = [_request(x.tolist()) for x in inputs]
    named = {"MODEL": str(model), "DEVICES": "cpu"}
    names = ("service", "without a model")
    with ExitStack() as stack:
        clients = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        service = Server(["--app-dir", str(ROOT / "examples"), "service:app"], named, directory)
        stack.callback(service.close)
        other = Server(
            ["--factory", "benchmarks.service:without_model"], {ANSWER: json.dumps(expected[0][0])}, directory
        )
        stack.callback(other.close)

        def load(name: str, _: int) -> Load:
            server, answers = (service, expected) if name == "service" else (other, constant)
            return clients.submit(drive, server.port, seconds, requests, answers).result()

        found = measure_rounds(names, load, rounds)
        before = service.logged()
        running = clients.submit(drive, service.port, 60.0, requests, expected)
        while service.logged() < before + 200 and not running.done():
            time.sleep(0.05)
        service.terminate()
        ended = running.result()
        stack.pop_all().close()
        lost = service.logged() - before - ended.answers
    rates = [{name: load.rate for name, load in each.items()} for each in found]
    p99s = [{name: load.p99 * 1000 for name, load in each.items()} for each in found]
    report: dict[str, Any] = {
        "rates": show(f"{CLIENTS} clients", "answers a second", rates, names),
        "p99": show("99th percentile", "milliseconds", p99s, names),
    }
    for key, values, target, at_most in (("rates", rates, LEAST_RATE, False), ("p99", p99s, MOST_P99, True)):
        name = "service over without a model"
        compared = compare(name, ratios(values, "service", "without a model", float), target, at_most=at_most)
        report[key][name] = compared
    every = [load for each in found for load in each.values()] + [ended]
    report["wrong"] = sum(load.wrong + load.refused for load in every)
    report["SIGTERM"] = {"logged": ended.answers + lost, "answered": ended.answers, "lost": lost}
    print(f"\nSIGTERM under load: {ended.answers + lost} answers logged, {ended.answers} received, {lost} lost")
    return report


def _request(rows: list[list[float]]) -> bytes:
    body = json.dumps({"inputs": {"x": rows}}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each application (default: 5)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default: 5.0)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a target is missed")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as name:
        report = measure(Path(name), args.rounds, args.seconds)
    print(f"wrong answers: {report['wrong']}")
    if args.json:
        args.json.write_text(json.dumps({**report, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    missed = '"met": false' in json.dumps(report)
    return int(report["wrong"] > 0 or report["SIGTERM"]["lost"] > 0 or (args.check and missed))


if __name__ == "__main__":
    sys.exit(main())
