"""Servers with several worker processes: CUDA starts in each worker, and never before it was forked."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import fake_driver, onnx_models
from tests.support.processes import check_child, child_environment

FORKED = """
    import os, sys
    import ortmulti

    {before}
    children = [os.fork() for _ in range(1)]
    if children == [0]:
        ortmulti.prewarm(["cuda:1", "cuda:0"])
        with ortmulti.load(sys.argv[1], "cpu") as pool:
            print(pool.run(None, {{"x": [[1.0] * 64]}})[0].shape, flush=True)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""


def test_a_forked_worker_starts_the_driver(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.matmul())
    driver = fake_driver.build(tmp_path)
    assert check_child(FORKED.format(before=""), model, environment=driver.environment) == "(1, 64)\n0\n"
    assert driver.calls[:3] == ["init 0", "context 1", "context 0"]


def test_a_driver_started_before_the_fork_is_an_error_in_the_worker(tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    code = """
        import os, sys
        import ortmulti

        ortmulti.prewarm("cuda:0")
        while not ortmulti._core.cuda_has_context(0):
            os.sched_yield()
        child = os.fork()
        if child == 0:
            try:
                ortmulti.prewarm("cuda:0")
            except ortmulti.ForkError as error:
                print("forked after its parent had started CUDA" in str(error), flush=True)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert check_child(code, environment=driver.environment) == "True\n0\n"


APPLICATION = """
    import os
    import ortmulti

    ortmulti.prewarm()  # at the import, which is in the worker

    async def app(scope, receive, send):
        global pool
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                if message["type"] == "lifespan.startup":
                    pool = ortmulti.load(os.environ["MODEL"], "cpu")
                else:
                    pool.close()
                await send({"type": message["type"] + ".complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        [y] = await pool.run_async(None, {"x": [[1.0] * 64]})
        body = f"{os.getpid()} {y.shape}".encode()
        headers = [(b"connection", b"close"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
"""


class _Connection(http.client.HTTPConnection):
    """One over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


def _ask(path: Path) -> tuple[int, str]:
    with contextlib.closing(_Connection(path)) as connection:
        connection.request("GET", "/")
        process, _, shape = connection.getresponse().read().decode().partition(" ")
        return int(process), shape


def test_each_worker_of_uvicorn_starts_the_driver(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    (tmp_path / "application.py").write_text(textwrap.dedent(APPLICATION))
    (tmp_path / "model.onnx").write_bytes(onnx_models.matmul())
    driver = fake_driver.build(tmp_path)
    address, log = tmp_path / "socket", tmp_path / "log"
    environment = child_environment({**driver.environment, "MODEL": str(tmp_path / "model.onnx")})
    command = [sys.executable, "-m", "uvicorn", "application:app", "--app-dir", str(tmp_path)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--workers", "2", "--uds", str(address)],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while log.read_text().count("Application startup complete") < 2:
            assert server.poll() is None, log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.05)
        answers = {_ask(address) for _ in range(100)}
        assert {shape for _, shape in answers} == {"(1, 64)"}
        assert driver.calls.count("init 0") == 2
        assert sorted(call for call in driver.calls if call.startswith("context")) == sorted(
            f"context {gpu}" for gpu in range(3) for _ in range(2)
        )
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    assert "Traceback" not in log.read_text()
    for process, _ in answers:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
