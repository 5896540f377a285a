"""One experiment of `ortmulti bench repository`; runs in a process of its own."""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ortmulti import ModelRepository, _core
from ortmulti._runtime.closing import Closing
from ortmulti.bench.models import sample_inputs
from ortmulti.bench.serve.clients import (
    NANOSECONDS,
    Arrival,
    ClosedLoop,
    arrival_times,
    ask_at,
    closed_loop,
    summarize,
)
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package
from ortmulti.errors import Error, OutOfMemory
from ortmulti.optimized import comparison, wait_for_entries

EXPERIMENTS = ("awake", "repository", "onnxruntime")

GROUPS = ("all", "awake", "asleep", "after bursts", "between bursts")
"""Requests: all; those that found their model awake, and the others; of the busy models those in the window after a
burst, and the others."""

CLIENTS = 8
BURST = 20
BURST_EVERY = 1.0
BURST_WINDOW = 0.25

_RUNS = 5
_THREADS = 16
_SAMPLE_SECONDS = 0.002
_ROWS_OF_PLOT = 1000


def popularity(spec: Mapping[str, Any]) -> list[float]:
    """Return each model's share of the requests, without bursts: Zipf's, whose exponent is 1."""
    count = len(spec["models"])
    weights = [1 / (number + 1) for number in range(count)]
    if spec["burst"] and spec["plan"]:
        weights[spec["plan"]["fitting"] :] = [0.0] * (count - spec["plan"]["fitting"])
    return [weight / sum(weights) for weight in weights]


def arrivals_of(spec: Mapping[str, Any]) -> list[tuple[float, int, int]]:
    """Return the arrivals of the open loop: seconds, the model, and the number of its burst, or -1."""
    length = spec["warm_seconds"] + spec["seconds"]
    times = arrival_times(spec["plan"]["rate"], length, spec["seed"]) / NANOSECONDS
    shares = popularity(spec)
    models = random.Random(spec["seed"]).choices(range(len(shares)), shares, k=len(times))
    found = [(seconds, model, -1) for seconds, model in zip(times.tolist(), models, strict=True)]
    if spec["burst"]:
        cold = range(spec["plan"]["fitting"], len(spec["models"]))
        end = max((seconds for seconds, *_ in found), default=0.0)
        for number, moment in enumerate(np.arange(spec["warm_seconds"] + BURST_EVERY / 2, end, BURST_EVERY).tolist()):
            found += [(moment, cold[number % len(cold)], number)] * BURST
        found.sort(key=lambda one: one[0])
    return found


# What answers the requests: `_Repository` or `_OnDemand`, with the same methods. `states` has an "A" for each model
# that is awake, `counts` the wakes and the evictions. `add_sizes` adds to each model what it takes awake and keeps
# asleep; to the first one, what is beside all models.


class _Repository(Closing):
    def __init__(self, spec: Mapping[str, Any], all_awake: bool) -> None:
        self.names = [f"{number}" for number in range(len(spec["models"]))]
        self.on_cpu = on_cpu = spec["device"] == "cpu"
        memory = {"host_memory" if on_cpu else "gpu_memory": 0.9 if all_awake else spec["budget"]}
        self.repository = ModelRepository(spec["device"], **memory)
        for name, path in zip(self.names, spec["models"], strict=True):
            self.repository.add(name, path)
        wait_for_entries()
        self.budget = self.repository.stats().devices[0].budget

    def add_sizes(self, models: Sequence[dict[str, Any]]) -> None:
        stats = self.repository.stats()
        for name, model in zip(self.names, models, strict=True):
            [resident] = stats.models[name].devices
            model.update(weights=resident.weights, kept=resident.kept)
        models[0]["other"] = stats.devices[0].used - stats.devices[0].models

    def close(self) -> None:
        self.repository.close(cancel_pending=True)

    def run(self, model: int, feed: Any) -> list[Any]:
        return self.repository.run(self.names[model], feed)

    def submit(self, model: int, feed: Any) -> Any:
        return self.repository.submit(self.names[model], feed)

    def let_sleep(self, model: int) -> None:
        if self.on_cpu:  # on a GPU it sleeps since it was added
            self.repository[self.names[model]].sleep("session")

    # `stats()` also has every pool's histograms, too much work for each request.
    def states(self) -> str:
        awake = {row["name"] for row in self.repository._core.residents() if row["state"] == "awake"}
        return "".join("A" if name in awake else "-" for name in self.names)

    def used(self) -> int:
        return int(self.repository._core.devices()[0]["used"])

    def counts(self) -> tuple[int, int]:
        models = self.repository.stats().models.values()
        return (
            sum(device.wakes for model in models for device in model.pool.devices),
            sum(device.evictions for model in models for device in model.devices),
        )


