"""What tuning tries and chooses, with costs that are known and noise, and how it compares outputs: no processes."""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortmulti.bench.measure import outputs
from ortmulti.bench.tune.measurements import Measure
from ortmulti.bench.tune.search import Effort, Search
from ortmulti.bench.tune.space import OBJECTIVES, Host, Options, RejectedError, Settings, select, space, thread_counts
from ortmulti.errors import InvalidArgument
from ortmulti.loading.tuning_options import check, known_to

EFFORT = Effort(5, 16, repeat=9)

PARALLEL = (("execution_mode", "parallel"), ("inter_op_num_threads", 2))
SETTINGS: Settings = {
    "level": [(("graph_optimization_level", level),) for level in ("layout", "extended", "basic", "disabled")],
    "threads": [(("intra_op_num_threads", 1),), (("intra_op_num_threads", 2),), PARALLEL],
    "spinning": [(("allow_spinning", False),), (("spin_duration_us", 50),), (("spin_duration_us", 1000),)],
    "pattern": [(("enable_mem_pattern", False),)],
    "arena": [(("enable_cpu_mem_arena", False),)],
    "pools": [(("global_thread_pools", True),)],
}
FEWER_THREADS, NO_SPINNING, NO_PATTERN, NO_ARENA = (
    SETTINGS[name][0] for name in ("threads", "spinning", "pattern", "arena")
)


