"""Measures how long a pool sleeps and wakes, what a sleeping pool keeps, and whether its answers stay the same.

Each round goes through the kinds of sleep in turns, beside a copy of as many bytes from pinned memory and a new session
of onnxruntime. Another experiment sleeps at random times while clients send requests.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import random
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti import _core
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.strategies import SessionSettings
from ortmulti.errors import Error, InvalidArgument, NoSuchFile
from ortmulti.interface.onnxruntime_sessions import create_session, open_package
from ortmulti.optimized import comparison, wait_for_entries

from . import fresh_process, page_cache, results
from .memory import process_memory
from .rounds import RoundsInterrupted, Spread, failure, measure_rounds

KINDS: dict[str, dict[str, Any]] = {"files": {}, "pinned": {"keep": "pinned"}, "session": {"level": "session"}}
"""The kinds of sleep, by their names, with the arguments of `Pool.sleep`."""

THREADS = 4
"""Clients of the random sleeps. Each has inputs of its own."""

SETTLED = 100
"""Random sleeps before the first look at the memory."""

_WARM_RUNS = 5
_LONGEST_PAUSE = 0.02


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a model in a process of its own.

    Args:
        spec: "model" (path), "device", "graphs", "batch" and "sequence" (see `sample_inputs`), "kinds" (of `KINDS`),
            and "experiment": "turns" with "repeat", or "random" with "sleeps".

    Returns:
        Of "turns":
            "seconds": lists of figures of each kind, of a pool that is "awake", of a "copy" from pinned memory, and of
                "onnxruntime".
            "memory": bytes on the "gpu" and the "host" by kind, beyond those from before the pool. "shared": what a
                first, closed pool has left there.
            "weights": bytes that a sleep of the weights gives back; None on the CPU.
            "different": number of differing answers by kind.
        Of "random": "slept", "woken", "answers", "different", and "memory" after `SETTLED` sleeps and at the end.
    """
    feeds = [sample_inputs(spec["model"], spec["batch"], spec["sequence"], seed) for seed in range(THREADS)]
    before = _memory(spec["device"])
    with _load(spec) as first:
        _warm(first, feeds[0])
    wait_for_entries()
    if spec["experiment"] == "random":
        return _random(spec, feeds)
    shared = _growth(before, _memory(spec["device"]))
    result = _turns(spec, feeds)
    return {**result, "memory": {**result["memory"], "shared": shared}}


def _load(spec: Mapping[str, Any], **more: Any) -> ortmulti.Pool:
    return ortmulti.load(spec["model"], spec["device"], cuda_graph=spec["graphs"], **more)


def _warm(pool: ortmulti.Pool, feed: Mapping[str, Any]) -> list[Any]:
    return [pool.run(feed) for _ in range(_WARM_RUNS)][-1]


def _memory(device: str) -> dict[str, int]:
    """Return the bytes in use on the GPU, if `device` is one, and those of this process in the host's memory."""
    gc.collect()
    found = {"host": process_memory().pss}
    if device != "cpu":
        free, total = _core.cuda_memory(_index(device))
        found["gpu"] = total - free
    return found


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {where: after[where] - before[where] for where in before}


def _index(device: str) -> int:
    return int(device.removeprefix("cuda:"))


