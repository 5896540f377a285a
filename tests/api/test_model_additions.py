"""Initializers and external data that session options give in the place of the model's own, beside onnxruntime's."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortmulti
from ortmulti._runtime import log
from ortmulti._runtime.libraries import release_of
from ortmulti.create.request import core_options
from ortmulti.devices.device import Device
from ortmulti.loading.plan import why_not_shared
from ortmulti.optimized.key import key_of
from tests.support import onnx_models
from tests.support.additions import (
    ADDED,
    LARGE,
    LARGE_X,
    MODEL,
    ORT_WEIGHT,
    WEIGHT,
    X,
    external,
    large_graph,
    of_onnxruntime_alone,
    product,
    run,
    value,
    with_external,
    with_file,
    with_initializer,
    with_large,
)
from tests.support.cached_models import CPU
from tests.support.lifetimes import alive

__all__ = ["external"]  # a fixture


def of_onnxruntime(source: Any, add: Callable[[Any], object]) -> Any:
    """The result with onnxruntime's own options, or the name of its error."""
    options = onnxruntime.SessionOptions()
    try:
        add(options)
    except AttributeError as error:
        pytest.skip(f"onnxruntime {onnxruntime.__version__}: {error}")
    try:
        return run(onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"]))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", ADDED)
def test_the_result_is_onnxruntimes(kind: str, external: tuple[Path, Path]) -> None:
    make, theirs = ADDED[kind]
    ours = run(onnx_models.cpu_session(external[0], make()))
    np.testing.assert_array_equal(ours, of_onnxruntime(str(external[0]), theirs))
    np.testing.assert_array_equal(ours, X @ WEIGHT)


@pytest.mark.parametrize("kind", ADDED)
@pytest.mark.parametrize("strategy", ["shared", "native"])
def test_sessions_that_are_created_together_have_them(kind: str, strategy: Any, external: tuple[Path, Path]) -> None:
    options = ADDED[kind][0]()
    with ortmulti.create_sessions(
        external[0], "cpu", 2, options, loading=ortmulti.Loading(strategy=strategy)
    ) as sessions:
        for session in sessions:
            np.testing.assert_array_equal(run(session), X @ WEIGHT)
    with ortmulti.load(external[0], "cpu", 2, options, loading=ortmulti.Loading(strategy=strategy)) as pool:
        for session in pool.sessions:
            np.testing.assert_array_equal(run(session), X @ WEIGHT)


@pytest.mark.parametrize("kind", ADDED)
def test_a_pool_with_them_keeps_its_model(kind: str, external: tuple[Path, Path]) -> None:
    with ortmulti.load(external[0], "cpu", options=ADDED[kind][0]()) as pool:
        with pytest.raises(ortmulti.InvalidArgument, match="would replace those of the new model by name"):
            pool.replace_model(external[0])
        np.testing.assert_array_equal(run(pool.sessions[0]), X @ WEIGHT)


def test_a_file_in_memory_replaces_one_that_is_not_there(external: tuple[Path, Path]) -> None:
    path, data = external
    data.unlink()
    np.testing.assert_array_equal(run(onnx_models.cpu_session(path, with_file())), X @ WEIGHT)
    np.testing.assert_array_equal(run(onnx_models.cpu_session(path.read_bytes(), with_file())), X @ WEIGHT)
    with pytest.raises(ortmulti.Error):
        onnx_models.cpu_session(path)


def outcome(source: Any, options: ortmulti.SessionOptions) -> Any:
    """The result, or the name of the error."""
    try:
        return run(onnx_models.cpu_session(source, options))
    except ortmulti.Error as error:
        return type(error).__name__


@pytest.mark.parametrize("kind", ["external", "file"])
@pytest.mark.parametrize("name", ["weight0", "other"])
def test_what_the_model_has_not_is_as_in_onnxruntime(kind: str, name: str) -> None:
    """Weights that are in the model file, and names that it does not have."""
    model = product(name).SerializeToString()
    make, theirs = ADDED[kind]
    np.testing.assert_array_equal(outcome(model, make()), of_onnxruntime(model, theirs))


def test_an_initializer_of_another_name_is_not_used() -> None:
    np.testing.assert_array_equal(run(onnx_models.cpu_session(MODEL, with_initializer(name="other"))), 0 * X)


def of_onnx_runtime() -> ortmulti.OrtValue:
    """Memory that onnxruntime refuses, since it has allocated it itself."""
    made = ortmulti.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32)
    made.update_inplace(WEIGHT)
    return made


@pytest.mark.parametrize(
    "given",
    [ORT_WEIGHT, of_onnx_runtime(), value(np.asfortranarray(WEIGHT)), value(np.asfortranarray(WEIGHT.astype(">f4")))],
    ids=["onnxruntime's", "own memory", "Fortran order", "other byte order"],
)
def test_any_value_will_do(given: Any) -> None:
    options = ortmulti.SessionOptions()
    options.add_initializer("weight0", given)
    np.testing.assert_array_equal(run(onnx_models.cpu_session(MODEL, options)), X @ WEIGHT)


