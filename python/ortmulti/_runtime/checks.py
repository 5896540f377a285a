"""Checks of options' values, each with an error that names the option."""

from __future__ import annotations

import operator
import os
from enum import Enum
from typing import SupportsIndex, SupportsInt, TypeVar

from ortmulti.errors import InvalidArgument, InvalidType

_Member = TypeVar("_Member", bound=Enum)


def integer(name: str, value: object, minimum: int) -> int:
    """What converts to an int, from ``minimum`` to 2**31 - 1."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (SupportsIndex, SupportsInt))
        or isinstance(value, (str, float))
    ):
        raise InvalidType(f"{name} is an int, not {value!r}")
    number = operator.index(value) if isinstance(value, SupportsIndex) else int(value)
    if not minimum <= number < 2**31:
        raise InvalidArgument(f"{name} is {minimum} or more, not {number}")
    return number


def boolean(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name} is True or False, not {value!r}")
    return value


def text(name: str, value: object) -> str:
    """A str, or a path as one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise InvalidType(f"{name} is a str, not {value!r}")
    return value


def member(enum: type[_Member], name: str, value: object) -> _Member:
    """A member of an enumeration, or its number."""
    # onnxruntime's own enumerations have the same numbers and convert with int().
    number = integer(name, value, minimum=0)
    try:
        return enum(number)
    except ValueError:
        raise InvalidArgument(f"{name} is one of {', '.join(m.name for m in enum)}, not {number}") from None
