"""onnxruntime's IOBinding, and runs with values: the memory that runs read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ortmulti import _core, checks
from ortmulti._runtime.closing import stays_here
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options.foreign_options import to_run_options
from ortmulti.options.session_options import RunOptions
from ortmulti.values.ort_device import OrtDevice, OrtDeviceVendorId, core_device, device_name
from ortmulti.values.ort_value import OrtValue, core_value, dimensions, element_type_number
from ortmulti.values.ort_value_vector import OrtValueVector, address

__all__ = ["IOBinding", "SessionIOBinding"]


class _Binding:
    """The methods that both classes of bindings have."""

    _core: _core.IoBinding
    __reduce__ = stays_here("make another one there")

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value, this package's or onnxruntime's.

        If the session runs on another device, the value is copied there now.

        Raises:
            NotImplemented: onnxruntime cannot hand over its value by DLPack, for example strings.
        """
        self._core.bind_input(checks.text("name", name), core_value("bind_ortvalue_input", ortvalue))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value, this package's or onnxruntime's, into whose memory runs write.

        The value must not be over a read-only array. Raises NotImplemented as `bind_ortvalue_input`.
        """
        self._core.bind_output(checks.text("name", name), core_value("bind_ortvalue_output", ortvalue))

    def synchronize_inputs(self) -> None:
        """Wait until the inputs were copied to the session's device."""
        self._core.synchronize(inputs=True)

    def synchronize_outputs(self) -> None:
        """Wait until the outputs are there: after a run with ``disable_synchronize_execution_providers``."""
        self._core.synchronize(inputs=False)

    def _outputs(self) -> list[OrtValue]:
        return [OrtValue(value) for value in self._core.outputs()]

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        """Copy the last run's outputs into arrays, in the order in which they were bound.

        Raises:
            InvalidType: An output is empty, because nothing has run yet.
        """
        outputs = self._outputs()
        for output in outputs:
            if not output.has_value():
                raise InvalidType("an output has no value: there was no run since it was bound")
        # The next run may write to the memory of what is on the CPU; of what is not, there is a copy already.
        return [np.array(output.numpy(), copy=output.device_name() == "cpu" or None) for output in outputs]

    def clear_binding_inputs(self) -> None:
        """Remove all inputs from the binding."""
        self._core.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs from the binding."""
        self._core.clear_outputs()


class SessionIOBinding(_Binding):
    """The binding of onnxruntime's C namespace, with devices of type `OrtDevice`. An `IOBinding` has one.

    Args:
        arg0: The session.

    Raises (every method): As `IOBinding`.
    """

    def __init__(self, arg0: ValueRuns) -> None:
        core = getattr(arg0, "_core", None)
        if not isinstance(core, _core.Session):
            raise InvalidType(f"session is an ortmulti.InferenceSession, not {type(arg0).__name__}")
        self._core = _core.IoBinding(core)

    def bind_input(self, name: str, *value: Any) -> None:
        """Bind an input to an array; or, with four arguments, to memory at an address, which must stay valid.

        Args:
            name: The input.
            *value: An array; or an `OrtDevice`, a NumPy dtype or the number of an ONNX type, a shape and an address.
        """
        if len(value) == 1:
            self._core.bind_input(checks.text("name", name), OrtValue.ortvalue_from_numpy(value[0])._core)
        elif len(value) == 4:
            self._core.bind_input(checks.text("name", name), _over(core_device("bind_input", value[0]), *value[1:]))
        else:
            raise InvalidType("bind_input takes an array, or a device, an element type, a shape and an address")

    def bind_output(self, name: str, device: OrtDevice, *memory: Any) -> None:
        """Bind an output to a device, where runs allocate it; or, with three more arguments, to memory at an address.

        Args:
            name: The output.
            device: The CPU or a CUDA device.
            *memory: Nothing; or a NumPy dtype or the number of an ONNX type, a shape and an address.
        """
        on = core_device("bind_output", device)
        if len(memory) == 3:
            self._core.bind_output(checks.text("name", name), _over(on, *memory))
        elif not memory:
            self._core.bind_output_to_device(checks.text("name", name), on)
        else:
            raise InvalidType("bind_output takes a device, or a device, an element type, a shape and an address")

    def get_outputs(self) -> OrtValueVector:
        """Return the outputs of the last run; see `IOBinding.get_outputs`."""
        vector = OrtValueVector()
        vector._replace(self._outputs())
        return vector


class IOBinding(_Binding):
    """The inputs and outputs of a session's runs, under onnxruntime's interface; see `InferenceSession.io_binding`.

    It keeps the session and the bound values alive, except memory given by its address. Several threads may use it;
    their runs wait for each other.

    Args:
        session: The session.

    Raises (every method):
        InvalidArgument: The model does not have the name, or does not take the rank or dimension.
        InvalidType: An argument has the wrong type, or its elements have another type than the model's.
        ClosedError: The session is closed.
        ForkError: The binding was created before this process was forked.
    """

    def __init__(self, session: ValueRuns) -> None:
        self._iobinding = SessionIOBinding(session)
        self._core = self._iobinding._core

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        """Bind an input to an array. Runs read its memory in place if `OrtValue.ortvalue_from_numpy` can share it.

        Args:
            name: The input.
            arr_on_cpu: An array of the shape and dtype that the model declares.
        """
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory at an address, which must stay valid as long as it is bound.

        Args:
            name: The input.
            device_type, device_id: Where the memory is, as `OrtValue.ortvalue_from_numpy`.
            element_type: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``; no strings.
            shape: The dimensions, 0 or more each.
            buffer_ptr: The address, such as ``array.ctypes.data`` or PyTorch's ``tensor.data_ptr()``.
        """
        device = device_name(device_type, device_id)
        self._core.bind_input(checks.text("name", name), _over(device, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to a device, where runs allocate and may reuse it, or to memory at an address.

        Args:
            name: The output.
            device_type, device_id: As `OrtValue.ortvalue_from_numpy`; default: the CPU.
            element_type, shape, buffer_ptr: As `bind_input`; default None: runs allocate the output.
        """
        device = device_name(device_type, device_id)
        if buffer_ptr is None:
            self._core.bind_output_to_device(checks.text("name", name), device)
            return
        if element_type is None or shape is None:
            raise InvalidArgument("buffer_ptr needs element_type and shape: give all three")
        self._core.bind_output(checks.text("name", name), _over(device, element_type, shape, buffer_ptr))

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run in the order of binding, each on the device to which it is bound.

        Before the first run, outputs without memory are empty.
        """
        return self._outputs()

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the outputs as `get_outputs`, in an `OrtValueVector`, which keeps them alive."""
        return self._iobinding.get_outputs()


def _over(device: str, element_type: object, shape: object, buffer_ptr: object) -> _core.OrtValue:
    return _core.OrtValue.over(address(buffer_ptr), dimensions(shape), element_type_number(element_type), device)


class ValueRuns:
    """The part of `InferenceSession` for `OrtValue`: runs with values, bound or not."""

    _core: _core.Session

    def run_with_ort_values(
        self,
        output_names: Iterable[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run the model with values. Inputs on another device are copied to the session's device.

        Args:
            output_names: Names of the outputs, in the order of the result; None or empty for all.
            input_dict_ort_values: A value for each input, with the type and shape that `get_inputs` declares; this
                package's, or onnxruntime's.
            run_options: Options of this run.

        Returns:
            One value for each output, on the CPU; `run_with_iobinding` leaves them on a GPU. An output in an input's
            memory keeps that input alive.

        Raises:
            As `run`. InvalidType: An input is not an `OrtValue`, or has another type.
            NotImplemented: onnxruntime cannot hand over its value by DLPack, for example strings.
        """
        if not isinstance(input_dict_ort_values, Mapping):
            raise InvalidType(
                f"input_dict_ort_values is a dict of the inputs' names and values, not {input_dict_ort_values!r}"
            )
        names = checks.names("input_dict_ort_values", list(input_dict_ort_values))
        wanted = checks.names(
            "output_names", [] if output_names is None else checks.iterable("output_names", output_names)
        )
        values = [core_value(f"input {name!r}", value) for name, value in input_dict_ort_values.items()]
        outputs = _core.run_with_values(self._core, wanted, names, values, to_run_options(run_options))
        return [OrtValue(output) for output in outputs]

    def io_binding(self) -> IOBinding:
        """Make an `IOBinding` for this session's `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding | SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run the model with the bound inputs and outputs, in place.

        Args:
            iobinding: A binding of this session. It must have every input that is not optional, and at least one
                output.
            run_options: Options of this run.

        Raises:
            InvalidArgument: An input is missing, no output is bound, or the binding is another session's.
            InvalidType: It is not a binding.
            ClosedError, ForkError: As `run`.
            RuntimeException, Fail, OutOfMemory, ...: The run failed, under ONNX Runtime's code.
        """
        if not isinstance(iobinding, IOBinding | SessionIOBinding):
            raise InvalidType(f"iobinding is an ortmulti.IOBinding, not {type(iobinding).__name__}")
        iobinding._core.run(self._core, to_run_options(run_options))

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: OrtValueVector | Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run the model with a list of values, and put the outputs into an `OrtValueVector`.

        Args:
            run_options: Options of this run, or None.
            feed_names: Names of the inputs.
            feeds: A value for each input, this package's or onnxruntime's.
            fetch_names: Names of the outputs, at least one.
            fetches: Empty, or a value for each of ``fetch_names``; the run writes to values that are not empty.
                Afterwards it has the outputs, in the order of ``fetch_names``.
            fetch_devices: The device of each output that is not written to a value.

        Raises:
            Error: As `run_with_iobinding`; ``fetches`` then has the same values as before.
            InvalidArgument: The numbers of names, values and devices differ.
            InvalidType: ``fetches`` is not an `OrtValueVector`, or a value or device has another type.
        """
        inputs = checks.names("feed_names", checks.iterable("feed_names", feed_names))
        outputs = checks.names("fetch_names", checks.iterable("fetch_names", fetch_names))
        values = [core_value("feeds", value) for value in checks.iterable("feeds", feeds)]
        if not isinstance(fetches, OrtValueVector):
            raise InvalidType(f"fetches is an ortmulti.OrtValueVector, not {type(fetches).__name__}")
        targets: list[OrtValue | None] = list(fetches) or [None] * len(outputs)
        devices = [core_device("fetch_devices", device) for device in checks.iterable("fetch_devices", fetch_devices)]
        if not len(inputs) == len(values) == len(set(inputs)):
            raise InvalidArgument(
                f"name each input once, with one value: got {len(inputs)} names, {len(values)} values"
            )
        if not len(outputs) == len(targets) == len(devices):
            raise InvalidArgument(
                f"fetches is empty or has a value for each of fetch_names, and fetch_devices has a device for each: "
                f"{len(outputs)} names, {len(fetches)} values, {len(devices)} devices"
            )
        if len(fetches) != 0 and len(set(outputs)) != len(outputs):
            raise InvalidArgument("fetch_names names an output twice: name each once")
        binding = _core.IoBinding(self._core)
        for name, value in zip(inputs, values, strict=True):
            binding.bind_input(name, value)
        for name, target, device in zip(outputs, targets, devices, strict=True):
            if target is not None and target.has_value():
                binding.bind_output(name, target._core)
            else:
                binding.bind_output_to_device(name, device)
        binding.run(self._core, to_run_options(run_options))
        made = dict(zip(dict.fromkeys(outputs), binding.outputs(), strict=True))
        fetches._replace(OrtValue(made[name]) for name in outputs)

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        """Make a tensor in memory of the session's allocator. Its elements are not initialized.

        Other sessions may use it too, and it stays valid after this session is closed.

        Args:
            shape: The dimensions, 0 or more each.
            element_type: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``; no strings.
            device_type: ``"cpu"``, or the session's GPU: ``"cuda"``, or ``"gpu"`` with NVIDIA's ``vendor_id``.
            device_id: CUDA's number of the GPU; default 0.
            vendor_id: The device's PCI vendor id; default -1: as ``device_type`` says.

        Raises:
            InvalidType, InvalidArgument, NotImplemented, DeviceError: The type, shape or device is not valid, or the
                GPU is not the session's.
            ClosedError, ForkError: As `run`.
            OutOfMemory, RuntimeException, ...: The device has too little free memory, under ONNX Runtime's code.
        """
        device = device_name(device_type, device_id, vendor_id)
        number = element_type_number(element_type)
        return OrtValue(_core.allocate_in(self._core, dimensions(shape), number, device))
