"""A library that constructs onnxruntime's sessions gets ortmulti's while the patch lasts, and theirs after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state
from onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxruntime.capi import onnxruntime_pybind11_state as state

import ortmulti
from ortmulti.interface import patch
from tests.support import a_library, onnx_models, plugins
from tests.support.pools import in_threads
from tests.support.processes import check_child, lines

MODEL = onnx_models.matmul()
X = np.ones((1, 64), np.float32)


def names() -> dict[str, Any]:
    """Every name that could be rebound, with its value."""
    return {
        f"{module.__name__}.{name}": value
        for module in (onnxruntime, collection, state, _pybind_state)
        for name, value in vars(module).items()
        if not name.startswith("__")
    }


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    before = names()
    yield
    assert names() == before


@pytest.mark.parametrize("make", [a_library.late, a_library.imported_in_the_call, a_library.from_the_collection])
def test_a_library_gets_ours_and_then_theirs(make: Any) -> None:
    expected = a_library.run(make(MODEL), {"x": X})[0]
    with ortmulti.patch_onnxruntime():
        session = make(MODEL)
        assert type(session) is ortmulti.InferenceSession
        np.testing.assert_array_equal(a_library.run(session, {"x": X})[0], expected)
    assert type(make(MODEL)) is a_library.EARLY_SESSION
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)  # it goes on


def test_every_name_that_both_have_is_rebound_and_given_back() -> None:
    before = names()
    applied = ortmulti.patch_onnxruntime()
    try:
        changed = {name for name, value in names().items() if value is not before[name]}
        classes = ("InferenceSession", "SessionOptions", "RunOptions", "GraphOptimizationLevel", "NodeArg")
        for name in (*classes, *patch._FUNCTIONS):
            if not hasattr(onnxruntime, name):  # of a later release
                continue
            assert f"onnxruntime.{name}" in changed
            assert getattr(onnxruntime, name) is getattr(ortmulti, name)
        assert state.InvalidArgument is ortmulti.InvalidArgument
        # Values, classes and functions of the same name, besides those of the table, are none of the session's.
        assert {name.rpartition(".")[2] for name in changed} <= {*patch._PUBLIC, *ortmulti.errors.__all__}
    finally:
        applied.undo()
    assert names() == before


def test_a_name_that_was_taken_out_before_stays() -> None:
    with ortmulti.patch_onnxruntime():
        session = a_library.early(MODEL)
        assert type(session) is a_library.EARLY_SESSION
        assert session.run(None, {"x": X})[0].shape == (1, 64)


def test_sessions_that_existed_before_go_on() -> None:
    session = a_library.late(MODEL)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(X)
    expected = session.run(None, {"x": X})[0]
    with ortmulti.patch_onnxruntime():
        [result] = session.run_with_ort_values(None, {"x": value})
        np.testing.assert_array_equal(result.numpy(), expected)
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected)


def test_exceptions_are_caught_by_the_names_in_every_module_of_onnxruntime() -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("onnxruntime.")]
    holders = [module for module in modules if hasattr(module, "NoSuchFile")]
    assert {state, _pybind_state} <= set(holders)
    for context in (nullcontext, ortmulti.patch_onnxruntime, nullcontext):
        with context():
            assert a_library.is_refused(b"no model")
            for module in holders:
                with pytest.raises(module.NoSuchFile):
                    onnxruntime.InferenceSession("nope.onnx")


def test_plug_ins_are_registered_for_ortmultis_sessions(tmp_path: Path) -> None:
    library = plugins.build(tmp_path)
    expected = a_library.run(a_library.late(MODEL), {"x": X})[0]
    with ortmulti.patch_onnxruntime():
        onnxruntime.register_execution_provider_library("tests", str(library))
        try:
            [device] = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "FakeExecutionProvider"]
            assert isinstance(device, onnxruntime.OrtEpDevice)
            assert isinstance(device.device, onnxruntime.OrtHardwareDevice)
            assert device.device.type == onnxruntime.OrtHardwareDeviceType.CPU
            options = onnxruntime.SessionOptions()
            options.add_provider_for_devices([device], {})
            session = onnxruntime.InferenceSession(MODEL, options)
            np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
            with pytest.raises(state.Fail, match="already registered"):  # onnxruntime's words, which programs look for
                onnxruntime.register_execution_provider_library("tests", str(library))
            del session
        finally:
            onnxruntime.unregister_execution_provider_library("tests")
        with pytest.raises(state.Fail, match="was not registered"):
            onnxruntime.unregister_execution_provider_library("tests")


def test_patches_nest_and_are_undone_in_any_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        applied = [ortmulti.patch_onnxruntime() for _ in range(3)]
        for left, index in enumerate(order):
            assert onnxruntime.InferenceSession is ortmulti.InferenceSession, left
            applied[index].undo()
            assert not applied[index].active
        assert onnxruntime.InferenceSession is a_library.EARLY_SESSION


def test_undoing_twice_is_an_error_and_undoes_nothing_else() -> None:
    outer, inner = ortmulti.patch_onnxruntime(), ortmulti.patch_onnxruntime()
    inner.undo()
    with pytest.raises(ortmulti.ClosedError, match="undone before"):
        inner.undo()
    with pytest.raises(ortmulti.ClosedError, match="call patch_onnxruntime again"), inner:
        pass
    assert onnxruntime.InferenceSession is ortmulti.InferenceSession
    with outer:
        outer.undo()  # the end of the block finds it undone
    assert "undone" in repr(outer)


def test_the_block_undoes_it_after_an_exception() -> None:
    with pytest.raises(KeyError), ortmulti.patch_onnxruntime():
        raise KeyError
    assert onnxruntime.InferenceSession is a_library.EARLY_SESSION


def test_what_somebody_else_rebound_is_left_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = ortmulti.patch_onnxruntime()
    monkeypatch.setattr(onnxruntime, "RunOptions", int)
    with pytest.raises(ortmulti.Error, match=r"onnxruntime\.RunOptions was rebound by somebody else"):
        applied.undo()
    assert onnxruntime.RunOptions is int
    assert onnxruntime.InferenceSession is a_library.EARLY_SESSION
    monkeypatch.undo()
    onnxruntime.RunOptions = state.RunOptions


def test_many_threads_patch_and_undo() -> None:
    def work(_: int) -> None:
        for _ in range(200):
            with ortmulti.patch_onnxruntime():
                assert onnxruntime.InferenceSession is ortmulti.InferenceSession
                assert collection.InferenceSession is ortmulti.InferenceSession

    in_threads(4, work)
    assert onnxruntime.InferenceSession is a_library.EARLY_SESSION


def test_a_forked_child_inherits_the_patch_and_can_undo_it() -> None:
    """Also while other threads patch and undo."""
    printed = check_child(
        """
        import os, threading
        import onnxruntime, ortmulti
        theirs, stop = onnxruntime.InferenceSession, threading.Event()

        def patch():
            while not stop.is_set():
                with ortmulti.patch_onnxruntime():
                    pass

        thread = threading.Thread(target=patch)
        applied = ortmulti.patch_onnxruntime()
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                assert onnxruntime.InferenceSession is ortmulti.InferenceSession
                ortmulti.patch_onnxruntime().undo()
                applied.undo()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        applied.undo()
        assert onnxruntime.InferenceSession is theirs
        print("done")
        """,
    )
    assert printed.strip() == "done"


def test_a_module_that_is_imported_under_the_patch_gets_ours() -> None:
    """onnxruntime itself is imported by the patch."""
    printed = check_child(
        """
        import sys
        import ortmulti
        assert "onnxruntime" not in sys.modules
        with ortmulti.patch_onnxruntime():
            from tests.support import a_library
        assert a_library.EARLY_SESSION is ortmulti.InferenceSession
        import onnxruntime
        assert onnxruntime.InferenceSession is not ortmulti.InferenceSession
        print("done")
        """
    )
    assert printed.strip() == "done"


def test_without_onnxruntime_it_says_what_to_install() -> None:
    printed = lines(
        """
        sys.modules["onnxruntime"] = None
        print(error_of(om.patch_onnxruntime))
        """,
        MODEL,
    )
    assert "LibraryError: " in printed[0]
    assert "pip install" in printed[0]
