"""Two models on one GPU: one serves, the other one sleeps until a request comes.

python examples/sleep.py busy.onnx rare.onnx
"""

from __future__ import annotations

import sys
import time

import numpy as np

import ortmulti as om


def main(busy: str, rare: str) -> None:
    with om.load(busy, 0) as serving, om.load(rare, 0) as sleeping:
        feed = om.example_feed(sleeping)
        expected = sleeping.run(feed)
        before = sleeping.stats().devices[0].memory_used or 0

        now = time.monotonic_ns()
        sleeping.sleep(keep="pinned")  # the weights' GPU memory is free on return
        device = sleeping.stats().devices[0]
        print(f"asleep: {device.asleep}, freed: {(before - (device.memory_used or 0)) / 2**20:.0f} MiB")
        serving.run(om.example_feed(serving))

        begin = time.perf_counter()
        outputs = sleeping.run(feed)  # wakes the pool
        print(f"answer after {1e3 * (time.perf_counter() - begin):.1f} ms")
        print("identical:", all(np.array_equal(y, x) for y, x in zip(outputs, expected, strict=True)))

        device = sleeping.stats().devices[0]
        print(f"sleeps: {device.sleeps}, wakes: {device.wakes}, wake: {1e3 * device.wake.mean:.1f} ms")
        for span in sleeping.timeline.spans:
            if span.start_ns >= now:
                print(f"{span.device} {span.name}: {(span.end_ns - span.start_ns) / 1e6:.1f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
