"""A session under onnxruntime's interface, beside onnxruntime's own."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from tests.support import onnx_models, values
from tests.support.lifetimes import alive
from tests.support.pools import in_threads
from tests.support.processes import lines, nothing_leaks

CPU = ["CPUExecutionProvider"]
X = np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64)


def described(infos: Any) -> list[tuple[str, str, list[int | str | None]]]:
    return [(value.name, value.type, value.shape) for value in infos]


def typed_model() -> bytes:
    """Inputs of many types and shapes, one of them with a default value."""
    shapes: list[onnx_models.Shape] = [None, [], [0], ["n"], [None, 3], ["batch", 2, None, "width"]]
    types = [*onnx_models.NUMERIC, TensorProto.STRING]
    inputs: list[onnx_models.Value] = [
        (f"input {i}", element_type, shapes[i % len(shapes)]) for i, element_type in enumerate(types)
    ]
    nodes = [helper.make_node("Identity", [name], [f"output {i}"]) for i, (name, *_) in enumerate(inputs)]
    outputs = [(f"output {i}", element_type, shape) for i, (_, element_type, shape) in enumerate(inputs)]
    default = numpy_helper.from_array(np.ones(2, np.float32), "default")
    nodes.append(helper.make_node("Neg", ["default"], ["negated"]))
    inputs.append(("default", TensorProto.FLOAT, [2]))
    outputs.append(("negated", TensorProto.FLOAT, [2]))
    proto = onnx_models.model(nodes, inputs, outputs, [default])
    proto.model_version = 7
    proto.domain = "a.domain"
    proto.doc_string = "what it is for"
    proto.graph.doc_string = "the graph"
    helper.set_model_props(proto, {"key": "value", "empty": "", "é": "漢"})
    return proto.SerializeToString()


def test_inputs_outputs_and_metadata_are_onnxruntimes() -> None:
    theirs, ours = values.pair(typed_model())
    for name in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        assert described(getattr(ours, name)()) == described(getattr(theirs, name)())
    assert [value.name for value in ours.get_overridable_initializers()] == ["default"]
    assert str(ours.get_inputs()[5]) == str(theirs.get_inputs()[5])
    for name in (
        "producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map",
    ):  # fmt: skip
        assert getattr(ours.get_modelmeta(), name) == getattr(theirs.get_modelmeta(), name), name
    assert ours.get_modelmeta().custom_metadata_map == {"key": "value", "empty": "", "é": "漢"}
    assert ours.get_providers() == theirs.get_providers() == CPU
    assert ours.get_provider_options() == theirs.get_provider_options() == {CPU[0]: {}}
    assert ours.device == "cpu"


def test_a_default_value_can_be_overridden() -> None:
    proto = onnx_models.model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, [2]), ("w", TensorProto.FLOAT, [2])],
        [("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    session = onnx_models.cpu_session(proto.SerializeToString(), onnx_models.options(log_severity_level=3))
    x = np.zeros(2, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [1, 1]
    assert session.run(None, {"x": x, "w": np.full(2, 5, np.float32)})[0].tolist() == [5, 5]


def check_matmul(session: ortmulti.InferenceSession) -> None:
    [expected] = onnxruntime.InferenceSession(onnx_models.matmul(), providers=CPU).run(None, {"x": X})
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)


@pytest.mark.parametrize("kind", [str, Path, bytes, bytearray, memoryview])
def test_a_model_is_a_path_or_bytes_which_may_go_after_creation(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "modèle 漢.onnx"
    path.write_bytes(onnx_models.matmul())
    model = kind(path if kind in (str, Path) else path.read_bytes())
    session = onnx_models.cpu_session(model)
    path.unlink()
    if kind is bytearray:
        model.clear()  # BufferError while it is exported
    check_matmul(session)


def test_bytes_that_onnxruntime_goes_on_using_are_kept(tmp_path: Path) -> None:
    """Such as those of a model in ONNX Runtime's own format, used in place."""
    path = tmp_path / "model.ort"
    level = ortmulti.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options = onnx_models.options(
        {"session.save_model_format": "ORT"}, optimized_model_filepath=path, graph_optimization_level=level
    )
    onnx_models.cpu_session(onnx_models.matmul(512), options)
    x = np.ones((1, 512), np.float32)
    in_place = ["use_ort_model_bytes_directly", "use_ort_model_bytes_for_initializers", "disable_prepacking"]
    model = bytearray(path.read_bytes())
    session = onnx_models.cpu_session(model, onnx_models.options({f"session.{key}": "1" for key in in_place}))
    expected = session.run(None, {"x": x})[0]
    with pytest.raises(BufferError):
        model.clear()
    del model
    gc.collect()
    scratch = bytearray(path.stat().st_size)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    assert len(scratch) > 2**20


