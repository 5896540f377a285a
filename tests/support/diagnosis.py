"""Diagnoses as documents, made without measuring anything: runs for the rules, whole ones for the reports."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.bench.diagnose.findings import conclude
from ortmulti.bench.measure import results

GPUS = ("cuda:0", "cuda:1")
WAYS = ("sequential", "threads", "processes", "native", "shared")


def run(way: str, ready: float, devices: tuple[str, ...] = GPUS, **fields: Any) -> dict[str, Any]:
    """A trace of a start whose creation begins after 0.1 s."""
    causes = {"interpreter": 0.02, "imports": 0.08, **fields.pop("causes", {})}
    return {
        "id": "",
        "experiment": "trace",
        "way": way,
        "devices": list(devices),
        "cache": "warm",
        "settings": {},
        "ready": 0.1 + ready,
        "wall": 0.2 + ready,
        "first_answers": [],
        "spans": [],
        "causes": causes,
        "explained": 1.0,
        **fields,
    }


def experiment(name: str, measured: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {**run("native", 0.0), "experiment": name, "measured": dict(measured), **fields}


def heartbeat(library: str, delay: float, creation: float = 1.0, for_core: float = 0.0) -> dict[str, Any]:
    measured = {"delay": delay, "creation": creation, "for_core": for_core}
    return experiment("gil", measured, library=library)


def document(*runs: dict[str, Any], devices: tuple[str, ...] = GPUS, **fields: Any) -> dict[str, Any]:
    """A document with these runs, from which nothing has been concluded yet."""
    return {
        "runs": list(runs),
        "settings": {
            "devices": list(devices),
            "ways": list(WAYS),
            "session": {},
            "visible_gpus": fields.pop("visible", None),
        },
        "environment": fields.pop("environment", {}),
        "machine": {"environment": fields.pop("variables", {})},
        "releases": {"onnxruntime": fields.pop("release", "1.31.1")},
        "models": [{"name": "model", "path": "model.onnx", "bytes": 10**6, "external_bytes": 10**9, "external": []}],
        "partial": None,
    }


def from_a_cold_disk(*runs: dict[str, Any]) -> dict[str, Any]:
    """A document where one session takes 10 s from the disk instead of 1 s, which `cat` confirms; and these runs."""
    rates = [
        experiment("disk", {"bytes": 10**9, "seconds": seconds}, cache=cache)
        for cache, seconds in (("cold", 9.0), ("warm", 0.1))
    ]
    one = GPUS[:1]
    return document(run("sequential", 1.0, one), run("sequential", 10.0, one, cache="cold"), *runs, *rates)


def found(of: dict[str, Any]) -> list[str]:
    return [finding.id for finding in conclude(of)]


HOSTILE = (
    "</script><b id=broken>bold</b>",
    "<!--<script>alert(1)//",
    "'\"><img src=http://example.invalid/x.png onerror=document.title='broken'>",
    "\x1b[31mred\x1b[0m\x07 \u202egnp.exe",
    "$\\frac{1}{$ {{ }} [bold]markup[/] %s",
    "node_" * 60 + "end",
    "not UTF-8: \udcff",
)
"""Names that would do harm where they are not escaped."""

VERIFIED = {
    "before": 7.6,
    "after": 3.31,
    "speedup": 2.3,
    "interval": [2.1, 2.5],
    "what": "threads against shared on 8 devices, 5 runs each, interleaved",
}

_SESSION = {"read model": 0.012, "optimization level 1": 0.06, "planning": 0.015, "read weights": 0.21,
            "copy weights": 0.12, "unexplained": 0.008}  # fmt: skip
_FIRST_RUN = {"handles": 0.08, "algorithm search": 0.15, "load kernels": 0.09, "run": 0.006}


def make_run(way: str, devices: list[str], slower: float = 1.0) -> dict[str, Any]:
    """A trace of one way whose sessions are created one after another, or side by side, as that way's are."""
    spans: list[dict[str, Any]] = []
    causes: defaultdict[str, float] = defaultdict(float)

    def add(now: float, parts: Mapping[str, float], session: int | None = None) -> float:
        thread = 4000 if session is None or way == "sequential" else 4001 + session
        where = {"thread": thread, "session": session, "device": "" if session is None else devices[session]}
        for cause, seconds in parts.items():
            end = now + slower * seconds
            if end > now:
                spans.append({"cause": cause, "name": cause, "start": now, "end": end, "cpu": (end - now) / 2, **where})
            if session in (None, len(devices) - 1) or way == "sequential":  # the last one's critical path
                causes[cause] += end - now
            now = end
        return now

    on_gpu = devices[0] != "cpu"
    start = {"interpreter": 0.032, "imports": 0.21, "libraries": 0.46, "cuInit": 0.12 * len(devices) * on_gpu}
    begin = created = add(0.0, {**start, "processes": 0.5 * (way == "processes")})
    ready, answers = [], []
    for session in range(len(devices)):
        waits = {"wait for another session": 0.11 * session * on_gpu * (way != "sequential")}
        if way == "threads":
            waits = {"wait for the GIL": (created - begin) / slower}
        after = created if way == "sequential" else begin
        less = 0.1 if way == "shared" and session else 1.0
        parts = {cause: seconds * less ** ("weights" in cause) for cause, seconds in _SESSION.items()}
        ready.append(add(after, {**waits, "context": 0.11 * on_gpu, **parts}, session))
        created = add(ready[-1], _FIRST_RUN, session)
        answers.append(created)
    wall = max(answers)
    used = {cause: seconds for cause, seconds in causes.items() if seconds}
    made = {"causes": used, "spans": spans, "first_answers": answers, "wall": wall, "ready": max(ready)}
    return {**run(way, 0.0, tuple(devices)), **made, "explained": 1 - causes["unexplained"] / wall}


