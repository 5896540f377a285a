"""A diagnosis as one HTML page that needs nothing else: no network, no script, no font. Loads matplotlib."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.diagnose.causes import cause_of, ordered
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.diagnose.report import check_document, view
from ortmulti.bench.diagnose.report.plot import page_figures
from ortmulti.bench.diagnose.report.view import Trace
from ortmulti.bench.files import printable
from ortmulti.bench.reports.plots import machine_text

__all__ = ["write_html"]

Json = Mapping[str, Any]

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
        self.groups = list(view.by_device_count(self.traces).values())
        self.shown = view.default_run(document)
        named = {*view.causes_of(self.traces), *(finding["cause"] for finding in document["findings"])}
        self.causes = ordered(named | {span["cause"] for span in (self.shown["spans"] if self.shown else ())})
        light, dark = page_figures(document, "light"), page_figures(document, "dark")
        self.figures = {name: (light[name], dark[name]) for name in light}

    def text(self) -> str:
        css = _read("page.css") + "".join(map(self._colour, self.causes))
        sections = {
            "findings": ("Findings", self.findings()),
            "trace": ("Where the time goes", self.trace()),
            "timeline": ("Timeline", self.timeline()),
            "serialization": ("What each way serializes on", self.serialization()),
            "scaling": ("Scaling", self.scaling()),
            "machine": ("Machine and releases", self.machine()),
        }
        shown = {name: section for name, section in sections.items() if section[1]}
        return Template(_read("page.html")).substitute(
            title=_escape(f"Diagnosis of {view.models_text(self.document)}"),
            css=css,
            css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            header=self.header(),
            links="".join(f'<a href="#{name}">{name.capitalize()}</a>' for name in shown),
            main="\n".join(
                f'<section id="{name}"><h2>{head}</h2>{part}</section>' for name, (head, part) in shown.items()
            ),
            footer=f"<code>{_escape(view.command_text(self.document))}</code>: {len(self.document['runs'])} runs",
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
        light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in self.figures[name])
        return (
            '<figure class="scroll" tabindex="0"><picture><source media="screen and (prefers-color-scheme: dark)" '
            f'srcset="{dark}"><img src="{light}" alt="{_escape(about)}"></picture></figure>'
        )

    def header(self) -> str:
        """Return the models, the machine, the releases, the answer in a sentence, and its figures."""
        document, releases = self.document, self.document["releases"]
        facts = [machine_text(document["machine"])]
        facts += [f"{name} {releases[name]}" for name in ("onnxruntime", "ortmulti") if releases.get(name)]
        facts.append(str(document.get("created", ""))[:10])
        partial = view.partial_text(document)
        return (
            f"<h1>{_escape(view.models_text(document))}</h1><p>{_escape(' · '.join(filter(None, facts)))}</p>"
            + (f'<p class="partial" role="note">{_escape(partial)}</p>' if partial else "")
            + f'<p class="headline">{_escape(view.headline(document))}</p>{self.tiles()}'
        )

    def tiles(self) -> str:
        """Return the fastest and the slowest way, the slowest one's largest cause, and how much is explained."""
        if not self.traces:
            return ""
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
        return (
            '<dl class="tiles">'
            + "".join(
                f"<div><dt>{_escape(name)}</dt><dd><strong>{figure}</strong> {_escape(about)}</dd></div>"
                for name, figure, about in tiles
            )
            + "</dl>"
        )

    def findings(self) -> str:
        """Return the findings, the largest saving first, and what failed."""
        failed = "".join(f"<li>{_escape(text)}</li>" for text in view.failures(self.document))
        found = "".join(map(self._finding, self.document["findings"]))
        return (
            f'<ol class="findings">{found}</ol>' if found else f"<p>{_escape(view.no_findings_text(self.document))}</p>"
        ) + (f'<h3>What failed</h3><ul class="bad">{failed}</ul>' if failed else "")

    def _finding(self, finding: Json) -> str:
        gained, gain = view.verified_text(finding.get("verified"))
        amount = f" {seconds_text(finding['seconds'])}, {view.percent(finding['share'])}" if finding["seconds"] else ""
        evidence = "".join(f"<li>{_escape(line)}</li>" for line in finding["evidence"])
        command = finding.get("command")
        return (
            f"<li><h3>{_escape(finding['title'])}</h3><p>{self._named(finding['cause'])}{amount}</p><ul>{evidence}</ul>"
            f"<p><b>Change</b> {_escape(finding['change'])}</p>"
            + (f'<pre tabindex="0"><code>{html.escape(view.code_text(command))}</code></pre>' if command else "")
            + (_before_after(finding["verified"]) if finding.get("verified") else "")
            + f'<p class="{"good" if gained else "unsure"}">{_escape(gain[:1].upper() + gain[1:])}.</p></li>'
        )

    def trace(self) -> str:
        """Return each way's time by cause: bars, and tables that are their legend; empty if none was traced."""
        if not self.traces:
            return ""
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
        if any(one.range for one in group):
            rows.append(["Repetitions", *(f"<small>{_escape(one.range)}</small>" for one in group)])
        on = f"{view.count_text(devices)}: {view.devices_text(devices)}"
        return f"<h3>{_escape(on)}</h3>" + _table(["Cause", *(_escape(one.name) for one in group)], rows)

    def timeline(self) -> str:
        """Return one run's timeline and its longest spans; empty if no run has one."""
        if self.shown is None:
            return ""
        longest = sorted(self.shown["spans"], key=lambda span: span["start"] - span["end"])[:_LONGEST_SPANS]
        rows = [self._span(span) for span in sorted(longest, key=lambda span: span["start"])]
        run = _escape(view.run_text(self.shown))
        return (
            f"<p>{run}. What every thread did, and for which device; what is part of something else lies below it.</p>"
            + self._figure("timeline", "The spans of each thread over time; the longest ones are in the table below.")
            + f"<details><summary>The {len(rows)} longest spans</summary>"
            + _table(["Name", "Cause", "Device", "Thread", "Start", "Length", "On the CPU"], rows)
            + "</details>"
        )

    def _span(self, span: Json) -> list[str]:
        length = span["end"] - span["start"]
        cpu = "-" if span.get("cpu") is None or not length else view.percent(min(1.0, span["cpu"] / length))
        return [
            _escape(span["name"]),
            self._named(span["cause"]),
            _escape(span["device"]) or "-",
            str(span["thread"]),
            seconds_text(span["start"]),
            seconds_text(length),
            cpu,
        ]

    def serialization(self) -> str:
        """Return the causes that keep each way from a perfect speedup; empty if that was not measured."""
        return "".join(map(self._serializes, self.document.get("serialization") or ()))

    def _serializes(self, one: Json) -> str:
        on = ""
        for cause in one["on"]:
            share = "" if cause.get("share") is None else f" <b>{view.percent(cause['share'])}</b>"
            on += f"<li>{_escape(view.what_text(cause['what']))}{share}: {_escape(cause['evidence'])}</li>"
        return (
            f"<h3>{_escape(one['way'])} on {one['devices']}</h3><p>{_escape(view.speedup_text(one))}</p>"
            f"<ul>{on or '<li>nothing found that it waits for</li>'}</ul>"
        )

    def scaling(self) -> str:
        """Return seconds over devices, and which way is expected to be best."""
        text = self._figure("scaling", "Seconds of each way over the number of devices.") if self.traces else ""
        if prediction := self.document.get("prediction"):
            by_way = sorted(prediction["seconds"].items(), key=lambda item: item[1])
            best = _escape(f"Best way to create sessions here: {prediction['best']}.")
            text += f'<p class="good"><b>{best}</b> {_escape(prediction["why"])}</p>'
            text += _table(["Way", "Predicted"], [[_escape(way), seconds_text(value)] for way, value in by_way])
        return text

    def machine(self) -> str:
        """Return the machine, the releases and the settings."""
        machine = self.document["machine"]
        system, memory = machine.get("system") or {}, machine.get("memory") or {}
        facts = {
            "Machine": machine_text(machine),
            "System": ", ".join(str(system[key]) for key in ("distribution", "kernel") if system.get(key)),
            "Memory": f"{memory['total'] / 2**30:.0f} GiB" if memory.get("total") else "",
            **self.document["releases"],
            **(machine.get("environment") or {}),
            **(self.document.get("settings") or {}),
        }
        shown = {name: _plain(value) for name, value in facts.items() if value not in (None, "")}
        return (
            f"<dl>{''.join(f'<dt>{_escape(name)}</dt><dd>{_escape(text)}</dd>' for name, text in shown.items())}</dl>"
        )


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text("utf-8")


def _escape(text: str) -> str:
    return html.escape(printable(str(text)))


def _before_after(verified: Json) -> str:
    longest = max(verified["before"], verified["after"]) or 1
    return "".join(
        f'<p class="bar">{name} <meter value="{verified[name] / longest:.3f}"></meter> '
        f"{seconds_text(verified[name])}</p>"
        for name in ("before", "after")
    )


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


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_plain(item)}" for key, item in value.items())
    return str(value)
