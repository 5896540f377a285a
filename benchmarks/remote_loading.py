"""Models in an object store: how long a load takes, and how much memory, against a download and a load.

    weed server -ip=127.0.0.1 -s3 -dir=/tmp/store &
    export AWS_ENDPOINT=http://127.0.0.1:8333 AWS_ALLOW_HTTP=true AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any
    python -m benchmarks.remote_loading s3://bucket/prefix --megabytes 2000 --json remote.json

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

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.bench import models
from ortmulti.bench.measure import machine

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
    Ranges.folder = Path(folder)
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def open_store(url: str) -> Any:
    from obstore.store import from_url

    allow = os.environ.get("AWS_ALLOW_HTTP", "") == "true" or url.startswith("http://")
    return from_url(url, client_options={"allow_http": allow, "timeout": "300s"})


def upload(url: str, files: list[Path]) -> None:
    import obstore

    endpoint = os.environ.get("AWS_ENDPOINT")
    if url.startswith("s3://") and endpoint:
        from urllib.request import Request, urlopen

        urlopen(Request(f"{endpoint}/{url.split('/')[2]}", method="PUT")).close()  # the bucket
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


def child(case: str, options: argparse.Namespace) -> None:
    """The process of one case. It says when it begins, and waits for the answer of who samples its memory."""
    import ortmulti
    from ortmulti.create.sample_inputs import sample_inputs

    ortmulti.InferenceSession  # noqa: B018  (modules and ONNX Runtime are there)
    model, data = Path(options.model), Path(options.model + ".data")
    # A virtual machine's first touch of memory takes longer than all else: each case finds memory that was touched.
    np.ones((3 if options.devices == "cpu" else 1) * data.stat().st_size, np.uint8)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        answer = ""
        held: list[Any] = []
        if case in ("fetch", "both"):
            held.append(fetch(options.url, data.name, options.at_once))
        if case != "fetch":
            place: str | Path = f"{options.url}/{model.name}" if case == "store" else model
            if case == "disk":
                for file in (model, data):
                    download(options.url, file.name, Path(folder))
                place = Path(folder, model.name)
            pool = ortmulti.load(str(place), options.devices, options.sessions)
        seconds = time.monotonic() - begin
        print("loaded", flush=True)
        sys.stdin.readline()
        if case != "fetch":
            inputs = sample_inputs(pool.get_inputs(), seed=0)
            answers = {
                hashlib.sha256(b"".join(each.tobytes() for each in session.run(None, inputs))).hexdigest()
                for session in pool.sessions
            }
            answer = " ".join(sorted(answers))
            pool.close()
    print(json.dumps({"seconds": seconds, "answer": answer}), flush=True)


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(case: str, arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.remote_loading", *arguments, "--case", case]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None
        assert it.stdout is not None
        assert it.stdout.readline() == "ready\n"
        os.set_blocking(it.stdout.fileno(), False)
        before = most = resident(it.pid)
        it.stdin.write("\n")
        it.stdin.flush()
        line = ""
        while not line and it.poll() is None:
            most = max(most, resident(it.pid))
            time.sleep(0.01)
            line = it.stdout.readline()
        after = resident(it.pid)
        os.set_blocking(it.stdout.fileno(), True)
        it.stdin.write("\n")
        it.stdin.close()
        found: dict[str, Any] = json.loads(it.stdout.read())
    return found | {"memory": max(most, after) - before, "after": after - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="A folder in a store (default: served here).")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--folder", default="models")
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--sessions", type=int, default=2, help="On each device.")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-upload", action="store_true", help="The files are in the store.")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.folder)
    if options.case:
        child(options.case, options)
        return 0
    model = models.make("matmul", options.folder, megabytes=options.megabytes)
    data = Path(f"{model}.data")
    server = None
    if not options.url:
        command = [sys.executable, "-m", "benchmarks.remote_loading", "--serve", "--folder", options.folder]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        options.url = server.stdout.readline().strip() if server.stdout else ""
    elif not options.no_upload:
        upload(options.url, [model, data])
    arguments = [options.url, "--model", str(model), "--folder", options.folder, "--devices", options.devices]
    arguments += ["--sessions", str(options.sessions), "--at-once", str(options.at_once)]
    cases = options.cases.split(",")
    shutil.copyfile(data, os.devnull)  # into the page cache
    try:
        rounds = [{case: measure(case, arguments) for case in cases} for _ in range(options.rounds)]
    finally:
        if server is not None:
            server.kill()
    results: dict[str, Any] = {}
    for case in cases:
        found = [one[case] for one in rounds]
        row = {key: statistics.median(one[key] for one in found) for key in ("seconds", "memory", "after")}
        results[case] = row | {"longest": max(one["seconds"] for one in found)}
        rate = data.stat().st_size / row["seconds"] / 1e9
        print(
            f"{case:6} {row['seconds']:6.3f} s  {rate:5.2f} GB/s  {row['memory'] / 2**20:7,.0f} MiB, "
            f"{row['after'] / 2**20:,.0f} after",
            flush=True,
        )
    answers = {one[case]["answer"] for one in rounds for case in cases if case != "fetch"}
    if {"store", "both"} <= set(cases):
        shares = [one["store"]["seconds"] / one["both"]["seconds"] for one in rounds]
        results["store by both"] = statistics.median(shares)
        print(f"store by both: {results['store by both']:.2f}")
    if {"store", "disk"} <= set(cases):
        gains = [one["disk"]["seconds"] / one["store"]["seconds"] for one in rounds]
        results["disk by store"] = statistics.median(gains)
        print(f"disk by store: {results['disk by store']:.2f}")
    wrong = len(answers) > 1 or any(" " in answer for answer in answers)
    print("wrong" if wrong else "right")
    if options.json:
        report = {"bytes": data.stat().st_size, "results": results, "wrong": wrong, "machine": machine.describe()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
