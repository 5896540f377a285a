"""Memory that large requests took, and that comes back."""

from __future__ import annotations

import threading
import time
from itertools import count

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti._runtime.libraries import release_of
from tests.support import onnx_models
from tests.support.pools import HANG
from tests.support.processes import run_child

# "y" = exp("x" + "x"), three tensors of the size of "x".
MODEL = onnx_models.model(
    [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Exp", ["twice"], ["y"])],
    [("x", TensorProto.FLOAT, ["n"])],
    [("y", TensorProto.FLOAT, ["n"])],
).SerializeToString()
SMALL = {"x": np.linspace(0, 1, 1000, dtype=np.float32)}
LARGE = 100_000_000  # bytes
NEEDS_STATS = pytest.mark.skipif(
    release_of(onnxruntime.__version__) < (1, 23), reason="arenas tell nothing before 1.23"
)


def large() -> dict[str, np.ndarray]:
    return {"x": np.zeros(LARGE // 4, np.float32)}


def arena(pool: ortmulti.Pool) -> int:
    held = pool.stats().devices[0].arena_bytes
    assert held is not None
    return held


@NEEDS_STATS
@pytest.mark.parametrize("goes_on", [True, False], ids=["busy", "quiet"])
def test_what_a_large_request_took_comes_back(goes_on: bool) -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(trim_after=0.5)) as pool:
        pool.run(large())
        assert arena(pool) >= LARGE
        end = time.monotonic() + HANG
        while pool.stats().devices[0].trims == 0:
            assert time.monotonic() < end
            if goes_on:
                pool.run(SMALL)
        stats = pool.stats().devices[0]
        assert stats.arena_bytes is not None
        assert stats.arena_bytes < LARGE
        assert stats.arena_used_bytes is not None
        assert stats.arena_peak_bytes is not None
        assert stats.arena_used_bytes < LARGE <= stats.arena_peak_bytes
        assert "ortmulti_trims_total" in pool.stats().prometheus()
        np.testing.assert_allclose(pool.run(SMALL)[0], np.exp(SMALL["x"] + SMALL["x"]), rtol=1e-5)


@NEEDS_STATS
def test_it_stays_where_that_is_wanted_and_is_given_back_by_hand() -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(trim_after=None)) as pool:
        pool.run(large())
        assert arena(pool) >= LARGE
        pool.trim("cpu")
        assert arena(pool) < LARGE
        pool.run(large())
        pool.trim()
        assert (arena(pool) < LARGE, pool.stats().devices[0].trims) == (True, 2)
        with pytest.raises(ortmulti.InvalidArgument, match="no session on cuda:7"):
            pool.trim("cuda:7")
    with pytest.raises(ortmulti.ClosedError):
        pool.trim()


@pytest.mark.parametrize(("given", "error"), [
    ("10", ortmulti.InvalidType), (-1, ortmulti.InvalidArgument), (10**400, ortmulti.InvalidArgument),
    (float("inf"), ortmulti.InvalidArgument),
])  # fmt: skip
def test_a_wrong_time_is_an_error(given: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="trim_after"):
        ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(trim_after=given))


def test_a_number_of_numpys_is_a_time_too() -> None:
    with ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(trim_after=np.float32(0.5))) as pool:
        pool.run(SMALL)


@NEEDS_STATS
def test_sessions_of_one_device_count_their_memory_once_and_give_back_all_of_it() -> None:
    with ortmulti.load(MODEL, "cpu", 3, loading=ortmulti.Loading(trim_after=None)) as pool:
        pool.run(large())
        assert LARGE <= arena(pool) < 6 * LARGE
        futures = [pool.submit(None, large()) for _ in range(3)]
        pool.trim()  # the runs are in its way
        for future in futures:
            future.result(HANG)
        del future, futures
        end = time.monotonic() + HANG
        while arena(pool) >= LARGE:  # whichever session takes the next one
            assert time.monotonic() < end
            pool.run(SMALL)
        trims = pool.stats().devices[0].trims
        pool.trim()
        assert pool.stats().devices[0].trims == trims, "there was nothing to give back"


def test_without_an_arena_there_is_nothing_to_say_or_to_give_back() -> None:
    options = ortmulti.SessionOptions()
    options.enable_cpu_mem_arena = False
    with ortmulti.load(MODEL, "cpu", options=options) as pool:
        pool.run(SMALL)
        pool.trim()
        stats = pool.stats().devices[0]
        assert (stats.arena_bytes, stats.arena_used_bytes, stats.arena_peak_bytes) == (None, None, None)
        pool.run(SMALL)


def test_answers_stay_right_beside_trims() -> None:
    stop = threading.Event()
    wanted = {rows: np.exp(2 * np.arange(rows, dtype=np.float32) / rows) for rows in (1, 1000, 2_000_000)}

    def ask(number: int) -> None:
        for turn in count(number):
            if stop.is_set():
                return
            rows = [*wanted][turn % 3]
            [y] = pool.run({"x": np.arange(rows, dtype=np.float32) / rows})
            np.testing.assert_allclose(y, wanted[rows], rtol=1e-5)

    with ortmulti.load(MODEL, "cpu", 2, loading=ortmulti.Loading(trim_after=None)) as pool:
        errors: list[BaseException] = []

        def client(number: int) -> None:
            try:
                ask(number)
            except BaseException as error:
                errors.append(error)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in clients:
            thread.start()
        for _ in range(200):
            pool.trim()
        stop.set()
        for thread in clients:
            thread.join()
        assert errors == []


LIMITED = """
import resource, sys, sysconfig
from pathlib import Path
import numpy as np
import onnxruntime
import ortmulti
from tests.pool.test_pool_memory import MODEL, SMALL

BYTES = 400_000_000
x = {"x": np.zeros(BYTES // 4, np.float32)}
if sys.argv[1] == "onnxruntime":
    sessions = [onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"]) for _ in range(2)]
else:
    sessions = [ortmulti.load(MODEL, "cpu", loading=ortmulti.Loading(trim_after=None)) for _ in range(2)]
for session in sessions:
    session.run(None, SMALL)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
# 2.6 times BYTES are enough; threads that start late take some, and onnxruntime fails with 3.9. Python's own allocator
# without the GIL takes 1 GiB of addresses at once.
own = (1 << 30) if sysconfig.get_config_var("Py_GIL_DISABLED") and sys.argv[1] == "pools" else 0
resource.setrlimit(resource.RLIMIT_AS, (taken + own + 7 * BYTES // 2, -1))
for turn in range(4):
    try:
        session = sessions[turn % 2]
        assert session.run(None, x)[0].shape == (BYTES // 4,)
        print("answered")
    except Exception as error:
        print("memory" if "alloc" in str(error) else repr(error))
"""


@pytest.mark.parametrize(("how", "printed"), [("pools", "answered answered answered answered"), ("onnxruntime", None)])
def test_two_pools_whose_large_requests_fit_one_at_a_time_answer_all(how: str, printed: str | None) -> None:
    """What one of them does not use is given back where the other lacks memory. onnxruntime's sessions keep it."""
    child = run_child(LIMITED, how)
    assert child.returncode == 0, child.stderr
    found = " ".join(child.stdout.split())
    if printed is None:
        assert "memory" in found
    else:
        assert found == printed
