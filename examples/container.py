"""A process for a container: it answers probes while it loads, takes requests from the first ready device on, and ends
cleanly on SIGTERM. Standard library only; a request is a POST of float32 values as bytes, one row after another.

python examples/container.py model.onnx [port]
"""

from __future__ import annotations

import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import ortmulti as om


class Handler(BaseHTTPRequestHandler):
    pool: om.Pool

    def do_GET(self) -> None:
        if self.path == "/livez":  # the process works; a slow load must not have it killed
            self.answer(200, b"alive\n")
        elif self.path == "/readyz":  # at least one device takes requests
            ready = [] if self.pool.closed else self.pool.ready
            self.answer(200 if ready else 503, f"ready: {' '.join(ready)}\n".encode())
        elif self.path == "/metrics":
            self.answer(200, self.pool.stats().prometheus().encode())
        else:
            self.answer(404, b"")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.answer(200, self.run_model(content))
        except (om.ClosedError, om.DeadlineExceeded, om.DeviceError) as error:  # the service's state
            self.answer(503, str(error).encode())
        except ValueError as error:  # the client's mistake: not whole rows, or InvalidArgument
            self.answer(400, str(error).encode())

    def run_model(self, content: bytes) -> bytes:
        if not self.pool.ready:
            raise om.DeviceError("no device is ready yet: ask /readyz")
        value = self.pool.get_inputs()[0]
        rows = np.frombuffer(content, np.float32).reshape(-1, *value.shape[1:])
        [y, *_] = self.pool.run({value.name: rows}, timeout=10.0)
        return bytes(y.tobytes())

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main(model: str, port: str = "8000") -> None:
    # Returns at once. Put the cache of optimized models on a volume: ORTMULTI_CACHE=/cache
    with om.load(model, devices="all", loading=om.Loading(wait="none"), warmup=True) as pool:
        Handler.pool = pool
        server = ThreadingHTTPServer(("", int(port)), Handler)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()
    print("closed")


if __name__ == "__main__":
    main(*sys.argv[1:3])
