"""Sessions under onnxruntime's interface, one at a time or one model's on several devices at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, overload

import numpy as np

from ortmulti import _core, _logging, _runtime
from ortmulti import providers as _providers
from ortmulti.devices import Device, parse_devices
from ortmulti.errors import InvalidArgument, InvalidType, NoSuchFile
from ortmulti.options import RunOptions, SessionOptions
from ortmulti.timeline import Timeline

__all__ = ["InferenceSession", "Sessions", "create_sessions"]

Model: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview
Serialize: TypeAlias = Literal["none", "device", "all"]
Progress: TypeAlias = Callable[[int, int, str], object]
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def _check_model(model: object) -> str | bytes | bytearray | memoryview:
    if isinstance(model, (bytes, bytearray, memoryview)):
        if len(model) == 0:
            raise InvalidArgument("the model is empty: 0 bytes")
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidType(f"a model is a path or bytes, not {type(model).__name__}")
    path = Path(model)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise NoSuchFile(f"there is no model file '{path}'") from None
    except OSError as error:
        raise NoSuchFile(f"the model file '{path}' cannot be read: {error.strerror}") from error
    if path.is_dir():
        raise NoSuchFile(f"'{path}' is a directory, not a model file")
    if not os.access(path, os.R_OK):
        raise NoSuchFile(f"the model file '{path}' cannot be read: permission denied")
    if size == 0:
        raise InvalidArgument(f"the model file '{path}' is empty: 0 bytes")
    return str(path)


def _core_options(options: SessionOptions | None) -> _core.SessionOptions:
    if options is None:
        return _core.SessionOptions()
    if not isinstance(options, SessionOptions):
        raise InvalidType(f"session options are an ortmulti.SessionOptions, not {type(options).__name__}")
    return options._core


def _create(
    model: str | bytes | bytearray | memoryview,
    sessions: Sequence[Sequence[_providers.Provider]],
    options: SessionOptions | None,
    serialize: Serialize | None,
    progress: Progress | None,
) -> tuple[list[_core.Session], Timeline]:
    start = time.monotonic_ns()
    core_options = _core_options(options)
    if serialize not in (None, "none", "device", "all"):
        raise InvalidArgument(f"serialize is None, 'none', 'device' or 'all', not {serialize!r}")
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of (done, total, device), not {progress!r}")
    _runtime.ensure_open()
    _providers.check_usable([provider for session in sessions for provider in session])
    prepared = time.monotonic_ns()
    try:
        created, core_timeline = _core.create_sessions(
            model, [list(session) for session in sessions], core_options, serialize or "automatic", progress
        )
    finally:
        _logging.flush()
    timeline = Timeline(core_timeline)
    timeline.add("open libraries and check", start, prepared)
    return created, timeline


class InferenceSession:
    """A model on one device, under onnxruntime's interface.

    Unlike onnxruntime, a provider that was asked for and cannot be used is an error and never a silent session on
    the CPU. Creating, running and closing release the GIL. One session may be run from several threads at once.

    Args:
        path_or_bytes: Path of a model, beside which its external data lies; or the bytes of one, without external
            data unless the config entry ``session.model_external_initializers_file_folder_path`` names its folder.
        sess_options: Options; default: those of a new `SessionOptions`. Later changes to it have no effect.
        providers: Execution providers, the preferred one first: names, or (name, options). Default: CUDA on the first
            GPU where the installed ONNX Runtime and the machine have it, else the CPU. Nodes that a provider does not
            have run on the CPU, as in onnxruntime.
        provider_options: Options of each provider, where ``providers`` holds names alone.

    Raises:
        NoSuchFile: There is no such model.
        InvalidProtobuf, InvalidGraph, InvalidArgument, Fail, ...: ONNX Runtime refuses the model or its external data,
            under its code.
        InvalidArgument, InvalidType: An unknown provider or option, or an argument of the wrong type.
        LibraryError: No ONNX Runtime, or a CUDA library that a provider needs is missing.
        DeviceError: The GPU does not exist or cannot be used.
        OutOfMemory: The device has not enough free memory.
    """

    def __init__(
        self,
        path_or_bytes: Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        model = _check_model(path_or_bytes)
        normalized = _providers.normalize(providers, provider_options)
        [core], timeline = _create(model, [normalized], sess_options, None, None)
        self._adopt(core, timeline, sess_options)

    @classmethod
    def _from_core(cls, core: _core.Session, timeline: Timeline, options: SessionOptions | None) -> Self:
        session = cls.__new__(cls)
        session._adopt(core, timeline, options)
        return session

    def _adopt(self, core: _core.Session, timeline: Timeline, options: SessionOptions | None) -> None:
        self._core = core
        self._run = core.run
        self._timeline = timeline
        self._options = options

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Runs the model once and returns the outputs that were asked for.

        Args:
            output_names: Names of the outputs wanted, in the order wanted; None or empty for all.
            input_feed: An array for each input, of the shape and dtype that `get_inputs` declares. A C-contiguous
                array's memory is used in place and must not change during the run; others are copied. What is no array
                is converted to one of the declared dtype.
            run_options: Options of this run.

        Returns:
            One NumPy array for each output, over the memory that ONNX Runtime wrote it to; strings have dtype object.

        Raises:
            InvalidArgument: An unknown or missing name, or a rank or dimension that the model does not take.
            InvalidType: An array of another dtype.
            ClosedError: The session is closed.
            ForkError: The session was created before this process was forked and cannot be used in it.
            RuntimeException, Fail, OutOfMemory, ...: The run failed, under ONNX Runtime's code.
        """
        return self._run(output_names, input_feed, run_options)

    def get_inputs(self) -> list[_core.NodeArg]:
        """The model's inputs: ``name``, ``type`` such as ``"tensor(float)"`` and ``shape``, a list of int, of str
        for a named open dimension, and of None for another open one."""
        return self._core.inputs()

    def get_outputs(self) -> list[_core.NodeArg]:
        """The model's outputs, as `get_inputs`."""
        return self._core.outputs()

    def get_overridable_initializers(self) -> list[_core.NodeArg]:
        """Inputs that have a default value in the model, as `get_inputs`."""
        return self._core.overridable_initializers()

    def get_modelmeta(self) -> _core.ModelMetadata:
        """The model's metadata: producer_name, graph_name, domain, description, version, custom_metadata_map."""
        return self._core.metadata()

    def get_providers(self) -> list[str]:
        """The names of the session's execution providers, the preferred one first and the CPU's last."""
        names = [name for name, _ in self._core.providers()]
        return names if _providers.CPU in names else [*names, _providers.CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options that were given to each of `get_providers`."""
        given = dict(self._core.providers())
        return {name: given.get(name, {}) for name in self.get_providers()}

    def get_session_options(self) -> SessionOptions:
        """The options that the session was created with."""
        return SessionOptions() if self._options is None else self._options

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, in nanoseconds of ONNX Runtime's clock; 0 without profiling."""
        return self._core.profiling_start_time_ns()

    def end_profiling(self) -> str:
        """Ends profiling and returns the path of the profile."""
        return self._core.end_profiling()

    @property
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:N"``: the device of the preferred provider."""
        return self._core.device()

    @property
    def timeline(self) -> Timeline:
        """The spans of the creation that made this session."""
        return self._timeline

    def close(self) -> None:
        """Waits for the runs that are under way and frees the session; using it afterwards raises `ClosedError`.

        Calling it again does nothing. Arrays that runs returned stay valid.
        """
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<InferenceSession of {self._core.model()} on {self.device}{state}>"


class Sessions(Sequence[InferenceSession]):
    """One model's sessions on several devices, in the order in which they were asked for."""

    def __init__(self, sessions: Iterable[InferenceSession], timeline: Timeline) -> None:
        self._sessions = tuple(sessions)
        self._timeline = timeline

    @property
    def timeline(self) -> Timeline:
        """The spans of the creation, of all sessions together."""
        return self._timeline

    @property
    def devices(self) -> list[str]:
        """The device of each session."""
        return [session.device for session in self._sessions]

    def close(self) -> None:
        """Closes every session; see `InferenceSession.close`."""
        for session in self._sessions:
            session.close()

    @overload
    def __getitem__(self, index: int) -> InferenceSession: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[InferenceSession, ...]: ...
    def __getitem__(self, index: int | slice) -> InferenceSession | tuple[InferenceSession, ...]:
        return self._sessions[index]

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[InferenceSession]:
        return iter(self._sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Sessions on {', '.join(self.devices)}>"


def create_sessions(
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    serialize: Serialize | None = None,
    progress: Progress | None = None,
) -> Sessions:
    """Creates sessions of one model on several devices at the same time, each in a C++ thread of its own.

    Args:
        model: Path of a model, or its bytes; see `InferenceSession`.
        devices: ``"all"`` (every GPU, or the CPU where there is no NVIDIA hardware), a device or several, as
            `parse_devices` takes them. One that is named twice gets two sessions.
        sessions_per_device: Sessions on each device; default 1.
        options: Options of every session. Unless ``intra_op_num_threads`` is set, the CPU sessions share the machine's
            usable cores, and those on a GPU keep no threads.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``.
        serialize: Which creations wait for each other: ``"none"``; ``"device"``: those on the same device; ``"all"``.
            Default: those on the same GPU, for releases of ONNX Runtime on which concurrent creation was not stressed
            there (docs/concurrent-creation.md), and none otherwise.
        progress: Called in this thread as ``progress(done, total, device)`` whenever a session is ready.

    Returns:
        The sessions, those of the first device first.

    Raises:
        As `InferenceSession`. If one session fails the others are closed, and the error names its device. Ctrl-C
        (KeyboardInterrupt) returns within a second: what is still being created is freed in the background.
    """
    if isinstance(sessions_per_device, bool) or not isinstance(sessions_per_device, int):
        raise InvalidType(f"sessions_per_device is an int, not {sessions_per_device!r}")
    if sessions_per_device < 1:
        raise InvalidArgument(f"sessions_per_device is 1 or more, not {sessions_per_device}")
    if provider_options is not None and not isinstance(provider_options, Mapping):
        raise InvalidType(f"provider_options is a dict of the CUDA provider's options, not {provider_options!r}")
    checked = _check_model(model)
    targets = parse_devices(devices)
    if provider_options and not any(device.kind == "cuda" for device in targets):
        raise InvalidArgument("provider_options are the CUDA provider's, and no device is a GPU")
    wanted = [_providers.for_device(device, provider_options) for device in targets for _ in range(sessions_per_device)]
    created, timeline = _create(checked, wanted, options, serialize, progress)
    return Sessions([InferenceSession._from_core(core, timeline, options) for core in created], timeline)
