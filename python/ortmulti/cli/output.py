"""Output of the commands: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ortmulti.bench.files import printable_lines

# In a pipe or a log: of bars, and of tables that are split where they are wider.
_FILE_WIDTH = 160
# Of the others there: whole paths, for grep.
_WHOLE = 10_000
# Warnings of ONNX Runtime from one place, and the seconds in which there are no more of them.
_FEW, _FEW_FOR = 3, 10.0


class _Console(Console):
    """A console that shows control characters in names of files and models instead of sending them to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def stdout() -> Console:
    """Return the console for results."""
    return _Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, highlight=False, emoji=False)


def stderr() -> Console:
    """Return the console for progress and errors."""
    return _Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def say(*results: RenderableType) -> None:
    """Print results to stdout: tables, and texts with rich's markup, each on one line."""
    console = stdout()
    if not console.is_terminal:
        console.width = _WHOLE
    for one in results:
        console.print(one, soft_wrap=isinstance(one, str))


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[Any]], title: str | None = None) -> Table:
    """Make a table. Its cells are texts without markup, None for what is unknown; without a title it has no lines."""
    made = Table(*columns, title=title, title_justify="left", box=rich.box.HEAVY_HEAD if title else None)
    made.pad_edge = title is not None
    for row in rows:
        made.add_row(*(one if isinstance(one, Text) else Text("unknown" if one is None else str(one)) for one in row))
    return made


def print_log() -> None:
    """Write the log and warnings to stderr, as Python does by default, with control characters shown."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    logging.basicConfig(handlers=[handler])
    logging.captureWarnings(True)


class _Seldom(logging.Filter):
    """Passes few warnings of one place in ONNX Runtime and of one model: some models cause one with each run."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # since when, and how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        key = (getattr(record, "ort_logger", ""), getattr(record, "ort_location", ""))
        begin, count = self._seen.get(key, (record.created, 0))
        if record.created < begin + _FEW_FOR:
            self._seen[key] = (begin, count + 1)
            return count < _FEW
        self._seen[key] = (record.created, 1)
        if count > _FEW:
            record.msg, record.args = f"{record.getMessage()} ({count - _FEW} like it were left out)", ()
        return True


def print_times_in_log() -> None:
    """Have each line of the log begin with the time and the level, for commands that run on."""
    onnxruntime = logging.getLogger("ortmulti.onnxruntime")
    if not any(isinstance(each, _Seldom) for each in onnxruntime.filters):
        onnxruntime.addFilter(_Seldom())
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _Formatter):
            handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def size_text(size: int) -> str:
    """Return a number of bytes with a unit: "306 MB"."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def is_stdout(json: Path | None) -> bool:
    """Return whether a command's ``--json`` is "-": the result goes to stdout."""
    return json is not None and str(json) == "-"


def print_paths(written: Mapping[str, Path]) -> None:
    """Print to stderr what was written, and where."""
    for what, path in written.items():
        stderr().print(f"{what}: {path}", markup=False)


def print_json(value: Any) -> None:
    """Write `value` to stdout as JSON."""
    print(json.dumps(value, indent=1))


@contextlib.contextmanager
def steps() -> Iterator[Callable[[int, int, str], None]]:
    """Display the number of finished steps and the present step.

    Yields:
        A function to call with the finished steps, their number, and the next step. On a terminal it moves a bar;
        elsewhere it writes a line for each step.
    """
    console = stderr()
    if not console.is_terminal:

        def write(done: int, total: int, text: str) -> None:
            if text:
                console.print(f"[{done + 1}/{total}] {text}", markup=False)

        yield write
        return
    with Progress(
        BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False), console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=1)
        yield lambda done, total, text: progress.update(task, completed=done, total=total, description=text)


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal that a step takes more than a second; write nothing elsewhere."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with console.status(escape(text)):
        yield


@contextlib.contextmanager
def bytes_written(text: str) -> Iterator[Callable[[int, int], None]]:
    """Display the number of written bytes.

    Args:
        text: name of the written file.

    Yields:
        A function to call with the bytes written and to be written.
    """
    console = stderr()
    if not console.is_terminal:
        console.print(text, markup=False)
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
