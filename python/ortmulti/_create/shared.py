"""Sessions over weights that were read once: which models can have them, and by which way."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ortmulti import _core
from ortmulti import providers as _providers
from ortmulti._create import creation
from ortmulti._create.listeners import Held, Kept
from ortmulti._create.model_additions import replacing_weights
from ortmulti._runtime import prewarm, startup
from ortmulti._runtime.threads import Task
from ortmulti.devices import Device, name_devices, parse_devices
from ortmulti.errors import (
    EPFail,
    Error,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplemented,
    NotOptimizable,
    RuntimeException,
)
from ortmulti.loader import LoaderOptions
from ortmulti.options import GraphOptimizationLevel, SessionOptions
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti import cache

# What ONNX Runtime may raise for a model that it has written itself.
_NOT_LOADABLE = (EPFail, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException)

LOGGER = logging.getLogger("ortmulti")

Optimize: TypeAlias = Literal["auto", "never", "offline"]
Strategy: TypeAlias = Literal["shared", "native"]


@dataclass(frozen=True)
class Request:
    """What `create_sessions` and `load` are asked for, already checked but for the devices.

    Attributes:
        model: A path, or bytes.
        devices: As `parse_devices` takes them.
        sessions_per_device: 1 or more.
        options: Of every session.
        provider_options: The CUDA provider's.
        serialize: Which creations wait for each other.
        callbacks: Receive the progress.
        strategy: "native": each session loads the model by itself.
        optimize: Whether the model is optimized before.
        loader: How weights are read.
        listener: Who gets the sessions as they become ready; None: they are returned together.
        hold: Has the other GPUs' contexts wait for one; released where no session can come before the others.
    """

    model: creation.CheckedModel
    devices: str | int | Device | Iterable[str | int | Device] = "all"
    sessions_per_device: int = 1
    options: SessionOptions | None = None
    provider_options: Mapping[str, Any] | None = None
    serialize: creation.Serialize | None = None
    callbacks: creation.Callbacks = field(default_factory=creation.Callbacks)
    strategy: Strategy = "shared"
    optimize: Optimize = "auto"
    loader: LoaderOptions | None = None
    listener: creation.Listener | None = None
    hold: _core.ContextHold | None = None


class _Spans:
    """What is done in this thread, for the timeline: at once if there is one, else when it is there in the end."""

    def __init__(self, timeline: Timeline | None = None) -> None:
        self._timeline = timeline
        self._spans: list[tuple[str, int, int]] = []

    def _add(self, name: str, start_ns: int, end_ns: int) -> None:
        if self._timeline is None:
            self._spans.append((name, start_ns, end_ns))
        else:
            self._timeline.add(name, start_ns, end_ns)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(name, start, time.monotonic_ns())

    def not_shared(self, reason: str) -> None:
        now = time.monotonic_ns()
        self._add(f"not shared: {reason}", now, now)
        LOGGER.info("each session loads the model by itself: %s", reason)

    def to(self, timeline: Timeline) -> Timeline:
        for span in self._spans:
            timeline.add(*span)
        return timeline


@dataclass
class _Load:
    """A request on its way."""

    request: Request
    spans: _Spans = field(default_factory=_Spans)
    prefetch: _core.Prefetch | None = None
    sessions: list[list[_providers.Provider]] = field(default_factory=list)
    targets: list[Device] = field(default_factory=list)

    @property
    def options(self) -> _core.SessionOptions:
        return creation.core_options(self.request.options)

    def weights(self, weights: _core.WeightList) -> _core.SharedWeights:
        given = self.request.loader or LoaderOptions()
        loader = _core.LoaderOptions(
            reader_threads=given.reader_threads or 0,
            chunk_bytes=given.chunk_bytes or 0,
            buffers_per_thread=given.buffers_per_thread or 0,
        )
        return _core.SharedWeights(weights, prefetch=self.prefetch, loader=loader)

    def create(
        self, model: creation.CheckedModel, options: _core.SessionOptions, **more: Any
    ) -> tuple[list[_core.Session], Timeline]:
        created, timeline = creation.create(
            model,
            self.sessions,
            options,
            self.request.serialize,
            self.request.callbacks,
            **{"listener": self.request.listener, "hold": self.request.hold, **more},
        )
        return created, Timeline(timeline)


def create(request: Request) -> tuple[list[_core.Session], Timeline, list[Device]]:
    """Creates the sessions.

    Returns:
        The sessions, those of the first device first; what their creation spent its time on; the devices.

    Raises:
        As `create_sessions`.
    """
    listener = request.listener
    load = _Load(request, _Spans(None if listener is None else listener.timeline))
    named = name_devices(request.devices)
    shared = request.strategy == "shared"
    weights: _core.WeightList | None = None
    if shared and prewarm.begin_driver(named):
        # The disk is asked first, since it may be slower than everything else together.
        if isinstance(request.model, str):
            with load.spans("index model"):
                weights = _begin_reading(load, request.model)
        with load.spans("open libraries"):
            prewarm.open_libraries()
            from ortmulti import cache  # noqa: F401  # its import, too, takes time while the driver starts
    with load.spans("wait for driver and check"):
        load.targets = parse_devices("all" if named is None else named)
        on_gpu = [device for device in load.targets if device.kind == "cuda"]
        if request.provider_options and not on_gpu:
            raise InvalidArgument("provider_options are the CUDA provider's, and no device is a GPU")
        load.sessions = [
            _providers.for_device(device, request.provider_options)
            for device in load.targets
            for _ in range(request.sessions_per_device)
        ]
        startup.ensure_open()
        _providers.check_usable([provider for session in load.sessions for provider in session])
    if listener is not None:
        listener.poll()
        listener.targets([device for device in load.targets for _ in range(request.sessions_per_device)])

    if not shared:
        created, timeline = load.create(request.model, load.options)
    elif not on_gpu:
        created, timeline = load.create(request.model, load.options, one_session_on_cpu=True)
    elif reason := _why_not(load):
        created, timeline = _native(load, reason)
    elif request.optimize == "never" or load.options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
        created, timeline = _as_it_is(load, weights)
    else:
        created, timeline = _over_entry(load)
    return created, load.spans.to(timeline), load.targets


def _begin_reading(load: _Load, path: str) -> _core.WeightList | None:
    """Lists the model's weights and has their files brought into memory while the driver starts."""
    try:
        weights = _core.shareable_weights(path)
    except Error:
        return None  # ONNX Runtime says what is wrong with the model
    parts: dict[int, tuple[int, int]] = {}
    for _, _, _, file, offset, length in weights.weights:
        begin, end = parts.get(file, (offset, offset))
        parts[file] = (min(begin, offset), max(end, offset + length))
    if parts:
        load.prefetch = _core.Prefetch(
            [(weights.files[file][0], begin, end - begin) for file, (begin, end) in sorted(parts.items())]
        )
    return weights


