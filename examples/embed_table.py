"""Embed each line of a text file, and write the embeddings to a .npy file, with a progress bar.

pip install ".[cpu,cli,text]"; python examples/embed_table.py model-folder texts.txt embeddings.npy
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from rich.progress import track

import ortmulti as om


def main(folder: str, source: str, target: str) -> None:
    with Path(source).open(encoding="utf-8") as lines:
        if not (count := sum(1 for _ in lines)):
            sys.exit(f"{source} has no lines")
    unfinished = f"{target}.part"
    with om.text.load(folder) as model, Path(source).open(encoding="utf-8") as lines:
        table = np.lib.format.open_memmap(unfinished, "w+", np.float32, (count, model.dimensions))
        # As many lines are read ahead as it takes to run like lengths together. The vectors come in the lines' order.
        vectors = model.embed_stream(line.rstrip("\n") for line in lines)
        for index, vector in enumerate(track(vectors, total=count)):
            table[index] = vector
        waste = model.pool.stats().devices[0].waste
    Path(unfinished).replace(target)  # after an error or Ctrl-C there is no target that looks complete
    print(f"{count} texts embedded, {waste:.0%} of what ran was padding")


if __name__ == "__main__":
    main(*sys.argv[1:4])
