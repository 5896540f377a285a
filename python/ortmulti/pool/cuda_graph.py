"""Whether a pool's sessions capture CUDA graphs, and how many."""

from __future__ import annotations

from dataclasses import dataclass

from ortmulti._runtime.checks import integer
from ortmulti.errors import InvalidType

__all__ = ["CudaGraph"]


@dataclass(frozen=True)
class CudaGraph:
    """How a pool captures runs as CUDA graphs, which are launched at once instead of kernel by kernel.

    The first run of a shape runs ordinarily, the second is captured, later ones replay the graph. While one is captured
    nothing else of this package uses CUDA in the process; what other libraries do meanwhile can make a capture fail,
    and then that shape runs ordinarily. The model must run on the GPU as a whole, without control flow.

    Attributes:
        max_shapes: Of how many shapes of the inputs each request in flight keeps a graph, with memory for its inputs
            and outputs; default 8. Beyond that the least recently used graph is freed.

    Raises:
        InvalidArgument, InvalidType: ``max_shapes`` is no int of 1 or more.
    """

    max_shapes: int = 8

    def __post_init__(self) -> None:
        integer("max_shapes", self.max_shapes, 1)


def max_graphs(cuda_graph: object) -> int:
    """The number of graphs that `load`'s argument asks for; 0: none.

    Raises:
        InvalidType: It is neither a bool nor a `CudaGraph`.
    """
    if isinstance(cuda_graph, CudaGraph):
        return cuda_graph.max_shapes
    if not isinstance(cuda_graph, bool):
        raise InvalidType(f"cuda_graph is an ortmulti.CudaGraph or a bool, not {cuda_graph!r}")
    return CudaGraph().max_shapes if cuda_graph else 0
