"""For programs of tests: what is in a DLPack capsule, and what the memory driver has."""

from __future__ import annotations

CAPSULES = """
    import ctypes, gc, sys
    import numpy as np
    import ortmulti
    from ortmulti import _core
    from tests.support.weight_lists import weight_list

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
            ("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
            ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ]

    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    taken = b"used_dltensor"

    def tensor_in(capsule):
        return Tensor.from_address(python.PyCapsule_GetPointer(capsule, b"dltensor"))

    driver = ctypes.CDLL("libcuda.so.1")

    def live():
        gc.collect()
        return driver.live()

    def failure(call, *arguments):
        try:
            call(*arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
"""
