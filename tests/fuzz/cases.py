"""Runs the cases of a fuzz target in Python, by its command line: [SECONDS [SEED [CASE]]]."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

HANG = 60
"""Seconds of one case."""


def run(target: str, case: Callable[[Random], str]) -> None:
    """Calls `case` until the time is over, or once with the number from the command line; counts its results."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4))
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    print(f"{target}: seed {seed}", flush=True)
    found: Counter[str] = Counter()
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end and (len(sys.argv) <= 3 or number == first):
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            found[case(Random(f"{seed} {number}"))] += 1
        except BaseException:
            print(f"repeat with: python -m tests.fuzz.fuzz_{target} 60 {seed} {number}", flush=True)
            raise
        number += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"{target}: {number - first} cases, {dict(found)}")
