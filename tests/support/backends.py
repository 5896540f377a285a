"""The backends of pools, for tests of what they have in common."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pytest

import ortmulti
from ortmulti.pool.processes.members import ProcessMembers
from ortmulti.pool.processes.session import ProcessSession

BackendName: TypeAlias = Literal["core", "processes"]

BACKENDS: tuple[BackendName, ...] = ("core", "processes")

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)


def process_sessions(pool: ortmulti.Pool) -> list[ProcessSession]:
    """The sessions of a pool in processes."""
    members = pool._members
    assert isinstance(members, ProcessMembers)
    return members._sessions


def worker_pids(pool: ortmulti.Pool) -> list[int]:
    """The processes of a pool that are ready now."""
    processes = [session.process for session in process_sessions(pool)]
    return [process.pid for process in processes if process is not None]
