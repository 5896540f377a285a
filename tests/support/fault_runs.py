"""Runs in which calls of the system fail, one after the other. A program, for a process of its own:

    python -m tests.support.fault_runs SCENARIO MOST FOLDER

For each operation of the scenario and each kind of failure, the 1st, 2nd, ... call fails, and then that call and all
after it, until a run needs no more calls, or MOST of them failed. After each run the scenario works again and nothing
is left of it. It prints the counts of the outcomes as JSON, and ends with an error after an outcome that is wrong.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import logging
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ortmulti
from ortmulti import Model, _core
from tests.support import creations, onnx_models
from tests.support.faults import SHORT, failing
from tests.support.processes import check_held, held
from tests.support.weight_lists import weight_list

_HANG = 60.0
_EVERY = 10**9

THREADS = [("pthread_create", errno.EAGAIN)]
READS = [
    *[(operation, error) for operation in ("read", "pread") for error in (errno.EIO, errno.EINTR, SHORT)],
    *[("open", error) for error in (errno.EMFILE, errno.EACCES, errno.EIO, errno.EINTR)],
    ("mmap", errno.ENOMEM),
]
WRITES = [
    *[("write", error) for error in (errno.ENOSPC, errno.EIO, errno.EINTR, SHORT)],
    ("rename", errno.ENOSPC),
    ("ftruncate", errno.ENOSPC),
]


class Scenarios:
    """Each raises an ortmulti error, or does what it should: otherwise AssertionError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "model.onnx"
        self._path.write_bytes(onnx_models.matmul(32))
        self._x = {"x": np.ones((2, 32), np.float32)}
        with onnx_models.cpu_session(self._path.read_bytes()) as session:
            [self._expected] = session.run(None, self._x)
        (folder / "weights").write_bytes(os.urandom(1 << 16))

    def _use(self, pool: ortmulti.Pool) -> None:
        with pool:
            np.testing.assert_array_equal(pool.run(None, self._x)[0], self._expected)
            np.testing.assert_array_equal(pool.submit(None, self._x, timeout=_HANG).result()[0], self._expected)

    def load(self) -> None:
        self._use(ortmulti.load(self._path, "cpu", 2, warmup=True))

    def load_first(self) -> None:
        self._use(ortmulti.load(self._path, "cpu", 2, warmup=True, loading=ortmulti.Loading(wait="first")))

    def load_none(self) -> None:
        self._use(ortmulti.load(self._path, "cpu", 2, loading=ortmulti.Loading(wait="none")))

    def load_any(self) -> None:
        self._use(ortmulti.load(self._path, "cpu", 2, warmup=True, loading=ortmulti.Loading(require="any")))

    def replace_model(self) -> None:
        with ortmulti.load(onnx_models.matmul(32, 1), "cpu", 2) as pool:
            pool.replace_model(self._path, warmup=True)
            self._use(pool)

    def options(self) -> None:
        """Threads that ortmulti makes for ONNX Runtime, and asynchronous runs."""
        options = ortmulti.SessionOptions()
        options.intra_op_num_threads = 3
        options.threads = ortmulti.Threads(cpus=[min(os.sched_getaffinity(0))])
        with ortmulti.InferenceSession(self._path, options, providers=["CPUExecutionProvider"]) as session:
            np.testing.assert_array_equal(session.run(None, self._x)[0], self._expected)

    def optimize(self) -> None:
        shutil.rmtree(os.environ["ORTMULTI_CACHE"], ignore_errors=True)
        ortmulti.optimize(self._path, "cpu")
        self._check_entry()

    def entry(self) -> None:
        """An entry that is there, or is made anew where it cannot be used."""
        ortmulti.optimize(self._path, "cpu")
        self._check_entry()

    def _check_entry(self) -> None:
        [session] = creations.over_entry(Model(self._path), 1, optimize="offline").sessions.values()
        np.testing.assert_array_equal(session.run(None, self._x)[0], self._expected)
        session.close()

    def gpu_load(self) -> None:
        """A load on GPUs, up to the first thing that onnxruntime without CUDA does not have."""
        try:
            ortmulti.load(self._path, [0, 1]).close()
        except ortmulti.InvalidArgument as error:
            if "CUDA" not in str(error):
                raise

    def gpu_weights(self) -> None:
        """Weights that are read into GPUs' memory."""
        weights = weight_list(self.folder / "weights", [(f"w{i}", 1, (64, 64), 0, i << 14, 1 << 14) for i in range(4)])
        prefetch = _core.Prefetch([(file, 0, file.size) for file in weights.sources])
        shared = _core.SharedWeights(
            weights, prefetch=prefetch, reader_threads=2, chunk_bytes=1 << 14, buffers_per_thread=2
        )
        stores = _core.load_weights(shared, [0, 1])
        assert len(stores) == 2


OPERATIONS: dict[str, list[tuple[str, int]]] = {
    **{name: [*THREADS, *READS] for name in ("load", "load_first", "load_none", "load_any", "replace_model")},
    "options": THREADS,
    "optimize": [*THREADS, *READS, *WRITES],
    "entry": [*THREADS, *READS],
    "gpu_load": [*THREADS, *READS],
    "gpu_weights": [*THREADS, *READS],
}


def _run(call: Callable[[], None]) -> str:
    try:
        call()
    except ortmulti.Error as error:
        return type(error).__name__
    except BaseException as error:
        return "wrong: " + "".join(traceback.format_exception(error))
    return "right"


def main(name: str, most: int, folder: Path) -> None:
    logging.getLogger("ortmulti").setLevel(logging.CRITICAL)
    scenarios = Scenarios(folder)
    call = getattr(scenarios, name)
    for _ in range(2):
        call()
    faulthandler.dump_traceback_later(_HANG, exit=True)  # which has a thread
    before = held(folder)
    outcomes: Counter[str] = Counter()
    for operation, error in OPERATIONS[name]:
        for count in (1, _EVERY):
            for first in range(1, most + 1):
                faulthandler.dump_traceback_later(_HANG, exit=True)
                with failing(operation, error, first, count, str(folder)) as faults:
                    outcome = _run(call)
                if faults.failures:
                    outcomes[f"{operation} {errno.errorcode.get(error, 'short')}: {outcome.splitlines()[0]}"] += 1
                again = _run(call)
                if outcome.startswith("wrong") or again != "right" or not (faults.failures or outcome == "right"):
                    sys.exit(
                        f"{name}, {operation}, error {error}, {'this' if count == 1 else 'every'} call from {first}: "
                        f"{outcome}; then {again}"
                    )
                try:
                    check_held(before, folder)
                except AssertionError as left:
                    sys.exit(f"{name}, {operation}, error {error}, {count} calls from {first}: {outcome}, left: {left}")
                if not faults.failures:
                    break
    print(json.dumps(dict(sorted(outcomes.items()))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
