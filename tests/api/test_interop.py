"""onnxruntime's own sessions over weights in common."""

from __future__ import annotations

import gc
import logging
import tempfile
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import _core, interop
from ortmulti.create.request import Optimize
from ortmulti.interface import onnxruntime_sessions as _onnxruntime_sessions
from ortmulti.interface import onnxruntime_weights
from ortmulti.interop import onnxruntime_sessions
from tests.support import gpus, onnx_models
from tests.support.lifetimes import alive
from tests.support.processes import check_child, lines, run_child
from tests.support.values import assert_same
from tests.support.weight_lists import Fields

X = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


def usual(model: Path | bytes) -> list[np.ndarray]:
    """The outputs of onnxruntime's usual session."""
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": X})


def check(session: Any, model: Path | bytes) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], usual(model)[0])


def without_prepacking() -> ortmulti.SessionOptions:
    return onnx_models.options({"session.disable_prepacking": "1"})


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="ortmulti")
    return caplog


@pytest.mark.parametrize(
    ("form", "optimize"),
    [(Path, "auto"), (Path, "never"), (bytes, "auto"), (bytearray, "auto"), (memoryview, "auto")],
)
def test_they_are_onnxruntimes_and_give_the_same_bits(
    tmp_path: Path, warnings: pytest.LogCaptureFixture, form: type, optimize: Optimize
) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    model = onnx_models.matmul()
    sessions = onnxruntime_sessions(path if form is Path else form(model), "cpu", 3, optimize=optimize)
    assert len(sessions) == len(set(map(id, sessions))) == 3
    for session in sessions:
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.get_providers() == ["CPUExecutionProvider"]
        check(session, path if form is Path else model)
    assert warnings.records == []


# What ONNX Runtime says of each weight that it takes from whoever creates the session.
TAKEN = "Using user supplied initializer with name ("


@pytest.mark.parametrize("optimize", ["auto", "never"])
@pytest.mark.parametrize("inline", [False, True])
def test_every_session_takes_every_weight(tmp_path: Path, optimize: str, inline: bool) -> None:
    path, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(64, 3))
    if inline:
        path.write_bytes(onnx_models.matmul(64, 3))
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
    types = {**onnx_models.NUMERIC, TensorProto.BFLOAT16: np.dtype(np.uint16)}
    arrays = {data_type: random.integers(0, 2, (50, 64)).astype(dtype) for data_type, dtype in types.items()}
    weights = [
        helper.make_tensor(f"weight{data_type}", data_type, values.shape, values.tobytes(), raw=True)
        for data_type, values in arrays.items()
    ]
    nodes = [helper.make_node("Gather", [f"weight{data_type}", "x"], [f"y{data_type}"]) for data_type in types]
    outputs = [(f"y{data_type}", data_type, [2, 64]) for data_type in types]
    # bfloat16 has no array in NumPy, so that it is compared as float32.
    nodes.append(helper.make_node("Cast", [f"y{TensorProto.BFLOAT16}"], ["y"], to=TensorProto.FLOAT))
    outputs[-1] = ("y", TensorProto.FLOAT, [2, 64])
    path = tmp_path / "model.onnx"
    onnx.save(onnx_models.model(nodes, [("x", TensorProto.INT64, [2])], outputs, weights), path)
    feed = {"x": np.array([49, 0])}
    [session] = onnxruntime_sessions(path, "cpu", options=without_prepacking(), optimize="never")
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert_same(session.run(None, feed), theirs.run(None, feed))


def test_the_weights_live_as_long_as_the_last_session(tmp_path: Path) -> None:
    path, data = onnx_models.write_external(tmp_path)
    mapped = str(data)

    def maps() -> int:
        return sum(mapped in line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())

    expected = usual(path)[0]
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


@pytest.mark.parametrize("after", ["_find_shared", "create_session"])
@pytest.mark.parametrize("of_graph", [False, True])
def test_a_file_that_was_replaced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, of_graph: bool
) -> None:
    path, data = onnx_models.write_external(tmp_path)
    file = path if of_graph else data
    call = getattr(interop, after)

    def call_and_replace(*arguments: object) -> object:
        result = call(*arguments)
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes())
        copy.replace(file)
        return result

    monkeypatch.setattr(interop, after, call_and_replace)
    with pytest.raises(ortmulti.WeightsError, match=rf"{file.name}' was changed or replaced while"):
        onnxruntime_sessions(path, "cpu", optimize="never")


