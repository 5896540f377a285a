"""`ortmulti bench create`: its plan, its rows, what it says, and whole comparisons."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortmulti import _core
from ortmulti.bench import models
from ortmulti.bench.create.measure_strategy import digest
from ortmulti.bench.create.plan import REPORT, Case, Plan, efficiencies, headline
from ortmulti.bench.measure import fresh_process, page_cache
from ortmulti.bench.measure.rounds import Interval, spread

MODEL = Path("folder/model.onnx")
TWO = ("cpu", "cpu")
MEASURE = "ortmulti.bench.create.measure_strategy"


def plan(**changes: Any) -> Plan:
    settings = {"models": [MODEL], "device_sets": (("cpu",), TWO), "strategies": ("sequential", "threads", "native")}
    return Plan(**{**settings, "repeat": 2, **changes})


# --- Plan and rows ----------------------------------------------------------------------------------------------------


def test_strategies_take_turns_and_each_repetition_begins_with_another_one() -> None:
    order = [(len(case.devices), case.strategy) for number in range(2) for case in plan().cases(number)]
    assert order == [
        (1, "sequential"), (1, "threads"), (1, "native"), (2, "sequential"), (2, "threads"), (2, "native"),
        (1, "threads"), (1, "native"), (1, "sequential"), (2, "threads"), (2, "native"), (2, "sequential"),
    ]  # fmt: skip


@pytest.mark.parametrize("threads", [None, 0, 3])
def test_strategies_get_the_same_threads_and_options_and_one_its_own(threads: int | None) -> None:
    made = plan(
        options={
            "provider_options": {"": {"a": "1", "b": "1"}, "threads": {"b": "2"}},
            "config_entries": {"": {"c": "1"}, "threads": {"d": "2"}},
        },
        intra_op_num_threads=threads,
    )
    own, usual = made.sessions(TWO, "threads"), made.sessions(TWO, "native")
    assert (
        own.intra_op_num_threads
        == usual.intra_op_num_threads
        == (max(1, _core.usable_cores() // 2) if threads is None else threads)
    )
    assert (own.provider_options, own.config_entries) == ({"a": "1", "b": "2"}, {"c": "1", "d": "2"})
    assert (usual.provider_options, usual.config_entries) == ({"a": "1", "b": "1"}, {"c": "1"})


def test_every_kind_of_devices_has_its_entry_before_anything_counts() -> None:
    models = [Path("a.onnx"), Path("b.onnx")]
    sets = [("cpu",), ("cpu", "cuda:0"), ("cuda:0",), ("cuda:0", "cuda:1")]
    chosen = Plan(models=models, device_sets=sets, strategies=["shared", "native"])
    assert chosen.uncounted() == [
        *(Case(model, devices, "shared") for model in models for devices in (("cpu",), ("cuda:0",), ("cpu", "cuda:0"))),
        Case(models[0], ("cpu",), "native"),
    ]
    without = dataclasses.replace(chosen, entry=False)
    assert without.uncounted() == [Case(models[0], ("cpu",), name) for name in ("shared", "native")]


def measured(creation: float, outputs: str = "a", **others: Any) -> dict[str, Any]:
    usual = {"starting": 0.5, "first_run": 0.25, "peak_rss": 3 << 20, "pss": 2 << 20, "gpu_memory": {}}
    return {**usual, "creation": creation, "sessions": [creation / 2] * 2, "outputs": [outputs] * 2, **others}


BROKEN = {"error": "it broke"}


def rows(**by_strategy: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows on two devices, from each strategy's results."""
    longest = max(map(len, by_strategy.values()))
    rounds = [
        {Case(MODEL, TWO, name): found[number] for name, found in by_strategy.items() if number < len(found)}
        for number in range(longest)
    ]
    made = plan(device_sets=[TWO], strategies=list(by_strategy)).rows(rounds)
    return {row["strategy"]: row for row in made}