def _turns(spec: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    device, feed, kinds = spec["device"], feeds[0], {name: KINDS[name] for name in spec["kinds"]}
    times: dict[str, dict[str, list[float]]] = {}
    different = dict.fromkeys(kinds, 0)

    def timed(row: str, figure: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        times.setdefault(row, {}).setdefault(figure, []).append(time.perf_counter() - begin)
        return result

    def turn(kind: str, how: Mapping[str, Any]) -> None:
        pool.sleep("session")  # frees the pinned copy, too
        _warm(pool, feed)
        timed("awake", "run", lambda: pool.run(feed))
        timed(kind, "first_sleep", lambda: pool.sleep(**how))
        answers = [pool.run(feed)]
        timed(kind, "sleep", lambda: pool.sleep(**how))
        answers.append(timed(kind, "request", lambda: pool.run(feed)))
        pool.sleep(**how)
        timed(kind, "wake", pool.wake)
        answers.append(timed(kind, "run", lambda: pool.run(feed)))
        different[kind] += _differing(answers, expected)

    def again() -> None:
        timed("onnxruntime", "wake", create).run(None, dict(feed))

    before = _memory(device)
    with _load(spec, in_flight=1) as pool:
        expected = _warm(pool, feed)
        memory = {"awake": _growth(before, _memory(device))}
        for kind, how in kinds.items():
            pool.sleep(**how)
            memory[kind] = _growth(before, _memory(device))
            pool.sleep("session")
            _warm(pool, feed)
        weights = max((memory["awake"]["gpu"] - memory[kind]["gpu"] for kind in kinds if kind != "session"), default=0)
        copy = _pinned_copy(_index(device), weights) if weights > 0 else None
        create = _onnxruntime(spec)
        for _ in range(spec["repeat"]):
            for kind, how in kinds.items():
                turn(kind, how)
            if copy:
                timed("copy", "wake", copy)
            timed("onnxruntime", "request", again)
    return {"weights": weights if copy else None, "seconds": times, "memory": memory, "different": different}


def _differing(answers: Sequence[list[Any]], expected: list[Any]) -> int:
    return sum(not comparison.same_bits(answer, expected) for answer in answers)


def _onnxruntime(spec: Mapping[str, Any]) -> Callable[[], Any]:
    settings = SessionSettings.side_by_side([spec["device"]], _core.usable_cores())
    session = settings.spec(spec["model"], spec["device"])
    package = open_package([session.device])
    return lambda: create_session(package, session)


def _pinned_copy(device: int, size: int) -> Callable[[], None]:
    """Return a copy of so many bytes from pinned memory to the GPU, by the driver: the lower bound of a wake."""
    driver = ctypes.CDLL("libcuda.so.1")
    source, target = ctypes.c_void_p(), ctypes.c_uint64()

    def call(name: str, *arguments: Any) -> None:
        _core.cuda_memory(device)  # makes its context this thread's
        if (result := getattr(driver, name)(*arguments, ctypes.c_size_t(size))) != 0:
            raise Error(
                f"{name} of {size} bytes failed with CUDA error {result}: is other memory of cuda:{device} free?"
            )

    call("cuMemAllocHost_v2", ctypes.byref(source))
    call("cuMemAlloc_v2", ctypes.byref(target))
    return lambda: call("cuMemcpyHtoD_v2", target, source)


def _random(spec: Mapping[str, Any], feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    [kind], sleeps = spec["kinds"], spec["sleeps"]
    moments = random.Random(0)
    answers = [0] * len(feeds)
    different = 0
    with _load(spec) as pool:
        expected = [_warm(pool, feed) for feed in feeds]

        def client(number: int, over: threading.Event) -> int:
            wrong = 0
            while not over.is_set():
                wrong += _differing([pool.run(feeds[number])], expected[number])
                answers[number] += 1
            return wrong

        def under_load(count: int) -> dict[str, int]:
            """Sleep so many times, and return the memory of the pool awake and without load."""
            nonlocal different
            over = threading.Event()
            with concurrent.futures.ThreadPoolExecutor(len(feeds)) as threads:
                clients = [threads.submit(client, number, over) for number in range(len(feeds))]
                try:
                    for _ in range(count):
                        time.sleep(moments.uniform(0.0, _LONGEST_PAUSE))
                        pool.sleep(**KINDS[kind])
                        if any(each.done() for each in clients):
                            break  # with an error
                finally:
                    over.set()
                different += sum(each.result() for each in clients)
            for feed in feeds:
                pool.run(feed)
            return _memory(spec["device"])

        settled = under_load(min(SETTLED, sleeps))
        end = under_load(max(0, sleeps - SETTLED))
        [device] = pool.stats().devices
    return {
        "slept": device.sleeps,
        "woken": device.wakes,
        "answers": sum(answers),
        "different": different,
        "memory": {"settled": settled, "end": end},
    }


def bench(
    models: Sequence[Path],
    device: str,
    *,
    kinds: Sequence[str] | None = None,
    graphs: bool = False,
    repeat: int = 10,
    sleeps: int = 0,
    batch: int = 1,
    sequence: int = 16,
    timeout: float = 1800.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Measure how models sleep and wake on a device, each in a process of its own.

    Args:
        models: .onnx files.
        device: "cpu" or "cuda:<index>".
        kinds: which of `KINDS`; None: all that the device has. The CPU has "session" alone.
        graphs: whether runs become CUDA graphs.
        repeat: rounds; each takes all kinds in turns.
        sleeps: sleeps of each kind at random times under load; 0: none.
        batch, sequence: see `sample_inputs`.
        timeout: seconds that one process may take.
        progress: called with the measurements done, their number, and the next one.

    Returns:
        A result of kind "sleep", see `ortmulti.bench.measure.results`; "partial" is "interrupted" after Ctrl-C.

    Raises:
        InvalidArgument: an unknown kind, one that the device does not have, or a number that is too small.
        NoSuchFile: a model does not exist.
    """
    on_cpu = device == "cpu"
    kinds = list(dict.fromkeys(kinds if kinds is not None else ["session"] if on_cpu else KINDS))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InvalidArgument(f"unknown kind of sleep {unknown[0]!r}: it is one of {', '.join(KINDS)}")
    if on_cpu and (graphs or kinds != ["session"]):
        what = "--graphs is" if graphs else f"the kinds {', '.join(kinds)} are"
        raise InvalidArgument(
            f"{what} not for the CPU, which sleeps at level 'session' alone: name a GPU, or leave it out"
        )
    for name, value, least in (("repeat", repeat, 1), ("random", sleeps, 0), ("batch", batch, 1)):
        if value < least:
            raise InvalidArgument(f"{name} is at least {least}, not {value}")
    for model in models:
        if not model.is_file():
            raise NoSuchFile(f"model {model} does not exist")
    shared = {"device": device, "graphs": graphs, "batch": batch, "sequence": sequence}
    experiments: list[tuple[str, dict[str, Any]]] = [
        ("in turns", {"experiment": "turns", "kinds": kinds, "repeat": repeat})
    ]
    if sleeps:
        experiments += [
            (f"random sleeps, {kind}", {"experiment": "random", "kinds": [kind], "sleeps": sleeps}) for kind in kinds
        ]
    cases = [(model, number) for model in models for number in range(len(experiments))]
    tell = progress or (lambda _done, _total, _text: None)

    def once(case: tuple[Path, int], _number: int) -> dict[str, Any]:
        spec = {"model": str(case[0]), **experiments[case[1]][1], **shared}
        try:
            with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
                cache = {"ORTMULTI_CACHE": folder}
                return {**spec, **fresh_process.run("ortmulti.bench.measure.sleep", spec, timeout, cache)}
        except fresh_process.MeasurementError as error:
            return {**spec, **failure(error)}

    def step(done: int, total: int, case: tuple[Path, int] | None) -> None:
        tell(done, total, f"{case[0].stem}, {experiments[case[1]][0]}" if case else "")

    partial: str | None = None
    try:
        rounds = measure_rounds(cases, once, 1, progress=step)
    except RoundsInterrupted as interrupt:
        rounds, partial = interrupt.rounds, "interrupted"
    measurements = [result for found in rounds for result in found.values()]
    return results.document(
        "sleep",
        settings={"repeat": repeat, "random": sleeps, "kinds": kinds, **shared, "timeout": timeout},
        models=[results.model_facts(model, page_cache.external_files(model)) for model in models],
        measurements=measurements,
        rows=[row for measurement in measurements for row in _rows(measurement)],
        partial=partial,
    )


def failures(document: Mapping[str, Any]) -> list[str]:
    """Return the errors and the differing answers, one text for each."""
    found = []
    for one in document["measurements"]:
        where = f"{Path(one['model']).stem} on {one['device']}, {', '.join(one['kinds'])}"
        if "error" in one:
            found.append(f"{where}: {one['error']}")
        elif wrong := sum(one["different"].values()) if one["experiment"] == "turns" else one["different"]:
            found.append(f"{where}: {wrong} answers differ from those before the first sleep")
    return found


def _rows(measurement: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each kind, and for what it is compared with; seconds as spreads."""
    if measurement["experiment"] != "turns" or "error" in measurement:
        return []
    rows = []
    seconds = measurement["seconds"]
    for kind in ("shared", "awake", *measurement["kinds"], "copy", "onnxruntime"):
        figures = seconds.get(kind, {})
        if not figures and kind not in measurement["memory"]:
            continue
        different = measurement["different"].get(kind)
        row: dict[str, Any] = {
            "model": measurement["model"],
            "kind": kind,
            "memory": measurement["memory"].get(kind),
            "equal": None if different is None else different == 0,
        }
        for figure in ("first_sleep", "sleep", "wake", "request", "run"):
            spread = Spread.of(figures.get(figure, ()))
            row[figure] = asdict(spread) if spread is not None else None
        rows.append(row)
    return rows
