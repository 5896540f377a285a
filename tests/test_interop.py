"""onnxruntime's own sessions over weights in common."""

from __future__ import annotations

import gc
import logging
import tempfile
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import _core, interop
from ortmulti._shared import Optimize
from ortmulti.interop import onnxruntime_sessions
from tests import _gpus, _models
from tests._processes import check_child, run_child

onnxruntime = pytest.importorskip("onnxruntime")

X = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


def usual(model: Path | bytes, feed: dict[str, np.ndarray], level: int = 99) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def without_prepacking() -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="ortmulti")
    return caplog


@pytest.mark.parametrize("optimize", ["auto", "never"])
def test_they_are_onnxruntimes_and_give_the_same_bits(
    tmp_path: Path, warnings: pytest.LogCaptureFixture, optimize: Optimize
) -> None:
    path, _ = _models.write_external(tmp_path)
    sessions = onnxruntime_sessions(path, "cpu", 3, optimize=optimize)
    assert len(sessions) == len(set(map(id, sessions))) == 3
    for session in sessions:
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.get_providers() == ["CPUExecutionProvider"]
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], usual(path, {"x": X})[0])
    assert warnings.records == []


# What ONNX Runtime says of each weight that it takes from whoever creates the session.
TAKEN = "Using user supplied initializer with name ("


@pytest.mark.parametrize("optimize", ["auto", "never"])
@pytest.mark.parametrize("inline", [False, True])
def test_every_session_takes_every_weight(tmp_path: Path, optimize: str, inline: bool) -> None:
    if inline:
        path = tmp_path / "model.onnx"
        path.write_bytes(_models.matmul(64, 3))
    else:
        path, _ = _models.write_external(tmp_path, _models.matmul_proto(64, 3))
    code = """
        import sys
        import ortmulti
        from ortmulti.interop import onnxruntime_sessions

        onnxruntime_sessions(sys.argv[1], "cpu", optimize=sys.argv[2])  # an optimized model is there now
        print("made", file=sys.stderr)
        options = ortmulti.SessionOptions()
        options.log_severity_level = 1
        onnxruntime_sessions(sys.argv[1], "cpu", 2, options, optimize=sys.argv[2])
    """
    child = run_child(code, path, optimize, environment={"ORTMULTI_CACHE": str(tmp_path / "cache")})
    assert child.returncode == 0, child.stderr
    before, _, after = child.stderr.partition("made")
    assert before == ""
    for name in ("weight0", "weight1", "weight2"):
        assert after.count(f"{TAKEN}{name})") == 2, after


