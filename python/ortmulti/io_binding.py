"""onnxruntime's IOBinding: which memory a session's runs read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmulti import _core
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.ort_device import OrtDevice, core_device, device_name
from ortmulti.ort_value_vector import OrtValueVector, address
from ortmulti.values import OrtValue, core_value, dimensions, element_type_number

if TYPE_CHECKING:
    from ortmulti._create.value_runs import ValueRuns

__all__ = ["IOBinding", "SessionIOBinding"]


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidType(f"name is a str, not {name!r}")
    return name


class SessionIOBinding:
    """What an `IOBinding` is made of: the binding of onnxruntime's C namespace, whose devices are `OrtDevice`.

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
        """Binds an input to an array; or, by four arguments, to memory at an address, which must stay valid.

        Args:
            name: The input.
            *value: An array; or an `OrtDevice`, a NumPy dtype or the number of an ONNX type, a shape and an address.
        """
        if len(value) == 1:
            self._core.bind_input(_name(name), OrtValue.ortvalue_from_numpy(value[0])._core)
        elif len(value) == 4:
            self._core.bind_input(_name(name), _over(core_device("bind_input", value[0]), *value[1:]))
        else:
            raise InvalidType("bind_input takes an array, or a device, an element type, a shape and an address")

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Binds an input to a value, this package's or onnxruntime's."""
        self._core.bind_input(_name(name), core_value("bind_ortvalue_input", value))

    def bind_output(self, name: str, device: OrtDevice, *memory: Any) -> None:
        """Binds an output to a device, where runs allocate it; or, by three more arguments, to memory at an address.

        Args:
            name: The output.
            device: The CPU or a CUDA device.
            *memory: Nothing; or a NumPy dtype or the number of an ONNX type, a shape and an address.
        """
        on = core_device("bind_output", device)
        if len(memory) == 3:
            self._core.bind_output(_name(name), _over(on, *memory))
        elif not memory:
            self._core.bind_output_to_device(_name(name), on)
        else:
            raise InvalidType("bind_output takes a device, or a device, an element type, a shape and an address")

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Binds an output to a value, this package's or onnxruntime's, into whose memory runs write."""
        self._core.bind_output(_name(name), core_value("bind_ortvalue_output", value))

    def synchronize_inputs(self) -> None:
        """Waits until the inputs were copied to the session's device."""
        self._core.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Waits until the outputs are there: after a run with ``disable_synchronize_execution_providers``."""
        self._core.synchronize_outputs()

    def get_outputs(self) -> OrtValueVector:
        """The outputs of the last run; see `IOBinding.get_outputs`."""
        vector = OrtValueVector()
        vector._replace(OrtValue(value) for value in self._core.outputs())
        return vector

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        """Copies of the last run's outputs as arrays; see `IOBinding.copy_outputs_to_cpu`."""
        outputs = list(self.get_outputs())
        for output in outputs:
            if not output.has_value():
                raise InvalidType("an output has no value: there was no run since it was bound")
        # The next run may write to the memory of what is on the CPU; of what is not, there is a copy already.
        return [np.array(output.numpy(), copy=output.device_name() == "cpu" or None) for output in outputs]

    def clear_binding_inputs(self) -> None:
        """Gives up all inputs."""
        self._core.clear_inputs()

    def clear_binding_outputs(self) -> None:
        """Gives up all outputs."""
        self._core.clear_outputs()


class IOBinding:
    """The inputs and outputs of a session's runs, under onnxruntime's interface; see `InferenceSession.io_binding`.

    It keeps the session and what is bound alive, except for memory that is given by its address. It may be used from
    several threads, whose runs wait for each other.

    Args:
        session: The session.

    Raises (every method):
        InvalidArgument: A name that the model does not have, or a rank or dimension that it does not take.
        InvalidType: An argument of the wrong type, or elements of another type than the model's.
        ClosedError: The session is closed.
        ForkError: The binding was created before this process was forked.
    """

    def __init__(self, session: ValueRuns) -> None:
        self._iobinding = SessionIOBinding(session)
        self._core = self._iobinding._core

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        """Binds an input to an array, whose memory runs read where `OrtValue.ortvalue_from_numpy` shares it.

        Args:
            name: The input.
            arr_on_cpu: An array of the shape and dtype that the model declares.
        """
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Binds an input to memory at an address, which must stay valid as long as it is bound.

        Args:
            name: The input.
            device_type, device_id: Where the memory is, as `OrtValue.ortvalue_from_numpy`.
            element_type: A NumPy dtype or what makes one, or a number of ``onnx.TensorProto.DataType``; no strings.
            shape: The dimensions, 0 or more each.
            buffer_ptr: The address, such as ``array.ctypes.data`` or PyTorch's ``tensor.data_ptr()``.
        """
        device = device_name(device_type, device_id)
        self._core.bind_input(_name(name), _over(device, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an input to a value, this package's or onnxruntime's.

        Where the session runs on another device, it is copied there now.

        Raises:
            NotImplemented: A value of onnxruntime's that it cannot hand over by DLPack, such as strings.
        """
        self._iobinding.bind_ortvalue_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Binds an output to a device, where runs allocate it and may write again, or to memory at an address.

        Args:
            name: The output.
            device_type, device_id: As `OrtValue.ortvalue_from_numpy`; default: the CPU.
            element_type, shape, buffer_ptr: As `bind_input`; default None: runs allocate the output.
        """
        device = device_name(device_type, device_id)
        if buffer_ptr is None:
            self._core.bind_output_to_device(_name(name), device)
            return
        if element_type is None or shape is None:
            raise InvalidArgument("memory at buffer_ptr is a tensor by its element_type and shape, which are missing")
        self._core.bind_output(_name(name), _over(device, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an output to a value, this package's or onnxruntime's, into whose memory runs write.

        It is not over a read-only array. NotImplemented as `bind_ortvalue_input`.
        """
        self._iobinding.bind_ortvalue_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Waits until the inputs were copied to the session's device."""
        self._iobinding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Waits until the outputs are there: after a run with ``disable_synchronize_execution_providers``."""
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound, each on the device to which it is bound.

        Before the first run those without memory are empty.
        """
        return list(self._iobinding.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """As `get_outputs`, in an `OrtValueVector`, which keeps the outputs alive."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        """Copies of the last run's outputs as arrays, in the order in which they were bound.

        Raises:
            InvalidType: An output is empty, since there was no run.
        """
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Gives up all inputs."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Gives up all outputs."""
        self._iobinding.clear_binding_outputs()


def _over(device: str, element_type: object, shape: object, buffer_ptr: object) -> _core.OrtValue:
    return _core.OrtValue.over(address(buffer_ptr), dimensions(shape), element_type_number(element_type), device)
