"""onnxruntime's OrtDevice: how a program names the memory of a device, of any vendor."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ortmulti import checks, errors
from ortmulti._runtime import libraries
from ortmulti._runtime import startup as _startup
from ortmulti.errors import DeviceError, InvalidArgument, InvalidType, LibraryError

__all__ = ["OrtDevice", "OrtDeviceVendorId", "core_device", "device_name"]


class OrtDeviceVendorId(IntEnum):
    """The PCI vendor ids that onnxruntime names."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


_CPU, _GPU, _FPGA, _NPU = range(4)  # ONNX Runtime's kinds of devices
_DML = 4  # stands for a GPU of Microsoft's interface
_DEFAULT_MEMORY = 0
_KINDS = {"cpu": _CPU, "cuda": _GPU, "dml": _GPU, "gpu": _GPU, "webgpu": _GPU, "cann": _NPU, "npu": _NPU}
_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
    "webgpu": OrtDeviceVendorId.NONE,
}


def _within(name: str, value: object, low: int, high: int) -> int:
    number = checks.integer(name, value)
    if not low <= number < high:
        raise InvalidType(f"{name} is an int from {low} to {high - 1}, not {number}")
    return number


def _default_vendor(kind: int) -> int:
    """As the installed onnxruntime has it: builds for CUDA take a GPU for NVIDIA's."""
    try:
        has_cuda = kind == _GPU and libraries.find_onnxruntime().has_cuda
    except LibraryError:
        has_cuda = False
    return int(OrtDeviceVendorId.NVIDIA if has_cuda else OrtDeviceVendorId.NONE)


class NativeDevice:
    """The OrtDevice of onnxruntime's C namespace, which `OrtDevice` wraps.

    Args:
        device_type: The kind of device, as `cpu`, `gpu`, `dml` (a GPU by DirectML), `fpga` and `npu` return it. `cuda`
            and `webgpu` are the same as `gpu`, `cann` is the same as `npu`.
        mem_type: The kind of its memory, as `default_memory` returns it.
        *rest: The vendor's PCI id, and the device's number. Default: NVIDIA's for a GPU where the installed onnxruntime
            is one for CUDA, else 0.
    """

    __slots__ = ("_values",)

    def __init__(self, device_type: int, mem_type: int, *rest: int) -> None:
        if len(rest) not in (1, 2):
            raise InvalidType("a device is made of its type, memory type, vendor id (default 0) and id")
        kind = _within("device_type", device_type, 0, 2**7)
        vendor = _within("vendor_id", rest[0] if len(rest) == 2 else _default_vendor(kind), 0, 2**32)
        if kind == _DML:
            kind, vendor = _GPU, int(OrtDeviceVendorId.MICROSOFT)
        self._values = (
            kind,
            _within("mem_type", mem_type, 0, 2**7),
            vendor,
            _within("device_id", rest[-1], -(2**15), 2**15),
        )

    cpu = staticmethod(lambda: _CPU)
    gpu = cuda = webgpu = staticmethod(lambda: _GPU)
    dml = staticmethod(lambda: _DML)
    fpga = staticmethod(lambda: _FPGA)
    npu = cann = staticmethod(lambda: _NPU)
    default_memory = staticmethod(lambda: _DEFAULT_MEMORY)

    def device_type(self) -> int:
        """Return the kind of device."""
        return self._values[0]

    def mem_type(self) -> int:
        """Return the kind of its memory."""
        return self._values[1]

    def vendor_id(self) -> int:
        """Return the PCI vendor id; 0 if unknown."""
        return self._values[2]

    def device_id(self) -> int:
        """Return the device's number."""
        return self._values[3]


