"""How fast do the weights get to the GPUs, and how much memory do several sessions of one GPU take?

Loading: in one process, whose contexts are there after a first load, in turns: copying from one pinned buffer to the
first GPU, which is as fast as anything can get there; and loading the model on all GPUs from a warm page cache. From
each load's timeline come the rate of file to first GPU, and how much later the last GPU holds the weights.

Memory: in fresh processes with the context there, the GPU's free memory before the sessions are created and after each
has run once, with ortmulti's one session and four, and onnxruntime's one.

    python benchmarks/weight_loading.py model.onnx --devices all --out loading.json

Exit status 1 if a figure misses its limit. The cache of optimized models is a temporary one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import _core
from ortmulti.bench import models, strategies
from ortmulti.bench.measure import machine, page_cache
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import alternating, measure_rounds
from ortmulti.bench.strategies import SessionSettings

# Of the pinned buffer, of what it is copied to, and of what is copied for one figure.
BUFFER_BYTES = 256 << 20
TARGET_BYTES = 1 << 30
COPIED_BYTES = 8 << 30

LEAST_SHARE = 0.85
MOST_SECONDS_BEHIND = 0.030
MOST_MEMORY = 1.1
MOST_SECONDS_A_SESSION = 0.1

# The timeline's names: of reading the weights to the first device, and of a device's copying them from another.
LOAD, COPY = "load weights", "copy weights"


class Driver:
    """What the ceiling needs of the CUDA driver, by itself."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} failed: CUDA error {result}")


