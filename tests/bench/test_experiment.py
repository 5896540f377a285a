"""The engine under the commands of `ortmulti bench`: rounds, rows, and how results are shown; without a process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from ortmulti.bench.experiment import Experiment, Json
from ortmulti.bench.measure import results
from ortmulti.bench.measure.rounds import (
    alternating,
    of_case,
    ratios,
    rotated,
    round_numbers,
    spread,
)
from ortmulti.bench.reports.tables import Column, Report, Sheet, label, number
from ortmulti.errors import Fail

SHEET = Sheet(
    "title",
    [label("where"), label("name", lambda row: (row["name"], row.get("note", "")))],
    [
        Column("seconds", "seconds, s"),
        Column("rare", "rare", rare=True),
        Column("depth", "depth", detail=True),
        Column("for JSON alone"),
    ],
    [],
)


@dataclass
class Letters(Experiment[str]):
    """Measures letters with a function."""

    kind: ClassVar[str] = "letters"
    columns: ClassVar[Sequence[Column]] = (
        Column("value", "value"),
        Column("odd", of=lambda one: one["value"] if one["value"] % 2 else None, summary=list),
    )
    report: ClassVar[Report] = Report(lambda _: "a headline", lambda _: [SHEET], lambda _document, _details: "notes")

    models: Sequence[Path]
    figure: Callable[[str, int], float] = lambda _case, number: number
    repeat: int = 2
    most_seconds: float | None = None

    def cases(self, number: int = 0) -> Sequence[str]:
        return rotated("ab", number)

    def describe(self, case: str) -> dict[str, Any]:
        return {"letter": case, "model": str(self.models[0])}

    @classmethod
    def where(cls, measurement: Json) -> str:
        return f"letter {measurement['letter']}"

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        assert folder.is_dir()
        step("uncounted")

    def measure(self, case: str, number: int) -> dict[str, Any]:
        return {"value": self.figure(case, number)}

    def settings(self) -> dict[str, Any]:
        return {"repeat": self.repeat}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:  # noqa: ARG002
        return {"sum": sum(one["value"] for one in good)}


def test_cases_take_turns_and_become_a_result(model: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    document = Letters([model]).run(lambda *step: steps.append(step))
    assert steps == [
        (0, 4, "uncounted"),
        *((done, 4, f"letter {case}") for done, case in enumerate("abba")),
        (4, 4, ""),
    ]
    assert [(one["letter"], one["round"], one["value"]) for one in document["measurements"]] == [
        ("a", 0, 0), ("b", 0, 0), ("b", 1, 1), ("a", 1, 1),
    ]  # fmt: skip
    figures = {"value": spread([0, 1]), "odd": [1], "sum": 1}
    assert document["rows"] == [
        {"letter": letter, "model": model.name, "measured": 2, "errors": [], **figures} for letter in "ab"
    ]
    assert (document["kind"], document["schema_version"]) == ("letters", results.SCHEMA_VERSION)
    assert (document["settings"], document["partial"]) == ({"repeat": 2, "rounds": 2}, None)
    [facts] = document["models"]
    assert (facts["name"], facts["bytes"]) == (model.stem, model.stat().st_size)
    assert facts["external_bytes"] > 900_000
    assert {"created", "command", "machine", "releases"} <= document.keys()
    assert json.loads(json.dumps(document)) == json.loads(json.dumps(document, allow_nan=False))
    assert Letters.failures(document) == []


def test_a_failed_case_leaves_the_others_and_is_named(model: Path) -> None:
    def figure(case: str, number: int) -> float:
        if (case, number) == ("b", 0):
            raise Fail("it broke")
        return number

    document = Letters([model], figure).run()
    assert [(row["measured"], row["errors"]) for row in document["rows"]] == [(2, []), (1, ["it broke"])]
    assert Letters.failures(document) == ["letter b: it broke"]


@pytest.mark.parametrize("measured", [0, 1, 3])
def test_ctrl_c_keeps_what_was_measured(measured: int, model: Path) -> None:
    left = iter(range(measured))

    def figure(_case: str, _number: int) -> float:
        value = next(left, None)
        if value is None:
            raise KeyboardInterrupt
        return value

    if measured == 0:
        with pytest.raises(KeyboardInterrupt):
            Letters([model], figure).run()
        return
    document = Letters([model], figure).run()
    assert document["partial"] == "interrupted"
    assert [one["value"] for one in document["measurements"]] == [*range(measured)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.00004, "0"), (0.00123, "0.0012"), (-0.0567, "-0.057"), (0.0567, "0.057"), (0.123, "0.12"),
        (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"),
    ],
)  # fmt: skip
def test_numbers_keep_the_digits_that_say_something(value: float, text: str) -> None:
    assert number(value) == text


def row(where: str, name: str, *seconds: float, **more: Any) -> dict[str, Any]:
    return {"where": where, "name": name, "seconds": spread(seconds), "rare": None, "depth": None, **more}


ROWS = [row("cpu", "one", 1.0, 2.0, 4.0, note="2/3 failed"), row("cpu", "two", 3.0), row("gpu", "one")]


def shown(sheet: Sheet, width: int, details: bool = False) -> list[str]:
    report = Report(lambda _: "a headline", lambda _: [sheet], lambda _document, _details: "notes, below them ranges")
    console = Console(file=io.StringIO(), width=width)
    for table in report.tables({}, console, details):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def with_rows(rows: Sequence[Json]) -> Sheet:
    return Sheet(SHEET.title, SHEET.labels, SHEET.columns, rows)


def test_a_table_shows_what_rows_have_in_common_once() -> None:
    lines = shown(with_rows(ROWS), 100)
    assert lines[0] == "title"
    assert [line.split() for line in lines if " one" in line or " two" in line] == [
        ["cpu", "one", "2.00"], ["two", "3.00"], ["gpu", "one", "-"],
    ]  # fmt: skip
    assert any(line.split() == ["2/3", "failed", "1.00-4.00"] for line in lines)


def test_columns_are_shown_where_they_are_needed_and_to_those_who_want_them() -> None:
    rare = with_rows([*ROWS, row("gpu", "two", 1.0, rare=spread([1.0]))])
    for sheet, details, heads in ((with_rows(ROWS), False, ""), (rare, False, "rare"), (rare, True, "rare depth")):
        head = shown(sheet, 100, details)[1].split()
        assert head == ["where", "name", "seconds", *heads.split()]


def test_narrow_terminal_gets_two_tables_and_loses_nothing() -> None:
    lines = shown(with_rows(ROWS), 30, details=True)
    assert max(map(len, lines)) <= 30
    assert not any("…" in line for line in lines)
    assert len([line for line in lines if "cpu" in line]) == 2


def test_markdown_has_the_headline_a_line_for_each_row_and_the_notes() -> None:
    report = Report(
        lambda _: "a headline", lambda _: [with_rows(ROWS)], lambda _document, _details: "below them, below it"
    )
    assert report.markdown({}).splitlines() == [
        "a headline", "", "### title", "", "| where | name | seconds, s |", "| --- | --- | ---: |",
        "| cpu | one (2/3 failed) | 2.00 (1.00-4.00) |", "| cpu | two | 3.00 |", "| gpu | one | - |", "",
        "in brackets, in brackets",
    ]  # fmt: skip


# --- Rounds: order, budget, and figures within rounds -----------------------------------------------------------------


def test_rounds_have_orders_of_their_own() -> None:
    assert [rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    assert [alternating("abc", number) for number in range(2)] == [list("abc"), list("cba")]
    assert rotated([], 3) == []


@pytest.mark.parametrize(
    ("budget", "least", "count"), [(0.0, 1, 1), (2.5, 1, 3), (0.0, 4, 4), (-1.0, 0, 0), (9.0, 1, 5)]
)
def test_no_round_begins_after_the_budget(
    budget: float, least: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10.0]
    begun = []
    monkeypatch.setattr("ortmulti.bench.measure.rounds.time.monotonic", lambda: now[0])
    for place in round_numbers(5, budget, least):
        begun.append(place)
        now[0] += 1
    assert begun == list(range(count))


def test_ratios_are_made_within_a_round() -> None:
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 9.0, "b": 3.0}, {"a": 1.0}, {"a": 1.0, "b": 0.0}]
    assert ratios(rounds, "a", "b", float) == [2.0, 3.0]
    assert of_case(rounds, "b") == [1.0, 3.0, 0.0]
    assert ratios(rounds, "a", "b", lambda value: None if value == 9 else value) == [2.0]