class _OnDemand(Closing):
    """Sessions of onnxruntime on demand, within a budget of bytes of model files: an LRU, as users would write it."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        device, package = spec["device"], open_package([spec["device"]])
        settings = SessionSettings.side_by_side([device], _core.usable_cores())
        self._creators = [functools.partial(create_session, package, path, device, settings) for path in spec["models"]]
        self._sizes = spec["sizes"]
        self.budget = spec["budget"]
        self._sessions: OrderedDict[int, Any] = OrderedDict()  # None while it is created
        self._users: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._created = self._evicted = 0
        self._threads = ThreadPoolExecutor(_THREADS)

    def add_sizes(self, models: Sequence[dict[str, Any]]) -> None:
        """Leave out what only a repository knows."""

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._sessions.clear()

    def submit(self, model: int, feed: Any) -> Future[list[Any]]:
        return self._threads.submit(self.run, model, feed)

    def run(self, model: int, feed: Any) -> list[Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._sessions[model] if model in self._sessions else self._make_room(model))
            session = self._sessions.setdefault(model)
            self._sessions.move_to_end(model)
            self._users[model] += 1
            self._created += session is None
        try:
            session = session or self._creators[model]()
            answer: list[Any] = session.run(None, feed)
        finally:
            with self._changed:
                self._users[model] -= 1
                if session is None:  # it could not be created
                    del self._sessions[model]
                else:
                    self._sessions[model] = session
                self._changed.notify_all()
        return answer

    def _make_room(self, model: int) -> bool:
        idle = [one for one, session in self._sessions.items() if session is not None and not self._users[one]]
        while self.used() + self._sizes[model] > self.budget:
            if not idle:
                return False
            del self._sessions[idle.pop(0)]
            self._evicted += 1
        return True

    def let_sleep(self, model: int) -> None:
        with self._changed:
            self._sessions.pop(model, None)

    def states(self) -> str:
        with self._changed:
            return "".join("A" if self._sessions.get(number) else "-" for number in range(len(self._sizes)))

    def used(self) -> int:
        return sum(self._sizes[model] for model in list(self._sessions))

    def counts(self) -> tuple[int, int]:
        return self._created, self._evicted


_Server = _Repository | _OnDemand


def measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Run one experiment in a process of its own.

    Args:
        spec: "experiment" (of `EXPERIMENTS`), "models" (paths), "sizes" (bytes of their files), "device" and "budget"
            (bytes). "burst", see `arrivals_of`. "rate"; None: see `_make_plan`. "plan" of an earlier experiment, or
            None. "seconds", "warm_seconds", "seed", "batch" and "sequence".

    Returns:
        "skipped", a reason. Or "plan", "models" (seconds and bytes of each), "budget" and the highest "used".
        "requests", "failed", "errors", "different", "unanswered", and "latency" by group of `GROUPS`. "wakes",
        "evictions" and "misses" (share). "bursts": each one's first answer, and a wake with a run, in seconds. "points"
        and "states" for the plot.
    """
    feeds = [sample_inputs(path, spec["batch"], spec["sequence"]) for path in spec["models"]]
    all_awake = spec["experiment"] == "awake"
    try:
        server: _Server = _OnDemand(spec) if spec["experiment"] == "onnxruntime" else _Repository(spec, all_awake)
    except OutOfMemory as error:
        if not all_awake:
            raise
        return {"skipped": str(error)}
    with server:
        models, expected = _warm(server, feeds)
        if all_awake and "-" in server.states():
            return {"skipped": "the device has no room for all models"}
        server.add_sizes(models)
        plan = spec["plan"] or _make_plan(spec, models, _capacity(server, feeds, spec) if all_awake else None)
        result = _open_loop(server, feeds, expected, {**spec, "plan": plan}, models)
        return {**result, "plan": plan, "models": models, "budget": server.budget}


