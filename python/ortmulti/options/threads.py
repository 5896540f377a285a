"""ONNX Runtime's threads, made by the core: with names, on chosen CPUs, counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ortmulti import _core
from ortmulti import checks as _checks
from ortmulti.errors import InvalidArgument

__all__ = ["ThreadCounts", "Threads", "thread_counts"]

_NAME_LENGTH = 15  # that the kernel keeps
_MAX_CPU = 2**20


@dataclass(frozen=True)
class Threads:
    """How ortmulti makes the threads of a session's intra-op and inter-op pools, or of the global pools.

    With this object ortmulti's core makes and joins the threads, through callbacks of ONNX Runtime. Without it ONNX
    Runtime makes them. Every thread may run on all the given CPUs. Give at most one of ``numa_node`` and ``cpus``. The
    calling thread takes part in every run and is not bound.

    Attributes:
        name_prefix: First part of the threads' names. The device (``global`` for the global pools) and a number from 1
            on follow, such as ``ort-cuda:0-1``. Debuggers, ``top -H`` and ``/proc/self/task/*/comm`` show the names.
            The kernel keeps 15 characters, so a long prefix is shortened. ASCII without control characters; default
            ``"ort"``.
        numa_node: Binds the threads to the CPUs of a memory node: its number, or ``"near"`` for the node of the
            session's GPU. ``"near"`` does not bind if that node is unknown, if there is only one node, or on the CPU.
            Default None: not bound.
        cpus: Binds the threads to CPUs, by the kernel's numbers from 0 on, as in `os.sched_setaffinity`. Default None:
            not bound.

    Raises:
        InvalidArgument, InvalidType: A value is not valid, or both ``numa_node`` and ``cpus`` are given. For CPUs and
            nodes that the process cannot use, InvalidArgument is raised when the threads are made.
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
        name_prefix: First part of the threads' names.
        device: The session's device; ``"global"`` for the global pools.
        created: Threads made for ONNX Runtime.
        alive: Threads that ONNX Runtime has not returned; 0 in a forked child, which has no such threads.
        cpus: The CPUs to which the threads are bound; empty: not bound.
    """

    name_prefix: str
    device: str
    created: int
    alive: int
    cpus: tuple[int, ...]

    @classmethod
    def _from_core(cls, core: _core.ThreadCounts) -> ThreadCounts:
        return cls(core.name_prefix, core.owner, core.created, core.created - core.joined, tuple(core.cpus))


def thread_counts() -> list[ThreadCounts]:
    """Return the counts of the threads that ortmulti made for ONNX Runtime (`Threads`).

    There is one item for each session with such threads, and one for the global pools, in the order of creation.
    """
    return [ThreadCounts._from_core(counts) for counts in _core.thread_counts()]
