"""The timeline of a creation."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

import ortmulti
from tests import _models


def test_a_creation_is_covered_by_spans_of_its_own_time() -> None:
    before = time.monotonic_ns()
    with ortmulti.create_sessions(_models.matmul(), "cpu", 2) as sessions:
        after = time.monotonic_ns()
        spans = sessions.timeline.spans
    assert [(span.name, span.device) for span in spans].count(("create session", "cpu")) == 2
    assert all(before <= span.start_ns <= span.end_ns <= after for span in spans)
    assert all(span.seconds == (span.end_ns - span.start_ns) / 1e9 for span in spans)
    creating = {span.thread for span in spans if span.name == "create session"}
    assert len(creating) == 2
    assert threading.get_native_id() not in creating
    assert {span.thread for span in spans if not span.device} == {threading.get_native_id()}


def test_a_sessions_timeline_is_its_creations() -> None:
    session = ortmulti.InferenceSession(_models.matmul(), providers=["CPUExecutionProvider"])
    assert "create session" in [span.name for span in session.timeline.spans]
    assert len(session.timeline) == len(session.timeline.spans)
    assert str(len(session.timeline)) in repr(session.timeline)


def test_spans_can_be_added() -> None:
    timeline = ortmulti.Timeline()
    timeline.add("read weights", 1_000, 3_000, "cuda:3")
    assert timeline.spans == [ortmulti.Span("read weights", 1_000, 3_000, threading.get_native_id(), "cuda:3")]


def test_the_trace_file_holds_every_span_and_names_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with ortmulti.create_sessions(_models.matmul(), "cpu", 2) as sessions:
        sessions.timeline.add('quotes "and" é', 10, 30)
        sessions.timeline.save(path)
        spans = sessions.timeline.spans
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"], e["args"]["device"]) for e in complete] == [
        (s.name, s.start_ns / 1e3, (s.end_ns - s.start_ns) / 1e3, s.thread, s.device) for s in spans
    ]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert set(names) == {span.thread for span in spans}
    assert sorted(names.values()) == ["cpu", "cpu", "main"]


def test_a_trace_that_cannot_be_written_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        ortmulti.Timeline().save(tmp_path / "missing" / "trace.json")


def test_threads_add_at_the_same_time() -> None:
    timeline = ortmulti.Timeline()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for i in range(500):
            timeline.add(f"span {number}", i, i + 1)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    names = [span.name for span in timeline.spans]
    assert {name: names.count(name) for name in set(names)} == {f"span {number}": 500 for number in range(8)}
