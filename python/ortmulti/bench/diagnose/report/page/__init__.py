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
from ortmulti.bench.diagnose.causes import CAUSES, Cause, cause_of
from ortmulti.bench.diagnose.measured import seconds_text
from ortmulti.bench.diagnose.report import view
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
        OSError: the file cannot be written.
    """
    found, run = view.traces(document), view.default_run(document)
    figures = {name: _figure(name, *schemes) for name, schemes in page_figures(document).items()}
    sections = {
        "findings": ("Findings", _findings(document)),
        "trace": ("Where the time goes", _traces(found, figures["traces"]) if found else ""),
        "timeline": ("Timeline", _timeline(run, figures["timeline"]) if run else ""),
        "serialization": (
            "What each way serializes on",
            "".join(map(_serialized, document.get("serialization") or ())),
        ),
        "scaling": ("Scaling", figures.get("scaling", "") + _predicted(document.get("prediction"))),
        "machine": ("Machine and releases", _machine(document)),
    }
    shown = {name: section for name, section in sections.items() if section[1]}
    css = _read("page.css") + "".join(map(_colour, [*CAUSES.values(), cause_of("")]))
    facts = [view.where_text(document, " · ", "onnxruntime", "ortmulti"), str(document.get("created", ""))[:10]]
    partial = view.partial_text(document)
    command = shlex.join(map(str, document.get("command") or []))
    text = Template(_read("page.html")).substitute(
        title=_escape(f"Diagnosis of {view.model_text(document)}"),
        css=css,
        css_hash=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
        heading=_escape(view.model_text(document)),
        facts=_escape(" · ".join(filter(None, facts))),
        partial=f'<p class="partial" role="note">{_escape(partial)}</p>' if partial else "",
        headline=_escape(view.headline(document)),
        tiles=_tiles(found) if found else "",
        links="".join(f'<a href="#{name}">{name.capitalize()}</a>' for name in shown),
        main="\n".join(f'<section id="{name}"><h2>{head}</h2>{part}</section>' for name, (head, part) in shown.items()),
        footer=f"<code>{_escape(command)}</code>: {len(document['runs'])} runs",
    )
    # Lone surrogates, as in names of files that are not UTF-8, become what HTML shows for them.
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace"))


def _class(cause: Cause) -> str:
    return f"c{list(CAUSES).index(cause.name)}" if cause.name in CAUSES else "other"


def _colour(cause: Cause) -> str:
    hatched = "background-image:var(--hatch)" if cause.hatched else ""
    return f"\n.{_class(cause)}{{background-color:{cause.colour};{hatched}}}"


def _named(name: str) -> str:
    cause = cause_of(name)
    return (
        f'<span class="named" title="{_escape(cause.explanation)}"><i class="{_class(cause)}"></i>'
        f"{_escape(cause.title)}</span>"
    )


_ABOUT = {
    "traces": "The time of each way as a bar of its causes; the tables below have the figures.",
    "timeline": "The spans of each thread over time; the longest ones are in the table below.",
    "scaling": "Seconds of each way over the number of devices.",
}


def _figure(name: str, light: bytes, dark: bytes) -> str:
    """Return a figure that follows the browser's scheme."""
    light_url, dark_url = (f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in (light, dark))
    return (
        '<figure class="scroll" tabindex="0"><picture><source media="screen and (prefers-color-scheme: dark)" '
        f'srcset="{dark_url}"><img src="{light_url}" alt="{_ABOUT[name]}"></picture></figure>'
    )


def _tiles(found: Sequence[Trace]) -> str:
    """Return the fastest and the slowest way, the slowest one's largest cause, and how much is explained."""
    last = view.by_device_count(found)[-1]
    fastest, slowest = min(last, key=lambda trace: trace.wall), max(last, key=lambda trace: trace.wall)
    least = min(found, key=lambda trace: trace.explained)
    cause, length = max(slowest.causes.items(), key=lambda item: item[1])
    tiles = [
        ("fastest here", seconds_text(fastest.wall), f"{fastest.name} on {view.devices_text(fastest.devices)}"),
        ("slowest here", seconds_text(slowest.wall), f"{slowest.name} on {view.devices_text(slowest.devices)}"),
        ("of that, most for", view.percent(length / slowest.wall), cause_of(cause).title),
        ("explained at least", _explained(least), f"of a trace's time ({least.name})"),
    ]
    shown = (
        f"<div><dt>{name}</dt><dd><strong>{figure}</strong> {_escape(about)}</dd></div>"
        for name, figure, about in tiles
    )
    return f'<dl class="tiles">{"".join(shown)}</dl>'