def test_weights_at_odd_places_and_of_every_type(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    weights, outputs, nodes = [], [], []
    for data_type, dtype in [*_models.NUMERIC.items(), (TensorProto.BFLOAT16, np.dtype(np.uint16))]:
        values = random.integers(0, 2, (50, 64)).astype(dtype)
        name = f"weight{data_type}"
        weights.append(helper.make_tensor(name, data_type, values.shape, values.tobytes(), raw=True))
        nodes.append(helper.make_node("Gather", [name, "x"], [f"y{data_type}"]))
        outputs.append((f"y{data_type}", data_type, [2, 64]))
    nodes = [node for node in nodes if node.input[0] != f"weight{TensorProto.BFLOAT16}"]
    outputs = [output for output in outputs if output[1] != TensorProto.BFLOAT16]
    # bfloat16 has no array in NumPy, so that it is compared as float32.
    nodes += [
        helper.make_node("Gather", [f"weight{TensorProto.BFLOAT16}", "x"], ["bfloat"]),
        helper.make_node("Cast", ["bfloat"], ["y"], to=TensorProto.FLOAT),
    ]
    outputs.append(("y", TensorProto.FLOAT, [2, 64]))
    proto = _models.model(nodes, [("x", TensorProto.INT64, [2])], outputs, weights)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    feed = {"x": np.array([49, 0])}
    [session] = onnxruntime_sessions(path, "cpu", options=without_prepacking(), optimize="never")
    for found, wanted in zip(session.run(None, feed), usual(path, feed), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_the_weights_live_as_long_as_the_last_session(tmp_path: Path) -> None:
    path, data = _models.write_external(tmp_path)
    mapped = str(data)

    def maps() -> int:
        return sum(mapped in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())

    expected = usual(path, {"x": X})[0]
    before = maps()
    sessions = onnxruntime_sessions(path, "cpu", 2, without_prepacking(), optimize="never")
    assert maps() == before + 1, "not one mapping for all"
    kept = sessions.pop()
    del sessions
    gc.collect()
    kept.set_providers(["CPUExecutionProvider"])  # creates the session again, over the same weights
    np.testing.assert_allclose(kept.run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-5)
    data.unlink()  # what the sessions have is no file's name
    np.testing.assert_allclose(kept.run(None, {"x": X})[0], expected, rtol=1e-5, atol=1e-5)
    del kept
    gc.collect()
    assert maps() == before


def test_eight_sessions_take_the_memory_of_one_without_prepacking(large_model: Path) -> None:
    code = """
        import re, sys
        from pathlib import Path
        import numpy as np
        import ortmulti
        from ortmulti.interop import onnxruntime_sessions

        def megabytes():
            return int(re.search("(?m)^Pss: *([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[1]) / 1024

        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_prepacking", "1")
        before = megabytes()
        sessions = onnxruntime_sessions(sys.argv[1], "cpu", int(sys.argv[2]), options, optimize="never")
        x = np.zeros((1, sessions[0].get_inputs()[0].shape[1]), np.float32)
        for session in sessions:
            session.run(None, {"x": x})
        print(megabytes() - before)
    """
    one, eight = (float(check_child(code, large_model, count)) for count in (1, 8))
    assert one > 500
    assert eight < 1.1 * one


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, data = _models.write_external(tmp_path)
    find = interop._find_source

    def find_and_replace(*arguments: object) -> object:
        found = find(*arguments)
        copy = tmp_path / "copy"
        copy.write_bytes(data.read_bytes())
        copy.replace(data)
        return found

    monkeypatch.setattr(interop, "_find_source", find_and_replace)
    with pytest.raises(ortmulti.WeightsError, match=r"model\.data' was changed or replaced while"):
        onnxruntime_sessions(path, "cpu", optimize="never")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_model_from_bytes(kind: type) -> None:
    model = _models.matmul()
    sessions = onnxruntime_sessions(kind(model), "cpu", 2)
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], usual(model, {"x": X})[0])


def test_what_cannot_be_shared_is_loaded_by_each_and_said(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    options = ortmulti.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    [session] = onnxruntime_sessions(_models.matmul(), "cpu", options=options)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], usual(_models.matmul(), {"x": X})[0])
    assert (tmp_path / "optimized.onnx").exists()
    [record] = warnings.records
    assert (record.name, record.levelno) == ("ortmulti", logging.WARNING)
    assert (
        record.getMessage() == "onnxruntime's sessions on cpu load their own weights: optimized_model_filepath is set"
    )


def test_options_reach_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_models.matmul())
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 3
    options.execution_mode = ortmulti.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    options.log_severity_level = 3
    options.logid = "mine"
    options.enable_mem_pattern = False
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_free_dimension_override_by_name("n", 3)
    [session] = onnxruntime_sessions(path, "cpu", options=options)
    given = session.get_session_options()
    assert given.intra_op_num_threads == 3
    assert given.inter_op_num_threads == 2
    assert given.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (given.log_severity_level, given.logid, given.enable_mem_pattern) == (3, "mine", False)
    assert given.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session.get_inputs()[0].shape == [3, 64]
    session.run(None, {"x": X})
    assert Path(session.end_profiling()).parent == tmp_path