@pytest.mark.parametrize("kind", ADDED)
def test_they_live_as_long_as_the_sessions(kind: str, external: tuple[Path, Path]) -> None:
    array = WEIGHT.copy()
    watched = weakref.ref(array)
    given: Any = array if kind != "file" else memoryview(array).cast("B")
    sessions = ortmulti.create_sessions(external[0], "cpu", 2, ADDED[kind][0](given))
    del array, given
    assert alive(watched) == [True]
    first, second = sessions
    first.close()
    np.testing.assert_array_equal(run(second), X @ WEIGHT)
    second.close()
    assert alive(watched) == [True]  # get_session_options has them
    del sessions, first, second
    assert alive(watched) == [False]


def test_an_initializer_is_used_in_place() -> None:
    array = np.zeros((2, 2), np.float32)
    options = with_initializer(array)
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnx_models.cpu_session(MODEL, options)
    array[:] = WEIGHT
    np.testing.assert_array_equal(run(session), X @ WEIGHT)


def test_a_file_that_is_used_in_place_stays(external: tuple[Path, Path]) -> None:
    """From 1.31 on this entry has ONNX Runtime keep no copy."""
    if release_of(ortmulti.get_version_string()) < (1, 31):
        pytest.skip("needs ONNX Runtime 1.31")
    options = with_file(bytearray(WEIGHT.tobytes()))
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    session = onnx_models.cpu_session(external[0], options)
    del options
    gc.collect()
    np.testing.assert_array_equal(run(session), X @ WEIGHT)


def test_options_that_change_later_do_not_change_sessions() -> None:
    options = ortmulti.SessionOptions()
    session = onnx_models.cpu_session(MODEL, options)
    options.add_initializer("weight0", value(WEIGHT))
    np.testing.assert_array_equal(run(session), 0 * X)
    np.testing.assert_array_equal(run(onnx_models.cpu_session(MODEL, options)), X @ WEIGHT)


# --- Large values for a model in memory -------------------------------------------------------------------------------


def test_large_values_are_used_in_place_and_freed() -> None:
    array = LARGE.copy()
    watched = weakref.ref(array)
    options = with_large(array)
    options.add_session_config_entry("session.disable_prepacking", "1")
    with ortmulti.load(large_graph(), "cpu", sessions_per_device=2, options=options) as pool:
        array[:] = 0
        np.testing.assert_array_equal(pool.run({"x": LARGE_X})[0], np.tile(LARGE[0], (2, 1)))
    del pool, options, array
    assert alive(watched) == [False]


@pytest.mark.parametrize(
    ("model", "in_place"),
    [
        pytest.param(large_graph(), True, id="in place"),
        pytest.param(Path("model.onnx"), True, id="of a file"),
        pytest.param(large_graph("folder/large.data"), True, id="in a folder"),
        pytest.param(large_graph(transposed=True), False, id="read by an optimization"),
        pytest.param(large_graph("../large.data"), False, id="outside of the folder"),
        pytest.param(large_graph("/large.data"), False, id="at a path"),
        pytest.param(large_graph("data", "data/small"), False, id="in a file"),
        pytest.param(large_graph("large\0data"), False, id="with a NUL"),
        pytest.param(large_graph("large" * 60), False, id="of a long name"),
    ],
)
def test_outputs_with_large_values_are_onnxruntimes(
    model: bytes | Path, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    source: Any = model
    if isinstance(model, Path):  # without its file of data
        source, model = tmp_path / model, large_graph()
        source.write_bytes(model)
    with ortmulti.create_sessions(source, "cpu", 2, with_large()) as sessions:
        for session in sessions:
            np.testing.assert_array_equal(session.run(None, {"x": LARGE_X})[0], of_onnxruntime_alone(model))
        assert [session._core.weight_use()[0] for session in sessions] == [int(in_place)] * 2
    assert list(temporary.iterdir()) == []


def test_a_value_that_an_optimization_reads_is_copied_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    model = large_graph(transposed=True, wide=True)
    with ortmulti.create_sessions(model, "cpu", 2, with_large(wide=True)) as sessions:
        for session in sessions:
            [y] = session.run(None, {"x": LARGE_X})
            np.testing.assert_array_equal(y, of_onnxruntime_alone(model, wide=True))
            assert session._core.weight_use()[0] == 1
    log.flush()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"large": LARGE}, r"small|large\.data", id="missing"),
        pytest.param({"large": LARGE[:-1], "small": LARGE[0]}, "shape|dimensions|size", id="another shape"),
        pytest.param({"large": LARGE.view(np.int32), "small": LARGE[0]}, "data type", id="another type"),
        pytest.param({"large": LARGE, "small": LARGE[0], "other": LARGE}, "other", id="another name"),
    ],
)
def test_large_values_that_do_not_fit_are_onnxruntimes_error(values: dict[str, Any], message: str) -> None:
    options = ortmulti.SessionOptions()
    options.add_external_initializers(list(values), [value(np.ascontiguousarray(each)) for each in values.values()])
    with pytest.raises(ortmulti.Error, match=message):
        ortmulti.load(large_graph(), "cpu", options=options)