def _why_not(load: _Load) -> str | None:
    """Why the sessions cannot use weights together; None if nothing is known against it."""
    options = load.options
    if any(device.kind != "cuda" for device in load.targets):
        return "the CPU is among the devices, beside GPUs"
    if options.optimized_model_filepath:
        return "optimized_model_filepath asks ONNX Runtime itself to optimize the model"
    if methods := replacing_weights(options):
        return f"the session options have weights of their own ({methods})"
    if "session.use_ort_model_bytes_directly" in options.config_entries:
        return "session.use_ort_model_bytes_directly is for models in ONNX Runtime's own format"
    return None


def _native(load: _Load, reason: str) -> tuple[list[_core.Session], Timeline]:
    load.spans.not_shared(reason)
    return load.create(load.request.model, load.options)


def _as_it_is(load: _Load, weights: _core.WeightList | None) -> tuple[list[_core.Session], Timeline]:
    if not isinstance(load.request.model, str):
        return _native(load, "the model is in memory and is not optimized")
    if weights is None or not weights.weights:
        return _native(load, "the model has no weights that can be shared")
    options = creation.without_optimization(load.options)
    return load.create(load.request.model, options, weights=load.weights(weights))


def _over_entry(load: _Load) -> tuple[list[_core.Session], Timeline]:
    from ortmulti import cache

    request = load.request
    wanted = cache.CacheRequest(request.model, load.sessions[0], request.options, load.targets, load.spans)
    try:
        return wanted.find_or_build(
            lambda entry: _over(load, entry),
            lambda draft: _over_new_entry(load, wanted, draft),
            offline=request.optimize == "offline",
        )
    except NotOptimizable as problem:
        return _native(load, str(problem))


