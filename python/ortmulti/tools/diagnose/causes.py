"""What time may be spent on between the start of a process and its first answers: the words of every diagnosis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One thing that time is spent on.

    Attributes:
        name: as spans and sums have it.
        title: as tables and pages show it.
        explanation: one sentence on what happens then.
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
