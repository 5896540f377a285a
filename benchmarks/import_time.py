"""How long do `import ortmulti` and the attribute `ortmulti.load` take beyond `import numpy`?

Fresh processes, in turns: one imports NumPy, the other also imports ortmulti and takes `load` from it. Measured from
the start of the process to its end. Each pair gives one difference; the result is their median. The processor's time is
reported beside it: if it is much smaller, other programs were in the way.

    python -m benchmarks.import_time

Exit status 1 if the median is above --limit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmulti.bench import script
from ortmulti.bench.experiment import Json
from ortmulti.bench.measure.rounds import Interval, alternating
from ortmulti.bench.reports.tables import Column
from ortmulti.bench.script import Script, option
from ortmulti.errors import Fail

NUMPY, BOTH = "numpy", "numpy, ortmulti.load"
CASES = {NUMPY: "import numpy", BOTH: "import numpy, ortmulti; ortmulti.load"}


@dataclass
class ImportTime(Script[str]):
    """The options of the command line."""

    kind, columns = "import time", (
        Column("ms", "ms"),
        Column("processor_ms", "of the processor, ms"),
        Column("more", "more than numpy, ms", summary=None),
        Column("more_processor", "of the processor, ms", summary=None),
    )  # fmt: skip
    repeat: int = option(25, "pairs of processes")
    limit: float = option(15.0, "highest median of the differences, in milliseconds")

    def cases(self, number: int = 0) -> Sequence[str]:
        return alternating([*CASES], number)

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        for case in CASES:
            self.measure(case, -1)  # reads the files from the disk

    def measure(self, case: str, number: int) -> dict[str, Any]:
        begin = time.perf_counter_ns()
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", CASES[case]], os.environ)
        _, status, usage = os.wait4(child, 0)
        elapsed = (time.perf_counter_ns() - begin) / 1e6
        if status:
            raise Fail(f"{CASES[case]!r} failed: {os.waitstatus_to_exitcode(status)}")
        return {"ms": elapsed, "processor_ms": (usage.ru_utime + usage.ru_stime) * 1e3}

    def beside(self, case: str, good: Sequence[Json], rounds: Sequence[Mapping[str, Json]]) -> dict[str, Any]:
        whole = [one for one in rounds if all("ms" in one.get(each, {}) for each in CASES)]
        more = {
            name: Interval.json(one[BOTH][key] - one[NUMPY][key] for one in whole)
            for name, key in (("more", "ms"), ("more_processor", "processor_ms"))
        }
        return more if case == BOTH else dict.fromkeys(more)

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        more = document["rows"][1]["more"]
        slow = more is not None and more["median"] > document["settings"]["limit"]
        return [*super().failures(document), *([f"the imports take {more['median']:.1f} ms more"] if slow else [])]


if __name__ == "__main__":
    sys.exit(script.main(ImportTime))
