"""The public reports whose experiments are repeated here, and their tables; the figures are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Source:
    """A public report.

    Attributes:
        title: as it is published.
        link: where; empty if only the title is known.
        measured_on: machine and releases, as far as it says.
    """

    title: str
    link: str
    measured_on: str

    @property
    def text(self) -> str:
        """One line that names it."""
        return f'"{self.title}"' + (f" ({self.link})" if self.link else "")


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        source: whose.
        name: what it is about.
        label: what its lines are.
        columns: names of its columns, with units.
        rows: by the line's name the published cells by column; a column without a cell was not published.
        note: what to know of the figures; may be empty.
    """

    source: Source
    name: str
    label: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, float | str]]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The table as JSON can carry it."""
        return {
            "source": {"title": self.source.title, "link": self.source.link, "measured_on": self.source.measured_on},
            "name": self.name,
            "columns": list(self.columns),
            "rows": {name: dict(cells) for name, cells in self.rows.items()},
            "note": self.note,
        }


INITIALIZATION = Source(
    "ONNX Runtime Multi-GPU Session Initialization: Research Report",
    "https://github.com/microsoft/onnxruntime/issues/27063",
    "8 A100-SXM4-80GB, onnxruntime-gpu 1.23.2, cuDNN 9.17.1",
)
CONTENTION = Source(
    "CUDA won't concurrently run kernels on multiple devices from within same process",
    "https://forums.developer.nvidia.com/",
    "10 RTX A4000, driver 525.60, CUDA 11.8",
)
PYTORCH = Source("Why is ONNXRuntime inference slower than PyTorch on the GPU?", "", "Tesla T4")
THREADING = Source(
    "Thread management",
    "https://onnxruntime.ai/docs/performance/tune-performance/threading.html",
    "machine not named",
)

WALL, SPEEDUP, EFFICIENCY = "wall, s", "S", "(S-1)/(N-1)"

SMALL_MODEL = Table(
    INITIALIZATION,
    "ResNet50 (97 MB) on 4 GPUs",
    "way",
    (WALL, SPEEDUP, EFFICIENCY),
    {
        "sequential": {WALL: 3.87},
        "threads": {WALL: 0.84, SPEEDUP: 4.6, EFFICIENCY: 0.841},
        "processes": {WALL: 2.45, SPEEDUP: 1.6, EFFICIENCY: 0.197},
    },
    "The published 84.1% is not (S-1)/(N-1) of its own times, as the others are: 3.87 s and 0.84 s give 1.20.",
)
LARGE_MODEL = Table(
    INITIALIZATION,
    "Phi-3-mini-4k-instruct (7.2 GB) on 4 GPUs",
    "way",
    (WALL, SPEEDUP, EFFICIENCY),
    {
        "sequential": {WALL: 10.87},
        "threads": {WALL: 7.48, SPEEDUP: 1.45, EFFICIENCY: 0.151},
        "processes": {WALL: 4.38, SPEEDUP: 2.48, EFFICIENCY: 0.494},
    },
)
GIL_BY_SIZE = Table(
    INITIALIZATION,
    "model size and parallelism of threads",
    "model",
    (EFFICIENCY,),
    {"97 MB": {EFFICIENCY: "~84%"}, "7.2 GB": {EFFICIENCY: "~15%"}},
    "The report infers the GIL from how threads scale; here its being held is measured directly.",
)
OPTIONS = Table(
    INITIALIZATION,
    "one session's init time (Phi-3, 7.2 GB)",
    "options",
    ("creation, s", "creation, speedup"),
    {
        "default": {"creation, s": 4.86, "creation, speedup": 1.0},
        "HEURISTIC": {"creation, s": 2.46, "creation, speedup": 2.0},
        "no optimization": {"creation, s": 1.92, "creation, speedup": 2.5},
        "pre-optimized": {"creation, speedup": 4.3},
    },
    "The default of cudnn_conv_algo_search is EXHAUSTIVE; whether the first run is part of the times is not said.",
)
SHARED_MEMORY = Table(
    INITIALIZATION,
    "data sharing across processes",
    "way",
    ("expected",),
    {"shared_memory": {"expected": "zero-copy batch transfer"}},
    "The report has no figures for it.",
)
KERNELS = Table(
    CONTENTION,
    "matrixMul, 10,000 launches on each of 10 GPUs at once",
    "way",
    ("time a kernel, ms", "times one GPU's"),
    {
        "one GPU": {"time a kernel, ms": 0.091, "times one GPU's": 1.0},
        "threads, 10 GPUs": {"time a kernel, ms": 0.33, "times one GPU's": 3.6},
        "processes, 10 GPUs": {"time a kernel, ms": 0.09, "times one GPU's": 1.0},
    },
    "Published times are of a kernel, measured ones of a run of 400 kernels. Factors of 2 to 20 were seen.",
)
RESNET_ON_T4 = Table(
    PYTORCH,
    "ResNet-50, batch 1",
    "library",
    ("inferences a second", "times PyTorch's"),
    {
        "PyTorch": {"inferences a second": 200, "times PyTorch's": 1.0},
        "ONNX Runtime": {"inferences a second": 150, "times PyTorch's": 0.75},
    },
    "The article's PyTorch has its input on the GPU and is not waited for, its ONNX Runtime gets host arrays and is.",
)
NUMA = Table(
    THREADING,
    "eight intra-op threads of ResNet-50 bound to one NUMA node, against two",
    "binding",
    ("speedup",),
    {"one node": {"speedup": "nearly 1.2"}, "two nodes": {"speedup": 1.0}},
    "The only figure of the page.",
)
SETTINGS = Table(THREADING, "thread settings", "model: setting", (), {}, "The page has no figures for these.")
CAUSES = Table(
    INITIALIZATION,
    "what the time from a process's start to the first answers is spent on",
    "cause",
    (),
    {},
    "The report names causes and has no figures for them.",
)
