"""The options of execution providers, checked by name and value before any session is created.

ONNX Runtime itself checks them late: while it creates a session, with the provider's libraries open and CUDA started.
It also reports an option of a newer release as unknown.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np

from ortmulti import checks, errors
from ortmulti._runtime.libraries import needs_newer
from ortmulti.errors import InvalidArgument, InvalidType

__all__ = ["CPU", "CUDA", "OPTIONS", "Option", "check"]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

Release: TypeAlias = tuple[int, int]

_INT_MAX = 2**31 - 1
_SIZE_MAX = 2**64 - 1
_TRUE, _FALSE = ("1", "True", "true"), ("0", "False", "false")


@dataclass(frozen=True)
class Option:
    """An option of an execution provider.

    Attributes:
        name: Its name.
        kind: ``"int"``: 0 to ``maximum``. ``"bool"``: True, False, or one of ``1 True true 0 False false``. ``"enum"``:
            one of ``words``. ``"pointer"``: an address as a number, 0 for none.
        default: ONNX Runtime's default.
        since: The first release of ONNX Runtime with this option, from the names in the CUDA libraries of 1.14 and
            later; None for older options.
        words: The values of an ``"enum"``.
        maximum: The largest number.
        passed_on: False if the C interface, which ortmulti uses, ignores the option. Then only the default is allowed.
    """

    name: str
    kind: Literal["int", "bool", "enum", "pointer"]
    default: str
    since: Release | None = None
    words: tuple[str, ...] = ()
    maximum: int = _INT_MAX
    passed_on: bool = True


def _table(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


_ARENA_EXTEND_STRATEGY = Option(
    "arena_extend_strategy", "enum", "kNextPowerOfTwo", words=("kNextPowerOfTwo", "kSameAsRequested")
)

OPTIONS: dict[str, dict[str, Option]] = {
    # Without effect, also in onnxruntime; some programs give it to every provider.
    CPU: _table(_ARENA_EXTEND_STRATEGY),
    CUDA: _table(
        Option("device_id", "int", "0"),
        Option("has_user_compute_stream", "bool", "0", since=(1, 16)),
        Option("user_compute_stream", "pointer", "0", since=(1, 16), maximum=_SIZE_MAX),
        Option("gpu_mem_limit", "int", str(_SIZE_MAX), maximum=_SIZE_MAX),
        _ARENA_EXTEND_STRATEGY,
        Option("cudnn_conv_algo_search", "enum", "EXHAUSTIVE", words=("EXHAUSTIVE", "HEURISTIC", "DEFAULT")),
        Option("do_copy_in_default_stream", "bool", "1"),
        Option("gpu_external_alloc", "pointer", "0", maximum=_SIZE_MAX, passed_on=False),
        Option("gpu_external_free", "pointer", "0", maximum=_SIZE_MAX, passed_on=False),
        Option("gpu_external_empty_cache", "pointer", "0", maximum=_SIZE_MAX, passed_on=False),
        Option("cudnn_conv_use_max_workspace", "bool", "1"),
        Option("enable_cuda_graph", "bool", "0"),
        Option("cudnn_conv1d_pad_to_nc1d", "bool", "0"),
        Option("tunable_op_enable", "bool", "0", since=(1, 15), passed_on=False),
        Option("tunable_op_tuning_enable", "bool", "0", since=(1, 15), passed_on=False),
        Option("tunable_op_max_tuning_duration_ms", "int", "0", since=(1, 16), passed_on=False),
        Option("enable_skip_layer_norm_strict_mode", "bool", "0", since=(1, 15)),
        Option("prefer_nhwc", "bool", "0", since=(1, 17)),
        Option("use_ep_level_unified_stream", "bool", "0", since=(1, 17)),
        Option("use_tf32", "bool", "1", since=(1, 18)),
        Option("sdpa_kernel", "int", "0", since=(1, 19)),
        Option("fuse_conv_bias", "bool", "0", since=(1, 20)),
        Option("enable_cudnn", "bool", "1", since=(1, 28), passed_on=False),
        Option("external_data_loader_reading_threads", "int", "4", since=(1, 31), maximum=64),
    ),
}
"""Every option of the providers whose options are known, by provider and name."""


def check(provider: str, options: Mapping[Any, Any], release: Callable[[], str]) -> dict[str, str]:
    """Check the options of one provider, and return them in ONNX Runtime's form.

    Args:
        provider: The provider's name. If `OPTIONS` does not have it, only the types are checked.
        options: Names and values.
        release: Returns ONNX Runtime's release, such as ``"1.31.1"``; called only if it matters. Empty: unknown, and
            every option is accepted.

    Returns:
        Names and values as text, a boolean as ``"1"`` or ``"0"``.

    Raises:
        InvalidArgument: The provider, or this release of it, does not have the option or does not take the value; the
            message lists what is allowed.
        InvalidType: ``options`` is not a dict, or has a value that is neither text nor a number.
        NotImplemented: Sessions of ortmulti cannot have the option.
    """
    if not isinstance(options, Mapping):
        raise InvalidType(f"the options of {provider} are a dict, not {options!r}")
    for name in options:
        if not isinstance(name, str) or not name:
            raise InvalidType(f"the name of an option of {provider} is a str that is not empty, not {name!r}")
    known = OPTIONS.get(provider)
    if known is None:
        return {name: _as_text(provider, name, value) for name, value in options.items()}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidArgument(_why_unknown(provider, unknown, known))
    result = {name: _checked(provider, known[name], value) for name, value in options.items()}
    if provider == CPU:
        return {}
    if newer := needs_newer({name: known[name].since for name in options}, release):
        name, (major, minor), loaded = newer
        raise InvalidArgument(
            f"{name} of {provider} is an option of ONNX Runtime {major}.{minor} and newer, and this one is {loaded}"
        )
    # ONNX Runtime's C interface takes the stream only from those who say that there is one.
    if provider == CUDA and int(result.get("user_compute_stream", "0")):
        result["has_user_compute_stream"] = "1"
    return result


def _as_text(provider: str, name: str, value: object) -> str:
    # ONNX Runtime reads "1" and "0" for every boolean option, and "True" only for some.
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (str, int, float, np.number)):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise InvalidType(f"{name} of {provider} is a str, a number or a path, not {value!r}")


def _why_unknown(provider: str, unknown: Iterable[str], known: Mapping[str, Option]) -> str:
    names = ", ".join(f"{name!r}{checks.did_you_mean(name, known)}" for name in unknown)
    return f"{provider} has no option {names}; it has {', '.join(known)}"


def _checked(provider: str, option: Option, value: object) -> str:
    name = f"{option.name} of {provider}"
    # As text: onnxruntime converts every value to text.
    if isinstance(value, np.bool_):
        value = bool(value)
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # an array of several
            value = str(operator.index(value))
    if not isinstance(value, (str, bool, float)):
        raise InvalidType(f"{name} is {_allowed(option)}, not {value!r}")
    text = str(value)
    if option.kind == "bool" and text in (*_TRUE, *_FALSE):
        text = "1" if text in _TRUE else "0"
    elif option.kind in ("int", "pointer") and re.fullmatch(r"[0-9]{1,40}", text):
        text = str(int(text))
        if int(text) > option.maximum:
            raise InvalidArgument(f"{name} is {_allowed(option)}, not {value!r}")
    elif text not in option.words:
        raise InvalidArgument(f"{name} is {_allowed(option)}, not {value!r}")
    if not option.passed_on and text != option.default:
        raise errors.NotImplemented(f"{name} can only be {option.default}: ONNX Runtime's C interface leaves it aside")
    return text


def _allowed(option: Option) -> str:
    if option.kind == "bool":
        return f"True or False, or a str: one of {' '.join((*_TRUE, *_FALSE))}"
    if option.kind == "enum":
        return " or ".join(map(repr, option.words))
    what = "an int" if option.kind == "int" else "an address, an int"
    return f"{what} from 0 to {option.maximum}"
