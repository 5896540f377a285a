"""Many models behind one budget of memory: busy ones are awake, the others sleep."""

from __future__ import annotations

import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from ortmulti import _core, checks
from ortmulti._runtime import machine, native
from ortmulti._runtime.closing import Closing
from ortmulti._runtime.threads import Change, Task
from ortmulti.create.model import Model
from ortmulti.devices.device import Device, name_devices, parse_devices
from ortmulti.errors import (
    ClosedError,
    Error,
    InvalidArgument,
    InvalidType,
    NotFound,
    NotImplemented,
    NotLoaded,
    OutOfMemory,
)
from ortmulti.pool.model_interface import check_same, check_verified
from ortmulti.pool.pool import Pool, StandIn, members_of

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Warmup
    from ortmulti.pool.futures import PoolFuture
    from ortmulti.pool.stats import Page, PoolStats

__all__ = [
    "DeviceBudget",
    "ModelRepository",
    "ModelStats",
    "ModelStatus",
    "RepositoryModel",
    "RepositoryStats",
    "Residency",
]

LOGGER = logging.getLogger("ortmulti")

# Seconds between two looks for models that are idle, at most.
_LOOKS = 1.0
_CONVOLUTIONS = {"Conv", "ConvTranspose", "com.microsoft:FusedConv"}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class ModelStatus:
    """A model in a repository's index, in the words of Triton's repository extension.

    Attributes:
        name: The name.
        state: ``"READY"``: it takes requests, awake or asleep. ``"UNAVAILABLE"``: it is not loaded, or its last wake
            failed. ``"LOADING"`` and ``"UNLOADING"``.
        reason: Why it is ``"UNAVAILABLE"``; else empty.
        version: Label of `load`; empty without one.
    """

    name: str
    state: str
    reason: str
    version: str


@dataclass(frozen=True)
class Residency:
    """A model on one device.

    Attributes:
        device: The device.
        state: ``"awake"``: all of it is in the device's memory. ``"waking"`` and ``"falling asleep"``: it is on the
            way. Else what it has given back, as `Pool.sleep`'s ``level``.
        weights: Bytes that a sleep of the weights gives back, as measured.
        kept: Bytes that it takes besides while it is loaded, as measured.
        rate: Requests a second, of the last 20 seconds or so; measured when another model wants memory.
        evictions: How often it slept to make room for another model.
        refusal: Why it did not sleep the last time that it was to make room; empty where it did.
        failure: Why its last wake failed, but for a lack of memory, which passes; empty where it did not.
    """

    device: str
    state: str
    weights: int
    kept: int
    rate: float
    evictions: int
    refusal: str
    failure: str


@dataclass(frozen=True)
class ModelStats:
    """The work of one model.

    Attributes:
        name: The name.
        pinned: Whether `ModelRepository.pin` keeps it awake.
        devices: Where it is, and how much of it.
        pool: Its requests, sleeps and wakes.
    """

    name: str
    pinned: bool
    devices: list[Residency]
    pool: PoolStats


@dataclass(frozen=True)
class DeviceBudget:
    """The memory of one device.

    Attributes:
        device: The device.
        budget: Bytes that models and what they keep may take.
        used: Bytes in use, with those promised to models that wake.
        models: Part of that which is known to be models'. The rest was measured: libraries, and arenas that grew.
        waking: Wakes that are under way or wait for memory.
    """

    device: str
    budget: int
    used: int
    models: int
    waking: int


