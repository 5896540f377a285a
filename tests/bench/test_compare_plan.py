"""What is measured and in which order; devices as a user writes them; statistics and tables."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.create import Case, Options, Plan, tables
from ortmulti.bench.create.measure_strategy import digest
from ortmulti.bench.create.summary import efficiencies, rows
from ortmulti.bench.measure import devices, results
from ortmulti.bench.measure.rounds import Interval, Spread
from ortmulti.errors import DeviceError, InvalidArgument, NoSuchFile

MODEL = Path("folder/model.onnx")
SETS = (("cpu",), ("cpu", "cpu"))


def plan(**changes: Any) -> Plan:
    settings = {"models": [MODEL], "device_sets": SETS, "strategies": ("sequential", "threads", "native"), "repeat": 2}
    return Plan(**{**settings, **changes})


def test_strategies_take_turns_and_each_repetition_begins_with_another_one() -> None:
    order = [(len(case.devices), case.strategy) for number in range(2) for case in plan().round(number)]
    assert order == [
        (1, "sequential"), (1, "threads"), (1, "native"), (2, "sequential"), (2, "threads"), (2, "native"),
        (1, "threads"), (1, "native"), (1, "sequential"), (2, "threads"), (2, "native"), (2, "sequential"),
    ]  # fmt: skip


def test_each_round_has_each_case_once() -> None:
    many = plan(models=[MODEL, Path("other.onnx")], repeat=7)
    for number in range(many.repeat):
        assert len(many.round(number)) == len(many.cases()) == 2 * 2 * 3
        assert set(many.round(number)) == set(many.cases())


@pytest.mark.parametrize(
    "changes",
    [
        {"models": []},
        {"device_sets": []},
        {"strategies": []},
        {"strategies": ["sequential", "magic"]},
        {"strategy_options": {"magic": Options()}},
        {"repeat": 0},
        {"intra_op_num_threads": -1},
    ],
)
def test_impossible_plans_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        plan(**changes)


def test_strategies_of_a_case_get_the_same_threads() -> None:
    for name in ("sequential", "shared"):
        assert plan(cores=8).settings(("cpu", "cpu"), name).intra_op_num_threads == 4
        assert plan(cores=8, intra_op_num_threads=0).settings(("cpu", "cpu"), name).intra_op_num_threads == 0
        assert plan(cores=8, intra_op_num_threads=3).settings(("cpu",), name).intra_op_num_threads == 3


@pytest.mark.parametrize("threads", [None, 2])
def test_options_of_a_strategy_come_after_those_of_all(threads: int | None) -> None:
    made = plan(
        options=Options({"a": "1", "b": "1"}, {"c": "1"}),
        strategy_options={"threads": Options({"b": "2"}, {"d": "2"})},
        intra_op_num_threads=threads,
    )
    settings = made.settings(("cpu",), "threads")
    assert (settings.provider_options, settings.config_entries) == ({"a": "1", "b": "2"}, {"c": "1", "d": "2"})
    settings = made.settings(("cpu",), "native")
    assert (settings.provider_options, settings.config_entries) == ({"a": "1", "b": "1"}, {"c": "1"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cpu", ("cpu",)), ("cpu*3", ("cpu",) * 3), ("cpu, cpu*2", ("cpu",) * 3)],
)
def test_devices_as_written(text: str, expected: tuple[str, ...]) -> None:
    assert devices.parse_devices(text) == expected


@pytest.mark.parametrize("text", ["", "gpu", "cpu*", "cpu*0", "cpu*two", "cpu,,cpu"])
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        devices.parse_devices(text)


def test_absent_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="cuda:99"):
        devices.parse_devices("cpu,99")


@pytest.mark.parametrize(("text", "expected"), [("1", (1,)), ("1,2, 4", (1, 2, 4))])
def test_counts_as_written(text: str, expected: tuple[int, ...]) -> None:
    assert devices.parse_counts(text) == expected


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="list of numbers"):
        devices.parse_counts(text)


def test_device_sets_are_the_first_devices() -> None:
    four = [f"cuda:{index}" for index in range(4)]
    assert devices.device_sets(four, (1, 2)) == (("cuda:0",), ("cuda:0", "cuda:1"))
    assert devices.device_sets(four, None) == (("cuda:0",), tuple(four))
    assert devices.device_sets(["cpu"], None) == (("cpu",),)
    assert devices.device_sets(["cpu", "cpu"], (3,)) == (("cpu",) * 3,)
    with pytest.raises(InvalidArgument, match="5 sessions need 5 devices, not 4"):
        devices.device_sets(four, (5,))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["cpu"], "cpu"),
        (["cpu", "cpu"], "cpu x2"),
        (["cuda:1", "cuda:2", "cuda:3"], "cuda:1-3"),
        (["cuda:0", "cuda:1"], "cuda:0, cuda:1"),
        (["cuda:0", "cuda:2", "cpu"], "cuda:0, cuda:2, cpu"),
    ],
)
def test_devices_in_short(names: list[str], expected: str) -> None:
    assert devices.describe(names) == expected


def test_spread_is_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0, 2.0, 8.0]) == Spread(3.0, 1.0, 8.0)
    assert Spread.of([]) is None


def test_interval_of_the_median() -> None:
    """Of ten values the second and the ninth: the median is outside with a probability of 22 in 1024."""
    ten = Interval.of([float(value) for value in (7, 3, 1, 10, 5, 9, 2, 8, 6, 4)])
    assert ten == Interval(5.5, 1, 10, 2, 9, pytest.approx(1 - 22 / 1024))
    six = Interval.of([6.0, 5, 4, 3, 2, 1])
    assert six == Interval(3.5, 1, 6, 1, 6, pytest.approx(1 - 2 / 64))
    twenty = Interval.of(range(1, 21))
    assert twenty is not None
    assert (twenty.low, twenty.high) == (6, 15)  # as in the tables of the sign test
    assert twenty.confidence == pytest.approx(0.9586, abs=1e-4)


def test_interval_of_few_values_is_their_range_and_says_what_it_is_worth() -> None:
    assert Interval.of([1.0, 2, 3, 4, 5]) == Interval(3.0, 1, 5, 1, 5, pytest.approx(0.9375))
    assert Interval.of([2.0]) == Interval(2.0, 2, 2, 2, 2, 0.0)
    assert Interval.of([]) is None


def test_efficiencies_are_those_of_the_reports() -> None:
    # Four devices, 10.87 s one after the other, 4.38 s in processes.
    by_number, parallel = efficiencies(10.87 / 4.38, 4)
    assert math.isclose(by_number, 0.6204, abs_tol=1e-4)
    assert parallel is not None
    assert math.isclose(parallel, 0.4939, abs_tol=1e-4)
    assert efficiencies(1.5, 1) == (1.5, None)


def measurement(strategy: str, creation: float, outputs: str = "a", devices: int = 2, **others: Any) -> dict[str, Any]:
    return {
        "model": str(MODEL),
        "devices": ["cpu"] * devices,
        "strategy": strategy,
        "starting": 0.5,
        "creation": creation,
        "sessions": [creation / 2] * devices,
        "first_run": 0.25,
        "peak_rss": 3 << 20,
        "pss": 2 << 20,
        "gpu_memory": {},
        "outputs": [outputs] * devices,
        **others,
    }


def failed(strategy: str) -> dict[str, Any]:
    return {"model": str(MODEL), "devices": ["cpu", "cpu"], "strategy": strategy, "error": "it broke"}


def test_rows_against_values_computed_by_hand() -> None:
    measured = [
        measurement("sequential", 4.0),
        measurement("sequential", 6.0),
        measurement("sequential", 5.0),
        measurement("threads", 2.0),
        measurement("threads", 3.0),
        measurement("sequential", 100.0, devices=1),
    ]
    cases = [Case(MODEL, ("cpu", "cpu"), "sequential"), Case(MODEL, ("cpu", "cpu"), "threads")]
    sequential, threads = rows(cases, measured)
    assert sequential.creation == Spread(5.0, 4.0, 6.0)
    assert sequential.speedup == 1.0
    assert (threads.measured, threads.errors) == (2, ())
    assert threads.creation == Spread(2.5, 2.0, 3.0)
    assert threads.session == Spread(1.25, 1.0, 1.5)
    assert threads.ready == Spread(3.0, 2.5, 3.5)
    assert (threads.speedup, threads.efficiency, threads.parallel_efficiency) == (2.0, 1.0, 1.0)
    assert threads.equal is True


def test_other_outputs_are_detected() -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), name) for name in ("sequential", "threads", "native")]
    measured = [
        measurement("sequential", 1.0),
        measurement("sequential", 1.0, outputs="b"),
        measurement("threads", 1.0),
        measurement("native", 1.0),
        measurement("native", 1.0, outputs="b"),
    ]
    assert [row.equal for row in rows(cases, measured)] == [False, True, False]
    one_session_differs = measurement("threads", 1.0) | {"outputs": ["a", "b"]}
    assert rows(cases[:2], [measured[0], one_session_differs])[1].equal is False


def test_nothing_to_compare_with_is_not_equality() -> None:
    [row] = rows([Case(MODEL, ("cpu", "cpu"), "threads")], [measurement("threads", 1.0)])
    assert (row.equal, row.speedup, row.efficiency) == (None, None, None)


def test_failed_measurements_stay_in_the_row() -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), "threads"), Case(MODEL, ("cpu", "cpu"), "native")]
    partly, wholly = rows(cases, [measurement("threads", 1.0), failed("threads"), failed("native")])
    assert (partly.measured, partly.errors) == (1, ("it broke",))
    assert partly.creation == Spread(1.0, 1.0, 1.0)
    assert (wholly.measured, wholly.errors, wholly.creation) == (0, ("it broke",), None)


def test_gpu_memory_is_by_device() -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), "threads")]
    measured = [
        measurement("threads", 1.0, gpu_memory={"cuda:0": 10, "cuda:1": 20}),
        measurement("threads", 1.0, gpu_memory={"cuda:0": 30}),
    ]
    [row] = rows(cases, measured)
    assert row.gpu_memory == {"cuda:0": Spread(20.0, 10, 30), "cuda:1": Spread(20, 20, 20)}


def test_floors_belong_to_their_own_measurements() -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), "shared")]
    measured = [
        measurement("shared", 3.0, driver_floor=2.0, sequential_read=1.0),
        measurement("shared", 7.0, driver_floor=5.0, sequential_read=1.0),
        measurement("shared", 4.0, driver_floor=1.0, sequential_read=8.0),
    ]
    [row] = rows(cases, measured)
    assert row.driver_floor == Spread(2.0, 1.0, 5.0)
    assert row.above_floor == Interval(2.0, 1.0, 3.0, 1.0, 3.0, 0.75)  # and not 4 - 2, the medians' difference
    assert row.sequential_read == Spread(1.0, 1.0, 8.0)
    assert row.times_floors == Interval(1.4, 0.5, 1.5, 0.5, 1.5, 0.75)


def test_shared_rows_say_what_was_in_the_cache_and_what_was_not_shared() -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), "shared")]
    measured = [
        measurement(
            "shared", 1.0, entry={"present": False, "bytes": 10}, details={"after_contexts": 0.1, "not_shared": ["a"]}
        ),
        measurement(
            "shared",
            1.0,
            entry={"present": True, "bytes": 20},
            details={"after_contexts": 0.3, "not_shared": ["a", "b"]},
        ),
        measurement("shared", 1.0, entry=None, details={"after_contexts": None, "not_shared": []}),
    ]
    [row] = rows(cases, measured)
    assert (row.entry, row.entry_bytes) == ("absent, present", Spread(15.0, 10, 20))
    assert row.after_contexts is not None
    assert row.after_contexts.median == pytest.approx(0.2)
    assert row.not_shared == ("a", "b")
    [row] = rows(cases, measured[2:])
    assert (row.entry, row.entry_bytes, row.after_contexts, row.not_shared) == (None, None, None, ())


def test_digest_sees_every_bit_the_type_the_shape_and_the_order() -> None:
    base = np.arange(6, dtype=np.float32)
    changed = base.copy()
    changed[5] = np.nextafter(changed[5], 10)
    variants = [
        [base],
        [changed],
        [base.reshape(2, 3)],
        [base.view(np.int32)],
        [base, base],
        [np.array(["a", "b"], dtype=object)],
        [np.array(["a", "c"], dtype=object)],
        [base, changed],
        [changed, base],
    ]
    assert len({digest(variant) for variant in variants}) == len(variants)
    assert digest([base]) == digest([base.copy()])
    assert digest([np.zeros(1, np.float32)]) != digest([-np.zeros(1, np.float32)])
    wide = np.arange(12, dtype=np.float32)
    assert digest([wide[::2]]) == digest([wide[::2].copy()])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00004, "0"),
        (0.00123, "0.0012"),
        (-0.0567, "-0.057"),
        (0.0567, "0.057"),
        (0.123, "0.12"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
    ],
)
def test_numbers_keep_the_digits_that_say_something(value: float, text: str) -> None:
    assert tables.number(value) == text


@pytest.fixture
def document() -> dict[str, Any]:
    cases = [Case(MODEL, ("cpu", "cpu"), name) for name in ("sequential", "threads", "native")]
    measured = [
        measurement("sequential", 4.0),
        measurement("sequential", 6.0),
        measurement("threads", 2.0, outputs="b"),
        failed("native"),
    ]
    return results.document(
        "create",
        settings={"repeat": 2, "page_cache": "warm"},
        models=[{"name": "model", "path": str(MODEL), "bytes": 1000, "external_bytes": 2_000_000_000}],
        measurements=measured,
        rows=[row.as_json() for row in rows(cases, measured)],
    )


def rendered(document: dict[str, Any], width: int, details: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    for table in tables.creation_tables(document, console, details):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_wide_table_has_every_figure_of_a_case_in_its_line(document: dict[str, Any]) -> None:
    lines = rendered(document, 200)
    assert lines[0].strip() == "model, 2.00 GB, warm page cache, 2 repetitions"
    [sequential] = [line.split() for line in lines if "sequential" in line]
    assert " ".join(sequential) == "cpu x2 sequential 0.50 5.00 2.50 5.50 0.25 3 1.00 0.50 0.00 yes"
    assert "4.00-6.00" in lines[lines.index(next(line for line in lines if "sequential" in line)) + 1]
    [threads] = [line.split() for line in lines if "threads" in line]
    assert " ".join(threads) == "threads 0.50 2.00 1.00 2.50 0.25 3 2.50 1.25 1.50 NO"
    assert any("1/1 failed" in line for line in lines)


@pytest.mark.parametrize(
    ("sequential", "shared", "sentence"),
    [
        ([4.0, 6.0], [2.0, 2.2], "shared wins: created in 2.10 s, 2.38 times as fast as plain onnxruntime in a loop"),
        ([2.0, 2.2], [4.0, 6.0], "plain onnxruntime in a loop wins: created in 2.10 s, 2.38 times as fast as shared."),
        ([4.0, 6.0], [3.0, 4.5], "no clear difference: created in 3.75 s by shared, in 5.00 s by plain onnxruntime"),
        ([], [2.0], "shared wins: created in 2.00 s. Not compared with plain onnxruntime in a loop"),
        ([2.0], [], "plain onnxruntime in a loop takes 2.00 s."),
        ([], [], "nothing was measured."),
    ],
)
def test_the_first_sentence_says_who_won_by_how_much_and_over_what(
    sequential: list[float], shared: list[float], sentence: str, document: dict[str, Any]
) -> None:
    cases = [Case(MODEL, ("cpu", "cpu"), name) for name in ("sequential", "shared")]
    measured = [measurement("sequential", seconds) for seconds in sequential]
    measured += [measurement("shared", seconds) for seconds in shared]
    document["rows"] = json_rows(document, cases, measured)
    assert tables.headline(document).startswith(f"model on cpu x2: {sentence}")
    assert tables.markdown(document).startswith(tables.headline(document))


def test_what_only_specialists_read_needs_details(document: dict[str, Any]) -> None:
    plain, detailed = (tables.markdown(document, details) for details in (False, True))
    for column in ("| S/N |", "(S-1)/(N-1)", "a session, s"):
        assert column not in plain
        assert column in detailed
    assert "| speedup |" in plain


def test_narrow_terminal_gets_two_tables_and_loses_nothing(document: dict[str, Any]) -> None:
    lines = rendered(document, 80)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert len([line for line in lines if "sequential" in line]) == 2


def test_markdown_has_a_row_for_each_case(document: dict[str, Any]) -> None:
    lines = tables.markdown(document, details=True).splitlines()
    assert lines[2] == "### model, 2.00 GB, warm page cache, 2 repetitions"
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 3
    assert "| cpu x2 | sequential | 0.50 | 5.00 (4.00-6.00) |" in table[2]


def json_rows(document: dict[str, Any], cases: list[Case], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row.as_json(), "model": document["models"][0]["path"]} for row in rows(cases, measured)]


def test_floors_have_columns_where_they_were_measured(document: dict[str, Any]) -> None:
    assert "floor" not in tables.markdown(document, details=True)
    cases = [Case(MODEL, ("cpu", "cpu"), name) for name in ("sequential", "shared")]
    floors = {"driver_floor": 1.5, "sequential_read": 2.0}
    measured = [
        measurement("sequential", 4.0, **floors),
        *(measurement("shared", 3.0 + number / 10, **floors) for number in range(6)),
    ]
    document["rows"] = json_rows(document, cases, measured)
    document["settings"] |= {"page_cache": "cold", "entry": False, "before": "nothing"}
    text = tables.markdown(document, details=True)
    lines = text.splitlines()
    assert lines[2] == "### model, 2.00 GB, cold page cache, without a cache entry, 2 repetitions"
    header, shared = (
        [cell.strip() for cell in line.split("|")] for line in lines if "| strategy |" in line or "| shared |" in line
    )
    cells = dict(zip(header, shared, strict=True))
    assert cells["driver floor, s"] == "1.50"
    assert cells["above floor, s"] == "1.75 (1.50 to 2.00)"
    assert cells["sequential read, s"] == "2.00"
    assert cells["creation / floors"] == "1.62 (1.50 to 1.75)"
    assert "0% confidence" in text  # of the one sequential measurement
    assert rendered(document, 80)


def test_what_was_not_shared_is_said_below_the_table(document: dict[str, Any]) -> None:
    details = {"after_contexts": None, "not_shared": ["the model has no weights"]}
    measured = [measurement("shared", 1.0, details=details)]
    document["rows"] = json_rows(document, [Case(MODEL, ("cpu", "cpu"), "shared")], measured)
    text = tables.markdown(document)
    assert "| shared (see below) |" in text
    assert text.endswith("Not shared, model on cpu x2: the model has no weights.\n")


def test_results_are_read_back_as_they_were_written(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "result.json"
    results.save(document, file)
    assert results.load(file) == json.loads(json.dumps(document))
    assert [entry.name for entry in file.parent.iterdir()] == ["result.json"]


def test_interrupted_writing_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("old")

    def broken(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, broken)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", ["[]", "{}", '{"schema_version": 99}', "no json", "[" * 100_000])
def test_what_is_no_result_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    with pytest.raises(InvalidArgument, match=r"result\.json"):
        results.load(file)


def test_a_result_of_schema_version_2_has_the_names_of_today(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    runs = [{"experiment": "account"}, {"experiment": "gil"}]
    file.write_text(json.dumps({"schema_version": 2, "surroundings": {"cores": 2}, "runs": runs}))
    assert results.load(file) == {
        "schema_version": results.SCHEMA_VERSION,
        "environment": {"cores": 2},
        "runs": [{"experiment": "trace"}, {"experiment": "gil"}],
    }


def test_missing_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        results.load(tmp_path / "absent.json")
    with pytest.raises(NoSuchFile, match="cannot be read: Is a directory"):
        results.load(tmp_path)
