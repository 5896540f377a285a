"""Score all rows of a .npy file and write the results to another .npy file, with a progress bar.

python examples/score_table.py model.onnx rows.npy scores.npy
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from rich.progress import track

import ortmulti as om

ROWS_PER_RUN = 512


def main(model: str, source: str, target: str) -> None:
    rows = np.load(source, mmap_mode="r")  # read from the disk as it is needed: the file may be larger than memory
    starts = range(0, max(1, len(rows)), ROWS_PER_RUN)  # a table without rows: one run, which tells the shape
    unfinished = f"{target}.part"

    with om.load(model, devices="all") as pool:
        name = pool.get_inputs()[0].name
        feeds = ({name: np.asarray(rows[start : start + ROWS_PER_RUN], np.float32)} for start in starts)
        results = None
        # `map` keeps the devices busy and returns the answers in the order of the rows.
        for start, [scores, *_] in zip(starts, track(pool.map(feeds), total=len(starts)), strict=True):
            if results is None:  # the first answer tells the type and the shape of a row
                shape = (len(rows), *scores.shape[1:])
                results = np.lib.format.open_memmap(unfinished, "w+", scores.dtype, shape)
            results[start : start + len(scores)] = scores
    Path(unfinished).replace(target)  # after an error or Ctrl-C there is no target that looks complete
    print(f"{len(rows)} rows scored")


if __name__ == "__main__":
    main(*sys.argv[1:4])
