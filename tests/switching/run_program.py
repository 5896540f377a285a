"""Runs one program in this process.

python -m tests.switching.run_program PROGRAM prepare|onnxruntime|shim|import FOLDER [RESULT]

``onnxruntime``: as it is, and ortmulti is not imported. ``shim``: under `ortmulti.patch_onnxruntime`. ``import``: the
program gets the module ortmulti where it would have imported onnxruntime. The result is pickled: what the program
returned, and how many sessions of either package it made and ran.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

RUNS = ("run", "run_with_iobinding", "run_with_ort_values")


def count_calls(sessions: Any) -> Counter[str]:
    """Counts the sessions of this class from now on, and their runs."""
    counter: Counter[str] = Counter()
    for name, kind in {"__init__": "sessions", **dict.fromkeys(RUNS, "runs")}.items():
        setattr(sessions, name, _counted(getattr(sessions, name), counter, kind))
    return counter


def _counted(method: Any, counter: Counter[str], kind: str) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        counter[kind] += 1
        return result

    return call


def main(program: str, way: str, folder: str, result: str = "") -> None:
    """See the module."""
    name = f"tests.switching.programs.{program}"
    if way == "prepare":
        prepare = getattr(importlib.import_module(name), "prepare", None)
        if prepare:
            prepare(Path(folder))
        return
    import onnxruntime

    module: Any = onnxruntime
    theirs, ours = count_calls(onnxruntime.InferenceSession), Counter[str]()
    if way != "onnxruntime":
        import ortmulti

        ours = count_calls(ortmulti.InferenceSession)
        if way == "shim":
            ortmulti.patch_onnxruntime()
        else:
            module = ortmulti
    # Only now: the library may take the classes out of the module when it is imported.
    outputs = importlib.import_module(name).outputs(module, Path(folder))
    assert ("ortmulti" in sys.modules) == (way != "onnxruntime")
    Path(result).write_bytes(pickle.dumps({"outputs": outputs, "theirs": dict(theirs), "ours": dict(ours)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
