"""Calls that are interrupted as by Ctrl-C at random moments. A program, for a process of its own:

    python -m tests.support.sigint ATTEMPTS SEED FOLDER

It prints one line: the counts of the outcomes, as JSON. It ends with an error after an outcome that is wrong.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from tests.support import onnx_models
from tests.support.processes import check_held, held

LIMIT = 1.0  # seconds from the signal to KeyboardInterrupt
HANG = 60.0
CHECKED_TOGETHER = 25  # attempts after which nothing may be left

Call = tuple[Callable[[], object], Callable[[], None]]
"""What is interrupted, and what must hold afterwards."""


class Calls:
    """The calls to interrupt."""

    def __init__(self, folder: Path) -> None:
        self._model = folder / "model.onnx"
        self._model.write_bytes(onnx_models.matmul(32, 2))
        self._other = onnx_models.matmul(32, 1)
        self._x = {"x": np.ones((2, 32), np.float32)}
        self.open()
        self._expected = self._pool.run(None, self._x)[0]
        self._pool.submit(None, self._x, timeout=HANG).result()  # starts the threads that stay
        self.all: list[Callable[[], Call]] = [
            *(self.load, self.load_warm, self.load_first, self.close, self.warm_up, self.run),
            *(self.optimize, self.replace_model),
        ]

    def load(self) -> Call:
        return lambda: self._load().close(), self._works

    def load_warm(self) -> Call:
        return lambda: self._load(warmup=True).close(), self._works

    def load_first(self) -> Call:
        return lambda: self._load(loading=ortmulti.Loading(wait="first"), warmup=True).close(), self._works

    def optimize(self) -> Call:
        shutil.rmtree(os.environ["ORTMULTI_CACHE"], ignore_errors=True)
        return lambda: ortmulti.optimize(self._model, "cpu"), self._works

    def warm_up(self) -> Call:
        return self._pool.warmup, self._works

    def run(self) -> Call:
        return lambda: [self._pool.run(None, self._x) for _ in range(50)], self._works

    def replace_model(self) -> Call:
        def check() -> None:
            self._pool.replace_model(self._model)
            self._works()

        return lambda: self._pool.replace_model(self._other, warmup=True), check

    def close(self) -> Call:
        pool = self._load()
        futures = [pool.submit(None, self._x) for _ in range(4)]

        def check() -> None:
            pool.close()
            assert pool.closed
            for future in futures:
                np.testing.assert_array_equal(future.result(HANG)[0], self._expected)

        return pool.close, check

    def open(self) -> None:
        """Loads the pool that several attempts use."""
        self._pool = self._load()

    def end(self) -> None:
        self._pool.close()

    def _load(self, **arguments: Any) -> ortmulti.Pool:
        return ortmulti.load(self._model, "cpu", 2, **arguments)

    def _works(self) -> None:
        np.testing.assert_array_equal(self._pool.run(None, self._x)[0], self._expected)


_swallowed: list[str] = []  # KeyboardInterrupts that the interpreter could raise to nobody


def _unraisable(unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt:
        _swallowed.append(repr(unraisable.object))
    else:
        sys.__unraisablehook__(unraisable)


def attempt(call: Callable[[], object], delay: float) -> str:
    """Has the call be interrupted by a signal of the system's after so many seconds; what became of it."""
    _swallowed.clear()
    outcome = ""
    sent = time.monotonic() + delay
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
            call()
            outcome = "ended before"
        except KeyboardInterrupt:
            late = time.monotonic() - sent
            return outcome or ("interrupted" if late < LIMIT else f"interrupted after {late:.1f} s")
        except BaseException as error:
            outcome = "".join(traceback.format_exception(error))
        while time.monotonic() < sent + HANG / 2 and not _swallowed:  # until the signal comes
            time.sleep(0.0005)
    except KeyboardInterrupt:
        return outcome
    return f"swallowed in {_swallowed[0].split(' at 0x')[0]}" if _swallowed else f"lost, {outcome}"


def main(attempts: int, seed: int, folder: Path) -> None:
    numbers = random.Random(seed)
    calls = Calls(folder)
    durations: dict[str, float] = {}
    for make in calls.all:
        times = []
        for _ in range(3):
            call, check = make()
            begin = time.monotonic()
            call()
            times.append(time.monotonic() - begin)
            check()
        durations[make.__name__] = statistics.median(times)
    # A timer's signal comes at any instruction, as Ctrl-C's, which Python handles alike.
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    calls.optimize()[0]()
    calls.end()
    before = held(folder)
    sys.unraisablehook = _unraisable
    outcomes: Counter[str] = Counter()
    done = 0
    while done < attempts:
        calls.open()
        for _ in range(min(CHECKED_TOGETHER, attempts - done)):
            faulthandler.dump_traceback_later(HANG, exit=True)
            make = numbers.choice(calls.all)
            call, check = make()
            delay = numbers.uniform(0, 1.1 * durations[make.__name__])
            outcome = attempt(call, delay)
            del call
            outcomes[f"{make.__name__}: {outcome}"] += 1
            try:
                assert outcome in ("ended before", "interrupted") or outcome.startswith("swallowed")
                check()
            except BaseException:
                print(f"attempt {done} of seed {seed}, {make.__name__}, delay {delay}: {outcome}", file=sys.stderr)
                raise
            del check
            done += 1
            faulthandler.cancel_dump_traceback_later()
        calls.end()
        check_held(before, folder)
    print(json.dumps(dict(sorted(outcomes.items()))))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
