"""How a model is loaded, and how far a load has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ortmulti import checks as _checks
from ortmulti.errors import InvalidArgument, InvalidType

__all__ = ["LoadProgress", "Loading", "OnLoadProgress"]

OnLoadProgress: TypeAlias = "Callable[[LoadProgress], object]"

# Of each field: the least, and the most that is no mistake.
_LIMITS = {"reader_threads": (1, 1024), "chunk_bytes": (4096, 2**30), "buffers_per_thread": (1, 64)}
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "strategy": ("shared", "native"),
    "optimize": ("auto", "never", "offline"),
    "serialize": (None, "none", "device", "all"),
    "wait": ("all", "first", "none"),
    "require": ("all", "any"),
    "when_late": ("try", "reject"),
}
OF_POOLS = ("wait", "require", "progress", "version", "trim_after", "when_late")


@_checks.known_fields
@dataclass(frozen=True, kw_only=True)
class Loading:
    """How sessions are made and when a load returns; and what few pools need: ``loading`` of `load`.

    Attributes:
        strategy: ``"shared"``: the weights are read once. The sessions of a GPU use one copy, and those on the CPU, or
            on a plug-in's device, are one ONNX Runtime session. ``"native"``: every session loads the model by itself.
            If weights cannot be shared, ``"shared"`` does this too, and the timeline says why (docs/loading.md).
        optimize: For sessions that share weights on GPUs, and for plug-ins that compile. ``"auto"``: the optimized
            model comes from the cache, or is made and put there. ``"offline"``: it must be in the cache. ``"never"``:
            the model is loaded as it is, with graph optimizations off.
        serialize: Which creations wait for each other: ``"none"``; ``"device"``: those on the same device; ``"all"``.
            Default: none. Those on the same GPU only with releases of ONNX Runtime for which concurrent creation on
            one GPU was not tested under stress (docs/inside/concurrent-creation.md).
        reader_threads: Threads that read weights for the first GPU, 1 to 1024; default: one for each usable core, up to
            a few, fewer for small models. Each has its own buffers of pinned memory: in all ``reader_threads`` x
            ``buffers_per_thread`` x ``chunk_bytes``. Pinning takes time, so more memory soon stops being faster.
        chunk_bytes: Bytes that a thread reads at once, 4 KiB to 1 GiB; default: chosen for the machine.
        buffers_per_thread: Chunks of a thread, 1 to 64: one is read while the others are copied; default: chosen.
        tuning: Settings that `tune` found for this model, or the path of their file. Your own ``options``,
            ``provider_options``, ``sessions_per_device``, ``in_flight`` and ``cuda_graph`` win.
        wait: When `load` returns. ``"all"``: when all sessions take requests. ``"first"``: when one does. ``"none"``:
            after the arguments are checked. With `Batching` it returns when the first session is ready and has run
            random inputs, if padding is to be proven, or if the model's graph does not show which outputs have rows.
            Later sessions join the pool when they are ready. With ``"first"`` and the strategy ``"shared"``, the other
            GPUs start after the first one. So the first GPU is ready sooner, and the last one later:
            docs/how-to/slow-start.md.
        require: What happens if a session fails. ``"all"``: the load fails. If it has returned, the pool closes, and
            each request raises that error. ``"any"``: the pool goes on with the other sessions; `Pool.stats` and
            the log name the devices that failed. If no session works, the load fails. A device that does not exist is
            always an error.
        progress: Called with a `LoadProgress` whenever a session is ready, and while weights are loaded. Called in the
            thread of `load`, or in the loading thread if ``wait`` is not ``"all"``. Default: none.
        version: Label of the model in `Pool.stats` and in Prometheus's text, such as ``"2"``; default: none.
        trim_after: Seconds after which memory comes back, default 10. When for so long no request was half as large as
            the largest, by the bytes of its inputs, what ONNX Runtime keeps and no run uses is given back. Less than
            16 MiB stays. With ``in_flight="auto"``, threads of a GPU that did no ordinary run for six times as long
            give back handles. None: never by itself. docs/memory.md.
        when_late: What to do with a request that would be answered after its ``timeout``, by the time that runs took of
            late and the requests before it. ``"try"``, the default: it waits, and may be lucky. ``"reject"``: it fails
            at once with `DeadlineExceeded`, so that its sender can ask elsewhere. Until each device has answered 8
            requests nobody knows how long a run takes, and none is refused.

    Raises:
        InvalidArgument, InvalidType: A value that cannot be.
    """

    strategy: Literal["shared", "native"] = "shared"
    optimize: Literal["auto", "never", "offline"] = "auto"
    serialize: Literal["none", "device", "all"] | None = None
    reader_threads: int | None = None
    chunk_bytes: int | None = None
    buffers_per_thread: int | None = None
    tuning: Any = None  # str | os.PathLike[str] | Tuning | None, but that room comes later
    wait: Literal["all", "first", "none"] = "all"
    require: Literal["all", "any"] = "all"
    progress: OnLoadProgress | None = None
    version: str = ""
    trim_after: float | None = 10.0
    when_late: Literal["try", "reject"] = "try"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _checks.choice(name, getattr(self, name), choices)
        for name, limits in _LIMITS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _checks.integer(name, value, *limits))
        if self.progress is not None and not callable(self.progress):
            raise InvalidType(f"progress is a function of a LoadProgress, not {self.progress!r}")
        _checks.instance("version", self.version, str)
        if self.trim_after is not None:
            object.__setattr__(self, "trim_after", _checks.number("trim_after (None: never)", self.trim_after))

    def reading(self) -> dict[str, int]:
        """Return how weights are read, for the core; 0: chosen for the machine."""
        return {name: getattr(self, name) or 0 for name in _LIMITS}


DEFAULT = Loading()


def check_loading(loading: object, without: Iterable[str] = (), whose: str = "") -> None:
    """Accept a `Loading`; ``without`` these attributes, which ``whose`` is an end of the error for."""
    _checks.instance("loading", loading, Loading, example='ortmulti.Loading(strategy="native")')
    for name in without:
        if getattr(loading, name) != getattr(DEFAULT, name):
            raise InvalidArgument(f"{name} of a Loading is for load, {whose}: leave it out")


@dataclass(frozen=True)
class LoadProgress:
    """Progress of `load`.

    Attributes:
        bytes_loaded: Bytes of shared weights that are on the first device or on their way to it; 0 without shared
            weights.
        bytes_total: All bytes of shared weights; 0 without shared weights, or while it is unknown.
        seconds: Seconds since the call.
        sessions_ready: Sessions that can run.
        sessions_total: All requested sessions.
        device: The device of the session that has just become ready; empty if only bytes were loaded.
    """

    bytes_loaded: int
    bytes_total: int
    seconds: float
    sessions_ready: int
    sessions_total: int
    device: str = ""

    @property
    def gb_per_second(self) -> float:
        """Gigabytes (1e9 bytes) of weights per second since the call."""
        return self.bytes_loaded / self.seconds / 1e9 if self.seconds > 0 else 0.0