def _findings(document: Json) -> str:
    """Return the findings, the largest saving first, and what failed."""
    found = "".join(map(_finding, document["findings"]))
    text = f'<ol class="findings">{found}</ol>' if found else f"<p>{view.no_findings_text(document)}</p>"
    if failed := view.failures(document):
        text += f'<h3>What failed</h3><ul class="bad">{_items(failed)}</ul>'
    return text


def _finding(finding: Json) -> str:
    verified, command, amount = finding.get("verified"), finding.get("command"), view.amount_text(finding)
    gained, gain = view.verified_text(verified)
    text = (
        f"<li><h3>{_escape(finding['title'])}</h3><p>{_named(finding['cause'])}{amount and f' {amount}'}</p>"
        f"<ul>{_items(finding['evidence'])}</ul><p><b>Change</b> {_escape(finding['change'])}</p>"
    )
    if command:
        text += f'<pre tabindex="0"><code>{html.escape(printable_lines(command))}</code></pre>'
    if verified:
        longest = max(verified["before"], verified["after"]) or 1
        for name in ("before", "after"):
            meter = f'<meter value="{verified[name] / longest:.3f}"></meter>'
            text += f'<p class="bar">{name} {meter} {seconds_text(verified[name])}</p>'
    return text + f'<p class="{"good" if gained else "unsure"}">{_escape(gain)}</p></li>'


def _traces(found: Sequence[Trace], figure: str) -> str:
    """Return each way's time by cause: bars, and tables that are their legend."""
    return (
        "<p>From the start of the process to the first answer of the last device, without the measurement's own "
        f"time. Every moment has one cause.</p>{figure}{''.join(map(_trace_table, view.by_device_count(found)))}"
    )


def _trace_table(group: Sequence[Trace]) -> str:
    devices = group[0].devices
    rows = [[_named(cause), *(_length(one, cause) for one in group)] for cause in view.causes_of(group)]
    rows.append(["<b>All</b>", *(f"<b>{seconds_text(one.wall)}</b>" for one in group)])
    rows.append(["Explained", *map(_explained, group)])
    if any(len(one.walls) > 1 for one in group):
        rows.append(["Repetitions", *map(_repetitions, group)])
    noun = "device" if len(set(devices)) == len(devices) else "session"
    on = f"{len(devices)} {noun}{'s'[: len(devices) != 1]}: {view.devices_text(devices)}"
    return f"<h3>{_escape(on)}</h3>" + _table(["Cause", *(_escape(one.name) for one in group)], rows)


def _timeline(run: Json, figure: str) -> str:
    """Return one run's timeline and its longest spans."""
    longest = sorted(run["spans"], key=lambda span: span["start"] - span["end"])[:_LONGEST_SPANS]
    rows = []
    for span in sorted(longest, key=lambda span: span["start"]):
        length, cpu = span["end"] - span["start"], span.get("cpu")
        on_cpu = "-" if cpu is None or not length else view.percent(min(1.0, cpu / length))
        where = [_escape(span["device"]) or "-", str(span["thread"])]
        times = [seconds_text(span["start"]), seconds_text(length), on_cpu]
        rows.append([_escape(span["name"]), _named(span["cause"]), *where, *times])
    return (
        f"<p>{_escape(view.run_text(run))}. What every thread did, and for which device.</p>{figure}"
        f"<details><summary>The {len(rows)} longest spans</summary>"
        + _table(["Name", "Cause", "Device", "Thread", "Start", "Length", "On the CPU"], rows)
        + "</details>"
    )


def _predicted(prediction: Json | None) -> str:
    """Return which way is expected to be best."""
    if not prediction:
        return ""
    best, by_way = view.predicted(prediction)
    text = f'<p class="good"><b>{_escape(best)}</b> {_escape(prediction["why"])}</p>'
    return text + _table(["Way", "Predicted"], [[_escape(way), seconds] for way, seconds in by_way])


def _serialized(one: Json) -> str:
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
    return f"<small>{len(one.walls)} runs, {shortest} to {longest}</small>" if len(one.walls) > 1 else ""


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_plain(item)}" for key, item in value.items())
    return str(value)
