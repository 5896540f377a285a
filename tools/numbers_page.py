"""Write docs/inside/numbers.md from the compiled core's numbers.

python -m tools.numbers_page
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ortmulti import _core

PAGE = Path(__file__).resolve().parent.parent / "docs/inside/numbers.md"
MADE = "\n<!-- Made by `python -m tools.numbers_page`. -->\n"
INTRODUCTION = """\
# Numbers that rules rest on

A pool measures where it can. Its rules rest on these defaults of `cpp/core/policy/numbers.hpp`, which no argument sets.
For a measurement, an environment variable does. Values are up to 1e9; counts are whole, and at least 1:

```sh
ORTMULTI_NUMBERS=in_flight.min_gain=1.1,batch_wait.share=0.2 python service.py
```

A wrong name or value makes `import ortmulti` fail with an `ImportError` that says which.

## What goes wrong without a rule

The share of its rate that a load keeps without a rule. Unless a machine is named, it was seen on a virtual clock
(`tests/cpp/test_trial_ground.cpp`).

"""
NUMBERS = """
## The numbers

What each decides, and what it rests on. Numbers without the latter are judged: nobody measured that another is better.
"""

WITHOUT = (
    ("`InFlight`", "runs under way on a device", "0.60 (many launches), 0.09 (32 cores)"),
    ("`BatchWait`", "waiting for those who were just answered", "0.33 (8 clients, rows that cost little)"),
    ("`BatchWait`", "the early end of a `max_delay_ms` in vain", "0.47 to 0.58 (1 and 8 clients)"),
    ("`RowsPerRun`", "rows of a run on the CPU", "0.86 (16 clients of images)"),
    (
        "`HeldRows`",
        "one number of rows for joint runs with convolutions",
        "0.01 (ResNet-50, 128 clients, two H200, `serve-1.31.1-2xh200`)",
    ),
    (
        "`SideBySide`",
        "one thread or all cores for a run on the CPU",
        "0.67, p99 4.4 instead of 0.4 ms (an LSTM of 0.3 ms, 2 clients, 2 cores)",
    ),
    (
        "`GraphDemand`",
        "which shapes get a CUDA graph",
        "0.75 to 0.81, 9.0 instead of 3.0 GB (BERT-base, 196 lengths, H200, `cuda-graphs-lengths-1.31.1-h200`)",
    ),
    ("`IdleMemory`", "what comes back after a large request", "285 instead of 138 MB ([Memory](../memory.md))"),
    (
        "`ResidencyPolicy`",
        "which model sleeps",
        "49% instead of 36% of requests find theirs asleep (least recently used, simulation)",
    ),
    (
        "`Suspension`, `Joining`",
        "a device that fails, requests that must not be joined",
        "wrong or failed answers (tests)",
    ),
)


def written(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def reason(evidence: str) -> str:
    """Return what a number rests on as a sentence; nothing where it is judged alone."""
    return "" if evidence == "judged" else f" {evidence[0].upper()}{evidence[1:]}."


def page() -> str:
    def parts() -> Iterator[str]:
        yield INTRODUCTION
        yield "| rule | what it decides | without it |\n| --- | --- | --- |\n"
        yield from (f"| {' | '.join(row)} |\n" for row in WITHOUT)
        yield NUMBERS + MADE
        for rule, numbers in groupby(_core.numbers(), lambda number: number[0].split(".")[0]):
            yield f"\n### {rule}\n\n"
            for name, _, unit, by_default, meaning, evidence in numbers:
                yield f"- `{name}`: {written(by_default)} {unit} {meaning}.{reason(evidence)}\n"

    return "".join(parts())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
