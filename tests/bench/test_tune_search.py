"""What tuning measures and chooses, with costs that are known and noise: no processes."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator

import pytest

from ortmulti.bench.tune.measurements import Measure
from ortmulti.bench.tune.search import Effort, Search
from ortmulti.bench.tune.space import Options, RejectedError, select, setting
from ortmulti.errors import InvalidArgument

EFFORT = Effort(5, 16, repeat=9)

SETTINGS = (
    setting("level", *({"graph_optimization_level": level} for level in ("layout", "extended", "basic", "disabled"))),
    setting(
        "threads",
        {"intra_op_num_threads": 1},
        {"intra_op_num_threads": 2},
        {"execution_mode": "parallel", "inter_op_num_threads": 2},
    ),
    setting("spinning", {"allow_spinning": False}, {"spin_duration_us": 50}, {"spin_duration_us": 1000}),
    setting("pattern", {"enable_mem_pattern": False}),
    setting("arena", {"enable_cpu_mem_arena": False}),
    setting("pools", {"global_thread_pools": True}),
)
FEWER_THREADS, NO_SPINNING, NO_PATTERN, NO_ARENA = (SETTINGS[number].choices[0] for number in (1, 2, 3, 4))


class Simulated:
    """Costs by a formula with noise; a clock that goes on by what measuring takes.

    Args:
        cost: The true cost of a candidate.
        noise: Standard deviation of the logarithm of what is measured.
        drift: How much the machine's speed changes each second, as a logarithm.
        bias: Standard deviation of the logarithm of what a process costs for as long as it lives.
    """

    def __init__(
        self, cost: Callable[[Options], float], noise: float = 0.01, seed: int = 0, drift: float = 0, bias: float = 0
    ) -> None:
        self.now = 0.0
        self.measured: list[Options] = []
        self.rejects: dict[Options, RejectedError] = {}
        self.interrupt_at: int | None = None
        self._cost, self._noise, self._drift, self._bias = cost, noise, drift, bias
        self._random = random.Random(seed)

    @contextlib.contextmanager
    def candidate(self, options: Options) -> Iterator[Measure]:
        self.now += 0.5
        if options in self.rejects:
            raise self.rejects[options]
        process = math.exp(self._random.gauss(0, self._bias))

        def measure() -> float:
            if self.measured.count(NO_PATTERN) == self.interrupt_at:
                raise KeyboardInterrupt
            self.now += 0.05
            self.measured.append(options)
            noise = math.exp(self._random.gauss(0, self._noise) + self._drift * self.now)
            return self._cost(options) * process * noise

        yield measure


def product(effects: dict[Options, float]) -> Callable[[Options], float]:
    """The cost of candidates whose choices act independently of each other."""
    return lambda options: math.prod(effect for choice, effect in effects.items() if set(choice) <= set(options))


def search(simulated: Simulated, budget: float | None = None) -> Search:
    tried = Search(SETTINGS, simulated.candidate, lambda: simulated.now, EFFORT, budget)
    tried.run()
    return tried


def chosen(outcome: Search) -> set[tuple[str, object]]:
    return set() if outcome.best is None else set(outcome.best.options)


def test_those_that_gain_alone_are_combined() -> None:
    outcome = search(Simulated(product({FEWER_THREADS: 0.8, NO_PATTERN: 0.9, NO_ARENA: 0.997, NO_SPINNING: 1.2})))
    assert chosen(outcome) == {*FEWER_THREADS, *NO_PATTERN}
    assert outcome.best is not None
    assert outcome.best is outcome.confirmation
    assert len(outcome.best.ratios) == 6
    assert outcome.best.interval.low <= 0.72 <= outcome.best.interval.high


def test_of_one_setting_only_the_best_choice_is_taken() -> None:
    outcome = search(Simulated(product({FEWER_THREADS: 0.8, SETTINGS[1].choices[2]: 0.7})))
    assert chosen(outcome) == set(SETTINGS[1].choices[2])


@pytest.mark.parametrize("together", [0.7, 1.1], ids=["no better", "worse"])
def test_of_two_that_do_not_help_together_one_stays(together: float) -> None:
    def cost(options: Options) -> float:
        return {0: 1.0, 1: 0.7, 2: together}[len({*NO_PATTERN, *NO_ARENA} & set(options))]

    assert chosen(search(Simulated(cost))) in ({*NO_PATTERN}, {*NO_ARENA})


@pytest.mark.parametrize(("noise", "bias"), [(0.0, 0.0), (0.01, 0.0), (0.1, 0.0), (0.01, 0.01), (0.01, 0.03)])
def test_nothing_is_better_where_nothing_is(noise: float, bias: float) -> None:
    better = [search(Simulated(lambda _: 1.0, noise, seed, bias=bias)).best for seed in range(60)]
    assert sum(one is not None for one in better) <= 4


def test_what_seems_no_gain_is_measured_less() -> None:
    simulated = Simulated(product({NO_SPINNING: 1.5, NO_PATTERN: 0.8}))
    search(simulated)
    assert simulated.measured.count(NO_SPINNING) == 5
    assert simulated.measured.count(NO_PATTERN) == 16 + 6 * 9


def test_a_machine_that_slows_down_changes_nothing() -> None:
    """Measured one after another, whatever comes first would win."""
    outcome = search(Simulated(product({NO_SPINNING: 0.9}), noise=0.003, drift=0.05))
    assert chosen(outcome) == set(NO_SPINNING)
    assert outcome.best is not None
    assert outcome.best.median == pytest.approx(0.9, rel=0.02)


def test_what_cannot_be_used_is_named_and_the_others_go_on() -> None:
    simulated = Simulated(product({FEWER_THREADS: 0.1, NO_PATTERN: 0.8, NO_ARENA: 0.9}))
    simulated.rejects[FEWER_THREADS] = RejectedError("crashed", "ended by signal 11")
    simulated.rejects[NO_PATTERN + NO_ARENA] = RejectedError("hung", "did not answer")
    outcome = search(simulated)
    assert outcome.rejected == simulated.rejects
    assert chosen(outcome) == set(NO_PATTERN)


def test_the_budget_is_kept() -> None:
    for budget, partial in ((4.0, "budget"), (10.0, "budget"), (300.0, None)):
        simulated = Simulated(product({FEWER_THREADS: 0.8, NO_PATTERN: 0.9}))
        outcome = search(simulated, budget=budget)
        assert simulated.now <= budget + 1
        assert outcome.partial == partial


@pytest.mark.parametrize(("at", "certain"), [(0, set()), (3, set()), (17, {*NO_PATTERN})])
def test_an_interrupt_leaves_what_is_certain_by_then(at: int, certain: set[object]) -> None:
    simulated = Simulated(product({NO_PATTERN: 0.7}))
    simulated.interrupt_at = at
    tried = Search(SETTINGS, simulated.candidate, lambda: simulated.now, EFFORT)
    with pytest.raises(KeyboardInterrupt):
        tried.run()
    tried.end_early("interrupted")
    assert tried.partial == "interrupted"
    assert chosen(tried) == certain


def test_only_and_skip() -> None:
    assert [one.name for one in select(SETTINGS, ["spinning", "pattern"], [])] == ["spinning", "pattern"]
    assert select(SETTINGS, None, ["level", "threads"])[0].name == "spinning"
    # Names of options: choices that set anything else are left out.
    [threads] = select(SETTINGS, ["intra_op_num_threads"], [])
    assert threads.choices == SETTINGS[1].choices[:2]
    assert select(SETTINGS, None, ["execution_mode"])[1] == threads


@pytest.mark.parametrize(
    ("only", "skip", "message"),
    [
        (["spining"], [], "no setting 'spining' to tune here .did you mean 'spinning'"),
        (None, ["nothing_like_it"], "there are allow_spinning, arena"),
        (["spinning"], ["spinning"], "spinning: in only and in skip"),
        (["pattern"], ["enable_mem_pattern"], "no setting is left"),
    ],
)
def test_wrong_names_are_errors(only: list[str] | None, skip: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        select(SETTINGS, only, skip)
