"""The interface of every strategy: start, create, first_run, close; and onnxruntime's sessions in this process."""

from __future__ import annotations

import abc
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ortmulti import _core
from ortmulti._runtime.closing import Closing
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.bench.strategies.onnxruntime_sessions import SessionSettings, create_session, open_package
from ortmulti.errors import Error, InvalidArgument
from ortmulti.interface.session_observer import observer

Array = np.ndarray[Any, np.dtype[Any]]


class Creation(NamedTuple):
    """The seconds of one creation.

    Attributes:
        wall: from the call until the last session could run.
        sessions: each session's own share, in the order of the devices. Creations at the same time overlap, so the sum
            may be larger than `wall`. Opening the libraries belongs to no session.
        not_shared: reasons why some or all weights were not shared.
    """

    wall: float
    sessions: tuple[float, ...]
    not_shared: Sequence[str] = ()


class FirstRun(NamedTuple):
    """The first inference of every session: seconds until the last one was done, and each session's outputs."""

    wall: float
    outputs: tuple[list[Array], ...]


def make_contexts(devices: Sequence[str]) -> None:
    """Make the CUDA contexts of `devices` in this process, in that order, without opening the CUDA libraries."""
    for device in cuda_devices(devices):
        _core.cuda_memory(_core.parse_device(device)[1])


class Strategy(Closing):
    """Sessions of one model, one on each device named.

    The calls come in this order: `start`, `create`, `first_run`, `close`; `close` may come at any point and again.
    `make_contexts` may come before `create`. Usable as a context manager, which closes.

    Args:
        model: the .onnx file.
        devices: "cpu" or "cuda:<index>", one for each session; a device may be named several times.
        settings: the options that every session gets.

    Raises:
        InvalidArgument: `devices` is empty, or has another kind of name.

    Attributes:
        model: may be changed before another `create`. The earlier sessions are closed with the strategy, or by that
            `create`.
    """

    _sessions: Any = ()
    _threads: ThreadPoolExecutor | None = None

    def __init__(self, model: Path, devices: Sequence[str], settings: SessionSettings) -> None:
        if not devices:
            raise InvalidArgument("no device was given")
        for device in devices:
            if not re.fullmatch(r"cpu|cuda:\d+", device):
                raise InvalidArgument(f"{device!r} is not a device; devices are 'cpu' and 'cuda:<index>'")
        self.model = model
        self.devices = tuple(devices)
        self.settings = settings

    def start(self) -> float:
        """Start interpreters and import Python's own modules, without ONNX Runtime and CUDA. Return its seconds."""
        begin = time.perf_counter()
        self._threads = ThreadPoolExecutor(len(self.devices), "session")
        self._start()
        return time.perf_counter() - begin

    def _start(self) -> None:
        """Start what comes beside a thread for each session."""

    def make_contexts(self) -> None:
        """Make the devices' CUDA contexts in the sessions' processes, to measure a creation without them."""
        make_contexts(self.devices)

    @abc.abstractmethod
    def create(self) -> Creation:
        """Open the libraries of ONNX Runtime and CUDA if necessary, and create the sessions.

        Raises:
            Error: a session could not be created, or not on its device; the message names the device.
        """

    def first_run(self, feeds: Mapping[str, Array]) -> FirstRun:
        """Run every session once with the same inputs by name, as this strategy would in use."""
        begin = time.perf_counter()
        outputs = self._each(self._run, self._sessions, self.devices, [feeds] * len(self.devices))
        return FirstRun(time.perf_counter() - begin, tuple(outputs))

    def _run(self, session: Any, device: str, feeds: Mapping[str, Array]) -> list[Array]:
        try:
            with observer().running(session):
                outputs: list[Array] = session.run(None, dict(feeds))
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise Error(f"{device}: the first run failed: {error}") from error
        return outputs

    def _each(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        """Call a function for each session, all at the same time, and raise the earliest failure."""
        assert self._threads is not None, "start() comes first"
        futures = [self._threads.submit(function, *each) for each in zip(*arguments, strict=True)]
        for future in as_completed(futures):
            future.result()
        return [future.result() for future in futures]

    def close(self) -> None:
        """Close the sessions and end the processes of `start`."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._sessions = ()


class Threads(Strategy):
    """onnxruntime sessions, created and run by as many Python threads.

    The longer onnxruntime holds the GIL, the less happens at the same time.
    """

    def create(self) -> Creation:
        begin = time.perf_counter()
        onnxruntime = open_package(self.devices)

        def create(device: str) -> tuple[Any, float]:
            start = time.perf_counter()
            return create_session(onnxruntime, self.model, device, self.settings), time.perf_counter() - start

        self._sessions, seconds = zip(*self._each(create, self.devices), strict=True)
        return Creation(time.perf_counter() - begin, seconds)


class Sequential(Threads):
    """onnxruntime sessions, created and run one after the other: the base of the comparison."""

    def start(self) -> float:
        return 0.0

    def _each(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return list(map(function, *arguments))
