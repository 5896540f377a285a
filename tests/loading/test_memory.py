"""Memory over many creations, runs and closings."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import ortmulti
from benchmarks import create_close_cycles
from tests.support import onnx_models
from tests.support.processes import check_child


@pytest.mark.slow
def test_create_close_cycles_grow_no_more_than_onnxruntimes() -> None:
    document = create_close_cycles.Cycles(count=200, warm=50, repeat=3).run()
    assert create_close_cycles.Cycles.failures(document) == []
    assert [row["measured"] for row in document["rows"]] == [3, 3]


@pytest.mark.slow
def test_runs_keep_no_memory() -> None:
    """Of 2,000 runs whose outputs have 1 MB each, and of failing ones, less than 20 outputs' memory is left."""
    [grown] = check_child(
        """
        import gc, sys
        import numpy as np
        import ortmulti
        from tests.support.processes import resident

        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]))
        texts = ortmulti.InferenceSession(bytes.fromhex(sys.argv[2]))
        x, strings = np.ones(1 << 18, np.float32), np.array([f"text {i}" * 10 for i in range(100)], object)

        def runs(count):
            for _ in range(count):
                session.run(None, {"x": x})
                session.run(None, {"x": x[::-1]})
                texts.run(None, {"x": strings})
                try:
                    session.run(None, {"x": x.astype(np.float64)})
                except TypeError:
                    pass
            gc.collect()

        runs(200)
        before = resident()
        runs(2000)
        print(resident() - before)
        """,
        onnx_models.one_node("Neg").hex(),
        onnx_models.identity(8).hex(),
    ).split()
    assert int(grown) < 20 << 20


@pytest.mark.slow
def test_failing_creations_keep_no_memory() -> None:
    """A session with 40 MB of weights, beside one that fails, 40 times."""
    [grown] = check_child(
        """
        import sys
        from ortmulti import _core, errors
        import ortmulti
        from tests.support.processes import resident
        from tests.support import onnx_models

        model = onnx_models.matmul_proto(1024, 10).SerializeToString()
        cpu, wrong = ("CPUExecutionProvider", {}), ("NoSuchExecutionProvider", {})
        ortmulti.RunOptions()

        def fail():
            try:
                for _ in _core.CreationEvents(
                    _core.CreationRequest(
                        model=model, sessions=[[cpu], [wrong]], options=_core.SessionOptions(), serialize="all"
                    )
                ):
                    pass
            except errors.InvalidArgument:
                return
            raise AssertionError("no error")

        for _ in range(5):
            fail()
        before = resident()
        for _ in range(40):
            fail()
        print(resident() - before)
        """
    ).split()
    assert int(grown) < 40e6


def test_closing_returns_the_weights_memory() -> None:
    [kept, closed] = check_child(
        """
        import ortmulti
        from tests.support.processes import resident
        from tests.support import onnx_models

        # Matrices of 36 MB, of which the C library keeps nothing when they are freed.
        model = onnx_models.matmul_proto(3000, 2).SerializeToString()
        ortmulti.InferenceSession(onnx_models.matmul()).close()
        before = resident()
        sessions = ortmulti.create_sessions(model, "cpu", 2, loading=ortmulti.Loading(strategy="native"))
        print(resident() - before)
        sessions.close()
        print(resident() - before)
        """
    ).split()
    assert int(kept) > 140e6
    assert int(closed) < 30e6


def test_outputs_are_freed_with_their_arrays() -> None:
    [held, freed] = check_child(
        """
        import sys
        import numpy as np
        import ortmulti
        from tests.support.processes import resident

        options = ortmulti.SessionOptions()
        options.enable_cpu_mem_arena = False
        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]), options)
        x = np.ones(1 << 24, np.float32)
        before = resident()
        outputs = [session.run(None, {"x": x})[0] for _ in range(4)]
        print(resident() - before)
        views = [output[:10] for output in outputs]
        del outputs
        assert [view.sum() for view in views] == [-10] * 4
        del views
        print(resident() - before)
        """,
        onnx_models.one_node("Neg").hex(),
    ).split()
    assert int(held) >= 4 << 26
    assert int(freed) < 1 << 26


def test_references_are_balanced() -> None:
    """Arrays, names and options that go through a run are referred to no more than before."""
    session = onnx_models.cpu_session(onnx_models.add_mul(2))
    a, b = np.ones((1, 2), np.float32), np.ones((2, 1), np.float32).T
    name = "".join(("su", "m"))  # one that other code does not share
    feed, names, options = {"a": a, "b": b}, [name, "first"], ortmulti.RunOptions()

    def counts() -> list[int]:
        return [sys.getrefcount(value) for value in (a, b, feed, names, options, name, session)]

    session.run(names, feed, options)
    gc.collect()
    before = counts()
    for _ in range(100):
        session.run(names, feed, options)
        with pytest.raises(ortmulti.InvalidArgument):
            session.run(["no such output"], feed, options)
    gc.collect()
    assert counts() == before
