"""Sessions under onnxruntime's interface, one at a time or one model's on several devices at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from ortmulti import _core
from ortmulti._core import ModelMetadata, NodeArg
from ortmulti._runtime.closing import Closing
from ortmulti.create import core_sessions
from ortmulti.create.model import Model
from ortmulti.devices import providers as _providers
from ortmulti.interface import session_arguments
from ortmulti.interface.io_binding import ValueRuns
from ortmulti.interface.session_calls import SessionCalls
from ortmulti.loading import early_start
from ortmulti.options.foreign_options import to_run_options, to_session_options
from ortmulti.options.session_options import RunOptions, SessionOptions
from ortmulti.timeline import Timeline
from ortmulti.values.ort_device import OrtDevice, core_device
from ortmulti.values.ort_value import OrtValue, dimensions, element_type_number
from ortmulti.values.ort_value_vector import OrtValueVector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ortmulti.loading.tuning import Tuning

__all__ = ["InferenceSession", "Sessions"]


class InferenceSession(SessionCalls, ValueRuns, Closing):
    """A model on one device, under onnxruntime's interface.

    If a provider cannot be used, the session raises an error; onnxruntime silently uses the CPU instead. Creating,
    running and closing release the GIL. Several threads may run one session at the same time.

    Args:
        path_or_bytes: Path of a model, with its external data in the same folder; or its bytes. A model in bytes may
            have external data if ``session.model_external_initializers_file_folder_path`` names the folder.
        sess_options: Options; default: those of a new `SessionOptions`. Later changes to it have no effect. Objects of
            onnxruntime's `SessionOptions` are copied, except what they do not reveal: initializers, libraries of custom
            operators and free dimensions (docs/differences.md).
        providers: Execution providers, the preferred one first: names, or (name, options). Default: CUDA on the first
            GPU if the installed ONNX Runtime and the machine have it, else the CPU. With providers of
            `SessionOptions.add_provider_for_devices`: these; a warning says that ``providers`` replace them. Nodes that
            a provider does not support run on the CPU, as in onnxruntime.
        provider_options: Options of each provider, if ``providers`` has names only.
        tuning: Settings that `tune` found for this model, or their file. Your ``sess_options`` and the providers'
            options win. Settings for arguments of `load` are ignored.
        **kwargs: ``disabled_optimizers``: names of graph optimizers to leave out; default None: none. onnxruntime's
            ``enable_fallback`` and ``read_config_from_model`` can only be False.

    Raises:
        NoSuchFile: The model does not exist.
        InvalidProtobuf, InvalidGraph, InvalidArgument, Fail, ...: ONNX Runtime refuses the model or its external data,
            under its code.
        InvalidArgument, InvalidType: An unknown provider or option, or an argument of the wrong type.
        LibraryError: No ONNX Runtime, or a CUDA library that a provider needs is missing.
        DeviceError: The GPU does not exist or cannot be used.
        OutOfMemory: The device has not enough free memory.

    Warns:
        TuningWarning: ``tuning`` was measured on another machine or with other releases.
    """

    _model_path: str | None = None  # optimum looks for a model's other files by it

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        tuning: str | os.PathLike[str] | Tuning | None = None,
        **kwargs: Any,
    ) -> None:
        model = Model.of(path_or_bytes)
        given = to_session_options(sess_options)
        options = session_arguments.apply(given, kwargs)
        if tuning is not None:
            from ortmulti.loading.tuning import use_for_session

            given, providers = use_for_session(tuning, model, options, providers, provider_options)
            options, provider_options = given, None
        if provider_options is None:
            early_start.begin_for_session(providers)
        if options is not None and options.has_providers():
            options, providers = session_arguments.choose_providers(options, providers)
        normalized = _providers.normalize(providers, provider_options)
        core, timeline = core_sessions.create_native(model, normalized, options)
        self._adopt(core, timeline, given)
        self._model_path = model.path or None

    @classmethod
    def _from_core(cls, core: _core.Session, timeline: Timeline, options: SessionOptions | None) -> Self:
        session = cls.__new__(cls)
        session._adopt(core, timeline, options)
        return session

    def _adopt(self, core: _core.Session, timeline: Timeline, options: SessionOptions | None) -> None:
        self._core = core
        self._run = core.run
        self._timeline = timeline
        self._options = session_arguments.in_effect(options, core)

    @overload
    def run(
        self, output_names: Iterable[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[NDArray[Any]]: ...
    @overload
    def run(
        self,
        output_names: Mapping[str, Any],
        input_feed: Iterable[str] | None = None,
        run_options: RunOptions | None = None,
    ) -> list[NDArray[Any]]: ...
    def run(
        self, output_names: Any, input_feed: Any = None, run_options: RunOptions | None = None
    ) -> list[NDArray[Any]]:
        """Run the model once and return its outputs.

        The inputs may also come first: ``run({"x": x})`` returns all outputs, ``run({"x": x}, ["y"])`` one.

        Args:
            output_names: Names of the outputs, in the order of the result: a list or another iterable, but not a str or
                dict. None or empty: all outputs.
            input_feed: A value for each input, of the shape and type that `get_inputs` declares. A tensor takes an
                array, a sequence a list of arrays or of dicts, a map a dict with int or str as keys. An optional also
                takes None. Each also takes an `OrtValue`, this package's or onnxruntime's, on any device. The memory of
                a C-contiguous array is used in place and must not change during the run; other arrays are copied. Other
                values, except those in a list, are converted to an array of the declared dtype. The package
                ml_dtypes has dtypes such as bfloat16, float8 and int4.
            run_options: Options of this run. onnxruntime's own are read when the run begins, ``terminate`` included;
                their active adapters cannot be read.

        Returns:
            One array for each output, over the memory that ONNX Runtime wrote. Strings have dtype object, and
            float8e4m3fn has uint8, as in onnxruntime. The annotation omits values that few models return: a list for a
            sequence, a dict for a map, and None for an empty optional.

        Raises:
            InvalidArgument: A name is unknown or missing, or the model does not take the rank or dimension.
            InvalidType: An array has another dtype, or a value another type.
            NotImplemented: Python has no value for the type, or it needs ml_dtypes, which is not installed. Or
                onnxruntime cannot hand over its value by DLPack, for example strings.
            ClosedError: The session is closed.
            ForkError: The session was created before this process was forked and cannot be used in it.
            RuntimeException, Fail, OutOfMemory, ...: The run failed, under ONNX Runtime's code.
        """
        if run_options is not None:
            run_options = to_run_options(run_options)
        # The inputs came first. Tests for interfaces take longer, and most calls need none.
        maybe_swapped = input_feed is None or output_names.__class__ is dict
        if maybe_swapped and isinstance(output_names, Mapping) and not isinstance(input_feed, Mapping):
            output_names, input_feed = input_feed, output_names
        return self._run(output_names, input_feed, run_options)

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs: ``name``, ``type`` such as ``"tensor(float)"``, and ``shape``.

        A shape is a list: an int for each fixed dimension, a str for a named dynamic one, None for an unnamed one.
        """
        return self._core.inputs()

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs, as `get_inputs`."""
        return self._core.outputs()

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default value in the model, as `get_inputs`."""
        return self._core.overridable_initializers()

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata: producer_name, graph_name, domain, description, version, custom_metadata_map."""
        return self._core.metadata()

    def get_providers(self) -> list[str]:
        """Return the names of the session's execution providers, the preferred one first and the CPU's last."""
        return self._provider_names()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the given options of each provider in `get_providers`."""
        given = dict(self._core.providers())
        return {name: given.get(name, {}) for name in self.get_providers()}

    def get_session_options(self) -> SessionOptions:
        """Return the session's own copy of the options that it was created with.

        With ``ORT_LOAD_CONFIG_FROM_MODEL=1`` in the environment these are the model's own options.
        """
        return self._options

    def disable_fallback(self) -> None:
        """Do nothing: a session never falls back to another provider. onnxruntime's programs call this."""

    def enable_fallback(self) -> None:
        """Do nothing, as `disable_fallback`: an error of a provider stays an error."""

    # Private in onnxruntime too, and read by programs.

    @property
    def _sess(self) -> _CSession:
        return _CSession(self)

    _providers = property(get_providers)
    _provider_options = property(get_provider_options)
    _sess_options = property(get_session_options)

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, in nanoseconds of ONNX Runtime's clock; 0 without profiling."""
        return self._core.profiling_start_time_ns()

    def end_profiling(self) -> str:
        """End profiling and return the path of the profile."""
        return self._core.end_profiling()

    @property
    def device(self) -> str:
        """``"cpu"``, ``"cuda:N"`` or a plug-in's, such as ``"openvino:CPU"``: the device of the preferred provider."""
        return self._core.device()

    @property
    def timeline(self) -> Timeline:
        """The spans of the creation that made this session."""
        return self._timeline

    def close(self) -> None:
        """Wait for the runs that are under way and free the session; using it afterwards raises `ClosedError`.

        Submitted asynchronous runs are finished first; their callbacks may come later. A second call does nothing.
        Arrays that runs returned stay valid.
        """
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<InferenceSession of {self._core.model()} on {self.device}{state}>"


