"""CUDA graphs of shapes that come again, in sessions beside a pool's ordinary ones."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti._runtime import background
from tests.support import onnx_models
from tests.support.gpus import MODEL, VISIBLE, check_memory_returns, feed, needs_gpus, needs_graphs
from tests.support.pools import HANG
from tests.support.processes import check_child

pytestmark = pytest.mark.gpu


Feed = dict[str, np.ndarray]


def graph_runs(pool: ortmulti.Pool) -> int:
    return sum(device.graph_runs for device in pool.stats().devices)


def run_until(pool: ortmulti.Pool, given: Feed, reached: Callable[[], object]) -> list[list[np.ndarray]]:
    """The answers to the same inputs, asked for again and again."""
    end = time.monotonic() + HANG
    answers = [pool.run(given)]
    while not reached():
        assert time.monotonic() < end
        answers.append(pool.run(given))
    return answers


def run_until_graph(pool: ortmulti.Pool, given: Feed) -> list[list[np.ndarray]]:
    """The same, until 20 of them came from a graph."""
    before = graph_runs(pool)
    return run_until(pool, given, lambda: graph_runs(pool) >= before + 20)


@contextmanager
def refusal() -> Iterator[threading.Event]:
    """Set when a shape was refused."""
    refused = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "CUDA graph" in record.getMessage():
                refused.set()

    logger, watch = logging.getLogger("ortmulti"), Watch()
    level = logger.level
    logger.addHandler(watch)
    logger.setLevel(logging.INFO)
    try:
        yield refused
    finally:
        logger.setLevel(level)
        logger.removeHandler(watch)


def test_a_shape_that_comes_again_gets_a_graph_with_the_same_answers() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
        sessions = len(pool.sessions)
        for rows in (3, 8):
            answers = run_until_graph(pool, feed(0, rows))
            for [y] in answers:
                np.testing.assert_allclose(y, answers[0][0], rtol=1e-5, atol=1e-5)
            other = pool.run(feed(1, rows))[0]
            assert not np.array_equal(other, answers[0][0])
            np.testing.assert_allclose(other, pool.sessions[0].run(None, feed(1, rows))[0], rtol=1e-5, atol=1e-5)
        assert len(pool.sessions) == sessions
        futures = [pool.submit(None, feed(number)) for number in range(64)]
        for number, future in enumerate(futures):
            wanted = pool.sessions[0].run(None, feed(number))[0]
            np.testing.assert_allclose(future.result()[0], wanted, rtol=1e-5, atol=1e-5)


def test_as_many_sessions_are_made_as_requests_are_under_way() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0") as pool:  # "auto" is the default
        run_until_graph(pool, feed(0, 4000))
        [device] = pool.stats().devices
        assert (device.graphs, device.graph_sessions, device.why_no_graph) == (1, 1, "")
        end = time.monotonic() + HANG
        while pool.stats().devices[0].graph_sessions == 1:  # another one is tried while requests wait
            assert time.monotonic() < end
            list(pool.map([feed(0, 4000)] * 200))
        while pool.stats().devices[0].graphs == 1:
            assert time.monotonic() < end
            list(pool.map([feed(0, 3000)] * 64))
        assert pool.stats().devices[0].graph_sessions >= 3  # those of the second shape are two or more


def test_shapes_that_were_asked_for_get_graphs_after_one_run() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph=ortmulti.CudaGraph(max_shapes=2)) as pool:
        for rows in (3, 8):
            [first] = pool.run(feed(0, rows))
            background.wait()
            np.testing.assert_allclose(pool.run(feed(0, rows))[0], first, rtol=1e-5, atol=1e-5)
        assert graph_runs(pool) == 2
        pool.run(feed(0, 9))
        background.wait()
        pool.run(feed(0, 9))
        assert graph_runs(pool) == 2  # both graphs were used lately


@pytest.mark.parametrize("cuda_graph", ["auto", True])
def test_several_shapes_of_convolutions_at_once(cuda_graph: Any) -> None:
    """A graph keeps the plans that it was captured with, whatever runs beside it."""
    needs_graphs()
    random, model = np.random.default_rng(0), onnx_models.convolutions(32)
    feeds = {rows: {"x": random.standard_normal((rows, 4096), np.float32)} for rows in (1, 2, 3, 4)}
    with ortmulti.load(model, "cuda:0", cuda_graph=False) as plain:
        wanted = {rows: plain.run(given)[0] for rows, given in feeds.items()}
    end = time.monotonic() + HANG
    with ortmulti.load(model, "cuda:0", cuda_graph=cuda_graph) as pool, ThreadPoolExecutor(8) as clients:

        def client(number: int) -> None:
            for rows in np.random.default_rng(number).integers(1, 5, 200):
                [y] = pool.run(feeds[int(rows)])
                np.testing.assert_allclose(y, wanted[int(rows)], atol=0.1)  # of 10

        while pool.stats().devices[0].graphs < len(feeds):
            assert time.monotonic() < end
            list(clients.map(client, range(8)))
        list(clients.map(client, range(8)))
        assert graph_runs(pool) > 800
        assert all(device.failed == 0 for device in pool.stats().devices)


def test_captures_beside_creations_and_runs_of_other_pools() -> None:
    needs_graphs()
    with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
        wanted = {rows: session.run(None, feed(0, rows))[0] for rows in range(1, 30)}
    stop = threading.Event()
    problems: list[BaseException] = []
    done = {"created": 0, "run": 0}

    def create() -> None:
        while not stop.is_set():
            with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
                session.run(None, feed(0))
            done["created"] += 1

    def run(pool: ortmulti.Pool) -> None:
        number = 0
        while not stop.is_set():
            pool.run(None, feed(0, 1 + number % 50))
            number += 1
            done["run"] += 1

    def guarded(function: Any, *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            problems.append(error)

    with ortmulti.load(MODEL) as other:
        threads = [
            threading.Thread(target=guarded, args=(create,)),
            *(threading.Thread(target=guarded, args=(run, other)) for _ in range(2)),
        ]
        for thread in threads:
            thread.start()
        try:
            with ThreadPoolExecutor(4) as callers, ortmulti.load(MODEL, cuda_graph=ortmulti.CudaGraph(32)) as pool:
                end = time.monotonic() + HANG
                while pool.stats().devices[0].graphs < 5:
                    assert time.monotonic() < end
                    answers = {rows: callers.submit(pool.run, None, feed(0, rows)) for rows in wanted}
                    for rows, answer in answers.items():
                        np.testing.assert_allclose(answer.result()[0], wanted[rows], rtol=1e-3, atol=1e-3)
                assert all(device.failed == 0 for device in pool.stats().devices)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not problems
    assert min(done.values()) > 0


def test_beside_pytorch_nothing_is_captured() -> None:
    needs_graphs()
    pytest.importorskip("torch")
    program = """
