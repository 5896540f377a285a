"""The sessions of a pool in processes of their own. They exist from the start and stay."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ortmulti import _core, errors
from ortmulti._runtime import callbacks, startup
from ortmulti._runtime.threads import Task
from ortmulti.create.loader import LoadProgress, OnLoadProgress
from ortmulti.create.model import Model
from ortmulti.create.request import CreationRequest, Devices
from ortmulti.devices.device import name_devices
from ortmulti.errors import ClosedError, InvalidArgument
from ortmulti.interface.onnxruntime_sessions import SessionSpec, session_specs
from ortmulti.pool.configuration import Batching, Serving, Warmup
from ortmulti.pool.first_runs import FirstRuns
from ortmulti.pool.processes.session import ProcessSession, close_sessions, open_sessions
from ortmulti.pool.sleep import ModelFiles, SessionSleep, wait_until_awake
from ortmulti.timeline import Timeline

__all__ = ["ProcessMembers"]

# Seconds for present runs at the interpreter's end, and again after they were asked to end.
_PATIENCE_AT_EXIT = 10.0


def _end_runs(sessions: Sequence[ProcessSession]) -> None:
    """End all present runs, as far as possible."""
    for session in sessions:
        session.end_runs()


class _End:
    """Closes a pool. It is a separate object, so another thread can close a pool without references."""

    def __init__(self, core: _core.Pool, sessions: list[ProcessSession]) -> None:
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
            _end_runs(self._sessions)
            if not self._core.close(True, patience):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._core))  # freeing it would wait for them
            self._close_sessions()

    def _close_sessions(self) -> None:
        close_sessions(self._sessions)
        self.over = True
        _open.discard(self)

    def close_in_background(self) -> None:
        """Close it in a new thread: this thread may hold any lock, or closing may wait for it."""
        if not self.over and os.getpid() == self._process:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending and closes it
                threading.Thread(target=self.close, args=[True], name="ortmulti-close", daemon=True).start()


class ProcessMembers:
    """The members of a pool whose sessions are in processes; see `ortmulti.pool.members.Members`.

    Args:
        request: The common arguments of `load`.
        progress, version: As for `load`.
        make_core: Makes the core's pool.
        batching: How it joins requests.
        in_flight: Number of requests that a process on a GPU has at a time; one of them runs.

    Raises:
        As `load`; LibraryError also if the onnxruntime package cannot be imported.
    """

    takes_run_options = False

    def __init__(
        self,
        request: CreationRequest,
        progress: OnLoadProgress | None,
        make_core: Callable[[], _core.Pool],
        batching: Batching | None,
        in_flight: int,
        version: str,
    ) -> None:
        start = time.monotonic()
        self._specs = session_specs(
            request.model, request.devices, request.sessions_per_device, request.options, request.provider_options
        )
        self._files = ModelFiles(Model(self._specs[0].model))
        self._in_flight = in_flight
        self._version = version
        self._changing = threading.Lock()  # one sleep at a time
        self.timeline = Timeline()
        self.no_table: dict[str, str] = {}
        """Same as `Members.no_table`."""
        self._sessions = self._make(self._specs)

        def notify(ready: int, device: str) -> None:
            if progress is not None:
                progress(LoadProgress(0, 0, time.monotonic() - start, ready, len(self._specs), device))

        try:
            open_sessions(self._sessions, notify)
            startup.close_at_exit()
            if batching is not None:
                startup.ensure_open()  # the core joins requests as values of its ONNX Runtime
            callbacks.start()  # its thread also ends runs early
            signature = self._sessions[0].signature
            assert signature is not None
            self._signature = signature
            self.model = signature.model
            self.core = make_core()
            if batching is not None:
                from ortmulti.pool.rows import check_inputs

                check_inputs(self.core, batching, self.source, signature.inputs)
            self._end = _End(self.core, self._sessions)
            self._join(self._sessions)
            _open.add(self._end)
            atexit.unregister(_close_open)
            atexit.register(_close_open)
        except BaseException:  # Ctrl-C also between two of these steps
            close_sessions(self._sessions)
            raise

    def _make(self, specs: Sequence[SessionSpec]) -> list[ProcessSession]:
        return [
            ProcessSession(spec, self.timeline, self._in_flight if spec.device.kind == "cuda" else 1) for spec in specs
        ]

    def _join(self, sessions: Sequence[ProcessSession]) -> None:
        for session in sessions:
            session.join(self.core)

    def _of(self, device: str) -> list[ProcessSession]:
        return [session for session in self._sessions if session.device == device]

    @property
    def sessions(self) -> NoReturn:
        """Raise NotImplemented."""
        raise errors.NotImplemented(
            "the sessions of a pool with backend='processes' are in its workers' processes: call Pool.run"
        )

    @property
    def devices(self) -> list[str]:
        """Same as `Pool.devices`."""
        return [session.device for session in self._sessions]

    def description(self) -> Any:
        """Return the sessions' inputs, outputs and metadata; they are ready from the start."""
        return self._signature

    @property
    def expected(self) -> int:
        """Number of requests that can be under way."""
        return sum(len(session.runners) for session in self._sessions)

    @property
    def most(self) -> int:
        """The same: it is chosen by `load`."""
        return self.expected

    @property
    def source(self) -> Model | None:
        """Same as `Members.source`."""
        return self._files.model()

    def run_apart(self, output_names: Sequence[str], feed: Mapping[str, Any]) -> Sequence[Any]:
        """Run the first session beside the queue. Only before the first request: each process does one at a time."""
        names, values = self._signature.check(output_names, feed)
        return self._sessions[0].runners[0].run(0, names, values)

    def check_call(self, has_options: bool, on_device: bool, trace: bool) -> None:
        """Refuse all of them: the backend has none."""
        asked = {"run_options": has_options, "outputs='device'": on_device, "trace=True": trace}
        for name, given in asked.items():
            if given:
                raise InvalidArgument(f"backend='processes' has no {name}: its sessions are onnxruntime's")

    def warm_up(self, warmup: Warmup | bool) -> None:
        """Same as `Members.warm_up`. Ctrl-C ends the runs."""
        first_runs = FirstRuns(Serving(warmup=warmup), self.model)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                first_runs.run(self._signature, lambda feeds, runs: self.core.warm_up(feeds, runs, self.timeline._core))
            except BaseException as error:
                failures.append(error)

        task = Task(run, "ortmulti-warmup")
        try:
            task.start()
            task.wait()
        except BaseException:
            task.revoke()
            _end_runs(self._sessions)
            raise
        if failures:
            raise failures[0]

    def stats(self, bounds_ns: Sequence[int]) -> dict[str, Any]:
        """Return the core's statistics, with the restarts of processes and the model's version."""
        stats = {**self.core.stats(bounds_ns), "version": self._version}
        for device in stats["devices"]:
            device["restarts"] = sum(session.restarts for session in self._of(device["device"]))
        return stats

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

    def _stays(self, *_: object) -> NoReturn:
        raise errors.NotImplemented(
            "a pool with backend='processes' keeps the devices and the model that it was loaded with"
        )

    def trim(self, _devices: Devices | None) -> NoReturn:
        """Raise NotImplemented."""
        raise errors.NotImplemented("backend='processes' gives no memory back: use Pool.sleep(level='session')")

    add_devices = remove_devices = replace_model = _stays

    def sleep(
        self, level: str, devices: Devices | None, _keep: str | None, auto_wake: bool, timeout: float | None
    ) -> None:
        """Same as `Pool.sleep`."""
        if not _core.sleep_levels[level]:
            raise errors.NotImplemented(
                "a pool with backend='processes' has onnxruntime's weights, which cannot sleep by themselves: use "
                "level='session'"
            )
        end = None if timeout is None else time.monotonic() + timeout
        owner = weakref.ref(self)
        with self._changing:
            for device in self._named(devices):
                files = self._files.now(self._specs[0].config_entries)

                def present(device: str = device) -> list[ProcessSession]:
                    members = owner()
                    return [] if members is None else members._of(device)

                def make(device: str = device) -> Callable[[], None]:
                    members = owner()
                    if members is None:
                        raise ClosedError("the pool was closed before it woke")
                    return members._make_again(device)

                left = None if end is None else max(0.0, end - time.monotonic())
                SessionSleep(files, present, make).begin(self.core, level, device, auto_wake, left)

    def _make_again(self, device: str) -> Callable[[], None]:
        made = self._make([spec for spec in self._specs if str(spec.device) == device])
        for session, before in zip(made, self._of(device), strict=True):
            session.restarts = before.restarts
        try:
            open_sessions(made, lambda *_: None)
            self._join(made)
        except BaseException:
            close_sessions(made)
            raise

        def place() -> None:
            new = iter(made)
            self._sessions[:] = [next(new) if session.device == device else session for session in self._sessions]

        return place

    def wake(self, devices: Devices | None, timeout: float | None) -> None:
        """Same as `Pool.wake`."""
        with self._changing:
            names = self._named(devices)
            for device in names:
                self.core.wake(device)
        wait_until_awake(self.core, names, timeout)

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
