"""A diagnosis as one HTML page that needs nothing else: no network, no fonts or scripts of others."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.create.plots import machine_text
from ortmulti.bench.diagnose.causes import CAUSES, explanation, ordered, style, title
from ortmulti.bench.diagnose.report import check_document, view
from ortmulti.bench.diagnose.report.html.drawings import escape, meter, pattern, scaling_plot, stacked_bar, swatch
from ortmulti.bench.diagnose.report.view import Trace

__all__ = ["write_html"]

Json = Mapping[str, Any]

_LONGEST_SPANS = 15


def header(document: Json) -> str:
    """Return the models, the machine, the releases, and the answer in a sentence."""
    releases = document["releases"]
    facts = [machine_text(document["machine"])]
    facts += [f"{name} {releases[name]}" for name in ("onnxruntime", "ortmulti") if releases.get(name)]
    facts.append(str(document.get("created", ""))[:10])
    partial = view.partial_text(document)
    return "\n".join(
        [
            pattern(),
            '<p class="eyebrow">ortmulti diagnose</p>',
            f"<h1>{escape(view.models_text(document))}</h1>",
            f'<p class="facts">{"".join(f"<span>{escape(fact)}</span>" for fact in facts if fact)}</p>',
            f'<p class="partial" role="note">{escape(partial)}</p>' if partial else "",
            f'<p class="headline">{escape(view.headline(document))}</p>',
            _tiles(document),
        ]
    )


def _tiles(document: Json) -> str:
    found = view.traces(document)
    if not found:
        return ""
    last = list(view.by_device_count(found).values())[-1]
    fastest = min(last, key=lambda trace: trace.wall)
    slowest = max(last, key=lambda trace: trace.wall)
    least = min(found, key=lambda trace: trace.explained)
    biggest = max(slowest.run["causes"].items(), key=lambda item: item[1])
    tiles = [
        ("fastest here", view.seconds(fastest.wall), f"{fastest.name} on {view.devices_text(fastest.devices)}", ""),
        ("slowest here", view.seconds(slowest.wall), f"{slowest.name} on {view.devices_text(slowest.devices)}", ""),
        (
            "of that, most for",
            view.percent(biggest[1] / slowest.wall),
            title(biggest[0]),
            "",
        ),
        (
            "explained at least",
            f"{least.explained:.1%}",
            f"of every trace's time ({least.name} on {len(least.devices)})",
            "" if least.explained >= view.LEAST_EXPLAINED else " low",
        ),
    ]
    return (
        '<dl class="tiles">'
        + "".join(
            f'<div class="tile{kind}"><dt>{escape(name)}</dt><dd><strong>{escape(figure)}</strong>'
            f"<span>{escape(about)}</span></dd></div>"
            for name, figure, about, kind in tiles
        )
        + "</dl>"
    )


def findings(document: Json) -> str:
    """Return the findings, the largest saving first."""
    parts = ["<h2>Findings</h2>"]
    if not document["findings"]:
        parts.append(f'<p class="empty">{escape(view.no_findings_text(document))}</p>')
    else:
        parts.append('<p class="lead">The one that would help most is first.</p><ol class="findings">')
        parts += [_finding(finding) for finding in document["findings"]]
        parts.append("</ol>")
    if failed := view.failures(document):
        parts.append('<h3>What failed</h3><ul class="failed">')
        parts += [f"<li>{escape(text)}</li>" for text in failed]
        parts.append("</ul>")
    return "\n".join(parts)


def _finding(finding: Json) -> str:
    gained, gain = view.verified_text(finding.get("verified"))
    cause = finding["cause"]
    share = view.percent(finding["share"])
    amount = f"<span>{view.seconds(finding['seconds'])}</span><span>{share}</span>" if finding["seconds"] else ""
    evidence = "".join(f"<li>{escape(line)}</li>" for line in finding["evidence"])
    command = finding.get("command")
    return (
        f'<li class="finding"><h3>{escape(finding["title"])}</h3>'
        f'<p class="cause">{_named(cause, always=False)}'
        f"{amount}</p>{meter(finding['share'], f'share: {share}') if amount else ''}"
        f'<ul class="evidence">{evidence}</ul>'
        f'<div class="change"><p><b>Change</b> {escape(finding["change"])}</p>'
        + (f'<pre tabindex="0"><code>{_code(command)}</code></pre>' if command else "")
        + "</div>"
        + (_before_after(finding["verified"]) if finding.get("verified") else "")
        + f'<p class="{"verified" if gained else "unverified"}">{escape(gain[:1].upper() + gain[1:])}.</p></li>'
    )


def _code(command: str) -> str:
    return "\n".join(map(escape, view.code_text(command).splitlines()))


def _before_after(verified: Json) -> str:
    longest = max(verified["before"], verified["after"]) or 1
    rows = "".join(
        f"<dt>{name}</dt><dd>{meter(verified[name] / longest, f'{name}: {view.seconds(verified[name])}')}"
        f"<span>{view.seconds(verified[name])}</span></dd>"
        for name in ("before", "after")
    )
    return f'<dl class="compared">{rows}</dl>'


def trace(document: Json) -> str:
    """Return each way's time by cause: bars, their legend, tables."""
    found = view.traces(document)
    parts = ["<h2>Where the time goes</h2>"]
    if not found:
        return parts[0] + '<p class="empty">No trace was measured.</p>'
    parts.append(
        '<p class="lead">From the start of the process to the first answer of the last device. Every moment has one '
        "cause; bars are to one scale.</p>"
    )
    longest = max(one.wall for one in found)
    groups = view.by_device_count(found)
    last = list(groups.values())[-1]
    for group in groups.values():
        parts.append(f'<h3>{escape(_on(group))}</h3><div class="bars">')
        parts += [_bar(one, longest, document) for one in group]
        parts.append("</div>")
    parts.append('<ul class="legend">')
    parts += [
        f'<li title="{escape(explanation(cause))}">{swatch(cause)}{escape(title(cause))}</li>'
        for cause in view.causes_of(found)
    ]
    parts.append("</ul>")
    for group in groups.values():
        opened = " open" if group is last else ""
        parts.append(f"<details{opened}><summary>The trace as a table, {escape(_on(group))}</summary>")
        parts.append(_trace_table(group))
        parts.append("</details>")
    return "\n".join(parts)


