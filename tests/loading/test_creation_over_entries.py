"""Sessions over entries of the cache, given out one by one: not before the entry is known to be right.

Sessions that share weights are on GPUs; here the same code creates them on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import Model, _core
from ortmulti.cache.entry import Damaged
from ortmulti.create import core_sessions
from ortmulti.create.request import CreationRequest
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.optimized import Cache, Entry, StagedEntry
from tests.support import creations, onnx_models
from tests.support.cached_models import flip
from tests.support.creations import break_session

X = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return creations.own_cache(tmp_path, monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(onnx_models.write_external(tmp_path)[0])


class Listener:
    """Notes what it receives, and what had been done by then."""

    def __init__(self) -> None:
        self.sessions: list[_core.Session] = []
        self.done: list[str] = []
        self.news: list[tuple[str, int, list[str]]] = []

    def receive(self, index: int, session: _core.Session | BaseException) -> None:
        if isinstance(session, BaseException):
            assert "NoSuchExecutionProvider" in str(session)
            self.news.append(("failed", index, list(self.done)))
        else:
            self.sessions.append(session)
            self.news.append(("ready", index, list(self.done)))

    def close(self) -> None:
        while self.sessions:
            self.sessions.pop().close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    made = Listener()
    verify, publish = Entry.verify, StagedEntry.publish

    def noted_verify(entry: Entry, poll: Callable[[], object] | None = None) -> None:
        verify(entry, poll)
        made.done.append("verified")

    def noted_publish(draft: StagedEntry) -> Entry:
        entry = publish(draft)
        made.done.append("published")
        return entry

    monkeypatch.setattr(Entry, "verify", noted_verify)
    monkeypatch.setattr(StagedEntry, "publish", noted_publish)
    return made


def load(model: str | bytes, listener: Listener, *, keep_going: bool = False) -> list[str]:
    """Creates three sessions and runs them; the names of the spans."""
    made = creations.over_entry(model, 3, listener.receive, keep_going=keep_going)
    for session in listener.sessions:
        assert session.run(None, {"x": X})[0].shape == (3, 64)
    listener.close()
    return [span.name for span in made.timeline.spans]


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[_core.Session]:
    """The sessions that the core has created, in their order."""
    sessions: list[_core.Session] = []
    arrived = Creation.arrived

    def noted(creation: Creation, index: int, made: Any, confirm: Any) -> None:
        sessions.append(made)
        arrived(creation, index, made, confirm)

    monkeypatch.setattr(Creation, "arrived", noted)
    return sessions


def test_a_session_without_shared_weights_on_a_gpu_has_none_for_those_beside_it(model: str) -> None:
    first = creations.over_entry(model, 1)
    [beside] = first.sessions.values()
    expected = beside.run(None, {"x": X})[0].tobytes()
    second = creations.over_entry(model, 1, beside=beside)
    assert second.sessions[0].run(None, {"x": X})[0].tobytes() == expected
    second.close()
    first.close()
    with pytest.raises(ortmulti.Error, match="closed"):
        creations.over_entry(model, 1, beside=beside)


def test_sessions_over_a_new_entry_are_given_out_once_it_is_published(listener: Listener) -> None:
    load(onnx_models.matmul(), listener)
    assert {index for _, index, _ in listener.news} == {0, 1, 2}
    assert all("published" in done for _, _, done in listener.news)


def test_sessions_that_optimize_are_given_out_once_they_are_known_to_be_right(
    model: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = _core.changed_weights

    def noted(*arguments: Any) -> list[str]:
        listener.done.append("checked")
        return changed(*arguments)

    monkeypatch.setattr(_core, "changed_weights", noted)
    load(model, listener)
    assert {index for _, index, _ in listener.news} == {0, 1, 2}
    assert all(done == ["checked"] for _, _, done in listener.news)
    assert listener.done == ["checked", "published"]


def test_sessions_that_optimize_and_are_not_right_are_not_given_out(
    model: str, listener: Listener, created: list[_core.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "changed_weights", lambda *_: ["weight0"])
    timeline = creations.over_entry(model, 3, listener.receive).timeline
    assert len(created) == 6
    assert all(session.closed() for session in created[:3])
    assert set(listener.sessions) == set(created[3:])
    assert all("published" in done for _, _, done in listener.news)
    assert "the model is optimized before its sessions: that changes the weight weight0" in [
        span.name for span in timeline.spans
    ]
    listener.close()


def test_sessions_over_an_entry_are_given_out_once_it_is_verified(model: str, listener: Listener) -> None:
    load(model, Listener())
    listener.done.clear()
    names = load(model, listener)
    assert [(what, done) for what, _, done in listener.news] == [("ready", ["verified"])] * 3
    assert "find optimized model" in names
    assert "optimize model" not in names


@pytest.mark.parametrize("optimize", ["auto", "offline"])
def test_of_a_damaged_entry_nothing_is_given_out(
    optimize: str, model: str, listener: Listener, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    """It is removed, and made anew where that is allowed."""
    load(model, Listener())
    [stored] = cache.entries()
    graph = stored.folder / "model.onnx"
    content = graph.read_bytes()
    flip(graph)
    listener.done.clear()
    if optimize == "offline":
        with pytest.raises(ortmulti.NotFound):
            creations.over_entry(model, 3, listener.receive, optimize=optimize)
        assert (listener.news, cache.entries()) == ([], [])
    load(model, listener)
    assert "is damaged" in caplog.text
    assert len(listener.news) == 3
    assert listener.done == ["published"]
    [stored] = cache.entries()
    assert (stored.folder / "model.onnx").read_bytes() == content


def test_one_that_fails_beside_others_is_told(model: str, listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    load(model, Listener())
    break_session(monkeypatch, lambda index: index == 1)
    for _ in range(2):  # over the entry, and over a new one
        listener.news.clear()
        load(model, listener, keep_going=True)
        assert sorted((what, index) for what, index, _ in listener.news) == [("failed", 1), ("ready", 0), ("ready", 2)]
        assert listener.news[0][0] == "ready" or "published" in listener.done
        Cache.default().clear()


def test_failures_of_all_are_not_told_but_raised(
    model: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(model, Listener())
    break_session(monkeypatch, lambda _: True)
    with pytest.raises(ortmulti.InvalidArgument, match="NoSuchExecutionProvider"):
        load(model, listener, keep_going=True)
    assert listener.news == []


def test_what_was_not_given_out_is_closed(
    listener: Listener, created: list[_core.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> Any:
        raise Damaged("for this test")

    monkeypatch.setattr(StagedEntry, "publish", fail)
    with pytest.raises(Damaged):
        load(onnx_models.matmul(), listener)
    assert len(created) == 3
    assert all(session.closed() for session in created)
    assert listener.news == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_creation_has_no_further_events(model: str, begun: bool) -> None:
    ortmulti.RunOptions()  # opens the library
    cpu: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]
    events = _core.CreationEvents(_core.CreationRequest(model=model, sessions=[cpu], options=_core.SessionOptions()))
    if begun:
        next(events)
    events.cancel()
    assert list(events) == []


def test_sessions_that_come_with_a_report_of_bytes_are_closed_where_that_fails(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Events:
        """As on GPUs: bytes are reported there, often in the event of the first session."""

        def __init__(self, events: _core.CreationEvents) -> None:
            self.cancel = events.cancel
            self._events = events

        def __iter__(self) -> Iterator[Any]:
            for event in self._events:
                made.extend([event.session] if event.session else [])
                names = ("index", "device", "session", "error")
                yield SimpleNamespace(
                    **{name: getattr(event, name) for name in names}, loaded_bytes=len(made), total_bytes=9
                )

    def fail(*_: int) -> None:
        raise RuntimeError("full")

    events = core_sessions.events
    monkeypatch.setattr(core_sessions, "events", lambda *args, **more: Events(events(*args, **more)))
    creation = Creation(CreationRequest(Model.of(model), "cpu", 2), ortmulti.Timeline(), bytes_loaded=fail)
    with pytest.raises(RuntimeError, match="full"):
        ways.create(creation)
    assert made
    assert all(session.closed() for session in made)