class _CSession(InferenceSession):
    """The same session, with the names and arguments of onnxruntime's C namespace."""

    def __init__(self, session: InferenceSession) -> None:
        self.__dict__ = session.__dict__

    inputs_meta = property(InferenceSession.get_inputs)
    outputs_meta = property(InferenceSession.get_outputs)
    overridable_initializers = property(InferenceSession.get_overridable_initializers)
    model_meta = property(InferenceSession.get_modelmeta)
    session_options = property(InferenceSession.get_session_options)
    get_profiling_start_time_ns = property(InferenceSession.get_profiling_start_time_ns)

    def run_with_ort_values(  # type: ignore[override]
        self, feed: Mapping[str, OrtValue], output_names: Iterable[str], run_options: RunOptions | None = None
    ) -> OrtValueVector:
        values = OrtValueVector()
        for value in super().run_with_ort_values(output_names, feed, run_options):
            values.push_back(value)
        return values

    def create_ortvalue_from_shape_and_type(  # type: ignore[override]
        self, shape: Sequence[int], element_type: Any, device: OrtDevice
    ) -> OrtValue:
        number = element_type_number(element_type)
        return OrtValue(_core.allocate_in(self._core, dimensions(shape), number, core_device("device", device)))

    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type

    def set_tuning_results(  # type: ignore[override]
        self, results: list[dict[str, Any]], error_on_invalid: bool
    ) -> None:
        super().set_tuning_results(results, error_on_invalid=error_on_invalid)


class Sessions(Closing, Sequence[InferenceSession]):
    """One model's sessions on several devices, in the order of the request."""

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
        """Close every session; see `InferenceSession.close`."""
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

    def __repr__(self) -> str:
        return f"<Sessions on {', '.join(self.devices)}>"
