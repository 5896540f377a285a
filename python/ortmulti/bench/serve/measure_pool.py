"""One measurement of a pool, or of onnxruntime as users write it, under load; in a process of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np

import ortmulti
from ortmulti import _core
from ortmulti._runtime import background
from ortmulti._runtime.closing import Closing
from ortmulti.bench.measure import outputs
from ortmulti.bench.measure.memory import figures, gpu_memory_used, process_tree, stat_fields
from ortmulti.bench.serve.clients import NANOSECONDS, ClosedLoop, arrival_times, ask_at, closed_loop, open_loop
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package
from ortmulti.bench.strategies.processes import SessionProcess
from ortmulti.create.sample_inputs import sample_inputs
from ortmulti.errors import Error, InvalidArgument
from ortmulti.values import floats

# Largest difference of two answers to the same inputs, as a part of the largest value: kernels may be chosen again.
_TOLERANCE = 0.1

_Asked = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""The requests that take turns: inputs, and further arguments of `Pool.run`."""


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Load a variant, warm it up, put load on it, and return the figures.

    Args:
        spec: "model" (path), "devices", "variant", "in_flight" (requests for each session, in a closed loop), "rate" (a
            second, of an open loop; None: a closed loop). "batch" and "sequence" of the inputs,
            "inputs" and "outputs" ("host" or "device"). "seconds", "warm_seconds", "seed" (of the arrivals),
            "intra_op_num_threads", "provider_options", "config_entries".

    Returns:
        The result of `clients.closed_loop` or `clients.open_loop`. Seconds: "window", "cpu_seconds" (in the window,
        with children), "cpu_per_request". Bytes: "peak_rss", "pss", "gpu_memory" (by device). "processes".
        "stats": a pool's by device, with the warm-up.

    Raises:
        Error: an answer differs from the same device's first answer, or nothing was measured.
    """
    used_before = gpu_memory_used()
    with _load(spec) as pool:
        on_device = spec["inputs"] == "device"
        feed = sample_inputs(pool.get_inputs(), spec["batch"], spec["sequence"])
        feeds = {device: _values(feed, device) if on_device else feed for device in dict.fromkeys(pool.devices)}
        more: dict[str, Any] = {"outputs": "device"} if spec["outputs"] == "device" else {}
        futures = [pool.submit(None, feeds[device], device=device, **more) for device in pool.devices]
        first, *others = [_arrays(future.result()) for future in futures]
        # Inputs on a device run there, others on any device.
        asked = [(each, {**more, "device": device} if on_device else more) for device, each in feeds.items()]
        result = (_closed if spec["rate"] is None else _open)(pool, asked, spec)
        for answer in (*others, *result.pop("last")):
            compare(first, _arrays(answer))
        memory = figures(used_before, spec["devices"])
        stats = [] if isinstance(pool, OnnxruntimeSessions) else pool.stats().devices
    requests = result["throughput"] * result["window"]
    return {
        **result,
        "cpu_per_request": result["cpu_seconds"] / requests if requests and result["cpu_seconds"] is not None else None,
        **memory,
        "stats": {device.device: asdict(device) for device in stats},
    }


_WAYS = ("core", "threads", "processes")

_SYNTAX = "core, threads or processes, then any of +sessions=N, and of core +in_flight=N, +graph, +graph=off"


def parse_variant(text: str) -> dict[str, Any]:
    """Return what a variant's name means, such as "threads", "core+graph" or "core+sessions=2+in_flight=1".

    Returns:
        "way": "core" is a pool, "threads" and "processes" are `OnnxruntimeSessions`. "sessions": on each device.
        Further arguments of `ortmulti.load`.

    Raises:
        InvalidArgument: the text is not a variant.
    """
    way, *parts = text.split("+")
    if way not in _WAYS:
        raise InvalidArgument(f"{text!r} is not a variant; one is {_SYNTAX}")
    found: dict[str, Any] = {"way": way, "sessions": 1}
    for part in parts:
        key, _, value = part.partition("=")
        if way == "core" and part in ("graph", "graph=off"):
            found["cuda_graph"] = part == "graph"
        elif (key == "sessions" or (way == "core" and key == "in_flight")) and value.isdecimal() and int(value) >= 1:
            found[key] = int(value)
        else:
            raise InvalidArgument(f"{text!r}: {part!r} is not an option of {way}; a variant is {_SYNTAX}")
    return found


class OnnxruntimeSessions(Closing):
    """Sessions of onnxruntime, in this process or each in one of its own, and a thread for each. They take requests in
    their order.

    Callers that took a free session themselves would not: who gives one back takes it again before a waiting thread has
    the GIL, and the others wait for ever.

    Attributes:
        devices: the device of each session.
    """

    def __init__(self, model: str, devices: Sequence[str], settings: SessionSettings, *, apart: bool) -> None:
        self.devices = devices
        self._threads = ThreadPoolExecutor(len(devices), "session")
        self._processes = [SessionProcess(device) for device in devices] if apart else []
        try:
            if apart:
                each = [model] * len(devices), devices, [settings] * len(devices)
                list(self._threads.map(SessionProcess.create, self._processes, *each))
            package = None if apart else open_package(devices)
            sessions = self._processes or [create_session(package, model, device, settings) for device in devices]
        except BaseException:
            self.close()
            raise
        self.get_inputs: Callable[[], Any] = sessions[0].get_inputs
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for session in sessions:
            self._free.put(session)

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any], **more: Any) -> list[Any]:
        """Run a request and wait for its answer."""
        return self.submit(names, feed, **more).result()

    def submit(self, names: Sequence[str] | None, feed: Mapping[str, Any], **_of_a_pool: Any) -> Future[list[Any]]:
        """Run a request in one of the threads. As many requests as there are sessions go to all of them."""
        return self._threads.submit(self._run, names, feed)

    def _run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        session = self._free.get()
        try:
            outputs: list[Any] = session.run(names, feed)
            return outputs
        finally:
            self._free.put(session)

    def close(self) -> None:
        """End the threads and the processes after their present requests."""
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()


_Pool = ortmulti.Pool | OnnxruntimeSessions


def _load(spec: Mapping[str, Any]) -> _Pool:
    variant = parse_variant(spec["variant"])
    way, devices = variant.pop("way"), list(dict.fromkeys(spec["devices"]))
    sessions = spec["devices"].count(devices[0]) * variant.pop("sessions")
    threads = spec["intra_op_num_threads"]
    if way != "core":
        more = {"provider_options": spec["provider_options"], "config_entries": spec["config_entries"]}
        each = [device for device in devices for _ in range(sessions)]
        settings = (
            SessionSettings.side_by_side(each, _core.usable_cores(), **more)  # as ortmulti's
            if threads is None
            else SessionSettings(threads, **more)
        )
        return OnnxruntimeSessions(spec["model"], each, settings, apart=way == "processes")
    options = ortmulti.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    for key, value in spec["config_entries"].items():
        options.add_session_config_entry(key, value)
    return ortmulti.load(spec["model"], devices, sessions, options, spec["provider_options"] or None, **variant)


def _values(feed: Mapping[str, Any], device: str) -> dict[str, Any]:
    place = _core.parse_device(device)
    return {name: ortmulti.OrtValue.ortvalue_from_numpy(array, *place) for name, array in feed.items()}


def _arrays(answer: Sequence[Any]) -> list[Any]:
    return [value.numpy() if isinstance(value, ortmulti.OrtValue) else value for value in answer]


def compare(expected: Sequence[Any], answer: Sequence[Any]) -> None:
    """Raise `Error` if floats of an answer differ from those expected by more than a tenth of the largest one."""
    one, other = ([each for each in given if _is_floating(each)] for given in (expected, answer))
    difference = outputs.compare(one, other, _TOLERANCE)
    if not difference.allowed:
        raise Error(f"an answer differs from the first one: {difference.text}")


def _is_floating(value: Any) -> bool:
    return isinstance(value, np.ndarray) and floats.is_floating(value.dtype)


def _processor_time() -> Callable[[], float]:
    """Return what tells the processor seconds of this process and its present descendants, in user and kernel mode:
    exact for this process, in ticks of 10 ms for the others.
    """
    children, ticks = process_tree(os.getpid())[1:], os.sysconf("SC_CLK_TCK")

    def seconds() -> float:
        total = time.process_time()
        for child in children:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                total += sum(map(int, stat_fields(child)[11:13])) / ticks
        return total

    return seconds


def _closed(pool: _Pool, asked: _Asked, spec: Mapping[str, Any]) -> dict[str, Any]:
    asks = [functools.partial(pool.run, None, feed, **more) for feed, more in asked]
    clients = spec["in_flight"] * len(pool.devices)
    with ClosedLoop([asks[number % len(asks)] for number in range(clients)]) as loop:
        loop.until_answered()
        loop.go_on(spec["warm_seconds"])
        background.wait()  # for CUDA graphs that are being made
        processor = _processor_time()
        before = processor()
        begin, end = loop.go_on(spec["seconds"])
        cpu_seconds = processor() - before
    result = closed_loop([answer for client in loop.answers for answer in client], begin, end)
    if not result["requests"]:
        raise Error(f"no request was answered within {spec['seconds']:g} seconds; measure for longer")
    return {**result, "cpu_seconds": cpu_seconds, "window": (end - begin) / NANOSECONDS, "last": loop.last}


def _open(pool: _Pool, asked: _Asked, spec: Mapping[str, Any]) -> dict[str, Any]:
    rate, warm, seconds = spec["rate"], spec["warm_seconds"], spec["seconds"]
    times = arrival_times(rate, warm + seconds, spec["seed"])
    counted, processor = int(np.searchsorted(times, warm * NANOSECONDS)), _processor_time()
    if counted == len(times):
        raise Error(f"no request arrives within {seconds:g} seconds at {rate:g} a second; measure for longer")
    samples: list[tuple[int, float]] = []
    last: list[Future[list[Any]]] = []

    def submit(number: int) -> Future[list[Any]]:
        # Processor time between the first and the last counted request, without a thread that watches for them.
        if number in (counted, len(times) - 1):
            samples.append((time.perf_counter_ns(), processor()))
        feed, more = asked[number % len(asked)]
        last[:] = [pool.submit(None, feed, **more)]
        return last[0]

    arrivals, start, now = ask_at(submit, times, patience=warm + seconds)
    begin = start + int(warm * NANOSECONDS)
    (first, cpu_first), (final, cpu_final) = samples[0], samples[-1]
    return {
        **open_loop(arrivals, begin, begin + int(seconds * NANOSECONDS), now),
        "cpu_seconds": (cpu_final - cpu_first) * seconds * NANOSECONDS / (final - first) if final > first else None,
        "window": seconds,
        "last": [] if last[0].cancelled() else [last[0].result()],
    }
