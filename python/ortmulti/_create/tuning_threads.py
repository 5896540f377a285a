"""On which processors ONNX Runtime's threads are kept."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ortmulti.errors import InvalidArgument

_NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = _NODES) -> dict[int, tuple[int, ...]]:
    """The NUMA nodes with the processors that this process may use, without those of which it may use none."""
    usable = os.sched_getaffinity(0)
    found: dict[int, tuple[int, ...]] = {}
    for entry in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            cpus = tuple(sorted(_parse((entry / "cpulist").read_text()) & usable))
        except OSError:
            continue
        if cpus:
            found[int(entry.name[4:])] = cpus
    return found


def affinities(where: str, threads: int, nodes: dict[int, tuple[int, ...]] | None = None) -> str:
    """What ONNX Runtime is told for ``thread_affinity``: the processors, from 1 on, of each thread but the calling one.

    Args:
        where: ``"cores"``: a processor for each thread; ``"node:N"``: those of that NUMA node for all.
        threads: How many there are, the calling one included.
        nodes: The NUMA nodes; default: this machine's.

    Returns:
        The text; empty for one thread.

    Raises:
        InvalidArgument: There is no such node.
    """
    if threads < 2:
        return ""
    if where == "cores":
        usable = sorted(os.sched_getaffinity(0))
        # The first one is left to the calling thread.
        return ";".join(str(usable[number % len(usable)] + 1) for number in range(1, threads))
    nodes = numa_nodes() if nodes is None else nodes
    number = int(where.removeprefix("node:"))
    if number not in nodes:
        raise InvalidArgument(f"there is no NUMA node {number} that this process may use")
    return ";".join([",".join(str(cpu + 1) for cpu in nodes[number])] * (threads - 1))


def _parse(text: str) -> set[int]:
    """The kernel's list of numbers: "0-3,8"."""
    return {
        number
        for match in re.finditer(r"(\d+)(?:-(\d+))?", text)
        for number in range(int(match[1]), int(match[2] or match[1]) + 1)
    }