class PinnedCopy:
    """Copies one pinned buffer to a GPU, over and over."""

    def __init__(self, device: int) -> None:
        self._driver = driver = Driver()
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._buffer, self._target = ctypes.c_void_p(), ctypes.c_uint64()
        self._stream = ctypes.c_void_p()
        driver("cuInit", 0)
        driver("cuDeviceGet", ctypes.byref(handle), device)
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        driver("cuCtxSetCurrent", self._context)
        driver(
            "cuMemHostAlloc", ctypes.byref(self._buffer), ctypes.c_size_t(BUFFER_BYTES), ctypes.c_uint(1)
        )  # portable
        ctypes.memset(self._buffer, 1, BUFFER_BYTES)
        driver("cuMemAlloc_v2", ctypes.byref(self._target), ctypes.c_size_t(TARGET_BYTES))
        driver("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(1))  # waits for no other stream

    def seconds(self, size: int) -> float:
        """How long it takes to copy `size` bytes, rounded up to whole buffers; scaled to `size`."""
        self._driver("cuCtxSetCurrent", self._context)
        count = -(-size // BUFFER_BYTES)
        begin = time.perf_counter()
        for number in range(count):
            offset = number * BUFFER_BYTES % TARGET_BYTES
            target = ctypes.c_uint64(self._target.value + offset)
            self._driver("cuMemcpyHtoDAsync_v2", target, self._buffer, ctypes.c_size_t(BUFFER_BYTES), self._stream)
        self._driver("cuStreamSynchronize", self._stream)
        return (time.perf_counter() - begin) * size / (count * BUFFER_BYTES)

    def close(self) -> None:
        self._driver("cuCtxSetCurrent", self._context)
        self._driver("cuStreamDestroy_v2", self._stream)
        self._driver("cuMemFree_v2", self._target)
        self._driver("cuMemFreeHost", self._buffer)


def weight_bytes(model: Path) -> int:
    """Bytes of the weights that are shared."""
    return sum(weight.length for weight in _core.shareable_weights(str(model)).weights)


def loading_seconds(timeline: ortmulti.Timeline) -> dict[str, float]:
    """From the timeline of a load.

    Returns:
        Seconds: "load" (file to first device) and "behind" (from there until the last device holds the weights).
    """
    loads = [span for span in timeline.spans if span.name == LOAD]
    if not loads:
        why = "; ".join(timeline.not_shared) or "the timeline does not say why"
        raise RuntimeError(f"no weights were loaded to be shared: {why}")
    first = min(loads, key=lambda span: span.start_ns)
    ends = [span.end_ns for span in timeline.spans if span.name == LOAD or span.name.startswith(COPY)]
    return {"load": first.seconds, "behind": (max(ends) - first.end_ns) / 1e9}


def load_once(model: Path, devices: Sequence[str]) -> dict[str, Any]:
    """Loads the model and closes it.

    Returns:
        `loading_seconds`, "ready" (the whole creation) in seconds, and "timeline" as a table.
    """
    begin = time.monotonic_ns()
    with ortmulti.create_sessions(model, list(devices), strategy="shared") as sessions:
        ready = time.monotonic_ns()
        timeline = sessions.timeline
    return {**loading_seconds(timeline), "ready": (ready - begin) / 1e9, "timeline": timeline.table().splitlines()}


def measure_loading(model: Path, devices: Sequence[str], repeat: int) -> dict[str, Any]:
    """The ceiling and the loads, in turns."""
    size = weight_bytes(model)
    page_cache.warm([model, *page_cache.external_files(model)])
    first = load_once(model, devices)  # makes the model's entry in the cache and the contexts
    copy = PinnedCopy(int(devices[0].removeprefix("cuda:")))
    copy.seconds(TARGET_BYTES)
    both: dict[str, Callable[[], dict[str, Any]]] = {
        "ceiling": lambda: {"ceiling": COPIED_BYTES / copy.seconds(COPIED_BYTES)},
        "load": lambda: load_once(model, devices),
    }
    try:
        rounds = measure_rounds([*both], lambda name, _: both[name](), repeat, order=alternating)
    finally:
        copy.close()
    pairs = []
    for one in rounds:
        ceiling, rate = one["ceiling"]["ceiling"], size / one["load"]["load"]
        pairs.append({"ceiling": ceiling, "rate": rate, "share": rate / ceiling, **one["load"]})
    medians = {
        key: statistics.median(pair[key] for pair in pairs) for key in ("ceiling", "rate", "share", "behind", "ready")
    }
    return {"bytes": size, "devices": list(devices), "first": first, "pairs": pairs, "median": medians}


def memory_of(strategy: str, model: str, device: str, count: int) -> dict[str, Any]:
    """What sessions take of a GPU's memory; for a process of its own.

    Returns:
        "bytes" less free memory after the first run of each than before the creation, "creation" in seconds, and
        "sessions", the seconds of each in the order in which they were done.
    """
    index = int(device.removeprefix("cuda:"))
    settings = SessionSettings(intra_op_num_threads=1)
    with strategies.open_strategy(strategy, model, [device] * count, settings) as sessions:
        sessions.start()
        sessions.make_contexts()
        before, _ = _core.cuda_memory(index)
        creation = sessions.create()
        sessions.first_run(models.sample_inputs(model))
        after, _ = _core.cuda_memory(index)
    return {
        "strategy": strategy,
        "count": count,
        "bytes": before - after,
        "creation": creation.wall,
        "sessions": list(creation.sessions),
        "not_shared": creation.details.get("not_shared", []),
    }


def measure_memory(model: Path, device: str, repeat: int) -> dict[str, Any]:
    """Memory of one session and of four, and of onnxruntime's one, each in a process of its own and in turns."""
    cases = (("shared", 1), ("shared", 4), ("sequential", 1))

    def measure(case: tuple[str, int], _: int) -> dict[str, Any]:
        spec = json.dumps({"strategy": case[0], "model": str(model), "device": device, "count": case[1]})
        child = subprocess.run([sys.executable, __file__, "--child", spec], stdout=subprocess.PIPE, check=True)
        result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        return result

    rounds = measure_rounds(cases, measure, repeat, order=alternating)
    measured = [result for results in rounds for result in results.values()]

    def median(strategy: str, count: int, fact: str = "bytes") -> float:
        cases = [one[fact] for one in measured if (one["strategy"], one["count"]) == (strategy, count)]
        return float(statistics.median(cases))

    return {
        "measured": measured,
        "four_to_one": median("shared", 4) / median("shared", 1),
        "one_to_onnxruntime": median("shared", 1) / median("sequential", 1),
        # What each of three more adds to a creation: they are created side by side.
        "further_session": (median("shared", 4, "creation") - median("shared", 1, "creation")) / 3,
        # The longest that a thread was busy with one, beside the others and while the weights were loaded. The slowest
        # of several is left out as the one that pays for what they have in common.
        "slowest_further_session": max(
            seconds for one in measured if one["count"] > 1 for seconds in sorted(one["sessions"])[:-1]
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="an .onnx file")
    parser.add_argument("--devices", default="all", help="all (the default), or a list such as 0,1")
    parser.add_argument("--repeat", type=int, default=5, help="loads, each with a ceiling beside it (default: 5)")
    parser.add_argument("--memory-repeat", type=int, default=3, help="processes of each kind; 0 for none (default: 3)")
    parser.add_argument("--least-share", type=float, default=LEAST_SHARE, help="of the ceiling")
    parser.add_argument("--most-behind", type=float, default=MOST_SECONDS_BEHIND, help="seconds")
    parser.add_argument("--most-memory", type=float, default=MOST_MEMORY, help="four sessions' over one's")
    parser.add_argument("--most-seconds", type=float, default=MOST_SECONDS_A_SESSION, help="of each further session")
    parser.add_argument("--out", type=Path, help="where to write the result (default: to stdout)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        print(json.dumps(memory_of(**json.loads(args.child))))
        return 0
    if args.model is None:
        parser.error("name an .onnx file")
    devices = parse_devices(args.devices)
    if not devices[0].startswith("cuda:"):
        parser.error("this needs a GPU")
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as cache:
        os.environ["ORTMULTI_CACHE"] = cache
        loading = measure_loading(args.model, devices, args.repeat)
        memory = measure_memory(args.model, devices[0], args.memory_repeat) if args.memory_repeat else None
    median = loading["median"]
    missed = []
    if median["share"] < args.least_share:
        missed.append(f"loading reaches {median['share']:.1%} of the ceiling, not {args.least_share:.0%}")
    if median["behind"] > args.most_behind:
        missed.append(
            f"the last GPU holds the weights {median['behind']:.3f} s after the first, not {args.most_behind}"
        )
    if memory is not None:
        if memory["four_to_one"] > args.most_memory:
            missed.append(f"four sessions take {memory['four_to_one']:.3f} times the memory of one")
        if memory["one_to_onnxruntime"] > 1:
            missed.append(f"one session takes {memory['one_to_onnxruntime']:.3f} times the memory of onnxruntime's")
        if memory["further_session"] > args.most_seconds:
            missed.append(f"a further session adds {memory['further_session']:.3f} s")
    result = {
        "model": args.model.stem,
        "loading": loading,
        "memory": memory,
        "missed": missed,
        "machine": machine.describe(),
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
        print(
            f"ceiling {median['ceiling'] / 1e9:.1f} GB/s, loading {median['rate'] / 1e9:.1f} GB/s "
            f"({median['share']:.1%}); the last GPU {median['behind'] * 1e3:.1f} ms behind the first"
        )
        if memory is not None:
            print(
                f"memory: four sessions {memory['four_to_one']:.3f} of one, one {memory['one_to_onnxruntime']:.3f} of "
                f"onnxruntime's; a further session adds {memory['further_session']:.3f} s"
            )
    else:
        sys.stdout.write(text)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
