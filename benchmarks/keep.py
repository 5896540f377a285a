"""Keep a result for a page: its compact form goes to `benchmarks/results/PAGE.json`, under a name.

    python -m benchmarks.keep texts.json measurements texts-1.32.0-2-cores

Medians are lists: the median, and the ends of its interval or range. Measurements are left out where rows have them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
LEFT_OUT = {"schema_version", "created", "partial", "measured", "errors", "outputs", "stderr", "environment", "lag"}


def short(value: Any) -> Any:
    """Return a value with four digits, without fields that no page reads, and spreads as lists."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)
    if isinstance(value, dict):
        if "median" in value:
            ends = ("low", "high") if "low" in value else ("lowest", "highest")
            return [short(value[key]) for key in ("median", *ends) if key in value]
        kept = {key: short(each) for key, each in value.items() if key not in LEFT_OUT}
        return {key: each for key, each in kept.items() if each is not None and each not in ([], {})}
    return [short(each) for each in value] if isinstance(value, list) else value


def describe(machine: dict[str, Any]) -> dict[str, Any]:
    """Return what tells machines apart."""
    cpu, gpus, driver = machine["cpu"], machine["gpus"], machine["driver"]
    return {
        "cpu": f"{cpu['model']}, {cpu['usable_physical_cores']} cores",
        "memory_gib": round(machine["memory"]["total"] / 2**30),
        **({"gpus": f"{len(gpus)} x {gpus[0]['name']}"} if gpus else {}),
        **({"driver": driver["version"], "cuda": driver["cuda"]} if driver else {}),
        "system": f"{machine['system']['distribution']}, {machine['system']['kernel']}",
        "python": machine["python"]["version"],
    }


def add(page: dict[str, Any], name: str, result: dict[str, Any]) -> None:
    """Put a result into the content of a page's file."""
    machine, machines = describe(result.pop("machine")), page["machines"]
    number = next((key for key, known in machines.items() if known == machine), str(len(machines) + 1))
    machines[number] = machine
    if any(len(row) > 3 for row in result.get("rows", ())):
        del result["measurements"]
    page["results"][name] = {"machine": number, **short(result)}


def text(page: dict[str, Any]) -> str:
    """Return the file's text: a line for each machine and each result."""
    parts = []
    for key in ("machines", "results"):
        lines = (f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in page[key].items())
        parts.append(f'"{key}": {{\n' + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="what --json of a script or of `ortmulti bench` wrote")
    parser.add_argument("page", help="name of the page's file, without .json")
    parser.add_argument("name", help="of the result there")
    given = parser.parse_args(arguments)
    path = FOLDER / f"{given.page}.json"
    page = json.loads(path.read_text("utf-8")) if path.exists() else {"machines": {}, "results": {}}
    add(page, given.name, json.loads(given.result.read_text("utf-8")))
    path.write_text(text(page), encoding="utf-8")


if __name__ == "__main__":
    main()
