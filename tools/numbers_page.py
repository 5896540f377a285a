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

A pool measures where it can. The rules that choose what is measured, and what to do then, rest on these numbers. They
are defaults of the core, in `cpp/core/policy/numbers.hpp`; no argument sets them.

For a measurement, an environment variable gives a process other values, up to 1e9; counts are whole, and at least 1:

```sh
ORTMULTI_NUMBERS=in_flight.min_gain=1.1,batch_wait.share=0.2 python service.py
```

A name that is not here or there twice, or a value that is no such number, makes `import ortmulti` fail with an
`ImportError` that says which. "Judged" says that nobody has measured yet that another value is worse.

## What goes wrong without a rule

The share of the rate that a load has without a rule, of what it has with all of them. "Trial ground" is
`tests/cpp/test_trial_ground.cpp`: the rules on a virtual clock, the same on every machine.

"""

WITHOUT = (
    (
        "`InFlight`",
        "runs under way on a device",
        "0.60 (64 clients of a model of many launches), 0.09 (64 clients on 32 cores), with 3 runs for good",
        "trial ground",
    ),
    (
        "`BatchWait`",
        "waiting for those who were just answered",
        "0.33 (8 clients, rows that cost little)",
        "trial ground",
    ),
    (
        "`BatchWait`",
        "the early end of a `max_delay_ms` in vain",
        "0.47 to 0.57 (1 client), 0.58 (8 clients)",
        "trial ground",
    ),
    (
        "`RowsPerRun`",
        "rows of a run on the CPU",
        "0.86 (16 clients of images), with all 16 rows",
        "trial ground",
    ),
    (
        "`HeldRows`",
        "one number of rows for joint runs with convolutions",
        "0.01 (ResNet-50, 128 clients of two GPUs: 64 images a second instead of 8,575)",
        "2 x H200, `serve-1.31.1-2xh200`",
    ),
    (
        "`SideBySide`",
        "one thread or all cores for a run on the CPU",
        "0.67, p99 4.4 instead of 0.4 ms (an LSTM of 0.3 ms, 2 clients, 2 cores)",
        "2 cores",
    ),
    (
        "`GraphDemand`",
        "which shapes get a CUDA graph",
        "0.75 to 0.81, 9.0 instead of 3.0 GB (BERT-base, 196 lengths)",
        "H200, `cuda-graphs-lengths-1.31.1-h200`",
    ),
    (
        "`IdleMemory`",
        "what comes back after a large request",
        "285 instead of 138 MB a process ([Memory](../memory.md))",
        "2 cores",
    ),
    (
        "`ResidencyPolicy`",
        "which model sleeps",
        "49% instead of 36% of requests find their model asleep, with the least recently used one "
        "([Repository](../how-to/model-repository.md#which-model-sleeps))",
        "simulation",
    ),
    (
        "`Suspension`, `Joining`",
        "a device that fails, requests that must not be joined",
        "wrong or failed answers, not slow ones",
        "tests",
    ),
)


def written(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def page() -> str:
    def parts() -> Iterator[str]:
        yield INTRODUCTION
        yield "| rule | what it decides | without it | seen in |\n| --- | --- | --- | --- |\n"
        yield from (f"| {' | '.join(row)} |\n" for row in WITHOUT)
        yield MADE
        for rule, numbers in groupby(_core.numbers(), lambda number: number[0].split(".")[0]):
            yield f"\n## {rule}\n\n| number | value | what it decides | what it rests on |\n| --- | --- | --- | --- |\n"
            for name, _, unit, by_default, meaning, evidence in numbers:
                yield f"| `{name}` | {written(by_default)} {unit} | {meaning} | {evidence} |\n"

    return "".join(parts())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
