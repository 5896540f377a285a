"""A diagnosis in the terminal. Loads rich."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from string import ascii_lowercase, ascii_uppercase

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ortmulti.bench.diagnose.causes import cause_of
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.files import printable, printable_lines

from . import view
from .view import Json, Trace

_NARROW = 78  # columns below which ways stand below each other instead of beside each other

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
    yield Text(f"Where the time goes: {view.model_text(document)}", "bold")
    if partial := view.partial_text(document):
        yield Panel(Text(partial), style="yellow", title="partial")
    yield Text(view.headline(document))
    found = view.traces(document)
    keys = _keys(view.causes_of(found), console)
    longest = max((trace.wall for trace in found), default=0)
    for group in view.by_device_count(found):
        yield Text(f"From the process's start to the first answer on {view.devices_text(group[0].devices)}", "bold")
        yield _bars(group, longest, keys, console)
        for columns in [group] if console.width >= _NARROW else [[trace] for trace in group]:
            yield _table(columns, keys)
    if document.get("serialization"):
        yield Text("What each way serializes on", "bold")
        yield Text("\n").join(map(_serialization, document["serialization"]))
    if prediction := document.get("prediction"):
        best, by_way = view.predicted(prediction)
        seconds = ", ".join(f"{way} {text}" for way, text in by_way)
        yield Text.assemble((f"{best} ", "bold"), printable(prediction["why"]), (f"\nPredicted: {seconds}", "dim"))
    title = "Findings, the one that would help most first"
    yield Text(title if document["findings"] else view.no_findings_text(document), "bold")
    for number, finding in enumerate(document["findings"], 1):
        heading = Text(f"{number}. {printable(finding['title'])}", style="bold")
        yield Group(heading, *(Padding(line, (0, 0, 0, 3)) for line in _finding(finding)))
    if failed := view.failures(document):
        yield Text("\n".join(["Failed:", *(f"  {text}" for text in failed)]), style="red")
    where = view.where_text(document, "; ", "onnxruntime", "ortmulti", "python")
    yield Text(f"{where}; {str(document.get('created', ''))[:10]}", style="dim")


def _finding(finding: Json) -> Iterator[Text]:
    known = finding["cause"] != "none"
    if known:
        what = [cause_of(finding["cause"]).title, view.amount_text(finding)]
        yield Text(printable(": ".join(filter(None, what))), style="dim")
    yield from (Text(printable(line)) for line in finding["evidence"])
    yield Text.assemble(("Change: ", "bold"), printable(finding["change"]))
    if finding.get("command"):
        yield Text(printable_lines(finding["command"]), style="cyan")
    if known:
        gained, gain = view.verified_text(finding.get("verified"))
        yield Text(gain, style="green" if gained else "yellow")


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
        lines.append(line.append(f" {seconds_text(trace.wall)}", style="bold"))
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
    marks = ["" if trace.explained >= view.LEAST_EXPLAINED else "red bold" for trace in group]
    table.add_row("explained", *(Text(f"{one.explained:.1%}", mark) for one, mark in zip(group, marks, strict=True)))
    if any(len(trace.walls) > 1 for trace in group):
        table.add_row("repetitions", *(str(len(trace.walls)) for trace in group))
        spans = [f"{seconds_text(trace.walls[0])}\n{seconds_text(trace.walls[-1])}" for trace in group]
        table.add_row("shortest\nlongest", *spans)
    return table


def _cell(trace: Trace, cause: str) -> Text:
    length = trace.causes.get(cause, 0)
    if not length:
        return Text("-", style="dim")
    return Text(seconds_text(length), style="bold" if length >= trace.wall / 5 else "")


def _serialization(one: Json) -> Text:
    line = Text.assemble((f"{printable(one['way'])} on {one['devices']}: ", "bold"), view.speedup_text(one))
    for name, share, evidence in view.bottlenecks(one):
        line.append(f"\n  {name}{share and f' {share}'}: {evidence}")
    return line if one["on"] else line.append("\n  nothing found that it waits for", style="dim")
