"""Does `ortmulti diagnose` predict the strategy that `ortmulti bench create` finds to be the best?

Five models are made: small, large, of many small nodes, convolution-heavy and quantized. For each, a diagnosis predicts
which strategy creates the sessions first, and a comparison of its own measures it; both are printed, with the
comparison's medians. A prediction agrees when it is the comparison's best, or when the comparison cannot tell the two
apart: their medians differ by less than 3%, or the predicted one's interval reaches down to the best median.

    python -m benchmarks.diagnose_prediction --devices "cpu*2" --which small,large
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import graphs
from ortmulti.bench import models, script
from ortmulti.bench.create.plan import Plan
from ortmulti.bench.diagnose.diagnosis import diagnose
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.devices import parse_devices
from ortmulti.bench.measure.rounds import Interval
from ortmulti.bench.script import Script, names, option

MODELS = ("small", "large", "many small nodes", "convolution-heavy", "quantized")
_EQUAL = 0.03


@dataclass
class Prediction(Script[str]):
    """The options of the command line."""

    kind = "prediction"
    devices: tuple[str, ...] = option(("cpu", "cpu"), "devices of the sessions", parse_devices)
    processes: int = option(5, "of each strategy, for the comparison")
    megabytes: int = option(512, "size of the large model")
    which: tuple[str, ...] = option(MODELS, "models, by what each stands for", names)
    budget: float = option(50.0, "seconds of each diagnosis")

    def cases(self, number: int = 0) -> Sequence[str]:
        return self.which

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folder = folder

    def _make(self, case: str) -> Path:
        if case == "quantized":
            path = self._folder / "quantized.onnx"
            path.write_bytes(graphs.quantized())
            return path
        sizes = {"small": 1, "large": self.megabytes}
        name = {"many small nodes": "tiny-kernels", "convolution-heavy": "resnet50"}.get(case, "matmul")
        return models.make(name, self._folder, megabytes=sizes.get(case))

    def measure(self, case: str, number: int) -> dict[str, Any]:
        model = self._make(case)
        document = diagnose(model, self.devices, budget=self.budget)
        predicted, ready = document["prediction"]["best"], self._measured(model)
        return {
            "predicted": predicted,
            "measured": min(ready, key=lambda strategy: ready[strategy].median),
            "agrees": agrees(predicted, ready),
            "prediction": document["prediction"]["seconds"],
            "ready": {strategy: interval.median for strategy, interval in ready.items()},
            "seconds": document["seconds"],
            "first_finding": document["findings"][0]["title"],
        }

    def _measured(self, model: Path) -> dict[str, Interval]:
        """Seconds until the sessions are ready, by strategy, as `ortmulti bench create` has them."""
        document = Plan([model], [self.devices], repeat=self.processes).run()
        found: dict[str, list[float]] = {}
        for one in document["measurements"]:
            if "error" not in one:
                found.setdefault(one["strategy"], []).append(one["starting"] + one["creation"])
        return {strategy: made for strategy, seconds in found.items() if (made := Interval.of(seconds)) is not None}

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        return super().complaints(measurement) if "error" in measurement else ["differs"] * (not measurement["agrees"])


def agrees(predicted: str, ready: Mapping[str, Interval]) -> bool:
    """Return whether the comparison's best is the predicted strategy, or cannot be told from it."""
    best = min(interval.median for interval in ready.values())
    own = ready.get(predicted)
    return own is not None and (own.median <= best * (1 + _EQUAL) or own.low <= best)


if __name__ == "__main__":
    sys.exit(script.main(Prediction))
