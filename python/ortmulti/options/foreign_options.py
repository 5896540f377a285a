"""Conversion of the onnxruntime package's own SessionOptions and RunOptions, as far as they can be read."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any

from ortmulti import errors
from ortmulti.errors import InvalidType
from ortmulti.options import config_entries
from ortmulti.options.session_options import RunOptions, SessionOptions

__all__ = ["to_run_options", "to_session_options"]

# Where onnxruntime defines them, whatever `patch_onnxruntime` has put under the package's own names.
_MODULE = "onnxruntime.capi.onnxruntime_pybind11_state"


def to_session_options(options: object) -> SessionOptions | None:
    """Session options as ortmulti's: these, or new ones with all that can be read of onnxruntime's.

    Parts that onnxruntime's object does not reveal are lost. These are initializers, libraries of custom operators,
    free dimensions, a policy for the choice of providers, and config entries with keys that ONNX Runtime does not
    define.

    Raises:
        InvalidType: Neither ortmulti's nor onnxruntime's.
        NotImplemented: They hold something that ortmulti's cannot; the message names it.
    """
    if options is None or isinstance(options, SessionOptions):
        return options
    theirs = _class("SessionOptions")
    if theirs is None or not isinstance(options, theirs):
        raise InvalidType(
            f"session options are an ortmulti.SessionOptions, not {type(options).__name__}: for example "
            "options = ortmulti.SessionOptions(); options.intra_op_num_threads = 1"
        )
    if getattr(options, "has_providers", bool)():
        raise errors.NotImplemented(
            "onnxruntime's SessionOptions have providers of their own (add_provider), which cannot be read: name them "
            "in providers"
        )
    taken = SessionOptions()
    _copy(options, taken)
    for key, value in _entries(options, "get_session_config_entry", config_entries.SESSION).items():
        taken.add_session_config_entry(key, value)
    return taken


def to_run_options(options: object) -> RunOptions | None:
    """Run options as ortmulti's: these, or new ones with all that can be read of onnxruntime's.

    Later changes of onnxruntime's object have no effect, its ``terminate`` included. Active adapters and config entries
    under keys that ONNX Runtime does not define cannot be read, and are not taken over.

    Raises:
        InvalidType: Neither ortmulti's nor onnxruntime's.
        NotImplemented: They hold something that ortmulti's cannot; the message names it.
    """
    if options is None or isinstance(options, RunOptions):
        return options
    theirs = _class("RunOptions")
    if theirs is None or not isinstance(options, theirs):
        raise InvalidType(
            f"run_options must be an ortmulti.RunOptions, not {type(options).__name__}: for example "
            "options = ortmulti.RunOptions(); options.log_severity_level = 3"
        )
    taken = RunOptions()
    _copy(options, taken)
    for key, value in _entries(options, "get_run_config_entry", config_entries.RUN).items():
        taken.add_run_config_entry(key, value)
    return taken


def _class(name: str) -> type | None:
    # Not imported here: a caller with such an object has imported it.
    found = getattr(sys.modules.get(_MODULE), name, None)
    return found if isinstance(found, type) else None


def _copy(source: Any, target: Any) -> None:
    """Set what differs from a new object's. Attributes of later releases have no counterpart, and count as well."""
    default = type(source)()
    for name in dir(type(source)):
        if name.startswith("_") or not inspect.isdatadescriptor(inspect.getattr_static(type(source), name)):
            continue
        value = getattr(source, name)
        if value == getattr(default, name):
            continue
        if not hasattr(target, name):
            raise errors.NotImplemented(
                f"onnxruntime's {type(source).__name__} have {name}={value!r}: ortmulti has no such option"
            )
        setattr(target, name, value)


def _entries(source: Any, method: str, keys: Iterable[str]) -> dict[str, str]:
    get = getattr(source, method)
    found = {}
    for key in keys:
        try:
            found[key] = get(key)
        except RuntimeError:  # it has no such entry
            continue
    return found
