"""Sessions on the CPU that are handles of one ONNX Runtime session."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import ortmulti
from ortmulti import _core
from ortmulti.bench import models
from ortmulti.create import core_sessions
from tests.support import onnx_models
from tests.support.processes import check_child, nothing_leaks

EIGHT = 8
MEGABYTES = 512
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)


def creations(sessions: ortmulti.Sessions) -> int:
    """How many sessions ONNX Runtime created."""
    return [span.name for span in sessions.timeline.spans].count("create session")


def reasons(sessions: ortmulti.Sessions) -> list[str]:
    """Why each session loaded the model by itself."""
    names = [span.name for span in sessions.timeline.spans]
    return [name.removeprefix("not shared: ") for name in names if name.startswith("not shared")]


def ordinary() -> bytes:
    """What onnxruntime's own session gives."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(onnx_models.matmul(), options, providers=["CPUExecutionProvider"])
    [output] = session.run(None, {"x": X})
    return bytes(output.tobytes())


def one_thread() -> ortmulti.SessionOptions:
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 1
    return options


# --- Memory -----------------------------------------------------------------------------------------------------------

# Prints the memory after a run of each session, after all but the last were closed, and after that one was closed;
# then a digest of all outputs.
MEASURE = """
    import hashlib, sys
    import numpy as np
    import ortmulti
    from ortmulti.bench.measure.memory import process_memory

    model, feeds, count = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3])
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 1
    feed = dict(feeds)
    sessions = ortmulti.create_sessions(model, "cpu", count, options)
    digests = {hashlib.sha256(session.run(None, feed)[0].tobytes()).hexdigest() for session in sessions}
    print(process_memory().pss)
    for session in list(sessions)[:-1]:
        session.close()
    digests.add(hashlib.sha256(sessions[-1].run(None, feed)[0].tobytes()).hexdigest())
    print(process_memory().pss)
    sessions.close()
    print(process_memory().pss)
    print(*digests)
"""


def test_eight_sessions_take_the_memory_of_one(tmp_path: Path) -> None:
    """Proportional set size after a run of each; and the last one that is closed returns it."""
    model, feeds = models.make("matmul", tmp_path, megabytes=MEGABYTES), tmp_path / "feeds.npz"
    np.savez(feeds, **models.sample_inputs(model))
    used: dict[int, list[int]] = {}
    digests = set()
    for count in (1, EIGHT):
        *numbers, digest = check_child(MEASURE, model, feeds, count, timeout=120).split("\n")[:4]
        used[count] = [int(number) for number in numbers]
        digests.add(digest)
    one, eight = used[1][0], used[EIGHT][0]
    assert one > MEGABYTES * 1e6
    assert eight <= 1.1 * one
    after_seven, after_all = used[EIGHT][1:]
    assert after_seven > MEGABYTES * 1e6
    assert after_all < 0.5 * MEGABYTES * 1e6
    assert len(digests) == 1, "one output, bit for bit"


# --- One session behind several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [{"devices": ["cpu"] * 3}, {"devices": "cpu", "sessions_per_device": 3}])
@pytest.mark.parametrize("load", [ortmulti.create_sessions, lambda *a, **k: ortmulti.load(*a, **k).sessions])
def test_however_they_are_asked_for(load: Callable[..., ortmulti.Sessions], devices: dict[str, Any]) -> None:
    with load(onnx_models.matmul(), **devices) as sessions:
        assert (len(sessions), sessions.devices) == (3, ["cpu"] * 3)
        assert creations(sessions) == 1
        assert reasons(sessions) == []
        assert sessions[0]._core.weight_use() == (0, []), "none are given to a session that loads the model itself"


def test_native_ones_are_sessions_of_their_own() -> None:
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 3, loading=ortmulti.Loading(strategy="native")
    ) as sessions:
        assert creations(sessions) == 3


def test_the_one_has_the_threads_of_one() -> None:
    """Sessions side by side share the cores."""

    def threads(count: int) -> set[int]:
        with ortmulti.create_sessions(onnx_models.matmul(), "cpu", count) as sessions:
            return {session._core.intra_op_num_threads() for session in sessions}

    assert threads(_core.usable_cores()) == threads(1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_they_are_closed_in_any_order(order: tuple[int, ...]) -> None:
    sessions = ortmulti.create_sessions(onnx_models.matmul(), "cpu", 3, one_thread())
    expected = ordinary()
    closed: set[int] = set()
    for number in order:
        sessions[number].close()
        closed.add(number)
        for other, session in enumerate(sessions):
            assert session.closed is (other in closed)
            if other in closed:
                with pytest.raises(ortmulti.ClosedError):
                    session.run(None, {"x": X})
            else:
                assert session.run(None, {"x": X})[0].tobytes() == expected


def test_dropped_ones_leave_the_others() -> None:
    with nothing_leaks():
        first, second, third = ortmulti.create_sessions(onnx_models.matmul(), "cpu", 3)
        expected = first.run(None, {"x": X})[0].tolist()
        del first, third
        gc.collect()
        assert second.run(None, {"x": X})[0].tolist() == expected
        assert second.get_inputs()[0].name == "x"
        del second


def test_a_failed_run_stops_no_other() -> None:
    with ortmulti.create_sessions(onnx_models.matmul(), "cpu", 2) as (first, second):
        with pytest.raises(ortmulti.Error):
            first.run(None, {"x": np.ones((1, 3), np.float32)})
        assert second.run(None, {"x": X})[0].shape == first.run(None, {"x": X})[0].shape


def test_a_run_that_is_ended_ends_no_others() -> None:
    with ortmulti.create_sessions(onnx_models.endless(), "cpu", 2, one_thread()) as (first, second):
        options = ortmulti.RunOptions()
        feed = {"count": np.array(onnx_models.LONG), "x": np.zeros(1, np.float32)}
        with ThreadPoolExecutor(1) as pool:
            endless = pool.submit(first.run, None, feed, options)
            [y] = second.run(None, {**feed, "count": np.array(3)})
            assert y.tolist() == [3]
            second.close()  # waits for its own runs alone
            assert not endless.done()
            options.terminate = True
            with pytest.raises(ortmulti.Error):
                endless.result()


def test_a_model_that_cannot_be_loaded_is_one_error() -> None:
    with nothing_leaks(), pytest.raises(ortmulti.InvalidProtobuf):
        ortmulti.create_sessions(b"no model" * 10, "cpu", EIGHT)


def test_progress_counts_all_of_them() -> None:
    calls: list[tuple[int, int, str]] = []
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 3, progress=lambda done, total, device: calls.append((done, total, device))
    ):
        assert calls == [(1, 3, "cpu"), (2, 3, "cpu"), (3, 3, "cpu")]