def _warm(server: _Server, feeds: Sequence[Any]) -> tuple[list[dict[str, float]], list[list[Any]]]:
    """Wake and run each model, the most popular ones last. Return the seconds of its run and wake, and the answers."""
    if isinstance(server, _OnDemand):
        server.run(0, feeds[0])  # loads kernels, as a repository's models have done when they were added
    models: list[dict[str, float]] = [{} for _ in feeds]
    answers: list[list[Any]] = [[] for _ in feeds]
    for model in reversed(range(len(feeds))):
        server.let_sleep(model)
        times = [time.perf_counter()]
        for _ in range(1 + _RUNS):
            answers[model] = server.run(model, feeds[model])
            times.append(time.perf_counter())
        first, *others = (end - begin for begin, end in itertools.pairwise(times))
        run = statistics.median(others)
        models[model] = {"run": run, "wake": max(0.0, first - run)}
    return models, answers


def _capacity(server: _Server, feeds: Sequence[Any], spec: Mapping[str, Any]) -> float:
    """Return the answers a second of clients that each wait for their answer."""
    shares = popularity(spec)

    def client(choose: random.Random) -> list[Any]:
        [model] = choose.choices(range(len(shares)), shares)
        return server.run(model, feeds[model])

    with ClosedLoop([functools.partial(client, random.Random(number)) for number in range(CLIENTS)]) as loop:
        loop.until_answered()
        window = loop.go_on(min(3.0, spec["seconds"]))
    return float(closed_loop(itertools.chain(*loop.answers), *window)["throughput"])


def _make_plan(spec: Mapping[str, Any], models: Sequence[Mapping[str, Any]], capacity: float | None) -> dict[str, Any]:
    """Return how many models fit, and the rate.

    The rate is 60% of the capacity, or less: 40% of the rate at which wakes would take all of the time, if each request
    to a model that does not fit took one.
    """
    left = spec["budget"] - models[0]["other"] - sum(model["kept"] for model in models)
    fitting = sum(total <= left for total in itertools.accumulate(model["weights"] for model in models))
    if spec["burst"] and not 0 < fitting < len(models):
        raise Error(
            f"the budget holds {fitting} of {len(models)} models: a burst needs one that sleeps beside busy ones"
        )
    plan = {"fitting": fitting, "rate": spec["rate"], "capacity": capacity}
    shares = popularity({**spec, "plan": plan})
    if capacity is None:
        capacity = 1 / sum(share * model["run"] for share, model in zip(shares, models, strict=True))
    bytes_per_second = 1 / max(1e-15, seconds_per_byte(models))
    bytes_per_request = sum(shares[i] * models[i]["weights"] for i in range(fitting, len(models)))
    copied = bytes_per_second / bytes_per_request if bytes_per_request else float("inf")
    if plan["rate"] is None:
        plan["rate"] = min(0.6 * capacity, 0.4 * copied)
    return plan


def seconds_per_byte(models: Sequence[Mapping[str, Any]]) -> float:
    """Return the median of the wakes: each model is measured once."""
    return float(statistics.median(model["wake"] / max(1, model["weights"]) for model in models))


