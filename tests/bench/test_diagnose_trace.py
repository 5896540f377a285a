"""Every millisecond of a process has a cause, and a delay that was planted is found under the right one."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortmulti.bench import models
from ortmulti.bench.diagnose.causes import CAUSES
from ortmulti.bench.diagnose.report.view import LEAST_EXPLAINED
from ortmulti.bench.diagnose.trace import trace, waits
from ortmulti.bench.diagnose.trace.assemble import attribute, flatten
from ortmulti.bench.diagnose.trace.phases import (
    Mark,
    Node,
    Span,
    core_spans,
    phases,
    read_log,
    read_profile,
    split_first_run,
)
from ortmulti.bench.diagnose.trace.waits import Sample, Samples, sampled
from ortmulti.bench.strategies import SessionSettings, names
from ortmulti.errors import InvalidArgument, NoSuchFile
from tests.support import custom_ops, fake_driver
from tests.support.compiling import compile_library
from tests.support.diagnosis import at_start

ONE_THREAD = SessionSettings(intra_op_num_threads=1)
DELAY = 0.8
"""Seconds that a planted delay lasts at least; a loaded machine makes any delay longer."""
SAMPLED = DELAY / 2
"""What sampling has to find of it: a loaded machine also samples late."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights in a file of their own."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=16)


@pytest.fixture(scope="module")
def slow_reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    library = compile_library("slow_reader.c", tmp_path_factory.mktemp("reader") / "libslow_reader.so")
    return {"LD_PRELOAD": str(library), "SLOW_READER_MS": str(int(DELAY * 1000))}


@pytest.fixture(scope="module")
def slow_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of cuInit and contexts with a delay each."""
    driver = fake_driver.build(tmp_path_factory.mktemp("driver"))
    return {**driver.environment, "INIT_MS": str(int(DELAY * 1000)), "CONTEXT_MS": "500"}


def _check(run: dict[str, Any]) -> None:
    """What holds of every run that was watched."""
    assert sum(run["causes"].values()) == pytest.approx(run["wall"])
    assert set(run["causes"]) <= set(CAUSES)
    for span in run["spans"]:
        assert span["cause"] in CAUSES
        assert 0 <= span["start"] < span["end"] <= run["wall"] + 60
        assert span["cpu"] is None or span["cpu"] >= 0
    by_thread: dict[int, float] = {}
    for span in run["spans"]:
        assert span["start"] >= by_thread.get(span["thread"], 0) - 1e-9  # one cause at a time
        by_thread[span["thread"]] = span["end"]


@pytest.mark.parametrize("way", names())
def test_every_way_is_traced(model: Path, way: str) -> None:
    for _ in range(3):  # a busy machine leaves holes in some runs, and a step that nobody watches in all
        run = trace(model, way, ["cpu", "cpu"], settings=ONE_THREAD)
        assert "error" not in run, run
        _check(run)
        if run["explained"] >= LEAST_EXPLAINED:
            break
    assert run["explained"] == pytest.approx(1 - run["causes"].get("unexplained", 0) / run["wall"])
    assert run["explained"] >= LEAST_EXPLAINED
    assert len(run["first_answers"]) == 2
    assert 0 < run["ready"] < max(run["first_answers"]) <= run["wall"]
    assert {span["session"] for span in run["spans"]} >= set(range(1 if way == "shared" else 2))
    assert ("processes" in run["causes"]) == (way == "processes")


def test_a_plain_run_is_not_watched(model: Path) -> None:
    run = trace(model, "sequential", ["cpu"], settings=ONE_THREAD, instrumented=False)
    assert "error" not in run
    assert 0 < run["ready"] < run["wall"]
    assert {span["session"] for span in run["spans"]} == {None}
    assert run["onnxruntime"] is None  # nobody looked
    assert run["first_answers"] == []


@pytest.mark.parametrize("way", ["sequential", "shared"])
@pytest.mark.parametrize(("ending", "cause"), [(".onnx", "read model"), (".data", "read weights")])
def test_a_slow_reader_and_a_slow_start_of_the_interpreter(
    model: Path, slow_reader: dict[str, str], way: str, ending: str, cause: str, tmp_path: Path
) -> None:
    slow = at_start(tmp_path, f"import time\ntime.sleep({DELAY})\n")
    environment = {**slow, **slow_reader, "SLOW_READER_FILE": ending}
    run = trace(model, way, ["cpu"], settings=ONE_THREAD, environment=environment)
    assert run["causes"]["interpreter"] >= DELAY
    assert run["causes"][cause] >= SAMPLED


def test_what_came_before_a_failure_is_kept(model: Path, slow_driver: dict[str, str]) -> None:
    """Without a CUDA provider, but with a driver: the failure comes after the context."""
    run = trace(model, "sequential", ["cpu", "cuda:2"], settings=ONE_THREAD, environment=slow_driver)
    if "error" not in run or "could not use the CUDA provider" not in run["error"]:
        pytest.skip("onnxruntime-gpu reacts differently to a driver that is none")
    _check(run)
    assert run["error"].startswith("cuda:2: ")
    assert "ready" not in run
    assert run["first_answers"] == []
    assert run["causes"]["cuInit"] >= DELAY
    [context] = [span for span in run["spans"] if span["cause"] == "context"]
    assert (context["device"], context["session"]) == ("cuda:2", 1)


@pytest.fixture(scope="module")
def sleeping_operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sleeps when it is created and when it first runs."""
    milliseconds = int(DELAY * 1000)
    folder = tmp_path_factory.mktemp("operator")
    return custom_ops.build_library(folder, CREATION_MS=milliseconds, FIRST_RUN_MS=milliseconds)


