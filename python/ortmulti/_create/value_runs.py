"""What sessions do with values: the part of `InferenceSession` that takes and returns `OrtValue`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ortmulti import _core
from ortmulti._create.foreign_options import to_run_options
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.io_binding import IOBinding, SessionIOBinding
from ortmulti.options import RunOptions
from ortmulti.ort_device import OrtDevice, OrtDeviceVendorId, core_device, device_name
from ortmulti.ort_value_vector import OrtValueVector
from ortmulti.values import OrtValue, core_value, dimensions, element_type_number


class ValueRuns:
    """Runs with values, bound or not, and values in a session's memory."""

    _core: _core.Session

    def run_with_ort_values(
        self,
        output_names: Iterable[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, with values: inputs are used where they are, or copied to the session's device.

        Args:
            output_names: Names of the outputs wanted, in the order wanted; None or empty for all.
            input_dict_ort_values: A value for each input, of the type and shape that `get_inputs` declares; of this
                package, or onnxruntime's.
            run_options: Options of this run.

        Returns:
            One value for each output, on the CPU; `run_with_iobinding` leaves them on a GPU. An output that is an
            input's memory keeps that input alive.

        Raises:
            As `run`. InvalidType: An input that is no `OrtValue`, or of another type.
            NotImplemented: A value of onnxruntime's that it cannot hand over by DLPack, such as strings.
        """
        if not isinstance(input_dict_ort_values, Mapping):
            raise InvalidType(
                f"input_dict_ort_values is a dict of the inputs' names and values, not {input_dict_ort_values!r}"
            )
        names = _check_names("input_dict_ort_values", list(input_dict_ort_values))
        wanted = _check_names("output_names", [] if output_names is None else _list("output_names", output_names))
        values = [core_value(f"input {name!r}", value) for name, value in input_dict_ort_values.items()]
        outputs = _core.run_with_values(self._core, wanted, names, values, to_run_options(run_options))
        return [OrtValue(output) for output in outputs]

    def io_binding(self) -> IOBinding:
        """A new `IOBinding` of this session, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding | SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Runs the model with the inputs and outputs that are bound, where they are.

        Args:
            iobinding: A binding that was made of this session. Every input that is not optional is bound, and
                one output at least.
            run_options: Options of this run.

        Raises:
            InvalidArgument: A missing input, no output, or another session's binding.
            InvalidType: No binding.
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
        """Runs the model with values in a row, and puts the outputs into another.

        Args:
            run_options: Options of this run, or None.
            feed_names: The inputs.
            feeds: A value for each of them, this package's or onnxruntime's.
            fetch_names: The outputs wanted, one at least.
            fetches: Empty, or as many values as ``fetch_names``; those that are not empty are written to. Afterwards
                it has the outputs, in the order of ``fetch_names``.
            fetch_devices: For each output the device on which it is to be, where it is not written to a value.

        Raises:
            As `run_with_iobinding`; ``fetches`` then has the same values as before.
            InvalidArgument: Not as many names as values or devices.
            InvalidType: ``fetches`` is no `OrtValueVector`, or values or devices of other types.
        """
        inputs = _check_names("feed_names", _list("feed_names", feed_names))
        outputs = _check_names("fetch_names", _list("fetch_names", fetch_names))
        values = [core_value("feeds", value) for value in _list("feeds", feeds)]
        if not isinstance(fetches, OrtValueVector):
            raise InvalidType(f"fetches is an ortmulti.OrtValueVector, not {type(fetches).__name__}")
        targets: list[OrtValue | None] = list(fetches) or [None] * len(outputs)
        devices = [core_device("fetch_devices", device) for device in _list("fetch_devices", fetch_devices)]
        if not len(inputs) == len(values) == len(set(inputs)):
            raise InvalidArgument(f"each input once and a value for each: {len(inputs)} names, {len(values)} values")
        if not len(outputs) == len(targets) == len(devices):
            raise InvalidArgument(
                f"fetches is empty or has a value for each of fetch_names, and fetch_devices has a device for each: "
                f"{len(outputs)} names, {len(fetches)} values, {len(devices)} devices"
            )
        if len(fetches) != 0 and len(set(outputs)) != len(outputs):
            raise InvalidArgument("an output is written to one value, and fetch_names names one twice")
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
        """A tensor in memory of the session's allocator, whose elements have no particular value.

        It may be used with other sessions too, and stays valid when this one is closed.

        Args:
            shape: The dimensions, 0 or more each.
            element_type: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``; no strings.
            device_type: ``"cpu"``, or the session's GPU: ``"cuda"``, or ``"gpu"`` with NVIDIA's ``vendor_id``.
            device_id: CUDA's number of the GPU; default 0.
            vendor_id: The device's PCI vendor id; default -1: as ``device_type`` says.

        Raises:
            InvalidType, InvalidArgument, NotImplemented, DeviceError: A type, shape or device that there is not, or a
                GPU that is not the session's.
            ClosedError, ForkError: As `run`.
            OutOfMemory, RuntimeException, ...: There is not enough free memory, under ONNX Runtime's code.
        """
        device = device_name(device_type, device_id, vendor_id)
        number = element_type_number(element_type)
        return OrtValue(_core.allocate_in(self._core, dimensions(shape), number, device))


def _list(what: str, values: object) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InvalidType(f"{what} is a list or another iterable, not {values!r}")
    return list(values)


def _check_names(what: str, names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise InvalidType(f"{what} has names of type str, not {name!r}")
    return names
