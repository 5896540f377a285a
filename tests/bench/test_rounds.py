"""Rounds: order, budget, and figures within rounds; test_experiment.py has failures, Ctrl-C and the progress."""

from __future__ import annotations

from typing import Any

import pytest

from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case, ratios, rotated, round_numbers
from ortmulti.errors import Fail


def test_each_round_begins_with_another_case() -> None:
    rounds = measure_rounds("abc", lambda case, number: f"{case}{number}", 4)
    assert [list(results) for results in rounds] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert rounds[1] == {"a": "a1", "b": "b1", "c": "c1"}
    assert [alternating("abc", number) for number in range(2)] == [list("abc"), list("cba")]
    assert rotated([], 3) == []


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({"budget": None}, 5),
        ({"budget": 0.0}, 1),
        ({"budget": 2.5}, 2),
        ({"budget": 3.0}, 3),
        ({"budget": 2.5, "estimate": "none"}, 3),
        ({"budget": 0.0, "least": 4}, 4),
        ({"budget": 0.0, "least": 0}, 1),
        ({"budget": 0.5, "least": 0, "before": 1.0}, 0),
        ({"budget": float("inf")}, 5),
    ],
)
def test_no_round_begins_that_would_end_after_the_budget(arguments: dict[str, Any], count: int) -> None:
    now = [10.0]
    numbers = []
    for number in round_numbers(5, clock=lambda: now[0], **arguments):
        numbers.append(number)
        now[0] += 1.0
    assert numbers == list(range(count))


@pytest.mark.parametrize(("estimate", "count"), [("last", 3), ("longest", 2), ("none", 4)])
def test_a_round_is_estimated_by_those_before_it(estimate: Any, count: int) -> None:
    now = [0.0]
    seconds = iter([3.0, 1.0, 1.5, 1.0])
    begun = 0
    for _ in round_numbers(4, 6.0, estimate=estimate, clock=lambda: now[0]):
        now[0] += next(seconds)
        begun += 1
    assert begun == count


def test_a_failure_that_nobody_takes_ends_the_rounds() -> None:
    def measure(_case: str, _number: int) -> int:
        raise Fail("it broke")

    with pytest.raises(Fail, match="it broke"):
        measure_rounds("ab", measure, 2)


def test_ratios_are_made_within_a_round() -> None:
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 9.0, "b": 3.0}, {"a": 1.0}, {"a": 1.0, "b": 0.0}]
    assert ratios(rounds, "a", "b", float) == [2.0, 3.0]
    assert of_case(rounds, "b") == [1.0, 3.0, 0.0]
    assert ratios(rounds, "a", "b", lambda value: None if value == 9 else value) == [2.0]
