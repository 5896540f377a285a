"""Weights that processes share: how long a load takes, and how much GPU memory there is.

    python -m benchmarks.shared_weights --json shared.json

Each load is a process of its own, from the call of `load` to its return; rounds in turns. Cases of each model:

    own: the process loads the weights itself, from the page cache
    held: another process has them (`ortmulti hold`)
    narrow: as own, of a graph with as many layers, which are 48 wide: what ONNX Runtime takes for such a graph

The model "tiny" has 19 MB of weights. "floor" is what the driver itself takes: cuInit and a context. Exit status 1 if
an answer differs by a bit, if weights were held and not mapped, or if the last process left memory.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ortmulti.bench import models
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.nvml import Nvml

# Layers and hidden size of encoders: BERT-base's, GPT-2 large's, and one of 15 GB.
SIZES = {"tiny": (1, 144), "base": (12, 768), "large": (36, 1280), "15 GB": (16, 4416)}

FLOOR = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
begin = time.monotonic()
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print(time.monotonic() - begin)
"""


def used() -> int:
    """Bytes of the first GPU's memory."""
    with Nvml.open() as nvml:
        gpu = nvml.gpus()[0]
        return int(gpu.memory_total - gpu.memory_free)


def load(model: str, share: bool) -> None:
    """The process of a load."""
    import ortmulti

    before = used()
    begin = time.monotonic()
    pool = ortmulti.load(model, "cuda:0", share="host" if share else None)
    seconds = time.monotonic() - begin
    memory = used() - before
    ids = np.arange(1, 33, dtype=np.int64)[None]
    [answer] = pool.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    names = [span.name for span in pool.timeline.spans]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "memory": memory,
                "answer": hashlib.sha256(answer.tobytes()).hexdigest(),
                "mapped": any(name.startswith("map weights of process") for name in names),
                "problems": [name for name in names if name.startswith("not shared")],
            }
        )
    )
    pool.close()


def in_process(model: str, share: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.shared_weights", "--load", model, *(["--share"] if share else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def held(model: str) -> Iterator[None]:
    command = [sys.executable, "-m", "ortmulti.cli", "hold", model, "--devices", "0"]
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered) as it:
        assert it.stdout is not None
        line = it.stdout.readline()
        print(line.strip() or f"it ended with {it.wait()}")
        try:
            yield
        finally:
            it.send_signal(signal.SIGTERM)
            it.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="tiny,base,large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load, options.share)
        return 0
    before = used()
    results: dict[str, Any] = {}
    wrong = False
    floor = [float(subprocess.check_output([sys.executable, "-c", FLOOR])) for _ in range(options.rounds)]
    results["floor"] = {"seconds": statistics.median(floor)}
    print(f"{'floor':16} {results['floor']['seconds']:.3f} s", flush=True)
    for size in options.sizes.split(","):
        layers, hidden = SIZES[size]
        model, narrow = (
            str(models.make("encoder", "models", layers=layers, hidden=width, precision="fp32"))
            for width in (hidden, 48)
        )
        expected = {path: in_process(path, False)["answer"] for path in (model, narrow)}  # and entries of the cache
        cases = {"own": (model, False), "held": (model, True), "narrow": (narrow, False)}
        with held(model):
            rounds = [{case: in_process(*cases[case]) for case in cases} for _ in range(options.rounds)]
        for case, (path, _) in cases.items():
            found = [one[case] for one in rounds]
            wrong |= any(one["answer"] != expected[path] or one["problems"] for one in found)
            wrong |= case == "held" and not all(one["mapped"] for one in found)
            row = {key: statistics.median(one[key] for one in found) for key in ("seconds", "memory")}
            results[f"{size}, {case}"] = row | {"longest": max(one["seconds"] for one in found)}
            print(f"{size + ', ' + case:16} {row['seconds']:.3f} s, {row['memory'] / 2**20:,.0f} MiB", flush=True)
            if problems := {text for one in found for text in one["problems"]}:
                print("   ", *problems)
    left = used() - before
    wrong |= left > 2**26
    print(f"left: {left / 2**20:,.0f} MiB; {'wrong' if wrong else 'right'}")
    if options.json:
        report = {"results": results, "left": left, "wrong": wrong, "machine": machine.describe()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
