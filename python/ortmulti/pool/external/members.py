"""The sessions of a pool in processes of their own. They exist from the start and stay."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from ortmulti import _core, errors
from ortmulti._runtime import callbacks, startup
from ortmulti._runtime.threads import Task
from ortmulti.devices.device import name_devices
from ortmulti.errors import ClosedError, InvalidArgument
from ortmulti.pool.configuration import Batching, Serving, Warmup, batching_argument
from ortmulti.pool.external.processes import ProcessSession, ProcessSessions
from ortmulti.pool.external.signature import Signature
from ortmulti.pool.first_runs import FirstRuns
from ortmulti.pool.members_protocol import Devices
from ortmulti.pool.sleep import SessionSleep, wait_until_awake
from ortmulti.timeline import Timeline

__all__ = ["ProcessMembers"]

# Seconds for present runs at the interpreter's end, and again after they were asked to end.
_PATIENCE_AT_EXIT = 10.0


class _End:
    """Closes a pool. It is a separate object, so another thread can close a pool without references."""

    def __init__(self, core: _core.Pool, sessions: ProcessSessions) -> None:
        self._core = core
        self._sessions = sessions
        self._process = os.getpid()
        self.over = False

    def close(self, cancel_waiting: bool, patience: float | None = None) -> None:
        """Same as `Pool.close`.

        Args:
            patience: Seconds until runs are asked to end, and further seconds until they are abandoned.
        """
        if self._core.close(cancel_waiting, patience) and os.getpid() == self._process:
            self._close_sessions()
        elif os.getpid() == self._process:
            self._sessions.end_runs()
            if not self._core.close(True, patience):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._core))  # freeing it would wait for them
            self._close_sessions()

    def _close_sessions(self) -> None:
        self._sessions.close()
        self.over = True
        _open.discard(self)

    def close_in_background(self) -> None:
        """Close it in a new thread: this thread may hold any lock, or closing may wait for it."""
        if not self.over and os.getpid() == self._process:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending and closes it
                threading.Thread(target=self.close, args=[True], name="ortmulti-close", daemon=True).start()


class ProcessMembers:
    """See `ortmulti.pool.members_protocol.PoolMembers`.

    Args:
        sessions: Ready sessions.
        max_queue, batching, version: As for `load`.
    """

    def __init__(
        self, sessions: ProcessSessions, max_queue: int | None, batching: Batching | None, version: str
    ) -> None:
        startup.close_at_exit()
        if batching is not None:
            startup.ensure_open()  # the core joins requests as values of its ONNX Runtime
        callbacks.start()  # its thread also ends runs early
        self._version = version
        self._changing = threading.Lock()  # one sleep at a time
        self.core = _core.Pool(max_queue, batching_argument(batching))
        self.core.check_inputs([(declared.name, declared.shape) for declared in sessions.signature.inputs])
        self._sessions = sessions
        self._end = _End(self.core, sessions)
        sessions.join(self.core)
        _open.add(self._end)
        atexit.unregister(_close_open)
        atexit.register(_close_open)

    @property
    def sessions(self) -> NoReturn:
        """Raise NotImplemented."""
        raise errors.NotImplemented(
            "the sessions of a pool with backend='processes' are in its workers' processes: call Pool.run"
        )

    @property
    def devices(self) -> list[str]:
        """The device of each session."""
        return self._sessions.devices

    @property
    def timeline(self) -> Timeline:
        """Same as `Pool.timeline`."""
        return self._sessions.timeline

    def description(self) -> Signature:
        """Return the sessions' inputs, outputs and metadata; they are ready from the start."""
        return self._sessions.signature

    @property
    def model(self) -> str:
        """The model, for messages."""
        return self._sessions.signature.model

    @property
    def expected(self) -> int:
        """Same as `ProcessSessions.expected`."""
        return self._sessions.expected

    @property
    def most(self) -> int:
        """The same: it is chosen by `load`."""
        return self.expected

    def check_call(self, has_options: bool, on_device: bool, trace: bool) -> None:
        """Refuse all of them: the backend has none."""
        asked = {"run_options": has_options, "outputs='device'": on_device, "trace=True": trace}
        for name, given in asked.items():
            if given:
                raise InvalidArgument(f"backend='processes' has no {name}: its sessions are onnxruntime's")

    def before_submit(self) -> None:
        """Raise ClosedError if the interpreter is ending."""
        if not callbacks.start():
            raise ClosedError("the interpreter is ending: the pool takes no more requests")

    def warm_up(self, warmup: Warmup | bool) -> None:
        """Same as `PoolMembers.warm_up`. Ctrl-C ends the runs."""
        first_runs = FirstRuns(Serving(warmup=warmup), self.model)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                first_runs.run(
                    self._sessions.signature, lambda feeds, runs: self.core.warm_up(feeds, runs, self.timeline._core)
                )
            except BaseException as error:
                failures.append(error)

        task = Task(run, "ortmulti-warmup")
        try:
            task.start()
            task.wait()
        except BaseException:
            task.revoke()
            self._sessions.end_runs()
            raise
        if failures:
            raise failures[0]

    def stats(self) -> dict[str, Any]:
        """Return the core's statistics, with the restarts of processes and the model's version."""
        stats = {**self.core.stats(), "version": self._version}
        for device in stats["devices"]:
            device["restarts"] = self._sessions.restarts(device["device"])
        return stats

    def states(self) -> dict[str, tuple[str, str]]:
        """Return each device's state: ready or broken."""
        return self.core.states()

    def wait_ready(self, _timeout: float | None, devices: Devices | None) -> list[str]:
        """Return at once: `load` has returned with ready sessions."""
        return self._named(devices)

    def _named(self, devices: Devices | None) -> list[str]:
        if self.core.closed():
            raise ClosedError("the pool is closed")
        there = list(dict.fromkeys(self.devices))
        named = None if devices is None else name_devices(devices)
        wanted = there if named is None else [str(device) for device in named]
        for device in wanted:
            if device not in there:
                raise InvalidArgument(f"the pool has no session on {device}: it has {', '.join(there)}")
        return wanted

    def add_devices(self, _devices: Devices) -> None:
        """Raise NotImplemented."""
        self._stays()

    def remove_devices(self, _devices: Devices) -> None:
        """Raise NotImplemented."""
        self._stays()

    def replace_model(self, *_: object) -> None:
        """Raise NotImplemented."""
        self._stays()

    def sleep(
        self, level: str, devices: Devices | None, _keep: str | None, auto_wake: bool, timeout: float | None
    ) -> None:
        """Same as `Pool.sleep`."""
        if level == "weights":
            raise errors.NotImplemented(
                "a pool with backend='processes' has onnxruntime's weights, which cannot sleep by themselves: use "
                "level='session'"
            )
        end = None if timeout is None else time.monotonic() + timeout
        owner = weakref.ref(self)
        with self._changing:
            for device in self._named(devices):
                files = self._sessions.files()

                def present(device: str = device) -> list[ProcessSession]:
                    members = owner()
                    return [] if members is None else members._sessions.of(device)

                def make(device: str = device) -> Callable[[], None]:
                    members = owner()
                    if members is None:
                        raise ClosedError("the pool was closed before it woke")
                    return members._make_again(device)

                left = None if end is None else max(0.0, end - time.monotonic())
                SessionSleep(files, present, make).begin(self.core, device, auto_wake, left)

    def _make_again(self, device: str) -> Callable[[], None]:
        sessions = self._sessions.again(device)
        try:
            sessions.open()
            sessions.join(self.core)
        except BaseException:
            sessions.close()
            raise
        return partial(self._sessions.replace, sessions)

    def wake(self, devices: Devices | None, timeout: float | None) -> None:
        """Same as `Pool.wake`."""
        with self._changing:
            names = self._named(devices)
            for device in names:
                self.core.wake(device)
        wait_until_awake(self.core, names, timeout)

    def _stays(self) -> NoReturn:
        raise errors.NotImplemented(
            "a pool with backend='processes' keeps the devices and the model that it was loaded with"
        )

    def close(self, cancel_pending: bool) -> None:
        """Same as `Pool.close`."""
        self._end.close(cancel_pending)

    def closed(self) -> bool:
        """Same as `Pool.closed`."""
        return self.core.closed()

    def abandon(self) -> None:
        """Close a pool without references, also after a `close` that Ctrl-C ended."""
        self._end.close_in_background()


_open: set[_End] = set()


def _close_open() -> None:
    for end in list(_open):
        end.close(cancel_waiting=True, patience=_PATIENCE_AT_EXIT)
