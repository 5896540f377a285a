"""From `session.run` in a thread pool to a pool of sessions: both ways, and that they answer the same.

python examples/from_onnxruntime.py model.onnx
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime

import ortmulti as om

Feeds = list[dict[str, Any]]


def before(model: str, feeds: Feeds) -> list[Any]:
    """A session, and threads that call it."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda feed: session.run(None, feed)[0], feeds))


def after(model: str, feeds: Feeds) -> list[Any]:
    """A pool: it has the queue and the threads, and joins single rows into batches."""
    with om.load(model, devices="cpu", batching=om.Batching(max_size=32)) as pool:
        return [outputs[0] for outputs in pool.map(feeds)]


def one_session(model: str, feeds: Feeds) -> list[Any]:
    """Only the import changes: the same class, arguments and results."""
    session = om.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [session.run(None, feed)[0] for feed in feeds]


def main(model: str) -> None:
    with om.InferenceSession(model, providers=["CPUExecutionProvider"]) as session:
        feeds: Feeds = [om.example_feed(session)] * 200

    expected = before(model, feeds)
    print("one session: identical", np.array_equal(one_session(model, feeds), expected))
    # Rows of a batch may be added up in another order: equal but for rounding.
    print("pool, batches: close", np.allclose(after(model, feeds), expected, rtol=1e-4, atol=1e-5))


if __name__ == "__main__":
    main(sys.argv[1])
