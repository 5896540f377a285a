"""Embed each line of a text file, and write the embeddings to a .npy file, with a progress bar.

pip install rich tokenizers; python examples/embed_table.py model.onnx tokenizer.json texts.txt embeddings.npy
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from tokenizers import Tokenizer

import ortmulti as om

OUTPUTS = ("logits", "sentence_embedding", "last_hidden_state", "token_embeddings")  # the first that the model has


class Encoder:
    """A model of texts, with its tokenizer: texts of different lengths run together."""

    def __init__(self, model: str, tokenizer: str, devices: str = "all", **loading: Any) -> None:
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.limit = (self.tokenizer.truncation or {}).get("max_length", 512)
        self.tokenizer.enable_truncation(self.limit)
        self.tokenizer.no_padding()  # the pool pads, and only as far as a run needs
        self.tokens = self.tokenizer.get_vocab_size()
        self.inputs = [value.name for value in om.InferenceSession(model).get_inputs()]
        pad = dict.fromkeys(self.inputs, 0) | {"input_ids": self.tokenizer.token_to_id("[PAD]") or 0}
        warmup = om.Warmup(samples=[self.feed([0] * length) for length in (16, self.limit)])
        batching = om.Batching(32, pad=pad, max_tokens=16384)
        self.pool = om.load(model, devices, batching=batching, warmup=warmup, **loading)
        names = [value.name for value in self.pool.get_outputs()]
        self.output = next((name for name in OUTPUTS if name in names), names[0])

    def feed(self, ids: Sequence[int], types: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """The inputs of one text, of its own length."""
        row = np.array([ids[: self.limit]], np.int64)
        given = {"input_ids": row, "token_type_ids": np.array([types], np.int64) if types else np.zeros_like(row)}
        return {name: given.get(name, np.ones_like(row)) for name in self.inputs}

    def embedding(self, output: np.ndarray, size: int | None = None) -> np.ndarray:
        """The text's embedding: the model's own, or the mean over its tokens; of the length 1."""
        vector: np.ndarray = (output[0] if output.ndim == 2 else output[0].mean(0))[:size].astype("<f4")
        vector /= max(float(np.linalg.norm(vector)), 1e-12)
        return vector


def feeds(encoder: Encoder, source: str) -> Iterator[dict[str, np.ndarray]]:
    with Path(source).open(encoding="utf-8") as lines:
        while some := [line.rstrip("\n") for line in islice(lines, 1024)]:
            for one in encoder.tokenizer.encode_batch(some):  # without the GIL, on several cores
                yield encoder.feed(one.ids)


def main(model: str, tokenizer: str, source: str, target: str) -> None:
    with Path(source).open(encoding="utf-8") as lines:
        if not (count := sum(1 for _ in lines)):
            sys.exit(f"{source} has no lines")
    encoder, unfinished, table = Encoder(model, tokenizer), f"{target}.part", None
    with encoder.pool as pool:
        # `map` takes as many texts at once as it needs to run like lengths together, and answers in their order.
        answers = pool.map([encoder.output], feeds(encoder, source))
        for index, [output] in enumerate(track(answers, total=count)):
            vector = encoder.embedding(output)
            if table is None:
                table = np.lib.format.open_memmap(unfinished, "w+", vector.dtype, (count, len(vector)))
            table[index] = vector
        waste = pool.stats().devices[0].waste
    Path(unfinished).replace(target)  # after an error or Ctrl-C there is no target that looks complete
    print(f"{count} texts embedded, {waste:.0%} of what ran was padding")


if __name__ == "__main__":
    main(*sys.argv[1:5])