class Simulated:
    """Costs by a formula with noise; a clock that goes on by what measuring takes.

    `noise` is the standard deviation of the logarithm of what is measured, `bias` that of what a process costs for as
    long as it lives. `drift` is how much the machine's speed changes each second, as a logarithm.
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


def of_two(together: float) -> Callable[[Options], float]:
    """The cost of candidates of which two gain alone."""
    return lambda options: {0: 1.0, 1: 0.7, 2: together}[len({*NO_PATTERN, *NO_ARENA} & set(options))]


@pytest.mark.parametrize(
    ("cost", "best", "ratio"),
    [
        (product({FEWER_THREADS: 0.8, NO_PATTERN: 0.9, NO_ARENA: 0.997, NO_SPINNING: 1.2}),
         FEWER_THREADS + NO_PATTERN, 0.72),
        (product({FEWER_THREADS: 0.8, PARALLEL: 0.7}), PARALLEL, 0.7),
        (of_two(together=0.7), NO_PATTERN, 0.7),
        (of_two(together=1.1), NO_PATTERN, 0.7),
    ],
    ids=["gain alone", "of one setting", "no better together", "worse together"],
)  # fmt: skip
def test_the_best_choices_are_combined(cost: Callable[[Options], float], best: Options, ratio: float) -> None:
    outcome = search(Simulated(cost))
    assert chosen(outcome) in ({*best}, {*NO_ARENA} if best == NO_PATTERN else None)  # both are as good
    assert outcome.best is not None
    assert outcome.best is outcome.confirmation
    assert len(outcome.best.costs) == 6
    assert outcome.best.interval.median == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize(("noise", "bias"), [(0.0, 0.0), (0.01, 0.0), (0.1, 0.0), (0.01, 0.01), (0.01, 0.03)])
def test_nothing_is_better_where_nothing_is(noise: float, bias: float) -> None:
    outcomes = [search(Simulated(lambda _: 1.0, noise, seed, bias=bias)) for seed in range(60)]
    assert sum(one.best is not None for one in outcomes) <= 4
    # Those that looked better at their trial by chance are kept beside the best.
    fallen = [one.confirmation for one in outcomes if one.best is None and one.confirmation is not None]
    assert fallen or noise < 0.1
    assert all(one.interval.high >= 1 or one.interval.median > 0.99 for one in fallen)


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
    assert outcome.best.interval.median == pytest.approx(0.9, rel=0.02)


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


@pytest.mark.parametrize(("again", "wins"), [(0.7, True), (1.0, False)], ids=["gains again", "gained by chance"])
def test_a_budget_that_ends_in_the_confirmation_keeps_its_pairs(again: float, wins: bool) -> None:
    def cost(options: Options) -> float:
        return 1.0 if options != NO_PATTERN else 0.7 if simulated.measured.count(NO_PATTERN) <= EFFORT.most else again

    simulated = Simulated(cost, noise=0)
    outcome = search(simulated, budget=20)
    assert outcome.partial == "budget"
    assert outcome.confirmation is not None
    assert (outcome.confirmation.options, set(outcome.confirmation.costs)) == (NO_PATTERN, {(1.0, again)})
    assert 0 < len(outcome.confirmation.costs) < 6
    assert (outcome.best is not None) == wins
    if outcome.best is not None:
        assert outcome.best.costs == ((1.0, 0.7),) * EFFORT.most


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


@pytest.mark.parametrize(
    ("only", "skip", "left"),
    [
        (["spinning", "pattern"], [], {name: SETTINGS[name] for name in ("spinning", "pattern")}),
        (None, ["level", "threads", "arena", "pools", "spinning"], {"pattern": SETTINGS["pattern"]}),
        # Names of options: choices that set anything else are left out.
        (["intra_op_num_threads"], [], {"threads": SETTINGS["threads"][:2]}),
        (None, ["execution_mode"], {**SETTINGS, "threads": SETTINGS["threads"][:2]}),
    ],
)
def test_only_and_skip(only: list[str] | None, skip: list[str], left: Settings) -> None:
    assert select(SETTINGS, only, skip) == left


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


# --- Outputs compared -------------------------------------------------------------------------------------------------


def test_equal_outputs() -> None:
    values = outputs.flatten(
        [
            np.array([1.5, np.nan, np.inf], np.float32),
            np.array(["a", "b"], object),
            [{1: np.array([2.0])}],
            np.array([1, 2], ml_dtypes.bfloat16),
            None,
        ]
    )
    assert outputs.compare(values, pickle.loads(pickle.dumps(values)), 0.0) == outputs.Difference(0.0, "equal", True)


@pytest.mark.parametrize(
    ("dtype", "error", "limits", "allowed"),
    [
        (np.float64, 1e-8, {}, False),
        (np.float32, 5e-5, {}, True),
        (np.float32, 5e-4, {}, False),
        (np.float32, 2e-3, {"on_gpu": True}, True),
        (np.float32, 2e-2, {"on_gpu": True}, False),
        (np.float32, 1e-3, {"tolerance": 1e-2}, True),
        (np.float16, 5e-3, {}, True),
        (np.float16, 5e-2, {}, False),
        (np.float16, 5e-3, {"tolerance": 1e-4}, False),
        (ml_dtypes.bfloat16, 0.02, {}, True),
        (ml_dtypes.bfloat16, 0.2, {}, False),
    ],
)
def test_floats_may_differ_by_a_part_of_the_largest(
    dtype: Any, error: float, limits: dict[str, Any], allowed: bool
) -> None:
    expected, found = np.array([-100.0, 3.0, 0.0]), np.array([-100.0 + 100 * error, 3.0, 0.0])
    equal = expected.astype(dtype)
    difference = outputs.compare([equal, equal], [equal, found.astype(dtype)], **{"tolerance": None, **limits})
    assert difference.allowed == allowed
    assert difference.error == pytest.approx(error, rel=0.3)
    # The worst output counts.
    assert difference.text.startswith(f"output 1 ({np.dtype(dtype).name}) differs by ")


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        (np.zeros(2), np.zeros(3), "has the shape"),
        (np.array([1, 2]), np.array([1, 3]), "output 0 is not equal"),
        (np.array([True]), np.array([False]), "is not equal"),
        (np.array(["a"], object), np.array(["a\0"], object), "is not equal"),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), "infinite or no number elsewhere"),
        (np.array([1.0, 2.0]), np.array([1.0, np.inf]), "infinite or no number elsewhere"),
        (np.zeros(1, np.float32), np.zeros(1, np.float64), "other outputs"),
    ],
)
def test_what_is_never_allowed(expected: Any, found: Any, text: str) -> None:
    difference = outputs.compare([expected], [found], tolerance=1.0)
    assert not difference.allowed
    assert text in difference.text


# --- What is tried ----------------------------------------------------------------------------------------------------

HOSTS = [
    Host("cpu", "1.31.1", 1),
    Host("cpu", "1.21.0", 2, [0]),
    Host("cpu", "", 64, [0, 1]),
    Host("cuda", "1.31.1", 16, [0], gpu_memory=10**9),
]


@pytest.mark.parametrize("host", HOSTS, ids=["one core", "old", "two nodes", "gpu"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_candidates_are_options_that_the_release_has(objective: Any, host: Host) -> None:
    found = space(objective, "pool", host)
    for choices in found.values():
        assert len(set(choices)) == len(choices) > 0
        for name, value in itertools.chain(*choices):
            assert check(name, value) == value
            assert known_to(host.release, name, value)


ONE, OLD, LARGE, GPU = HOSTS


@pytest.mark.parametrize(
    ("host", "objective", "through", "tried", "not_tried"),
    [
        (ONE, "latency", "pool", "spin_duration_us", "execution_mode use_device_allocator_for_initializers"),
        (OLD, "latency", "pool", "allow_spinning graph_optimization_level=basic",
         "spin_duration_us graph_optimization_level=layout"),
        (OLD, "creation", "pool", "use_device_allocator_for_initializers", "allow_spinning"),
        (LARGE, "latency", "pool", "thread_affinity=cores thread_affinity=node:0 thread_affinity=node:1",
         "cuda_graph use_tf32 sessions_per_device"),
        (GPU, "latency", "pool", "cuda_graph use_tf32 prefer_nhwc", "thread_affinity"),
        (GPU, "latency", "session", "use_tf32", "cuda_graph"),
        (GPU, "throughput", "pool", "sessions_per_device in_flight", "gpu_mem_limit"),
        (GPU, "memory", "pool", "gpu_mem_limit use_device_allocator_for_initializers cuda_graph", "in_flight"),
    ],
)  # fmt: skip
def test_candidates_depend_on_the_machine(host: Host, objective: Any, through: Any, tried: str, not_tried: str) -> None:
    options = list(itertools.chain(*itertools.chain(*space(objective, through, host).values())))
    found = {name for name, _ in options} | {f"{name}={value}" for name, value in options}
    assert set(tried.split()) <= found
    assert not set(not_tried.split()) & found


@pytest.mark.parametrize(("cores", "counts"), [(1, ()), (2, (1,)), (8, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 48))])
def test_numbers_of_threads(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores) == counts
