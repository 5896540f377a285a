"""The timeline of a creation."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import ortmulti
from tests.support import onnx_models
from tests.support.pools import in_threads
from tests.support.processes import lines


def of_spans(*spans: tuple[str, int, int] | tuple[str, int, int, str]) -> ortmulti.Timeline:
    timeline = ortmulti.Timeline()
    for span in spans:
        timeline.add(*span)
    return timeline


def in_another_thread(timeline: ortmulti.Timeline, *span: object) -> int:
    """Adds a span there; the kernel's number of that thread."""

    def work(_: int) -> int:
        timeline.add(*span)
        return threading.get_native_id()

    return in_threads(1, work)[0]


def test_a_creation_is_covered_by_spans_of_its_own_time() -> None:
    before = time.monotonic_ns()
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 2, loading=ortmulti.Loading(strategy="native")
    ) as sessions:
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
    timeline = onnx_models.cpu_session(onnx_models.matmul()).timeline
    assert "create session" in [span.name for span in timeline.spans]
    assert len(timeline) == len(timeline.spans)
    assert str(len(timeline)) in repr(timeline)


def test_spans_can_be_added() -> None:
    timeline = of_spans(("read weights", 1_000, 3_000, "cuda:3"))
    assert timeline.spans == [ortmulti.Span("read weights", 1_000, 3_000, threading.get_native_id(), "cuda:3")]


def test_the_trace_file_holds_every_span_and_names_every_thread(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with ortmulti.create_sessions(
        onnx_models.matmul(), "cpu", 2, loading=ortmulti.Loading(strategy="native")
    ) as sessions:
        sessions.timeline.add('quotes "and" é', 10, 30)
        sessions.timeline.save(path)
        spans = sessions.timeline.spans
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"], e["args"]["device"]) for e in complete] == [
        (s.name, s.start_ns / 1e3, (s.end_ns - s.start_ns) / 1e3, s.thread, s.device) for s in spans
    ]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["ortmulti"]
    assert set(names) == {span.thread for span in spans}
    assert sorted(names.values()) == ["cpu", "cpu", "main"]


def test_threads_add_at_the_same_time() -> None:
    timeline = ortmulti.Timeline()

    def work(number: int) -> None:
        for i in range(500):
            timeline.add(f"span {number}", i, i + 1)

    in_threads(8, work)
    assert Counter(span.name for span in timeline.spans) == {f"span {number}": 500 for number in range(8)}


MS = 1_000_000


def test_the_table_is_in_order_of_start_and_in_milliseconds_from_the_first() -> None:
    timeline = of_spans(("inner", 102 * MS, 103 * MS), ("outer", 102 * MS, 110 * MS), ("first", 100 * MS, 101 * MS))
    thread = in_another_thread(timeline, "copy", 104 * MS, 104_500_000, "cuda:3")
    table = timeline.table().splitlines()
    assert table[0].split() == ["start,", "ms", "duration,", "ms", "device", "thread", "span"]
    assert [line.split() for line in table[1:5]] == [
        ["0.000", "1.000", "-", "main", "first"],
        ["2.000", "8.000", "-", "main", "outer"],
        ["2.000", "1.000", "-", "main", "inner"],
        ["4.000", "0.500", "cuda:3", str(thread), "copy"],
    ]
    assert len({len(line.rsplit(maxsplit=1)[0]) for line in table[:5]}) == 1, "columns that do not align"
    assert table[5:] == ["4 spans in 10.000 ms"]


def test_the_table_has_totals_of_names_that_occur_again_and_one_row_for_a_crowd() -> None:
    timeline = of_spans(
        *(("read", i * MS, (i + 1) * MS, "cuda:0") for i in range(0, 18, 2)),
        *(("create session", 20 * MS, (30 + i) * MS, f"cuda:{i}") for i in range(2)),
    )
    table = timeline.table().splitlines()
    assert [line.split(maxsplit=4) for line in table[1:4]] == [
        ["0.000", "9.000", "cuda:0", "main", "read, 9 times in sum"],
        ["20.000", "11.000", "cuda:1", "main", "create session"],
        ["20.000", "10.000", "cuda:0", "main", "create session"],
    ]
    assert table[4:] == [
        "11 spans in 31.000 ms",
        "",
        "times  total, ms  longest, ms  span",
        "    9      9.000        1.000  read",
        "    2     21.000       11.000  create session",
    ]


def test_the_table_of_nothing_says_so() -> None:
    assert ortmulti.Timeline().table() == "no spans"


def test_reasons_for_not_sharing_are_listed_once() -> None:
    timeline = of_spans(
        ("not shared: another provider comes first", 5, 5, "cuda:0"),
        ("create session", 5, 9),
        ("not shared: another provider comes first", 6, 6, "cuda:1"),
        ("not shared: 'w' is planned on the CPU", 7, 7),
    )
    assert timeline.not_shared == ["another provider comes first", "'w' is planned on the CPU"]
    assert ortmulti.Timeline().not_shared == []


def test_a_plot_has_a_row_for_each_device_and_thread(tmp_path: Path) -> None:
    timeline = of_spans(("cuInit", 0, 5 * MS), ("copy", MS, 2 * MS, "cuda:10"), ("copy", MS, 3 * MS, "cuda:2"))
    thread = in_another_thread(timeline, "copy", 2 * MS, 4 * MS, "cuda:2")
    timeline.add("not shared: no", MS, MS, "cpu")
    figure = timeline.plot()
    [axes] = figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [
        "main thread",
        "cpu, main thread",
        "cuda:2, main thread",
        f"cuda:2, thread {thread}",
        "cuda:10, main thread",
    ]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cuInit", "copy", "not shared: no"]
    bars = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    assert sorted((bar.x0, bar.x1) for bar in bars) == [(0, 5), (1, 2), (1, 3), (2, 4)]
    for name in ("plot.png", "plot.svg"):
        timeline.plot(tmp_path / name)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "plot.svg").read_text(encoding="utf-8")


def test_nested_and_overlapping_spans_are_drawn_beside_each_other() -> None:
    timeline = of_spans(
        ("outer", 0, 10 * MS), ("inner", MS, 3 * MS), ("inner", 2 * MS, 4 * MS), ("next", 4 * MS, 5 * MS)
    )
    [axes] = timeline.plot().axes
    boxes = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    assert not any(
        a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1 for i, a in enumerate(boxes) for b in boxes[i + 1 :]
    )
    assert len({box.y0 for box in boxes}) == 3


def test_what_cannot_be_plotted_or_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="nothing to plot"):
        ortmulti.Timeline().plot()
    timeline = of_spans(("a", 0, 1))
    with pytest.raises(ortmulti.InvalidArgument, match=r"does not write \.doc"):
        timeline.plot(tmp_path / "plot.doc")
    for write in (timeline.plot, timeline.save):
        with pytest.raises(OSError, match="missing"):
            write(tmp_path / "missing" / "file.png")


def test_without_matplotlib_a_plot_names_the_extra_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('there is none')")
    code = """
        sys.path.insert(0, sys.argv[2])
        timeline = om.Timeline()
        timeline.add("a", 0, 1)
        print(timeline.table().splitlines()[-1])
        print(error_of(timeline.plot))
    """
    message = 'LibraryError: plots need matplotlib: pip install "ortmulti[plot]"'
    assert lines(code, b"", tmp_path) == ["1 span in 0.000 ms", message]
