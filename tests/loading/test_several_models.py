"""Several models in one process: created at once, unloaded and reloaded, and their arenas shrunk between runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import ortmulti
from benchmarks import concurrent_creation
from tests.support import onnx_models
from tests.support.processes import check_child

# One thread a session: the order of additions is then the same everywhere.
ONE = ortmulti.SessionOptions()
ONE.intra_op_num_threads = 1

# Models whose inputs, sizes and operators differ, and what each gives.
MODELS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "small product": (onnx_models.matmul(8), {"x": np.ones((2, 8), np.float32)}),
    "large product": (onnx_models.matmul(256, 3, seed=1), {"x": np.ones((2, 256), np.float32)}),
    "convolution": (onnx_models.convolution(), {"x": np.ones((1, 3, 16, 16), np.float32)}),
    "two inputs": (onnx_models.add_mul(4), {name: np.ones((3, 4), np.float32) for name in ("a", "b")}),
    "text": (onnx_models.identity(TensorProto.STRING), {"x": np.array(["a", "ä"], object)}),
    "loop": (onnx_models.endless(), {"count": np.array(50), "x": np.zeros(3, np.float32)}),
}


def alone(model: Any, results: Callable[[ortmulti.InferenceSession], Any]) -> None:
    with ortmulti.InferenceSession(model, ONE, providers=["CPUExecutionProvider"]) as session:
        results(session)


def together(model: Any, results: Callable[[ortmulti.InferenceSession], Any]) -> None:
    with ortmulti.create_sessions(model, ["cpu", "cpu"], options=ONE) as sessions:
        for session in sessions:
            results(session)


def each_its_own(model: Any, results: Callable[[ortmulti.InferenceSession], Any]) -> None:
    with ortmulti.create_sessions(
        model, "cpu", 2, options=ONE, loading=ortmulti.Loading(strategy="native")
    ) as sessions:
        for session in sessions:
            results(session)


def pool(model: Any, results: Callable[[ortmulti.InferenceSession], Any]) -> None:
    with ortmulti.load(model, devices="cpu", options=ONE) as loaded:
        for session in loaded.sessions:
            results(session)


WAYS = [alone, together, each_its_own, pool]
WAYS_OF_MANY = ["together", "each_its_own", "pool"]


def same(expected: list[Any], found: list[Any]) -> bool:
    return len(expected) == len(found) and all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


def test_different_models_are_created_at_once_in_every_way(tmp_path: Path) -> None:
    """Threads begin together, each with another model and another way, and change both from round to round."""
    expected = {name: onnx_models.cpu_session(model, ONE).run(None, feed) for name, (model, feed) in MODELS.items()}
    sources: dict[str, list[Any]] = {name: [model] for name, (model, _) in MODELS.items()}
    for name in MODELS:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(MODELS[name][0])
        sources[name].append(path)
    names, threads, rounds = list(MODELS), 8, 12
    begin = threading.Barrier(threads)

    def work(number: int) -> list[str]:
        wrong = []
        for i in range(rounds):
            name, way = names[(number + i) % len(names)], WAYS[(number + i // 2) % len(WAYS)]

            def check(session: ortmulti.InferenceSession, name: str = name, way: Any = way) -> None:
                if not same(expected[name], session.run(None, MODELS[name][1])):
                    wrong.append(f"{name} by {way.__name__}")

            begin.wait()
            way(sources[name][i % 2], check)
        return wrong

    with ThreadPoolExecutor(threads) as executor:
        assert list(executor.map(work, range(threads))) == [[]] * threads


def test_one_that_fails_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    begin = threading.Barrier(6)
    model, feed = MODELS["small product"]
    expected = onnx_models.cpu_session(model, ONE).run(None, feed)

    def work(number: int) -> bool:
        way = WAYS[number % len(WAYS)]
        begin.wait()
        if number % 2:
            with pytest.raises(ortmulti.InvalidProtobuf):
                way(tmp_path / "text.onnx", lambda session: session)
            return True
        found: list[list[Any]] = []
        way(model, lambda session: found.append(session.run(None, feed)))
        return bool(found) and all(same(expected, results) for results in found)

    with ThreadPoolExecutor(6) as executor:
        assert list(executor.map(work, range(6))) == [True] * 6


def test_sessions_of_different_models_run_while_others_come_and_go() -> None:
    running = {name: onnx_models.cpu_session(model, ONE) for name, (model, _) in MODELS.items()}
    expected = {name: session.run(None, MODELS[name][1]) for name, session in running.items()}
    stop, wrong = threading.Event(), []

    def run(name: str) -> None:
        while not stop.is_set():
            if not same(expected[name], running[name].run(None, MODELS[name][1])):
                wrong.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in running]
    for thread in threads:
        thread.start()
    for i in range(20):
        name = list(MODELS)[i % len(MODELS)]
        model, feed = MODELS[name]

        def use(session: ortmulti.InferenceSession, feed: dict[str, Any] = feed) -> None:
            session.run(None, feed)

        WAYS[i % len(WAYS)](model, use)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("way", ["alone", *(pytest.param(way, marks=pytest.mark.process) for way in WAYS_OF_MANY)])
def test_unloaded_and_reloaded_50_times(way: str) -> None:
    """With 16 MB of weights, of which 50 more would be 800 MB; no thread and no file is left either.

    Threads that create and run leave heaps of the C library's behind, some 40 MB more or less; smaller growth
    is test_memory.py's to find.
    """
    printed = check_child(
        """
        import gc, sys
        import numpy as np
        from tests.support.processes import resident
        from tests.support import onnx_models
        from tests.loading import test_several_models
        from tests.support.processes import files, threads

        way = getattr(test_several_models, sys.argv[1])
        model = onnx_models.matmul(1024, 4)
        x = np.ones((2, 1024), np.float32)
        told = []

        def use(session):
            session.run(None, {"x": x})
            session.run_async(None, {"x": x}, lambda *result: told.append(result[2]), None)

        def cycle(count):
            for _ in range(count):
                way(model, use)
            gc.collect()
            return resident(), len(threads()), files()

        cycle(15)
        before, after = cycle(1), cycle(50)
        print(after[0] - before[0], after[1] - before[1], after[2] == before[2], set(told) <= {""})
        """,
        way,
        timeout=120,
    ).split()
    grown, new_threads, *same_files = printed
    assert same_files == ["True", "True"], printed
    assert int(new_threads) <= 0
    assert int(grown) < 128 << 20


# --- One model many times ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rounds", [pytest.param(40, id="fast"), pytest.param(1000, id="1000 rounds", marks=pytest.mark.slow)]
)
def test_concurrent_creation_on_the_cpu(rounds: int) -> None:
    stress = concurrent_creation.Creation(devices=("cpu",), sessions=3, run_every=5, repeat=rounds // 4)
    document = stress.run()
    assert stress.failures(document) == []
    assert sum(row["sessions"] for row in document["rows"]) == 3 * rounds
    assert all(row["compared"] > 0 for row in document["rows"])


def test_many_sessions_at_once() -> None:
    with ortmulti.create_sessions(
        onnx_models.matmul(8), "cpu", 64, loading=ortmulti.Loading(strategy="native")
    ) as sessions:
        x = np.ones((1, 8), np.float32)
        results = {session.run(None, {"x": x})[0].tobytes() for session in sessions}
    assert len(results) == 1


def test_the_same_bytes_may_be_used_by_several_creations() -> None:
    model = bytearray(onnx_models.matmul())
    with ThreadPoolExecutor(4) as pool:
        created = list(
            pool.map(
                lambda _: ortmulti.create_sessions(model, "cpu", 2, loading=ortmulti.Loading(strategy="native")),
                range(4),
            )
        )
    model.clear()
    x = np.ones((1, 64), np.float32)
    assert len({s.run(None, {"x": x})[0].tobytes() for sessions in created for s in sessions}) == 1


# --- Arenas -----------------------------------------------------------------------------------------------------------


SHRINK = "memory.enable_memory_arena_shrinkage"

ARENA = """
    import sys
    import numpy as np
    import ortmulti
    from tests.support.processes import resident

    [session] = ortmulti.create_sessions(bytes.fromhex(sys.argv[1]), "cpu")
    options = ortmulti.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    large, small = np.ones(1 << 25, np.float32), np.ones(10, np.float32)  # 128 MiB

    def after(x, options=None):
        [y] = session.run(None, {"x": x}, options)
        assert y == 0
        return (resident() - before) >> 20

    before = resident()
    before += after(small) << 20