def test_rows_against_values_computed_by_hand() -> None:
    found = rows(sequential=[measured(4.0), measured(6.0), measured(5.0)], threads=[measured(2.0), measured(3.0)])
    assert found["sequential"]["creation"] == spread([4.0, 5.0, 6.0])
    assert found["sequential"]["speedup"] == 1.0
    row = found["threads"]
    assert (row["model"], row["devices"], row["measured"], row["errors"]) == (str(MODEL), [*TWO], 2, [])
    for name, values in {"creation": [2.0, 3.0], "session": [1.0, 1.0, 1.5, 1.5], "ready": [2.5, 3.5]}.items():
        assert row[name] == spread(values)
    assert (row["speedup"], row["efficiency"], row["parallel_efficiency"], row["equal"]) == (2.0, 1.0, 1.0, True)


def test_efficiencies() -> None:
    # Of a report: four devices, 10.87 s one after the other, 4.38 s in processes.
    assert efficiencies(10.87 / 4.38, 4) == pytest.approx((0.6204, 0.4939), abs=1e-4)
    assert efficiencies(1.5, 1) == (1.5, None)


def test_other_outputs_are_detected_and_nothing_to_compare_with_is_not_equality() -> None:
    other = measured(1.0, "b")
    found = rows(sequential=[measured(1.0), other], threads=[measured(1.0)] * 2, native=[measured(1.0), other])
    assert [row["equal"] for row in found.values()] == [False, True, False]
    one_session_differs = measured(1.0) | {"outputs": ["a", "b"]}
    assert rows(sequential=[measured(1.0)], threads=[one_session_differs])["threads"]["equal"] is False
    row = rows(threads=[measured(1.0)])["threads"]
    assert (row["equal"], row["speedup"], row["efficiency"]) == (None, None, None)


def test_floors_belong_to_their_own_measurements() -> None:
    row = rows(
        shared=[
            measured(3.0, driver_floor=2.0, sequential_read=1.0),
            measured(7.0, driver_floor=5.0, sequential_read=1.0),
            measured(4.0, driver_floor=1.0, sequential_read=8.0),
        ]
    )["shared"]
    assert row["driver_floor"] == spread([1.0, 2.0, 5.0])
    assert row["above_floor"] == Interval.json([1.0, 2.0, 3.0])  # and not 4 - 2, the medians' difference
    assert row["times_floors"] == Interval.json([1.5, 1.4, 0.5])


def test_shared_rows_say_what_was_in_the_cache_and_what_was_not_shared() -> None:
    found = [
        measured(1.0, entry=entry, not_shared=reasons)
        for entry, reasons in (
            ({"present": False, "bytes": 10}, ["a"]),
            ({"present": True, "bytes": 20}, ["a", "b"]),
            (None, []),
        )
    ]
    row = rows(shared=found)["shared"]
    assert (row["entry"], row["entry_bytes"]) == ("absent, present", spread([10, 20]))
    assert row["not_shared"] == ["a", "b"]
    row = rows(shared=found[2:])["shared"]
    assert (row["entry"], row["entry_bytes"], row["not_shared"]) == (None, None, [])


def test_digest_sees_every_bit_the_type_the_shape_and_the_order() -> None:
    base = np.arange(6, dtype=np.float32)
    changed = base.copy()
    changed[5] = np.nextafter(changed[5], 10)
    variants = [
        [base], [changed], [base.reshape(2, 3)], [base.view(np.int32)], [base, base], [base, changed], [changed, base],
        [np.array(["a", "b"], dtype=object)], [np.array(["a", "c"], dtype=object)],
    ]  # fmt: skip
    assert len({digest(variant) for variant in variants}) == len(variants)
    assert digest([np.zeros(1, np.float32)]) != digest([-np.zeros(1, np.float32)])
    wide = np.arange(12, dtype=np.float32)
    assert digest([wide[::2]]) == digest([wide[::2].copy()])


# --- What it says -----------------------------------------------------------------------------------------------------


def document(**by_strategy: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "settings": {"repeat": 2, "page_cache": "cold", "entry": False, "before": "nothing"},
        "models": [{"name": "model", "path": str(MODEL), "bytes": 1000, "external_bytes": 2_000_000_000}],
        "rows": [*rows(**by_strategy).values()],
    }


