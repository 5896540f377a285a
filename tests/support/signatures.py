"""onnxruntime's public classes and functions beside ours: what is missing, and whose parameters or defaults differ."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_SPECIAL = ("__init__", "__array__", "__dlpack__", "__dlpack_device__")


@dataclass(frozen=True)
class Parameter:
    """Of a function; ``name`` is None where it has none by which it could be given."""

    name: str | None
    kind: str
    default: str | None = None


def differences(theirs: Any, ours: Any) -> dict[str, str]:
    """What of the module ``theirs`` is not the same in ``ours``: its name -> how it differs."""
    found = {}
    for name, value in vars(theirs).items():
        if name.startswith("_") or isinstance(value, types.ModuleType) or not callable(value):
            continue
        if not hasattr(ours, name):
            found[name] = "missing"
        elif isinstance(value, type):
            found.update({f"{name}.{part}": how for part, how in of_class(value, getattr(ours, name))})
        elif how := of_function(value, getattr(ours, name)):
            found[name] = how
    return found


def of_class(theirs: type, ours: type) -> Iterator[tuple[str, str]]:
    """As `differences`, for the members of a class."""
    members = getattr(theirs, "__members__", None)
    if members is not None:  # an enumeration
        for name, value in members.items():
            if not hasattr(ours, name):
                yield name, "missing"
            elif int(getattr(ours, name)) != int(value):
                yield name, "value"
        return
    for name in dir(theirs):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        their_kind, our_kind = _kind(theirs, name), _kind(ours, name)
        if our_kind is None:
            yield name, "missing"
        elif their_kind != our_kind:
            yield name, "kind"
        elif their_kind == "property":
            if _value(theirs, name) != _value(ours, name):
                yield name, "default"
        elif how := of_function(getattr(theirs, name), getattr(ours, name)):
            yield name, how


def of_function(theirs: Callable[..., Any], ours: Callable[..., Any]) -> str | None:
    """How a function's parameters differ from those of onnxruntime's; None if they do not."""
    expected, found = parameters(theirs), parameters(ours)
    if expected is None:
        return None  # it cannot be called from Python, or says nothing
    if found is None:
        return "parameters"
    known = [parameter.name is not None for parameter in expected]
    if len(found) != len(expected) or any(
        knows and (a.name, a.kind) != (b.name, b.kind) for knows, a, b in zip(known, expected, found, strict=True)
    ):
        return "parameters"
    if [a.default for a in expected] != [b.default for b in found]:
        return "default"
    return None


def parameters(function: Callable[..., Any]) -> list[Parameter] | None:
    """A function's parameters, without ``self``; from the documentation's first line where it is in C++."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _documented((function.__doc__ or "").partition("\n")[0])
    if function in (object.__init__, type.__init__) or getattr(function, "__objclass__", None) is object:
        return None
    result = [
        Parameter(p.name, p.kind.name, None if p.default is inspect.Parameter.empty else repr(p.default))
        for p in signature.parameters.values()
    ]
    return result[1:] if result and result[0].name in ("self", "cls") else result


def _documented(line: str) -> list[Parameter] | None:
    """pybind11's line: ``name(self: Class, arg0: str, size: int = 0) -> None``."""
    match = re.fullmatch(r"\w+\((.*)\)( -> .*)?", line)
    if match is None or match[1] == "*args, **kwargs":
        return None
    result = []
    for text in _split(match[1]):
        name, _, rest = text.partition(":")
        default = rest.rpartition(" = ")[2] if " = " in rest else None
        own = None if re.fullmatch(r"arg\d+", name) else name
        result.append(Parameter(own, inspect.Parameter.POSITIONAL_OR_KEYWORD.name, default))
    return result[1:] if result and result[0].name == "self" else result


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(<{") - (character in "])>}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _kind(owner: type, name: str) -> str | None:
    try:
        value = inspect.getattr_static(owner, name)
    except AttributeError:
        return None
    if isinstance(value, (classmethod, staticmethod)):
        return "static"
    if inspect.isdatadescriptor(value):
        return "property"
    if isinstance(value, types.BuiltinFunctionType):
        return "static"  # pybind11's
    return "method"


def _value(owner: type, name: str) -> object:
    """A property's value in a new object, where one can be made of nothing."""
    try:
        value = getattr(owner(), name)
    except TypeError:
        return None
    return int(value) if hasattr(value, "__int__") else value
