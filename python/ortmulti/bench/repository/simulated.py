"""A simulation of a model repository over its real policy: what requests wait for if models take turns in memory."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ortmulti import _core
from ortmulti.errors import Error

# As the repository: a wait for room looks again after so many seconds.
_LOOKS_AGAIN = 0.1


@dataclass
class SimulatedModel:
    """A model of one simulation.

    Attributes:
        weights, kept: bytes; see `ortmulti.Residency`.
        run: seconds from the request of an idle model until its answer.
        occupied: seconds of them in which the device can do nothing else.
        wake: seconds of a wake.
        sleep: seconds of a sleep, without the run that it waits for.
        level: of its sleep at first: "weights", or "session" if it has no other one. A wake from either takes as long.
        state: "awake", "falling", "asleep" or "waking".
    """

    weights: int
    kept: int
    run: float
    occupied: float
    wake: float
    sleep: float = 0.0
    level: str = "weights"
    state: str = field(default="asleep", init=False)
    id: int = field(default=0, init=False)
    busy: bool = field(default=False, init=False)
    arrived: int = field(default=0, init=False)
    waiting: deque[int] = field(default_factory=deque, init=False)


class Simulation:
    """A repository on one device, with one request under way for each model and one wake at a time from each level.

    Attributes:
        latencies: seconds until each request's answer, in the order of the arrivals.
        found_awake: whether each request found its model awake.
        used: the highest use of the budget that any step has left.
        wakes, evictions: how many there were.
    """

    def __init__(self, models: Sequence[SimulatedModel], budget: int) -> None:
        self._policy = _core.ResidencyPolicy(budget)
        self._models = models
        self._of_id: dict[int, SimulatedModel] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._steps = itertools.count()
        self._now = 0.0
        self._device_free = float("-inf")
        self._next_look = float("inf")
        self._for_room: deque[SimulatedModel] = deque()
        self._to_wake: dict[str, deque[SimulatedModel]] = {level: deque() for level in _core.sleep_levels}
        self._evicting: deque[tuple[SimulatedModel, str]] = deque()
        self._arrivals: list[float] = []
        self.latencies: list[float] = []
        self.found_awake: list[bool] = []
        self.used = self.wakes = self.evictions = 0

    def run(self, arrivals: Iterable[tuple[float, int]]) -> None:
        """Answer requests, given as ascending seconds and the model's number.

        Raises:
            Error: the policy says that a model cannot get its memory, or it lets a request wait forever.
        """
        for seconds, number in arrivals:
            self._at(seconds, self._arrive, self._models[number])
        if not self._of_id and self._events:
            self._add_models(self._events[0][0])
        while self._events:
            self._now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
            self.used = max(self.used, self._policy.used())
        if any(model.waiting for model in self._models):
            raise Error("the policy lets a request wait forever")

    def _add_models(self, now: float) -> None:
        for number, model in enumerate(self._models):
            levels = {"session": (0, model.wake)}
            if model.level != "session":
                levels["weights"] = (model.kept, model.wake)
            entry = _core.ResidencyModel(model.weights + model.kept, levels, level=model.level)
            model.id = self._policy.add(entry, str(number), now)
            self._of_id[model.id] = model

    def _at(self, moment: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._steps), call, arguments))

    def _arrive(self, model: SimulatedModel) -> None:
        model.waiting.append(len(self._arrivals))
        model.arrived += 1
        self._arrivals.append(self._now)
        self.latencies.append(float("inf"))
        self.found_awake.append(model.state == "awake")
        self._go_on(model)

    def _go_on(self, model: SimulatedModel) -> None:
        """Begin what a model with requests can do: a run, or a wake."""
        if not model.waiting:
            return
        if model.state == "asleep":
            model.state = "waking"
            self._for_room.append(model)
            self._make_room()
        elif model.state == "awake" and not model.busy:
            model.busy = True
            begin = max(self._now, self._device_free)
            self._device_free = begin + model.occupied
            self._at(begin + model.run, self._answer, model, model.waiting.popleft())

    def _answer(self, model: SimulatedModel, request: int) -> None:
        self.latencies[request] = self._now - self._arrivals[request]
        model.busy = False
        if model.state == "falling":
            self._at(self._now + model.sleep, self._fell)
        else:
            self._go_on(model)

    def _make_room(self) -> None:
        while self._for_room and not self._evicting:
            for model in self._models:
                waiting = len(model.waiting)
                self._policy.observe(model.id, model.arrived, int(model.busy), waiting, model.run, self._now)
            first = self._for_room[0]
            kind, evictions, until = self._policy.decide(first.id, self._now)
            if kind == "impossible":
                raise Error("the policy finds no room for a model")
            if kind == "wait":
                moment = min(self._now + _LOOKS_AGAIN, max(self._now + 1e-6, until or float("inf")))
                if moment < self._next_look:
                    self._next_look = moment
                    self._at(moment, self._look)
                return
            if kind == "wake":
                self._for_room.popleft()
                line = self._to_wake[first.level]
                line.append(first)
                if len(line) == 1:
                    self._copy(line)
            for victim, level in evictions:
                self._policy.falls(victim, level)
                self._evicting.append((self._of_id[victim], level))
            self._put_to_sleep()

    def _look(self) -> None:
        if self._now >= self._next_look:  # else an earlier look came in between
            self._next_look = float("inf")
            self._make_room()

    def _put_to_sleep(self) -> None:
        if self._evicting:
            victim, _ = self._evicting[0]
            if victim.state == "awake":
                victim.state = "falling"
            if not victim.busy:
                self._at(self._now + victim.sleep, self._fell)

    def _fell(self) -> None:
        victim, level = self._evicting.popleft()
        self._policy.fell(victim.id, level)
        victim.level = level
        self.evictions += 1
        self._put_to_sleep()
        if victim.state == "falling":
            victim.state = "asleep"
            self._go_on(victim)
        self._make_room()

    def _copy(self, line: deque[SimulatedModel]) -> None:
        if line:
            self._at(self._now + line[0].wake, self._woke, line)

    def _woke(self, line: deque[SimulatedModel]) -> None:
        model = line.popleft()
        self._policy.woke(model.id, self._now, model.wake)
        self.wakes += 1
        model.state = model.level = "awake"
        self._copy(line)
        self._go_on(model)
        self._make_room()