def _on(group: Sequence[Trace]) -> str:
    devices = group[0].devices
    return f"{view.count_text(devices)}: {view.devices_text(devices)}"


def _bar(one: Trace, longest: float, document: Json) -> str:
    shown = f' data-run="{view.number_of(one.run, document)}"' if one.run.get("spans") else ""
    spread = f' <span class="range">{escape(one.range)}</span>' if one.range else ""
    return (
        f'<div class="row"{shown}><span class="way">{escape(one.name)}</span>'
        f'<span class="wall"><b>{view.seconds(one.wall)}</b>{spread}</span>{stacked_bar(one, longest)}</div>'
    )


def _trace_table(group: Sequence[Trace]) -> str:
    head = "".join(f'<th scope="col">{escape(one.name)}</th>' for one in group)
    rows = []
    for cause in view.causes_of(group):
        cells = "".join(_length(one, cause) for one in group)
        about = escape(explanation(cause))
        rows.append(f'<tr><th scope="row" title="{about}">{_named(cause)}</th>{cells}</tr>')
    walls = "".join(f"<td><b>{view.seconds(one.wall)}</b></td>" for one in group)
    explained = "".join(
        f"<td{'' if one.explained >= view.LEAST_EXPLAINED else ' class=low'}>{one.explained:.1%}</td>" for one in group
    )
    foot = f'<tr><th scope="row">All</th>{walls}</tr><tr><th scope="row">Explained</th>{explained}</tr>'
    return table(f'<th scope="col">Cause</th>{head}', rows, foot, "Seconds by cause and way")


