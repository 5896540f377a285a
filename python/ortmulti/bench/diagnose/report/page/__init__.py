"""A diagnosis as one HTML page that needs nothing else: no network, no script, no font. Loads matplotlib."""

from __future__ import annotations

import base64
import hashlib
import html
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.diagnose.causes import cause_of, ordered
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.diagnose.report import check_document, view
from ortmulti.bench.diagnose.report.plot import page_figures
from ortmulti.bench.diagnose.report.view import Json, Trace
from ortmulti.bench.files import printable, printable_lines
from ortmulti.bench.reports.plots import machine_text

__all__ = ["write_html"]

_LONGEST_SPANS = 15


def write_html(document: Json, path: Path) -> None:
    """Write a diagnosis as a page for a browser. The page may load nothing and run nothing, and says so to the browser.

    Args:
        document: the diagnosis; see `ortmulti.bench.diagnose.report.load_document`.
        path: the file to write.

    Raises:
        LibraryError: matplotlib is not installed (the extra ``ortmulti[plot]``).
        InvalidArgument: a field of the document is missing or not of its type.
        OSError: the file cannot be written.
    """
    check_document(document)
    text = _Page(document).text()
    # Lone surrogates, as in names of files that are not UTF-8, become what HTML shows for them.
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace"))


class _Page:
    def __init__(self, document: Json) -> None:
        self.document = document
        self.traces = view.traces(document)
        self.groups = view.by_device_count(self.traces)
        self.shown = view.default_run(document)
        named = {*view.causes_of(self.traces), *(finding["cause"] for finding in document["findings"])}
        self.causes = ordered(named | {span["cause"] for span in (self.shown["spans"] if self.shown else ())})
        self.light, self.dark = page_figures(document, "light"), page_figures(document, "dark")

    def text(self) -> str:
        document = self.document
        css = _read("page.css") + "".join(map(self._colour, self.causes))
        sections = {
            "findings": ("Findings", self._findings()),
            "trace": ("Where the time goes", self._traces() if self.traces else ""),
            "timeline": ("Timeline", self._timeline(self.shown) if self.shown else ""),
            "serialization": (
                "What each way serializes on",
                "".join(map(_serialization, document.get("serialization") or ())),
            ),
            "scaling": ("Scaling", self._scaling()),
            "machine": ("Machine and releases", _machine(document)),
        }
        shown = {name: section for name, section in sections.items() if section[1]}
        facts = [view.where_text(document, " · ", "onnxruntime", "ortmulti"), str(document.get("created", ""))[:10]]
        partial = view.partial_text(document)
        command = shlex.join(map(str, document.get("command") or []))
        return Template(_read("page.html")).substitute(
            title=_escape(f"Diagnosis of {view.models_text(document)}"),
            css=css,
            css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            heading=_escape(view.models_text(document)),
            facts=_escape(" · ".join(filter(None, facts))),
            partial=f'<p class="partial" role="note">{_escape(partial)}</p>' if partial else "",
            headline=_escape(view.headline(document)),
            tiles=f'<dl class="tiles">{self._tiles()}</dl>' if self.traces else "",
            links="".join(f'<a href="#{name}">{name.capitalize()}</a>' for name in shown),
            main="\n".join(
                f'<section id="{name}"><h2>{head}</h2>{part}</section>' for name, (head, part) in shown.items()
            ),
            footer=f"<code>{_escape(command)}</code>: {len(document['runs'])} runs",
        )

    def _colour(self, cause: str) -> str:
        drawn = cause_of(cause)
        hatched = "background-image:var(--hatch)" if drawn.hatched else ""
        return f"\n.c{self.causes.index(cause)}{{background-color:{drawn.colour};{hatched}}}"

    def _named(self, cause: str) -> str:
        known = cause_of(cause)
        return (
            f'<span class="named" title="{_escape(known.explanation)}"><i class="c{self.causes.index(cause)}"></i>'
            f"{_escape(known.title)}</span>"
        )

    def _figure(self, name: str, about: str) -> str:
        light, dark = (
            f"data:image/svg+xml;base64,{base64.b64encode(figures[name]).decode()}"
            for figures in (self.light, self.dark)
        )
        return (
            '<figure class="scroll" tabindex="0"><picture><source media="screen and (prefers-color-scheme: dark)" '
            f'srcset="{dark}"><img src="{light}" alt="{_escape(about)}"></picture></figure>'
        )

    def _tiles(self) -> str:
        """Return the fastest and the slowest way, the slowest one's largest cause, and how much is explained."""
        fastest = min(self.groups[-1], key=lambda trace: trace.wall)
        slowest = max(self.groups[-1], key=lambda trace: trace.wall)
        least = min(self.traces, key=lambda trace: trace.explained)
        biggest = max(slowest.causes, key=lambda cause: slowest.causes[cause])
        tiles = [
            ("fastest here", seconds_text(fastest.wall), f"{fastest.name} on {view.devices_text(fastest.devices)}"),
            ("slowest here", seconds_text(slowest.wall), f"{slowest.name} on {view.devices_text(slowest.devices)}"),
            ("of that, most for", view.percent(slowest.causes[biggest] / slowest.wall), cause_of(biggest).title),
            ("explained at least", _explained(least), f"of a trace's time ({least.name})"),
        ]
        return "".join(
            f"<div><dt>{name}</dt><dd><strong>{figure}</strong> {_escape(about)}</dd></div>"
            for name, figure, about in tiles
        )

    def _findings(self) -> str:
        """Return the findings, the largest saving first, and what failed."""
        found = "".join(map(self._finding, self.document["findings"]))
        text = f'<ol class="findings">{found}</ol>' if found else f"<p>{view.no_findings_text(self.document)}</p>"
        if failed := view.failures(self.document):
            text += f'<h3>What failed</h3><ul class="bad">{_items(failed)}</ul>'
        return text

    def _finding(self, finding: Json) -> str:
        verified, command, amount = finding.get("verified"), finding.get("command"), view.amount_text(finding)
        gained, gain = view.verified_text(verified)
        text = (
            f"<li><h3>{_escape(finding['title'])}</h3><p>{self._named(finding['cause'])}{amount and f' {amount}'}</p>"
            f"<ul>{_items(finding['evidence'])}</ul><p><b>Change</b> {_escape(finding['change'])}</p>"
        )
        if command:
            text += f'<pre tabindex="0"><code>{html.escape(printable_lines(command))}</code></pre>'
        if verified:
            longest = max(verified["before"], verified["after"]) or 1
            text += "".join(
                f'<p class="bar">{name} <meter value="{verified[name] / longest:.3f}"></meter> '
                f"{seconds_text(verified[name])}</p>"
                for name in ("before", "after")
            )
        return text + f'<p class="{"good" if gained else "unsure"}">{_escape(gain)}</p></li>'

    def _traces(self) -> str:
        """Return each way's time by cause: bars, and tables that are their legend."""
        return (
            "<p>From the start of the process to the first answer of the last device, without the measurement's own "
            "time. Every moment has one cause.</p>"
            + self._figure("traces", "The time of each way as a bar of its causes; the tables below have the figures.")
            + "".join(map(self._trace_table, self.groups))
        )

    def _trace_table(self, group: Sequence[Trace]) -> str:
        devices = group[0].devices
        rows = [[self._named(cause), *(_length(one, cause) for one in group)] for cause in view.causes_of(group)]
        rows.append(["<b>All</b>", *(f"<b>{seconds_text(one.wall)}</b>" for one in group)])
        rows.append(["Explained", *map(_explained, group)])
        if any(len(one.walls) > 1 for one in group):
            rows.append(["Repetitions", *map(_repetitions, group)])
        noun = "device" if len(set(devices)) == len(devices) else "session"
        on = f"{len(devices)} {noun}{'s'[: len(devices) != 1]}: {view.devices_text(devices)}"
        return f"<h3>{_escape(on)}</h3>" + _table(["Cause", *(_escape(one.name) for one in group)], rows)

    def _timeline(self, run: Json) -> str:
        """Return one run's timeline and its longest spans."""
        longest = sorted(run["spans"], key=lambda span: span["start"] - span["end"])[:_LONGEST_SPANS]
        rows = []
        for span in sorted(longest, key=lambda span: span["start"]):
            length, cpu = span["end"] - span["start"], span.get("cpu")
            on_cpu = "-" if cpu is None or not length else view.percent(min(1.0, cpu / length))
            where = [_escape(span["device"]) or "-", str(span["thread"])]
            times = [seconds_text(span["start"]), seconds_text(length), on_cpu]
            rows.append([_escape(span["name"]), self._named(span["cause"]), *where, *times])
        return (
            f"<p>{_escape(view.run_text(run))}. What every thread did, and for which device.</p>"
            + self._figure("timeline", "The spans of each thread over time; the longest ones are in the table below.")
            + f"<details><summary>The {len(rows)} longest spans</summary>"
            + _table(["Name", "Cause", "Device", "Thread", "Start", "Length", "On the CPU"], rows)
            + "</details>"
        )

    def _scaling(self) -> str:
        """Return seconds over devices, and which way is expected to be best."""
        text = self._figure("scaling", "Seconds of each way over the number of devices.") if self.traces else ""
        if prediction := self.document.get("prediction"):
            best, by_way = view.predicted(prediction)
            text += f'<p class="good"><b>{_escape(best)}</b> {_escape(prediction["why"])}</p>'
            text += _table(["Way", "Predicted"], [[_escape(way), seconds] for way, seconds in by_way])
        return text


