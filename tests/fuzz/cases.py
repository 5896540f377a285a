"""Cases of fuzz targets in Python, by the command line [SECONDS [SEED [CASE]]], and changed documents for them."""

from __future__ import annotations

import copy
import faulthandler
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

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


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values below one of JSON."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((*path, key), *places(value[key], (*path, key)))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def change(document: Any, values: Sequence[Any], depths: Sequence[int], random: Random) -> None:
    """Makes some parts of a document of JSON others, of these too, or has them missing, moved or nested so deep."""
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        every = places(document)
        if not every:
            return
        path = random.choice(every)
        parent, key = at(document, path[:-1]), path[-1]
        old = parent[key]
        how = random.randrange(7)
        if how == 0:
            del parent[key]
        elif how == 1:
            parent[key] = copy.deepcopy(at(document, random.choice(every)))
        elif how == 2 and isinstance(old, int):
            parent[key] = old + random.choice((-4096, -4, -1, 1, 4, 256, 4096, 1 << 63))
        elif how == 3 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(random.choice((old, random.choice(values)))))
        elif how == 4 and isinstance(parent, dict):
            parent[str(random.choice(values))] = parent.pop(key)
        elif how == 5:
            for _ in range(random.choice(depths)):
                old = random.choice(([old], {"a": old}))
            parent[key] = old
            return  # too deep for `places`
        else:
            parent[key] = copy.deepcopy(random.choice(values))
