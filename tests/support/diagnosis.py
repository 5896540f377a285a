"""Diagnoses as documents: shaped like measured ones, made without measuring anything."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from ortmulti.bench.measure import results

WAYS = ("sequential", "threads", "processes", "native", "shared")
MAIN_THREAD = 4000

HOSTILE = (
    "</script><b id=broken>bold</b>",
    "<!--<script>alert(1)//",
    "'\"><img src=http://example.invalid/x.png onerror=document.title='broken'>",
    "\x1b[31mred\x1b[0m\x07 \u202egnp.exe",
    "$\\frac{1}{$ {{ }} [bold]markup[/] %s",
    "node_" * 60 + "end",
)
"""Names that would do harm where they are not escaped."""

# (cause, name, seconds of one session alone, share on the CPU)
_SESSION = (
    ("read model", "read resnet50.onnx", 0.012, 0.95),
    ("optimization level 1", "GraphTransformer", 0.060, 1.0),
    ("optimization level 2", "GraphTransformer", 0.045, 1.0),
    ("optimization level 3", "GraphTransformer", 0.020, 1.0),
    ("planning", "partition and plan", 0.015, 1.0),
    ("read weights", "read initializers", 0.210, 0.4),
    ("stage weights", "stage into pinned memory", 0.080, 0.9),
    ("copy weights", "copy to the device", 0.120, 0.1),
    ("prepacking", "prepack", 0.030, 1.0),
)
_FIRST_RUN = (
    ("handles", "cudnnCreate, cublasCreate", 0.080, 0.7),
    ("algorithm search", "Conv", 0.150, 0.8),
    ("load kernels", "Gemm, Relu, Add", 0.090, 0.9),
    ("run", "run", 0.006, 0.5),
)
_PIECES = {"optimization level 1": 60, "optimization level 2": 45, "algorithm search": 53, "load kernels": 40}


class _Clock:
    """Spans of one thread, one after another."""

    def __init__(self, spans: list[dict[str, Any]], now: float, thread: int, session: int | None, device: str) -> None:
        self.spans, self.now, self.thread, self.session, self.device = spans, now, thread, session, device

    def add(self, cause: str, name: str, seconds: float, on_cpu: float | None = 1.0, pieces: int = 0) -> None:
        cpu = None if on_cpu is None else seconds * on_cpu
        self._append(cause, name, self.now, self.now + seconds, cpu)
        for piece in range(pieces):
            begin = self.now + seconds * piece / pieces
            length = seconds / pieces * (0.55 + 0.4 * ((piece * 7) % 10) / 10)
            self._append(cause, f"{name} /layer{piece // 8}/node_{piece}", begin, begin + length, None)
        self.now += seconds

    def _append(self, cause: str, name: str, start: float, end: float, cpu: float | None) -> None:
        fields = {"thread": self.thread, "session": self.session, "device": self.device, "cpu": cpu}
        self.spans.append({"cause": cause, "name": name, "start": round(start, 6), "end": round(end, 6), **fields})


def make_run(way: str, devices: list[str], number: int = 0, pieces: bool = True, slower: float = 1.0) -> dict[str, Any]:
    """A run of one way whose sessions run after one another, or side by side, as that way's do."""
    spans: list[dict[str, Any]] = []
    main = _Clock(spans, 0.0, MAIN_THREAD, None, "")
    main.add("interpreter", "python", 0.032)
    main.add("imports", "import onnxruntime" if way != "shared" else "import ortmulti", 0.21 * slower)
    main.add("libraries", "open CUDA libraries", 0.46, 0.6)
    gpus = [device for device in devices if device != "cpu"]
    if gpus:
        main.add("cuInit", "cuInit", 0.12 * len(gpus), 0.5)
    if way == "processes":
        main.add("processes", "start workers", 0.5)
    begin = main.now
    ends, answers = [], []
    for session, device in enumerate(devices):
        thread = MAIN_THREAD if way == "sequential" else MAIN_THREAD + 1 + session
        serial = way in ("sequential", "threads")
        clock = _Clock(spans, ends[-1] if serial and ends else begin, thread, session, device)
        if way == "threads" and ends:
            waiting = clock.now - begin
            clock.now = begin
            clock.add("wait for the GIL", "InferenceSession", waiting, 0.0)
        if gpus:
            waits = 0.11 * session if not serial else 0.0
            if waits:
                clock.add("wait for another session", "context of another device", waits, 0.0)
            clock.add("context", "context", 0.11, 0.6)
        for cause, name, seconds, cpu in _SESSION:
            if way == "shared" and cause in ("read weights", "stage weights", "copy weights") and session:
                seconds = seconds / 10
            clock.add(cause, name, seconds * slower, cpu, _PIECES.get(cause, 0) if pieces else 0)
        clock.add("unexplained", "unexplained", 0.008, None)
        ends.append(clock.now)
        for cause, name, seconds, cpu in _FIRST_RUN:
            clock.add(cause, name, seconds, cpu, _PIECES.get(cause, 0) if pieces else 0)
        if serial:
            ends[-1] = clock.now
        answers.append(clock.now)
    wall = max(answers)
    causes: defaultdict[str, float] = defaultdict(float)
    last = max(range(len(devices)), key=lambda session: answers[session])
    for span in spans:
        nested = "/node_" in span["name"]
        if not nested and (span["session"] in (None, last) or way == "sequential"):
            causes[span["cause"]] += span["end"] - span["start"]
    return {
        "id": f"trace-{way}-{len(devices)}-{number}",
        "experiment": "trace",
        "way": way,
        "devices": devices,
        "cache": "warm",
        "settings": {},
        "wall": wall,
        "ready": max(ends),
        "first_answers": answers,
        "spans": spans,
        "causes": dict(causes),
        "explained": 1 - causes["unexplained"] / wall,
    }


