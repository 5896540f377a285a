"""Causes of time between the start of a process and its first answers: names, explanations and colours.

Causes of one kind have one of Okabe and Ito's hues, which people with any colour vision tell apart, in steps of
lightness. Waiting and unexplained time are hatched too. No report depends on colours alone: each names its causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One cause of time."""

    name: str  # as spans and sums have it
    title: str  # as tables and pages show it
    colour: str  # "#rrggbb", the same everywhere
    explanation: str  # one sentence; empty for an unknown cause
    hatched: bool = False


UNEXPLAINED = "unexplained"
"""The cause of what has none."""

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        Cause("interpreter", "Starting the interpreter", "#4a4f52",
              "From the start of the process to the first line of Python."),
        Cause("processes", "Worker processes", "#37789f",
              "Starting worker processes, and messages between them and their parent."),
        Cause("imports", "Importing Python modules", "#85a0a7",
              "Python modules that are no library of ONNX Runtime or CUDA."),
        Cause("libraries", "Opening libraries", "#bac8e4",
              "ONNX Runtime, its CUDA provider and the CUDA libraries are brought into the process; on the "
              "CPU that is the import of onnxruntime."),
        Cause("cuInit", "Starting the CUDA driver", "#c34805", "cuInit: the driver looks at every visible GPU."),
        Cause("context", "Making CUDA contexts", "#eea675",
              "Each GPU's context in this process; the driver makes one after another."),
        Cause("read model", "Reading the model", "#f2e641",
              "The model's file is read and its graph is built, with the weights that the file itself holds."),
        Cause("set up", "Setting up sessions", "#9a8922",
              "Thread pools, execution providers with their allocators, and their lists of kernels."),
        Cause("optimization level 1", "Optimization, basic", "#0a3966",
              "Graph transformers of level 1: constants folded, nodes removed."),
        Cause("optimization level 2", "Optimization, extended", "#147cc6",
              "Graph transformers of level 2: nodes fused."),
        Cause("optimization level 3", "Optimization, layout", "#6ec3f6",
              "Graph transformers of level 3 and above: layouts of tensors."),
        Cause("other optimization", "Required graph changes", "#195186",
              "What no level switches off: casts inserted for types that a provider has no kernels for, "
              "copies between devices."),
        Cause("optimized model", "Keeping the optimized model", "#6591c1",
              "ortmulti's cache of optimized models: found, split, written."),
        Cause("planning", "Planning", "#c0e2fb",
              "Nodes are given to providers, their order and the memory of their results planned."),
        Cause("read weights", "Reading weights", "#08523a",
              "Weights are read or mapped; ONNX Runtime's own sessions also copy them."),
        Cause("stage weights", "Staging weights", "#73c6a4",
              "Weights on their way from the file to the first GPU by pinned memory."),
        Cause("copy weights", "Copying weights", "#369e5b", "Weights copied from the GPU that has them to another."),
        Cause("prepacking", "Making kernels", "#ccf1dc",
              "Kernels are made, and pack the weights into the layout that they want."),
        Cause("first use", "First use on the CPU", "#a459a6",
              "What the first run on the CPU takes longer than the second."),
        Cause("handles", "Handles of CUDA libraries", "#692952",
              "Handles of cuBLAS and others that the first run makes."),
        Cause("algorithm search", "Algorithm search", "#db809e",
              "Convolutions try cuDNN's algorithms in their first run."),
        Cause("load kernels", "Loading CUDA kernels", "#9e4e84",
              "Kernels that the driver loads when they are first launched."),
        Cause("run", "Running", "#f4c4c5", "What a run takes again and again."),
        Cause("wait for the GIL", "Waiting for the GIL", "#e0900c",
              "A Python thread could go on, if another did not hold the GIL.", hatched=True),
        Cause("wait for another session", "Waiting for another session", "#986c24",
              "A thread waits for what another one does for its own session.", hatched=True),
        Cause("wait", "Waiting, off the CPU", "#ffc57c",
              "The thread sleeps, and nothing known explains for what.", hatched=True),
        Cause("measurement", "Measuring", "#d6dadf",
              "What only the measurement needs: its own modules, reading the inputs."),
        Cause("unexplained", "Unexplained", "#eeeeee", "No span covers it.", hatched=True),
    )
}  # fmt: skip
"""Every cause by its name, in the order in which they come about, and in which tables and legends show them."""


def cause_of(name: str) -> Cause:
    """Return the cause with this name, also one that this release does not know, such as a finding's."""
    return CAUSES.get(name) or Cause(name, name, "#7f7f7f", "")


def ordered(causes: Iterable[str]) -> list[str]:
    """Return the causes in the order of the bars; unknown ones come before unexplained time."""
    places = {cause: place for place, cause in enumerate(CAUSES)}
    return sorted(causes, key=lambda cause: (places.get(cause, places[UNEXPLAINED] - 0.5), cause))
