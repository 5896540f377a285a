"""A diagnosis in the terminal. Loads rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ortmulti.bench.diagnose.causes import cause_of
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.files import printable
from ortmulti.bench.reports import plots

from . import view
from .view import Trace

Json = Mapping[str, Any]

_NARROW = 78
"""Columns below which ways stand below each other instead of beside each other."""

_SHORTEST_BAR = 16


def print_diagnosis(document: Json, console: Console) -> None:
    """Print a diagnosis: each way's trace and bottlenecks, the best way, and the findings.

    Args:
        document: the diagnosis; see `load_document`.
        console: where to. Its width decides how the trace is laid out; without colours, letters stand for causes.
    """
    for part in _parts(document, console):
        console.print(part)
        console.print()


def _parts(document: Json, console: Console) -> Iterator[RenderableType]:
    yield Text.assemble(("Where the time goes: ", "bold"), (view.models_text(document), "bold"))
    if partial := view.partial_text(document):
        yield Panel(Text(partial), style="yellow", title="partial")
    yield Text(view.headline(document))
    found = view.traces(document)
    keys = _keys(view.causes_of(found), console)
    longest = max((trace.wall for trace in found), default=0)
    for group in view.by_device_count(found).values():
        yield Text(f"From the process's start to the first answer on {view.devices_text(group[0].devices)}", "bold")
        yield _bars(group, longest, keys, console)
        for columns in [group] if console.width >= _NARROW else [[trace] for trace in group]:
            yield _table(columns, keys)
    if document.get("serialization"):
        yield Text("What each way serializes on", "bold")
        yield _serialization(document)
    if prediction := document.get("prediction"):
        yield _prediction(prediction)
    yield from _findings(document)
    if failed := view.failures(document):
        yield Text("\n".join(["Failed:", *(f"  {text}" for text in failed)]), style="red")
    yield Text(f"{_machine_text(document)}; {str(document.get('created', ''))[:10]}", style="dim")


def _findings(document: Json) -> Iterator[RenderableType]:
    if not document["findings"]:
        yield Text(view.no_findings_text(document), style="bold")
        return
    yield Text("Findings, the one that would help most first", "bold")
    for number, finding in enumerate(document["findings"], 1):
        what = cause_of(finding["cause"]).title
        if finding["seconds"]:
            what += f": {seconds_text(finding['seconds'])}, {view.percent(finding['share'])}"
        gained, gain = view.verified_text(finding.get("verified"))
        lines = [
            *([] if finding["cause"] == "none" else [Text(printable(what), style="dim")]),
            *(Text(printable(line)) for line in finding["evidence"]),
            Text.assemble(("Change: ", "bold"), printable(finding["change"])),
        ]
        if finding.get("command"):
            lines.append(Text(view.code_text(finding["command"]), style="cyan"))
        if finding["cause"] != "none":
            lines.append(Text(f"{gain[:1].upper()}{gain[1:]}.", style="green" if gained else "yellow"))
        heading = Text(f"{number}. {printable(finding['title'])}", style="bold")
        yield Group(heading, *(Padding(line, (0, 0, 0, 3)) for line in lines))


def _keys(causes: Sequence[str], console: Console) -> dict[str, tuple[str, str]]:
    """For each cause the character of which its bars consist, and that character's style."""
    if console.no_color or console.color_system is None:
        letters = chain(ascii_uppercase, ascii_lowercase, repeat("*"))
        return {cause: (letter, "") for cause, letter in zip(causes, letters, strict=False)}
    return {one.name: ("▒" if one.hatched else "█", one.colour) for one in map(cause_of, causes)}


def _bars(group: Sequence[Trace], longest: float, keys: Mapping[str, tuple[str, str]], console: Console) -> Text:
    """Return one bar for each way, as long as its wall time, of its causes in their order."""
    names = [printable(trace.name) for trace in group]
    most = max(10, console.width - _SHORTEST_BAR - 12)
    left = min(max(map(len, names)), most)
    width = max(_SHORTEST_BAR, console.width - left - 12)
    lines = []
    for name, trace in zip(names, group, strict=True):
        line = Text(f"{name if len(name) <= left else name[: left - 1] + '…':<{left}} ")
        for cause, cells in cells_of(trace, max(1, round(width * trace.wall / longest))):
            character, colour = keys[cause]
            line.append(character * cells, style=colour)
        line.append(f" {seconds_text(trace.wall)}", style="bold")
        lines.append(line)
    return Text("\n").join(lines)


def cells_of(trace: Trace, cells: int) -> list[tuple[str, int]]:
    """Return how many of `cells` each cause gets: they add up to `cells`, and none is more than one off its share."""
    whole = sum(trace.causes.values())
    shares, sum_so_far, given = [], 0.0, 0
    for cause in view.causes_of([trace]):
        sum_so_far += trace.causes[cause]
        until = round(cells * sum_so_far / whole)
        shares.append((cause, until - given))
        given = until
    return [(cause, count) for cause, count in shares if count]


def _table(group: Sequence[Trace], keys: Mapping[str, tuple[str, str]]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cause", overflow="fold", ratio=1)
    for trace in group:
        table.add_column(printable(trace.name), justify="right", overflow="fold")
    for cause in view.causes_of(group):
        cells = [_cell(trace, cause) for trace in group]
        table.add_row(Text.assemble(keys[cause], " ", printable(cause_of(cause).title)), *cells)
    table.add_section()
    table.add_row("from start to last answer", *(Text(seconds_text(trace.wall), "bold") for trace in group))
    table.add_row("explained", *(_explained(trace) for trace in group))
    if any(trace.range for trace in group):
        table.add_row("repetitions", *(str(len(trace.walls)) for trace in group))
        spans = [f"{seconds_text(trace.walls[0])}\n{seconds_text(trace.walls[-1])}" for trace in group]
        table.add_row("shortest\nlongest", *spans)
    return table


def _cell(trace: Trace, cause: str) -> Text:
    length = trace.causes.get(cause, 0)
    if not length:
        return Text("-", style="dim")
    return Text(seconds_text(length), style="bold" if length >= trace.wall / 5 else "")


def _explained(trace: Trace) -> Text:
    enough = trace.explained >= view.LEAST_EXPLAINED
    return Text(f"{trace.explained:.1%}", style="" if enough else "red bold")


def _serialization(document: Json) -> Text:
    lines = []
    for one in document["serialization"]:
        line = Text(f"{printable(one['way'])} on {one['devices']}: ", style="bold")
        line.append(view.speedup_text(one), style="not bold")
        for cause in one["on"]:
            share = "" if cause.get("share") is None else f" {view.percent(cause['share'])}"
            name = view.what_text(cause["what"])
            line.append(f"\n  {name}{share}: {printable(cause['evidence'])}", style="not bold")
        if not one["on"]:
            line.append("\n  nothing found that it waits for", style="not bold dim")
        lines.append(line)
    return Text("\n").join(lines)


def _prediction(prediction: Json) -> Text:
    by_way = sorted(prediction["seconds"].items(), key=lambda item: item[1])
    return Text.assemble(
        (f"Best way to create sessions here: {printable(prediction['best'])}. ", "bold"),
        printable(prediction["why"]),
        ("\nPredicted: " + ", ".join(f"{printable(way)} {seconds_text(s)}" for way, s in by_way), "dim"),
    )


def _machine_text(document: Json) -> str:
    releases = document["releases"]
    parts = [plots.machine_text(document["machine"])]
    parts += [f"{name} {releases[name]}" for name in ("onnxruntime", "ortmulti", "python") if releases.get(name)]
    return printable("; ".join(parts))
