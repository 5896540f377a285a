"""Creating sessions in the core: what is checked before, and what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ortmulti import _core
from ortmulti import providers as _providers
from ortmulti._create import config_entries
from ortmulti._runtime import checks, log, startup
from ortmulti.devices import Device
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import GraphOptimizationLevel, SessionOptions
from ortmulti.timeline import Timeline

Model: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview
CheckedModel: TypeAlias = str | bytes | bytearray | memoryview
Serialize: TypeAlias = Literal["none", "device", "all"]
Progress: TypeAlias = Callable[[int, int, str], object]
BytesProgress: TypeAlias = Callable[[int, int], object]


check_model = checks.model


def core_options(options: SessionOptions | None) -> _core.SessionOptions:
    if options is None:
        return _core.SessionOptions()
    if not isinstance(options, SessionOptions):
        raise InvalidType(f"session options are an ortmulti.SessionOptions, not {type(options).__name__}")
    config_entries.check_options(options._core, _providers.loaded_release)
    return options._core


def without_optimization(options: _core.SessionOptions) -> _core.SessionOptions:
    """A copy of the options under which the model's graph is used as it is."""
    result: _core.SessionOptions = options.copy()
    result.graph_optimization_level = int(GraphOptimizationLevel.ORT_DISABLE_ALL)
    return result


@dataclass(frozen=True)
class Callbacks:
    """Receive a creation's progress: sessions that are ready, and bytes that are loaded."""

    session_ready: Progress | None = None
    bytes_loaded: BytesProgress | None = None


class Listener(Protocol):
    """Who is given the sessions of a creation one by one, as they become ready, while the others still start."""

    @property
    def keep_going(self) -> bool:
        """Whether the others are still wanted when one has failed."""

    @property
    def timeline(self) -> Timeline:
        """Where the spans go, from the beginning on."""

    def targets(self, devices: Sequence[Device]) -> None:
        """Called once it is known on which devices there will be sessions, with one entry for each session."""

    def ready(self, index: int, session: _core.Session) -> None:
        """Called for each session, which it closes. What it raises ends the creation."""

    def failed(self, index: int, error: BaseException) -> None:
        """Called for each session that failed beside others, if these keep going."""

    def poll(self) -> None:
        """Called in short intervals; may raise to end the creation."""


class _Following:
    """What the core calls while it creates sessions."""

    def __init__(self, listener: Listener | None, callbacks: Callbacks) -> None:
        self.progress = callbacks.session_ready
        self.bytes_loaded = callbacks.bytes_loaded
        if listener is not None:
            self.ready = listener.ready
            self.failed = listener.failed
            self.poll = listener.poll


def check_arguments(serialize: object, progress: object) -> None:
    """Raises for what `create_sessions` does not take as its arguments of these names."""
    if serialize not in (None, "none", "device", "all"):
        raise InvalidArgument(f"serialize is None, 'none', 'device' or 'all', not {serialize!r}")
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of (done, total, device), not {progress!r}")


def create(
    model: CheckedModel,
    sessions: Sequence[Sequence[_providers.Provider]],
    options: _core.SessionOptions,
    serialize: Serialize | None = None,
    callbacks: Callbacks = Callbacks(),
    weights: _core.SharedWeights | None = None,
    one_session_on_cpu: bool = False,
    listener: Listener | None = None,
    hold: _core.ContextHold | None = None,
) -> tuple[list[_core.Session], _core.Timeline]:
    """One creation in the core: a session for each list of providers.

    Args:
        weights: Weights to use together instead of each session's own.
        one_session_on_cpu: Whether those on the CPU are handles of one ONNX Runtime session.
        listener: Who gets the sessions, of which then none is returned.
        hold: Has other GPUs wait for one; released where one session fails.
    """
    for session in sessions:
        config_entries.check_providers(options, session)
    startup.ensure_open()
    try:
        return _core.create_sessions(
            _core.CreationRequest(
                model=model,
                sessions=sessions,
                options=options,
                serialize=serialize or "automatic",
                weights=weights,
                one_session_on_cpu=one_session_on_cpu,
                keep_going=listener is not None and listener.keep_going,
                timeline=None if listener is None else listener.timeline._core,
                hold=hold,
            ),
            _Following(listener, callbacks),
        )
    finally:
        log.flush()


def create_native(
    model: CheckedModel,
    sessions: Sequence[Sequence[_providers.Provider]],
    options: SessionOptions | None,
    serialize: Serialize | None = None,
    progress: Progress | None = None,
) -> tuple[list[_core.Session], Timeline]:
    """Sessions that each load the model by themselves."""
    start = time.monotonic_ns()
    converted = core_options(options)
    check_arguments(serialize, progress)
    startup.ensure_open()
    _providers.check_usable([provider for session in sessions for provider in session])
    prepared = time.monotonic_ns()
    created, core_timeline = create(model, sessions, converted, serialize, Callbacks(progress))
    timeline = Timeline(core_timeline)
    timeline.add("open libraries and check", start, prepared)
    return created, timeline
