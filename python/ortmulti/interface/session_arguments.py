"""onnxruntime's undocumented arguments of InferenceSession: keywords and environment variables."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import Any

from ortmulti import _core, checks, errors
from ortmulti.create.request import core_options
from ortmulti.devices.provider_options import CPU
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import config_entries
from ortmulti.options.session_options import SessionOptions

__all__ = ["apply", "choose_providers", "in_effect"]

# Options that a model's metadata may have, besides enable_profiling.
_IN_MODEL = ("execution_mode", "graph_optimization_level", "inter_op_num_threads", "intra_op_num_threads")

# What onnxruntime takes for a flag, and why it can only be off.
_FLAGS = {
    "enable_fallback": "a provider that cannot be used is an error",
    "read_config_from_model": "ONNX Runtime's C interface has no such argument",
}


def apply(options: SessionOptions | None, arguments: Mapping[str, Any]) -> SessionOptions | None:
    """Return a copy of the options with these arguments applied.

    Args:
        options: As the session's ``sess_options``.
        arguments: ``disabled_optimizers``: names of ONNX Runtime's graph optimizers to leave out. ``enable_fallback``
            and ``read_config_from_model`` can only be False.

    Raises:
        InvalidArgument: A name is empty or not valid.
        InvalidType: An argument is unknown, or a value has another type.
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
    core_options(options)
    result = _copy(options)
    config_entries.leave_out_optimizers(result._core, names)
    return result


def choose_providers(options: SessionOptions, providers: Any) -> tuple[SessionOptions, Any]:
    """Return options and providers of a session, where the options have providers of their own: these are for sessions
    without the argument.

    Warns:
        UserWarning: The argument replaces them.
    """
    if not providers:
        return options, [CPU]
    warnings.warn(
        f"the session options have the provider {options._core.providers[0]} (add_provider_for_devices): it is not "
        "used, because the session is created with providers",
        stacklevel=3,
    )
    result = _copy(options)
    result._core.clear_providers()
    return result, providers


def in_effect(options: SessionOptions | None, session: _core.Session) -> SessionOptions:
    """Return a copy of a new session's options, or the model's own options where ONNX Runtime has used these."""
    if os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") != "1":
        return _copy(options)
    import json

    # ONNX Runtime has accepted the text. Without it, or with another form, ONNX Runtime uses its defaults.
    config = None
    with contextlib.suppress(ValueError, RecursionError):
        config = json.loads(session.metadata().custom_metadata_map.get("ort_config", "{}"))
    section = config.get("session_options") if isinstance(config, dict) else None
    result = SessionOptions()
    for name, value in section.items() if isinstance(section, dict) else ():
        if name == "enable_profiling":
            result.enable_profiling = value == 1
        elif name in _IN_MODEL:
            with contextlib.suppress(InvalidArgument):  # more than 32 bits
                setattr(result, name, value)
    return result


def _copy(options: SessionOptions | None) -> SessionOptions:
    result = SessionOptions()
    if options is not None:
        result._core = options._core.copy()
    return result


def _names(names: object) -> list[str]:
    if names is None:
        return []
    found = checks.names("disabled_optimizers", checks.iterable("disabled_optimizers", names))
    for name in found:
        if not name or ";" in name:
            raise InvalidArgument(f"{name!r} is not the name of an optimizer")
    # A set has no order, and equal sessions shall have equal options.
    return sorted(found)