@pytest.mark.parametrize("way", ["sequential", "native"])
def test_a_custom_operator_that_sleeps(way: str, sleeping_operator: Path, tmp_path: Path) -> None:
    path = tmp_path / "scaled.onnx"
    path.write_bytes(custom_ops.scaled())
    settings = SessionSettings(intra_op_num_threads=1, custom_op_libraries=[str(sleeping_operator)])
    np.savez(tmp_path / "inputs.npz", x=np.ones(3, np.float32))
    feeds: Any = {"x": np.ones(3, np.float32)} if way == "native" else tmp_path / "inputs.npz"
    run = trace(path, way, ["cpu"], settings=settings, feeds=feeds)
    _check(run)
    for cause in ("wait", "first use"):
        assert run["causes"][cause] >= SAMPLED
        longest = max((span for span in run["spans"] if span["cause"] == cause), key=lambda s: s["end"] - s["start"])
        assert longest["cpu"] < SAMPLED  # it slept
        assert "make kernels" in longest["name"] or cause != "wait"


DYING = """
import os, sys, threading, time
def die():
    while "onnxruntime" not in sys.modules:
        time.sleep(0.01)
    os.abort()
threading.Thread(target=die, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("way", "error", "cause"),
    [("sequential", "signal 6", "imports"), ("processes", "took longer than 6 seconds and was ended", "read model")],
)
def test_a_process_that_dies_or_takes_too_long_leaves_what_it_did(
    way: str, error: str, cause: str, model: Path, slow_reader: dict[str, str], tmp_path: Path
) -> None:
    environment = {**slow_reader, "SLOW_READER_FILE": ".onnx", "SLOW_READER_MS": "60000"}
    if way == "sequential":
        environment = at_start(tmp_path, DYING)
    run = trace(model, way, ["cpu", "cpu"], settings=ONE_THREAD, environment=environment, timeout=6)
    assert error in run["error"]
    _check(run)
    assert run["causes"][cause] > 0
    read = {span["session"] for span in run["spans"] if span["cause"] == "read model"}
    assert way == "sequential" or read == {0, 1}


def test_bad_input_is_refused(model: Path, tmp_path: Path) -> None:
    hot: Any = "hot"
    with pytest.raises(InvalidArgument, match="'hot'"):
        trace(model, "native", ["cpu"], cache=hot)
    with pytest.raises(InvalidArgument, match="some device"):
        trace(model, "native", [])
    with pytest.raises(NoSuchFile, match=r"absent\.onnx"):
        trace(tmp_path / "absent.onnx", "native", ["cpu"])
    run = trace(model, "native", ["gpu7"])
    assert "'gpu7' is not a device" in run["error"]


# --- The parts of which a trace of time is made, each on recordings that are written here -----------------------------


MS = 1_000_000


def span(cause: str | None, start: int, end: int, thread: int = 1, name: str = "", **fields: Any) -> Span:
    """A span, in milliseconds."""
    return Span(cause, name or str(cause), start * MS, end * MS, 1, thread, **fields)


def transformed(name: str, modified: int = 0) -> str:
    return f"GraphTransformer {name} modified: {modified} with status: OK"


# What onnxruntime 1.31 says, with a millisecond count for each line, and the cause of the time until then. Lines that
# say nothing of it belong to the next cause.
CREATION = [
    (1, "set up", "Session Options {  execution_mode:0"),
    (2, "set up", "Creating and using per session threadpools since use_per_session_threads_ is true"),
    (5, "read model", "Dynamic block base set to 0"),
    (100, "read model", "Initializing session."),
    (101, "", "Adding default CPU execution provider."),
    (110, "set up", "This model does not have any local functions defined. AOT Inlining is not performed"),
    (150, "read weights", transformed("EnsureUniqueDQForNodeUnit")),
    (200, "optimization level 1", transformed("Level1_RuleBasedTransformer", 1)),
    (210, "optimization level 1", "Removing initializer 'a'. It is no longer used by any node."),
    (220, "optimization level 1", transformed("ConstantFolding", 1)),
    (225, "optimization level 1", "Removing NodeArg 'b'. It is no longer used by any node."),
    (235, "planning", "Running graph optimizations in loop 1 time/s (Graph Optimizations Loop Level : 1)"),
    (240, "optimization level 2", transformed("Level2_RuleBasedTransformer")),
    (260, "optimization level 2", transformed("MatMulAddFusion", 1)),
    (290, "optimization level 3", transformed("NchwcTransformer", 1)),
    (295, "optimization level 3", "Removing initializer 'c'. It is no longer used by any node."),
    (300, "optimization level 2", transformed("GemmActivationFusion")),
    (350, "other optimization", transformed("CastFloat16Transformer")),
    (360, "other optimization", transformed("MemcpyTransformer")),
    (370, "planning", "Use DeviceBasedPartition as default"),
    (380, "planning", "Saving initialized tensors."),
    (400, "read weights", "Done saving initialized tensors"),
    (450, "prepacking", "Session successfully initialized."),
]


def test_phases_lie_between_the_marks() -> None:
    found = phases(span(None, 0, 460), [Mark(when * MS, text) for when, _, text in CREATION])
    causes = [cause for part in found for cause in [part.cause] * (part.length // MS)]
    times = [0, *(when for when, cause, _ in CREATION if cause), 460]
    expected = [*(cause for _, cause, _ in CREATION if cause), "set up"]
    lengths = [end - start for start, end in itertools.pairwise(times)]
    assert causes == [cause for cause, length in zip(expected, lengths, strict=True) for _ in range(length)]


@given(st.lists(st.tuples(st.integers(0, 500), st.sampled_from([text for *_, text in CREATION])), max_size=30))
def test_phases_have_no_gaps(said: list[tuple[int, str]]) -> None:
    found = phases(span(None, 10, 400), [Mark(when * MS, text) for when, text in sorted(said)])
    assert (found[0].start, found[-1].end) == (10 * MS, 400 * MS)
    assert all(one.end == other.start for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("hours", [0, 2, -5.75])
def test_the_log_is_read_in_any_time_zone(tmp_path: Path, hours: float) -> None:
    offset = time.time_ns() - time.monotonic_ns()
    moment = time.monotonic_ns() - 3 * 10**9
    shown = moment + offset + int(hours * 3600) * 10**9
    second = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(shown // 10**9))
    stamp = f"{second}.{shown % 10**9:09}"
    log = tmp_path / "log"
    log.write_text(
        "something else\n"
        f"{stamp} [I:onnxruntime:session-12, inference_session.cc:7 operator()] Initializing session.\n"
        f"{stamp} [I:onnxruntime:Default, env.cc:7 f] Saving initialized tensors.\n"
        f"\x1b[0;93m{stamp} [W:onnxruntime:session-12, x.cc:7 f] careful\x1b[m\n"
    )
    assert read_log(log, offset) == {12: [Mark(moment, "Initializing session.")]}


def test_the_innermost_span_counts() -> None:
    outer, inner, within = span(None, 0, 100), span("run", 20, 60), span("handles", 30, 40)
    assert flatten([within, outer, inner]) == [
        span(None, 0, 20),
        span("run", 20, 30),
        within,
        span("run", 40, 60),
        span(None, 60, 100),
    ]


def lanes_of(spans: list[Span]) -> dict[int, list[Span]]:
    return {thread: flatten(one for one in spans if one.thread == thread) for thread in range(1, 6)}


@pytest.mark.parametrize(
    ("spans", "sums"),
    [
        (
            [
                span("wait for another session", 0, 100, device="cuda:1", waits_for=("context", "cuInit")),
                span("cuInit", 0, 40, thread=3),
                span("context", 40, 50, thread=3, device="cuda:0"),
                span("context", 50, 70, thread=4, device="cuda:1"),
                span("cuInit", 50, 60, thread=3, device="cuda:0"),  # of another device
                span("optimization level 1", 40, 200, thread=5, device="cuda:0"),
            ],
            {"cuInit": 40 * MS, "context": 30 * MS, "wait for another session": 30 * MS},
        ),
        (
            [span("imports", 0, 40), span(None, 40, 100), span("run", 60, 80, thread=2)],
            {"imports": 40 * MS, "unexplained": 40 * MS, "run": 20 * MS},
        ),
    ],
    ids=["a wait is what is waited for", "what nobody does is unexplained"],
)
def test_an_instant_has_the_cause_of_its_thread_or_of_others(spans: list[Span], sums: dict[str, int]) -> None:
    assert attribute(lanes_of(spans), [span(None, 0, 100, device="cuda:1")], main_thread=1) == sums


def ran(start: int, *nodes: tuple[str, str, int]) -> tuple[int, list[Node]]:
    """A run of nodes, each with its name, operator and milliseconds."""
    ends = list(itertools.accumulate((length for *_, length in nodes), initial=start))
    made = [Node(name, op, at * MS, length * MS) for (name, op, length), at in zip(nodes, ends, strict=False)]
    return ends[-1] * MS, made


BEFORE = "before the nodes"
RUNS = [
    ran(0, (BEFORE, "", 10), ("conv", "Conv", 40), ("gemm", "Gemm", 20), ("gemm2", "Gemm", 10), ("relu", "Relu", 20)),
    ran(500, (BEFORE, "", 0), ("conv", "Conv", 10), ("gemm", "Gemm", 2), ("gemm2", "Gemm", 2), ("relu", "Relu", 2)),
]


@pytest.mark.parametrize(
    ("device", "runs", "second", "expected"),
    [
        ("cuda:0", RUNS, 16, {("handles", "before the nodes"): 10, ("algorithm search", "first Conv"): 30,
                              ("handles", "first Gemm"): 18, ("load kernels", "first Gemm"): 8,
                              ("load kernels", "first Relu"): 18}),
        ("cpu", RUNS, 16, {("first use", "before the nodes"): 10, ("first use", "first Conv"): 30,
                           ("first use", "first Gemm"): 26, ("first use", "first Relu"): 18}),
        # No more of it is its own than it took longer.
        ("cuda:0", RUNS, 60, {("algorithm search", "first Conv"): 30, ("handles", "first Gemm"): 10}),
        ("cuda:0", RUNS, 120, {}),
        ("cpu", [], 60, {("first use", "first use"): 40}),
    ],
)  # fmt: skip
def test_a_first_run_is_divided_by_operators(
    device: str, runs: list[tuple[int, list[Node]]], second: int, expected: dict[tuple[str, str], int]
) -> None:
    found: dict[tuple[str, str], int] = {}
    for part in split_first_run(span("run", 1000, 1100, device=device), second * MS, runs):
        key = str(part.cause), part.name
        found[key] = found.get(key, 0) + part.length // MS
    assert found == expected


def test_a_profile_is_read_without_nodes_of_sub_graphs(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    events = [("Session", "session_initialization", 0, 50), ("Node", "loop_kernel_time", 110, 50),
              ("Node", "inner_kernel_time", 120, 10), ("Session", "model_run", 100, 100),
              ("Session", "model_run", 300, 20)]  # fmt: skip
    found = [{"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in events]
    file.write_text(json.dumps([{**event, "ph": "X", "args": {"op_name": "Op"}} for event in found]))
    nodes = [Node(BEFORE, "", 100_000, 10_000), Node("loop", "Op", 110_000, 50_000)]
    assert read_profile(file) == [(200_000, nodes), (320_000, [Node(BEFORE, "", 300_000, 0)])]
    file.write_text("[")
    assert read_profile(file) == []


def samples_of(*stretches: tuple[int, float, int | None], timed: bool = False) -> list[Sample]:
    """A thread for milliseconds at a share of a CPU each, in a system call where it sleeps; every 5 ms a sample."""
    samples = [Sample(0, 0, 0, 0, False, None)]
    for length, share, call in stretches:
        for _ in range(length // 5):
            last = samples[-1]
            faults = last.faults + (call == -1)
            on_cpu = last.on_cpu + int(5 * MS * share)
            samples.append(Sample(last.time + 5 * MS, on_cpu, 0, faults, call is not None, call, timed))
    return samples


FILE, LOCK, DRIVER, SLEEP = 17, 202, 16, 230


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of system calls above, on every machine."""
    for name, value in (("_FILES", {FILE}), ("_LOCK", LOCK), ("_DRIVER", DRIVER)):
        monkeypatch.setattr(waits, name, value)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("call", "beside", "cause"),
    [
        (SLEEP, False, "wait"),
        (-1, False, "read weights"),
        (FILE, False, "read weights"),
        (LOCK, False, "wait"),
        (LOCK, True, "wait for another session"),
    ],
)
def test_a_sleep_is_found_with_its_reason(call: int, beside: bool, cause: str) -> None:
    samples = samples_of((50, 1, None), (100, 0, call), (50, 1, None))
    [found] = waits.split_off_cpu(span("prepacking", 20, 190), samples, beside)
    assert (found.cause, found.start // MS, found.end // MS) == (cause, 50, 150)
    assert waits.split_off_cpu(span("read model", 20, 190), samples, beside) == []  # it has a reason to sleep
    assert waits.split_off_cpu(span("prepacking", 20, 55), samples, beside) == []  # too short to be told
    driving = samples_of((50, 1, None), (100, 0, DRIVER))
    assert waits.split_off_cpu(span("prepacking", 20, 150), driving, beside) == []


@pytest.mark.usefixtures("calls")
def test_waits_for_the_gil_lie_between_calls_and_at_their_ends() -> None:
    spans = [
        span("libraries", 0, 10, name="import onnxruntime"),
        span(None, 10, 200, thread=2, name="create session", session=0),
        span("read model", 10, 60, thread=2, name="construct", session=0),
        span("set up", 60, 200, thread=2, name="initialize", session=0),
        span(None, 40, 300, thread=3, name="create session", session=1),
        span("read model", 40, 190, thread=3, name="construct", session=1),
        span("set up", 205, 300, thread=3, name="initialize", session=1),
    ]
    waiting = ((80, 1, None), (120, 0.1, LOCK), (100, 1, None))
    threads = {2: samples_of((200, 1, None)), 3: samples_of(*waiting, timed=True)}
    found = {(one.session, one.start // MS, one.end // MS) for one in waits.find_waits(spans, threads)}
    # From the import to its first call, from where it has read the model, and until its second call.
    assert found == {(1, 10, 40), (1, 80, 190), (1, 190, 205)}
    threads[3] = samples_of(*waiting)
    assert len(list(waits.find_waits(spans, threads))) == 2  # who waits for the GIL asks for it again and again
    threads[3] = samples_of((80, 1, None), (120, 0.1, DRIVER), (100, 1, None))
    assert len(list(waits.find_waits(spans, threads))) == 2  # the driver has no GIL


def test_a_lock_and_the_gil_are_told_apart() -> None:
    program = """
import ctypes, threading, time
held = threading.Lock()
held.acquire()
lock = threading.Thread(target=held.acquire, daemon=True)
lock.start()
def wants_the_gil():
    end = time.monotonic() + 60
    while time.monotonic() < end: pass
thread = threading.Thread(target=wants_the_gil, daemon=True)
thread.start()
print(lock.native_id, thread.native_id, flush=True)
while True: ctypes.PyDLL(None).usleep(100_000)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lock, thread = (int(number) for number in process.stdout.readline().split())
        with sampled(process.pid) as found:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and any(len(sleeping(found, one)) < 20 for one in (lock, thread)):
                pass
        process.kill()
    assert waits.sleeps_for_the_gil(sleeping(found, thread))
    assert not waits.sleeps_for_the_gil(sleeping(found, lock))


def sleeping(found: Samples, thread: int) -> list[Sample]:
    """The samples that tell in which system call a thread sleeps."""
    return [sample for sample in list(found.get(thread, ())) if sample.call is not None]


def test_spans_of_the_core_have_their_sessions() -> None:
    told = [
        # start, end, device, thread, name, cause and session
        (0, 5, "cuda:0", 9, "create session", None, None),  # made the optimized model
        (5, 6, "", 9, "publish optimized model", "optimized model", None),
        (6, 8, "cuda:1", 4, "copy weights from cuda:0", "copy weights", None),
        (7, 7, "", 4, "not shared: no reason", None, None),
        (10, 20, "cuda:0", 2, "create session", None, 1),
        (10, 30, "cuda:1", 3, "create session", None, 0),
        (11, 12, "cuda:1", 3, "wait for weights", "wait for another session", None),
        (12, 13, "cuda:1", 5, "preload cuBLAS", "handles", None),
        (13, 14, "cuda:1", 5, "preload kernels", "load kernels", None),
        (14, 15, "cuda:1", 5, "free what was preloaded with", "handles", None),
    ]
    names = ("start", "end", "device", "thread", "name")
    events = [{"pid": 1, **dict(zip(names, row, strict=False))} for row in told]
    found = core_spans(events[::-1], ["cuda:1", "cuda:0"])
    assert sorted((one.start, one.end, one.name, one.cause, one.session) for one in found) == [
        (start, end, name, cause, session) for start, end, _, _, name, cause, session in told if end > start
    ]
