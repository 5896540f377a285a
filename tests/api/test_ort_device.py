"""OrtDevice against onnxruntime's."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

import ortmulti
from ortmulti import OrtDevice, OrtDeviceVendorId
from ortmulti.values.ort_device import NativeDevice
from tests.support.signatures import of_class

OF_131 = pytest.mark.skipif(
    not hasattr(onnxruntime, "OrtDeviceVendorId"), reason="this release of onnxruntime has no vendor ids"
)


def facts(device: Any) -> tuple[int, ...]:
    return (device.device_type(), device.device_id(), device.device_vendor_id(), device.device_mem_type())


@OF_131
@pytest.mark.parametrize(
    "arguments",
    [
        *[(name, 0) for name in ("cpu", "cuda", "gpu", "npu", "dml", "webgpu", "cann")],
        ("cpu", -3),
        ("cuda", 7),
        ("cuda", 2**15 - 1),
        ("cpu", -(2**15)),
        ("gpu", 1, 0x10DE),
        ("npu", 0, 2**32 - 1),
        ("cpu", 0, 5),
        ("webgpu", 0, -7),
        ("gpu", 2, onnxruntime.OrtDeviceVendorId.AMD if hasattr(onnxruntime, "OrtDeviceVendorId") else 0),
    ],
    ids=str,
)
def test_devices_are_onnxruntimes(arguments: tuple[Any, ...]) -> None:
    device = OrtDevice.make(*arguments)
    assert facts(device) == facts(onnxruntime.OrtDevice.make(*arguments))
    assert facts(OrtDevice(device._get_c_device())) == facts(device)


@OF_131
def test_the_device_of_the_c_namespace_is_there_too() -> None:
    assert list(of_class(state.OrtDevice, NativeDevice)) == []
    for name in ("cpu", "gpu", "cuda", "npu", "fpga", "dml", "webgpu", "cann", "default_memory"):
        assert getattr(NativeDevice, name)() == getattr(state.OrtDevice, name)()
    for arguments in [(kind, 0, 1) for kind in range(5)] + [(kind, 0, 7, 2) for kind in range(5)]:
        ours, theirs = NativeDevice(*arguments), state.OrtDevice(*arguments)
        for name in ("device_type", "mem_type", "vendor_id", "device_id"):
            assert getattr(ours, name)() == getattr(theirs, name)(), (arguments, name)


def test_a_device_says_what_it_is() -> None:
    assert repr(OrtDevice.make("cuda", 3)) == "<OrtDevice of type 1, number 3, vendor 0x10de>"
    assert OrtDevice.make("gpu", 0, OrtDeviceVendorId.INTEL).device_vendor_id() == 0x8086


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: OrtDevice.make("CPU", 0), ortmulti.InvalidArgument, "'CPU'"),
        (lambda: OrtDevice.make(3, 0), ortmulti.InvalidType, "ort_device_name"),
        (lambda: OrtDevice.make("cpu", "0"), ortmulti.InvalidType, "device_id"),
        (lambda: OrtDevice.make("cpu", 1.5), ortmulti.InvalidType, "device_id"),
        (lambda: OrtDevice.make("cpu", 2**15), ortmulti.InvalidType, "32767, not 32768"),
        (lambda: OrtDevice.make("cpu", 0, "x"), ortmulti.InvalidType, "vendor_id"),
        (lambda: OrtDevice.make("gpu", 0, 2**32), ortmulti.InvalidType, "vendor_id"),
        (lambda: OrtDevice("cpu"), ortmulti.InvalidArgument, "OrtDevice.make, not of str"),
        (lambda: OrtDevice(OrtDevice.make("cpu", 0)), ortmulti.InvalidArgument, "not of OrtDevice"),
        (lambda: NativeDevice(1, 0), ortmulti.InvalidType, "is made of"),
        (lambda: NativeDevice(-1, 0, 0), ortmulti.InvalidType, "device_type"),
    ],
)
def test_what_is_no_device_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
