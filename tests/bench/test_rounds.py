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
    ("arguments", "seconds", "count"),
    [
        ({"budget": None}, "11111", 5),
        ({"budget": 0.0}, "11111", 1),
        ({"budget": 2.5}, "11111", 2),
        ({"budget": 3.0}, "11111", 3),
        ({"budget": 2.5, "estimate": "none"}, "11111", 3),
        ({"budget": 0.0, "least": 4}, "11111", 4),
        ({"budget": 0.0, "least": 0}, "11111", 1),
        ({"budget": 0.5, "least": 0, "before": 1.0}, "11111", 0),
        ({"budget": 6.0}, "31321", 3),  # by the last round
        ({"budget": 6.0, "estimate": "longest"}, "31321", 2),
    ],
)
def test_no_round_begins_that_would_end_after_the_budget(arguments: dict[str, Any], seconds: str, count: int) -> None:
    now = [10.0]
    numbers = []
    for number in round_numbers(5, clock=lambda: now[0], **arguments):
        numbers.append(number)
        now[0] += int(seconds[number])
    assert numbers == list(range(count))


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
