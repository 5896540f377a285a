"""gunicorn's workers on one GPU that share their weights: memory, answers a second, kills, and a restart.

    pip install gunicorn uvicorn uvicorn-worker
    python -m benchmarks.shared_workers --json workers.json

Threads ask over HTTP all the time. Each answer is compared with that of a process which loaded the model for itself:
"error" is the largest difference, as a share of the largest number; CUDA graphs have other last bits. What they had
asked a process that was killed they ask again ("broken off").

workers: GPU memory and answers a second of one worker, of --workers, and of as many with share="host"; with as many
    sessions as the pool finds good, or with in_flight=2, as in all that follows
kills: --kills workers are killed (SIGKILL): in turns the oldest and the newest, which mostly still loads, as soon as
    another one has answered
restart: --restarts times a service of one worker gives way to a new one: this starts, gets the requests once it
    answers, and the old one gets SIGTERM. No request may fail

Exit status 1 if an answer is wrong by more than 1e-3, a request of a restart failed, or memory or files are left.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.servers import Server, free_port
from benchmarks.shared_weights import SIZES, encoder, used
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.script import Script, option
from ortmulti.bench.serve.clients import sampled

APP = """
import json
import os
import numpy as np
import ortmulti

pool = None

async def app(scope, receive, send):
    global pool
    if scope["type"] == "lifespan":
        await receive()
        pool = ortmulti.load(os.environ["MODEL"], os.environ["DEVICE"], **json.loads(os.environ["OPTIONS"]))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        pool.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            break
    ids = np.frombuffer(body, np.int64)[None]
    [answer] = await pool.run_async(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    body = answer.tobytes()
    headers = [(b"content-length", b"%d" % len(body)), (b"process", b"%d" % os.getpid())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""

TOKENS = (8, 32, 100)
BODIES = [np.arange(1, tokens + 1, dtype=np.int64).tobytes() for tokens in TOKENS]

SHARED = {"share": "host", "in_flight": 2}

EXPECTED = """
import sys
import numpy as np
import ortmulti

with ortmulti.load(*sys.argv[1:3]) as pool:
    for tokens in map(int, sys.argv[3:]):
        ids = np.arange(1, tokens + 1, dtype=np.int64)[None]
        [answer] = pool.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        print(answer.tobytes().hex())
"""


class Service(Server):
    """gunicorn with workers."""

    def __init__(self, folder: Path, model: str, device: str, workers: int, options: dict[str, Any]) -> None:
        self.port = free_port()
        environment = {"MODEL": model, "DEVICE": device, "OPTIONS": json.dumps(options)}
        environment["ORTMULTI_SHARE_DIR"] = str(folder / "share")
        given = f"-w {workers} -b 127.0.0.1:{self.port} -k uvicorn_worker.UvicornWorker --timeout 120"
        command = ["-m", "gunicorn", "--chdir", str(folder), *given.split(), "--log-level", "critical", "app:app"]
        super().__init__(command, "", folder / f"log-{self.port}", environment)
        self._killed: set[int] = set()

    def workers(self) -> list[int]:
        """Return the processes from the oldest on, without those that were killed."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return sorted({int(child) for child in children.split()} - self._killed)

    def kill(self, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        self._killed.add(worker)


def difference(answer: bytes, expected: bytes) -> float:
    if len(answer) != len(expected):
        return 1.0
    one, other = np.frombuffer(answer, np.float32), np.frombuffer(expected, np.float32)
    return float(np.abs(one - other).max() / np.abs(other).max())


class Load:
    """Threads that ask the service which `port` names at that moment."""

    def __init__(self, expected: list[bytes], clients: int, port: int) -> None:
        self.port, self.expected = port, expected
        self.changed = threading.Condition()
        self.answered: dict[int, int] = {}  # by each process
        self.asking: dict[int, int] = {}  # of each port
        self.wrong = self.broken = self.refused = 0
        self.error = 0.0
        self._stop = False
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        port, connection = 0, http.client.HTTPConnection("127.0.0.1")
        for count in itertools.count(number):
            with self.changed:
                if self._stop:
                    break
                now = self.port
                self.asking[now] = self.asking.get(now, 0) + 1
            if now != port or count % 50 == 0:  # others get connections, too
                connection.close()
                port, connection = now, http.client.HTTPConnection("127.0.0.1", now, timeout=60)
            kind = count % len(BODIES)
            process, error, refused, broken = 0, 0.0, False, False
            try:
                connection.request("POST", "/", BODIES[kind])
                response = connection.getresponse()
                answer = response.read()
                error = difference(answer, self.expected[kind]) if response.status == 200 else 1.0
                process = int(response.headers["process"] or 0)
            except ConnectionRefusedError:
                refused = True
            except (http.client.HTTPException, OSError):
                broken = True
            if refused or broken:
                connection.close()
            with self.changed:
                self.asking[now] -= 1
                self.error, self.wrong = max(error, self.error), self.wrong + (error > 1e-3)
                self.broken, self.refused = self.broken + broken, self.refused + refused
                if process:
                    self.answered[process] = self.answered.get(process, 0) + 1
                self.changed.notify_all()
            if refused:
                time.sleep(0.01)  # nobody listens yet
        connection.close()

    def wait(self, until: Callable[[], bool], seconds: float = 120) -> None:
        with self.changed:
            if not self.changed.wait_for(until, seconds):
                raise TimeoutError(f"no such answer in {seconds} s: {self.answered}, {self.broken} broken off")

    def total(self) -> int:
        with self.changed:
            return sum(self.answered.values())

    def close(self) -> None:
        with self.changed:
            self._stop = True
        for thread in self._threads:
            thread.join()


def workers(run: SharedWorkers, count: int, given: dict[str, Any]) -> dict[str, Any]:
    before = used()
    with closing(run.start(count, given)) as service, closing(Load(run.expected, run.clients, service.port)) as load:
        load.wait(lambda: len(load.answered) >= count)
        at_start, begin, done = used() - before, time.monotonic(), load.total()
        time.sleep(run.seconds)
        rate = (load.total() - done) / (time.monotonic() - begin)
        found = {"workers": count, "memory at the start": at_start, "memory": used() - before, "rate": rate}
        return {**found, "wrong": load.wrong, "error": load.error}


def kill(run: SharedWorkers) -> dict[str, Any]:
    begin, loading = time.monotonic(), 0
    with (
        closing(run.start(run.workers, SHARED)) as service,
        closing(Load(run.expected, run.clients, service.port)) as load,
        sampled(used, 0.005) as most,
    ):
        for count in range(run.kills):
            victim = 0

            def another(count: int = count) -> bool:
                nonlocal victim
                workers = service.workers()
                if len(workers) < run.workers:
                    return False
                answered = [worker for worker in workers if worker in load.answered]
                victim = answered[0] if answered and count % 2 else workers[-1]
                return answered not in ([], [victim])

            load.wait(another)
            loading += victim not in load.answered
            service.kill(victim)
        load.wait(lambda: sum(worker in load.answered for worker in service.workers()) == run.workers)
        seconds = time.monotonic() - begin
    return {
        "kills": run.kills,
        "of them while loading": loading,
        "seconds": seconds,
        "answers": load.total(),
        "processes that answered": len(load.answered),
        "broken off": load.broken,
        "wrong": load.wrong,
        "error": load.error,
        "most memory": most[0],
    }


def answers(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        try:
            connection.request("POST", "/", BODIES[0])
            return connection.getresponse().status == 200
        except OSError:
            return False


def restart(run: SharedWorkers) -> dict[str, Any]:
    before = used()
    ready: list[float] = []
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(closing(run.start(1, SHARED)))
        load = stack.enter_context(closing(Load(run.expected, run.clients, service.port)))
        load.wait(lambda: bool(load.answered))
        load.refused = 0  # those before the first answer
        alone = used() - before
        most = stack.enter_context(sampled(used, 0.005))
        for _ in range(run.restarts):
            begin = time.monotonic()
            new = stack.enter_context(closing(run.start(1, SHARED)))
            while not answers(new.port):
                time.sleep(0.01)
            ready.append(time.monotonic() - begin)
            with load.changed:
                load.port = new.port
            load.wait(lambda: load.asking[service.port] == 0)  # noqa: B023
            service.close()
            service = new
        load.close()
    return {
        "restarts": run.restarts,
        "answers": load.total(),
        "broken off": load.broken,
        "refused": load.refused,
        "wrong": load.wrong,
        "error": load.error,
        "memory of one": alone,
        "most memory": most[0] - before,
        "seconds until ready": float(np.median(ready)),
    }


@dataclass
class SharedWorkers(Script[str]):
    """The options of the command line."""

    kind = "shared workers"
    size: str = option("base", f"of the encoder: {', '.join(SIZES)}")
    device: str = option("cuda:0", "device")
    workers: int = option(4, "processes")
    clients: int = option(16, "threads that ask")
    seconds: float = option(5.0, "of a measurement")
    kills: int = option(200, "workers that are killed")
    restarts: int = option(5, "restarts")

    def cases(self, number: int = 0) -> Sequence[str]:
        return (*self._workers(), "kills", "restart")

    def _workers(self) -> dict[str, tuple[int, dict[str, Any]]]:
        return {
            "one": (1, {}),
            "one, in_flight=2": (1, {"in_flight": 2}),
            "each its own": (self.workers, {}),
            "shared": (self.workers, {"share": "host"}),
            "shared, in_flight=2": (self.workers, SHARED),
        }

    def run(self, progress: Callable[[int, int, str], None] | None = None) -> dict[str, Any]:
        before = used()
        document = super().run(progress)
        return {**document, "left": {"memory": used() - before, "files": self._files}}

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        (folder / "app.py").write_text(APP)
        (folder / "share").mkdir(mode=0o700)
        self._folder, self._model = folder, str(encoder(self.size))
        command = [sys.executable, "-c", EXPECTED, self._model, self.device, *map(str, TOKENS)]
        self.expected = [bytes.fromhex(line) for line in subprocess.check_output(command, text=True).split()]

    def start(self, workers: int, given: dict[str, Any]) -> Service:
        """Start gunicorn."""
        return Service(self._folder, self._model, self.device, workers, given)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        if case in ("kills", "restart"):
            found = (kill if case == "kills" else restart)(self)
        else:
            found = workers(self, *self._workers()[case])
        self._files = [path.name for path in (self._folder / "share").iterdir()]
        return found

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        wrong = measurement.get("wrong", 0)
        if measurement["case"] == "restart":
            wrong += measurement.get("broken off", 0) + measurement.get("refused", 0)
        return [*super().complaints(measurement), *([f"{wrong} wrong answers, or none"] if wrong else [])]

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        left = document["left"]
        stays = left["memory"] > 2**26 or left["files"]
        return [*super().failures(document), *([f"left: {left}"] if stays else [])]


if __name__ == "__main__":
    sys.exit(script.main(SharedWorkers))
