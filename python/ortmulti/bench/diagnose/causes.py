"""Causes of time between the start of a process and its first answers: names, explanations and colours.

Causes of one kind have one of Okabe and Ito's hues, which people with any colour vision tell apart, in steps of
lightness. Waiting and unexplained time are hatched too. No report depends on colours alone: each names its causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Cause:
    """One cause of time.

    Attributes:
        name: as spans and sums have it.
        title: as tables and pages show it.
        explanation: one sentence on it.
        colour: index into a palette, the same for the same cause everywhere; neighbours in a timeline differ.
    """

    name: str
    title: str
    explanation: str
    colour: int


# In the order in which they come about, which is the order of tables and legends.
_TEXTS = (
    ("interpreter", "Starting the interpreter", "From the start of the process to the first line of Python."),
    ("processes", "Worker processes", "Starting worker processes, and messages between them and their parent."),
    ("imports", "Importing Python modules", "Python modules that are no library of ONNX Runtime or CUDA."),
    (
        "libraries",
        "Opening libraries",
        "ONNX Runtime, its CUDA provider and the CUDA libraries are brought into the process; on the CPU that is the "
        "import of onnxruntime.",
    ),
    ("cuInit", "Starting the CUDA driver", "cuInit: the driver looks at every visible GPU."),
    ("context", "Making CUDA contexts", "Each GPU's context in this process; the driver makes one after another."),
    (
        "read model",
        "Reading the model",
        "The model's file is read and its graph is built, with the weights that the file itself holds.",
    ),
    (
        "set up",
        "Setting up sessions",
        "Thread pools, execution providers with their allocators, and their lists of kernels.",
    ),
    ("optimization level 1", "Optimization, basic", "Graph transformers of level 1: constants folded, nodes removed."),
    ("optimization level 2", "Optimization, extended", "Graph transformers of level 2: nodes fused."),
    ("optimization level 3", "Optimization, layout", "Graph transformers of level 3 and above: layouts of tensors."),
    (
        "other optimization",
        "Required graph changes",
        "What no level switches off: casts inserted for types that a provider has no kernels for, copies between "
        "devices.",
    ),
    ("optimized model", "Keeping the optimized model", "ortmulti's cache of optimized models: found, split, written."),
    ("planning", "Planning", "Nodes are given to providers, their order and the memory of their results planned."),
    ("read weights", "Reading weights", "Weights are read or mapped; ONNX Runtime's own sessions also copy them."),
    ("stage weights", "Staging weights", "Weights on their way from the file to the first GPU by pinned memory."),
    ("copy weights", "Copying weights", "Weights copied from the GPU that has them to another."),
    ("prepacking", "Making kernels", "Kernels are made, and pack the weights into the layout that they want."),
    ("first use", "First use on the CPU", "What the first run on the CPU takes longer than the second."),
    ("handles", "Handles of CUDA libraries", "Handles of cuBLAS and others that the first run makes."),
    ("algorithm search", "Algorithm search", "Convolutions try cuDNN's algorithms in their first run."),
    ("load kernels", "Loading CUDA kernels", "Kernels that the driver loads when they are first launched."),
    ("run", "Running", "What a run takes again and again."),
    ("wait for the GIL", "Waiting for the GIL", "A Python thread could go on, if another did not hold the GIL."),
    (
        "wait for another session",
        "Waiting for another session",
        "A thread waits for what another one does for its own session.",
    ),
    ("wait", "Waiting, off the CPU", "The thread sleeps, and nothing known explains for what."),
    ("measurement", "Measuring", "What only the measurement needs: its own modules, reading the inputs."),
    ("unexplained", "Unexplained", "No span covers it."),
)

CAUSES: dict[str, Cause] = {
    name: Cause(name, title, explanation, colour) for colour, (name, title, explanation) in enumerate(_TEXTS)
}
"""Every cause by its name, in the order in which tables show them."""

UNEXPLAINED = "unexplained"
"""The cause of what has none."""


class Style(NamedTuple):
    """How a cause is drawn: "#rrggbb", and whether it is hatched."""

    colour: str
    hatched: bool = False

    @property
    def ink(self) -> str:
        """Black or white, whichever is read more easily on the colour."""
        return "#000000" if luminance(self.colour) > 0.18 else "#ffffff"


_STYLES = {
    # Python
    "interpreter": Style("#4a4f52"),
    "processes": Style("#37789f"),
    "imports": Style("#85a0a7"),
    "libraries": Style("#bac8e4"),
    # the driver
    "cuInit": Style("#c34805"),
    "context": Style("#eea675"),
    # the model and its graph
    "read model": Style("#f2e641"),
    "set up": Style("#9a8922"),
    "optimization level 1": Style("#0a3966"),
    "optimization level 2": Style("#147cc6"),
    "optimization level 3": Style("#6ec3f6"),
    "other optimization": Style("#195186"),
    "optimized model": Style("#6591c1"),
    "planning": Style("#c0e2fb"),
    # weights
    "read weights": Style("#08523a"),
    "stage weights": Style("#73c6a4"),
    "copy weights": Style("#369e5b"),
    "prepacking": Style("#ccf1dc"),
    # the first run
    "first use": Style("#a459a6"),
    "handles": Style("#692952"),
    "algorithm search": Style("#db809e"),
    "load kernels": Style("#9e4e84"),
    "run": Style("#f4c4c5"),
    # waiting
    "wait for the GIL": Style("#e0900c", hatched=True),
    "wait for another session": Style("#986c24", hatched=True),
    "wait": Style("#ffc57c", hatched=True),
    # neither
    "measurement": Style("#d6dadf"),
    "unexplained": Style("#eeeeee", hatched=True),
}
# For causes that a newer release knows and this one does not.
_OTHERS = tuple(Style(colour) for colour in ("#7f7f7f", "#b79f00", "#5f9ea0", "#a0522d", "#708090", "#bc8f8f"))


def style(cause: str) -> Style:
    """Return how `cause` is drawn."""
    return _STYLES.get(cause) or _OTHERS[sum(map(ord, cause)) % len(_OTHERS)]


def ordered(causes: Iterable[str]) -> list[str]:
    """Return the causes in the order of the bars; unknown ones come before unexplained time."""
    places = {cause: place for place, cause in enumerate(CAUSES)}
    places["unexplained"] = len(places) + 1
    return sorted(causes, key=lambda cause: (places.get(cause, len(CAUSES)), cause))


def title(cause: str) -> str:
    """Return the title of `cause` in reports."""
    known = CAUSES.get(cause)
    return known.title if known else cause


def explanation(cause: str) -> str:
    """Return the explanation of `cause`; empty for an unknown one."""
    known = CAUSES.get(cause)
    return known.explanation if known else ""


def luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb" as WCAG 2 defines it, 0 to 1."""
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
