"""See where a load spends its time: progress, a table of spans, and a trace for a browser.

python examples/slow_start.py model.onnx
"""

from __future__ import annotations

import logging
import sys
import time

import ortmulti as om

# ortmulti warns here, for example about weights that cannot be shared or GPUs that are visible but not used.
logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


def show(progress: om.LoadProgress) -> None:
    sessions = f"{progress.sessions_ready} of {progress.sessions_total}"
    print(f"{progress.seconds:.2f} s: {progress.bytes_loaded / 1e6:.0f} MB, {sessions} sessions ready")


def main(model: str) -> None:
    om.prewarm()  # starts the CUDA driver in the background: call it first, before slow imports
    with om.load(model, devices="all", loading=om.Loading(progress=show)) as pool:
        print(pool.timeline.table())
        for reason in pool.timeline.not_shared:
            print("not shared:", reason)
        pool.timeline.save("load.trace.json")  # open it in Perfetto or in chrome://tracing

    # The second load of a process: libraries, driver and the optimized model are there already.
    start = time.perf_counter()
    om.load(model, devices="all").close()
    print(f"second load: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1])