def _serialization(one: Json) -> str:
    on = "".join(
        f"<li>{_escape(name)}{share and f' <b>{share}</b>'}: {_escape(evidence)}</li>"
        for name, share, evidence in view.bottlenecks(one)
    )
    return (
        f"<h3>{_escape(one['way'])} on {one['devices']}</h3><p>{view.speedup_text(one)}</p>"
        f"<ul>{on or '<li>nothing found that it waits for</li>'}</ul>"
    )


def _machine(document: Json) -> str:
    """Return the machine, the releases and the settings."""
    machine = document["machine"]
    system, memory = machine.get("system") or {}, machine.get("memory") or {}
    facts = {
        "Machine": machine_text(machine),
        "System": ", ".join(str(system[key]) for key in ("distribution", "kernel") if system.get(key)),
        "Memory": f"{memory['total'] / 2**30:.0f} GiB" if memory.get("total") else "",
        **document["releases"],
        **(machine.get("environment") or {}),
        **(document.get("settings") or {}),
    }
    shown = {name: _plain(value) for name, value in facts.items() if value not in (None, "")}
    return f"<dl>{''.join(f'<dt>{_escape(name)}</dt><dd>{_escape(text)}</dd>' for name, text in shown.items())}</dl>"


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _escape(text: str) -> str:
    return html.escape(printable(str(text)))


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{_escape(text)}</li>" for text in texts)


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML cells that scrolls by itself where the page is narrow. A row's first cell names it."""
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _length(one: Trace, cause: str) -> str:
    length = one.causes.get(cause)
    if length is None:
        return "-"
    text = f"{seconds_text(length)} <small>{view.percent(length / one.wall)}</small>"
    return f"<b>{text}</b>" if length >= one.wall / 5 else text


def _explained(one: Trace) -> str:
    text = f"{one.explained:.1%}"
    return text if one.explained >= view.LEAST_EXPLAINED else f'<b class="bad">{text}</b>'


def _repetitions(one: Trace) -> str:
    shortest, longest = seconds_text(one.walls[0]), seconds_text(one.walls[-1])
    return f"<small>{len(one.walls)} runs, {shortest} to {longest}</small>" if len(one.walls) > 1 else "<small></small>"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_plain(item)}" for key, item in value.items())
    return str(value)
