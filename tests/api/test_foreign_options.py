"""onnxruntime's own SessionOptions and RunOptions where ortmulti's are taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti._runtime import libraries
from ortmulti.options import config_entries
from ortmulti.options.foreign_options import to_run_options, to_session_options
from tests.support import onnx_models, option_values
from tests.support.option_values import RUN, plain
from tests.support.processes import lines

MODEL = onnx_models.matmul(8)
X = np.ones((1, 8), np.float32)
CPU = ["CPUExecutionProvider"]

SESSION = {name: value for name, value in option_values.SESSION.items() if hasattr(onnxruntime.SessionOptions, name)}


@pytest.mark.parametrize(
    ("kind", "name"), [*(("SessionOptions", name) for name in SESSION), *(("RunOptions", name) for name in RUN)]
)
def test_each_option_is_taken_over(kind: str, name: str) -> None:
    theirs, default = getattr(onnxruntime, kind)(), getattr(ortmulti, kind)()
    values = SESSION if kind == "SessionOptions" else RUN
    setattr(theirs, name, values[name])
    ours = to_session_options(theirs) if kind == "SessionOptions" else to_run_options(theirs)
    for each in values:
        assert getattr(ours, each) == plain(values[each] if each == name else getattr(default, each))


def test_no_attribute_is_overlooked() -> None:
    """Those of this release, with what is refused in other tests."""
    for theirs, ours, unset in (
        (onnxruntime.SessionOptions, SESSION, {"enable_mem_reuse", "execution_order"}),
        (onnxruntime.RunOptions, RUN, {"only_execute_path_to_fetches"}),
    ):
        properties = {name for name, value in vars(theirs).items() if isinstance(value, property)}
        assert properties == {*ours, *unset}


def test_config_entries_under_known_keys_are_taken_over() -> None:
    theirs = onnxruntime.SessionOptions()
    theirs.add_session_config_entry("session.disable_prepacking", "1")
    theirs.add_session_config_entry("session.intra_op.allow_spinning", "0")
    theirs.add_session_config_entry("my.own", "cannot be asked for")
    ours = to_session_options(theirs)
    assert ours is not None
    assert ours._core.config_entries == {"session.disable_prepacking": "1", "session.intra_op.allow_spinning": "0"}
    run = onnxruntime.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    taken = to_run_options(run)
    assert taken is not None
    assert taken.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_every_known_key_is_asked_for() -> None:
    theirs = onnxruntime.SessionOptions()
    keys = list(config_entries.SESSION)
    assert len(keys) == len(set(keys))
    others = {
        "optimization.minimal_build_optimizations": "save",
        "session.inter_op.spin_backoff_max": "4",
        "session.intra_op.spin_backoff_max": "4",
        "session.intra_op_thread_affinities": "1",
        "session.load_model_format": "ONNX",
        "session.save_model_format": "ONNX",
    }
    for key in keys:
        theirs.add_session_config_entry(key, others.get(key, "0"))
    ours = to_session_options(theirs)
    assert ours is not None
    assert set(ours._core.config_entries) == set(keys)


def test_the_keys_are_those_of_the_installed_release() -> None:
    """What the library has of names of this form."""
    library = libraries.find_onnxruntime().path.read_bytes()
    names = re.findall(rb"(?<![\w.])(?:session|optimization|mlas|memory)(?:\.[a-z0-9_]+)+(?=\0)", library)
    known = {*config_entries.SESSION, *config_entries.RUN}
    assert len(names) > 20
    # Short texts may lie in instructions instead, a part of one beside a part of another.
    assert {name.decode() for name in names if name.count(b"session.") < 2} <= known


# --- Where they are taken ---------------------------------------------------------------------------------------------


def test_sessions_are_created_with_them(tmp_path: Path) -> None:
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 1
    theirs.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    with ortmulti.InferenceSession(MODEL, theirs, CPU) as session:
        theirs.logid = "later"
        assert session.get_session_options().logid == ""
        assert session.get_session_options().intra_op_num_threads == 1
        assert (tmp_path / "optimized.onnx").is_file()
        expected = session.run(None, {"x": X})[0]
    theirs.optimized_model_filepath = ""
    with ortmulti.create_sessions(MODEL, "cpu", 2, theirs) as sessions:
        assert [session._core.intra_op_num_threads() for session in sessions] == [1, 1]
        np.testing.assert_array_equal(sessions[1].run(None, {"x": X})[0], expected)
    with ortmulti.load(MODEL, "cpu", options=theirs) as pool:
        assert pool.sessions[0].get_session_options().intra_op_num_threads == 1
    assert ortmulti.optimize(MODEL, "cpu", options=theirs).path


@pytest.fixture
def runs() -> list[Callable[[Any], object]]:
    session = onnx_models.cpu_session(MODEL)
    value = ortmulti.OrtValue.ortvalue_from_numpy(X)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    return [
        lambda options: session.run(None, {"x": X}, options),
        lambda options: session.run_with_ort_values(None, {"x": value}, options),
        lambda options: session.run_with_iobinding(binding, options),
    ]


@pytest.mark.parametrize("package", [onnxruntime, ortmulti])
def test_runs_take_them_and_ortmultis(package: Any, runs: list[Callable[[Any], object]]) -> None:
    for run in runs:
        options = package.RunOptions()
        run(options)
        options.terminate = True  # when the run begins
        with pytest.raises(ortmulti.Error, match="terminate"):
            run(options)
        options.terminate = False
        run(options)


def test_what_is_changed_after_a_run_has_begun_has_no_effect() -> None:
    session = onnx_models.cpu_session(onnx_models.endless())
    feed = {"count": np.array(1000), "x": np.zeros(1, np.float32)}
    options = onnxruntime.RunOptions()
    taken = to_run_options(options)  # the beginning of a run
    options.terminate = True
    assert session.run(None, feed, taken)[0].tolist() == [1000]


def test_while_the_package_is_patched() -> None:
    theirs, run = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    with ortmulti.patch_onnxruntime():
        session = onnxruntime.InferenceSession(MODEL, theirs, CPU)
        assert type(session) is ortmulti.InferenceSession
        assert session.run(None, {"x": X}, run)[0].shape == (1, 8)


def test_onnxruntime_is_not_imported_for_it() -> None:
    code = """
        made = session()
        made.run(None, {"x": x}, om.RunOptions())
        print(error_of(om.InferenceSession, model, 1))
        print(error_of(made.run, None, {}, 1))
        print("onnxruntime" in sys.modules)
    """
    assert lines(code, MODEL) == [
        "InvalidType: session options are an ortmulti.SessionOptions, not int: for example "
        "options = ortmulti.SessionOptions(); options.intra_op_num_threads = 1",
        "InvalidType: run_options must be an ortmulti.RunOptions, not int: for example "
        "options = ortmulti.RunOptions(); options.log_severity_level = 3",
        "False",
    ]


# --- What is refused, by name -----------------------------------------------------------------------------------------

CREATE: list[Callable[[Any], object]] = [
    lambda options: ortmulti.InferenceSession(MODEL, options, CPU),
    lambda options: ortmulti.create_sessions(MODEL, "cpu", options=options),
    lambda options: ortmulti.load(MODEL, "cpu", options=options),
    lambda options: ortmulti.optimize(MODEL, "cpu", options=options),
]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("execution_order", lambda o: setattr(o, "execution_order", onnxruntime.ExecutionOrder.PRIORITY_BASED)),
        ("enable_mem_reuse", lambda o: setattr(o, "enable_mem_reuse", False)),
        ("add_provider", lambda o: o.add_provider("CPUExecutionProvider", {})),
    ],
)
def test_what_session_options_cannot_be_given(name: str, change: Callable[[Any], object]) -> None:
    theirs = onnxruntime.SessionOptions()
    if not hasattr(theirs, name):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no {name}")
    change(theirs)
    for create in CREATE:
        with pytest.raises(ortmulti.NotImplemented, match=name):
            create(theirs)


def test_what_run_options_cannot_be_given(runs: list[Callable[[Any], object]]) -> None:
    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    for run in runs:
        with pytest.raises(ortmulti.NotImplemented, match="only_execute_path_to_fetches"):
            run(options)


def test_an_attribute_of_a_later_release_is_refused_by_name() -> None:
    class Later(onnxruntime.SessionOptions):  # type: ignore[misc]
        value = False

        @property
        def enable_something(self) -> bool:
            return self.value

    theirs = Later()
    assert to_session_options(theirs) is not None
    theirs.value = True
    with pytest.raises(ortmulti.NotImplemented, match="enable_something=True"):
        to_session_options(theirs)


@pytest.mark.parametrize("options", [1, "options", {}, onnxruntime.RunOptions(), ortmulti.ExecutionMode])
def test_what_are_no_session_options(options: Any) -> None:
    for create in CREATE:
        with pytest.raises(ortmulti.InvalidType, match=r"ortmulti\.SessionOptions"):
            create(options)


@pytest.mark.parametrize("options", [1, "options", {}, onnxruntime.SessionOptions()])
def test_what_are_no_run_options(options: Any, runs: list[Callable[[Any], object]]) -> None:
    for run in runs:
        with pytest.raises(ortmulti.InvalidType, match=r"ortmulti\.RunOptions"):
            run(options)
