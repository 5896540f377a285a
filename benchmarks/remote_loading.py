"""Models in an object store: how long a load takes, and how much memory, against a download and a load.

    weed server -ip=127.0.0.1 -s3 -dir=/tmp/store &
    export AWS_ENDPOINT=http://127.0.0.1:8333 AWS_ALLOW_HTTP=true AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any
    python -m benchmarks.remote_loading --url s3://bucket/prefix --megabytes 2000 --json remote.json

Without a URL the files are served here, over HTTP, by a process of its own. Otherwise the model is put into the store
first. Each case is a process of its own; rounds in turns:

    fetch: obstore alone reads the ranges of the model's data into memory, as many at a time as --at-once says
    file: `ortmulti.load` of the path, from the page cache
    store: `ortmulti.load` of the URL
    disk: obstore downloads the files, and `ortmulti.load` of the copy follows
    both: fetch, and then file, in one process that holds what was fetched: as much new memory as the store's

"memory" is the most of the process, sampled each 10 ms, beyond what it had before; "after" what it has when it is
ready. Exit status 1 if an answer differs by a bit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.servers import Server
from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.reports.tables import IN_MIB, Column
from ortmulti.bench.script import Script, names, option
from ortmulti.bench.serve.clients import sampled

CASES = ("fetch", "file", "store", "disk", "both")
RANGE = 8 << 20


class Ranges(BaseHTTPRequestHandler):
    """Files of a folder, in ranges, from the page cache."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        with (self.folder / Path(self.path).name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            begin, end = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.send_header("ETag", f'"{os.fstat(file.fileno()).st_mtime_ns:x}"')
            self.end_headers()
            while begin < end and self.command == "GET":
                begin += os.sendfile(self.connection.fileno(), file.fileno(), begin, end - begin)

    def do_HEAD(self) -> None:
        self.do_GET()


def serve(folder: str) -> None:
    """Serve a folder until the process ends."""
    Ranges.folder = Path(folder)
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def open_store(url: str) -> Any:
    from obstore.store import from_url

    allow = os.environ.get("AWS_ALLOW_HTTP", "") == "true" or url.startswith("http://")
    return from_url(url, client_options={"allow_http": allow, "timeout": "300s"})


def upload(url: str, files: Sequence[Path]) -> None:
    """Put files into a store that does not have them; a bucket of AWS_ENDPOINT is made."""
    import obstore

    endpoint = os.environ.get("AWS_ENDPOINT")
    if url.startswith("s3://") and endpoint:
        from urllib.request import Request, urlopen

        urlopen(Request(f"{endpoint}/{url.split('/')[2]}", method="PUT")).close()
    store = open_store(url)
    for file in files:
        try:
            if obstore.head(store, file.name)["size"] == file.stat().st_size:
                continue
        except FileNotFoundError:
            pass
        obstore.put(store, file.name, file, use_multipart=True)


def fetch(url: str, name: str, at_once: int) -> Any:
    """Read an object into memory, as a program with obstore would."""
    import obstore

    store = open_store(url)
    size = obstore.head(store, name)["size"]
    target = np.empty(size, np.uint8)

    def one(begin: int) -> None:
        body = obstore.get(store, name, options={"range": (begin, min(begin + RANGE, size))}).bytes()
        target[begin : begin + len(body)] = np.frombuffer(body, np.uint8)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(0, size, RANGE)))
    return target


def download(url: str, name: str, folder: Path) -> None:
    import obstore

    with (folder / name).open("wb") as file:
        for part in obstore.get(open_store(url), name).stream(min_chunk_size=RANGE):
            file.write(part)


def resident() -> int:
    return psutil.Process().memory_info().rss


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One case, in this process."""
    import ortmulti
    from ortmulti.create.sample_inputs import sample_inputs

    ortmulti.InferenceSession  # noqa: B018  (modules and ONNX Runtime are there)
    case, url, [model] = spec["case"], spec["url"], map(Path, spec["models"])
    data = Path(f"{model}.data")
    # A virtual machine's first touch of memory takes longer than all else: each case finds memory that was touched.
    np.ones((3 if spec["devices"] == "cpu" else 1) * data.stat().st_size, np.uint8)
    pool, held, before = None, [], resident()
    with tempfile.TemporaryDirectory(dir=model.parent) as folder, sampled(resident, 0.01) as most:
        begin = time.monotonic()
        if case in ("fetch", "both"):
            held.append(fetch(url, data.name, spec["at_once"]))
        if case != "fetch":
            place: str | Path = f"{url}/{model.name}" if case == "store" else model
            if case == "disk":
                for file in (model, data):
                    download(url, file.name, Path(folder))
                place = Path(folder, model.name)
            pool = ortmulti.load(str(place), spec["devices"], spec["sessions"])
        seconds = time.monotonic() - begin
    memory = {"memory": most[0] - before, "after": resident() - before}
    answers = set()
    if pool is not None:
        inputs = sample_inputs(pool.get_inputs(), seed=0)
        for session in pool.sessions:
            content = b"".join(each.tobytes() for each in session.run(None, inputs))
            answers.add(hashlib.sha256(content).hexdigest())
        pool.close()
    return {"seconds": seconds, **memory, "answers": sorted(answers)}


@dataclass
class RemoteLoading(Script[str]):
    """The options of the command line."""

    kind, columns, timeout = "remote loading", (
        Column("seconds", "s"),
        Column("memory", "memory, MiB", **IN_MIB),
        Column("after", "after, MiB", **IN_MIB),
        Column("over_both", "over both", summary=None),
        Column("over_disk", "over disk", summary=None),
    ), 3600.0  # fmt: skip
    url: str = option("", "a folder in a store (default: served here)")
    megabytes: int = option(2000, "of the model")
    devices: str = option("cpu", "device")
    sessions: int = option(2, "on each device")
    at_once: int = option(16, "ranges at a time")
    which: tuple[str, ...] = option(CASES, "cases", names)
    repeat: int = option(5, "rounds")

    def __post_init__(self) -> None:
        self.models = [models.make("matmul", script.MODELS, megabytes=self.megabytes).resolve()]

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.which

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        [model] = self.models
        data = Path(f"{model}.data")
        shutil.copyfile(data, os.devnull)  # into the page cache
        self._url = self.url
        if self.url:
            upload(self.url, [model, data])
        else:
            code = f"from benchmarks.remote_loading import serve; serve({str(model.parent)!r})"
            server = Server(["-c", code], r"^http://\S+$", folder / "log")
            self.stack.callback(server.close)
            self._url = server.ready[0]

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return self.fresh({"case": case, "url": self._url})

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
        return {f"over_{base}": self.over(case, base, rounds, "seconds") for base in ("both", "disk")}

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        answers = {answer for one in document["measurements"] for answer in one.get("answers", ())}
        return [*super().failures(document), *(["answers differ"] if len(answers) > 1 else [])]


if __name__ == "__main__":
    sys.exit(script.main(RemoteLoading))