def make_finding(number: int = 0, **changes: Any) -> dict[str, Any]:
    finding: dict[str, Any] = {
        "id": f"finding-{number}",
        "title": "Threads are 1.04x as fast as sequential: onnxruntime 1.30.0 holds the GIL for 91% of creation.",
        "cause": "wait for the GIL",
        "seconds": 5.4,
        "share": 0.71,
        "evidence": [
            "A thread that sleeps for a millisecond, again and again, came up to 744 ms late: 91% of a creation.",
            "Threads on 8 devices: 7.6 s; sequential: 7.9 s.",
        ],
        "change": "Create the sessions with strategy shared, which reads the weights once and does not need the GIL.",
        "command": 'pool = ortmulti.load("resnet50.onnx", devices="all", strategy="shared")',
        "verified": {
            "before": 7.6,
            "after": 3.31,
            "speedup": 2.3,
            "interval": [2.1, 2.5],
            "what": "threads against shared on 8 devices, 5 runs each, interleaved",
        },
    }
    return {**finding, **changes}


def make_document(
    counts: tuple[int, ...] = (1, 8), repeat: int = 2, pieces: bool = True, gpus: bool = True, **changes: Any
) -> dict[str, Any]:
    """A whole diagnosis: five ways, on each number of devices; `changes` replace fields."""
    runs = []
    for number in range(repeat):
        for count in counts:
            devices = [f"cuda:{place}" for place in range(count)] if gpus else ["cpu"] * count
            runs += [make_run(way, devices, number, pieces, 1 + 0.04 * number) for way in WAYS]
    most = {run["way"]: run["wall"] for run in runs if len(run["devices"]) == max(counts)}
    shared = {"what": "driver", "share": 0.42, "evidence": "8 contexts at once: 0.9 s; one by one: 0.88 s"}
    memory = {"what": "memory", "share": 0.22, "evidence": "8 copies at once reach 19 GB/s; one alone 14 GB/s"}
    on = {
        "threads": [{"what": "gil", "share": 0.91, "evidence": "the heartbeat stood still for 744 of 812 ms"}],
        "processes": [shared],
        "native": [memory, {"what": "onnxruntime", "share": 0.04, "evidence": "native at 8 against 1: 1.04x as long"}],
        "shared": [shared],
    }
    ideal = max(counts)
    serialization = [
        {"way": way, "devices": ideal, "speedup": most["sequential"] / most[way], "ideal": ideal, "on": on.get(way, [])}
        for way in WAYS
    ]
    best = min(most, key=lambda way: most[way])
    content = {
        "partial": None,
        "settings": {"repeat": repeat, "devices": devices},
        "models": [{"name": "resnet50", "path": "resnet50.onnx", "bytes": 102_450_000, "external_bytes": 0}],
        "runs": runs,
        "serialization": serialization,
        "prediction": {
            "best": best,
            "seconds": most,
            "why": "The weights are read once, and the contexts are made while they are read.",
        },
        "findings": [
            make_finding(0),
            make_finding(
                1,
                title="The algorithm search takes 150 ms of the first run on every device.",
                cause="algorithm search",
                verified={"before": 3.31, "after": 3.27, "speedup": 1.01, "interval": [0.98, 1.04], "what": "5 runs"},
            ),
            make_finding(
                2,
                title="Graph optimization takes 125 ms in each session.",
                cause="optimization level 1",
                verified=None,
            ),
        ],
    }
    document = results.document("diagnose", **{**content, **changes})
    # No folders, users or options of whoever runs the tests.
    document["command"] = ["ortmulti", "diagnose", "resnet50.onnx", "--html", "report.html"]
    if gpus:
        document["machine"]["driver"] = {"version": "580.65.06", "cuda": "13.0"}
        document["machine"]["gpus"] = [{"name": "NVIDIA H200"} for _ in range(max(counts))]
    return document


