"""The keyword arguments of InferenceSession that onnxruntime does not document, and what programs read of a session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmulti
from tests.support import onnx_models
from tests.support.processes import ROOT

MODEL = onnx_models.matmul()
DISABLED = "optimization.disable_specified_optimizers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "model.onnx"
    result.write_bytes(MODEL)
    return result


def fusible() -> bytes:
    """y = relu(x) after two identities, which one optimizer takes out."""
    names = ["x", "a", "b", "y"]
    nodes = [
        helper.make_node(kind, [names[i]], [names[i + 1]]) for i, kind in enumerate(["Identity", "Relu", "Identity"])
    ]
    values = [("x", TensorProto.FLOAT, [2])], [("y", TensorProto.FLOAT, [2])]
    return onnx_models.model(nodes, *values).SerializeToString()


def optimized(package: Any, file: Path, entry: str | None = None, **kwargs: Any) -> list[str]:
    """The operators of the graph that ONNX Runtime made of `fusible`."""
    options = package.SessionOptions()
    options.optimized_model_filepath = str(file)
    if entry is not None:
        options.add_session_config_entry(DISABLED, entry)
    package.InferenceSession(fusible(), options, providers=["CPUExecutionProvider"], **kwargs)
    if entry is None:
        with pytest.raises((ortmulti.Error, RuntimeError)):
            options.get_session_config_entry(DISABLED)
    else:
        assert options.get_session_config_entry(DISABLED) == entry
    return sorted(node.op_type for node in onnx.load(file).graph.node)


@pytest.mark.parametrize("names", [["EliminateIdentity"], {"EliminateIdentity", "Other"}, ("EliminateIdentity",), []])
def test_disabled_optimizers_are_left_out_as_in_onnxruntime(names: Any, tmp_path: Path) -> None:
    theirs = optimized(onnxruntime, tmp_path / "theirs.onnx", disabled_optimizers=names)
    assert optimized(ortmulti, tmp_path / "ours.onnx", disabled_optimizers=names) == theirs
    assert (theirs.count("Identity") > 0) == bool(names)


def test_disabled_optimizers_are_added_to_those_of_the_options(tmp_path: Path) -> None:
    """And the options are not changed, which `optimized` looks at."""
    kept = optimized(ortmulti, tmp_path / "a.onnx", "EliminateIdentity", disabled_optimizers=["ConstantFolding"])
    assert "Identity" in kept
    kept = optimized(ortmulti, tmp_path / "b.onnx", "ConstantFolding", disabled_optimizers=["EliminateIdentity"])
    assert "Identity" in kept


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"disabled_optimizers": "EliminateIdentity"}, ortmulti.InvalidType, "a list or another iterable"),
        ({"disabled_optimizers": 3}, ortmulti.InvalidType, "a list or another iterable"),
        ({"disabled_optimizers": [3]}, ortmulti.InvalidType, "has names of type str"),
        ({"disabled_optimizers": [""]}, ortmulti.InvalidArgument, "not the name of an optimizer"),
        ({"disabled_optimizers": ["a;b"]}, ortmulti.InvalidArgument, "not the name of an optimizer"),
        ({"enable_fallback": True}, ortmulti.NotImplemented, "a provider that cannot be used is an error"),
        ({"enable_fallback": "no"}, ortmulti.InvalidType, "True or False"),
        ({"read_config_from_model": 1}, ortmulti.NotImplemented, "C interface"),
        ({"provider": "CPU", "options": 1}, ortmulti.InvalidType, "argument 'options', 'provider'"),
    ],
)
def test_what_cannot_be_kept_is_an_error(arguments: Any, error: type[Exception], message: str, path: Path) -> None:
    with pytest.raises(error, match=message):
        ortmulti.InferenceSession(path, **arguments)


def test_flags_that_are_off_are_taken() -> None:
    assert ortmulti.InferenceSession(MODEL, enable_fallback=0, read_config_from_model=False).get_inputs()


def shown(options: Any) -> tuple[Any, ...]:
    """What a program reads of a session's options; numbers of the enumerations."""
    return (
        options.intra_op_num_threads,
        options.inter_op_num_threads,
        int(options.execution_mode),
        int(options.graph_optimization_level),
        options.enable_profiling,
        options.logid,
    )


