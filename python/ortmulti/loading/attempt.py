"""The calls of the core that create the sessions of one request, and who receives them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ortmulti import _core
from ortmulti.create import core_sessions
from ortmulti.create.loader import LoaderOptions
from ortmulti.create.request import CreationRequest, Progress, core_options
from ortmulti.devices.device import Device
from ortmulti.devices.providers import Provider
from ortmulti.errors import EPFail, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException
from ortmulti.timeline import Timeline

# What ONNX Runtime may raise for a model that it has written itself.
_NOT_LOADABLE = (EPFail, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException)


class Receiver(Protocol):
    """Receives the sessions of a creation. It is called in the creation's thread; its exceptions end the creation.

    Attributes:
        progress: Called as ``progress(done, total, device)`` whenever a session is ready.
        bytes_loaded: Called as ``bytes_loaded(bytes, total)`` while shared weights are loaded.
    """

    progress: Progress | None
    bytes_loaded: Callable[[int, int], object] | None

    def on_devices(self, devices: Sequence[Device]) -> object:
        """Called when the devices are known, with the device of each session."""

    def on_session(self, index: int, session: _core.Session) -> object:
        """Called for each session, with its place in the request. The receiver closes it."""

    def on_failure(self, index: int, error: BaseException) -> object:
        """Called for each failed session, if the creation goes on without it."""

    def poll(self) -> object:
        """Called in short intervals; may raise to end the creation."""


@dataclass(eq=False)
class Attempt:
    """The creation of one request's sessions: what each way to create them needs, and a call of the core.

    The core calls `ready`, `failed`, ``poll``, ``progress`` and ``bytes_loaded`` during `create`, in the same thread.

    Attributes:
        request: The arguments.
        receiver: Receives the sessions, once one of them was confirmed.
        timeline: Receives the spans.
        keep_going: Whether the other sessions are created when one fails.
        hold: Makes the other GPUs' contexts wait for one; released if no session can come first.
        beside: A session on the request's one GPU, whose weights the sessions share as far as they have the same; None:
            all weights are read.
        options: Options of every session.
        devices: The device of each session, once `prepare` has found them.
        providers: The providers of each session, then, too.
        weights: The weights that sessions over the model as it is can share; None: unknown.
        prefetch: Reads the files of these weights ahead.
        confirmed: Whether a session was confirmed. If none was, the reason may be what the sessions have in common.
        waiting: Ready sessions that the receiver did not get, by their places.
        failures: Failures that the receiver does not know.
    """

    request: CreationRequest
    receiver: Receiver
    timeline: Timeline
    keep_going: bool = False
    hold: _core.ContextHold | None = None
    beside: _core.Session | None = None
    options: _core.SessionOptions = field(init=False)
    devices: list[Device] = field(default_factory=list, init=False)
    providers: list[list[Provider]] = field(default_factory=list, init=False)
    weights: _core.WeightList | None = field(default=None, init=False)
    prefetch: _core.Prefetch | None = field(default=None, init=False)
    confirmed: bool = field(default=False, init=False)
    waiting: dict[int, _core.Session] = field(default_factory=dict, init=False)
    failures: list[tuple[int, BaseException]] = field(default_factory=list, init=False)
    _confirm: Callable[[int, _core.Session], bool] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.options = core_options(self.request.options)
        self.poll = self.receiver.poll
        self.progress = self.receiver.progress
        self.bytes_loaded = self.receiver.bytes_loaded

    @property
    def on_gpu(self) -> bool:
        """Whether a session is on a GPU."""
        return any(device.kind == "cuda" for device in self.devices)

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

    def create(
        self,
        graph: str | bytes | bytearray | memoryview,
        options: _core.SessionOptions,
        weights: _core.WeightList | None = None,
        *,
        confirm: Callable[[int, _core.Session], bool] | None = None,
        **more: Any,
    ) -> str:
        """Create the sessions by one call of the core. Return why ONNX Runtime cannot load the model; empty if it can.

        Args:
            graph: The path of a model, or its bytes.
            options: Options of every session.
            weights: Weights that the sessions share.
            confirm: Called with each ready session and its place until it returns True. Then the receiver gets the
                sessions. None: they are right, and so are all errors.
            more: Further arguments of `core_sessions.create`.

        Raises:
            Error: Another reason, or a session was confirmed before.
        """
        self.confirmed, self._confirm = confirm is None, confirm
        try:
            core_sessions.create(
                graph,
                self.providers,
                options,
                self,
                serialize=self.request.serialize,
                weights=None if weights is None else self._shared(weights),
                preload=True,
                keep_going=self.keep_going,
                timeline=self.timeline,
                logged_as=self.request.model.path or self.request.model.url,
                hold=self.hold,
                **more,
            )
        except _NOT_LOADABLE as error:
            if self.confirmed:
                raise
            self.close()
            return str(error)
        finally:
            self._confirm = None
        return ""

    def _shared(self, weights: _core.WeightList) -> _core.SharedWeights:
        chosen = vars(self.request.loader or LoaderOptions())
        reading: dict[str, Any] = {name: value or 0 for name, value in chosen.items()}
        share = self.request.share is not None
        return _core.SharedWeights(weights, beside=self.beside, prefetch=self.prefetch, share=share, **reading)

    def weights_read(self, size: int) -> None:
        """So many bytes of the model's weights are in the host's memory."""
        if self.bytes_loaded is not None and size:
            self.bytes_loaded(size, sum(weight.length for weight in self.request.model.external.weights))
        self.poll()

    def ready(self, index: int, session: _core.Session) -> None:
        """A session can run."""
        self.waiting[index] = session
        if self.confirmed or (self._confirm is not None and self._confirm(index, session)):
            self.hand_over()

    def failed(self, index: int, error: BaseException) -> None:
        """A session failed."""
        self.failures.append((index, error))
        if self.confirmed:
            self.hand_over()

    def hand_over(self) -> None:
        """Confirm the sessions: the receiver gets those that wait."""
        self.confirmed = True
        for index in list(self.waiting):
            self.receiver.on_session(index, self.waiting.pop(index))
        while self.failures:
            self.receiver.on_failure(*self.failures.pop(0))

    def close(self) -> None:
        """Close the sessions that the receiver did not get, and forget the failures."""
        self.failures.clear()
        while self.waiting:
            self.waiting.popitem()[1].close()
