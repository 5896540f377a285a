"""Several models in one process, on the CPU: each gets its part of the cores.

python examples/several_models.py first.onnx second.onnx
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

import numpy as np

import ortmulti as om


def main(*models: str) -> None:
    # Without options each pool would use all cores, and the models would slow each other down when both are busy.
    cores = len(os.sched_getaffinity(0))
    options = om.SessionOptions()
    options.intra_op_num_threads = max(1, cores // len(models))
    # A model that waits for requests must not keep a core busy.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")

    with ExitStack() as stack:
        pools = {model: stack.enter_context(om.load(model, "cpu", options=options)) for model in models}
        futures = []
        for model, pool in pools.items():
            feed = om.example_feed(pool)
            futures += [(model, pool.submit(feed)) for _ in range(100)]
        for model, future in futures:
            assert np.isfinite(future.result()[0]).all(), model
        for model, pool in pools.items():
            stats = pool.stats().devices[0]
            print(f"{model}: {stats.done} answers, {options.intra_op_num_threads} of {cores} cores")


if __name__ == "__main__":
    main(*sys.argv[1:])