def both(model: bytes, **values: Any) -> list[Any]:
    """A session of onnxruntime's and one of ours, over options that are changed afterwards."""
    sessions = []
    for package in (onnxruntime, ortmulti):
        options = package.SessionOptions()
        for name, value in values.items():
            setattr(options, name, value)
        options.add_session_config_entry("a.key", "1")
        sessions.append(package.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
        options.intra_op_num_threads = 1
        options.logid = "changed"
        options.add_session_config_entry("a.key", "2")
    return sessions


def test_the_options_of_a_session_are_those_of_its_creation() -> None:
    theirs, ours = (session.get_session_options() for session in both(MODEL, intra_op_num_threads=3, logid="first"))
    assert shown(ours) == shown(theirs)
    assert ours.get_session_config_entry("a.key") == theirs.get_session_config_entry("a.key") == "1"
    for package in (onnxruntime, ortmulti):
        session = package.InferenceSession(MODEL)
        options = session.get_session_options()
        options.intra_op_num_threads = 5
        assert session.get_session_options() is options
        assert package.InferenceSession(MODEL).get_session_options().intra_op_num_threads == 0


@pytest.mark.parametrize(
    "config",
    [
        None,
        "{}",
        "[]",
        '{"session_options": []}',
        '{"session_options": {"unknown": 1, "graph_optimization_level": 99}}',
        '{"session_options": {"intra_op_num_threads": 1099511627776}}',
        '{"session_options": {"intra_op_num_threads": 2, "inter_op_num_threads": 5, "execution_mode": 1, '
        '"graph_optimization_level": 1, "enable_profiling": 1}}',
    ],
)
@pytest.mark.parametrize("variable", ["0", "1"])
def test_the_options_that_a_model_has_are_shown(
    config: str | None, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for the profiles
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", variable)
    proto = onnx_models.matmul_proto()
    if config is not None:
        helper.set_model_props(proto, {"ort_config": config})
    theirs, ours = both(proto.SerializeToString(), intra_op_num_threads=3, logid="first")
    assert shown(ours.get_session_options()) == shown(theirs.get_session_options())
    assert bool(ours.end_profiling()) == bool(theirs.end_profiling())


def test_private_names_and_calls_without_effect_that_programs_use() -> None:
    for package in (onnxruntime, ortmulti):
        session = package.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        assert session._providers == ["CPUExecutionProvider"]
        assert session._provider_options == {"CPUExecutionProvider": {}}
        assert session._sess_options is session.get_session_options()
        assert session.disable_fallback() is session.enable_fallback() is None  # there is none
        x = np.ones((1, 64), np.float32)
        expected = session.run(["y"], {"x": x})[0].tolist()
        assert session._sess.run(["y"], {"x": x}, None)[0].tolist() == expected
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session._sess.run_with_iobinding(binding._iobinding, None)
        assert binding.copy_outputs_to_cpu()[0].tolist() == expected


def test_the_c_session_has_the_names_and_arguments_of_onnxruntimes() -> None:
    found = []
    for package in (onnxruntime, ortmulti):
        session = package.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
        inner = session._sess
        x = package.OrtValue.ortvalue_from_numpy(np.ones((1, 64), np.float32))
        values = inner.run_with_ort_values({"x": x._ortvalue}, ["y"], None)
        with pytest.raises(TypeError):  # the session's order
            inner.run_with_ort_values(["y"], {"x": x._ortvalue}, None)
        found.append(
            (
                type(values).__name__,
                [value.numpy().tolist() for value in values],
                [(each.name, each.type, each.shape) for each in (*inner.inputs_meta, *inner.outputs_meta)],
                list(inner.overridable_initializers),
                inner.model_meta.producer_name,
                inner.get_providers(),
            )
        )
    assert found[0] == found[1]
    assert isinstance(ortmulti.SessionIOBinding(inner), ortmulti.SessionIOBinding)


def test_the_c_session_has_all_names_of_onnxruntimes_but_those_in_the_document() -> None:
    theirs = type(onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])._sess)
    ours = ortmulti.InferenceSession(MODEL, providers=["CPUExecutionProvider"])._sess
    document = (ROOT / "docs" / "differences.md").read_text("utf-8")
    [told] = re.findall(r"(?s)- \*\*`session\._sess`\*\*(.+?)\n- ", document)
    lacks = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(type(ours), name)}
    listed = set(re.findall(r"`(\w+)`", told))
    assert lacks <= listed  # older releases have fewer names
    assert not [name for name in listed if hasattr(type(ours), name)]
    for name in set(dir(theirs)) & set(dir(type(ours))):
        if not name.startswith("_"):
            assert isinstance(getattr(theirs, name), property) == isinstance(getattr(type(ours), name), property), name


def test_the_c_session_takes_arguments_in_onnxruntimes_order() -> None:
    sessions: list[tuple[Any, Any]] = [(ortmulti.InferenceSession(MODEL)._sess, ortmulti.OrtDevice.make("cpu", 0))]
    theirs = onnxruntime.InferenceSession(MODEL)._sess
    if hasattr(theirs, "create_ortvalue_from_shape_and_type"):  # not in 1.21.1
        sessions.append((theirs, onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()))
    for session, device in sessions:
        assert session.create_ortvalue_from_shape_and_type([2, 3], np.float32, device).data_type() == "tensor(float)"
        assert session.create_ortvalue_from_shape_and_onnx_type([2], TensorProto.INT64, device).shape() == [2]
        assert session.set_tuning_results(session.get_tuning_results(), True) is None
        assert session.session_options.intra_op_num_threads >= 0
        assert session.get_profiling_start_time_ns == 0


@pytest.mark.parametrize("convert", [str, Path])
def test_the_models_path_is_where_onnxruntime_has_it(convert: Any, path: Path) -> None:
    """Not in the interface, and yet optimum reads it."""
    for package in (onnxruntime, ortmulti):
        assert package.InferenceSession(convert(path))._model_path == str(path)
        assert package.InferenceSession(MODEL)._model_path is None