def test_what_cannot_be_shared_is_loaded_by_each_and_said(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    options = onnx_models.options(optimized_model_filepath=str(tmp_path / "optimized.onnx"))
    [session] = onnxruntime_sessions(onnx_models.matmul(), "cpu", options=options)
    check(session, onnx_models.matmul())
    assert (tmp_path / "optimized.onnx").exists()
    [record] = warnings.records
    assert (record.name, record.levelno) == ("ortmulti", logging.WARNING)
    assert (
        record.getMessage() == "onnxruntime's sessions on cpu load their own weights: optimized_model_filepath is set"
    )


def test_options_reach_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.matmul())
    plain = {"intra_op_num_threads": 3, "inter_op_num_threads": 2, "log_severity_level": 3, "logid": "mine"}
    plain["enable_mem_pattern"] = False
    options = onnx_models.options(
        {"session.intra_op.allow_spinning": "0"},
        execution_mode=ortmulti.ExecutionMode.ORT_PARALLEL,
        enable_profiling=True,
        profile_file_prefix=str(tmp_path / "profile"),
        **plain,
    )
    options.add_free_dimension_override_by_name("n", 3)
    [session] = onnxruntime_sessions(path, "cpu", options=options)
    given = session.get_session_options()
    assert {name: getattr(given, name) for name in plain} == plain
    assert given.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert given.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session.get_inputs()[0].shape == [3, 64]
    session.run(None, {"x": X})
    assert Path(session.end_profiling()).parent == tmp_path