class OrtDevice:
    """The memory of a device, under onnxruntime's interface; made by `make`.

    The device need not exist. Values can be on the CPU and on CUDA devices only.

    Raises:
        InvalidArgument: ``c_ort_device`` does not come from the ``_get_c_device()`` of an `OrtDevice`.
    """

    def __init__(self, c_ort_device: NativeDevice) -> None:
        if not isinstance(c_ort_device, NativeDevice):
            raise InvalidArgument(f"an OrtDevice is made by OrtDevice.make, not of {type(c_ort_device).__name__}")
        self._ort_device = c_ort_device

    def _get_c_device(self) -> NativeDevice:
        return self._ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """Make a device from its name.

        Args:
            ort_device_name: ``"cpu"``, ``"gpu"``, ``"npu"``; or ``"cuda"``, ``"dml"``, ``"webgpu"``, ``"cann"``, each a
                kind of device of one vendor.
            device_id: The device's number, of 16 bits.
            vendor_id: The PCI vendor id; default -1: the vendor of the name. For ``"gpu"`` that is NVIDIA if the
                installed onnxruntime supports CUDA, else 0.

        Raises:
            InvalidArgument: The name is unknown.
            InvalidType: An argument has the wrong type, or a number has too many bits.
        """
        checks.choice("ort_device_name", checks.text("ort_device_name", ort_device_name), tuple(_KINDS))
        vendor = checks.integer("vendor_id", vendor_id)
        kind = _KINDS[ort_device_name]
        if vendor < 0:
            vendor = int(_VENDORS.get(ort_device_name, _default_vendor(kind)))
        return OrtDevice(NativeDevice(kind, _DEFAULT_MEMORY, vendor, device_id))

    def device_id(self) -> int:
        """Return the device's number."""
        return self._ort_device.device_id()

    def device_type(self) -> int:
        """Return the kind of device: 0 for the CPU, 1 for a GPU, 3 for a neural processor."""
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        """Return the PCI vendor id; 0 if unknown."""
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        """Return the kind of memory: 0, the device's default."""
        return self._ort_device.mem_type()

    def __repr__(self) -> str:
        vendor = f"vendor {self.device_vendor_id():#06x}"
        return f"<OrtDevice of type {self.device_type()}, number {self.device_id()}, {vendor}>"


def device_name(device_type: object, device_id: object, vendor_id: object = -1) -> str:
    """onnxruntime's three arguments as the core's ``"cpu"`` or ``"cuda:N"``."""
    device_type = checks.text("device_type", device_type)
    index, vendor = checks.integer("device_id", device_id, 0), checks.integer("vendor_id", vendor_id)
    if device_type == "cpu":
        return "cpu"
    if device_type == "cuda" or (device_type == "gpu" and vendor == OrtDeviceVendorId.NVIDIA):
        return _cuda_name(index)
    if device_type in _KINDS:
        raise errors.NotImplemented(f"device_type is 'cpu' or 'cuda'; {device_type!r} is not supported")
    raise InvalidArgument(f"device_type is 'cpu' or 'cuda', not {device_type!r}")


def core_device(what: str, device: Any) -> str:
    """Convert a device, ours or one of onnxruntime's classes, to the core's ``"cpu"`` or ``"cuda:N"``."""
    if not isinstance(device, (OrtDevice, NativeDevice)):
        given = type(device)
        if given.__name__ != "OrtDevice" or given.__module__.partition(".")[0] != "onnxruntime":
            raise InvalidType(f"{what} takes an ortmulti.OrtDevice, not {given.__name__}")
    native = getattr(device, "_ort_device", device)
    kind, index = native.device_type(), native.device_id()
    vendor = native.vendor_id() if hasattr(native, "vendor_id") else OrtDeviceVendorId.NONE  # onnxruntime 1.21's
    if kind == _CPU:
        return "cpu"
    # Without a vendor it was made in the older way, when a GPU was one of CUDA.
    if kind != _GPU or vendor not in (OrtDeviceVendorId.NVIDIA, OrtDeviceVendorId.NONE):
        raise errors.NotImplemented(
            f"{what} is the CPU or a CUDA device; type {kind} of vendor {vendor:#06x} is not supported"
        )
    if index < 0:
        raise InvalidArgument(f"the number of a device is 0 or more, not {index}")
    return _cuda_name(index)


def _cuda_name(index: int) -> str:
    count = _startup.device_count()
    if index >= count:
        raise DeviceError(f"there is no device cuda:{index}: this process sees {count} CUDA devices")
    return f"cuda:{index}"
