"""One process for each session, over onnxruntime, as a user would write it: multiprocessing's, and shared memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ortmulti._runtime.closing import Closing
from ortmulti.bench.strategies.onnxruntime_sessions import SessionSettings, create_session, open_package
from ortmulti.create.sample_inputs import Declaration
from ortmulti.errors import DeviceError, Error
from ortmulti.interface.session_observer import SessionObserver, observe, observer

from .base import Array, Creation, Strategy, make_contexts

_ALIGNMENT = 64  # which suits every kernel's loads

_Result = TypeVar("_Result")
_Layout = list[tuple[str, str, tuple[int, ...], int]]
"""The name, dtype, shape and place in shared memory of each array."""


class SessionProcess(Closing):
    """A process for one session. It is spawned. Numbers go there by shared memory; other inputs, and outputs, pickled.

    Only one thread may use it at a time.

    Args:
        name: The device, or more, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._memory: SharedMemory | None = None

    def call(self, when: str, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function of a module in the process.

        Args:
            when: For the message if the process ends.

        Raises:
            DeviceError: The process has ended.
            Exception: What the function raised.
        """
        try:
            return self._executor.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise DeviceError(f"{self._name}: its process ended {when}") from None

    def create(self, model: str | Path, device: str, settings: SessionSettings) -> float:
        """Create the session, which replaces an earlier one, and return its seconds without opening the libraries."""
        return self.call("while its session was created", _create, model, device, settings)

    def get_inputs(self) -> list[Declaration]:
        """As onnxruntime's session."""
        return self.call("before its first run", _get_inputs)

    def run(self, _names: object, feeds: Mapping[str, Any]) -> list[Array]:
        """Run the session; all outputs come back."""
        numbers = {name: array for name, array in feeds.items() if array.dtype.kind in "biufc"}
        others = {name: array for name, array in feeds.items() if name not in numbers}
        memory, size = self._memory, sum(_room(array) for array in numbers.values())
        if memory is None or memory.size < size:
            self._free()
            memory = self._memory = SharedMemory(create=True, size=max(1, size))
        layout: _Layout = []
        place = 0
        for name, array in numbers.items():
            np.ndarray(array.shape, array.dtype, memory.buf, place)[...] = array
            layout.append((name, array.dtype.str, array.shape, place))
            place += _room(array)
        return self.call("during a run", _run, memory.name, layout, others)

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._executor.shutdown(cancel_futures=True)
        self._free()

    def _free(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory.unlink()
            self._memory = None


def _room(array: Array) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


class Processes(Strategy):
    """onnxruntime sessions, each in its own process, with inputs in shared memory.

    `start` starts the interpreters. In `create` each opens the libraries by itself. The first run includes the transfer
    of inputs and outputs.
    """

    make_observer: Callable[[int], SessionObserver] | None = None
    """Makes the observer of each process, from its number; the process calls it, so that it has to be picklable."""

    def _start(self) -> None:
        self._sessions = [SessionProcess(self._name(number)) for number in range(len(self.devices))]
        self._each(
            lambda number, process: process.call("while it was started", _observe, self.make_observer, number),
            range(len(self.devices)),
            self._sessions,
        )

    def _name(self, number: int) -> str:
        return f"{self.devices[number]} (process {number + 1} of {len(self.devices)})"

    def make_contexts(self) -> None:
        self._each(
            lambda process, device: process.call("while its context was made", make_contexts, [device]),
            self._sessions,
            self.devices,
        )

    def create(self) -> Creation:
        begin = time.perf_counter()
        count = len(self.devices)
        given = [self.model] * count, self.devices, [self.settings] * count
        seconds = self._each(SessionProcess.create, self._sessions, *given)
        return Creation(time.perf_counter() - begin, tuple(seconds))

    def _run(self, session: SessionProcess, device: str, feeds: Mapping[str, Array]) -> list[Array]:  # noqa: ARG002
        try:
            return session.run(None, feeds)
        except DeviceError:
            raise
        except Error as error:
            name = self._name(self._sessions.index(session))
            raise Error(f"{name}: the first run failed: {error}") from None

    def close(self) -> None:
        sessions = self._sessions
        super().close()
        for process in sessions:
            if self.make_observer is not None:
                with contextlib.suppress(DeviceError):
                    process.call("when it was closed", _finish)
            process.close()


# What a process has: its session, and the memory of its inputs, to which it stays attached.
_session: Any = None
_attached: SharedMemory | None = None


def _observe(make_observer: Callable[[int], SessionObserver] | None, number: int) -> None:
    if make_observer is not None:
        observe(make_observer(number))


def _finish() -> None:
    observer().finish()


def _create(model: str | Path, device: str, settings: SessionSettings) -> float:
    global _session
    package = open_package([device])
    begin = time.perf_counter()
    _session = create_session(package, model, device, settings)
    return time.perf_counter() - begin


def _get_inputs() -> list[Declaration]:
    return [SimpleNamespace(name=each.name, type=each.type, shape=each.shape) for each in _session.get_inputs()]


def _run(name: str, layout: _Layout, others: Mapping[str, Array]) -> list[Array]:
    global _attached
    if _attached is None or _attached.name != name:
        _attached = SharedMemory(name)
    numbers = {key: np.ndarray(shape, dtype, _attached.buf, place) for key, dtype, shape, place in layout}
    try:
        with observer().running(_session):
            outputs: list[Array] = _session.run(None, {**numbers, **others})
    except Exception as error:  # onnxruntime's exceptions cannot all be pickled
        raise Error(str(error)) from None
    return outputs
