"""What do options of one session of onnxruntime gain: cuDNN's algorithm search and workspace, convolutions of one
dimension, graph optimization, an optimized model?

Creation, the first run and later ones apart: an algorithm search happens in the first run, and what is not optimized
or not searched for may cost in every later one. Each measurement is a process. Ratios are over the case "default".

    python -m benchmarks.init_options resnet50 phi3-mini:layers=3 --device cuda:0
    PYTHONPATH=$(python -m tools.unpack_release onnxruntime==1.30.0) python -m benchmarks.init_options resnet50

Without a GPU, options of the CUDA provider are left out.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti.bench import models, script
from ortmulti.bench.experiment import Json
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.bench.measure import page_cache
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.onnxruntime_sessions import create_session, open_package

SEARCH = "cudnn_conv_algo_search"
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "HEURISTIC": {"provider_options": {SEARCH: "HEURISTIC"}},
    "DEFAULT": {"provider_options": {SEARCH: "DEFAULT"}},
    "small workspace": {"provider_options": {"cudnn_conv_use_max_workspace": "0"}},
    "1-D as [N,C,1,D]": {"provider_options": {"cudnn_conv1d_pad_to_nc1d": "1"}},
    "no optimization": {"optimize": False},
    "optimized before": {"optimize": False, "optimized": True},
}


@dataclass(frozen=True)
class Case:
    """A model, and one of `OPTIONS`."""

    model: Path
    options: str


@dataclass
class InitOptions(Script[Case]):
    """The options of the command line."""

    kind, columns = "init options", (
        Column("creation", "creation, s"),
        Column("first_run", "first run, s"),
        Column("run", "a later run, s"),
        Column("creation_over", "creation", summary=None),
        Column("both_over", "creation and first run", summary=None),
        Column("run_over", "a later run", summary=None),
    )  # fmt: skip
    models: Sequence[Path] = option((), "names of `ortmulti models`, or .onnx files")
    device: str = option("cpu", "cpu or cuda:N")
    batch: int = option(1, "size of an open batch dimension")
    threads: int = option(0, "of a session on the CPU; 0 is ONNX Runtime's default")
    runs: int = option(10, "later runs")
    repeat: int = option(5, "rounds")

    def cases(self, number: int = 0) -> Sequence[Case]:
        names = [name for name, given in OPTIONS.items() if self.device != "cpu" or "provider_options" not in given]
        return [Case(model, name) for model in self.models for name in names]

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._folder = folder
        for model in self.models:
            write_arrays(folder / f"{model.stem}.npz", models.sample_inputs(model, batch=self.batch))
            optimized = folder / "optimized" / model.name
            optimized.parent.mkdir(exist_ok=True)
            self._measure(Case(model, "default"), save=str(optimized))

    def measure(self, case: Case, number: int) -> dict[str, Any]:
        return self._measure(case)

    def _measure(self, case: Case, **more: Any) -> dict[str, Any]:
        given = {"optimize": True, "provider_options": {}, "save": "", **OPTIONS[case.options], **more}
        model = self._folder / "optimized" / case.model.name if given.pop("optimized", False) else case.model
        files = page_cache.external_files(model)
        page_cache.warm([model, *files])
        spec = {**given, "model": str(model), "external": bool(files), "device": self.device, "threads": self.threads}
        return self.fresh({**spec, "runs": self.runs, "feeds": str(self._folder / f"{case.model.stem}.npz")})

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:
        default = Case(case.model, "default")
        return {f"{key}_over": self.over(case, default, rounds, key) for key in ("creation", "both", "run")}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Create and run a session of onnxruntime, in this process; the libraries are opened before."""
    feeds, entries = read_arrays(spec["feeds"]), {}
    onnxruntime = open_package([spec["device"]])
    options: dict[str, Any] = {"graph_optimization_level": onnxruntime.GraphOptimizationLevel(99 * spec["optimize"])}
    if spec["save"]:
        options["optimized_model_filepath"] = spec["save"]
        if spec["external"]:
            # Otherwise what is saved names the model's own file, as if it lay in the same folder.
            name = f"{Path(spec['save']).name}.data"
            entries["session.optimized_model_external_initializers_file_name"] = name
    settings = SessionSettings(spec["threads"], spec["provider_options"], entries)
    times = [time.perf_counter()]
    session = create_session(onnxruntime, spec["model"], spec["device"], settings, **options)
    times.append(time.perf_counter())
    for _ in range(spec["runs"] + 1):
        session.run(None, feeds)
        times.append(time.perf_counter())
    creation, first, *later = (after - before for before, after in itertools.pairwise(times))
    return {"creation": creation, "first_run": first, "both": creation + first, "run": statistics.median(later)}


if __name__ == "__main__":
    sys.exit(script.main(InitOptions))