import torch
import ortmulti
from tests.support.gpus import MODEL, feed
torch.zeros(1, device="cuda")
with ortmulti.load(MODEL, "cuda:0") as pool:
    while not pool.stats().devices[0].why_no_graph:
        pool.run(feed(0))
    print(pool.stats().devices[0].why_no_graph, pool.stats().devices[0].graph_runs)
"""
    printed = check_child(program, environment=VISIBLE)
    assert "PyTorch uses CUDA in this process" in printed
    assert printed.split()[-1] == "0"


def test_the_nodes_for_which_nothing_is_captured_are_named() -> None:
    needs_graphs()
    text = "(float[n, 8] x) => (float[n, 8] y) { a = Relu(x) b = Cast <to = 8> (a) c = Cast <to = 1> (b) y = Relu(c) }"
    proto = onnx_models.parsed(text)
    for node, name in zip(proto.graph.node[1:], ("to text", "to numbers"), strict=False):
        node.name = name
    end = time.monotonic() + HANG
    with ortmulti.load(proto.SerializeToString(), "cuda:0", cuda_graph=True) as pool, refusal() as refused:
        while not refused.is_set():
            assert time.monotonic() < end
            pool.run({"x": np.ones((2, 8), np.float32)})
        assert pool.stats().devices[0].why_no_graph.endswith(' On the CPU: Cast "to text", Cast "to numbers".')


def test_shapes_that_do_not_come_again_get_none() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
        for rows in range(1, 300):
            pool.run(feed(0, rows))
        assert graph_runs(pool) == 0


def values_of_the_shape() -> bytes:
    """ "y" = "x" + its number of rows, which the CPU computes in each run, and copies to the GPU."""
    return onnx_models.model(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "first"], ["rows"]),
            helper.make_node("Cast", ["rows"], ["value"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "value"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(np.array(0, np.int64), "first")],
    ).SerializeToString()


def test_what_the_cpu_computes_from_shapes_is_right_for_each_shape() -> None:
    needs_graphs()
    with ortmulti.load(values_of_the_shape(), "cuda:0", cuda_graph="auto") as pool:
        for rows in (3, 5):
            for [y] in run_until_graph(pool, feed(0, rows)):
                np.testing.assert_array_equal(y, feed(0, rows)["x"] + rows)
        np.testing.assert_array_equal(pool.run(feed(2, 7))[0], feed(2, 7)["x"] + 7)


def noise() -> bytes:
    return onnx_models.model(
        [helper.make_node("RandomNormalLike", ["x"], ["noise"]), helper.make_node("Add", ["x", "noise"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 64])],
    ).SerializeToString()


REFUSED: dict[str, tuple[Callable[[], bytes], Feed]] = {
    "a number of results that the GPU finds": (onnx_models.nonzero, {"x": np.ones(5, np.float32)}),
    "control flow": (onnx_models.control_flow, {"c": np.array(True), "x": np.ones(4, np.float32)}),
    "random numbers": (noise, feed(0)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_graph_can_hold_runs_on_ordinarily(what: str) -> None:
    needs_graphs()
    make, given = REFUSED[what]
    with refusal() as refused, ortmulti.load(make(), "cuda:0", cuda_graph="auto") as pool:
        answers = run_until(pool, given, refused.is_set)
        assert len(answers) >= 20
        pool.run(given)
        assert graph_runs(pool) == 0


def test_graphs_outlive_a_sleep_of_the_weights() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
        [wanted] = run_until_graph(pool, feed(0))[-1]
        pool.sleep("weights")
        before = graph_runs(pool)
        np.testing.assert_array_equal(pool.run(feed(0))[0], wanted)
        assert graph_runs(pool) == before + 1


@pytest.mark.parametrize("how", ["sleep", "replace", "remove"])
def test_graphs_go_with_the_sessions_and_come_again(how: str) -> None:
    needs_graphs()
    devices = ["cuda:0"]
    if how == "remove":
        needs_gpus(2)
        devices.append("cuda:1")
    with ortmulti.load(MODEL, devices, cuda_graph="auto") as pool:
        given: dict[str, Any] = {"device": "cuda:0"} if how == "remove" else {}
        [wanted] = run_until_graph(pool, feed(0))[-1]
        if how == "sleep":
            pool.sleep("session")
        elif how == "replace":
            pool.replace_model(MODEL)
        else:
            pool.remove_devices("cuda:0")
            pool.add_devices("cuda:0")
        np.testing.assert_allclose(pool.run(None, feed(0), **given)[0], wanted, rtol=1e-5, atol=1e-5)
        for [y] in run_until_graph(pool, feed(0)):
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


def test_a_graph_that_is_not_used_makes_room() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
        for rows in range(1, 10):  # one more than have graphs
            run_until_graph(pool, feed(0, rows))
        before = graph_runs(pool)
        pool.run(feed(0, 8))
        assert graph_runs(pool) == before + 1


def test_options_of_a_run_are_used_and_outputs_stay_on_the_gpu() -> None:
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
        [wanted] = run_until_graph(pool, feed(0))[-1]
        before = graph_runs(pool)
        np.testing.assert_allclose(pool.run(None, feed(0), ortmulti.RunOptions())[0], wanted, rtol=1e-5, atol=1e-5)
        assert graph_runs(pool) == before
        x = ortmulti.OrtValue.ortvalue_from_numpy(feed(0)["x"], "cuda", 0)
        [y] = pool.run(None, {"x": x}, outputs="device")
        assert y.device_name() == "cuda"
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert graph_runs(pool) == before + 1


def test_a_pool_may_close_while_its_graphs_are_made() -> None:
    needs_graphs()
    for runs in range(15, 40, 3):
        with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
            for _ in range(runs):
                pool.run(feed(0))
        assert not background._own(), "what is made after the end takes memory"


def test_a_pool_may_sleep_while_its_graphs_are_made() -> None:
    """A capture reads the weights, and giving their memory back waits for captures."""
    needs_graphs()
    with ortmulti.load(MODEL, "cuda:0") as pool:
        for rows in range(1, 41):
            for _ in range(20):
                pool.run(feed(0, rows))
            pool.sleep("weights", timeout=HANG)
        np.testing.assert_allclose(pool.run(feed(0))[0], pool.sessions[0].run(None, feed(0))[0], rtol=1e-5, atol=1e-5)


def test_answers_stay_right_through_sleeps_and_replacements() -> None:
    """Twelve shapes, more than have graphs, from four threads."""
    needs_graphs()
    with ortmulti.InferenceSession(MODEL, providers=["CUDAExecutionProvider"]) as session:
        wanted = {(rows, seed): session.run(None, feed(seed, rows))[0] for rows in range(1, 13) for seed in range(3)}
    answered = itertools.count()
    stop = threading.Event()
    graphs = 0

    def client(number: int) -> int:
        random = np.random.default_rng(number)
        while not stop.is_set():
            rows, seed = int(random.integers(1, 13)), int(random.integers(3))
            [y] = pool.run(feed(seed, rows))
            np.testing.assert_allclose(y, wanted[rows, seed], rtol=1e-3, atol=1e-3)
            next(answered)
        return number

    def wait_for(more: int) -> None:
        until, end = next(answered) + more, time.monotonic() + HANG
        while next(answered) < until and not any(done.done() for done in clients):
            assert time.monotonic() < end
            time.sleep(0.01)

    with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool, ThreadPoolExecutor(4) as threads:
        clients = [threads.submit(client, number) for number in range(4)]
        try:
            for change in (pool.sleep, partial(pool.sleep, "session"), partial(pool.replace_model, MODEL)) * 3:
                wait_for(1500)
                graphs = max(graphs, graph_runs(pool))
                change()
        finally:
            stop.set()
        assert sorted(done.result(HANG) for done in clients) == [0, 1, 2, 3]
    assert graphs > 0


@pytest.mark.gpu_memory
def test_memory_of_graphs_comes_back() -> None:
    needs_graphs()

    def cycle() -> None:
        with ortmulti.load(MODEL, "cuda:0", cuda_graph="auto") as pool:
            run_until_graph(pool, feed(0, 4000))

    check_memory_returns(cycle, rounds=5, most=32 << 20)