def _named(cause: str, always: bool = True) -> str:
    """Return a cause's name with its colour. Without `always`, only causes of the traces have a colour."""
    if not always and cause not in CAUSES:
        return f"<span>{escape(title(cause))}</span>"
    return f'<span class="named">{swatch(cause)}{escape(title(cause))}</span>'


def _length(one: Trace, cause: str) -> str:
    length = one.run["causes"].get(cause, 0)
    if length <= 0:
        return '<td class="none">-</td>'
    share = length / one.wall
    kind = ' class="most"' if share >= 0.2 else ""
    return f"<td{kind}>{view.seconds(length)} <small>{view.percent(share)}</small></td>"


def table(head: str, rows: Iterable[str], foot: str, label: str) -> str:
    """Return a table that scrolls by itself where the page is narrow."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody>{f'<tfoot>{foot}</tfoot>' if foot else ''}</table></div>"
    )


def timeline(shown: Json | None) -> str:
    """Return the place for the script's drawing, and the longest spans of one run as a table."""
    if shown is None:
        return '<h2>Timeline</h2><p class="empty">No run has a timeline.</p>'
    spans = sorted(shown["spans"], key=lambda span: span["start"] - span["end"])[:_LONGEST_SPANS]
    rows = [_span_row(span) for span in sorted(spans, key=lambda span: span["start"])]
    names = ("Name", "Cause", "Device", "Thread", "Start", "Length", "On the CPU")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        "<h2>Timeline</h2>"
        '<p class="lead">What every thread did, and for which device; what is part of something else lies below it.</p>'
        '<noscript><p class="empty">The drawing needs JavaScript; the longest spans are below.</p></noscript>'
        '<div id="drawn" hidden></div>'
        f"<details><summary>The {len(rows)} longest spans of {escape(view.run_text(shown))}</summary>"
        f"{table(head, rows, '', 'Longest spans')}</details>"
    )


def _span_row(span: Json) -> str:
    length = span["end"] - span["start"]
    cpu = "-" if span.get("cpu") is None or not length else view.percent(min(1.0, span["cpu"] / length))
    return (
        f'<tr><th scope="row">{escape(span["name"])}</th><td class="text">{_named(span["cause"])}</td>'
        f'<td class="text">{escape(span["device"]) or "-"}</td>'
        f"<td>{span['thread']}</td><td>{view.seconds(span['start'])}</td><td>{view.seconds(length)}</td><td>{cpu}</td></tr>"
    )


def serialization(document: Json) -> str:
    """Return the causes that keep each way from a perfect speedup."""
    parts = ["<h2>What each way serializes on</h2>"]
    if not document.get("serialization"):
        return parts[0] + '<p class="empty">It was not measured.</p>'
    parts.append('<div class="cards">')
    for one in document["serialization"]:
        parts.append(f'<article class="card"><h3>{escape(one["way"])} <small>on {one["devices"]}</small></h3>')
        parts.append(f'<p class="facts">{escape(view.speedup_text(one))}</p>')
        if one.get("speedup") is not None and one.get("ideal"):
            parts.append(meter(one["speedup"] / one["ideal"], view.speedup_text(one)))
        parts.append('<ul class="on">')
        for cause in one["on"]:
            share = "" if cause.get("share") is None else f"<b>{view.percent(cause['share'])}</b> "
            parts.append(f"<li>{share}{escape(view.what_text(cause['what']))}: {escape(cause['evidence'])}</li>")
        parts.append("</ul>" if one["on"] else "<li>nothing found that it waits for</li></ul>")
        parts.append("</article>")
    parts.append("</div>")
    return "\n".join(parts)