@dataclass(frozen=True)
class RepositoryStats:
    """The state of a repository.

    Attributes:
        models: The models that are loaded, by name.
        devices: The budgets.
        index: Every model and its state, as `ModelRepository.index` has it.
    """

    models: dict[str, ModelStats]
    devices: list[DeviceBudget]
    index: list[ModelStatus]

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Format the statistics for Prometheus: text format 0.0.4. Every model's lines have the label ``model``.

        Args:
            labels: Labels of every line.

        Raises:
            InvalidArgument, InvalidType: Labels that cannot be.
        """
        from ortmulti.pool.stats import Page, checked_labels

        page = Page()
        self._add_to(page, checked_labels(labels, "model"))
        return str(page)

    def _add_to(self, page: Page, labels: Mapping[str, str]) -> None:
        from ortmulti.pool.stats import add_to

        for name, model in self.models.items():
            add_to(page, model.pool, {**labels, "model": name})

        def metric(name: str, kind: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> None:
            page.add(f"repository_{name}", kind, text, samples, labels)

        on = [({"device": device.device}, device) for device in self.devices]
        metric("budget_bytes", "gauge", "What models and what they keep may take.", ((x, d.budget) for x, d in on))
        metric("used_bytes", "gauge", "In use, or promised to models that wake.", ((x, d.used) for x, d in on))
        metric("waking", "gauge", "Wakes under way, or waiting for memory.", ((x, d.waking) for x, d in on))
        ready = (({"model": one.name}, float(one.state == "READY")) for one in self.index)
        metric("model_ready", "gauge", "1 for a model that takes requests; 0 while it loads, or if it failed.", ready)
        evictions = (
            ({"model": name, "device": one.device}, one.evictions)
            for name, model in self.models.items()
            for one in model.devices
        )
        metric("evictions_total", "counter", "How often a model slept to make room for another one.", evictions)


class _Loaded(NamedTuple):
    pool: Pool
    tenant: _core.Tenant
    """Its memory, as the core counts it."""

    def release(self, cancel_pending: bool) -> None:
        """Close the pool, and give its memory back to the budgets."""
        if cancel_pending:  # wakes that wait for room end
            self.tenant.release()
        self.pool.close(cancel_pending)
        self.tenant.release()


class _State(NamedTuple):
    """One object, since it is read without a lock."""

    name: str
    reason: str = ""
    loaded: _Loaded | None = None
    """If the name is "READY"."""


_LOADING = _State("LOADING")


@dataclass
class _Entry:
    model: Model
    options: dict[str, Any]
    protect: bool = False
    idle_timeout: float | None = None
    pinned: bool = False
    state: _State = _LOADING


class RepositoryModel(StandIn):
    """A model of a repository, as ``models["bert"]`` returns it, with the calls of a `Pool`.

    Whatever is loaded under the name answers.

    Attributes:
        name: The name.
    """

    def __init__(self, repository: ModelRepository, name: str) -> None:
        self._repository = repository
        self.name = name

    @property
    def pool(self) -> Pool:
        """What is loaded now. Requests to it raise `ClosedError` once another model has taken its place.

        Raises:
            NotLoaded: It is being loaded, was unloaded, or its load failed.
            NotFound: It was removed.
        """
        return self._repository._loaded(self.name).pool

    def replace_model(
        self,
        model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
        *,
        warmup: Warmup | bool | None = None,
        same_interface: bool = True,
        verify: Callable[[Any], object] | None = None,
        version: str = "",
    ) -> None:
        """Load another model in its place, as `Pool.replace_model` does, within the repository's budget.

        Raises:
            NotLoaded: It is not loaded.
            NotFound: It was removed.
            Error: As `ModelRepository.add` and `Pool.replace_model`.
        """
        checks.boolean("same_interface", same_interface)
        present = self.pool

        def check(new: Pool) -> object:
            if same_interface:
                check_same("the new model", new, repr(self.name), present)
            return verify is None or verify(new)

        options = None if warmup is None else {**self._repository._entry(self.name).options, "warmup": warmup}
        self._repository.load(self.name, model, version=version, options=options, verify=check)

    def add_devices(self, devices: object) -> NoReturn:
        """Not to be had: a model has the devices that `ModelRepository.add` was given.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument(
            f"a repository's model has the devices of add(), not {devices!r}: remove {self.name!r}, and add it again"
        )

    def remove_devices(self, devices: object) -> NoReturn:
        """Same as `add_devices`."""
        self.add_devices(devices)

    def close(self, cancel_pending: bool = False) -> None:
        """Same as `ModelRepository.unload`."""
        self._repository.unload(self.name, cancel_pending)

    def __repr__(self) -> str:
        return f"<model {self.name!r} of {self._repository!r}>"


