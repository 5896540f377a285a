"""The file that tuning writes, and what loading does with it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ortmulti
from ortmulti import GraphOptimizationLevel, SessionOptions, Tuning, TuningWarning
from ortmulti.errors import InvalidArgument, InvalidType, NoSuchFile
from ortmulti.loading.tuning import LOAD_DEFAULTS, apply, describe_machine, describe_model, differences
from ortmulti.loading.tuning_options import OPTIONS, affinities, numa_nodes
from tests.support import onnx_models
from tests.support.processes import check_child

CPU = ["CPUExecutionProvider"]

SETTINGS: dict[str, bool | int | str] = {
    "graph_optimization_level": "basic",
    "intra_op_num_threads": 2,
    "thread_affinity": "cores",
    "allow_spinning": False,
    "sessions_per_device": 3,
    "enable_mem_pattern": False,
}


def weighted(width: int = 300, value: float = 1.0) -> bytes:
    """ "y" = "x" @ a weight of this width and value."""
    weight = numpy_helper.from_array(np.full((4, width), value, np.float32), "w")
    text = f"(float[n, 4] x) => (float[n, {width}] y) {{ y = MatMul(x, w) }}"
    return onnx_models.parsed(text, weight).SerializeToString()


def tuning(**changes: Any) -> Tuning:
    one = Tuning(
        settings=SETTINGS,
        objective="latency",
        devices=("cpu",),
        model={"name": "model.onnx", **describe_model(ortmulti.Model(weighted()))},
        machine=describe_machine("cpu"),
        gain={"ratio": 1.5, "low": 1.4, "high": 1.6},
        created="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(one, **changes)


X = {"x": np.ones((2, 4), np.float32)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.tuning.json"
    one = tuning(partial="interrupted")
    one.write(path)
    assert Tuning.read(path) == one
    assert json.loads(path.read_text())["settings"] == SETTINGS
    assert Tuning.read(str(path)).kind == "cpu"


def _changed(**changes: Any) -> str:
    return json.dumps({**tuning().as_json(), **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a tuning file: "),
        (" " * (2**20 + 1), "is not a tuning file: it has more than 1048576 bytes"),
        ('{"kind": "create"}', "it is not a tuning file"),
        (_changed(version=7), "its version is 7, and this release reads 1"),
        (_changed(extra=1), "there is no field 'extra'"),
        (_changed(settings={"intra_threads": 1}), "no setting 'intra_threads'.*intra_op_num_threads"),
        (_changed(settings={"intra_op_num_threads": "1"}), "intra_op_num_threads is of type int, not '1'"),
        (_changed(settings={"intra_op_num_threads": -1}), "is 0 or more, not -1"),
        (_changed(settings={"graph_optimization_level": "most"}), "'disabled' or 'basic'"),
        (_changed(settings={"thread_affinity": "node:x"}), "'cores' or 'node:N'"),
        (_changed(settings={"env:LD_PRELOAD": "x"}), "no setting 'env:LD_PRELOAD'"),
        (_changed(model=None), "model cannot be None"),
        (_changed(gain={"low": "@"}).replace('"@"', "[[[[]]]]"), "it is nested too deeply"),
        (json.dumps({key: value for key, value in tuning().as_json().items() if key != "gain"}), "'?gain'? is missing"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.tuning.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match=f"a.tuning.json'.*{message}"):
        Tuning.read(path)
    with pytest.raises(InvalidArgument, match=message):
        ortmulti.load(weighted(), "cpu", loading=ortmulti.Loading(tuning=path))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [("/none.json", NoSuchFile, "cannot be read"), (7, InvalidType, r"path of a file or an ortmulti\.Tuning")],
)
def test_a_missing_file_and_something_else_are_errors(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ortmulti.InferenceSession(weighted(), tuning=wrong)


@pytest.mark.filterwarnings("error")
def test_every_way_of_loading_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    tuning().write(path)
    with ortmulti.load(weighted(), "cpu", loading=ortmulti.Loading(tuning=path)) as pool:
        assert len(pool.devices) == 3
        np.testing.assert_array_equal(pool.run(None, X)[0], np.full((2, 300), 4, np.float32))
    with ortmulti.create_sessions(weighted(), "cpu", loading=ortmulti.Loading(tuning=tuning())) as [session]:
        assert session.get_session_options().intra_op_num_threads == 2
    with ortmulti.InferenceSession(weighted(), providers=CPU, tuning=path) as session:
        session.run(None, X)
        options = session.get_session_options()
    assert options.get_session_config_entry("session.intra_op_thread_affinities") == affinities("cores", 2)
    assert options.graph_optimization_level == GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.enable_mem_pattern is False
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    # Large weights are not looked at: a model that was trained further is the same.
    ortmulti.load(weighted(value=2.0), "cpu", loading=ortmulti.Loading(tuning=tuning())).close()


def test_what_the_caller_gives_himself_wins() -> None:
    given = SessionOptions()
    given.intra_op_num_threads = 3
    given.add_session_config_entry("session.intra_op.allow_spinning", "1")
    applied = apply(
        {**SETTINGS, "use_tf32": False, "prefer_nhwc": True, "in_flight": 6},
        given,
        {"use_tf32": True},
        {"sessions_per_device": 2, "in_flight": "auto", "cuda_graph": False},
    )
    options = applied.options
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert options.enable_mem_pattern is False
    assert applied.provider_options == {"use_tf32": True, "prefer_nhwc": True}
    assert applied.load == {"sessions_per_device": 2, "in_flight": 6, "cuda_graph": False}
    # What is for one kind of threads or arenas contradicts the other.
    given.add_session_config_entry("session.use_env_allocators", "1")
    given.threads = ortmulti.Threads()
    kept = apply({"enable_cpu_mem_arena": False, "thread_affinity": "cores", "global_thread_pools": True}, given)
    assert kept.options.enable_cpu_mem_arena
    assert kept.options.use_per_session_threads
    assert "session.intra_op_thread_affinities" not in kept.options._core.config_entries
    # The caller's object stays as it was.
    assert given.enable_mem_pattern is None
    with pytest.raises(InvalidArgument):
        given.get_session_config_entry("session.inter_op.allow_spinning")


def test_every_option_goes_somewhere() -> None:
    values = {
        name: {bool: True, int: 2, str: next(iter(option.words), "cores")}[option.kind]
        for name, option in OPTIONS.items()
        if option.where != "environment"
    }
    applied = apply(values)
    entries = applied.options._core.config_entries
    for name in values:
        option = OPTIONS[name]
        assert option.where != "config" or set(option.keys) <= set(entries)
        assert option.where != "provider" or name in applied.provider_options
        assert option.where != "load" or applied.load[name] != LOAD_DEFAULTS[name]


def test_another_model_is_an_error_and_another_graph_a_warning() -> None:
    message = r"is for another model, model\.onnx: this one's weights have other names"
    with pytest.raises(InvalidArgument, match=message):
        ortmulti.load(weighted(width=301), "cpu", loading=ortmulti.Loading(tuning=tuning()))
    renamed = onnx.load_from_string(weighted())
    renamed.graph.node[0].name = "other"
    with pytest.warns(TuningWarning, match="another graph or other small weights"):
        ortmulti.load(renamed.SerializeToString(), "cpu", loading=ortmulti.Loading(tuning=tuning())).close()


def test_a_model_is_the_same_as_a_file_and_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(weighted())
    found = [describe_model(ortmulti.Model(model)) for model in (path, weighted(), memoryview(weighted()))]
    assert found[0] == found[1] == found[2]
    assert describe_model(ortmulti.Model(b"\xff nothing")) == {"shapes": None, "graph": None}


@pytest.mark.parametrize("load", [ortmulti.load, ortmulti.create_sessions, ortmulti.InferenceSession])
def test_elsewhere_is_a_warning_at_the_caller(load: Any) -> None:
    of_session = load is ortmulti.InferenceSession
    machine = {**describe_machine("cpu"), "cores": 96, "onnxruntime": "1.22.0"}
    message = r"measured elsewhere.*cores 96, here \d+; onnxruntime 1\.22\.0, here 1\."
    given = tuning(machine=machine)
    arguments = {"tuning": given} if of_session else {"loading": ortmulti.Loading(tuning=given)}
    with pytest.warns(TuningWarning, match=message) as caught:
        load(weighted(), **arguments).close()
    assert {warning.filename for warning in caught} == {__file__}
    of_gpus = differences({"gpus": ["A"], "driver": "1"}, {"gpus": ["A", "B"], "driver": None})
    assert of_gpus == ["GPU A, here A and B", "driver 1, here unknown"]


@pytest.mark.parametrize(
    ("changes", "message", "threads"),
    [
        ({"devices": ("cuda:0",)}, "is for GPUs and not used: these sessions are on the CPU", 0),
        ({}, r"is used without spin_duration_us: needs onnxruntime 1\.26, not 1\.23\.2", 1),
    ],
)
def test_what_is_for_gpus_or_newer_releases_is_left_out(
    changes: dict[str, Any], message: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortmulti.devices.providers.loaded_release", lambda: "1.23.2")
    other = tuning(settings={"spin_duration_us": 50, "intra_op_num_threads": 1}, **changes)
    with (
        pytest.warns(TuningWarning, match=message),
        ortmulti.InferenceSession(weighted(), providers=CPU, tuning=other) as session,
    ):
        options = session.get_session_options()
    assert options.intra_op_num_threads == threads
    with pytest.raises(InvalidArgument):
        options.get_session_config_entry("session.intra_op.spin_duration_us")


def test_global_thread_pools_are_made_with_the_environment() -> None:
    printed = check_child(
        """
        import sys, warnings
        import ortmulti
        from tests.bench.test_tune_file import X, tuning, weighted

        one = tuning(settings={"global_thread_pools": True, "intra_op_num_threads": 2, "thread_affinity": "cores"})
        for _ in range(2):
            with ortmulti.InferenceSession(weighted(), tuning=one) as session:
                session.run(None, X)
                print(session.get_session_options().use_per_session_threads)
        other = tuning(settings={"global_thread_pools": True, "intra_op_num_threads": 1})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ortmulti.InferenceSession(weighted(), tuning=other) as session:
                print(session.get_session_options().use_per_session_threads)
        print("without global_thread_pools: ONNX Runtime's environment is there already" in str(caught[-1].message))
        """
    )
    assert printed.split() == ["False", "False", "True", "True"]


def test_affinities_and_numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(os.sched_getaffinity(0))
    for node, cpus in ((0, f"{first}-{first}"), (1, "4000-4003"), (10, f"{first},5000")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert numa_nodes(tmp_path) == {0: (first,), 10: (first,)}
    usable = sorted(os.sched_getaffinity(0))
    assert affinities("cores", 1) == ""
    assert affinities("cores", 2) == str(usable[1 % len(usable)] + 1)
    monkeypatch.setattr("ortmulti.loading.tuning_options.numa_nodes", lambda: {0: (0,), 1: (2, 5)})
    assert affinities("node:1", 3) == "3,6;3,6"
    with pytest.raises(InvalidArgument, match="no NUMA node 7"):
        affinities("node:7", 2)