def test_external_data_lies_beside_the_path_or_where_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        for model in (path, path.relative_to(tmp_path)):
            check_matmul(onnx_models.cpu_session(model))
    options = onnx_models.options({"session.model_external_initializers_file_folder_path": str(tmp_path)})
    check_matmul(onnx_models.cpu_session(path.read_bytes(), options))


def test_external_data_through_a_link(tmp_path: Path) -> None:
    """As in the caches that model hubs make: links to files under other names; some releases refuse these."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    path, data = onnx_models.write_external(tmp_path)
    for source in (path, data):
        shutil.move(source, blobs / f"of-{source.name}")
        (snapshot / source.name).symlink_to(blobs / f"of-{source.name}")

    def outcome(create: Callable[[Path], Any]) -> str:
        try:
            session = create(snapshot / path.name)
        except Exception as error:
            return type(error).__name__
        return str(session.run(None, {"x": X})[0].tolist())

    assert outcome(onnx_models.cpu_session) == outcome(lambda model: onnxruntime.InferenceSession(model, providers=CPU))


def test_closing_and_deleting_free_the_session_and_its_threads() -> None:
    options = onnx_models.options(intra_op_num_threads=3)
    onnx_models.cpu_session(onnx_models.matmul(), options).close()
    with nothing_leaks():
        with onnx_models.cpu_session(onnx_models.matmul(), options) as session:
            assert "closed" not in repr(session)
        session.close()
        assert session.closed
    assert "closed" in repr(session)
    with nothing_leaks():
        session = onnx_models.cpu_session(onnx_models.matmul(), options)
        reference = weakref.ref(session)
        del session
        assert alive(reference) == [False]


def test_closing_while_threads_run_waits_and_later_runs_raise() -> None:
    session = onnx_models.cpu_session(onnx_models.matmul(512, 20))
    x = np.ones((512, 512), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    running = threading.Barrier(7)
    runs = [lambda: session.run(None, {"x": x}), lambda: session.run_with_iobinding(binding)]

    def repeat(run: Callable[[], object]) -> None:
        while True:
            run()

    def work(number: int) -> None:
        if number == 6:
            running.wait()
            session.close()
            return
        runs[number % 2]()
        running.wait()
        with pytest.raises(ortmulti.ClosedError):
            repeat(runs[number % 2])

    in_threads(7, work)


def test_a_profile_is_written(tmp_path: Path) -> None:
    options = onnx_models.options(enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    session = onnx_models.cpu_session(onnx_models.matmul(), options)
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, {"x": X})
    path = Path(session.end_profiling())
    assert path.parent == tmp_path
    assert "matmul0" in path.read_text()


def test_without_onnxruntime_the_first_use_says_what_to_install() -> None:
    code = """
        from pathlib import Path

        sys.path[:] = [folder for folder in sys.path if not any(Path(folder).glob("onnxruntime*"))]
        print(issubclass(om.LibraryError, ImportError))
        for use in (session, om.get_available_providers, om.RunOptions, lambda: om.create_sessions(model, "cpu")):
            print(error_of(use))
    """
    is_import_error, *messages = lines(code, b"model", environment={"ORTMULTI_ONNXRUNTIME_LIBRARY": None})
    assert is_import_error == "True"
    assert len(messages) == 4
    for message in messages:
        assert message.startswith("LibraryError: ")
        assert 'pip install "ortmulti[gpu]"' in message
        assert 'pip install "ortmulti[cpu]"' in message


@pytest.mark.parametrize("content", ["none", "empty", "text", "another library"])
def test_an_unusable_library_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "libonnxruntime.so.1"
    if content == "another library":
        [libc] = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line}
        shutil.copy(libc, path)
    elif content != "none":
        path.write_text("" if content == "empty" else content)
    code = """
        for _ in range(2):
            print(error_of(om.get_available_providers))
    """
    first, again = lines(code, b"", environment={"ORTMULTI_ONNXRUNTIME_LIBRARY": str(path)})
    assert first.startswith("LibraryError: ")
    assert str(path) in first
    assert again == first


def test_large_model_bytes_reach_onnxruntime_whole() -> None:
    """Those of a model with 8 MB of weights inside."""
    model = onnx_models.matmul_proto(1024).SerializeToString()
    assert len(model) > 8_000_000
    x = np.ones((1, 1024), np.float32)
    theirs = onnxruntime.InferenceSession(model, providers=CPU)
    np.testing.assert_array_equal(onnx_models.cpu_session(model).run(None, {"x": x})[0], theirs.run(None, {"x": x})[0])
