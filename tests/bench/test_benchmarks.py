"""The benchmarks run and report; what they measure is no matter here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from benchmarks import (
    batching,
    concurrent_creation,
    feeding,
    first_answers,
    import_time,
    init_options,
    neighbours,
    plugin_creation,
    queue_rules,
    repository_memory,
    run_overhead,
    service,
    serving,
    texts,
    thread_settings,
    weight_loading,
)
from ortmulti import Timeline
from ortmulti.bench import script
from ortmulti.bench.script import Script
from tests.support import fake_driver, onnx_models, plugins
from tests.support.processes import check_child

Run = Callable[[ModuleType, str], tuple[int, dict[str, Any]]]


def experiment(module: ModuleType) -> type[Script[Any]]:
    [kind] = (
        one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Script) and one is not Script
    )
    return kind


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script, and returns its exit status and its result."""
    monkeypatch.chdir(tmp_path)

    def run(module: ModuleType, arguments: str) -> tuple[int, dict[str, Any]]:
        status = script.main(experiment(module), [*shlex.split(arguments), "--json", "result.json"])
        return status, json.loads(Path("result.json").read_text())

    return run


def fields(document: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A result with other settings."""
    return {**document, "settings": {**document["settings"], **changes}}


# Script, arguments, limits that cannot be missed, and limits that must be.
LIMITS: dict[ModuleType, tuple[str, dict[str, float], list[dict[str, float]]]] = {
    run_overhead: ("--repeat 2 --runs 5", {"limit": 1e9}, [{"limit": 0}]),
    import_time: ("--repeat 1", {"limit": 1e9}, [{"limit": -1e9}]),
    batching: (
        "matmul:megabytes=1 --device cpu --max-size 3 --repeat 1 --seconds 0.1",
        {"least_share": 0, "most_p99": 1e9},
        [{"most_p99": 0}, {"least_share": 1e9}],
    ),
    first_answers: ("identity --devices cpu --repeat 1", {"tolerance": 1}, [{"tolerance": -1}]),
}


@pytest.mark.parametrize("module", LIMITS, ids=lambda module: module.__name__)
def test_a_script_fails_past_its_limits_only(module: ModuleType, run: Run) -> None:
    arguments, good, missed = LIMITS[module]
    _, document = run(module, arguments)
    kind = experiment(module)
    assert kind.failures(fields(document, **good)) == []
    for limit in missed:
        assert len(kind.failures(fields(document, **{**good, **limit}))) >= 1


SCRIPTS: dict[ModuleType, str] = {
    concurrent_creation: "--repeat 2 --devices cpu --run-every 1",
    feeding: "--which 'MLP 0.3 MB' --repeat 1 --seconds 0.02 --share 100",
    init_options: "matmul:megabytes=1 --repeat 1 --runs 1",
    thread_settings: "--repeat 1 --seconds 0.02",
}


@pytest.mark.parametrize("module", SCRIPTS, ids=lambda module: module.__name__)
def test_a_script_measures_every_case(module: ModuleType, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run(module, SCRIPTS[module])
    assert status == 0, capsys.readouterr().out
    assert {"machine", "releases", "settings"} <= document.keys()
    assert document["command"][:3] == ["python", "-m", module.__name__]
    assert all("error" not in one for one in document["measurements"])
    assert all(row["measured"] for row in document["rows"])
    columns = [column.head for column in experiment(module).columns if not column.rare]
    assert all(f"| {head} |" in capsys.readouterr().out or head for head in columns)


def test_a_failed_measurement_is_the_scripts_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_time, "CASES", dict.fromkeys(import_time.CASES, "raise SystemExit(3)"))
    monkeypatch.setattr(import_time.ImportTime, "prepare", lambda *_: None)
    status, document = run(import_time, "--repeat 1")
    assert status == 1
    assert all("failed: 3" in one["error"] for one in document["measurements"])


def test_an_argument_that_is_wrong_ends_a_script_with_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        run(weight_loading, "identity --devices cpu")
    assert refused.value.code == 2
    assert "this needs a GPU, not cpu" in capsys.readouterr().err


def test_serving() -> None:
    pytest.importorskip("grpc")
    few = {"requests": 400, "clients": 4, "ends": 1, "hostile": 80, "bodies": 2000, "idle": 10, "seed": 1}
    for case in serving.CASES:
        assert serving.measure({**few, "most_memory": 200.0, "case": case})["right"]


def test_texts(run: Run) -> None:
    few = "--repeat 1 --seconds 0.2 --clients 8 --texts 80 --most-rows 8"
    _, document = run(texts, f"encoder:layers=1,hidden=48 {few}")
    assert [(row["kind"], row["way"]) for row in document["rows"]] == [
        (kind, way) for kind in ("serve", "offline") for way in ("one", "longest", "hand", "padded")
    ]
    for one in document["measurements"]:
        assert one["rate"] > 0
        assert one["way"] != "padded" or 0 <= one["waste"] < 0.5


def test_queue_rules() -> None:
    found = queue_rules.deadlines({"requests": 40})
    assert found["counted"] == sum(found["outcomes"].values()) == 40
    found = queue_rules.soak({"seconds": 1.0})
    assert found["outcomes"].keys() <= {"answers", "CancelledError", "DeadlineExceeded", "QueueFull"}
    assert len(found["parts"]) == 10
    found = queue_rules.priorities({"seconds": 0.6, "waiting": 10})
    assert {f"{what} 2" for what in ("idle", "beside -1", "beside 0")} <= found.keys()


def test_repository_memory(tmp_path: Path, run: Run) -> None:
    for number in range(2):
        (tmp_path / f"{number}.onnx").write_bytes(onnx_models.matmul())
    budget = 3 * len(onnx_models.matmul()) // 2
    _, document = run(repository_memory, f"0.onnx 1.onnx --budget {budget} --evictions 2 --batch 1 --repeat 1")
    assert {one["case"] for one in document["measurements"]} == set(repository_memory.SETTINGS)
    for one in document["measurements"]:
        assert one["counted"] < one["idle"] <= one["peak"]


def test_neighbours_are_measured_alone_and_together(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "TOGETHER", ("long+short", "load"))
    (tmp_path / "short.onnx").write_bytes(onnx_models.matmul())
    _, document = run(neighbours, "matmul:megabytes=1 short.onnx --devices cpu,cpu --seconds 0.1 --repeat 1")
    assert not document["partial"]
    rows = document["rows"]
    assert [row["library"] for row in rows] == ["ortmulti", "onnxruntime"] * 2
    for row in rows:
        measured = {name for name, key in (("long", "long_p99"), ("short", "short_p50"), ("load", "load")) if row[key]}
        assert measured == set(row["together"].split("+"))


def test_service(run: Run) -> None:
    for needed in ("fastapi", "uvicorn"):
        pytest.importorskip(needed)
    status, document = run(service, "--repeat 1 --seconds 0.3")
    assert status == document["SIGTERM"]["lost"] == 0
    assert document["SIGTERM"]["answered"] >= 200


def test_first_answers_are_held_against_the_last_context_and_one_device() -> None:
    outputs = {"cuda:0": [1.0, 0.0], "cuda:1": [1.0, 0.5]}
    one = {"answers": {"cuda:0": 2.0, "cuda:1": 4.5}, "contexts": 3.0, "one": 1.25, "outputs": outputs}
    assert (first_answers.behind(one), first_answers.ahead(one)) == (0.25, 1.0)
    assert first_answers.largest_difference(one) == 0.5


def test_plugin_creation(tmp_path: Path, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (plugin_creation.FIRST, plugin_creation.LATER, plugin_creation.ORDINARY, plugin_creation.IN_F32)
    cases = [plugin_creation.Case(name, 1 if name == plugin_creation.IN_F32 else 4) for name in names]
    monkeypatch.setattr(plugin_creation.PluginCreation, "cases", lambda *_: cases)
    _, document = run(plugin_creation, f"{model} --library={plugins.openvino(tmp_path)} --repeat=1")
    assert [one["way"] for one in document["measurements"]] == list(names)
    good = {"most_creation": 1e9, "most_difference": 0.1}
    assert plugin_creation.PluginCreation.failures(fields(document, **good)) == []
    assert len(plugin_creation.PluginCreation.failures(fields(document, most_creation=0, most_difference=-1))) == 2


def test_the_difference_is_a_part_of_the_largest_value() -> None:
    expected = [np.array([1.0, -4.0]), np.array([2.0])]
    assert plugin_creation.difference([np.array([1.5, -4.0]), np.array([2.0])], expected) == 0.125


def test_ceiling_copies_from_one_pinned_buffer_and_frees_everything(tmp_path: Path) -> None:
    driver = fake_driver.build(tmp_path)
    code = """
        from ortmulti.bench.measure import pinned_copy
        pinned_copy.BUFFER_BYTES, pinned_copy.TARGET_BYTES = 1000, 2000
        copy = pinned_copy.PinnedCopy(1)
        assert copy.seconds(2500) > 0
        copy.close()
    """
    check_child(code, environment=driver.environment)
    assert driver.calls == [
        "init 0", "context 1", "pin 1000 1", "allocate 2000", "stream 1",
        "copy 1000 to 0", "copy 1000 to 1000", "copy 500 to 0", "wait",
        "end of stream", "free", "unpin",
    ]  # fmt: skip


def test_loading_seconds_are_of_the_first_device_and_of_the_last() -> None:
    timeline = Timeline()
    timeline.add("load weights", 1_000_000_000, 3_000_000_000, "cuda:0")
    timeline.add("copy weights from cuda:0", 2_000_000_000, 3_250_000_000, "cuda:2")
    timeline.add("copy weights from cuda:0", 2_000_000_000, 3_125_000_000, "cuda:1")
    timeline.add("create session", 3_000_000_000, 9_000_000_000, "cuda:1")
    assert weight_loading.loading_seconds(timeline) == {"load": 2.0, "behind": 0.25}


def test_load_that_shared_nothing_is_an_error_that_says_why() -> None:
    timeline = Timeline()
    timeline.add("not shared: the model has no weights", 1, 1)
    with pytest.raises(RuntimeError, match="the model has no weights"):
        weight_loading.loading_seconds(timeline)


@pytest.mark.gpu
def test_first_answers_of_gpus(run: Run) -> None:
    _, document = run(first_answers, "matmul:megabytes=64 --repeat 1 --most-behind inf")
    [each] = [one for one in document["measurements"] if one["case"] == "all"]
    assert each["contexts"] > 0
    assert list(each["answers"]) == document["settings"]["devices"]


@pytest.mark.gpu
@pytest.mark.gpu_memory
def test_weight_loading(run: Run) -> None:
    _, document = run(weight_loading, "matmul:megabytes=64 --repeat 2")
    assert all("error" not in one for one in document["measurements"])
    rows = {row["case"]: row for row in document["rows"]}
    assert rows["load"]["share"]["median"] > 0
    assert all(rows[case]["memory"]["median"] > 0 for case in weight_loading.MEMORY)
