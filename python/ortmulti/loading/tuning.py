"""The tuning file: settings, the model and machine of their measurement, and how they are applied."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ortmulti import _core
from ortmulti._runtime import native
from ortmulti._runtime.libraries import find_onnxruntime
from ortmulti._runtime.machine import cpu_model, read_list
from ortmulti._runtime.regular_file import read_json, write_atomically
from ortmulti.create.model import Model
from ortmulti.create.request import CreationRequest, core_options
from ortmulti.devices import providers
from ortmulti.devices.device import parse_devices
from ortmulti.errors import Fail, InvalidArgument, InvalidProtobuf, InvalidType, NoSuchFile
from ortmulti.loading.tuning_options import (
    LEVELS,
    MODES,
    NODES,
    OPTIONS,
    Scalar,
    affinities,
    check,
    known_to,
    since,
)
from ortmulti.optimized.key import digest_without, inline_weights
from ortmulti.options.config_entries import AFFINITIES, ENV_ALLOCATORS
from ortmulti.options.environment import GlobalThreadPools, configure
from ortmulti.options.session_options import SessionOptions

__all__ = ["Tuning", "TuningWarning"]


def describe_model(model: Model) -> dict[str, Any]:
    """Return digests that identify a model.

    Returns:
        ``shapes``: digest of the names, types and shapes of its initializers; ``graph``: digest of its bytes but those
        of tensors from 1024 bytes on. Both are None for other files than ONNX protobufs.

    Raises:
        NoSuchFile: There is no such file.
        WeightsError: The file cannot be read, or was changed meanwhile.
    """
    with model.content() as content:
        try:
            initializers = _core.index_model(content).initializers
        except InvalidProtobuf:
            return {"shapes": None, "graph": None}
        shapes = hashlib.blake2b(digest_size=16)
        for name, kind, dimensions in sorted((one.name, one.data_type, tuple(one.shape)) for one in initializers):
            shapes.update(b"%d:%s %d %s;" % (len(name), name, kind, str(dimensions).encode()))
        return {"shapes": shapes.hexdigest(), "graph": digest_without(content, inline_weights(initializers))}


def describe_machine(kind: str) -> dict[str, Any]:
    """Return the facts on which the best settings may depend, for devices of a kind, ``"cpu"`` or ``"cuda"``.

    Does not start CUDA.
    """
    runtime = find_onnxruntime()
    found: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": _core.usable_cores(),
        "numa_nodes": len(read_list(NODES / "online")) or 1,
        "onnxruntime": runtime.version or None,
        "distribution": runtime.distribution or None,
        "ortmulti": _core.__version__,
    }
    return found if kind == "cpu" else {**found, **_gpus()}


def _gpus() -> dict[str, Any]:
    """Return the GPUs' names and the driver's release; each None without nvidia-ml-py or a driver."""
    from ortmulti.devices.nvml import Nvml

    if (nvml := Nvml.open()) is None:
        return {"gpus": None, "driver": None}
    with nvml:
        return {"gpus": sorted({gpu.name for gpu in nvml.gpus() if gpu.name}), "driver": nvml.driver_version}


def differences(measured: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the differences from the machine of the measurement, such as "cores 8, here 2"."""

    def text(value: Any) -> str:
        if isinstance(value, list):
            return " and ".join(map(str, value)) or "none"
        return "unknown" if value is None else str(value)

    titles = {"cpu": "CPU", "numa_nodes": "NUMA nodes", "gpus": "GPU"}
    return [
        f"{titles.get(name, name)} {text(measured[name])}, here {text(value)}"
        for name, value in here.items()
        if name in measured and measured[name] != value
    ]


_OF_ARENAS = ("enable_cpu_mem_arena", "gpu_mem_limit", "arena_extend_strategy")

LOAD_DEFAULTS: Mapping[str, Scalar] = {"sessions_per_device": 1, "in_flight": "auto", "cuda_graph": "auto"}
"""The defaults of `load`'s arguments: one that is not given, or given as that, is taken from the settings."""

