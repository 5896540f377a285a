"""What does one `run` cost beside onnxruntime's own, where the model itself costs next to nothing?

Both libraries run the same one-node models with small tensors in this process, in turns, a block of runs each. Each
round gives one ratio (ours by theirs); the result is their median and its 95% confidence interval.

    python -m benchmarks.run_overhead --json overhead.json

Exit status 1 if the upper end of any model's interval is above --limit.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

import ortmulti
from benchmarks import graphs
from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.rounds import alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option

SUM = "four (float[1,64] a, float[1,64] b, float[1,64] c, float[1,64] d) => (float[1,64] y) { y = Sum(a, b, c, d) }"
MODELS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "one float32 input of 4 elements": (
        graphs.one_node("Sum(x)", "float[1,4]"),
        {"x": np.ones((1, 4), np.float32)},
    ),
    "four float32 inputs of 64 elements": (
        graphs.model(SUM),
        {name: np.full((1, 64), number, np.float32) for number, name in enumerate("abcd")},
    ),
    "one string input of 4 elements": (
        graphs.one_node("Identity(x)", "string[4]"),
        {"x": np.array(["a", "few", "short", "words"], object)},
    ),
}


class Case(NamedTuple):
    """A model of `MODELS`, and whose session runs it."""

    model: str
    library: str


@dataclass
class RunOverhead(Script[Case]):
    """The options of the command line."""

    kind, columns = "run overhead", (Column("us", "us a run"), Column("ratio", "over onnxruntime", summary=None))
    repeat: int = option(400, "pairs of blocks for each model")
    runs: int = option(250, "in a block")
    limit: float = option(1.05, "highest upper end of the interval")

    def cases(self, number: int = 0) -> Sequence[Case]:
        return [Case(model, one) for model in MODELS for one in alternating(["onnxruntime", "ortmulti"], number)]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._runs = {}
        for model, (content, feed) in MODELS.items():
            answers = []
            for library in (onnxruntime, ortmulti):
                options = library.SessionOptions()
                options.intra_op_num_threads = 1
                session = library.InferenceSession(content, options, providers=["CPUExecutionProvider"])
                self._runs[Case(model, library.__name__)] = session.run
                answers.append(session.run(None, feed)[0].tolist())
            if answers[0] != answers[1]:
                raise ortmulti.Fail(f"{model}: the two libraries give different results")
        for case in self.cases():
            for _ in range(10):
                self.measure(case, -1)

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        run, feed = self._runs[case], MODELS[case.model][1]
        gc.collect()
        gc.disable()
        try:
            begin = time.perf_counter_ns()
            for _ in range(self.runs):
                run(None, feed)
            return {"us": (time.perf_counter_ns() - begin) / 1e3 / self.runs}
        finally:
            gc.enable()

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        return {"ratio": self.over(case, Case(case.model, "onnxruntime"), rounds, "us")}

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        limit = document["settings"]["limit"]
        slow = [row for row in document["rows"] if row["library"] == "ortmulti" and row["ratio"]["high"] > limit]
        return [*super().failures(document), *(f"{row['model']}: {row['ratio']['high']:.3f} times" for row in slow)]


if __name__ == "__main__":
    sys.exit(script.main(RunOverhead))