"""


def test_an_arena_is_shrunk_between_runs() -> None:
    """It keeps what a large run took, through small ones, until a run is told to shrink it."""
    kept, still, shrunk, again, at_once = map(
        int,
        check_child(
            ARENA
            + """
    print(after(large), after(small), after(small, options), after(large), after(large, options))
    """,
            onnx_models.chain().hex(),
        ).split(),
    )
    assert kept >= 128
    assert still >= 128
    assert shrunk < 32
    assert again >= 128
    assert at_once < 32


def test_an_arena_is_shrunk_while_other_threads_run() -> None:
    """Every result is right. How much is freed depends on what the others hold."""
    assert (
        check_child(
            ARENA
            + """
    import threading

    def work():
        for i in range(30):
            after(small if i % 3 else large[: 1 << 20], options if i % 2 else None)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after(small, options)
    print("end")
    """,
            onnx_models.chain().hex(),
        )
        == "end\n"
    )


@pytest.mark.parametrize("arena", ["gpu:0", "cpu:1"])
def test_arenas_that_there_are_not(arena: str) -> None:
    session = onnx_models.cpu_session(onnx_models.chain())
    options = ortmulti.RunOptions()
    options.add_run_config_entry(SHRINK, arena)
    feed = {"x": np.ones(10, np.float32)}
    with pytest.raises(ortmulti.Error):
        session.run(None, feed, options)
    assert session.run(None, feed)[0] == 0