def test_the_sessions_on_the_cpu_share_the_cores() -> None:
    sessions = onnxruntime_sessions(_models.matmul(), ["cpu", "cpu"], 2)
    threads = {session.get_session_options().intra_op_num_threads for session in sessions}
    assert threads == {max(1, _core.usable_cores() // 4)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optimize": "always"}, ortmulti.InvalidArgument, "'auto', 'never' or 'offline', not 'always'"),
        ({"sessions_per_device": 0}, ortmulti.InvalidArgument, "1 or more, not 0"),
        ({"sessions_per_device": 1.0}, ortmulti.InvalidType, "an int, not 1.0"),
        ({"options": onnxruntime.SessionOptions()}, ortmulti.InvalidType, "an ortmulti.SessionOptions, not SessionO"),
        ({"provider_options": {"a": 1}}, ortmulti.InvalidArgument, "no device is a GPU"),
        ({"provider_options": [1]}, ortmulti.InvalidType, r"dict of the CUDA provider's options, not \[1\]"),
        ({"devices": "tpu"}, ortmulti.InvalidArgument, "tpu"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        onnxruntime_sessions(_models.matmul(), **{"devices": "cpu", **arguments})


def test_onnxruntimes_errors_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ortmulti.InvalidProtobuf, match=r"^cpu: .*Protobuf parsing failed"):
        onnxruntime_sessions(path, "cpu")


def test_without_the_onnxruntime_package_it_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "onnxruntime"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken')")
    (tmp_path / "model.onnx").write_bytes(_models.matmul())
    code = """
        import sys
        import ortmulti

        ortmulti.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])  # finds the real one
        from ortmulti.interop import onnxruntime_sessions
        sys.path.insert(0, sys.argv[1])
        try:
            onnxruntime_sessions(sys.argv[2], "cpu")
        except ortmulti.LibraryError as error:
            print(error)
    """
    assert check_child(code, tmp_path, tmp_path / "model.onnx").startswith("onnxruntime cannot be imported (broken): ")


def test_another_onnxruntime_than_ortmultis_is_refused() -> None:
    code = """
        import onnxruntime, ortmulti
        from ortmulti.interop import onnxruntime_sessions

        onnxruntime.__version__ = "1.0.0"
        try:
            onnxruntime_sessions(bytes(8), "cpu")
        except ortmulti.LibraryError as error:
            print(error)
    """
    assert check_child(code).startswith("the onnxruntime package is 1.0.0, and ortmulti uses 1.")


def test_the_module_is_imported_by_need() -> None:
    code = "import sys, ortmulti; print('onnxruntime' in sys.modules, hasattr(ortmulti, 'interop'))"
    assert check_child(code) == "False False\n"


def test_offline_takes_what_was_optimized_before(tmp_path: Path) -> None:
    path, _ = _models.write_external(tmp_path)
    with pytest.raises(ortmulti.NotFound, match=r"there is no optimized form of .*ortmulti optimize"):
        onnxruntime_sessions(path, "cpu", optimize="offline")
    ortmulti.optimize(path, "cpu")
    [session] = onnxruntime_sessions(path, "cpu", optimize="offline")
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], usual(path, {"x": X})[0])


