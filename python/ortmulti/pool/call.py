"""The arguments that every request of a pool takes."""

from __future__ import annotations

import functools
import inspect
import textwrap
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

from ortmulti import checks
from ortmulti.devices.device import Device, name_devices
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options.foreign_options import to_run_options

if TYPE_CHECKING:
    from ortmulti import _core
    from ortmulti.options.session_options import RunOptions
    from ortmulti.timeline import Timeline

__all__ = ["Call", "CoreCall", "core_call", "takes_call"]


class Call(TypedDict, total=False):
    """Arguments of every request of a `Pool`.

    Attributes:
        device: The device to run on; default: any device with an idle session.
        timeout: Deadline in seconds from this call, with `Pool.map` and `Pool.as_completed` of each request; then
            `DeadlineExceeded` is raised; default: none. A run that has begun ends at the next node of the model, and
            its session is busy until then.
        priority: Of the requests that wait, those with a higher one begin first; default 0. Within a priority it is the
            one with the earliest deadline. None counts as one of a minute. Once in 16 times a lower one has its turn.
        trace: Add the spans of this request, queue, copy and run, to the `timeline`; default False. A str is the
            request's id, which they carry; those of a joint run carry the ids of all its requests.
        caller: Who asks, such as a user's or a connection's key. If requests of one caller fail again and again, they
            run alone with `Batching`, so that others keep their rate. Default None: in `Pool.run` the thread, else
            nobody.
    """

    device: str | int | Device | None
    timeout: float | None
    priority: int
    trace: bool | str
    caller: str | int | None


class CoreCall(NamedTuple):
    """The same for the core, which reads the fields by their places.

    Attributes:
        run_options: The core's run options, or None.
        device: Empty for any.
        timeout: Seconds; None: no deadline.
        outputs_on_device: Whether outputs stay where the model leaves them.
        trace: The timeline that receives the spans, and the request's id; None: nothing does.
        priority: Higher ones begin first.
        caller: A number of whoever asks; 0: nobody knows.
    """

    run_options: Any
    device: str
    timeout: float | None
    outputs_on_device: bool
    trace: tuple[_core.Timeline, str] | None
    priority: int
    caller: int


_DEFAULTS = Call(device=None, timeout=None, priority=0, trace=False, caller=None)
_NAMES = _DEFAULTS.keys()
_MOST = 2**31 - 1
_KEYWORDS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Call.__annotations__[name])
    for name, default in _DEFAULTS.items()
]
_LINE = "**call: Arguments of every request: `Call`.\n"
_TEXT = textwrap.dedent(inspect.cleandoc(Call.__doc__ or "").partition("Attributes:\n")[2]) + "\n"

_Method = TypeVar("_Method", bound=Callable[..., Any])


def takes_call(method: _Method) -> _Method:
    """Decorate a method with ``**call: Unpack[Call]``, so that `help` and completion show each argument."""
    signature = inspect.signature(method)
    named = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    method.__signature__ = signature.replace(parameters=[*named, *_KEYWORDS])  # type: ignore[attr-defined]
    if method.__doc__:  # python -OO leaves none
        before, _, after = method.__doc__.partition(_LINE)
        indent = before[before.rfind("\n") + 1 :]
        method.__doc__ = before + textwrap.indent(_TEXT, indent).lstrip() + after
    return method


def core_call(
    call: Mapping[str, Any], run_options: RunOptions | None, on_device: bool, timeline: Timeline, stacklevel: int
) -> CoreCall:
    """Check the arguments of a request, and convert them to the core's.

    Args:
        call: As `Call`.
        on_device: Whether outputs stay where the model leaves them.
        timeline: Receives the spans with ``trace``.
        stacklevel: Of the caller, for a warning.

    Raises:
        InvalidArgument, InvalidType: An argument is unknown or wrong.
    """
    if not call.keys() <= _NAMES:
        name = next(iter(call.keys() - _NAMES))
        hint = checks.did_you_mean(name, _NAMES) or f": it takes {', '.join(sorted(_NAMES))}"
        raise InvalidType(f"a request got an unexpected keyword argument {name!r}{hint}")
    timeout = call.get("timeout")
    if timeout is not None:
        checks.number("timeout", timeout)
        if 1000 <= timeout < 1e9:  # more is "never"
            warnings.warn(
                f"timeout={timeout:g} is in seconds, that is {int(timeout / 60)} minutes: if it is in milliseconds, "
                "divide it by 1000",
                stacklevel=stacklevel + 1,
            )
    priority: Any = call.get("priority", 0)
    if priority != 0:
        priority = checks.integer("priority", priority, -_MOST, _MOST)
    trace: Any = call.get("trace", False)
    if trace is not False:
        trace = _id(trace)
    traced = None if trace is False else (timeline._core, trace)
    device, caller = _name(call.get("device")), _caller(call.get("caller"))
    return CoreCall(to_run_options(run_options), device, timeout, on_device, traced, priority or 0, caller)


def _caller(caller: object) -> int:
    if caller is None:
        return 0
    if not isinstance(caller, str | int) or isinstance(caller, bool):
        raise InvalidType(f"caller is a str or an int that stands for who asks, not {caller!r}")
    return hash(("caller", caller)) % 2**64 or 1


def _id(trace: object) -> str | Literal[False]:
    if not isinstance(trace, bool | str):
        raise InvalidType(f"trace is True, False, or the request's id as a str, not {trace!r}")
    return "" if trace is True else trace


def _name(device: object) -> str:
    return _parsed(device) if isinstance(device, str) else _parsed.__wrapped__(device)


@functools.lru_cache(maxsize=1000)
def _parsed(device: Any) -> str:
    if device is None:
        return ""
    named = name_devices(device)  # the pool knows whether it exists, perhaps before CUDA does
    if named is None or len(named) != 1:
        raise InvalidArgument(f"a request is for one device, not {device!r}")
    return str(named[0])