def scaling(document: Json) -> str:
    """Return seconds over devices, and which way is expected to be best."""
    found = view.traces(document)
    parts = ["<h2>Scaling</h2>"]
    if not found:
        return parts[0] + '<p class="empty">No trace was measured.</p>'
    plot = scaling_plot([one for one in found if one.cache == "warm"] or found)
    parts.append(
        f'<div class="beside"><figure>{plot}<figcaption>Seconds from the start of the process to the last answer. '
        "Dashed: as long as the fastest way takes on the fewest devices.</figcaption></figure><div>"
    )
    if prediction := document.get("prediction"):
        best = escape(f"Best way to create sessions here: {prediction['best']}.")
        parts.append(f'<p class="best"><b>{best}</b> {escape(prediction["why"])}</p>')
        rows = [
            f'<tr><th scope="row">{escape(way)}</th><td>{view.seconds(value)}</td></tr>'
            for way, value in sorted(prediction["seconds"].items(), key=lambda item: item[1])
        ]
        parts.append(table('<th scope="col">Way</th><th scope="col">Predicted</th>', rows, "", "Predicted seconds"))
    parts.append("</div></div>")
    return "\n".join(parts)


def machine(document: Json) -> str:
    """Return the machine, the releases and the settings."""
    facts = [("Machine", machine_text(document["machine"]))]
    system, memory = document["machine"].get("system") or {}, document["machine"].get("memory") or {}
    facts.append(("System", ", ".join(str(system[key]) for key in ("distribution", "kernel") if system.get(key))))
    if memory.get("total"):
        facts.append(("Memory", f"{memory['total'] / 2**30:.0f} GiB"))
    facts += [(name, str(value)) for name, value in document["releases"].items() if value]
    facts += [(name, str(value)) for name, value in (document["machine"].get("environment") or {}).items()]
    facts += [(name, _plain(value)) for name, value in (document.get("settings") or {}).items() if value is not None]
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts if value)
    return f'<h2>Machine and releases</h2><dl class="machine">{rows}</dl>'


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={_plain(item)}" for key, item in value.items())
    return str(value)


def footer(document: Json) -> str:
    """Return how the document was made."""
    command = view.command_text(document)
    made = f"<p>Made by <code>{escape(command)}</code></p>" if command else ""
    return f"{made}<p>{len(document['runs'])} runs; this page holds the whole document in its element #document.</p>"


_FOLDER = Path(__file__).parent


def write_html(document: Mapping[str, Any], path: Path) -> None:
    """Write a diagnosis as a page for a browser.

    Findings, traces, tables and the scaling plot need no JavaScript; the timeline does. The document is in the page, as
    JSON in the element ``#document``. The page allows its own script and style alone.

    Args:
        document: the diagnosis; see `ortmulti.bench.diagnose.report.load_document`.
        path: the file to write.

    Raises:
        InvalidArgument: a field of the document is missing or not of its type.
        OSError: the file cannot be written.
    """
    check_document(document)
    text = _page(document)
    # Lone surrogates, as in names of files that are not UTF-8, become what HTML shows for them.
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8", errors="xmlcharrefreplace"))


def _page(document: Mapping[str, Any]) -> str:
    css = _read("page.css")
    script = "\n".join(_read(name) for name in ("layout.js", "drawing.js", "timeline.js", "start.js"))
    shown = view.default_run(document)
    return Template(_read("page.html")).substitute(
        title=html.escape(f"Diagnosis of {view.models_text(document)}"),
        css=css,
        css_hash=_hash(css),
        script=script,
        script_hash=_hash(script),
        document=_json(document),
        causes=_json(_causes(document)),
        shown=_json(view.number_of(shown, document) if shown else None),
        header=header(document),
        findings=findings(document),
        trace=trace(document),
        timeline=timeline(shown),
        serialization=serialization(document),
        scaling=scaling(document),
        machine=machine(document),
        footer=footer(document),
    )


def _causes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the data of each cause for the script, in order."""
    names = {span["cause"] for run in document["runs"] for span in run.get("spans") or ()}
    names.update(cause for run in document["runs"] for cause in run.get("causes") or ())
    return [
        {
            "name": name,
            "title": title(name),
            "explanation": explanation(name),
            "colour": style(name).colour,
            "ink": style(name).ink,
            "hatched": style(name).hatched,
        }
        for name in ordered(names)
    ]


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _json(value: Any) -> str:
    """Return Return JSON that cannot end its element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
