"""What tests of tuning share: costs that are known, and time that only measurements take."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from ortmulti.bench.tune.racing import Effort
from ortmulti.bench.tune.search import Outcome, Search
from ortmulti.bench.tune.space import DEFAULTS, Configuration, RejectedError, Space, setting

EFFORT = Effort((2, 4, 8), pairs=18, restarts=6, explore=16)

SPACE = Space(
    (
        setting(
            "level", *({"graph_optimization_level": level} for level in ("layout", "extended", "basic", "disabled"))
        ),
        setting(
            "threads",
            {"intra_op_num_threads": 1},
            {"intra_op_num_threads": 2},
            {"execution_mode": "parallel", "inter_op_num_threads": 2},
            {"execution_mode": "parallel", "inter_op_num_threads": 4},
        ),
        setting("spinning", {"allow_spinning": False}, {"spin_duration_us": 50}, {"spin_duration_us": 1000}),
        setting("pattern", {"enable_mem_pattern": False}),
        setting("arena", {"enable_cpu_mem_arena": False}),
        setting("affinity", {"thread_affinity": "cores"}),
        setting("pools", {"global_thread_pools": True}),
    )
)


class Simulated:
    """Costs by a formula with noise; a clock that goes on by what measuring takes.

    Args:
        cost: The true cost of a configuration.
        noise: Standard deviation of the logarithm of what is measured.
        start: Seconds that the start of a process takes.
        block: Seconds that a measurement takes.
        drift: How much the machine's speed changes each second, as a logarithm.
        bias: Standard deviation of the logarithm of what a process costs for as long as it lives.
    """

    def __init__(
        self,
        cost: Callable[[Configuration], float],
        noise: float,
        seed: int = 0,
        start: float = 0.5,
        block: float = 0.05,
        drift: float = 0.0,
        bias: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.measured: list[Configuration] = []
        self.rejects: dict[Configuration, RejectedError] = {}
        self._cost = cost
        self._noise = noise
        self._random = random.Random(seed)
        self._start = start
        self._block = block
        self._drift = drift
        self._bias = bias
        self._alive: dict[Configuration, float] = {}

    def clock(self) -> float:
        return self.now

    def prepare(self, configurations: Sequence[Configuration]) -> None:
        for one in configurations:
            if one not in self._alive:
                self._alive[one] = math.exp(self._random.gauss(0, self._bias)) if self._bias else 1.0
                self.now += self._start

    def release(self, configuration: Configuration) -> None:
        self._alive.pop(configuration, None)

    def sample(self, configuration: Configuration) -> float:
        self.prepare([configuration])
        if configuration in self.rejects:
            raise self.rejects[configuration]
        self.now += self._block
        self.measured.append(configuration)
        noise = math.exp(self._random.gauss(0, self._noise) + self._drift * self.now)
        return self._cost(configuration) * self._alive[configuration] * noise


def search(simulated: Simulated, space: Space = SPACE, budget: float | None = None, seed: int = 0) -> Outcome:
    return Search(space, simulated, simulated.clock, EFFORT, budget, seed=seed).run()


def chosen(outcome: Outcome) -> Configuration:
    return DEFAULTS if outcome.best is None else outcome.best.configuration
