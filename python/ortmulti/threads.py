"""ONNX Runtime's threads, made by the core: with names, on chosen CPUs, counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ortmulti import _core
from ortmulti._runtime import checks as _checks
from ortmulti.errors import InvalidArgument

__all__ = ["ThreadCounts", "Threads", "thread_counts"]

_NAME_LENGTH = 15  # that the kernel keeps
_MAX_CPU = 2**20


@dataclass(frozen=True)
class Threads:
    """How the threads of a session's intra-op and inter-op pools are made, or those of the global pools.

    ortmulti's core makes and joins them, through ONNX Runtime's callbacks for that; without, ONNX Runtime makes them
    itself. They stay on the CPUs that are given here, all of them on each; at most one of ``numa_node`` and ``cpus``.
    The calling thread, which takes part in every run, is the caller's and stays as it is.

    Attributes:
        name_prefix: They are called by it, their session's device (``global`` for the global pools) and a number from 1
            on, such as ``ort-cuda:0-1``, as debuggers, ``top -H`` and ``/proc/self/task/*/comm`` show. Of the 15
            characters that the kernel keeps, the prefix has those that the rest leaves. ASCII without control
            characters; default ``"ort"``.
        numa_node: The memory node on whose CPUs they stay, a number; or ``"near"``: the node that the session's GPU is
            attached to. Where that is not known, where there is one node, and on the CPU, they are not bound then.
            Default None: not bound.
        cpus: The CPUs on which they stay, by the kernel's numbers, from 0 on, as in `os.sched_setaffinity`. Default
            None: not bound.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be, or both ``numa_node`` and ``cpus``. CPUs and nodes that
            the machine has not, or the process may not use, are an InvalidArgument when threads are to be made.
    """

    name_prefix: str = "ort"
    numa_node: int | Literal["near"] | None = None
    cpus: Iterable[int] | None = None

    def __post_init__(self) -> None:
        prefix = _checks.text("name_prefix", self.name_prefix)
        if not 1 <= len(prefix) <= _NAME_LENGTH or not (prefix.isascii() and prefix.isprintable()):
            raise InvalidArgument(f"name_prefix has 1 to {_NAME_LENGTH} printable ASCII characters, not {prefix!r}")
        if self.numa_node is not None and self.cpus is not None:
            raise InvalidArgument("threads are bound to a numa_node or to cpus, not to both")
        if isinstance(self.numa_node, str):
            if self.numa_node != "near":
                raise InvalidArgument(f"numa_node is the number of a node or 'near', not {self.numa_node!r}")
        elif self.numa_node is not None:
            object.__setattr__(self, "numa_node", _checks.integer("numa_node", self.numa_node, minimum=0))
        if self.cpus is not None:
            given = _checks.iterable("cpus", self.cpus)
            cpus = tuple(sorted({_checks.integer("a CPU's number", cpu, minimum=0) for cpu in given}))
            if not cpus or cpus[-1] >= _MAX_CPU:
                raise InvalidArgument(f"cpus are at least one number of a CPU, not {cpus}")
            object.__setattr__(self, "cpus", cpus)

    def _to_core(self) -> _core.ThreadSettings:
        near = self.numa_node == "near"
        node = None if isinstance(self.numa_node, str) else self.numa_node
        return _core.ThreadSettings(self.name_prefix, node, near, list(self.cpus or ()))

    @classmethod
    def _from_core(cls, core: _core.ThreadSettings) -> Threads:
        return cls(core.name_prefix, "near" if core.near_device else core.numa_node, tuple(core.cpus) or None)


@dataclass(frozen=True)
class ThreadCounts:
    """The threads of one session's pools, or of the global ones.

    Attributes:
        name_prefix: Of their names.
        device: The session's; ``"global"`` for the global pools.
        created: Threads that ONNX Runtime was given.
        alive: Those of them that it has not given back. In a forked child, which has none, 0.
        cpus: The CPUs on which they stay; empty: not bound.
    """

    name_prefix: str
    device: str
    created: int
    alive: int
    cpus: tuple[int, ...]

    @classmethod
    def _from_core(cls, core: tuple[str, str, list[int], int, int]) -> ThreadCounts:
        prefix, owner, cpus, created, joined = core
        return cls(prefix, owner, created, created - joined, tuple(cpus))


def thread_counts() -> list[ThreadCounts]:
    """Return the threads that ortmulti made for ONNX Runtime (`Threads`), one item for each session that
    has any and one for the global pools, in the order of their creation.
    """
    return [ThreadCounts._from_core(counts) for counts in _core.thread_counts()]
