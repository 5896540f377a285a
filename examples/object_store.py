"""A model in an object store: load it with progress, and keep a copy for the next start.

python examples/object_store.py s3://bucket/model.onnx [--keep]
"""

from __future__ import annotations

import sys
import time

import ortmulti as om


def main(url: str, keep: bool) -> None:
    begin = time.perf_counter()

    def progress(now: om.LoadProgress) -> None:
        print(f"{now.bytes_loaded / 1e6:,.1f} of {now.bytes_total / 1e6:,.1f} MB, sessions: {now.sessions_ready}")

    model = om.Model(url, keep="disk" if keep else None)
    with om.load(model, loading=om.Loading(progress=progress)) as pool:
        outputs = pool.run(om.example_feed(pool))
        print(f"first answer after {time.perf_counter() - begin:.2f} s:", *[output.shape for output in outputs])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], "--keep" in sys.argv[2:])
