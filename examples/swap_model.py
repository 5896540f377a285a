"""Replace a pool's model while clients send requests: no request fails, and no answer mixes both models.

python examples/swap_model.py old.onnx new.onnx
"""

from __future__ import annotations

import sys
import threading
from collections import Counter

import numpy as np

import ortmulti as om


def main(old: str, new: str) -> None:
    answers: Counter[str] = Counter()
    stop = threading.Event()

    with om.load(old, devices="all", warmup=True) as pool:
        feed = om.example_feed(pool)
        before = pool.run(feed)[0]

        def client() -> None:
            while not stop.is_set():
                try:
                    [y, *_] = pool.run(feed)
                except om.Error:
                    answers["failed"] += 1
                else:
                    answers["old" if np.array_equal(y, before) else "new"] += 1

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()

        try:
            try:
                pool.replace_model("missing.onnx")
            except om.NoSuchFile as error:
                print("still the old model:", error)
            # The new model is loaded and warmed up beside the old one, tried, and then takes its place at once.
            pool.replace_model(new, verify=lambda tried: bool(np.isfinite(tried.run(feed)[0]).all()), version="2")
            print("the answer is another one now:", not np.array_equal(pool.run(feed)[0], before))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    print("answered by the old model, by the new one, failed:", answers["old"], answers["new"], answers["failed"])


if __name__ == "__main__":
    main(*sys.argv[1:3])
