"""Checks of arguments. Each error names the argument, the value found and the values allowed."""

from __future__ import annotations

import functools
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ortmulti.errors import Error, InvalidArgument, InvalidType

if TYPE_CHECKING:
    from enum import Enum

    _Member = TypeVar("_Member", bound=Enum)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

whole_tracebacks = False
"""Whether errors of functions with `known_arguments` keep the frames within the library."""

INT_MAX = 2**31 - 1
SIZE_MAX = 2**63 - 1

# "1,2;3-4": logical processors from 1 on, or ranges of them, for each thread.
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_AFFINITIES = rf"{_RANGE}(?:,{_RANGE})*(?:;{_RANGE}(?:,{_RANGE})*)*"


def integer(name: str, value: object, minimum: int | None = None, maximum: int | None = None) -> int:
    """Convert an int, or an object that converts to one without loss.

    Args:
        name: The argument.
        value: The given value.
        minimum: The least; None: any.
        maximum: The most; None: what fits into 32 bits, where there is a minimum.
    """
    number = _to_int(value)
    if number is None:
        raise InvalidType(f"{name} is an int, not {value!r}")
    if minimum is None or minimum <= number <= (INT_MAX if maximum is None else maximum):
        return number
    allowed = f"{minimum} or more" if maximum in (None, SIZE_MAX) else f"{minimum} to {maximum}"
    raise InvalidArgument(f"{name} is {allowed}, not {number}")


def _to_int(value: Any) -> int | None:
    if isinstance(value, (bool, str, float)):
        return None
    convert: Callable[[Any], int] = operator.index if hasattr(value, "__index__") else int
    try:
        return convert(value) if hasattr(value, "__index__") or hasattr(value, "__int__") else None
    except TypeError:  # such as an array of several
        return None


def boolean(name: str, value: object) -> bool:
    """Accept True or False."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name} is True or False, not {value!r}")
    return value


def boolean_or_none(name: str, value: object) -> bool | None:
    """Accept True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidType(f"{name} is True, False or None, not {value!r}")
    return value


def number(name: str, value: object) -> float:
    """Accept a number that is not negative and not infinite, such as seconds; one of NumPy's, too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        from numbers import Real

        if isinstance(value, bool) or not isinstance(value, Real):
            raise InvalidType(f"{name} is a number, not {value!r}")
        value = float(value)
    if not 0 <= value <= sys.float_info.max:
        raise InvalidArgument(f"{name} is {'0 or more' if value < 0 else 'a finite number of 0 or more'}, not {value}")
    return value


def text(name: str, value: object) -> str:
    """Accept a str, or a path as one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise InvalidType(f"{name} is a str, not {value!r}")
    return value


def was_url(path: str) -> bool:
    """Whether a path was made of the URL of a model, which then lacks a slash."""
    return path.startswith(("s3:", "gs:", "az:", "http:", "https:"))