def test_without_a_cache_the_optimized_model_lives_as_long_as_the_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    path, _ = _models.write_external(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("ORTMULTI_CACHE", "/proc/none")

    def kept() -> list[Path]:
        return list(temporary.rglob("manifest.json"))

    sessions = onnxruntime_sessions(path, "cpu", 2)
    assert ["is not used: it cannot be written" in record.getMessage() for record in warnings.records] == [True]
    assert len(kept()) == 1
    sessions.pop()
    gc.collect()
    sessions[0].set_providers(["CPUExecutionProvider"])  # creates it again
    np.testing.assert_array_equal(sessions[0].run(None, {"x": X})[0], usual(path, {"x": X})[0])
    sessions.clear()
    gc.collect()
    assert kept() == []


def test_memory_given_by_dlpack_lives_as_long_as_the_session(tmp_path: Path) -> None:
    """The way to a GPU's memory, with the host's."""
    names = np.random.default_rng(0).integers(0, 2, (50, 64)).astype(bool)
    values = np.random.default_rng(1).standard_normal((50, 64), dtype=np.float32)
    proto = _models.model(
        [helper.make_node("Gather", [name, "x"], [f"y{name}"]) for name in ("names", "values")],
        [("x", TensorProto.INT64, [2])],
        [("ynames", TensorProto.BOOL, [2, 64]), ("yvalues", TensorProto.FLOAT, [2, 64])],
        [numpy_helper.from_array(names, "names"), numpy_helper.from_array(values, "values")],
    )
    path, data = _models.write_external(tmp_path, proto)
    source = interop._Source(str(path), _core.shareable_weights(str(path)))
    data.write_bytes(bytes(data.stat().st_size))  # so that what is read from it is seen
    arrays = {"names": names.copy(), "values": values.copy()}
    alive = [weakref.ref(array) for array in arrays.values()]

    class Store:
        def dlpack(self, index: int) -> object:
            array = arrays[source.weights.weights[index][0]]
            # onnxruntime knows booleans as bytes alone.
            return (array.view(np.uint8) if array.dtype == np.bool_ else array).__dlpack__()

    weights = interop._GpuWeights(onnxruntime, source, Store())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    weights.add_to(options)
    session = interop._session_class(onnxruntime)(str(path), options, ["CPUExecutionProvider"], weights)
    del weights, options
    arrays.clear()
    gc.collect()
    assert all(reference() is not None for reference in alive)
    found = session.run(None, {"x": np.array([49, 3])})
    np.testing.assert_array_equal(found[0], names[[49, 3]])
    np.testing.assert_array_equal(found[1], values[[49, 3]])
    del session, found
    gc.collect()
    assert all(reference() is None for reference in alive)


@pytest.mark.gpu
@pytest.mark.parametrize("optimize", ["auto", "never"])
def test_on_gpus_every_device_has_one_copy(tmp_path: Path, optimize: str) -> None:
    proto = _models.matmul_proto(2048, 16)  # 256 MiB
    path, _ = _models.write_external(tmp_path, proto)
    code = """
        import sys
        import numpy as np
        import onnxruntime
        import ortmulti
        from ortmulti import _core
        from ortmulti.interop import onnxruntime_sessions

        path, optimize = sys.argv[1:]
        onnxruntime_sessions(path, 0, optimize=optimize)
        count = _core.cuda_device_count()
        x = np.random.default_rng(0).standard_normal((4, 2048), dtype=np.float32)
        def free():
            return [_core.cuda_memory(device)[0] for device in range(count)]
        before = free()
        sessions = onnxruntime_sessions(path, "all", 4, provider_options={"use_tf32": 0}, optimize=optimize)
        outputs = [session.run(None, {"x": x})[0] for session in sessions]
        taken = [(a - b) / 2**20 for a, b in zip(before, free())]
        assert len(sessions) == 4 * count
        assert all(session.get_providers()[0] == "CUDAExecutionProvider" for session in sessions)
        usual = onnxruntime.InferenceSession(path, providers=[("CUDAExecutionProvider", {"use_tf32": 0})])
        expected = usual.run(None, {"x": x})[0]
        assert all(np.array_equal(output, expected) for output in outputs)
        print(max(taken))
    """
    environment = {**_gpus.VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")}
    taken = float(check_child(code, path, optimize, environment=environment, timeout=300))
    assert 256 <= taken < 2 * 256 + 256, "four sessions took the memory of several copies"


@pytest.mark.gpu
def test_on_a_gpu_the_memory_is_freed_with_the_last_session(tmp_path: Path) -> None:
    path, _ = _models.write_external(tmp_path, _models.matmul_proto(2048, 16))
    code = """
        import gc, sys
        from ortmulti import _core
        from ortmulti.interop import onnxruntime_sessions

        def create():
            return onnxruntime_sessions(sys.argv[1], 0, 2, optimize="never")

        def free():
            gc.collect()
            return _core.cuda_memory(0)[0] / 2**20

        create()
        before = free()
        one, other = create()
        with_both = free()
        del one
        with_one = free()
        del other
        print(before - with_both >= 256, before - with_one >= 256, before - free() < 64)
    """
    assert check_child(code, path, environment=_gpus.VISIBLE, timeout=300) == "True True True\n"


@pytest.mark.gpu
def test_sessions_on_a_gpu_that_live_to_the_end_do_not_crash(tmp_path: Path) -> None:
    path, _ = _models.write_external(tmp_path)
    code = """
        import sys
        from ortmulti.interop import onnxruntime_sessions

        sessions = onnxruntime_sessions(sys.argv[1], 0, 2, optimize="never")
    """
    check_child(code, path, environment=_gpus.VISIBLE, timeout=120)
