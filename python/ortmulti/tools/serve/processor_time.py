"""Processor time of a measured process with its children."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from ortmulti.tools.measure.memory import process_tree


class ProcessorTime:
    """Processor time of this process and of those descendants that run when this is made."""

    def __init__(self) -> None:
        self._children = [Path("/proc") / str(member) / "stat" for member in process_tree(os.getpid())[1:]]
        self._tick = 1 / os.sysconf("SC_CLK_TCK")

    def seconds(self) -> float:
        """Processor seconds until now, in user and in kernel mode: this process's own exactly, the others' in ticks of
        10 ms."""
        total = time.process_time()
        for stat in self._children:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # Behind the command's name, which may hold anything: user and system time are the 12th and 13th field.
                fields = stat.read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) * self._tick
        return total
