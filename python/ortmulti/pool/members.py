"""The sessions of a pool and their devices. They are added, removed and replaced while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ortmulti import _core
from ortmulti._runtime import native, startup
from ortmulti._runtime.threads import Changes, Task
from ortmulti.create.model import Model
from ortmulti.create.request import CreationRequest, Devices, Progress, core_options
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import ClosedError, DeadlineExceeded, DeviceError, ForkError, InvalidArgument, OutOfMemory
from ortmulti.interface.session import InferenceSession, Sessions
from ortmulti.loading import prewarm
from ortmulti.options.model_additions import replacing_weights
from ortmulti.options.session_options import RunOptions
from ortmulti.pool.configuration import Serving, Warmup
from ortmulti.pool.first_runs import FirstRuns
from ortmulti.pool.member import MemberCreation
from ortmulti.pool.model_interface import check_same, check_verified
from ortmulti.pool.sleep import ModelFiles, SessionSleep, wait_until_awake
from ortmulti.timeline import Timeline

__all__ = ["Members"]

LOGGER = logging.getLogger("ortmulti")

# A pool may sleep and wake for months.
_MOST_IN_TIMELINE = 100


class Members:
    """The sessions of a pool, and the core's pool that they belong to.

    Args:
        request: The arguments of `load`.
        make_core: Makes a core's pool, one for each model.
        serving: How the sessions serve.
        version: The model's label in `stats`.
        max_queue: That of the core's pools.
    """

    def __init__(
        self,
        request: CreationRequest,
        make_core: Callable[[], _core.Pool],
        serving: Serving,
        version: str = "",
        max_queue: int | None = None,
    ) -> None:
        self._request = request
        self.max_queue = max_queue
        """How many requests may wait; None: any number."""
        self._make_core = make_core
        self._serving = serving
        self.model = str(request.model)
        """The present model, for messages."""
        self._first_runs = FirstRuns(serving, self.model)
        self._process = os.getpid()
        self._changing = threading.Lock()  # one change of the members at a time; before the condition's lock
        self._lock = native.RLock()
        self._changes = Changes()  # under the lock
        self._loads: set[MemberCreation] = set()
        self._wakes: set[MemberCreation] = set()
        self._files = ModelFiles(request.model)
        self._drops = 0
        self._behind: tuple[Task, MemberCreation] | None = None  # the first load, where it has a thread of its own
        # Of a model that was replaced, while it answers: the core's pool and the sessions.
        self._retiring: list[tuple[_core.Pool, list[InferenceSession]]] = []
        self._targets: list[str] | None = None
        self._members: dict[int, InferenceSession] = {}  # by their places
        self._said: set[str] = set()
        self._closed = False
        self._cancelled = False  # what waits
        self.core = make_core()
        """The core's pool of the present model. An attribute, since each request reads it."""
        self.no_table: dict[str, str] = {}
        """Why outputs that `Pool.map_rows` was asked for have no rows, by name; empty: they have, or may have."""
        self.error: BaseException | None = None
        """How the load failed."""
        self.timeline = Timeline()
        """The spans of loading the present model."""
        self._sessions = Sessions((), self.timeline)
        self.version = version
        """Label of the present model."""
        _live.add(self)
        startup.before_shut_down(_close_all)
        startup.close_at_exit()

    @property
    def sessions(self) -> Sessions:
        """Same as `Pool.sessions`."""
        return self._sessions

    @property
    def devices(self) -> list[str]:
        """Same as `Pool.devices`."""
        return self._sessions.devices

    def description(self) -> InferenceSession:
        """Wait for the first session and return it."""
        if not self._sessions:
            self._wait_until(lambda: self._members or not self._loads)
        if not (sessions := self._sessions):
            self._raise_if_over()
            raise DeviceError("the pool has no session")
        return sessions[0]

    @property
    def source(self) -> Model | None:
        """The present model; None: its file has changed since it was loaded."""
        return self._files.model()

    def run_apart(self, output_names: Sequence[str], feed: Mapping[str, Any]) -> Sequence[Any]:
        """Run the first session beside the queue. Errors are not logged."""
        options = RunOptions()
        options.log_severity_level = 4
        outputs: Sequence[Any] = self.description().run(output_names, feed, options)
        return outputs

    def limit_sessions(self, why_not: Callable[[str], str]) -> None:
        """Have this asked before further sessions are made: see `MoreSessions`."""
        self._serving.more.why_not = why_not

    def warm_up(self, warmup: Warmup | bool) -> None:
        """Run every session, all at the same time, beside the queue. With True: warn if the inputs do not fit."""
        FirstRuns(dataclasses.replace(self._serving, warmup=warmup), self.model).run(
            self._sessions[0], lambda feeds, runs: self.core.warm_up(feeds, runs, self.timeline._core)
        )

    def closed(self) -> bool:
        """Same as `Pool.closed`."""
        sessions = self._sessions
        if self.core.closed() or not sessions or not all(session.closed for session in sessions):
            return self.core.closed()
        asleep = any(device["asleep"] for device in self.core.stats()["devices"])
        return not asleep and self._sessions is sessions  # else it has just woken

    # The first load.

    def start(
        self,
        progress: Progress | None = None,
        bytes_loaded: Callable[[int, int], object] | None = None,
    ) -> None:
        """Begin to load, and return when as many are ready as the request says. After an error nothing is left."""
        named, wait = self._request.named, self._request.loading.wait
        if named is None:
            self.core.set_opening(True)
        else:
            per_device = self._request.sessions_per_device
            self._expect([device for device in named for _ in range(per_device)])
        gpus = [0] if named is None else [device.index for device in named if device.kind == "cuda"]
        first = gpus[0] if gpus and wait == "first" else None
        loading = MemberCreation(
            self._request,
            self.timeline,
            self._first_runs,
            self._joins,
            first=first,
            keep_going=self._request.loading.require == "any",
            one_after_another=wait != "all",
            on_devices=self._know_devices,
            not_joined=self._failed,
            progress=progress,
            bytes_loaded=bytes_loaded,
        )
        self._loads.add(loading)
        if wait == "all":
            try:
                self._load(loading)
            except BaseException:
                self.error = None  # nobody has the pool, which is in the frames of the error
                raise
            return
        task = Task(partial(self._load_behind, loading), "ortmulti-load")
        self._behind = (task, loading)
        try:
            task.start()
            startup.ensure_open()  # beside the driver's start: requests need it even before there is a session
            if wait == "first":
                self._wait_until(lambda: self._members)
        except BaseException:
            self.close(cancel_pending=True)
            raise
        if wait == "first" and self.error is not None:
            self.close(cancel_pending=True)
            raise self.error

    def _load(self, loading: MemberCreation) -> None:
        try:
            loading.run()
        except BaseException as error:
            with self._lock:
                if not self._closed:
                    self.error = error
                    self.core.fail(error)  # first: threads that wait here are notified after it
                self._loads.discard(loading)
                self._changes.notify()
            self.close(cancel_pending=True)
            raise
        with self._lock:
            self._loads.discard(loading)
            self._changes.notify()

    def _load_behind(self, loading: MemberCreation) -> None:
        try:
            self._load(loading)
        except BaseException as error:
            if self.error is error:
                LOGGER.error("the pool of %s was closed, since loading it failed: %s", self.model, error)
        finally:
            self._behind = None  # it has this object

    def _know_devices(self, devices: Sequence[Device]) -> None:
        prewarm.hint_at_unused_gpus(devices)
        with self._lock:
            if self._targets is None:
                with contextlib.suppress(ClosedError):
                    self._expect(devices)
                self.core.set_opening(False)

    def _expect(self, devices: Sequence[Device]) -> None:
        self._targets = list(map(str, devices))
        for device, count in Counter(self._targets).items():
            self.core.expect(device, count)

    def _joins(self, loading: MemberCreation, index: int, session: InferenceSession) -> None:
        device = session.device
        try:
            loading.let_in(session, self.core)
        except (ClosedError, DeviceError):
            if not (self._closed or self._removed(device)):
                raise
            session.close()  # it came too late
        else:
            with self._lock:
                removed = self._removed(device)  # since it was added
                if not removed:
                    self._place({index: session})
            if removed:
                session.close()

    def _removed(self, device: str) -> bool:
        return self.core.states().get(device, ("", ""))[0] == "removed"

    def _failed(self, index: int, error: BaseException) -> None:
        assert self._targets is not None
        device = self._targets[index]
        self.core.not_coming(device, 1, error)
        with self._lock:
            said = device in self._said
            self._said.add(device)
            self._changes.notify()
        if not said:
            LOGGER.warning("the pool of %s goes on without a session on %s: %s", self.model, device, error)

    def _place(self, sessions: Mapping[int, InferenceSession]) -> None:
        self._members.update(sessions)
        self._show()

    def _show(self) -> None:
        self._sessions = Sessions(_in_order(self._members), self.timeline)
        self._changes.notify()

    @property
    def expected(self) -> int:
        """Number of requests that are under way at first where others wait, as far as known; at least 1."""
        return self._under_way(_core.at_first_in_flight, 1)

    @property
    def most(self) -> int:
        """The same, after the core has chosen as many as it may."""
        return self._under_way(_core.max_in_flight, _core.max_in_flight_on_cpu)

    @property
    def on_gpu(self) -> bool:
        """Whether it has a GPU, or may have one: its devices are not known yet."""
        return not self._targets or any(target.startswith("cuda:") for target in self._targets)

    def _under_way(self, chosen_on_gpu: int, chosen_on_cpu: int) -> int:
        sessions = max(1, len(self._members), len(self._targets or ()))
        if self.on_gpu:
            return sessions * (self._serving.most_on_gpu or chosen_on_gpu)
        return chosen_on_cpu if self._serving.in_flight == 0 and sessions == 1 else sessions

    # Readiness.

    def stats(self, bounds_ns: Sequence[int]) -> dict[str, Any]:
        """Same as `Pool.stats`."""
        return {**self.core.stats(bounds_ns), "version": self.version}

    def wait_ready(self, timeout: float | None, devices: Devices | None) -> list[str]:
        """Same as `Pool.wait_ready`."""
        named = None if devices is None else name_devices(devices)
        wanted = None if named is None else list(dict.fromkeys(map(str, named)))
        end = None if timeout is None else time.monotonic() + timeout
        self._check_process()
        while True:
            with self._lock:
                self._raise_if_over()
                states = self.core.states()
                ready = [device for device, (state, _) in states.items() if state == "ready"]
                if wanted is None:
                    missing = [device for device, (state, _) in states.items() if state == "starting"]
                    if not self._loads:
                        return ready
                else:
                    missing = [device for device in wanted if device not in ready]
                    for device in missing:
                        _check_coming(device, states, self._targets is None)
                    if not missing:
                        return wanted
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceeded(f"not ready within {timeout} s: {', '.join(missing) or 'every device'}")
                change = self._changes.next()
            change.wait(left)

    def _wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true or the pool is over."""
        self._check_process()
        while True:
            with self._lock:
                if condition() or self.error or self._closed:
                    return
                change = self._changes.next()
            change.wait()

    def _raise_if_over(self) -> None:
        if self.error is not None:
            raise self.error
        if self._closed:
            raise ClosedError("the pool is closed")

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # a lock may be held for ever there
            raise ForkError("the pool or repository was made before this process was forked; make it after the fork")

    # Changes.

    def add_devices(self, devices: Devices) -> None:
        """Same as `Pool.add_devices`."""
        named = name_devices(devices)
        self._check_process()
        with self._changing:
            self._begin_change()
            present = [device for device, (state, _) in self.core.states().items() if state in ("starting", "ready")]
            if named is None:
                named = [device for device in parse_devices("all") if str(device) not in present]
            names = [str(device) for device in named for _ in range(self._request.sessions_per_device)]
            for device in names:
                if device in present:
                    raise InvalidArgument(f"{device} is in the pool already")
            if not names:
                return
            for device, (state, _) in self.core.states().items():
                if device in names and state == "broken":
                    self._remove(device)
            counts = Counter(names)
            for device, count in counts.items():
                self.core.expect(device, count)
            request = dataclasses.replace(self._request, devices=named)
            loading = self._beside(request, self.core, self.timeline, self._first_runs)
            try:
                self._run(loading)
                with self._lock:
                    self._raise_if_over()
                    first = max(self._members, default=0) + 1 + len(self._targets or ())
                    self._place({first + index: session for index, session in loading.sessions.items()})
            except BaseException as error:
                for device, count in counts.items():
                    self.core.not_coming(device, count, error)
                for device in dict.fromkeys(session.device for session in _in_order(loading.sessions)):
                    self.core.remove(device)
                loading.close()
                raise

    def remove_devices(self, devices: Devices) -> None:
        """Same as `Pool.remove_devices`."""
        named = name_devices(devices)
        if named is None:
            raise InvalidArgument("a pool without devices answers nothing: close it")
        names = list(dict.fromkeys(map(str, named)))
        self._check_process()
        with self._changing:
            self._begin_change()
            states = {device: state for device, (state, _) in self.core.states().items() if state != "removed"}
            for device in names:
                if device not in states:
                    raise InvalidArgument(f"the pool has no session on {device}")
            usable = {device for device, state in states.items() if state in ("starting", "ready")}
            if usable and usable <= set(names):
                raise InvalidArgument(
                    f"without {', '.join(names)} the pool would have no device left: add others before, or close it"
                )
            for device in names:
                self._remove(device)

    def _remove(self, device: str) -> None:
        self.core.remove(device)
        with self._lock:
            gone = {index: session for index, session in self._members.items() if session.device == device}
            for index in gone:
                del self._members[index]
            self._show()
        for session in _in_order(gone):
            session.close()

    def sleep(
        self, level: str, devices: Devices | None, keep: str | None, auto_wake: bool, timeout: float | None
    ) -> None:
        """Same as `Pool.sleep`."""
        end = None if timeout is None else time.monotonic() + timeout
        self._check_process()
        with self._changing:
            self._begin_change()
            found = self._named(devices)
            gpus = {device: found[device] for device in found if device.startswith("cuda:")}
            closes = _core.sleep_levels[level]
            for device in gpus if not closes and devices is None and gpus else found:
                left = None if end is None else max(0.0, end - time.monotonic())
                if closes:
                    self._drop_sessions(level, device, auto_wake, left)
                else:
                    self.core.sleep(device, level, keep == "pinned", auto_wake, left, self.timeline._core)

    def trim(self, devices: Devices | None) -> None:
        """Same as `Pool.trim`."""
        self._check_process()
        with self._lock:
            self._raise_if_over()
        for device in self._named(devices):
            self.core.give_back(device, False)

    def _drop_sessions(self, level: str, device: str, auto_wake: bool, timeout: float | None) -> None:
        files = self._files.now(core_options(self._request.options).config_entries)
        with self._lock:
            places = sorted(place for place, session in self._members.items() if session.device == device)
            request = dataclasses.replace(self._request, devices=[device] * len(places), sessions_per_device=1)
            owner, of = weakref.ref(self), weakref.ref(self.core)
        self._drops += 1
        timeline = self.timeline if self._drops <= _MOST_IN_TIMELINE else Timeline()

        def present() -> list[InferenceSession]:
            members = owner()
            if members is None or members.core is not of():
                return []
            return [members._members[place] for place in places]

        def make() -> Callable[[], None]:
            members, core = owner(), of()
            if members is None or core is None:
                raise ClosedError("the pool was closed before it woke")
            return members._make_again(core, request, timeline, places)

        begin = time.monotonic_ns()
        SessionSleep(files, present, make).begin(self.core, level, device, auto_wake, timeout)
        timeline.add("sleep", begin, time.monotonic_ns(), device)

    def _make_again(
        self, core: _core.Pool, request: CreationRequest, timeline: Timeline, places: Sequence[int]
    ) -> Callable[[], None]:
        loading = self._beside(request, core, timeline, self._first_runs)
        try:
            with self._lock:
                if self._cancelled:
                    raise ClosedError("the pool was closed before it woke")
                self._wakes.add(loading)
            loading.run()
        except BaseException:
            loading.close()
            raise
        finally:
            with self._lock:
                self._wakes.discard(loading)
        made = _in_order(loading.sessions)

        def place() -> None:
            with self._lock:
                if core is self.core:
                    self._place(dict(zip(places, made, strict=True)))
                for retiring, sessions in self._retiring:
                    if core is retiring:
                        sessions.extend(made)

        return place

    def wake(self, devices: Devices | None, timeout: float | None) -> None:
        """Same as `Pool.wake`."""
        self._check_process()
        with self._changing:  # a sleep that has begun ends before
            self._begin_change()
            core, names = self.core, list(self._named(devices))
            for device in names:
                core.wake(device)
        wait_until_awake(core, names, timeout)

    def _named(self, devices: Devices | None) -> dict[str, list[InferenceSession]]:
        """Return the sessions of these devices, by their names; of all devices for None."""
        found: dict[str, list[InferenceSession]] = {}
        for session in self._sessions:
            found.setdefault(session.device, []).append(session)
        if devices is None or (named := name_devices(devices)) is None:
            return found
        for device in map(str, named):
            if device not in found:
                raise InvalidArgument(f"the pool has no session on {device}: it has {', '.join(found)}")
        return {str(device): found[str(device)] for device in named}

    def replace_model(
        self,
        model: Model,
        warmup: Warmup | bool | None,
        version: str = "",
        same_interface: bool = True,
        verify: Callable[[Members], object] | None = None,
    ) -> None:
        """Same as `Pool.replace_model`."""
        if methods := replacing_weights(core_options(self._request.options)):
            raise InvalidArgument(
                f"the pool's session options have weights of the present model ({methods}), which would replace those "
                "of the new model by name: load it into another pool"
            )
        self._check_process()
        with self._changing:
            self._begin_change()
            self._wait_until(lambda: not self._loads)  # others begin no load meanwhile
            with self._lock:
                self._raise_if_over()
                devices = [session.device for session in self._sessions]
            if not devices:
                raise DeviceError("the pool has no device left for the new model: add devices first")
            timeline, core, files = Timeline(), self._make_core(), ModelFiles(model)
            serving = self._serving if warmup is None else dataclasses.replace(self._serving, warmup=warmup)
            first_runs = FirstRuns(serving, str(model))
            request = dataclasses.replace(self._request, model=model)
            one_each = dataclasses.replace(request, devices=devices, sessions_per_device=1)
            present = self._sessions[0] if same_interface else None
            loading = self._beside(one_each, core, timeline, first_runs, present)
            replaced = False
            try:
                try:
                    self._run(loading)
                except OutOfMemory as error:
                    raise OutOfMemory(
                        f"{error}; the sessions of {self.model} stay until the new ones are ready, so both must fit"
                    ) from error
                sessions, description = Sessions(_in_order(loading.sessions), timeline), str(model)
                if verify is not None:
                    new = Members(one_each, lambda: core, serving, version)
                    new._targets, new._members = devices, loading.sessions
                    new.timeline, new._sessions = timeline, sessions
                    check_verified(verify(new), description, "the pool keeps its model")
                    if core.closed():
                        raise InvalidArgument(f"verify has closed the pool of {description}")
                core.continue_from(self.core)
                with self._lock:
                    self._raise_if_over()
                    old, old_sessions = self.core, _in_order(self._members)
                    # No call from here to `replaced`, so Ctrl-C comes before all of it or after it.
                    self._retiring = [*self._retiring, (old, old_sessions)]
                    self.core, self.timeline, self.model, self._request = core, timeline, description, request
                    self._members, self._sessions, self.version = loading.sessions, sessions, version
                    self._files, self._first_runs = files, first_runs
                    self.no_table = {}
                    replaced = True
                    self._changes.notify()
                self._retire()
            except BaseException:
                if replaced:
                    self._retire()  # or the rest of it
                else:
                    core.close(True)
                    loading.close()
                raise

    def _retire(self) -> None:
        """Let former models answer their requests, and free them."""
        while self._retiring:
            core, sessions = self._retiring[0]
            core.close(False)
            for session in sessions:
                session.close()
            self._retiring = self._retiring[1:]

    def _beside(
        self,
        request: CreationRequest,
        core: _core.Pool,
        timeline: Timeline,
        first_runs: FirstRuns,
        present: InferenceSession | None = None,
    ) -> MemberCreation:
        """Return the creation of members that join a core's pool beside the present ones. ``present`` has the required
        interface.
        """

        def join(loading: MemberCreation, _: int, session: InferenceSession) -> None:
            if present is not None:
                check_same(str(request.model), session, self.model, present)
            loading.let_in(session, core)

        return MemberCreation(request, timeline, first_runs, join)

    def _run(self, loading: MemberCreation) -> None:
        with self._lock:
            self._raise_if_over()
            self._loads.add(loading)
        try:
            loading.run()
        finally:
            with self._lock:
                self._loads.discard(loading)
                self._changes.notify()

    def _begin_change(self) -> None:
        """Wait until the devices are known. To be called with the lock of changes.

        The locks are taken by plain `with` statements. A context manager of a generator keeps a lock that it has taken
        if Ctrl-C comes before its caller has begun, as long as the exception is handled.
        """
        self._wait_until(lambda: self._targets is not None)
        with self._lock:
            self._raise_if_over()

    # The end.

    def close(self, cancel_pending: bool) -> None:
        """End the loads, then do as `Pool.close`."""
        if os.getpid() != self._process:  # nothing of it works there, and a lock may be held for ever
            self.core.close(cancel_pending)
            self._sessions.close()
            return
        with self._lock:
            self._closed = True
            self._cancelled |= cancel_pending
            behind = self._behind
            if behind is not None and behind[0].revoke():
                self._loads.discard(behind[1])  # it has not begun and never will
            loads = [*self._loads, *(self._wakes if cancel_pending else ())]
            cores = [*(core for core, _ in self._retiring), self.core]
            self._changes.notify()
        for loading in loads:
            loading.cancel()
        for core in cores:
            core.close(cancel_pending)
        for loading in loads:
            loading.wait()
        if behind is not None:
            behind[0].wait()
        for making in list(self._serving.more.makings):
            making.wait()  # it ends soon, and its memory is free then
        self._sessions.close()

    def abandon(self) -> None:
        """End the loads of a pool without references soon."""
        for loading in [*self._loads, *self._wakes]:
            loading.cancel()


def _check_coming(device: str, states: dict[str, tuple[str, str]], opening: bool) -> None:
    state, why = states.get(device, ("", ""))
    if state in ("failed", "broken"):
        raise DeviceError(f"{device} {state}: {why}")
    if state == "removed":
        raise DeviceError(f"{device} was removed from the pool")
    if not state and not opening:
        raise InvalidArgument(f"the pool has no session on {device}")


def _in_order(sessions: Mapping[int, InferenceSession]) -> list[InferenceSession]:
    return [session for _, session in sorted(sessions.items())]


_live: weakref.WeakSet[Members] = weakref.WeakSet()


def _close_all() -> None:
    for members in list(_live):
        members.close(cancel_pending=True)