@pytest.mark.parametrize(
    ("sequential", "shared", "sentence"),
    [
        ([4.0, 6.0], [2.0, 2.2], "shared wins: created in 2.10 s, 2.38 times as fast as plain onnxruntime in a loop"),
        ([2.0, 2.2], [4.0, 6.0], "plain onnxruntime in a loop wins: created in 2.10 s, 2.38 times as fast as shared."),
        ([4.0, 6.0], [3.0, 4.5], "no clear difference: created in 3.75 s by shared, in 5.00 s by plain onnxruntime"),
        ([4.0], [2.0], "shared wins: created in 2.00 s, 2.00 times as fast as plain onnxruntime in a loop (4.00 s). "
         "Measured once: --repeat shows whether that lasts."),
        ([], [2.0], "shared wins: created in 2.00 s. Not compared with plain onnxruntime in a loop"),
        ([2.0], [], "plain onnxruntime in a loop takes 2.00 s."),
        ([BROKEN], [], "nothing was measured."),
    ],
)  # fmt: skip
def test_the_first_sentence_says_who_won_by_how_much_and_over_what(
    sequential: list[Any], shared: list[float], sentence: str
) -> None:
    of_plain = [measured(one) if isinstance(one, float) else one for one in sequential]
    whole = document(sequential=of_plain, shared=[measured(seconds) for seconds in shared])
    assert headline(whole).startswith(f"model on cpu x2: {sentence}")


def test_the_table_has_floors_failures_and_what_was_not_shared() -> None:
    floors = {"driver_floor": 1.5, "sequential_read": 2.0}
    why = ["the model has no weights"]
    whole = document(
        sequential=[measured(4.0, **floors), BROKEN],
        shared=[measured(3.0 + number / 10, **floors, not_shared=why) for number in range(6)],
    )
    text = REPORT.markdown(whole, details=True)
    assert "### model, 2.00 GB, cold page cache, without a cache entry, 2 repetitions" in text
    head, shared = (
        [cell.strip() for cell in line.split("|")]
        for line in text.splitlines()
        if "| strategy |" in line or "| shared (see below) |" in line
    )
    cells = dict(zip(head, shared, strict=True))
    assert cells["driver floor, s"] == "1.50"
    assert cells["above floor, s"] == "1.75 (1.50 to 2.00)"
    assert cells["creation / floors"] == "1.62 (1.50 to 1.75)"
    assert "| sequential (1/2 failed) |" in text
    assert "0% confidence" in text  # of the one sequential measurement
    assert text.endswith("Not shared, model on cpu x2: the model has no weights.\n")
    assert "floor" not in REPORT.markdown(document(sequential=[measured(4.0)]), details=True)


# --- Whole comparisons ------------------------------------------------------------------------------------------------


def test_cold_measurements_begin_without_the_model_in_memory(model: Path) -> None:
    found = Plan(models=[model], device_sets=[("cpu",)], strategies=["sequential"], repeat=2, cold=True).run()
    if any("stayed in the page cache" in text for text in Plan.failures(found)):
        pytest.skip("the temporary folder is in memory")
    assert [one["resident_share"] for one in found["measurements"]] == [0.0, 0.0]
    [row] = found["rows"]
    times = [one["creation"] / one["sequential_read"] for one in found["measurements"]]
    assert row["times_floors"]["median"] == pytest.approx(sum(times) / 2)


