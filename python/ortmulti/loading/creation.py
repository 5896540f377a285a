"""One creation: sessions over weights that were read once, for models that can have them."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti._runtime import startup
from ortmulti._runtime.regular_file import open_regular
from ortmulti._runtime.threads import Task
from ortmulti.create import core_sessions
from ortmulti.create.request import CheckedModel, CreationRequest, Progress, core_options, without_optimization
from ortmulti.devices import providers as _providers
from ortmulti.devices.device import Device, parse_devices
from ortmulti.errors import (
    EPFail,
    Error,
    Fail,
    InvalidGraph,
    InvalidProtobuf,
    NotFound,
    NotImplemented,
    NotOptimizable,
    RuntimeException,
)
from ortmulti.loading import prewarm
from ortmulti.loading.sharing import why_not_worth_it
from ortmulti.options.model_additions import replacing_weights
from ortmulti.options.session_options import GraphOptimizationLevel
from ortmulti.timeline import Timeline

if TYPE_CHECKING:
    from ortmulti import optimized

# What ONNX Runtime may raise for a model that it has written itself.
_NOT_LOADABLE = (EPFail, Fail, InvalidGraph, InvalidProtobuf, NotImplemented, RuntimeException)

# Optimizations read many small values, such as scales and biases, and few large ones, such as positions' embeddings.
_MIN_GIVEN_BYTES = 1 << 20
_TRIES = 6

LOGGER = logging.getLogger("ortmulti")


class _Stopped(Exception):  # noqa: N818  (no error, but the end of a comparison whose result nobody needs)
    pass


class Creation:
    """One creation, from its request to its sessions.

    The core calls its methods `ready`, `failed`, `poll`, ``progress`` and ``bytes_loaded`` meanwhile, in the thread of
    `run`. A ready session waits until it is confirmed. Over a cache entry it waits until the entry's checksums were
    compared, over a new entry until this is published. Then `on_session` gets it.

    Args:
        request: The arguments.
        timeline: Receives the spans; default: a new one.
        keep_going: Whether the other sessions are created when one fails.
        hold: Makes the other GPUs' contexts wait for one; released if no session can come first.
        progress: Called as ``progress(done, total, device)`` whenever a session is ready.
        bytes_loaded: Called as ``bytes_loaded(bytes, total)`` while shared weights are loaded.
    """

    def __init__(
        self,
        request: CreationRequest,
        timeline: Timeline | None = None,
        *,
        keep_going: bool = False,
        hold: _core.ContextHold | None = None,
        progress: Progress | None = None,
        bytes_loaded: Callable[[int, int], object] | None = None,
    ) -> None:
        self.request = request
        self.timeline = Timeline() if timeline is None else timeline
        self.progress = progress
        self.bytes_loaded = bytes_loaded
        self.sessions: dict[int, _core.Session] = {}
        """Those that nobody has taken, by their places in the request."""
        self.devices: list[Device] = []
        """Known once the driver has started."""
        self._options = core_options(request.options)
        self._keep_going = keep_going
        self._hold = hold
        self._providers: list[list[_providers.Provider]] = []  # of each session
        self._prefetch: _core.Prefetch | None = None
        # Ready and failed sessions, until they are confirmed.
        self._ready: dict[int, _core.Session] = {}
        self._failures: list[tuple[int, BaseException]] = []
        self._confirmed = False
        self._confirm: Callable[[int], bool] | None = None

    # For who takes the sessions.

    def on_devices(self, devices: Sequence[Device]) -> None:
        """Called when the devices are known, with one entry for each session."""

    def on_session(self, index: int, session: _core.Session) -> None:
        """Called for each session; the receiver closes it. An exception ends the creation."""
        self.sessions[index] = session

    def on_failure(self, index: int, error: BaseException) -> None:
        """Called for each failed session, with ``keep_going``."""

    def poll(self) -> None:
        """Called in short intervals; may raise to end the creation."""

    # For the core.

    def ready(self, index: int, session: _core.Session) -> None:
        """A session can run."""
        self._ready[index] = session
        if not self._confirmed and self._confirm is not None:
            self._confirmed = self._confirm(index)
        if self._confirmed:
            self._hand_on()

    def failed(self, index: int, error: BaseException) -> None:
        """A session failed. Until a session is confirmed, the reason may be their common entry or weights."""
        self._failures.append((index, error))
        if self._confirmed:
            self._hand_on()

    def _hand_on(self) -> None:
        for index in list(self._ready):
            self.on_session(index, self._ready.pop(index))
        while self._failures:
            self.on_failure(*self._failures.pop(0))

    # The way.

    def run(self) -> None:
        """Create the sessions, and return when all were handed over.

        Raises:
            As `create_sessions`. Sessions without a receiver are closed.
        """
        try:
            self._run()
        except BaseException:
            self._close()
            raise

    def _run(self) -> None:
        request = self.request
        named = request.named
        shared = request.strategy == "shared"
        weights: _core.WeightList | None = None
        if shared and prewarm.begin_driver(named):
            # The disk comes first: it may be slower than all other steps together.
            if isinstance(request.model, str):
                with self._span("index model"):
                    weights = self._begin_reading(request.model)
            with self._span("open libraries"):
                prewarm.open_libraries()
                from ortmulti import optimized  # noqa: F401  # its import, too, takes time while the driver starts
        with self._span("wait for driver and check"):
            self.devices = parse_devices("all" if named is None else named)
            on_gpu = any(device.kind == "cuda" for device in self.devices)
            request.check_provider_options(self.devices)
            self._providers = [
                _providers.for_device(device, request.provider_options)
                for device in self.devices
                for _ in range(request.sessions_per_device)
            ]
            startup.ensure_open()
            _providers.check_usable([provider for session in self._providers for provider in session])
        self.poll()
        self.on_devices([device for device in self.devices for _ in range(request.sessions_per_device)])

        level = self._options.graph_optimization_level
        if not shared:
            self._create_native()
        elif self._over_given_values(on_gpu):
            pass
        elif not on_gpu:
            plugins = list(dict.fromkeys(device for device in self.devices if device.is_plugin))
            if plugins and request.optimize != "never":
                self._create_over_contexts(plugins)
            else:
                self._create_native(one_session_each=True)
        elif reason := self._why_not_shared():
            self._create_native(reason)
        elif request.optimize == "never" or level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            self._create_over_model(weights)
        elif request.optimize == "auto" and (reason := why_not_worth_it(request.model, request.sessions_per_device)):
            self._create_native(reason)
        else:
            self._create_over_entry()

    @contextlib.contextmanager
    def _span(self, name: str) -> Iterator[None]:
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.timeline.add(name, start, time.monotonic_ns())

    def _state(self, text: str) -> None:
        now = time.monotonic_ns()
        self.timeline.add(text, now, now)

    def _begin_reading(self, path: str) -> _core.WeightList | None:
        """List the model's weights, and read their files ahead while the driver starts."""
        try:
            weights = _core.shareable_weights(path)
        except Error:
            return None  # ONNX Runtime says what is wrong with the model
        parts: dict[int, tuple[int, int]] = {}
        for _, _, _, file, offset, length in weights.weights:
            begin, end = parts.get(file, (offset, offset))
            parts[file] = (min(begin, offset), max(end, offset + length))
        if parts:
            self._prefetch = _core.Prefetch(
                [(weights.files[file][0], begin, end - begin) for file, (begin, end) in sorted(parts.items())]
            )
        return weights

    def _why_not_shared(self) -> str | None:
        """Return the reason why the sessions cannot share weights; None if none is known."""
        options = self._options
        if any(device.kind != "cuda" for device in self.devices):
            return "the CPU or a plug-in's device is among the devices, beside GPUs"
        if options.optimized_model_filepath:
            return "optimized_model_filepath asks ONNX Runtime itself to optimize the model"
        if methods := replacing_weights(options):
            return f"the session options have weights of their own ({methods})"
        if "session.use_ort_model_bytes_directly" in options.config_entries:
            return "session.use_ort_model_bytes_directly is for models in ONNX Runtime's own format"
        return None

    def _create(
        self, model: CheckedModel, options: _core.SessionOptions, weights: _core.WeightList | None = None, **more: Any
    ) -> None:
        core_sessions.create(
            model,
            self._providers,
            options,
            self,
            serialize=self.request.serialize,
            weights=None if weights is None else self._shared(weights),
            preload=True,
            keep_going=self._keep_going,
            timeline=self.timeline,
            hold=self._hold,
            **more,
        )

    def _shared(self, weights: _core.WeightList) -> _core.SharedWeights:
        given = self.request.loader
        loader = _core.LoaderOptions(
            reader_threads=(given and given.reader_threads) or 0,
            chunk_bytes=(given and given.chunk_bytes) or 0,
            buffers_per_thread=(given and given.buffers_per_thread) or 0,
        )
        return _core.SharedWeights(weights, prefetch=self._prefetch, loader=loader)

    def _create_native(self, reason: str = "", **more: Any) -> None:
        """Create sessions that load the model by themselves, with a reason if weights should have been shared."""
        if reason:
            self._state(f"not shared: {reason}")
            LOGGER.info("each session loads the model by itself: %s", reason)
        self._confirmed = True
        self._create(self.request.model, self._options, **more)

    def _create_over_model(self, weights: _core.WeightList | None) -> None:
        """Create sessions that share the weights of the model as it is."""
        if not isinstance(self.request.model, str):
            self._create_native("the model is in memory and is not optimized")
        elif weights is None or not weights.weights:
            self._create_native("the model has no weights that can be shared")
        else:
            self._confirmed = True
            self._create(self.request.model, without_optimization(self._options), weights)

    def _over_given_values(self, on_gpu: bool) -> bool:
        """Create sessions that share the large values which the options give for all external data of a model.

        ONNX Runtime copies each value that is given for external data. One that is given for an initializer it uses in
        place, but then its optimizations read the file. Here they find an empty one, which is an error: the value that
        it names, and those of the same shape, are copied at the next try.

        Returns:
            False if there are no such values, or if a kernel or too many optimizations read them. Nothing is left then.
        """
        options = self._options
        if options.optimized_model_filepath or options.initializers or options.files_in_memory:
            return False
        if not options.external_initializers or any(device.is_plugin for device in self.devices):
            return False
        try:
            graph = self._graph()
            index = _core.index_model(graph)
        except (Error, OSError):
            return False  # ONNX Runtime says what is wrong with the model
        if self.request.optimize == "never":
            options = without_optimization(options)
        if len({each.name for each in index.initializers}) != len(index.initializers):
            return False  # a value would be one of a sub-graph, too
        outside = [each for each in index.initializers if each.storage == "external"]
        if not {each.name for each in outside} <= {name.encode() for name in options.external_initializers}:
            return False
        fitting = {
            (each.name, each.data_type, *each.shape) for each in outside if not each.graph and not each.overridable
        }
        copied: set[str] = set()
        for _ in range(_TRIES):
            changed = options.copy()
            weights = changed.take_external_weights(_MIN_GIVEN_BYTES, copied)
            found = {name: (data_type, *shape) for name, data_type, shape, *_ in weights.weights}
            if not found or not {(name.encode(), *kind) for name, kind in found.items()} <= fitting:
                return False  # ONNX Runtime says what is wrong with the values
            problem = self._over_values(graph, index.external_locations, changed, weights, on_gpu)
            if not problem:
                return True
            read = next((kind for name, kind in found.items() if f" {name} " in problem), None)
            if read is None:
                break
            copied |= {name for name, kind in found.items() if kind == read}
        self._state(f"values that the options give are copied: {problem}")
        LOGGER.info("values that the session options give are copied for each session: %s", problem)
        return False

    def _graph(self) -> memoryview:
        """Return the model's bytes, without its external data.

        Raises:
            OSError: It has as many as ONNX Runtime takes in memory, or cannot be read.
        """
        model = self.request.model
        if not isinstance(model, str):
            return memoryview(model)
        if (path := Path(model)).stat().st_size >= 1 << 31:
            raise OSError(f"{model!r} is too large to be in memory")
        with open_regular(path) as file:
            return memoryview(file.read())

    def _over_values(
        self,
        graph: memoryview,
        locations: Sequence[bytes],
        options: _core.SessionOptions,
        weights: _core.WeightList,
        on_gpu: bool,
    ) -> str:
        """Create sessions over values in the place of these files. Return why not; empty if they exist."""
        from ortmulti import optimized

        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ortmulti-"))
                for location in locations:
                    path = Path(folder, os.fsdecode(location)).resolve()
                    if not path.is_relative_to(Path(folder).resolve()):
                        return f"external data is outside of the model's folder: {location!r}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
            except (OSError, ValueError) as error:  # such as "a" and "a/b", or a NUL
                return f"there can be no files with the names of the external data: {error}"
            options.config_entries = {**options.config_entries, optimized.DATA_FOLDER: folder}
            made_of = self.request.model if isinstance(self.request.model, str) else ""
            return self._try_to_create(
                lambda _: True, graph, options, weights, one_session_each=not on_gpu, made_of=made_of
            )

    def _try_to_create(self, confirm: Callable[[int], bool], *arguments: Any, **more: Any) -> str:
        """Create sessions, as `_create` does. Return why they cannot be loaded, with nothing left; empty if they exist.

        Args:
            confirm: Called with the index of each ready session until it returns True. Later errors are raised.
        """
        self._confirm = confirm
        problem = ""
        try:
            self._create(*arguments, **more)
        except _NOT_LOADABLE as error:
            if self._confirmed:
                raise
            problem = str(error)
        finally:
            self._confirm = None
        if self._confirmed:
            return ""
        problem = problem or str(self._failures[0][1])
        self._close()
        return problem

    def _create_over_contexts(self, plugins: Sequence[Device]) -> None:
        """Create sessions of which those on plug-ins' devices have what their provider has compiled before. Otherwise
        they compile the model, and the result becomes a cache entry.
        """
        from ortmulti import optimized

        store = optimized.Cache.default()
        found: dict[str, optimized.CacheKey] = {}
        staged: dict[str, optimized.StagedEntry] = {}
        on_devices: dict[str, tuple[str, dict[str, str]]] = {}
        of_sessions = [str(device) for device in self.devices for _ in range(self.request.sessions_per_device)]
        with contextlib.ExitStack() as stack:
            for device in plugins:
                name = str(device)
                providers = self._providers[of_sessions.index(name)]
                try:
                    with self._span("find compiled model"):
                        key = optimized.context_key(self.request.model, providers, self.request.options, device)
                        entry = store.find(key, verify=True)
                    if entry is not None:
                        stack.enter_context(entry)
                        found[name] = key
                        on_devices[name] = (entry.model_path, {})
                        continue
                    if self.request.optimize == "offline":
                        raise NotFound(
                            f"there is no compiled form of the model for {name} and these options, and "
                            "optimize='offline' makes none: run `ortmulti optimize` first"
                        )
                    staged[name] = stack.enter_context(store.stage(key))
                    on_devices[name] = ("", optimized.compiling(staged[name]))
                except NotOptimizable as reason:
                    self._state(f"not kept as compiled for {name}: {reason}")
            problem = self._over_contexts(on_devices, of_sessions)
            if not problem:
                for name, new in staged.items():
                    self._publish_context(name, new)
        if problem:
            for key in found.values():
                store.discard(key, problem)
            self._create_native(f"a compiled model cannot be made or loaded: {problem}", one_session_each=True)

    def _over_contexts(self, on_devices: Mapping[str, tuple[str, dict[str, str]]], of_sessions: Sequence[str]) -> str:
        """Create the sessions. Return why those on plug-ins' devices cannot have a compiled model; empty if they do."""
        missing = set(on_devices)

        def have_all(index: int) -> bool:
            missing.discard(of_sessions[index])
            return not missing

        self._confirmed = not missing
        return self._try_to_create(
            have_all, self.request.model, self._options, on_devices=on_devices, one_session_each=True
        )

    def _publish_context(self, device: str, staged: optimized.StagedEntry) -> None:
        from ortmulti import optimized

        try:
            with self._span("publish compiled model"):
                if optimized.finish(staged) is None:
                    self._state(f"not kept as compiled for {device}: its provider compiles nothing of this model")
                else:
                    staged.publish().close()
        except NotOptimizable as problem:
            self._state(f"not kept as compiled for {device}: {problem}")

    def _create_over_entry(self) -> None:
        """Create sessions that share the weights of the model's cache entry. The entry is made if necessary."""
        from ortmulti import optimized

        request = self.request
        wanted = optimized.CacheRequest(request.model, self._providers[0], request.options, self.devices, self._span)
        try:
            wanted.find_or_build(
                self._over_found,
                lambda staged: self._without_entry(wanted, staged),
                offline=request.optimize == "offline",
            )
        except NotOptimizable as problem:
            self._create_native(str(problem))

    def _over(self, entry: optimized.Entry) -> None:
        from ortmulti import optimized

        self._create(entry.model_path, optimized.entry_options(self._options), entry.weights)

    def _over_found(self, entry: optimized.Entry) -> None:
        """Create the sessions over an entry, and compare its checksums meanwhile."""
        stopped = False
        failures: list[BaseException] = []

        def poll() -> None:
            if stopped:
                raise _Stopped

        def verify() -> None:
            try:
                entry.verify(poll)
            except BaseException as error:
                failures.append(error)

        def verified() -> None:
            task.wait()  # Ctrl-C ends it at any moment and leaves no lock taken, unlike the wait of a Future
            if failures:
                raise failures[0]

        def verified_now(_: int) -> bool:
            verified()
            return True

        task = Task(verify, "ortmulti-verify")
        with entry:
            try:
                task.start()
                self._confirm = verified_now
                self._over_verified(entry, verified)
            except BaseException:
                self._close()
                raise
            finally:
                self._confirm = None
                stopped = True  # after Ctrl-C the rest of the files is not needed
                if not task.revoke():
                    task.wait()

    def _over_verified(self, entry: optimized.Entry, verified: Callable[[], None]) -> None:
        from ortmulti import optimized

        try:
            self._over(entry)
        except Error as problem:
            if self._confirmed:
                raise  # the entry is right: others have sessions over it
            verified()  # a damaged entry explains it
            if isinstance(problem, _NOT_LOADABLE):
                raise optimized.not_loadable(problem) from problem
            raise

    def _without_entry(self, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> None:
        """Let the sessions optimize the model themselves over shared weights, or else optimize it before."""
        try:
            if self._over_outside(wanted, staged):
                return
        except BaseException:
            staged.discard()
            raise
        self._close()
        staged.signature = None
        self._over_new(wanted, staged)

    def _over_outside(self, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> bool:
        """Let the sessions optimize the model themselves, over shared weights.

        The first session's optimized model shows whether the sessions are right, and becomes the entry.

        Returns:
            False if they cannot do this, or are not right.
        """
        from ortmulti import optimized

        model = self.request.model
        settings = ("ep.", "session.optimized_model")  # about saved models themselves
        if not isinstance(model, str) or any(key.startswith(settings) for key in self._options.config_entries):
            return False
        with self._span("index model"):
            try:
                content, folder, weights = _core.put_weights_outside(model)
            except Error:
                return False  # ONNX Runtime says what is wrong with the model
        if not weights.weights:
            return False
        options = self._options
        if content:
            options = options.copy()
            options.config_entries = {**options.config_entries, optimized.DATA_FOLDER: folder}
        else:
            folder = str(Path(model).parent)
        refused: set[str] = set()

        def unchanged(index: int) -> bool:
            if index != 0:
                return False
            with self._span("check optimized model"):
                first = self._ready[0]
                refused.update(first.weight_use()[1])
                changed = set(_core.changed_weights(str(staged.saved), model, folder, weights)) - refused
                staged.signature = optimized.signature(first)
            if changed:
                self._state(f"the model is optimized before its sessions: that changes the weight {min(changed)}")
            return not changed

        self._state("each session optimizes the model, over shared weights; the next load has the cache entry")
        staged.saved.parent.mkdir(mode=0o700)
        self._confirm = unchanged
        try:
            self._create(content or model, options, weights, made_of=model, save_optimized=str(staged.saved))
        except _NOT_LOADABLE as problem:
            if self._confirmed:
                raise
            self._state(f"the model is optimized before its sessions: {problem}")
        finally:
            self._confirm = None
        if self._confirmed:
            optimized.keep(staged, lambda poll: self._finish(wanted, staged, sorted(refused), folder, poll))
        return self._confirmed

    def _finish(
        self,
        wanted: optimized.CacheRequest,
        staged: optimized.StagedEntry,
        refused: Sequence[str],
        folder: str,
        poll: Callable[[], object],
    ) -> None:
        """Make an entry from a session's saved model."""
        from ortmulti import optimized

        with self._span("publish optimized model"):
            optimized.build(
                staged, wanted.model, wanted.providers, wanted.options, refused, data_folder=folder, poll=poll
            ).close()
            staged.publish().close()

    def _over_new(self, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> None:
        """Optimize the model, create the sessions over the result, and publish it when they exist."""
        from ortmulti import optimized

        if self._hold is not None:
            self._hold.release()

        def create(entry: optimized.Entry) -> tuple[None, set[str]]:
            try:
                self._over(entry)
            except _NOT_LOADABLE as problem:
                raise optimized.not_loadable(problem) from problem
            ready = self._ready.values()
            refused = {name for session in ready for name in session.weight_use()[1]}
            changed = any(optimized.signature(session) != entry.facts["signature"] for session in ready)
            if refused or changed:
                self._close()
            if changed:
                raise NotOptimizable("the optimized model has other inputs or outputs than the model")
            return None, refused

        with staged:
            try:
                wanted.build(staged, create)
                if staged.timeline is not None:
                    self.timeline.extend(staged.timeline)
                with self._span("publish optimized model"):
                    staged.publish().close()
            except BaseException:
                self._close()
                raise
            self._confirmed = True
            self._hand_on()

    def _close(self) -> None:
        """Free sessions without a receiver, and forget failures."""
        self._failures.clear()
        for waiting in (self._ready, self.sessions):
            while waiting:
                waiting.popitem()[1].close()