# Pools made for settings. Later sessions of the process can use them, too.
_pools: list[GlobalThreadPools] = []
_pools_lock = native.Lock()


@dataclass(frozen=True)
class Applied:
    """The options with a tuning applied.

    Attributes:
        options: Session options; the caller's object is left as it was.
        provider_options: Of the CUDA provider.
        load: Arguments of `load`, all of `LOAD_DEFAULTS`.
        left_out: Settings that could not be used in this process, with why.
    """

    options: SessionOptions
    provider_options: dict[str, Any]
    load: dict[str, Any]
    left_out: tuple[str, ...] = ()


def apply(
    settings: Mapping[str, Scalar],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
) -> Applied:
    """Join settings with the caller's arguments. Arguments that differ from the defaults win.

    Args:
        settings: Options of `ortmulti.loading.tuning_options` and their values.
        options: The caller's session options.
        provider_options: The caller's options of the CUDA provider.
        load: The caller's arguments of `load`, of those in `LOAD_DEFAULTS`.

    Raises:
        InvalidArgument: Settings that this machine cannot have.
    """
    result = SessionOptions()
    defaults = result._core
    given = core_options(options)
    result._core = given.copy()
    arguments: dict[str, Any] = {**LOAD_DEFAULTS, **(load or {})}
    provider: dict[str, Any] = {}
    # Arenas of the environment are as the caller wants them.
    left_alone = _OF_ARENAS if given.config_entries.get(ENV_ALLOCATORS) == "1" else ()
    for name, value in settings.items():
        option = OPTIONS[name]
        if name in left_alone or name == "thread_affinity":
            continue
        if option.where == "session" and getattr(given, name) == getattr(defaults, name):
            setattr(result, name, _MEMBERS.get(name, {}).get(value, value))
        elif option.where == "config":
            for key in option.keys:
                if key not in given.config_entries:
                    result.add_session_config_entry(key, str(int(value)))
        elif option.where == "provider":
            provider[name] = value
        elif option.where == "load" and arguments[name] == LOAD_DEFAULTS[name]:
            arguments[name] = value
    left_out: tuple[str, ...] = ()
    if given.threads is None and AFFINITIES not in given.config_entries and given.use_per_session_threads:
        # With an affinity, ONNX Runtime needs the number of threads, too.
        threads = result.intra_op_num_threads or _core.usable_cores()
        bound = affinities(str(settings["thread_affinity"]), threads) if "thread_affinity" in settings else ""
        if bound:
            result.intra_op_num_threads = threads
        if settings.get("global_thread_pools") and (reason := _use_global_pools(result, bound)):
            left_out = (f"global_thread_pools: {reason}",)
        if bound and result.use_per_session_threads:
            result.add_session_config_entry(AFFINITIES, bound)
    return Applied(result, {**provider, **(provider_options or {})}, arguments, left_out)


_MEMBERS: Mapping[str, Mapping[Any, Any]] = {"graph_optimization_level": LEVELS, "execution_mode": MODES}


def _use_global_pools(options: SessionOptions, bound: str) -> str | None:
    """Make the session use the process's thread pools. Return the reason if it cannot."""
    entries = options._core.config_entries
    spinning = entries.get("session.intra_op.allow_spinning")
    wanted = GlobalThreadPools(
        options.intra_op_num_threads,
        options.inter_op_num_threads,
        None if spinning is None else spinning == "1",
        bound,
    )
    with _pools_lock:
        if wanted not in _pools:
            try:
                if _core.has_environment():
                    return "ONNX Runtime's environment is there already; load this model first"
                configure(global_thread_pools=wanted)
            except Fail as error:
                return str(error)
            _pools[:] = [wanted]
    options.use_per_session_threads = False
    return None


_KIND = "ortmulti tuning"
_VERSION = 1
_MAX_BYTES = 1 << 20