def member(name: str, value: object, enum: type[_Member]) -> _Member:
    """Accept a member of an enumeration, or its number."""
    # onnxruntime's own enumerations have the same numbers and convert with int().
    found = integer(name, value, minimum=0)
    try:
        return enum(found)
    except ValueError:
        raise InvalidArgument(f"{name} is one of {', '.join(m.name for m in enum)}, not {found}") from None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for an error about an unknown name: the known name that is nearly the same, or nothing."""
    import difflib  # few programs need it

    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""


# Arguments of earlier releases that are attributes of `Loading`, with examples.
_OF_LOADING = {
    "strategy": 'strategy="native"',
    "optimize": 'optimize="never"',
    "serialize": 'serialize="device"',
    "loader": "reader_threads=4",
    "tuning": 'tuning="model.tuning.json"',
    "wait": 'wait="first"',
    "require": 'require="any"',
    "progress": "progress=show",
    "version": 'version="2"',
    "trim_after": "trim_after=10",
    "when_late": 'when_late="reject"',
}
_EACH_REQUEST = "a deadline is each request's: pool.run(feed, timeout=1.0)"
# Words of onnxruntime, Triton and LitServe, and of earlier releases: the argument, or what to do.
_ELSEWHERE = {
    "providers": "devices",
    "sess_options": "options",
    "num_sessions": "sessions_per_device",
    "workers": "sessions_per_device",
    "num_workers": "sessions_per_device",
    "workers_per_device": "sessions_per_device",
    "instance_group": "devices",
    "max_queue_size": "max_queue",
    "model_warmup": "warmup",
    "max_batch": "give batching=ortmulti.Batching(max_size=8)",
    "max_batch_size": "give batching=ortmulti.Batching(max_size=8)",
    "batch_size": "give batching=ortmulti.Batching(max_size=8)",
    "dynamic_batching": "give batching=ortmulti.Batching(max_size=8)",
    "preferred_batch_size": "give batching=ortmulti.Batching(8, sizes=(4, 8))",
    "batch_timeout": "give batching=ortmulti.Batching(8, max_delay_ms=5)",
    "batch_wait_timeout_s": "give batching=ortmulti.Batching(8, max_delay_ms=5)",
    "max_latency_ms": "give batching=ortmulti.Batching(8, max_delay_ms=5)",
    "max_delay_ms": "give batching=ortmulti.Batching(8, max_delay_ms=5)",
    "max_queue_delay_microseconds": "give batching=ortmulti.Batching(8, max_delay_ms=5)",
    "max_delay": "max_delay_ms",
    "priority": "a priority is each request's: pool.run(feed, priority=1)",
    "timeout": _EACH_REQUEST,
    "backend": "leave it out; if a crash must not end the program, run a process for each GPU, with share='host'",
    "default_timeout_microseconds": _EACH_REQUEST,
}
# Their words for `Batching`.
_OF_BATCHING = {
    "max": "max_size",
    "size": "max_size",
    "max_batch": "max_size",
    "max_batch_size": "max_size",
    "batch_size": "max_size",
    "preferred_batch_size": "sizes",
    "delay": "max_delay_ms",
    "wait": "max_delay_ms",
    "timeout": "max_delay_ms",
    "max_wait": "max_delay_ms",
    "max_wait_ms": "max_delay_ms",
    "max_latency_ms": "max_delay_ms",
    "batch_timeout": "max_delay_ms",
    "batch_wait_timeout_s": "max_delay_ms",
    "max_queue_delay_microseconds": "max_delay_ms",
}


def known_arguments(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function: the error for an unknown keyword proposes the right one, and errors of the library have
    tracebacks without its frames, which say nothing to users.
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        for name in kwargs:
            if name not in known:
                meant = _ELSEWHERE.get(name, "")
                if "max_size" in known:
                    meant = _OF_BATCHING.get(name, meant)
                if meant in known:
                    hint = f" (did you mean {meant!r}?)"
                elif name in _OF_LOADING and "loading" in known:
                    hint = f": give loading=ortmulti.Loading({_OF_LOADING[name]})"
                elif meant and "batching" in known:  # of load, as the others are
                    hint = f": {meant}"
                else:
                    hint = did_you_mean(name, known)
                raise InvalidType(
                    f"{function.__qualname__.removesuffix('.__init__')}() got an unexpected keyword argument {name!r}"
                    f"{hint or ': it takes ' + ', '.join(known).removeprefix('self, ')}"
                )
        try:
            return function(*args, **kwargs)
        except Error as error:
            if whole_tracebacks:
                raise
            raise error.with_traceback(None) from error.__cause__

    return call


def known_fields(kind: type[_Result]) -> type[_Result]:
    """Decorate a dataclass: `known_arguments` of its constructor."""
    kind.__init__ = known_arguments(kind.__init__)  # type: ignore[method-assign]
    return kind


def choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Accept one of several values."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise InvalidArgument(f"{name} is {', '.join(others)}{' or ' * bool(others)}{last}, not {value!r}")


def instance(name: str, value: object, kind: type, *, optional: bool = False, example: str = "") -> None:
    """Accept an object of one of ortmulti's classes, or None if it is optional. An error gives the example."""
    if not (isinstance(value, kind) or (optional and value is None)):
        article = "an" if kind.__module__.startswith("ortmulti") else "a"
        package = "ortmulti." if article == "an" else ""
        raise InvalidType(
            f"{name} is {article} {package}{kind.__name__}{' or None' * optional}, not {value!r}"
            + (f": for example {example}" if example else "")
        )


def sequence(name: str, value: object, of: str = "") -> list[Any]:
    """Copy a sequence that is no str, bytes or dict into a list."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise InvalidType(f"{name} is a list{of and f' of {of}'}, not {value!r}")
    return list(value)


def iterable(name: str, value: object) -> list[Any]:
    """Copy an iterable that is no str, bytes or dict into a list."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidType(f"{name} is a list or another iterable, not {value!r}")
    return list(value)


def names(name: str, values: Collection[object]) -> list[str]:
    """Accept strs alone."""
    for value in values:
        if not isinstance(value, str):
            raise InvalidType(f"{name} has names of type str, not {value!r}")
    return list(values)  # type: ignore[arg-type]


def affinities(name: str, value: str, intra_op_num_threads: int | None = None) -> None:
    """Accept the processors of an intra-op pool's threads, in ONNX Runtime's form.

    Args:
        name: The argument.
        value: ``"1,2;3-4"``: the processors of each thread except the calling one, counted from 1.
        intra_op_num_threads: The threads of the pool, including the calling one; None: not known yet.
    """
    if not re.fullmatch(_AFFINITIES, value):
        raise InvalidArgument(f"{name} is of the form '1,2;3-4': the processors of each thread, not {value!r}")
    groups = value.split(";")
    for part in (part for group in groups for part in group.split(",")):
        first, _, last = part.partition("-")
        if not 1 <= int(first) <= int(last or first):
            raise InvalidArgument(f"{name} has processors from 1 on, and ranges that rise; {part!r} is neither")
    threads = len(groups) + 1
    if intra_op_num_threads not in (None, threads):
        raise InvalidArgument(
            f"{name} is for {threads - 1} threads besides the calling one: intra_op_num_threads is {threads} with it, "
            f"not {intra_op_num_threads}"
        )