class ModelRepository(Closing):
    """Many models on the same devices, behind one budget of memory. All methods may be called from any thread.

    A model that gets a request is awake, or wakes. If there is no room for it, others sleep: those whose next wake is
    expected to cost the least for the memory that they give back. A model is never put to sleep under a running
    request. One whose requests wait stays awake for at least as long as its wake took. Wakes get memory in the order in
    which they were asked for, so every request is answered; docs/how-to/model-repository.md has the bound.

    Args:
        devices: As for `load`.
        gpu_memory: The budget of each GPU: a share of its memory above 0 and up to 1.0, bytes as an int, or a str such
            as ``"8GiB"``. Default: 0.8 of it. It covers the models' weights and what they keep besides, as measured.
            The CUDA context, about 0.5 GiB once for a process, comes on top.
        host_memory: The same for the host's memory. It covers pinned copies of weights, from which a GPU wakes at the
            link's rate; a model without room for its copy wakes from its files. On the CPU it covers the models: their
            files' bytes, or what ONNX Runtime's arenas have after the first run, where that is more. Default: half of
            it.

    Raises:
        InvalidArgument, InvalidType: A budget that cannot be, or an unknown device.
    """

    @checks.known_arguments
    def __init__(
        self,
        devices: str | int | Device | Iterable[str | int | Device] = "all",
        gpu_memory: float | int | str | None = None,
        host_memory: float | int | str | None = None,
    ) -> None:
        self._devices = [str(device) for device in dict.fromkeys(parse_devices(devices))]
        if unknown := [name for name in self._devices if name != "cpu" and not name.startswith("cuda:")]:
            raise InvalidArgument(f"a repository has GPUs and the CPU, not {', '.join(unknown)}: load it by itself")
        described = machine.describe_memory()
        limits = [limit for limit in (described["total"], described["cgroup_limit"]) if limit]
        host_budget = parse_bytes("host_memory", 0.5 if host_memory is None else host_memory, min(limits))
        of_gpus = 0.8 if gpu_memory is None else gpu_memory
        parse_bytes("gpu_memory", of_gpus, 1 << 62)  # before the driver starts
        if gpu_memory is not None and host_memory is None and self._devices == ["cpu"]:
            LOGGER.warning(
                "there is no GPU, so that gpu_memory=%r limits nothing: the budget is host_memory, here %.1f GB",
                gpu_memory,
                host_budget / 1e9,
            )
        budgets = []
        for name in self._devices:
            if name == "cpu":
                budgets.append((name, host_budget))
            else:
                total = _core.cuda_memory(int(name.removeprefix("cuda:")))[1]
                budgets.append((name, parse_bytes("gpu_memory", of_gpus, total)))
        self._core = _core.Repository(budgets, host_budget)
        self._entries: dict[str, _Entry] = {}
        self._lock = native.Lock()
        self._loading = native.Lock()  # one at a time, so that each one's memory can be measured; before the other
        self._closed = False
        self._ended = Change()
        self._idle: Task | None = None
        self._tasks: list[Task] = []

    # Models.

    def add(
        self,
        name: str,
        model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
        *,
        wait: Literal["all", "none"] = "all",
        protect: bool = False,
        idle_timeout: float | None = None,
        verify: Callable[[Pool], object] | None = None,
        **load_options: Any,
    ) -> None:
        """Add a model and load it. On a GPU it sleeps until its first request, or until `pin`.

        Args:
            name: Its name.
            model: Path, or bytes.
            wait: ``"none"``: return at once, and load it in the background, one after another. Until it is there, its
                requests raise `NotLoaded`, and `index` says ``"LOADING"``; after an error ``"UNAVAILABLE"``, with the
                reason. Default ``"all"``.
            protect: It sleeps for others only where all others that may sleep do not give enough; default False. `pin`
                keeps it awake in any case.
            idle_timeout: Seconds without a request after which it sleeps, though no other model needs its memory. None,
                the default: never.
            verify: Function that is called with the loaded `Pool` before it takes requests. If it raises or returns
                False, the model is not added. Do not close the pool. Default: none.
            load_options: Arguments of `ortmulti.load`, without ``progress``. ``devices``: some of the
                repository's; default: all of them. With several, a request wakes the model where there is most room,
                and further devices while requests wait. ``in_flight``: on GPUs ``"auto"``, the default, begins with 1,
                since ONNX Runtime keeps 72 MiB on an H200 for each. More are tried while requests wait and a quarter of
                the budget is free; with ``Batching(pad=...)`` to 3. With ``cuda_graph="auto"``, the default, graphs are
                made while a quarter of the budget is free, and all of them go before a model has to sleep; so does a
                second session on the CPU.
                ``warmup``: default True, so that what the first run allocates is measured; if the inputs that it makes
                do not fit, a warning says so and the model is loaded without.

        Raises:
            InvalidArgument: There is a model with this name, or an option that cannot be.
            OutOfMemory: The model alone exceeds the budget, or pinned models leave too little of it.
            Error: As `load`. After an error the model is not in the repository.
        """
        checks.instance("name", name, str)
        checks.choice("wait of a repository's model", wait, ("all", "none"))
        checks.boolean("protect", protect)
        if idle_timeout is not None:
            checks.number("idle_timeout", idle_timeout)
        _check_options(load_options)
        entry = _Entry(Model.of(model), load_options, protect, idle_timeout)
        with self._lock:
            self._raise_if_closed()
            if name in self._entries:
                raise InvalidArgument(f"there is a model {name!r}: remove it before, or load it again")
            self._entries[name] = entry
        try:
            if wait == "none":
                self._start(Task(partial(self._load_behind, name, entry, verify), f"ortmulti loads {name}"))
            else:
                self._let_others_load()
                self._load(name, entry, entry, verify)
            if idle_timeout is not None:
                self._look_for_idle()
        except BaseException:
            with self._lock:
                if self._entries.get(name) is entry:
                    del self._entries[name]
            raise

    def _start(self, task: Task) -> None:
        with self._lock:
            self._raise_if_closed()
            self._tasks = [*(each for each in self._tasks if not each.wait(0)), task]
        task.start()

    def _load_behind(self, name: str, entry: _Entry, verify: Callable[[Pool], object] | None) -> None:
        try:
            self._load(name, entry, entry, verify)
        except ClosedError:  # it was removed meanwhile
            pass
        except Exception as error:  # the index has it
            LOGGER.error("%r was not loaded: %s", name, error)

    def remove(self, name: str) -> None:
        """Unload a model and forget it.

        Raises:
            NotFound: There is no such model.
        """
        with self._lock:
            entry = self._entry(name)
            del self._entries[name]
        self._unload(entry, cancel_pending=False)

    def load(
        self,
        name: str,
        model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model | None = None,
        *,
        version: str | None = None,
        options: Mapping[str, Any] | None = None,
        verify: Callable[[Pool], object] | None = None,
    ) -> None:
        """Load a model that was unloaded; or load it again, such as from a file that has changed.

        A model that is loaded answers requests until the new one takes over. Both need their memory until then.

        Args:
            name: Its name.
            model: What is loaded in its place from now on, as for `add`; default: the same. Its inputs and outputs may
                be others; to refuse that: ``models[name].replace_model``.
            version: Label of the new one; default: as before.
            options: Arguments of `ortmulti.load`, in place of those that it was added with; default: the same.
            verify: As for `add`. If it raises or returns False, a model that was loaded before stays.

        Raises:
            NotFound: There is no such model.
            Error: As `add`. A model that was loaded before stays.
        """
        entry = self._entry(name)
        checks.instance("version", version, str, optional=True)
        checks.instance("options", options, Mapping, optional=True)
        changed = dict(entry.options if options is None else options)
        _check_options(changed)
        if version is not None:
            changed["version"] = version
        model = entry.model if model is None else Model.of(model)
        self._let_others_load()
        self._load(name, entry, replace(entry, model=model, options=changed), verify)

    def unload(self, name: str, cancel_pending: bool = False) -> None:
        """Answer a model's requests, and free its memory. Its name stays in the `index`; `load` brings it back.

        Further requests raise `NotLoaded` until then.

        Args:
            name: Its name.
            cancel_pending: Cancel the futures that wait, instead of answering them; default False. `run` and
                `run_async` raise `NotLoaded`, or go on with what is loaded next.

        Raises:
            NotFound: There is no such model.
        """
        self._unload(self._entry(name), cancel_pending)

    def _unload(self, entry: _Entry, cancel_pending: bool) -> None:
        with self._lock:
            loaded, entry.state = entry.state.loaded, _State("UNLOADING")
        try:
            if loaded is not None:
                loaded.release(cancel_pending)
        finally:
            with self._lock:
                if entry.state.name == "UNLOADING":  # else it is being loaded again
                    entry.state = _State("UNAVAILABLE", "unloaded")

    def index(self) -> list[ModelStatus]:
        """Return every model and its state."""
        return self._index(self._core.residents())

    def _index(self, residents: list[dict[str, Any]]) -> list[ModelStatus]:
        with self._lock:
            entries = list(self._entries.items())
        failures = {row["name"]: row["failure"] for row in residents if row["failure"]}

        def status(name: str, entry: _Entry) -> ModelStatus:
            state, reason, _ = entry.state
            if state == "READY" and name in failures:
                state, reason = "UNAVAILABLE", f"it sleeps and cannot wake: {failures[name]}"
            return ModelStatus(name, state, reason, str(entry.options.get("version", "")))

        return [status(name, entry) for name, entry in entries]

    def pin(self, name: str, pinned: bool = True) -> None:
        """Wake a model and keep it awake, whatever others need; or with False, let it sleep again.

        Raises:
            NotFound: There is no such model.
            NotLoaded: It is not loaded.
            OutOfMemory: There is no room for it beside other pinned models.
        """
        checks.boolean("pinned", pinned)
        entry = self._entry(name)
        if pinned:
            self._loaded(name).pool.wake()
        with self._lock:
            loaded = self._loaded(name)  # another one, where it was loaded meanwhile
            entry.pinned = pinned
            loaded.tenant.pin(pinned)
        if pinned:
            loaded.pool.wake()  # it may have slept again in between

    # Requests.

    def __getitem__(self, name: str) -> RepositoryModel:
        """Return a model, with all calls of a pool.

        Raises:
            NotFound: There is no such model.
        """
        self._entry(name)
        return RepositoryModel(self, name)

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else checks.did_you_mean(name, dir(type(self)))
        if hasattr(Pool, name) and not name.startswith("_"):
            hint = f": call models[name].{name}"
        raise AttributeError(f"a ModelRepository has no attribute {name!r}{hint}", name=name, obj=self)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def run(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a model once, as `Pool.run` with the other arguments.

        Raises:
            NotFound: There is no such model.
            NotLoaded: It is being loaded, was unloaded, or its load failed.
            OutOfMemory: It sleeps, and its memory cannot be had: pinned models or other processes use it.
            Error: As `Pool.run`.
        """
        return self[name].run(*args, **kwargs)

    def submit(self, name: str, *args: Any, **kwargs: Any) -> PoolFuture:
        """Submit a run of a model, as `Pool.submit`; otherwise as `run`."""
        return self[name].submit(*args, **kwargs)

    async def run_async(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a model without blocking the event loop, as `Pool.run_async`; otherwise as `run`."""
        outputs: list[Any] = await self[name].run_async(*args, **kwargs)
        return outputs

    def map(self, name: str, *args: Any, **kwargs: Any) -> Iterator[list[Any]]:
        """Yield the outputs of each feed, as `Pool.map`; otherwise as `run`."""
        return self[name].map(*args, **kwargs)

    def stats(self, latency_buckets: Sequence[float] | None = None) -> RepositoryStats:
        """Return statistics of every loaded model, and of the devices' memory.

        Args:
            latency_buckets: As for `Pool.stats`.
        """
        with self._lock:
            loaded = {name: entry for name, entry in self._entries.items() if entry.state.loaded is not None}
        rows = self._core.residents()
        index = self._index(rows)
        residents: dict[str, list[Residency]] = {}
        for row in rows:
            name = row.pop("name")
            row.pop("pinned")
            residents.setdefault(name, []).append(Residency(**row))
        models = {
            name: ModelStats(name, entry.pinned, residents.get(name, []), found.pool.stats(latency_buckets))
            for name, entry in loaded.items()
            if (found := entry.state.loaded) is not None
        }
        return RepositoryStats(models, [DeviceBudget(**row) for row in self._core.devices()], index)

    def close(self, cancel_pending: bool = False) -> None:
        """Close all models. A second call does nothing.

        Args:
            cancel_pending: As for `Pool.close`.
        """
        with self._lock:
            self._closed = True
            self._ended.happen()
            names, tasks = list(self._entries), self._tasks
        for name in names:
            self.unload(name, cancel_pending)
        for task in tasks:
            task.wait()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<ModelRepository of {len(self._entries)} models on {', '.join(self._devices)}{state}>"

    def _look_for_idle(self) -> None:
        with self._lock:
            if self._idle is not None:
                return
            self._idle = Task(partial(_put_idle_to_sleep, weakref.ref(self), self._ended), "ortmulti idle models")
        self._start(self._idle)

    def _sleep_where_idle(self, seen: dict[str, tuple[object, float]]) -> float:
        """Have models sleep that did nothing for long; ``seen``: what they had done, and when that was first seen.

        Returns:
            Seconds until the next look.
        """
        next_look = _LOOKS
        with self._lock:
            entries = list(self._entries.items())
        for name, entry in entries:
            if entry.idle_timeout is None or (loaded := entry.state.loaded) is None or entry.pinned:
                continue
            next_look = min(next_look, max(entry.idle_timeout / 4, 0.01))
            devices = loaded.pool.stats().devices
            did = (loaded, *((each.done, each.failed, each.cancelled, each.wakes) for each in devices))
            now = time.monotonic()
            before, since = seen.get(name, (None, now))
            if did != before or any(each.busy or each.waiting for each in devices):
                seen[name] = did, now
            elif now - since >= entry.idle_timeout:
                seen[name] = did, now  # where it cannot sleep, it is asked again as late
                for each in devices:
                    if not each.asleep:
                        self._sleep_for_now(name, loaded, each.device)
        return next_look

    def _sleep_for_now(self, name: str, loaded: _Loaded, device: str) -> None:
        for level in _core.sleep_levels:
            try:
                loaded.pool.sleep(level, device, keep="pinned" if loaded.tenant.keeps_copy else None, timeout=0.0)
            except NotImplemented:
                continue
            except Error as error:  # such as a request that has come
                LOGGER.debug("%r is idle on %s and does not sleep: %s", name, device, error)
            return

    # Loading.

    def _let_others_load(self) -> None:
        """Wait for another load, as a greenlet that lets the one go on which loads."""
        while self._loading.locked():
            time.sleep(0.01)

    def _load(self, name: str, entry: _Entry, changed: _Entry, verify: Callable[[Pool], object] | None) -> None:
        """Load a model, or what is to take its place."""
        with self._loading:
            with self._lock:
                self._raise_if_closed()
                if entry.state.loaded is None:
                    entry.state = _LOADING
            loaded: _Loaded | None = None
            try:
                loaded = self._make(name, changed)
                if verify is not None:
                    outcome = "it is not loaded" if entry.state.loaded is None else f"{name!r} keeps its model"
                    check_verified(verify(loaded.pool), "the new model", outcome)
            except BaseException as error:
                if loaded is not None:
                    loaded.release(cancel_pending=True)
                with self._lock:
                    stays = entry.state.loaded is not None
                    if entry.state.name == "LOADING":
                        entry.state = _State("UNAVAILABLE", str(error) or type(error).__name__)
                if stays and isinstance(error, OutOfMemory):
                    raise OutOfMemory(
                        f"{error}. The present {name!r} stays until the new one is ready; to load without room for "
                        "both, unload it before"
                    ) from error
                raise
            with self._lock:
                wanted = not self._closed and self._entries.get(name) is entry
                released = entry.state.loaded if wanted else loaded
                if wanted:
                    entry.model, entry.options = changed.model, changed.options
                    loaded.tenant.pin(entry.pinned)
                    if released is not None:
                        members_of(loaded.pool).core.continue_from(members_of(released.pool).core)
                    entry.state = _State("READY", loaded=loaded)
            if released is not None:
                released.release(cancel_pending=not wanted)
            if not wanted:
                raise ClosedError(f"{name!r} was removed while it was being loaded")

    def _make(self, name: str, entry: _Entry) -> _Loaded:
        from ortmulti.create.loading import DEFAULT
        from ortmulti.pool.load import load

        options = dict(entry.options)
        devices = self._chosen(options.pop("devices", None))
        warmup = options.pop("warmup", True)
        options["loading"] = replace(options.get("loading") or DEFAULT, version=options.pop("version", ""))
        tenant = self._core.reserve(name, devices, *size_of(entry.model))
        pool: Pool | None = None
        try:
            start = time.monotonic()
            pool = load(entry.model, devices, **options)
            seconds = time.monotonic() - start
            members = members_of(pool)
            members.limit_sessions(self._core.why_no_more)
            self._core.grow_from_one(members.core)
            members.warm_up(warmup)  # not by `load`: a wake of a session makes no first run
            tenant.enter(
                members.core, members.timeline._core, _closer(pool), seconds, entry.pinned, protect=entry.protect
            )
            if entry.pinned:
                pool.wake()
        except BaseException:
            tenant.release()
            if pool is not None:
                pool.close(cancel_pending=True)
            raise
        return _Loaded(pool, tenant)

    def _chosen(self, devices: Any) -> list[str]:
        named = None if devices is None else name_devices(devices)
        if named is None:
            return self._devices
        chosen = [str(device) for device in dict.fromkeys(named)]
        if others := [device for device in chosen if device not in self._devices]:
            raise InvalidArgument(
                f"{', '.join(others)} has no budget: the repository has {', '.join(self._devices)}; name its devices "
                "when it is made (--devices of ortmulti serve), or take others here (gpus of a config.pbtxt)"
            )
        return chosen

    def _entry(self, name: str) -> _Entry:
        checks.instance("name", name, str, example=f"models.run({next(iter(self._entries), 'bert')!r}, feed)")
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(map(repr, self._entries)) or "none"
            raise NotFound(f"there is no model {name!r}{checks.did_you_mean(name, self._entries)}: there are {known}")
        return entry

    def _loaded(self, name: str) -> _Loaded:
        entry = self._entry(name)
        state, reason, loaded = entry.state
        if loaded is None:
            self._raise_if_closed()
            if state == "LOADING":
                raise NotLoaded(f"the model {name!r} is still being loaded: wait until add or load has returned")
            if state == "UNAVAILABLE":
                raise NotLoaded(f"the model {name!r} is not loaded ({reason}): load it first")
            raise NotLoaded(f"the model {name!r} is being unloaded: load it again to send further requests")
        return loaded

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise ClosedError("the repository is closed")


def parse_bytes(name: str, value: object, total: int) -> int:
    """Return bytes of a share of a total, of a number, or of a text such as ``"8GiB"``."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            raise InvalidArgument(f"{name} is a share, bytes, or a size such as '8GiB', not {value!r}")
        value = float(found[1]) if not found[2] and "." in found[1] else int(float(found[1]) * unit)
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise InvalidArgument(f"{name} as a float is a share above 0 and up to 1.0, not {value}: bytes are an int")
        return int(value * total)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{name} is a share, bytes, or a size such as '8GiB', not {value!r}")
    if not 0 < value <= total:
        raise InvalidArgument(f"{name} is 1 to {total} bytes here, not {value}")
    return value


def _check_options(options: Mapping[str, Any]) -> None:
    from ortmulti.create.loading import check_loading
    from ortmulti.pool.configuration import Warmup

    if others := {"protect", "idle_timeout"} & options.keys():
        raise InvalidArgument(f"a repository's models are loaded without {', '.join(map(repr, sorted(others)))}")
    if (loading := options.get("loading")) is not None:
        check_loading(loading, ("wait", "progress", "version"), "and a repository loads by itself")
    if not isinstance(warmup := options.get("warmup", True), bool | Warmup):
        raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")


def size_of(model: Model) -> tuple[int, bool]:
    """Return the bytes of a model's files, about those of its weights, and whether it convolves."""
    try:
        with model.content() as content:
            index = _core.index_model(content)
        files = model.external_data(index, None)
    except Error:  # such as a model in ORT's format, or one that cannot be shared; a missing file was checked before
        return model.size, False
    return model.size + sum(file.size for file in files), not _CONVOLUTIONS.isdisjoint(index.operators)


def _put_idle_to_sleep(of: weakref.ref[ModelRepository], ended: Change) -> None:
    seen: dict[str, tuple[object, float]] = {}
    while (repository := of()) is not None and not repository._closed:
        wait = repository._sleep_where_idle(seen)
        del repository
        ended.wait(wait)


def _closer(pool: Pool) -> Callable[[str, str, float], None]:
    of = weakref.ref(pool)  # the core keeps the function

    def close(device: str, level: Any, timeout: float) -> None:
        found = of()
        if found is not None:
            found.sleep(level, device, timeout=timeout)

    return close