class TuningWarning(UserWarning):
    """A tuning was measured on another machine or release, or some of its settings cannot be used here."""


@dataclass(frozen=True)
class Tuning:
    """Settings that suit a model on a machine, as `tune` found them.

    Attributes:
        settings: Options by their names in docs/tune.md; empty: nothing was better than the defaults.
        objective: ``"latency"``, ``"throughput"``, ``"creation"`` or ``"memory"``.
        devices: Where it was measured, such as ``("cpu",)``.
        model: Identifies the model: digests of its ``shapes`` and its ``graph``, and its ``name``.
        machine: The machine, driver and releases of the measurement.
        gain: How much better than the defaults: ``ratio`` (the defaults' cost divided by this cost), and the ends
            ``low`` and ``high`` of its 95% confidence interval. Empty if nothing was better.
        partial: Reason why the search did not finish, such as ``"interrupted"``; None if it did.
        created: Date and time in ISO 8601.
    """

    settings: Mapping[str, Scalar]
    objective: str
    devices: tuple[str, ...]
    model: Mapping[str, Any]
    machine: Mapping[str, Any]
    gain: Mapping[str, float] = field(default_factory=dict)
    partial: str | None = None
    created: str = ""

    @property
    def kind(self) -> str:
        """``"cpu"`` or ``"cuda"``."""
        return "cuda" if any(device.startswith("cuda") for device in self.devices) else "cpu"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            NoSuchFile: There is none.
            InvalidArgument: It is damaged, of another kind or a later version, or has settings that there are not.
        """
        name = os.fspath(path)
        try:
            content = read_json(name, _MAX_BYTES)
        except OSError as error:
            raise NoSuchFile(
                f"the tuning '{name}' cannot be read: {error.strerror or error}; `ortmulti tune` makes one"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"'{name}' is not a tuning file: {error}") from error
        try:
            return cls._checked(content)
        except KeyError as error:
            raise InvalidArgument(f"the tuning '{name}' cannot be used: {error} is missing") from error
        except (InvalidArgument, InvalidType) as error:
            raise InvalidArgument(f"the tuning '{name}' cannot be used: {error}") from error

    @classmethod
    def _checked(cls, content: Any) -> Self:
        if not _is_flat(content, 3):
            raise InvalidArgument("it is nested too deeply")
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise InvalidArgument("it is not a tuning file")
        if content.get("version") != _VERSION:
            raise InvalidArgument(f"its version is {content.get('version')!r}, and this release reads {_VERSION}")
        if unknown := sorted(set(content) - {"kind", "version", *_TYPES}):
            raise InvalidArgument(f"there is no field {', '.join(map(repr, unknown))} in a tuning")
        values = {name: content[name] for name in _TYPES}
        for name, kind in _TYPES.items():
            if not isinstance(values[name], kind):
                raise InvalidType(f"{name} cannot be {values[name]!r}")
        if not values["devices"] or not all(isinstance(device, str) for device in values["devices"]):
            raise InvalidType(f"devices cannot be {values['devices']!r}")
        values["settings"] = {name: check(name, value) for name, value in values["settings"].items()}
        values["devices"] = tuple(values["devices"])
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file, for JSON."""
        return {"kind": _KIND, "version": _VERSION, **asdict(self), "devices": list(self.devices)}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        text = json.dumps(self.as_json(), indent=1) + "\n"
        write_atomically(Path(path), lambda file: file.write_text(text, "utf-8"))


_TYPES: Mapping[str, Any] = {
    "settings": dict,
    "objective": str,
    "devices": list,
    "model": dict,
    "machine": dict,
    "gain": dict,
    "partial": str | None,
    "created": str,
}


