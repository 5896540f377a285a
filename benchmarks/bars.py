"""Five ratios beside onnxruntime, as a row of a history of commits; and whether one of them has dropped.

    taskset -c 0,1 python -m benchmarks.bars benchmarks/results/bars.jsonl

start: onnxruntime's creation of two sessions of resnet50 in a loop, over ours: `ortmulti bench create`.
feeding: rows a second of `Pool.map_rows`, over onnxruntime with the best of several chunks: `feeding`.
asyncio: answers a second of `Pool.run_async` with batching, over a batcher by hand over onnxruntime: `feeding`.
text: texts a second of `Batching(pad=...)`, over a batcher by hand over onnxruntime: `texts`.
serve: answers a second of `ortmulti serve`, over runs a second of onnxruntime, of one node.

Each is a median of rounds in which both sides take turns. A ratio has dropped if it is below the median of the last
rows of the same processor by 10% of it, and by three times their spread: the median of their distances from it. Exit
status 1 if one has; the row is added all the same.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.feeding import SMALL, open_session
from benchmarks.graphs import one_node
from benchmarks.serving import VERSIONS, Serve, request
from ortmulti.bench import script
from ortmulti.bench.measure.machine import describe_cpu
from ortmulti.errors import Fail

RATIOS = ("start", "feeding", "asyncio", "text", "serve")
DROP, SPREADS, LEAST, LAST = 0.1, 3, 5, 10  # the last two: rows that a ratio is compared with
ROUNDS, SECONDS, BURST = int(os.environ.get("ROUNDS", "7")), 1.0, 64  # of a way in a round; requests under way


def drops(before: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> list[str]:
    """Return a text for each ratio of a row that has dropped."""
    found = []
    for name in RATIOS:
        last = [one[name] for one in before if one["cpu"] == row["cpu"]][-LAST:]
        if len(last) >= LEAST:
            median = statistics.median(last)
            spread = statistics.median(abs(value - median) for value in last)
            if row[name] < median - max(DROP * median, SPREADS * spread):
                found.append(f"{name} is {row[name]:.3g}; the last {len(last)} rows have {median:.3g} ± {spread:.2g}")
    return found


def result(folder: Path, module: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a benchmark in a process of its own, and return the rows of its result."""
    path = folder / "result.json"
    command = [sys.executable, "-m", module, *arguments, "--repeat", str(ROUNDS), "--json", str(path)]
    subprocess.run(command, check=False, stdout=sys.stderr)  # some fail if a ratio is below 1
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"]
    if errors := [error for one in rows for error in one["errors"]]:
        raise Fail(f"{module}: {errors[0]}")
    return rows


def serve(folder: Path) -> float:
    """Return answers a second of the server over runs a second of onnxruntime."""
    theirs = partial(open_session(one_node(VERSIONS["2"])).run, None, {"x": np.array([1.0, -1.0], np.float32)})
    server = Serve(folder)
    with socket.create_connection(server.address) as client:

        def ask(count: int, size: int) -> bytes:
            client.sendall(request(1.0) * count)
            answers = client.recv(1 << 20)
            while len(answers) < size * count:
                answers += client.recv(1 << 20)
            return answers

        def rate(call: Callable[[], object], each: int) -> float:
            begin, done = time.perf_counter(), 0
            while time.perf_counter() < begin + SECONDS:
                call()
                done += each
            return done / (time.perf_counter() - begin)

        one = ask(1, 0)
        if not one.startswith(b"HTTP/1.1 200") or ask(2, len(one)) != one * 2:
            raise Fail(f"a wrong answer: {one!r}")
        ratios = [rate(lambda: ask(BURST, len(one)), BURST) / rate(theirs, 1) for _ in range(ROUNDS)]
    server.close()
    return statistics.median(ratios)


def measure(folder: Path) -> dict[str, float]:
    """Return the five ratios."""
    pair = ("--devices", "cpu*2", "--counts", "2", "--strategies", "sequential,shared")
    created = result(folder, "ortmulti.cli", "bench", "create", str(script.find_model("resnet50")), *pair)
    fed = result(folder, "benchmarks.feeding", "--parts", "rates,map", "--which", SMALL)
    over = {(one["of"], one["way"]): one["over"]["median"] for one in fed if one["over"]}
    texts = result(folder, "benchmarks.texts", "encoder", "--kinds", "serve", "--ways", "hand,padded")
    found = {
        "start": next(one["speedup"] for one in created if one["strategy"] == "shared"),
        "feeding": 1 / max(each for (of, way), each in over.items() if of == SMALL and "chunks" in way),
        "asyncio": over[f"{SMALL}, asyncio", "run_async, Batching"],
        "text": next(one["over_hand"]["median"] for one in texts if one["way"] == "padded"),
        "serve": serve(folder),
    }
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def main(history: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    commit, date = subprocess.check_output(["git", "log", "-1", "--format=%h %cs"], text=True).split()
    cpu = f"{describe_cpu()['model']}, {len(os.sched_getaffinity(0))} cores"
    row = {"commit": commit, "date": date, "cpu": cpu, "onnxruntime": onnxruntime.__version__, **found}
    rows = [json.loads(line) for line in history.read_text("utf-8").splitlines()] if history.exists() else []
    history.write_text("".join(f"{json.dumps(one)}\n" for one in (*rows, row)), "utf-8")
    dropped = [f"dropped: {one}" for one in drops(rows, row)]
    print(json.dumps(row), *dropped, sep="\n")
    return int(bool(dropped))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
