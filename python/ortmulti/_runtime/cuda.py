"""Starting CUDA: its libraries are opened in the background while the driver initializes."""

from __future__ import annotations

from ortmulti import _core
from ortmulti.errors import LibraryError


def begin_opening_libraries() -> None:
    """Opens the CUDA libraries in the background, unless they are open or that is under way."""
    if _core.cuda_driver_version() is None:
        return
    from ortmulti._runtime import cuda_libraries, libraries

    try:
        runtime = libraries.find_onnxruntime()
        if not runtime.has_cuda or cuda_libraries.why_no_cuda(runtime):
            return
    except LibraryError:
        return  # whoever needs it says so
    found = [str(path) for path in cuda_libraries.find_cuda_libraries(runtime).found]
    linked = max((i + 1 for i, path in enumerate(found) if path.rsplit("/", 1)[-1] in runtime.cuda_needed), default=0)
    _core.begin_opening_cuda_libraries(found[:linked], found[linked:])


def device_count() -> int:
    """How many CUDA devices this process sees; starts CUDA.

    Returns:
        0 on a machine without NVIDIA hardware, or where CUDA_VISIBLE_DEVICES hides it.

    Raises:
        DeviceError: There is hardware, and its driver does not work.
        ForkError: This process was forked after its parent had started CUDA.
    """
    begin_opening_libraries()
    return _core.cuda_device_count()
