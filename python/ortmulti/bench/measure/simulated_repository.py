"""A simulation of a model repository over its real policy: what requests wait for if models take turns in memory."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ortmulti import _core
from ortmulti.errors import Error

# As the repository: a wait for room looks again after so many seconds.
_LOOKS_AGAIN = 0.1


@dataclass(frozen=True)
class SimulatedModel:
    """A model of a simulation.

    Attributes:
        weights, kept: bytes; see `ortmulti.Residency`.
        run: seconds from the request of an idle model until its answer.
        occupied: seconds of them in which the device can do nothing else.
        wake: seconds of a wake.
        sleep: seconds of a sleep, without the run that it waits for.
        sleeps: whether it has the level "weights"; a wake from the level "session" takes as long.
    """

    weights: int
    kept: int
    run: float
    occupied: float
    wake: float
    sleep: float = 0.0
    sleeps: bool = True


@dataclass
class _State:
    model: SimulatedModel
    id: int = 0
    rest: str = "asleep"  # awake, falling, asleep, waking
    level: str = "weights"
    busy: bool = False
    arrived: int = 0
    waiting: deque[int] = field(default_factory=deque)


class Simulation:
    """A repository on one device, with one request under way for each model and one wake at a time from each level.

    Attributes:
        latencies: seconds until each request's answer, in the order of the arrivals; None before it.
        found_awake: whether each request found its model awake.
        used: the highest use of the budget that any step has left.
        wakes, evictions: how many there were.
    """

    def __init__(self, models: Sequence[SimulatedModel], budget: int) -> None:
        self._policy = _core.ResidencyPolicy(budget)
        self._models = [_State(model) for model in models]
        self._of_id: dict[int, _State] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._steps = 0
        self._now = 0.0
        self._device_free = float("-inf")
        self._looks_again = float("inf")
        self._for_room: deque[_State] = deque()
        self._to_wake: dict[str, deque[_State]] = {level: deque() for level in _core.sleep_levels}
        self._evicting: deque[tuple[_State, str]] = deque()
        self._arrivals: list[float] = []
        self.latencies: list[float | None] = []
        self.found_awake: list[bool] = []
        self.used = self.wakes = self.evictions = 0

    def run(self, arrivals: Iterable[tuple[float, int]]) -> None:
        """Answer requests, given as ascending seconds and the model's number.

        Raises:
            Error: the policy says that a model cannot get its memory, or it lets a request wait forever.
        """
        for seconds, number in arrivals:
            if not self._of_id:
                self._enter(seconds)
            while self._events and self._events[0][0] <= seconds:
                self._step()
            self._now = seconds
            self._arrive(self._models[number])
            self._note()
        while self._events:
            self._step()
        if None in self.latencies:
            raise Error("the policy lets a request wait forever")

    def _enter(self, now: float) -> None:
        for number, state in enumerate(self._models):
            model = state.model
            state.level = "weights" if model.sleeps else "session"
            levels = {"session": (0, model.wake)} | ({"weights": (model.kept, model.wake)} if model.sleeps else {})
            entry = _core.ResidencyModel(model.weights + model.kept, levels, level=state.level)
            state.id = self._policy.add(entry, str(number), now)
            self._of_id[state.id] = state

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._steps += 1
        heapq.heappush(self._events, (self._now + seconds, self._steps, call))

    def _step(self) -> None:
        self._now, _, call = heapq.heappop(self._events)
        call()
        self._note()

    def _note(self) -> None:
        self.used = max(self.used, self._policy.used())

    def _arrive(self, state: _State) -> None:
        state.waiting.append(len(self._arrivals))
        state.arrived += 1
        self._arrivals.append(self._now)
        self.latencies.append(None)
        self.found_awake.append(state.rest == "awake")
        self._go_on(state)

    def _go_on(self, state: _State) -> None:
        """Begin what a model with requests can do: a run, or a wake."""
        if not state.waiting:
            return
        if state.rest == "asleep":
            state.rest = "waking"
            self._for_room.append(state)
            self._make_room()
        elif state.rest == "awake" and not state.busy:
            state.busy = True
            begin = max(self._now, self._device_free)
            self._device_free = begin + state.model.occupied
            request = state.waiting.popleft()
            self._after(begin + state.model.run - self._now, lambda: self._answer(state, request))

    def _answer(self, state: _State, request: int) -> None:
        self.latencies[request] = self._now - self._arrivals[request]
        state.busy = False
        if state.rest == "falling":
            self._after(state.model.sleep, self._fell)
        else:
            self._go_on(state)

    def _make_room(self) -> None:
        while self._for_room and not self._evicting:
            for state in self._models:
                self._policy.observe(
                    state.id, state.arrived, int(state.busy), len(state.waiting), state.model.run, self._now
                )
            first = self._for_room[0]
            kind, evictions, until = self._policy.decide(first.id, self._now)
            if kind == "impossible":
                raise Error("the policy finds no room for a model")
            if kind == "wait":
                self._look_again(min(_LOOKS_AGAIN, max(1e-6, (until or float("inf")) - self._now)))
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

    def _look_again(self, seconds: float) -> None:
        def look() -> None:
            if self._now >= self._looks_again:  # else an earlier look came in between
                self._looks_again = float("inf")
                self._make_room()

        if self._now + seconds < self._looks_again:
            self._looks_again = self._now + seconds
            self._after(seconds, look)

    def _put_to_sleep(self) -> None:
        if self._evicting:
            victim = self._evicting[0][0]
            if victim.rest == "awake":
                victim.rest = "falling"
            if not victim.busy:
                self._after(victim.model.sleep, self._fell)

    def _fell(self) -> None:
        victim, level = self._evicting.popleft()
        self._policy.fell(victim.id, level)
        victim.level = level
        self.evictions += 1
        self._put_to_sleep()
        if victim.rest == "falling":
            victim.rest = "asleep"
            self._go_on(victim)
        self._make_room()

    def _copy(self, line: deque[_State]) -> None:
        if line:
            self._after(line[0].model.wake, lambda: self._woke(line))

    def _woke(self, line: deque[_State]) -> None:
        state = line.popleft()
        self._policy.woke(state.id, self._now, state.model.wake)
        self.wakes += 1
        state.rest = state.level = "awake"
        self._copy(line)
        self._go_on(state)
        self._make_room()
