"""Creations over cache entries on the CPU, and creations that fail.

Sessions that share weights are on GPUs; here the same code creates them on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from ortmulti import Loading, Model, Timeline, _core
from ortmulti._runtime import startup
from ortmulti.create import core_sessions
from ortmulti.create.request import CreationRequest
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.loading.plan import Plan
from ortmulti.optimized import Cache


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache in a folder, for this process and those that it starts."""
    startup.ensure_open()
    monkeypatch.setenv("ORTMULTI_CACHE", str(folder / "cache"))
    return Cache.default()


def over_entry(
    model: str | bytes | Model,
    sessions: int = 2,
    receive: Callable[[int, Any], object] | None = None,
    *,
    keep_going: bool = False,
    beside: _core.Session | None = None,
    optimize: Literal["auto", "never", "offline"] = "auto",
    **arguments: Any,
) -> Creation:
    """Creates sessions over the model's entry, which is made if necessary; or else over the model as it is."""
    request = CreationRequest(Model.of(model), "cpu", sessions, loading=Loading(optimize=optimize), **arguments)
    creation = Creation(request, Timeline(), receive, keep_going=keep_going, beside=beside)
    creation.prepare()
    ways.follow(creation, Plan(("model" if optimize == "never" else "entry", "alone")))
    return creation


def break_session(monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bool]) -> None:
    """Make the creation of some sessions fail: they ask for a provider that does not exist."""
    events = core_sessions.events

    def with_broken(model: Any, providers_of: Any, *args: Any, **kwargs: Any) -> Any:
        changed = [
            [("NoSuchExecutionProvider", {}), *providers] if broken(index) else providers
            for index, providers in enumerate(providers_of)
        ]
        return events(model, changed, *args, **kwargs)

    monkeypatch.setattr(core_sessions, "events", with_broken)
