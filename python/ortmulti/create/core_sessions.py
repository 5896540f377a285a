"""Creates sessions by the core at the same time: checks before the call, and its results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ortmulti import _core
from ortmulti._runtime import log, startup
from ortmulti.create.model import Model
from ortmulti.create.request import Serialize, core_options
from ortmulti.devices import providers as _providers
from ortmulti.options import config_entries
from ortmulti.options.session_options import SessionOptions
from ortmulti.timeline import Timeline


def events(
    graph: str | bytes | bytearray | memoryview,
    sessions: Sequence[Sequence[_providers.Provider]],
    options: _core.SessionOptions,
    *,
    serialize: Serialize | None = None,
    weights: _core.SharedWeights | None = None,
    made_of: str = "",
    logged_as: str = "",
    save_optimized: str = "",
    on_devices: Mapping[str, tuple[str, Mapping[str, str]]] | None = None,
    one_session_each: bool = False,
    preload: bool = False,
    keep_going: bool = False,
    timeline: _core.Timeline | None = None,
    hold: _core.ContextHold | None = None,
) -> _core.CreationEvents:
    """Return the events of creating a session for each list of providers by one call of the core, which is open.

    The first step of the iteration begins it, and in its end it raises the first failure. An event comes for each
    session that is ready or has failed, and in short intervals. Whoever iterates closes the sessions, calls `cancel` to
    give up, and `log.flush` in the end.

    Args:
        graph: The path of a model, or its bytes.
        serialize: Which creations wait for each other.
        weights: Weights that the sessions share.
        made_of: The file from which a model in memory was made, for messages.
        logged_as: The model in ONNX Runtime's log, unless the options have a logid; default: its path.
        save_optimized: Path for the first session's optimized model.
        on_devices: For the sessions on these devices another model file, unless it is empty, and for the first of them
            further config entries.
        one_session_each: Whether the sessions on the CPU are handles of one ONNX Runtime session. So are those on each
            device of a plug-in.
        preload: Whether GPUs meanwhile load kernels for the model's first run.
        keep_going: Whether the other sessions are created when one fails.
        timeline: Receives the spans; default: a new one.
        hold: Makes other GPUs wait for one; released if a session fails.
    """
    for session in sessions:
        config_entries.check_providers(options, session)
    if not options.logid and (name := logged_as or (graph if isinstance(graph, str) else "")):
        options = options.copy()
        options.logid = name.encode(errors="backslashreplace").decode()
    return _core.CreationEvents(
        _core.CreationRequest(
            model=graph,
            sessions=sessions,
            options=options,
            serialize=serialize or "automatic",
            weights=weights,
            made_of=made_of,
            save_optimized=save_optimized,
            on_devices=on_devices or {},
            one_session_each=one_session_each,
            preload=preload,
            keep_going=keep_going,
            timeline=timeline,
            hold=hold,
        )
    )


def create(
    graph: str | bytes | bytearray | memoryview,
    sessions: Sequence[Sequence[_providers.Provider]],
    options: _core.SessionOptions,
    *,
    weights: _core.SharedWeights | None = None,
    logged_as: str = "",
) -> tuple[list[_core.Session], _core.Timeline]:
    """Create the sessions of these `events`, and return them in their order, with the spans."""
    startup.ensure_open()
    timeline = _core.Timeline()
    made: dict[int | None, _core.Session] = {}
    going = events(graph, sessions, options, weights=weights, logged_as=logged_as, timeline=timeline)
    try:
        for event in going:
            if event.session is not None:
                made[event.index] = event.session
    except BaseException:
        going.cancel()
        while made:
            made.popitem()[1].close()
        raise
    finally:
        log.flush()
    return [made[index] for index in range(len(sessions))], timeline


def create_native(
    model: Model, providers: Sequence[_providers.Provider], options: SessionOptions | None
) -> tuple[_core.Session, Timeline]:
    """Create one session, which loads the model by itself."""
    start = time.monotonic_ns()
    converted = core_options(options)
    startup.ensure_open()
    _providers.check_usable(list(providers))
    prepared = time.monotonic_ns()
    [created], core_timeline = create(model.graph, [providers], model.with_weights(converted), logged_as=model.url)
    model.keep_copies()
    timeline = Timeline(core_timeline)
    timeline.add("open libraries and check", start, prepared)
    return created, timeline
