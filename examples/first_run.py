"""Load a model on every GPU (or on the CPU), ask for its inputs, and run it.

python examples/first_run.py model.onnx
"""

from __future__ import annotations

import sys

import numpy as np

import ortmulti as om


def main(model: str) -> None:
    with om.load(model, devices="all", batching=om.Batching(max_size=32), warmup=True) as pool:
        print(pool)
        for value in pool.get_inputs():
            print("input", value.name, value.type, value.shape)

        # An array for each input. A dimension without a number, such as 'batch', may have any size: here 1.
        feed = om.example_feed(pool)

        outputs = pool.run(feed)  # one answer: a list of arrays
        print("outputs", [(y.dtype, y.shape) for y in outputs])

        future = pool.submit(feed, timeout=5.0)  # a concurrent.futures.Future, with a deadline
        print("equal", np.array_equal(future.result()[0], outputs[0]))

        answers = pool.map(feed for _ in range(1000))  # many answers, in order
        print("answers", sum(1 for _ in answers))
        stats = pool.stats().devices[0]
        print(f"{stats.device}: {stats.done} requests in {stats.runs} runs, p99 {stats.total.p99 * 1000:.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1])
