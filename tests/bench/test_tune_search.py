"""The search for settings, with costs that are known and noise: no processes."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmulti.bench.tune.search import Search
from ortmulti.bench.tune.space import DEFAULTS, Choice, Configuration, RejectedError, Space, setting
from ortmulti.errors import Fail, InvalidArgument
from tests.support.tuning import EFFORT, SPACE, Simulated, chosen, search


def landscape(seed: int) -> dict[Choice, float]:
    """What each choice does to the cost; two of three do nothing."""
    generator = random.Random(seed)
    return {choice: generator.choice([1.0, 1.0, math.exp(generator.gauss(0, 0.15))]) for choice in SPACE.choices}


def product(effects: dict[Choice, float], configuration: Configuration) -> float:
    return math.prod(effects[choice] for choice in configuration.choices)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_finds_the_grid_s_best_in_a_tenth_of_its_time(seed: int) -> None:
    effects = landscape(seed)
    simulated = Simulated(lambda one: product(effects, one), noise=0.01, seed=seed)
    found = chosen(search(simulated, seed=seed))
    best = min(product(effects, one) for one in SPACE.grid())
    assert product(effects, found) <= 1.02 * best
    # The grid starts every configuration and measures it as often as the last rung says.
    assert simulated.now <= SPACE.size * (0.5 + EFFORT.rungs[-1] * 0.05) / 10


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_finds_what_helps_only_together(seed: int) -> None:
    """Neither of two choices gives anything alone."""
    first, second = SPACE.settings[1].choices[2], SPACE.settings[3].choices[0]

    def cost(one: Configuration) -> float:
        return 0.6 if {first, second} <= set(one.choices) else 1.0

    small = Space(SPACE.settings[1:5])
    found = chosen(search(Simulated(cost, noise=0.005, seed=seed), small, seed=seed))
    # Drawn at random: not every time, but never something else.
    assert cost(found) == 0.6 or found == DEFAULTS


def test_mostly_finds_what_helps_only_together() -> None:
    first, second = SPACE.settings[1].choices[2], SPACE.settings[3].choices[0]
    small = Space(SPACE.settings[1:5])
    found = 0
    for seed in range(30):
        simulated = Simulated(lambda one: 0.6 if {first, second} <= set(one.choices) else 1.0, noise=0.005, seed=seed)
        found += chosen(search(simulated, small, seed=seed)) != DEFAULTS
    assert found >= 10


@pytest.mark.parametrize(("noise", "bias"), [(0.0, 0.0), (0.01, 0.0), (0.1, 0.0), (0.01, 0.01), (0.01, 0.03)])
def test_nothing_is_better_where_nothing_is(noise: float, bias: float) -> None:
    better = [search(Simulated(lambda _: 1.0, noise, seed, bias=bias), seed=seed).best for seed in range(60)]
    assert sum(one is not None for one in better) <= 4


def test_the_candidate_that_was_measured_again_is_kept_whether_or_not_it_held_up() -> None:
    lucky = [search(Simulated(lambda _: 1.0, 0.1, seed), seed=seed) for seed in range(20)]
    fallen = [one.confirmation for one in lucky if one.best is None and one.confirmation is not None]
    assert fallen  # by chance some looked better at their trial
    assert all(one.ratio.high >= 1 or one.ratio.median > 0.99 for one in fallen)
    good = DEFAULTS.with_choice(SPACE.settings[0].choices[2])
    outcome = search(Simulated(lambda one: 0.8 if good.choices[0] in one.choices else 1.0, noise=0.003))
    assert outcome.confirmation is outcome.best is not None


def test_a_machine_that_slows_down_changes_nothing() -> None:
    """Measured one after another, whatever comes first would win."""
    good = DEFAULTS.with_choice(SPACE.settings[0].choices[2])
    simulated = Simulated(lambda one: 0.9 if good.choices[0] in one.choices else 1.0, noise=0.003, drift=0.05)
    outcome = search(simulated)
    assert chosen(outcome) == good
    assert outcome.best is not None
    assert outcome.best.ratio.median == pytest.approx(0.9, rel=0.02)


def test_a_gain_is_what_it_is() -> None:
    choices = [one.choices[0] for one in SPACE.settings[:3]]
    effects = {**dict.fromkeys(SPACE.choices, 1.0), choices[0]: 0.8, choices[1]: 0.9, choices[2]: 0.995}
    outcome = search(Simulated(lambda one: product(effects, one), noise=0.01))
    assert set(chosen(outcome).choices) == {choices[0], choices[1]}
    assert outcome.best is not None
    assert outcome.best.ratio.low <= 0.72 <= outcome.best.ratio.high
    assert {choice: part.median for choice, part in outcome.parts.items()} == {
        choices[0]: pytest.approx(1 / 0.8, rel=0.03),
        choices[1]: pytest.approx(1 / 0.9, rel=0.03),
    }


def test_of_two_that_do_the_same_one_stays() -> None:
    first, second = SPACE.settings[3].choices[0], SPACE.settings[4].choices[0]
    outcome = search(Simulated(lambda one: 0.7 if {first, second} & set(one.choices) else 1.0, noise=0.01))
    assert len(chosen(outcome).choices) == 1
    assert set(chosen(outcome).choices) <= {first, second}


def test_what_cannot_be_used_leaves_and_is_named() -> None:
    bad = DEFAULTS.with_choice(SPACE.settings[0].choices[1])
    good = DEFAULTS.with_choice(SPACE.settings[2].choices[0])
    simulated = Simulated(lambda one: 0.1 if bad.choices[0] in one.choices else 0.8 if good == one else 1.0, noise=0.01)
    simulated.rejects[bad] = RejectedError("crashed", "ended by signal 11")
    outcome = search(simulated)
    assert outcome.rejected == {bad: simulated.rejects[bad]}
    assert chosen(outcome) == good
    assert simulated.measured.count(bad) == 0


def test_defaults_that_cannot_be_measured_are_an_error() -> None:
    simulated = Simulated(lambda _: 1.0, noise=0.01)
    simulated.rejects[DEFAULTS] = RejectedError("hung", "did not answer")
    with pytest.raises(Fail, match="with the defaults: did not answer"):
        search(simulated)


def test_the_budget_is_kept() -> None:
    effects = landscape(3)
    for budget, partial in ((8.0, "budget"), (20.0, "budget"), (300.0, None)):
        simulated = Simulated(lambda one: product(effects, one), noise=0.01)
        outcome = search(simulated, budget=budget)
        assert simulated.now <= budget + 3
        assert outcome.partial == partial


def test_an_interrupted_search_says_what_is_confirmed_by_then() -> None:
    good = SPACE.settings[4].choices[0]
    simulated = Simulated(lambda one: 0.7 if good in one.choices else 1.0, noise=0.01)
    seen = itertools.count()

    class Interrupting:
        prepare, release = simulated.prepare, simulated.release

        def sample(self, configuration: Configuration) -> float:
            if next(seen) >= limit:
                raise KeyboardInterrupt
            return simulated.sample(configuration)

    best = {}
    for limit in (1, 130):
        tried = Search(SPACE, Interrupting(), simulated.clock, EFFORT)
        with pytest.raises(KeyboardInterrupt):
            tried.run()
        outcome = tried.so_far("interrupted")
        assert outcome.partial == "interrupted"
        best[limit] = chosen(outcome)
        seen = itertools.count()
    assert best[1] == DEFAULTS
    assert good in best[130].choices


def test_the_grid_has_everything_once() -> None:
    configurations = list(SPACE.grid())
    assert len(configurations) == len(set(configurations)) == SPACE.size
    assert configurations[0] == DEFAULTS


def test_the_grid_s_best_is_found_by_measuring_everything() -> None:
    small = Space(SPACE.settings[2:5])
    effects = {choice: 1 + 0.1 * (number - 2) for number, choice in enumerate(small.choices)}
    simulated = Simulated(lambda one: product(effects, one), noise=0.005)
    outcome = Search(small, simulated, simulated.clock, EFFORT).run_grid(at_once=5)
    assert set(simulated.measured) == set(small.grid())
    assert chosen(outcome) == min(small.grid(), key=lambda one: product(effects, one))


def test_only_and_skip() -> None:
    assert [one.name for one in SPACE.select(["spinning", "pattern"], []).settings] == ["spinning", "pattern"]
    assert next(one.name for one in SPACE.select(None, ["level", "threads"]).settings) == "spinning"
    # Names of options: choices that set anything else are left out.
    [threads] = SPACE.select(["intra_op_num_threads"], []).settings
    assert [str(choice) for choice in threads.choices] == ["intra_op_num_threads=1", "intra_op_num_threads=2"]
    assert all("execution_mode" not in str(choice) for choice in SPACE.select(None, ["execution_mode"]).choices)


@pytest.mark.parametrize(
    ("only", "skip", "message"),
    [
        (["spining"], [], "no setting 'spining' to tune here .did you mean 'spinning'"),
        (None, ["nothing_like_it"], "there are affinity, allow_spinning"),
        (["spinning"], ["spinning"], "spinning: in only and in skip"),
        (["pattern"], ["enable_mem_pattern"], "no setting is left"),
    ],
)
def test_wrong_names_are_errors(only: list[str] | None, skip: list[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SPACE.select(only, skip)


def test_one_choice_of_each_setting() -> None:
    one = setting("threads", {"intra_op_num_threads": 1}, {"intra_op_num_threads": 1}, {"intra_op_num_threads": 2})
    assert len(one.choices) == 2
    both = DEFAULTS.with_choice(one.choices[0]).with_choice(one.choices[1])
    assert both.options == {"intra_op_num_threads": 2}
    assert both.without("threads") == DEFAULTS
    assert str(DEFAULTS) == "the defaults"
