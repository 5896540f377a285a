"""The sessions of one request in the making: calls of the core, whose results are confirmed and handed over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from ortmulti import _core
from ortmulti._runtime import log, startup
from ortmulti.create import core_sessions
from ortmulti.create.request import CreationRequest, Progress, core_options
from ortmulti.devices import providers
from ortmulti.devices.device import Device, check_devices_exist, parse_devices
from ortmulti.errors import EPFail, Error, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException
from ortmulti.loading import early_start
from ortmulti.timeline import Timeline

# What ONNX Runtime may raise for a model that it has written itself.
_NOT_LOADABLE = (EPFail, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException)

_Confirm: TypeAlias = Callable[[int, _core.Session], bool]


def _ignore(*_: object) -> None:
    pass


class Creation:
    """The creation of one request's sessions: what each way to create them needs, and a call of the core.

    All functions are called in the creation's thread. Their exceptions end the creation.

    Args:
        request: The arguments.
        timeline: Receives the spans.
        receive: Called for each session with its place in the request, and owns it. With ``keep_going`` it gets the
            error in place of a failed session. Default: ``sessions`` keeps them.
        keep_going: Whether the other sessions are created when one fails.
        hold: Makes the other GPUs' contexts wait for one; released if no session can come first.
        beside: A session on the request's one GPU, whose weights the sessions share as far as they have the same; None:
            all weights are read.
        on_devices: Called when the devices are known, with the device of each session.
        poll: Called in short intervals.
        progress: Called as ``progress(done, total, device)`` whenever a session is ready.
        bytes_loaded: Called as ``bytes_loaded(bytes, total)`` while shared weights are loaded.

    Attributes:
        options: Options of every session.
        devices: The device of each session, once `prepare` has found them.
        providers: The providers of each session, then, too.
        weights: The weights that sessions over the model as it is can share; None: unknown.
        confirmed: Whether a session was confirmed. If none was, the reason may be what the sessions have in common.
        waiting: Ready sessions that were not received, by their places.
        failures: Failures that were not received.
        sessions: The sessions by their places, without ``receive``.
    """

    def __init__(
        self,
        request: CreationRequest,
        timeline: Timeline,
        receive: Callable[[int, _core.Session | BaseException], object] | None = None,
        *,
        keep_going: bool = False,
        hold: _core.ContextHold | None = None,
        beside: _core.Session | None = None,
        on_devices: Callable[[Sequence[Device]], object] = _ignore,
        poll: Callable[[], object] = _ignore,
        progress: Progress | None = None,
        bytes_loaded: Callable[[int, int], object] | None = None,
    ) -> None:
        self.request = request
        self.timeline = timeline
        self.keep_going = keep_going
        self.hold = hold
        self.on_devices = on_devices
        self.poll = poll
        self.options = core_options(request.options)
        self.devices: list[Device] = []
        self.providers: list[list[providers.Provider]] = []
        self.weights: _core.WeightList | None = None
        self.confirmed = False
        self.waiting: dict[int, _core.Session] = {}
        self.failures: list[tuple[int, BaseException]] = []
        self.sessions: dict[int, Any] = {}
        self._receive = self.sessions.__setitem__ if receive is None else receive
        self._beside = beside
        self._prefetch: _core.Prefetch | None = None
        self._has_read = False
        self._progress = progress
        self._bytes_loaded = bytes_loaded

    @property
    def one_session_each(self) -> bool:
        """Whether the sessions of each device are handles of one ONNX Runtime session: none is on a GPU."""
        return self.request.loading.strategy == "shared" and all(device.kind != "cuda" for device in self.devices)

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Measure a step."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.timeline.add(name, start, time.monotonic_ns())

    def note(self, text: str) -> None:
        """Add a text to the timeline."""
        now = time.monotonic_ns()
        self.timeline.add(text, now, now)

    def prepare(self) -> None:
        """Start the driver, open the libraries, and find the devices and their providers."""
        request = self.request
        named = request.named
        if request.loading.strategy == "shared" and early_start.begin_driver(named):
            # The disk comes first: it may be slower than all other steps together.
            if request.model.path:
                with self.span("index model"):
                    self._begin_reading(request.model.path)
            with self.span("open libraries"):
                early_start.open_libraries()
                import ortmulti.optimized  # noqa: F401  # this import, too, takes time while the driver starts
        start = time.monotonic_ns()
        try:
            if named is None:
                devices = parse_devices("all")
                request.check_provider_options(devices)
            else:  # the request has checked the rest
                check_devices_exist(devices := named)
            self.devices = [device for device in devices for _ in range(request.sessions_per_device)]
            self.providers = [providers.for_device(device, request.provider_options) for device in self.devices]
            startup.ensure_open()
            providers.check_usable([provider for session in self.providers for provider in session])
        finally:
            self.timeline.add("wait for driver and check", start, time.monotonic_ns())
        self.poll()
        self.on_devices(self.devices)

    def _begin_reading(self, path: str) -> None:
        """List the model's weights, and read their files while the driver starts, unless they are in memory."""
        try:
            weights = self.weights = _core.shareable_weights(path)
        except Error:
            return  # ONNX Runtime says what is wrong with the model
        if self._beside is not None or (self.request.share and _others_offer()):
            return
        parts: dict[int, tuple[int, int]] = {}
        for weight in weights.weights:
            begin, end = parts.get(weight.source, (weight.offset, weight.offset))
            parts[weight.source] = (min(begin, weight.offset), max(end, weight.offset + weight.length))
        ranges = [(weights.sources[file], begin, end - begin) for file, (begin, end) in sorted(parts.items())]
        self._prefetch = _core.Prefetch(ranges) if ranges else None

    def read_weights(self) -> None:
        """Read weights that ONNX Runtime does not find by itself into the options, once."""
        model = self.request.model
        if model.external.weights and not self._has_read:
            self._has_read = True
            with self.span("read weights"):
                self.options = model.with_weights(self.options, self._weights_read)

    def _weights_read(self, size: int) -> None:
        if self._bytes_loaded is not None and size:
            self._bytes_loaded(size, sum(weight.length for weight in self.request.model.external.weights))
        self.poll()

    def run(
        self,
        graph: str | bytes | bytearray | memoryview,
        options: _core.SessionOptions,
        weights: _core.WeightList | None = None,
        *,
        confirm: _Confirm | None = None,
        **more: Any,
    ) -> str:
        """Create the sessions by one call of the core. Return why ONNX Runtime cannot load the model; empty if it can.

        Args:
            graph: The path of a model, or its bytes.
            options: Options of every session.
            weights: Weights that the sessions share.
            confirm: Called with each ready session and its place until it returns True. Then the sessions are handed
                over. None: they are right, and so are all errors.
            more: Further arguments of `core_sessions.events`.

        Raises:
            Error: Another reason, or a session was confirmed before.
        """
        self.confirmed = confirm is None
        events = core_sessions.events(
            graph,
            self.providers,
            options,
            serialize=self.request.loading.serialize,
            weights=None if weights is None else self._shared(weights),
            preload=True,
            keep_going=self.keep_going,
            timeline=self.timeline._core,
            logged_as=self.request.model.path or self.request.model.url,
            hold=self.hold,
            **more,
        )
        loaded = done = 0
        try:
            try:
                for event in events:
                    error = event.error
                    if event.index is not None:  # first: a report may fail, and somebody owns the session by then
                        self.arrived(event.index, event.session if error is None else error, confirm)
                    if event.loaded_bytes != loaded:
                        loaded = event.loaded_bytes
                        if self._bytes_loaded is not None:
                            self._bytes_loaded(loaded, event.total_bytes)
                    if event.index is None:
                        self.poll()
                    elif error is None and self._progress is not None:
                        done += 1
                        self._progress(done, len(self.providers), event.device)
            finally:
                events.cancel()  # nothing where it has ended
                log.flush()
        except _NOT_LOADABLE as error:
            if self.confirmed:
                raise
            self.drop()
            return str(error)
        return ""

    def arrived(self, index: int, made: _core.Session | BaseException | None, confirm: _Confirm | None) -> None:
        """Note a session that is ready, or its failure; None: it was closed since another one failed."""
        if isinstance(made, _core.Session):
            self.waiting[index] = made
            if not self.confirmed and confirm is not None:
                self.confirmed = confirm(index, made)
        elif made is not None:
            self.failures.append((index, made))
        if self.confirmed:
            self.hand_over()

    def _shared(self, weights: _core.WeightList) -> _core.SharedWeights:
        share = self.request.share is not None
        reading: dict[str, Any] = self.request.loading.reading()
        return _core.SharedWeights(weights, beside=self._beside, prefetch=self._prefetch, share=share, **reading)

    def hand_over(self) -> None:
        """Confirm the sessions: those that wait are received."""
        self.confirmed = True
        for index in list(self.waiting):
            self._receive(index, self.waiting.pop(index))
        while self.failures:
            self._receive(*self.failures.pop(0))

    def drop(self) -> None:
        """Close the sessions that were not received, and forget the failures."""
        self.failures.clear()
        while self.waiting:
            self.waiting.popitem()[1].close()

    def close(self) -> None:
        """Close those in ``sessions``, too."""
        self.drop()
        while self.sessions:
            self.sessions.popitem()[1].close()


def _others_offer() -> bool:
    """Whether other processes offer weights, which then need not be read."""
    try:
        return bool(_core.offered_weights())
    except Error:
        return False  # the timeline will say why nothing is shared