def _over(load: _Load, entry: cache.Entry) -> tuple[list[_core.Session], Timeline]:
    """Creates the sessions over an entry, whose checksums are compared meanwhile."""
    stop = threading.Event()
    verified: concurrent.futures.Future[None] = concurrent.futures.Future()

    def poll() -> None:
        if stop.is_set():
            raise concurrent.futures.CancelledError

    def verify() -> None:
        try:
            entry.verify(poll)
        except BaseException as error:
            verified.set_exception(error)
        else:
            verified.set_result(None)

    task = Task(verify, "ortmulti-verify")
    with entry:
        try:
            task.start()
            return _over_verified(load, entry, verified)
        finally:
            stop.set()  # after Ctrl-C nobody waits for the rest of the files
            if not task.revoke():
                task.wait()


def _over_verified(
    load: _Load, entry: cache.Entry, verified: concurrent.futures.Future[None]
) -> tuple[list[_core.Session], Timeline]:
    """Creates the sessions over an entry.

    Args:
        verified: Ends when the entry's checksums were compared. No session is given out before.
    """
    from ortmulti import cache

    listener = load.request.listener
    held = None if listener is None else Held(listener, verified.result)
    try:
        created, timeline = _create_over(load, entry, held)
    except Error as problem:
        if held is not None and held.given_out:
            raise  # the entry is right: others have sessions over it
        verified.result()  # a damaged entry explains it
        if isinstance(problem, _NOT_LOADABLE):
            raise cache.not_loadable(problem) from problem
        raise
    try:
        verified.result()
    except BaseException:
        _close(created)
        raise
    return created, timeline


def _create_over(
    load: _Load, entry: cache.Entry, listener: creation.Listener | None
) -> tuple[list[_core.Session], Timeline]:
    from ortmulti import cache

    return load.create(
        entry.model_path, cache.entry_options(load.options), weights=load.weights(entry.weights), listener=listener
    )


def _over_new_entry(
    load: _Load, wanted: cache.CacheRequest, draft: cache.StagedEntry
) -> tuple[list[_core.Session], Timeline]:
    """Optimizes the model, creates the sessions over the result, and publishes that once they are there."""
    from ortmulti import cache

    listener = load.request.listener
    if load.request.hold is not None:
        load.request.hold.release()

    def create(entry: cache.Entry) -> tuple[tuple[list[_core.Session], Timeline, Kept | None], set[str]]:
        kept = None if listener is None else Kept(listener)
        try:
            created, timeline = _create_over(load, entry, kept)
        except BaseException as problem:
            _close([] if kept is None else kept.sessions.values())
            if isinstance(problem, _NOT_LOADABLE):
                raise cache.not_loadable(problem) from problem
            raise
        every = created if kept is None else list(kept.sessions.values())
        refused = {name for session in every for name in session.weight_use()[1]}
        changed = any(cache.signature(session) != entry.facts["signature"] for session in every)
        if refused or changed:
            _close(every)
        if changed:
            raise NotOptimizable("the optimized model has other inputs or outputs than the model")
        return (created, timeline, kept), refused

    with draft:
        created, timeline, kept = wanted.build(draft, create)
        if draft.timeline is not None:
            timeline.extend(draft.timeline)
        try:
            with load.spans("publish optimized model"):
                draft.publish().close()
            if kept is not None:
                kept.give_out()
        except BaseException:
            _close([] if kept is None else kept.sessions.values())
            raise
        return created, timeline


def _close(sessions: Iterable[_core.Session]) -> None:
    for session in sessions:
        session.close()