def _is_flat(value: Any, depth: int) -> bool:
    """Return whether a value from JSON has no more than so many lists and objects within each other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_is_flat(one, depth - 1) for one in inner))


def use(
    tuning: str | os.PathLike[str] | Tuning,
    model: Model,
    kinds: Sequence[str],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    stacklevel: int = 3,
) -> Applied:
    """Return the options for sessions under a tuning. The caller's own options win.

    Args:
        tuning: The tuning, or its file.
        model: The model.
        kinds: ``"cpu"`` and ``"cuda"``, whichever the sessions are on.
        options, provider_options, load: The caller's arguments, as for `apply`.
        stacklevel: Which function's caller a warning is about.

    Raises:
        NoSuchFile, InvalidArgument: As `Tuning.read`; or the model's weights have other names, types or shapes.
        InvalidType: ``tuning`` is something else.
    """
    if isinstance(tuning, (str, os.PathLike)):
        name, tuning = f"the tuning '{os.fspath(tuning)}'", Tuning.read(tuning)
    elif isinstance(tuning, Tuning):
        name = "the tuning"
    else:
        raise InvalidType(f"tuning is the path of a file or an ortmulti.Tuning, not {tuning!r}")

    def warn(text: str) -> None:
        warnings.warn(text, TuningWarning, stacklevel=stacklevel + 1)

    here = describe_model(model)
    shapes = tuning.model.get("shapes")
    if shapes is not None and here["shapes"] is not None and shapes != here["shapes"]:
        raise InvalidArgument(
            f"{name} is for another model, {tuning.model.get('name', 'unnamed')}: this one's weights have other names, "
            "types or shapes"
        )
    if set(kinds) != {tuning.kind}:
        where = {"cpu": "the CPU", "cuda": "GPUs"}
        here_on = " and ".join(sorted({where.get(kind, kind) for kind in kinds}))
        warn(f"{name} is for {where[tuning.kind]} and not used: these sessions are on {here_on}")
        return apply({}, options, provider_options, load)
    elsewhere = differences(tuning.machine, describe_machine(tuning.kind))
    if tuning.model.get("graph") != here["graph"]:
        elsewhere.insert(0, "another graph or other small weights")
    if elsewhere:
        warn(f"{name} was measured elsewhere, and other settings may be better here: {'; '.join(elsewhere)}")
    release = providers.loaded_release()
    settings = {key: check(key, value) for key, value in tuning.settings.items()}
    new = [key for key, value in settings.items() if not known_to(release, key, value)]
    applied = apply({key: value for key, value in settings.items() if key not in new}, options, provider_options, load)
    left_out = [
        *(f"{key}: needs onnxruntime {'.'.join(map(str, since(key, settings[key])))}, not {release}" for key in new),
        *applied.left_out,
    ]
    if left_out:
        warn(f"{name} is used without {'; '.join(left_out)}")
    return applied


def use_for_session(
    tuning: str | os.PathLike[str] | Tuning,
    model: Model,
    options: SessionOptions | None,
    names: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
) -> tuple[SessionOptions, list[providers.Provider]]:
    """Same as `use`, for an `InferenceSession` with these arguments: its options and its providers."""
    # Without ONNX Runtime's environment, because the tuning may configure it.
    asked = providers.preferred() if names is None else providers.normalize(names, provider_options)
    given = dict(asked).get(providers.CUDA)
    applied = use(tuning, model, [providers.kind_of(asked)], options, given, stacklevel=4)
    checked = {key: str(value) for key, value in applied.provider_options.items()}
    return applied.options, [(name, checked if name == providers.CUDA else values) for name, values in asked]


def use_for_request(
    tuning: str | os.PathLike[str] | Tuning, request: CreationRequest, load: Mapping[str, Any] | None = None
) -> tuple[CreationRequest, Mapping[str, Any]]:
    """Same as `use`, for a request: the request with its options and provider options, and the arguments of `load`."""
    asked = parse_devices("all") if request.named is None else request.named
    kinds = [device.kind for device in asked]
    applied = use(tuning, request.model, kinds, request.options, request.provider_options, load, stacklevel=5)
    changed = dataclasses.replace(request, options=applied.options, provider_options=applied.provider_options or None)
    return changed, applied.load