def make_hostile() -> dict[str, Any]:
    """A document whose every name tries to break out of where it is shown."""
    document = make_document((1, 2), repeat=1, pieces=False)
    document["models"][0]["name"] = HOSTILE[0]
    for run, name in zip(document["runs"], HOSTILE * 2, strict=False):
        run["way"], run["id"] = name + run["way"], name + run["id"]
        for place, span in enumerate(run["spans"]):
            span["name"] = HOSTILE[place % len(HOSTILE)]
            span["device"] = HOSTILE[2] if span["device"] else ""
        run["causes"][HOSTILE[0]] = 0.1
        run["spans"][-1]["cause"] = HOSTILE[0]
    document["findings"] = [
        make_finding(
            number,
            title=name,
            cause=name,
            evidence=[name, name],
            change=name,
            command=name,
            verified={"before": 2.0, "after": 1.0, "speedup": 2.0, "interval": [1.9, 2.1], "what": name},
        )
        for number, name in enumerate(HOSTILE)
    ]
    document["prediction"]["why"] = HOSTILE[1]
    document["prediction"]["best"] = HOSTILE[0]
    document["serialization"][0]["on"] = [{"what": HOSTILE[0], "share": 0.5, "evidence": HOSTILE[2]}]
    document["machine"]["cpu"]["model"] = HOSTILE[2]
    document["command"] = ["ortmulti", "diagnose", *HOSTILE]
    return document


def make_empty() -> dict[str, Any]:
    """A diagnosis that ended before anything was measured."""
    document = make_document((1, 8), repeat=1, pieces=False)
    document.update(partial="interrupted", findings=[], serialization=[], prediction=None, runs=[])
    return document


def make_partial() -> dict[str, Any]:
    """A diagnosis that was interrupted after a few runs, of which one failed."""
    eight = [f"cuda:{place}" for place in range(8)]
    failed = make_run("processes", eight, pieces=False)
    failed["error"] = "DeviceError: cuda:5 vanished: CUDA_ERROR_NO_DEVICE\nwhile the context was created"
    for field in ("wall", "ready", "spans", "causes", "explained", "first_answers"):
        del failed[field]
    return {**make_empty(), "runs": [*(make_run(way, eight[:1], pieces=False) for way in WAYS[:3]), failed]}


def save(document: dict[str, Any], folder: Path) -> Path:
    path = folder / "diagnosis.json"
    results.save(document, path)
    return path
