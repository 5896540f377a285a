"""Score all rows of a file and write the results to a .npy file, with a progress bar.

python examples/score_table.py model.onnx rows.npy scores.npy

A model with several inputs takes a .npz file with an array for each of them, by its name.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from rich.progress import track

import ortmulti as om

ROWS_PER_RUN = 512


def main(model: str, source: str, target: str) -> None:
    unfinished = f"{target}.part"
    with om.load(model, devices="all") as pool:
        types = {value.name: value.dtype for value in pool.get_inputs()}
        loaded = np.load(source, mmap_mode="r")  # .npy: read as it is needed, so the file may be larger than memory
        table = {name: loaded[name] for name in types} if source.endswith(".npz") else {next(iter(types)): loaded}
        rows = len(next(iter(table.values())))
        starts = range(0, max(1, rows), ROWS_PER_RUN)  # a table without rows: one run, which tells the shape
        feeds = (
            {name: np.asarray(column[start : start + ROWS_PER_RUN], types[name]) for name, column in table.items()}
            for start in starts
        )
        results = None
        # `map` keeps the devices busy and returns the answers in the order of the rows.
        for start, [scores, *_] in zip(starts, track(pool.map(feeds), total=len(starts)), strict=True):
            if results is None:  # the first answer tells the type and the shape of a row
                shape = (rows, *scores.shape[1:])
                results = np.lib.format.open_memmap(unfinished, "w+", scores.dtype, shape)
            results[start : start + len(scores)] = scores
    Path(unfinished).replace(target)  # after an error or Ctrl-C there is no target that looks complete
    print(f"{rows} rows scored")


if __name__ == "__main__":
    main(*sys.argv[1:4])
