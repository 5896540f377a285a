"""Options: onnxruntime's names and defaults, and that each of them arrives."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import _core
from tests.support import onnx_models
from tests.support.option_values import RUN, SESSION, plain
from tests.support.processes import threads


@pytest.mark.parametrize("name", [*SESSION, "enable_mem_reuse", "execution_order"])
def test_defaults_are_onnxruntimes(name: str) -> None:
    ours, theirs = ortmulti.SessionOptions(), onnxruntime.SessionOptions()
    if name == "use_per_session_threads":
        assert ours.use_per_session_threads  # its Python attribute came after 1.21
    elif name == "enable_mem_pattern":
        assert ours.enable_mem_pattern is None  # by the device
    else:
        assert plain(getattr(ours, name)) == plain(getattr(theirs, name))


@pytest.mark.parametrize("name", ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel"])
def test_enumerations_are_onnxruntimes(name: str) -> None:
    for key, theirs in getattr(onnxruntime, name).__members__.items():
        ours = getattr(ortmulti, name)[key]
        assert int(ours) == int(theirs)
        for write in (str, repr, format, "{}".format, "%s".__mod__, "%d".__mod__):
            assert write(ours) == write(theirs)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_cannot_be_copied(name: str, copied: Callable[[Any], Any]) -> None:
    for package in (onnxruntime, ortmulti):
        with pytest.raises(TypeError, match=name):
            copied(getattr(package, name)())


@pytest.mark.parametrize("name", RUN)
def test_run_defaults_are_onnxruntimes(name: str) -> None:
    assert getattr(ortmulti.RunOptions(), name) == getattr(onnxruntime.RunOptions(), name)


@pytest.mark.parametrize("name", SESSION)
def test_what_was_set_is_read_back(name: str) -> None:
    """Enumerations, which are set as onnxruntime's, as ortmulti's."""
    options = onnx_models.options(**{name: SESSION[name]})
    found = getattr(options, name)
    assert found == plain(SESSION[name])
    default = getattr(ortmulti.SessionOptions(), name)
    assert default is None or type(found) is type(default)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("intra_op_num_threads", -1, ValueError),
        ("intra_op_num_threads", 2**31, ValueError),
        ("intra_op_num_threads", "2", TypeError),
        ("intra_op_num_threads", 2.0, TypeError),
        ("intra_op_num_threads", True, TypeError),
        ("inter_op_num_threads", None, TypeError),
        ("graph_optimization_level", 5, ValueError),
        ("graph_optimization_level", "all", TypeError),
        ("execution_mode", 2, ValueError),
        ("execution_order", 1, NotImplementedError),
        ("log_severity_level", 5, ValueError),
        ("log_severity_level", -2, ValueError),
        ("enable_mem_pattern", 1, TypeError),
        ("enable_mem_reuse", False, NotImplementedError),
        ("logid", 3, TypeError),
        ("optimized_model_filepath", None, TypeError),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_set(name: str, value: Any, error: type[Exception]) -> None:
    options = ortmulti.SessionOptions()
    before = getattr(options, name)
    with pytest.raises(error, match=name) as caught:
        setattr(options, name, value)
    assert isinstance(caught.value, ortmulti.Error)
    assert getattr(options, name) == before


@pytest.mark.parametrize("options", [ortmulti.SessionOptions, ortmulti.RunOptions])
def test_an_option_that_does_not_exist_is_refused(options: Any) -> None:
    with pytest.raises(AttributeError, match="intra_op_num_thread"):
        options().intra_op_num_thread = 2


def test_config_entries() -> None:
    options = ortmulti.SessionOptions()
    options.add_session_config_entry("key", "1")
    options.add_session_config_entry("key", "2")
    assert options.get_session_config_entry("key") == "2"
    with pytest.raises(RuntimeError) as theirs:
        onnxruntime.SessionOptions().get_session_config_entry("other")
    with pytest.raises(ortmulti.InvalidArgument) as ours:
        options.get_session_config_entry("other")
    assert str(ours.value) == str(theirs.value)
    for key, value in (("", "1"), ("k" * 1025, "1"), ("key", "v" * 8193)):
        with pytest.raises(ortmulti.InvalidArgument, match="config entry"):
            options.add_session_config_entry(key, value)
    with pytest.raises(ortmulti.InvalidType):
        options.add_session_config_entry("key", 1)


def test_the_longest_config_entry_of_every_release_reaches_onnxruntime() -> None:
    options = onnx_models.options({"k" * 128: "v" * 1024})  # the limits of 1.21; newer ones have higher ones
    assert not onnx_models.cpu_session(onnx_models.matmul(), options).closed


def test_a_config_entry_arrives() -> None:
    with pytest.raises(ortmulti.Error, match="ORT"):
        onnx_models.cpu_session(onnx_models.matmul(), onnx_models.options({"session.load_model_format": "ORT"}))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_intra_op_threads_are_those_asked_for(count: int) -> None:
    onnx_models.cpu_session(onnx_models.matmul()).close()
    before = threads()
    session = onnx_models.cpu_session(onnx_models.matmul(), onnx_models.options(intra_op_num_threads=count))
    assert len(threads() - before) == count - 1  # the caller works too
    session.close()


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_sessions_share_the_usable_cores(sessions: int) -> None:
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", sessions_per_device=sessions, loading=ortmulti.Loading(strategy="native")
    ) as created:
        # 0: one session that has all cores leaves the number to ONNX Runtime.
        used = [session._core.intra_op_num_threads() or _core.usable_cores() for session in created]
    assert sum(used) <= max(_core.usable_cores(), sessions)
    assert used == [max(1, _core.usable_cores() // sessions)] * sessions


def test_inter_op_threads_of_a_parallel_session() -> None:
    onnx_models.cpu_session(onnx_models.matmul()).close()
    options = onnx_models.options(
        execution_mode=ortmulti.ExecutionMode.ORT_PARALLEL, intra_op_num_threads=1, inter_op_num_threads=4
    )
    before = threads()
    session = onnx_models.cpu_session(onnx_models.add_mul(), options)
    assert len(threads() - before) in (3, 4)
    session.close()


def test_the_optimized_model_is_written_at_the_level_asked_for(tmp_path: Path) -> None:
    """Two additions of constants fold into none."""
    ones = onnx.numpy_helper.from_array(np.ones(2, np.float32), "ones")
    proto = onnx_models.model(
        [helper.make_node("Add", ["ones", "ones"], ["two"]), helper.make_node("Add", ["x", "two"], ["y"])],
        [("x", TensorProto.FLOAT, [2])],
        [("y", TensorProto.FLOAT, [2])],
        [ones],
    )
    nodes = {}
    for level in (ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL, ortmulti.GraphOptimizationLevel.ORT_ENABLE_ALL):
        path = tmp_path / f"{level}.onnx"
        options = onnx_models.options(graph_optimization_level=level, optimized_model_filepath=path)
        onnx_models.cpu_session(proto.SerializeToString(), options)
        nodes[level.name] = len(onnx.load(path).graph.node)
    assert nodes == {"ORT_DISABLE_ALL": 2, "ORT_ENABLE_ALL": 1}


def test_free_dimensions_are_fixed() -> None:
    """By the same options for several sessions."""
    proto = onnx_models.matmul_proto()
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    for kind, name, size in (("name", "n", 5), ("denotation", "DATA_BATCH", 6)):
        options = ortmulti.SessionOptions()
        getattr(options, f"add_free_dimension_override_by_{kind}")(name, size)
        for _ in range(2):
            session = onnx_models.cpu_session(proto.SerializeToString(), options)
            assert session.get_inputs()[0].shape == [size, 64]


@pytest.mark.parametrize("size", [-1, -5, 3])
def test_a_negative_free_dimension_stays_open(size: int) -> None:
    found = []
    for package in (onnxruntime, ortmulti):
        options = package.SessionOptions()
        options.add_free_dimension_override_by_name("n", size)
        session = package.InferenceSession(onnx_models.matmul(), options, providers=["CPUExecutionProvider"])
        found.append(session.run(None, {"x": np.ones((3, 64), np.float32)})[0].tolist())
    assert found[0] == found[1]
    assert session.get_inputs()[0].shape == [3 if size > 0 else None, 64]


def test_run_options() -> None:
    options = ortmulti.RunOptions()
    options.log_severity_level = 3
    options.log_verbosity_level = 1
    options.logid = "run"
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert (options.log_severity_level, options.log_verbosity_level, options.logid) == (3, 1, "run")
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    with pytest.raises(ortmulti.InvalidArgument, match="other"):
        options.get_run_config_entry("other")
    options.terminate = True
    assert options.terminate


def test_a_run_config_entry_arrives() -> None:
    options = ortmulti.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:7")
    session = onnx_models.cpu_session(onnx_models.one_node("Neg"))
    with pytest.raises(ortmulti.Error, match="cpu:7"):
        session.run(None, {"x": np.ones(2, np.float32)}, options)


def test_run_options_that_the_c_interface_does_not_have() -> None:
    options = ortmulti.RunOptions()
    assert options.only_execute_path_to_fetches is onnxruntime.RunOptions().only_execute_path_to_fetches is False
    options.only_execute_path_to_fetches = False
    with pytest.raises(ortmulti.NotImplemented, match="only_execute_path_to_fetches"):
        options.only_execute_path_to_fetches = True
    with pytest.raises(ortmulti.InvalidType, match="only_execute_path_to_fetches"):
        options.only_execute_path_to_fetches = 1  # type: ignore[assignment]
