"""Is it safe to create sessions at the same time? Many rounds of it, with nothing serialized.

Each round creates sessions of each of several small models on all the devices at once (`serialize="none"`), every few
rounds runs each of them and compares its outputs with a session's that was created alone, and closes them.

    python -m benchmarks.concurrent_creation --repeat 250 --devices all
    python -m benchmarks.concurrent_creation --repeat 250 --devices cuda:0 --sessions 4

Exit status 1 if any round failed or any output differed by more than a thousandth of the largest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ortmulti
from benchmarks import graphs
from ortmulti.bench import models, script
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, names, option

TOLERANCE = 1e-3


@dataclass
class Creation(Script[str]):
    """The options of the command line."""

    kind = "concurrent creation"
    columns = tuple(Column(name, name, summary=sum, text="{:.0f}".format) for name in ("sessions", "compared", "equal"))
    devices: tuple[str, ...] = option(("all",), "all, cpu, cuda:0 or several with commas", names)
    sessions: int = option(1, "at once on each device")
    run_every: int = option(10, "run and compare in every Nth round")
    repeat: int = option(250, "rounds of each of the four models")

    def cases(self, number: int = 0) -> Sequence[str]:
        return ("convolutions", "matmul", "tiny-kernels", "identity")

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        self._devices = ortmulti.parse_devices("all" if self.devices == ("all",) else self.devices)
        self._known: dict[str, tuple[Path, Any, Any]] = {}
        for case in self.cases():
            path = folder / f"{case}.onnx"
            if case == "convolutions":
                path.write_bytes(graphs.convolutions((16,) * 6, 32))
            else:
                path = models.make(case, folder, megabytes=3 if case == "matmul" else None)
            feed = models.sample_inputs(path)
            with ortmulti.create_sessions(path, self._devices[0]) as alone:
                self._known[case] = path, feed, alone[0].run(None, feed)

    def measure(self, case: str, number: int) -> dict[str, Any]:
        path, feed, expected = self._known[case]
        compared = equal = 0
        with ortmulti.create_sessions(
            path, self._devices, self.sessions, loading=ortmulti.Loading(serialize="none")
        ) as sessions:
            for session in sessions if number % self.run_every == 0 else ():
                for got, want in zip(session.run(None, feed), expected, strict=True):
                    compared += 1
                    equal += bool(np.array_equal(got, want))
                    if not np.allclose(got, want, rtol=0, atol=TOLERANCE * float(np.abs(want).max())):
                        raise ortmulti.Error(f"{session.device}: outputs differ from a lone session's")
            return {"sessions": len(sessions), "compared": compared, "equal": equal}


if __name__ == "__main__":
    sys.exit(script.main(Creation))