def make_document(
    counts: tuple[int, ...] = (1, 8), repeat: int = 2, gpus: bool = True, **changes: Any
) -> dict[str, Any]:
    """A whole diagnosis: five ways, on each number of devices; `changes` replace fields."""
    runs = []
    for number in range(repeat):
        for count in counts:
            devices = [f"cuda:{place}" for place in range(count)] if gpus else ["cpu"] * count
            runs += [make_run(way, devices, 1 + 0.04 * number) for way in WAYS]
    runs.append(heartbeat("onnxruntime", 0.91))
    settings = {"repeat": repeat, "devices": devices, "ways": list(WAYS), "session": {}}
    facts = {"name": "resnet50", "path": "resnet50.onnx", "bytes": 102_450_000, "external_bytes": 0, "external": []}
    made = results.document(
        "diagnose", partial=None, settings=settings, models=[facts], runs=runs, environment={"governor": "powersave"}
    )
    # No folders, users or options of whoever runs the tests.
    made["command"] = ["ortmulti", "diagnose", "resnet50.onnx", "--html", "report.html"]
    if gpus:
        made["machine"]["driver"] = {"version": "580.65.06", "cuda": "13.0"}
        made["machine"]["gpus"] = [{"name": "NVIDIA H200"} for _ in range(max(counts))]
    conclude(made)
    made["findings"][0]["verified"] = VERIFIED
    return {**made, **changes}


def make_hostile() -> dict[str, Any]:
    """A document whose every name tries to break out of where it is shown."""
    document = make_document((1, 2), repeat=1)
    document["models"][0]["name"] = HOSTILE[0]
    traces = [run for run in document["runs"] if run["experiment"] == "trace"]
    for run, name in zip(traces, HOSTILE * 2, strict=False):
        run["way"], run["id"] = name + run["way"], name + run["id"]
        for place, span in enumerate(run["spans"]):
            span["name"] = HOSTILE[place % len(HOSTILE)]
            span["device"] = HOSTILE[2] if span["device"] else ""
        run["causes"][HOSTILE[0]] = 0.1
        run["spans"][-1]["cause"] = HOSTILE[0]
    texts = ("title", "cause", "change", "command")
    document["findings"] = [
        {
            **document["findings"][0],
            **dict.fromkeys(texts, name),
            "evidence": [name, name],
            "verified": {**VERIFIED, "what": name},
        }
        for name in HOSTILE
    ]
    document["prediction"].update(why=HOSTILE[1], best=HOSTILE[0])
    document["serialization"][0]["on"] = [{"what": HOSTILE[0], "share": 0.5, "evidence": HOSTILE[2]}]
    document["machine"]["cpu"]["model"] = HOSTILE[2]
    document["command"] = ["ortmulti", "diagnose", *HOSTILE]
    return document


def make_empty() -> dict[str, Any]:
    """A diagnosis that ended before anything was measured."""
    changes: dict[str, Any] = {"findings": [], "serialization": [], "prediction": None, "runs": []}
    return make_document((1, 8), repeat=1, partial="interrupted", **changes)


def make_partial() -> dict[str, Any]:
    """A diagnosis that was interrupted after a few runs, of which one failed."""
    error = "DeviceError: cuda:5 vanished: CUDA_ERROR_NO_DEVICE\nwhile the context was created"
    devices = [f"cuda:{place}" for place in range(8)]
    failed = {"id": "", "experiment": "trace", "way": "processes", "devices": devices, "error": error}
    return {**make_empty(), "runs": [*(make_run(way, devices[:1]) for way in WAYS[:3]), failed]}


def at_start(folder: Path, code: str) -> dict[str, str]:
    """Variables with which interpreters run this code at their start; it is saved in the folder."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def save(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "diagnosis.json"
    results.save(document, path)
    return path
