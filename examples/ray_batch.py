"""Score the rows of .npy files on all hosts of a Ray cluster, and write Parquet files.

pip install ".[cpu,ray]"; python examples/ray_batch.py model.onnx rows.npy scores
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

import ortmulti as om

INPUT = "x"  # of the model
ROWS_PER_RUN = 512


def main(model: str, source: str, target: str) -> None:
    ray.init()  # the cluster of RAY_ADDRESS, or this machine
    rows = ray.data.read_numpy(str(Path(source).absolute()))  # one column, "data"
    options = om.ray.map_options(
        Path(model).absolute(),
        rows=ROWS_PER_RUN,
        inputs={INPUT: "data"},
        weights="broadcast",  # this process reads the model, and hosts get it from the object store
    )
    scores = rows.map_batches(om.ray.Predictor, **options)  # one actor for each host, with all of its GPUs
    scores.write_parquet(str(Path(target).absolute()))
    print(f"{ray.data.read_parquet(str(Path(target).absolute())).count()} rows scored")


if __name__ == "__main__":
    main(*sys.argv[1:4])