def test_the_sessions_on_the_cpu_share_the_cores() -> None:
    sessions = onnxruntime_sessions(onnx_models.matmul(), ["cpu", "cpu"], 2)
    threads = {session.get_session_options().intra_op_num_threads for session in sessions}
    assert threads == {max(1, _core.usable_cores() // 4)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optimize": "always"}, ortmulti.InvalidArgument, "'auto', 'never' or 'offline', not 'always'"),
        ({"sessions_per_device": 0}, ortmulti.InvalidArgument, "1 or more, not 0"),
        ({"sessions_per_device": 1.0}, ortmulti.InvalidType, "an int, not 1.0"),
        ({"options": onnxruntime.SessionOptions()}, ortmulti.InvalidType, "an ortmulti.SessionOptions or None, not"),
        ({"provider_options": {"use_tf32": 1}}, ortmulti.InvalidArgument, "no device is a GPU"),
        ({"provider_options": [1]}, ortmulti.InvalidType, r"dict of the CUDA provider's options, not \[1\]"),
        ({"devices": "tpu"}, ortmulti.InvalidArgument, "tpu"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        onnxruntime_sessions(onnx_models.matmul(), **{"devices": "cpu", **arguments})


def test_onnxruntimes_errors_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ortmulti.InvalidProtobuf, match=r"creating a session of .* on cpu: .*Protobuf parsing failed"):
        onnxruntime_sessions(path, "cpu")


def test_without_the_onnxruntime_package_it_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "onnxruntime"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('broken')")
    code = """
        session()  # finds the real one
        from ortmulti.interop import onnxruntime_sessions
        sys.path.insert(0, sys.argv[2])
        print(error_of(onnxruntime_sessions, model, "cpu"))
    """
    [said] = lines(code, onnx_models.matmul(), tmp_path)
    assert said.startswith("LibraryError: onnxruntime cannot be imported (broken): ")


def test_another_onnxruntime_than_ortmultis_is_refused() -> None:
    code = """
        import onnxruntime
        from ortmulti.interop import onnxruntime_sessions

        onnxruntime.__version__ = "1.0.0"
        print(error_of(onnxruntime_sessions, bytes(8), "cpu"))
    """
    assert lines(code, b"")[0].startswith("LibraryError: the onnxruntime package is 1.0.0, but ortmulti uses 1.")


def test_offline_takes_what_was_optimized_before(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    with pytest.raises(ortmulti.NotFound, match=r"there is no optimized form of .*ortmulti optimize"):
        onnxruntime_sessions(path, "cpu", optimize="offline")
    ortmulti.optimize(path, "cpu")
    [session] = onnxruntime_sessions(path, "cpu", optimize="offline")
    check(session, path)


def test_a_damaged_optimized_model_is_made_anew(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    path, _ = onnx_models.write_external(tmp_path)
    stored = ortmulti.optimize(path, "cpu")
    graph = Path(stored.path) / "model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    [session] = onnxruntime_sessions(path, "cpu")
    assert ["is damaged" in record.getMessage() for record in warnings.records] == [True]
    check(session, path)
    assert graph.read_bytes() == content


def test_without_a_cache_the_optimized_model_lives_as_long_as_the_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    path, _ = onnx_models.write_external(tmp_path)
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
    check(sessions[0], path)
    sessions.clear()
    gc.collect()
    assert kept() == []


def test_memory_given_by_dlpack_lives_as_long_as_the_session(tmp_path: Path) -> None:
    """The way to a GPU's memory, with the host's."""
    names = np.random.default_rng(0).integers(0, 2, (50, 64)).astype(bool)
    values = np.random.default_rng(1).standard_normal((50, 64), dtype=np.float32)
    proto = onnx_models.model(
        [helper.make_node("Gather", [name, "x"], [f"y{name}"]) for name in ("names", "values")],
        [("x", TensorProto.INT64, [2])],
        [("ynames", TensorProto.BOOL, [2, 64]), ("yvalues", TensorProto.FLOAT, [2, 64])],
        [numpy_helper.from_array(names, "names"), numpy_helper.from_array(values, "values")],
    )
    path, data = onnx_models.write_external(tmp_path, proto)
    shared = onnxruntime_weights.SharedModel(str(path), _core.shareable_weights(str(path)))
    data.write_bytes(bytes(data.stat().st_size))  # so that what is read from it is seen
    arrays = {"names": names.copy(), "values": values.copy()}
    watched = [weakref.ref(array) for array in arrays.values()]

    class Store:
        def dlpack(self, index: int, bool_is_uint8: bool) -> object:
            array = arrays[shared.weights.weights[index].name]
            return (array.view(np.uint8) if array.dtype == np.bool_ and bool_is_uint8 else array).__dlpack__()

    weights = onnxruntime_weights.GpuWeights(onnxruntime, shared, Store())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    weights.add_to(options)
    session = _onnxruntime_sessions.session_class(onnxruntime)(str(path), options, ["CPUExecutionProvider"], weights)
    del weights, options
    arrays.clear()
    assert alive(*watched) == [True, True]
    found = session.run(None, {"x": np.array([49, 3])})
    np.testing.assert_array_equal(found[0], names[[49, 3]])
    np.testing.assert_array_equal(found[1], values[[49, 3]])
    del session, found
    assert alive(*watched) == [False, False]


# What a child finds in a capsule.
CAPSULES = """
    import ctypes, sys
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from tests.support.capsules import driver, failure, live, take, tensor_in
    from tests.support.weight_lists import weight_list

    path, weights = eval(sys.argv[1])
    listed = weight_list(path, weights)
"""


def check_capsules(code: str, weights: tuple[str, list[Fields]], environment: dict[str, str]) -> str:
    code = textwrap.dedent(CAPSULES) + textwrap.dedent(code)
    return check_child(code, repr(weights), environment=environment)


def weights_of(folder: Path, tensors: dict[str, tuple[int, np.ndarray]]) -> tuple[str, list[Fields]]:
    """A file of the arrays' bytes, one after the other, and weights of the given ONNX types in it."""
    path = folder / "weights"
    path.write_bytes(b"".join(array.tobytes() for _, array in tensors.values()))
    weights: list[Fields] = []
    offset = 0
    for name, (data_type, array) in tensors.items():
        weights.append((name, data_type, array.shape, 0, offset, array.nbytes))
        offset += array.nbytes
    return str(path), weights


# NumPy's word for each of ONNX's types that both have.
LOADED = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8", 12: "u4", 13: "u8"}


def of_every_type(types: dict[int, str]) -> dict[str, tuple[int, np.ndarray]]:
    random = np.random.default_rng(0)
    return {
        f"weight {number}": (number, random.integers(0, 2, (3, 5, 70 + number)).astype(element))
        for number, element in types.items()
    }


def load(*arguments: Any) -> object:
    return _core.load_weights(_core.SharedWeights(_core.WeightList()), *arguments)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: load([]), ortmulti.InvalidArgument, "there is no device"),
        (lambda: load([0, 1, 0]), ortmulti.InvalidArgument, "named twice"),
        (lambda: load(["cuda:0"]), TypeError, "incompatible function arguments"),
        (lambda: load([0], "read ahead"), TypeError, "incompatible function arguments"),
        (lambda: _core.SharedWeights(_core.WeightList(), prefetch="x"), TypeError, "incompatible constructor"),
    ],
)
def test_bad_arguments_of_loading_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_without_gpus_nothing_is_loaded() -> None:
    code = """
        from ortmulti import _core
        print(error_of(_core.load_weights, _core.SharedWeights(_core.WeightList()), [0]))
    """
    assert lines(code, b"")[0].startswith("DeviceError: cuda:0 does not exist: of CUDA devices there are none")


def test_loaded_weights_are_given_as_capsules(tmp_path: Path, memory_driver: dict[str, str]) -> None:
    weights = weights_of(
        tmp_path,
        of_every_type({**LOADED, 16: "u2", 17: "u1", 18: "u1", 19: "u1", 20: "u1"})
        | {"scalar": (1, np.array(3, np.float32))},
    )
    code = """
        content = open(path, "rb").read()
        prefetch = _core.Prefetch([(listed.sources[0], 0, len(content))])
        loaded = _core.load_weights(
            _core.SharedWeights(listed, prefetch=prefetch, reader_threads=2, chunk_bytes=4096, buffers_per_thread=2),
            [1, 2, 0],
        )
        assert [each.device for each in loaded] == [1, 2, 0]
        found = []
        for each in loaded:
            for i, (name, data_type, shape, _, offset, length) in enumerate(weights):
                capsule = each.dlpack(i, True)
                tensor = tensor_in(capsule)
                assert (tensor.device_type, tensor.device_id) == (2, each.device)
                assert [tensor.shape[k] for k in range(tensor.ndim)] == list(shape)
                assert (bool(tensor.strides), tensor.byte_offset, tensor.lanes) == (False, 0, 1)
                assert ctypes.string_at(tensor.data, length) == content[offset : offset + length], (each.device, name)
                found.append((data_type, tensor.code, tensor.bits))
                named = each.dlpack(i, False)
                assert tensor_in(named).code == (6 if data_type == 9 else tensor.code), name
        assert len(set(found)) == 17
        print(sorted(set(found)))
    """
    codes = {"i": 0, "u": 1, "b": 1, "f": 2}  # of DLPack, which has others for bfloat16 and the kinds of float8
    numbers = [(number, np.dtype(element)) for number, element in LOADED.items()]
    expected = [(number, codes[dtype.kind], 8 * dtype.itemsize) for number, dtype in numbers]
    expected += [(16, 4, 16), *((17 + i, 10 + i, 8) for i in range(4))]
    assert check_capsules(code, weights, memory_driver) == f"{expected}\n"


def test_the_memory_lives_as_long_as_a_capsule_or_who_took_it(tmp_path: Path, memory_driver: dict[str, str]) -> None:
    weights = weights_of(tmp_path, {"a": (1, np.ones(300, np.float32)), "b": (1, np.ones(400, np.float32))})
    code = """
        loaded = _core.load_weights(_core.SharedWeights(listed), [0, 1])
        found = [live()]
        capsule, other = loaded[0].dlpack(0, False), loaded[0].dlpack(1, False)
        del loaded
        found.append(live())  # that of the second device is gone
        del capsule
        found.append(live())
        tensor = take(other)
        del other
        found.append(live())
        assert ctypes.string_at(tensor.data, 4) == np.float32(1).tobytes()
        tensor.deleter(ctypes.addressof(tensor))
        found.append(live())
        print(found, driver.frees_with_gil())
    """
    assert check_capsules(code, weights, memory_driver) == "[2, 1, 1, 1, 0] 0\n"


def test_what_cannot_be_a_capsule_is_said(tmp_path: Path, memory_driver: dict[str, str]) -> None:
    weights = weights_of(tmp_path, {"bytes": (2, np.zeros(1025, np.uint8))})
    code = """
        path, weights = eval(sys.argv[1])
        weights.append(("packed", 22, [3, 683], 0, 0, 1025))  # 4 bits each
        listed = weight_list(path, weights)
        [loaded] = _core.load_weights(_core.SharedWeights(listed), [0])
        for i in range(len(weights) + 1):
            print(failure(loaded.dlpack, i, True))
        print(failure(loaded.dlpack, -1, True)[:9])
        del loaded
        print(live())
    """
    said = check_capsules(code, weights, memory_driver).splitlines()
    assert said == ["None", "None", "IndexError: weight 2 of 2", "TypeError", "0"]


def test_a_load_that_fails_leaves_nothing(tmp_path: Path, memory_driver: dict[str, str]) -> None:
    weights = weights_of(tmp_path, {"a": (1, np.ones(300_000, np.float32))})
    code = """
        import os
        from tests.support.processes import nothing_leaks

        _core.load_weights(_core.SharedWeights(listed), [0, 1])
        with nothing_leaks():
            print(failure(_core.load_weights, _core.SharedWeights(listed), [0, 1, 2]))
            os.truncate(path, 1000)
            print(failure(_core.load_weights, _core.SharedWeights(listed), [1, 0]))
        print(live())
    """
    environment = {**memory_driver, "FAKE_DRIVER_FULL": "2"}
    full, changed, live = check_capsules(code, weights, environment).splitlines()
    assert full.startswith("OutOfMemory: the weights take 1.2 MB on cuda:2, which has ")
    assert changed.startswith("WeightsError: ")
    assert live == "0"


def test_a_load_can_be_interrupted(tmp_path: Path, memory_driver: dict[str, str]) -> None:
    weights = weights_of(tmp_path, {"a": (2, np.zeros(64 << 20, np.uint8))})
    code = """
        from tests.support.processes import nothing_leaks

        _core.load_weights(_core.SharedWeights(_core.WeightList()), [0, 1])
        with nothing_leaks():
            try:
                few = _core.SharedWeights(listed, reader_threads=1, chunk_bytes=4096, buffers_per_thread=2)
                _core.load_weights(few, [0, 1])
            except KeyboardInterrupt:
                print("interrupted")
        print(live(), 9 <= driver.copies() < 8000)
    """
    environment = {**memory_driver, "FAKE_DRIVER_INTERRUPT": "9"}
    assert check_capsules(code, weights, environment) == "interrupted\n0 True\n"


@pytest.mark.gpu
def test_onnxruntime_takes_weights_that_were_loaded_to_gpus(tmp_path: Path) -> None:
    weights = weights_of(tmp_path, of_every_type(LOADED))
    code = """
        import gc, sys
        import onnxruntime
        import ortmulti
        from ortmulti import _core
        from ortmulti.values import onnxruntime_values
        from tests.support.weight_lists import weight_list

        path, weights = eval(sys.argv[1])
        listed = weight_list(path, weights)
        content = open(path, "rb").read()
        onnxruntime.preload_dlls()
        from_dlpack = onnxruntime.capi._pybind_state.OrtValue.from_dlpack
        uint8 = onnxruntime_values.lacks_types(onnxruntime.__version__)

        def make(capsule, is_bool):
            return from_dlpack(capsule, is_bool) if uint8 else from_dlpack(capsule)

        shared = _core.SharedWeights(listed)
        loaded = _core.load_weights(shared, list(range(_core.cuda_device_count())))
        for each in loaded:
            for i, (name, data_type, shape, _, offset, length) in enumerate(weights):
                value = onnxruntime.OrtValue(make(each.dlpack(i, uint8), data_type == 9))
                assert (value.device_name(), tuple(value.shape())) == ("cuda", shape), name
                assert value.numpy().tobytes() == content[offset : offset + length], (each.device, name)
        del value
        capsule = loaded[0].dlpack(0, uint8)
        loaded.clear()
        value = onnxruntime.OrtValue(make(capsule, False))
        del capsule, each
        gc.collect()
        assert value.numpy().tobytes() == content[: len(value.numpy().tobytes())]
        print("done")
    """
    assert check_child(code, repr(weights), environment=gpus.VISIBLE, timeout=120) == "done\n"


@pytest.mark.gpu
@pytest.mark.gpu_memory
@pytest.mark.parametrize("optimize", ["auto", "never"])
def test_on_gpus_every_device_has_one_copy(tmp_path: Path, optimize: str) -> None:
    proto = onnx_models.matmul_proto(2048, 16)  # 256 MiB
    path, _ = onnx_models.write_external(tmp_path, proto)
    code = """
        import gc
        import sys
        import numpy as np
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # of each device it warns that no plug-in has it
        import ortmulti
        from ortmulti import _core
        from ortmulti.interop import onnxruntime_sessions

        path, optimize = sys.argv[1:]
        count = _core.cuda_device_count()
        x = np.random.default_rng(0).standard_normal((4, 2048), dtype=np.float32)
        for session in onnxruntime_sessions(path, "all", optimize=optimize):
            session.run(None, {"x": x})  # what the first run of a GPU takes stays taken
        del session
        gc.collect()
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
    environment = {**gpus.VISIBLE, "ORTMULTI_CACHE": str(tmp_path / "cache")}
    taken = float(check_child(code, path, optimize, environment=environment, timeout=300))
    # A session itself takes some 140 MiB for its arena and workspaces.
    assert 256 <= taken < 4 * 256, "four sessions took the memory of several copies"


@pytest.mark.gpu
@pytest.mark.gpu_memory
def test_on_a_gpu_the_memory_is_freed_with_the_last_session_and_at_the_end(tmp_path: Path) -> None:
    path, _ = onnx_models.write_external(tmp_path, onnx_models.matmul_proto(2048, 16))
    code = """
        import gc, sys
        import onnxruntime

        onnxruntime.set_default_logger_severity(3)  # of each device it warns that no plug-in has it
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
        kept = create()  # to the end of the process
    """
    assert check_child(code, path, environment=gpus.VISIBLE, timeout=300) == "True True True\n"