def test_a_process_ends_with_some_of_them_open() -> None:
    check_child(
        """
        import sys
        import ortmulti

        sessions = ortmulti.create_sessions(bytes.fromhex(sys.argv[1]), "cpu", 4)
        sessions[2].close()
        kept = sessions[1]
        """,
        onnx_models.matmul().hex(),
    )


def _run_both(first: ortmulti.InferenceSession, second: ortmulti.InferenceSession, expected: bytes) -> None:
    good = first.run(None, {"x": X})[0].tobytes() == expected
    first.close()
    good = good and second.run(None, {"x": X})[0].tobytes() == expected
    second.close()
    sys.exit(0 if good else 1)


def test_a_forked_child_runs_and_closes_them_for_itself() -> None:
    with ortmulti.create_sessions(onnx_models.matmul(), "cpu", 2, one_thread()) as (first, second):
        expected = ordinary()
        child = multiprocessing.get_context("fork").Process(target=_run_both, args=(first, second, expected))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        first.close()
        assert second.run(None, {"x": X})[0].tobytes() == expected


# --- Over the model's file --------------------------------------------------------------------------------------------


def test_sessions_use_weights_where_the_file_is_mapped(tmp_path: Path) -> None:
    model, data = onnx_models.write_external(tmp_path)
    expected = ordinary()
    weights = _core.shareable_weights(str(model))
    cpu: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]
    ortmulti.RunOptions()  # opens the library
    shared = _core.SharedWeights(weights)
    created, _ = core_sessions.create(str(model), [cpu, cpu], one_thread()._core, weights=shared)
    for session in created:
        assert session.weight_use() == (len(weights.weights), [])
        assert session.run(None, {"x": X})[0].tobytes() == expected
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert str(data) in mapped
    created[0].close()
    assert created[1].run(None, {"x": X})[0].tobytes() == expected
    created[1].close()
    assert str(data) not in Path("/proc/self/maps").read_text()


# --- Those that cannot be one -----------------------------------------------------------------------------------------


DRAW = "RandomNormal <shape = [4], seed = 1.0> ()"
RANDOM = {
    "main graph": f"() => (float[4] y) {{ y = {DRAW} }}",
    "branch": f"""(bool which) => (float[4] y) {{
        fixed = ConstantOfShape(four)
        y = If (which) <
            then_branch = drawing () => (float[4] drawn) {{ drawn = {DRAW} }},
            else_branch = constant () => (float[4] drawn) {{ drawn = Identity(fixed) }}
        >
    }}""",
    "function": f"""() => (float[4] y) {{ y = local.Draw() }}
        <domain: "local", opset_import: ["": 17]> Draw () => (drawn) {{ drawn = {DRAW} }}
    """,
}


@pytest.mark.parametrize("place", RANDOM)
def test_sessions_that_draw_numbers_each_draw_their_own(place: str) -> None:
    """The same seed gives each of them the same numbers, which one session gives only once."""
    model = onnx_models.parsed(RANDOM[place], numpy_helper.from_array(np.array([4]), "four")).SerializeToString()
    with ortmulti.create_sessions(model, "cpu", 3) as sessions:
        feed = {value.name: np.array(True) for value in sessions[0].get_inputs()}
        drawn = [session.run(None, feed)[0].tolist() for session in sessions]
        assert drawn[0] == drawn[1] == drawn[2]
        assert sessions[0].run(None, feed)[0].tolist() != drawn[0]
        assert creations(sessions) == 3
        [reason] = reasons(sessions)
        assert "RandomNormal" in reason or "local" in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enable_profiling": True, "profile_file_prefix": "profile"}, "profile"),
        ({"optimized_model_filepath": "optimized.onnx"}, "optimized_model_filepath"),
    ],
)
def test_each_writes_the_files_that_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options = one_thread()
    for name, value in changes.items():
        setattr(options, name, value)
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 2, options, loading=ortmulti.Loading(serialize="all")
    ) as sessions:
        assert creations(sessions) == 2
        assert reason in reasons(sessions)[0]
    assert list(tmp_path.glob(f"{list(changes.values())[-1]}*"))
