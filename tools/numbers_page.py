"""Write docs/numbers.md from the compiled core's numbers.

python -m tools.numbers_page
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ortmulti import _core

PAGE = Path(__file__).resolve().parent.parent / "docs/numbers.md"
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

<!-- Made by `python -m tools.numbers_page`. -->
"""


def written(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def page() -> str:
    def parts() -> Iterator[str]:
        yield INTRODUCTION
        for rule, numbers in groupby(_core.numbers(), lambda number: number[0].split(".")[0]):
            yield f"\n## {rule}\n\n| number | value | what it decides | what it rests on |\n| --- | --- | --- | --- |\n"
            for name, _, unit, by_default, meaning, evidence in numbers:
                yield f"| `{name}` | {written(by_default)} {unit} | {meaning} | {evidence} |\n"

    return "".join(parts())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