@pytest.mark.parametrize("before", ["nothing", "contexts", "model"])
def test_driver_floor_comes_before_a_creation_and_after_it_in_turns_unless_contexts_are_there(
    before: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, dict[str, Any]]] = []

    def start(module: str, spec: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        started.append((module.rpartition(".")[2], spec))
        floor = {"driver_floor": 2.0, "cuInit": 1.0, "contexts": [1.0]}
        return floor if module.endswith("floor") else measured(3.0)

    monkeypatch.setattr(fresh_process, "run", start)
    changes: dict[str, Any] = {"device_sets": [("cuda:1", "cuda:0")], "strategies": ["threads", "native"]}
    found = plan(models=[model], before=before, **changes).run()
    uncounted, counted = ["measure_strategy"] * 2, ["floor", "measure_strategy"] * 2
    has_floors = before == "nothing"
    assert [module for module, _ in started] == (
        [*uncounted, *counted, *counted[::-1]] if has_floors else ["measure_strategy"] * 6
    )
    assert all(spec["devices"] == ["cuda:1", "cuda:0"] for _, spec in started)
    assert all(has_floors or (spec["before"] == "contexts") == (before == "contexts") for _, spec in started)
    assert [row["above_floor"] and row["above_floor"]["median"] for row in found["rows"]] == [
        1.0 if has_floors else None
    ] * 2


@pytest.mark.parametrize("changes", [{}, {"entry": False}, {"cold": True}])
def test_cache_is_a_scratch_one_in_the_same_state_before_each_measurement(
    changes: dict[str, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files stand for an entry, since sessions on the CPU need none; a first load finds none, a cold one not in
    memory.
    """
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "mine"))
    resident: list[float] = []

    def start(_module: str, _spec: Any, _timeout: float, environment: dict[str, str], **_: object) -> dict[str, Any]:
        cache = Path(environment["ORTMULTI_CACHE"])
        folder = cache / "entries" / "digest"
        resident.append(page_cache.resident_share([model, *folder.glob("*.onnx")]))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(bytes(1 << 20))
        (folder / "shared").touch()
        (cache / "lock").write_bytes(b"x")
        return measured(1.0)

    monkeypatch.setattr(fresh_process, "run", start)
    found = Plan(models=[model], device_sets=[("cpu",)], strategies=["shared"], repeat=2, **changes).run()
    if any("stayed in the page cache" in text for text in Plan.failures(found)):
        pytest.skip("the temporary folder is in memory")
    assert {one["entry"]["present"] for one in found["measurements"]} == {changes.get("entry", True)}
    assert {one["entry"]["bytes"] for one in found["measurements"]} == {1 << 20}
    assert set(resident) == {0.0 if "cold" in changes else 1.0}
    assert not (tmp_path / "mine").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("before", ["nothing", "contexts"])
def test_driver_floor_is_measured_beside_each_creation_that_makes_contexts(before: Any, model: Path) -> None:
    strategies = ["sequential", "shared"]
    found = Plan(models=[model], device_sets=[("cuda:0",)], strategies=strategies, repeat=2, before=before).run()
    assert Plan.failures(found) == []
    for one in found["measurements"]:
        assert ("driver_floor" in one) == (before == "nothing")
        assert before == "contexts" or 0 < one["cuInit"] < one["driver_floor"]
    if before == "nothing":
        differences = sorted(
            m["creation"] - m["driver_floor"] for m in found["measurements"] if m["strategy"] == "shared"
        )
        assert [found["rows"][1]["above_floor"][end] for end in ("low", "high")] == differences


def test_only_the_libraries_own_imports_are_creation_and_other_weights_give_other_outputs(tmp_path: Path) -> None:
    model, other = (models.make("matmul", tmp_path, megabytes=1, seed=seed) for seed in (0, 1))
    np.savez(tmp_path / "feeds.npz", **models.sample_inputs(model))
    found = {}
    for strategy, first, path in (("sequential", "time.sleep(1)", model), ("native", "", other),
                                  ("native", "time.sleep(1)", model)):  # fmt: skip
        spec = {"strategy": strategy, "devices": ["cpu"], "settings": {}, "model": str(path)}
        spec["feeds"] = str(tmp_path / "feeds.npz")
        found[strategy, first] = fresh_process.run(MEASURE, spec, timeout=60, first=first)
    plain, different, delayed = found.values()
    assert delayed["creation"] + delayed["starting"] > 1
    assert all(one["creation"] + one["starting"] < 1 for one in (plain, different))
    assert plain["outputs"] == delayed["outputs"] != different["outputs"]
