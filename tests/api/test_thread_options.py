"""`ortmulti.Threads`: ONNX Runtime's threads made by the core, with names, on chosen CPUs, counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import ThreadCounts, Threads
from tests.support import onnx_models, processes
from tests.support.processes import lines, threads_called

CPU = min(os.sched_getaffinity(0))
MODEL = onnx_models.matmul(8)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


def options(threads: Threads | None, intra_op: int = 3) -> ortmulti.SessionOptions:
    return onnx_models.options(intra_op_num_threads=intra_op, threads=threads)


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "threads",
    [
        Threads(),
        Threads("a name"),
        Threads(numa_node="near"),
        Threads(numa_node=0),
        Threads("x" * 15, cpus=(3, 5)),
    ],
)
def test_options_give_back_what_they_were_given(threads: Threads) -> None:
    made = options(threads)
    assert made.threads == threads
    made.threads = None
    assert made.threads is None is ortmulti.SessionOptions().threads


def test_values_are_taken_in_any_form() -> None:
    assert Threads(cpus=range(3, 0, -1)) == Threads(cpus=np.array([1, 2, 3, 3])) == Threads(cpus=(1, 2, 3))
    assert Threads(numa_node=np.int32(1)) == Threads(numa_node=1)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"name_prefix": ""}, "1 to 15"),
        ({"name_prefix": "x" * 16}, "1 to 15"),
        ({"name_prefix": "ü"}, "ASCII"),
        ({"name_prefix": "a\nb"}, "printable"),
        ({"name_prefix": 3}, "name_prefix"),
        ({"numa_node": -1}, "numa_node"),
        ({"numa_node": "far"}, "near"),
        ({"numa_node": 0.5}, "numa_node"),
        ({"numa_node": True}, "numa_node"),
        ({"cpus": []}, "at least one"),
        ({"cpus": [-1]}, "CPU"),
        ({"cpus": [2**20]}, "CPU"),
        ({"cpus": "0-3"}, "cpus"),
        ({"cpus": 3}, "cpus"),
        ({"cpus": ["0"]}, "CPU"),
        ({"numa_node": 0, "cpus": [0]}, "not to both"),
    ],
)
def test_values_that_cannot_be_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=named):
        Threads(**given)


@pytest.mark.parametrize("value", ["ort", 3, {"name_prefix": "ort"}, Threads])
def test_options_take_nothing_else(value: Any) -> None:
    with pytest.raises(ortmulti.InvalidType, match=r"ortmulti\.Threads"):
        options(value)
    with pytest.raises(ortmulti.InvalidType, match=r"ortmulti\.Threads"):
        ortmulti.GlobalThreadPools(threads=value)


# --- Sessions ---------------------------------------------------------------------------------------------------------


def test_threads_have_names_and_cpus_and_are_counted() -> None:
    expected = onnx_models.cpu_session(MODEL).run(None, {"x": X})[0]
    session = onnx_models.cpu_session(MODEL, options(Threads("test", cpus=[CPU])))
    assert (session.run(None, {"x": X})[0] == expected).all()
    assert threads_called("test") == {"test-cpu-1": {CPU}, "test-cpu-2": {CPU}}
    counts = ThreadCounts("test", "cpu", created=2, alive=2, cpus=(CPU,))
    assert session.thread_counts == counts
    assert counts in ortmulti.thread_counts()
    session.close()
    assert session.thread_counts == ThreadCounts("test", "cpu", created=2, alive=0, cpus=(CPU,))
    assert ortmulti.thread_counts() == []
    assert threads_called("test") == {}


def test_without_them_onnxruntime_makes_its_own() -> None:
    with onnx_models.cpu_session(MODEL, options(None)) as session:
        assert session.thread_counts is None
        assert ortmulti.thread_counts() == []


def test_each_session_has_its_own() -> None:
    with ortmulti.create_sessions(
        MODEL, "cpu", 2, options(Threads("two", numa_node="near")), loading=ortmulti.Loading(strategy="native")
    ) as two:
        assert [session.thread_counts for session in two] == [ThreadCounts("two", "cpu", 2, 2, ())] * 2
        assert len(ortmulti.thread_counts()) == 2
        two[0].close()
        assert len(ortmulti.thread_counts()) == 1
    with ortmulti.create_sessions(MODEL, "cpu", 2, options(Threads())) as one:  # handles of one session
        one[0].close()
        assert one[1].thread_counts == ThreadCounts("ort", "cpu", 2, 2, ())
    assert ortmulti.thread_counts() == []


def test_both_pools_have_them() -> None:
    made = options(Threads("both"))
    made.execution_mode = ortmulti.ExecutionMode.ORT_PARALLEL
    made.inter_op_num_threads = 2
    with onnx_models.cpu_session(MODEL, made) as session:
        session.run(None, {"x": X})
        assert len(threads_called("both-cpu")) == 3


def test_a_pool_of_sessions_has_them() -> None:
    with ortmulti.load(MODEL, "cpu", 2, options=options(Threads("pool"))) as pool:
        assert pool.run(None, {"x": X})[0].shape == (1, 8)
        assert len(threads_called("pool-cpu")) == 2
    assert threads_called("pool-cpu") == {}


def test_a_failed_creation_leaves_none(tmp_path: Path) -> None:
    made = options(Threads("fail"))
    made.optimized_model_filepath = tmp_path / "no" / "folder.onnx"
    with pytest.raises(ortmulti.Error):
        onnx_models.cpu_session(MODEL, made)
    assert ortmulti.thread_counts() == []
    assert threads_called("fail") == {}


@pytest.mark.parametrize(
    ("threads", "named"), [(Threads(cpus=[CPU, 100_000]), "CPU 100000"), (Threads(numa_node=4000), "NUMA node 4000")]
)
def test_cpus_that_are_not_there_are_refused(threads: Threads, named: str) -> None:
    before = processes.threads()
    for create in (onnx_models.cpu_session, lambda model, given: ortmulti.create_sessions(model, "cpu", 2, given)):
        with pytest.raises(ortmulti.InvalidArgument, match=named):
            create(MODEL, options(threads))
    assert processes.threads() <= before  # one of another test may have ended


def test_contradictions_are_refused() -> None:
    bound = options(Threads())
    bound.add_session_config_entry("session.intra_op_thread_affinities", "1;2")
    with pytest.raises(ortmulti.InvalidArgument, match=r"thread_affinities.*ortmulti\.Threads"):
        onnx_models.cpu_session(MODEL, bound)
    shared = options(Threads())
    shared.use_per_session_threads = False
    with pytest.raises(ortmulti.InvalidArgument, match=r"use_per_session_threads.*GlobalThreadPools"):
        onnx_models.cpu_session(MODEL, shared)
    with pytest.raises(ortmulti.InvalidArgument, match="belong to no GPU"):
        ortmulti.GlobalThreadPools(threads=Threads(numa_node="near"))
    with pytest.raises(ortmulti.InvalidArgument, match="intra_op_thread_affinities"):
        ortmulti.GlobalThreadPools(2, 1, intra_op_thread_affinities="1", threads=Threads())


# --- Processes of their own -------------------------------------------------------------------------------------------


def printed(code: str) -> list[str]:
    return lines(code, MODEL)


def test_the_global_pools_have_them_and_can_be_asked_for_again() -> None:
    assert printed(
        f"""
    om.configure(global_thread_pools=om.GlobalThreadPools(3, 1, threads=om.Threads(cpus=[100000])))
    print("CPU 100000" in error_of(om.RunOptions))
    om.configure(global_thread_pools=om.GlobalThreadPools(3, 1, threads=om.Threads("all", cpus=[{CPU}])))
    print(om.thread_counts())
    with session(use_per_session_threads=False) as first:
        print(first.run(None, {{"x": x}})[0].shape, first.thread_counts)
    print(sorted(threads_called("all")), [(counts.device, counts.alive) for counts in om.thread_counts()])
    """
    ) == ["True", "[]", "(1, 8) None", "['all-global-1', 'all-global-2'] [('global', 2)]"]


def test_a_forked_child_has_none_of_them() -> None:
    assert printed(
        """
    inherited = session(intra_op_num_threads=3, threads=om.Threads("par"))

    def child():
        print(inherited.thread_counts.alive, om.thread_counts(), sorted(threads_called("par")))
        inherited.close()
        with session(intra_op_num_threads=3, threads=om.Threads("own")) as own:
            print(own.run(None, {"x": x})[0].shape, sorted(threads_called("own")), flush=True)

    print(forked(child), inherited.thread_counts.alive)
    inherited.close()
    print(inherited.thread_counts.alive)
    """
    ) == ["0 [] []", "(1, 8) ['own-cpu-1', 'own-cpu-2']", "0 2", "0"]


def test_sessions_that_are_open_at_the_end_are_joined() -> None:
    assert printed(
        """
    import atexit

    atexit.register(lambda: print([counts.alive for counts in om.thread_counts()]))  # called after ortmulti's handler
    kept = session(intra_op_num_threads=3, threads=om.Threads())
    print([counts.alive for counts in om.thread_counts()])
    """
    ) == ["[2]", "[]"]


def test_a_sudden_end_does_not_hang() -> None:
    code = """
        kept = session(intra_op_num_threads=3, threads=om.Threads())
        print(1, flush=True)
        os._exit(0)
    """
    assert printed(code) == ["1"]
