"""onnxruntime's undocumented keyword arguments of InferenceSession: what of them can be kept, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ortmulti import errors
from ortmulti._creation import core_options
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import SessionOptions

__all__ = ["apply"]

_DISABLED = "optimization.disable_specified_optimizers"

# What onnxruntime takes for a flag, and why it can only be off.
_FLAGS = {
    "enable_fallback": "a provider that cannot be used is an error",
    "read_config_from_model": "ONNX Runtime's C interface has no such argument",
}


def apply(options: SessionOptions | None, arguments: Mapping[str, Any]) -> SessionOptions | None:
    """The options of a session that got these arguments beside them; `options` itself stays as it is.

    Args:
        options: As the session's ``sess_options``.
        arguments: ``disabled_optimizers``, names of ONNX Runtime's graph optimizers that shall be left out;
            ``enable_fallback`` and ``read_config_from_model``, which can only be False.

    Raises:
        InvalidArgument: An optimizer's name that is none.
        InvalidType: Another argument than these, or a value of another type.
        NotImplemented: A flag is on.
    """
    unknown = sorted(set(arguments) - {*_FLAGS, "disabled_optimizers"})
    if unknown:
        raise InvalidType(f"InferenceSession got an unexpected keyword argument {', '.join(map(repr, unknown))}")
    for name, why in _FLAGS.items():
        value = arguments.get(name, False)
        if not isinstance(value, int) or value not in (0, 1):
            raise InvalidType(f"{name} is True or False, not {value!r}")
        if value:
            raise errors.NotImplemented(f"{name} can only be False: {why}")
    names = _names(arguments.get("disabled_optimizers"))
    if not names:
        return options
    result = SessionOptions()
    result._core = core_options(options).copy()
    given = [name for name in result._core.config_entries.get(_DISABLED, "").split(";") if name]
    result.add_session_config_entry(_DISABLED, ";".join(dict.fromkeys([*given, *names])))
    return result


def _names(names: object) -> list[str]:
    if names is None:
        return []
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidType(f"disabled_optimizers is a list or a set of names, not {names!r}")
    found = list(names)
    for name in found:
        if not isinstance(name, str):
            raise InvalidType(f"disabled_optimizers holds names, not {name!r}")
        if not name or ";" in name:
            raise InvalidArgument(f"{name!r} is no optimizer's name")
    # A set has no order, and equal sessions shall have equal options.
    return sorted(found)