# --- What is not shared, and not kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (with_initializer, "add_initializer"),
        (with_external, "add_external_initializers"),
        (with_file, "add_external_initializers_from_files_in_memory"),
    ],
)
def test_weights_of_the_options_are_neither_shared_nor_optimized_ahead(
    make: Callable[[], ortmulti.SessionOptions], method: str, external: tuple[Path, Path]
) -> None:
    options = make()
    assert method in why_not_shared([Device("cuda")], core_options(options))
    with pytest.raises(ortmulti.NotOptimizable, match=method):
        key_of(ortmulti.Model(external[0]), CPU, options)
    with pytest.raises(ortmulti.NotOptimizable, match=method):
        ortmulti.optimize(external[0], "cpu", options=options)


# --- What is refused --------------------------------------------------------------------------------------------------

EMPTY = np.zeros(0, np.float32)
INVALID_TYPES: list[Callable[[ortmulti.SessionOptions], object]] = [
    lambda o: o.add_initializer("a", WEIGHT),
    lambda o: o.add_initializer("a", None),
    lambda o: o.add_initializer(None, value(WEIGHT)),
    lambda o: o.add_initializer("a", value(np.array(["text"]))),
    lambda o: o.add_external_initializers("a", [value(WEIGHT)]),
    lambda o: o.add_external_initializers(["a"], value(WEIGHT)),
    lambda o: o.add_external_initializers(["b", "a"], [value(WEIGHT), WEIGHT]),  # type: ignore[list-item]
    lambda o: o.add_external_initializers(["b", 1], [value(WEIGHT), value(WEIGHT)]),  # type: ignore[list-item]
    lambda o: o.add_external_initializers_from_files_in_memory(["f"], b"abc", [3]),
    lambda o: o.add_external_initializers_from_files_in_memory(["g", "f"], [b"abc", "abc"], [3, 3]),
    lambda o: o.add_external_initializers_from_files_in_memory(["g", "f"], [b"abc", b"abc"], [3, 3.0]),
    lambda o: o.add_external_initializers_from_files_in_memory(["g", "f"], [b"abc", b"abc"], [3, True]),
]
INVALID_VALUES: list[Callable[[ortmulti.SessionOptions], object]] = [
    lambda o: o.add_initializer("", value(WEIGHT)),
    lambda o: o.add_initializer("a\0b", value(WEIGHT)),
    lambda o: o.add_external_initializers(["a", "b"], [value(WEIGHT)]),
    lambda o: o.add_external_initializers(["a", "a"], [value(WEIGHT), value(WEIGHT)]),
    lambda o: o.add_external_initializers_from_files_in_memory(["f"], [b"abc"], []),
    lambda o: o.add_external_initializers_from_files_in_memory(["g", "f"], [b"abc", b"abc"], [3, 4]),
    lambda o: o.add_external_initializers_from_files_in_memory(["g", "f"], [b"abc", b"abc"], [3, -1]),
    lambda o: o.add_external_initializers_from_files_in_memory(["f"], [b"abc"], [2**70]),
    lambda o: o.add_external_initializers_from_files_in_memory(["f", "f"], [b"abc", b"abc"], [3, 3]),
    lambda o: o.add_external_initializers_from_files_in_memory(["f"], [np.arange(8)[::2]], [8]),
]


@pytest.mark.parametrize("add", [*INVALID_TYPES, *INVALID_VALUES])
def test_what_cannot_be_is_one_error_and_adds_nothing(add: Callable[[ortmulti.SessionOptions], object]) -> None:
    options = with_initializer(name="kept")
    with pytest.raises(ortmulti.InvalidType if add in INVALID_TYPES else ortmulti.InvalidArgument) as error:
        add(options)
    assert isinstance(error.value, TypeError) == (add in INVALID_TYPES)
    core = options._core
    assert [core.initializers, core.external_initializers, core.files_in_memory] == [["kept"], [], []]


def test_names_are_given_once() -> None:
    options = with_initializer()
    with pytest.raises(ortmulti.InvalidArgument, match="'weight0' was added"):
        options.add_initializer("weight0", value(EMPTY))
    options.add_external_initializers(["weight0"], [value(WEIGHT)])
    with pytest.raises(ortmulti.InvalidArgument, match="'weight0' was added"):
        options.add_external_initializers(["weight0"], [value(WEIGHT)])
    options = with_file()
    with pytest.raises(ortmulti.InvalidArgument, match=r"'model\.data' was added"):
        options.add_external_initializers_from_files_in_memory(["model.data"], [b""], [0])


@pytest.mark.parametrize("array", [np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float64), EMPTY])
@pytest.mark.parametrize("kind", ["initializer", "external"])
def test_another_type_or_shape_is_as_in_onnxruntime(
    kind: str, array: np.ndarray[Any, Any], external: tuple[Path, Path]
) -> None:
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    expected = of_onnxruntime(
        str(external[0]),
        lambda o: (
            o.add_initializer("weight0", theirs)
            if kind == "initializer"
            else o.add_external_initializers(["weight0"], [theirs])
        ),
    )
    np.testing.assert_array_equal(outcome(external[0], ADDED[kind][0](array)), expected)