def _open_loop(
    server: _Server,
    feeds: Sequence[Any],
    expected: Sequence[list[Any]],
    spec: Mapping[str, Any],
    models: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    arrivals = arrivals_of(spec)
    if not any(seconds >= spec["warm_seconds"] for seconds, *_ in arrivals):
        raise Error("no request arrives: measure for longer, or at a higher rate")
    awake: list[bool] = []
    errors: list[str] = []
    different: list[int] = []
    used: list[int] = [0]
    states: list[tuple[float, str]] = []
    begin = time.perf_counter()

    def submit(number: int) -> Future[Any]:
        model = arrivals[number][1]
        awake.append(server.states()[model] == "A")
        try:
            return server.submit(model, feeds[model])
        except Error as error:
            refused: Future[Any] = Future()
            refused.set_exception(error)
            return refused

    def compare(number: int, future: Future[Any]) -> None:
        model = arrivals[number][1]
        if (error := future.exception()) is not None:
            errors.append(f"{type(error).__name__}: {error}")
        elif not comparison.same_bits(future.result(), expected[model]):
            different.append(model)

    def look(numbers: Iterator[int]) -> None:
        used[0] = max(used[0], server.used())
        if next(numbers) % 10 == 0:
            states.append((time.perf_counter() - begin, server.states()))
        time.sleep(_SAMPLE_SECONDS)

    times = np.asarray([seconds * NANOSECONDS for seconds, *_ in arrivals], np.int64)
    before = server.counts()
    with ClosedLoop([functools.partial(look, itertools.count())]) as looking:
        found, _start, now = ask_at(submit, times, spec["warm_seconds"] + spec["seconds"], compare)
    looking.go_on(0.0)  # which raises its error
    after = server.counts()
    seconds = [one.latency(now) for one in found]
    return {
        "used": used[0],
        "requests": len(found),
        "failed": len(errors),
        "errors": list(dict.fromkeys(errors))[:5],
        "different": len(different),
        "unanswered": sum(one.done is None for one in found),
        **figures_of(spec, arrivals, seconds, awake),
        "wakes": after[0] - before[0],
        "evictions": after[1] - before[1],
        "bursts": _burst_answers(arrivals, seconds, found, models),
        "points": {
            "at": [round(moment, 4) for moment, *_ in arrivals],
            "seconds": [round(one, 6) for one in seconds],
            "awake": "".join("A" if one else "-" for one in awake),
        },
        "states": [
            [round(moment, 3), awake_then] for moment, awake_then in states[:: max(1, len(states) // _ROWS_OF_PLOT)]
        ],
    }


def figures_of(
    spec: Mapping[str, Any],
    arrivals: Sequence[tuple[float, int, int]],
    seconds: Sequence[float],
    awake: Sequence[bool],
) -> dict[str, Any]:
    """Return "latency" by group, and "misses", of the requests after the first `warm_seconds`."""
    begins = {moment for moment, _, burst in arrivals if burst >= 0}
    groups: dict[str, list[float]] = {group: [] for group in GROUPS}
    for (moment, _, burst), latency, was_awake in zip(arrivals, seconds, awake, strict=True):
        if moment < spec["warm_seconds"]:
            continue
        groups["all"].append(latency)
        groups["awake" if was_awake else "asleep"].append(latency)
        if begins and burst < 0:
            after = any(0 <= moment - begin < BURST_WINDOW for begin in begins)
            groups["after bursts" if after else "between bursts"].append(latency)
    summaries = {group: summarize(found) for group, found in groups.items() if found}
    return {"latency": summaries, "misses": len(groups["asleep"]) / len(groups["all"])}


def _burst_answers(
    arrivals: Sequence[tuple[float, int, int]],
    seconds: Sequence[float],
    found: Sequence[Arrival],
    models: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the time until each burst's first answer, and the wake and the run of its model."""
    answered = sorted(
        (burst, model, latency)
        for (_, model, burst), latency, one in zip(arrivals, seconds, found, strict=True)
        if burst >= 0 and one.done is not None
    )
    return [
        {"first": next(group)[2], "wake_and_run": models[model]["wake"] + models[model]["run"]}
        for (_, model), group in itertools.groupby(answered, lambda one: one[:2])
    ]
