"""The arguments that every request of a pool takes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

from ortmulti import _core, checks
from ortmulti.devices.device import Device, name_devices
from ortmulti.errors import InvalidArgument
from ortmulti.options.foreign_options import to_run_options

if TYPE_CHECKING:
    from ortmulti.options.session_options import RunOptions
    from ortmulti.timeline import Timeline

__all__ = ["Call", "core_call", "takes_call"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Call(TypedDict, total=False):
    """Arguments of every request of a `Pool`.

    Attributes:
        device: The device to run on; default: any device with an idle session.
        timeout: Deadline in seconds from this call; then `DeadlineExceeded` is raised; default: none.
        trace: Add the spans of this request, queue, copy and run, to the pool's `timeline`; default False.
    """

    device: str | int | Device | None
    """The device to run on; default: any device with an idle session."""
    timeout: float | None
    """Deadline in seconds from this call; then `DeadlineExceeded` is raised; default: none."""
    trace: bool
    """Add the spans of this request, queue, copy and run, to the pool's `timeline`; default False."""
