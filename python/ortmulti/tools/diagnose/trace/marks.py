"""ONNX Runtime's log as marks in time, and the phases of a creation that lie between them."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# "2026-11-22 00:04:11.215485586 [I:onnxruntime:session-0, graph.cc:15 Apply] text", in UTC or local time.
_LINE = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(?P<fraction>\d{9}) "
    r"\[I:onnxruntime:session-(?P<session>\d+), [^\]]*\] (?P<text>.*)"
)
_TRANSFORMER = re.compile(r"GraphTransformer (\w+) modified: (\d)")

_QUARTER_HOUR_NS = 900 * 10**9

# Which transformer belongs to which level is known by where it runs; these alone run after level 2 and beside it.
_LAYOUT = {"NchwcTransformer", "NhwcTransformer", "ConvAddActivationFusion"}
_REQUIRED = {
    "RemoveDuplicateCastTransformer",
    "CastFloat16Transformer",
    "FuseFp16InitializerToFp32NodeTransformer",
    "MemcpyTransformer",
}
_FIRST_TRANSFORMER = "EnsureUniqueDQForNodeUnit"
_FIRST_OF_LEVEL_2 = "Level2_RuleBasedTransformer"
# What the clean-up after a transformer says, which belongs to it.
_CLEANING = ("Removing initializer", "Removing NodeArg")


@dataclass(frozen=True)
class Mark:
    """A line of ONNX Runtime's log.

    Attributes:
        time: nanoseconds of `time.monotonic_ns`'s clock.
        text: the message, or its beginning.
    """

    time: int
    text: str


@dataclass(frozen=True)
class Phase:
    """A part of a creation: a cause, what it is called, and from when until when, on the marks' clock."""

    cause: str
    name: str
    start: int
    end: int


def read_log(path: Path, realtime_offset: int) -> dict[int, list[Mark]]:
    """The marks of each session in what onnxruntime wrote to the standard error.

    Args:
        path: the file.
        realtime_offset: nanoseconds by which the system's clock is ahead of `time.monotonic_ns`.

    Returns:
        Session number, from its logid -> marks in their order.
    """
    found: dict[int, list[Mark]] = {}
    zone: int | None = None
    with path.open(errors="replace") as file:
        for line in file:
            match = _LINE.search(line)
            if match is None:
                continue
            second = calendar.timegm(time.strptime(match["second"], "%Y-%m-%d %H:%M:%S"))
            moment = second * 10**9 + int(match["fraction"]) - realtime_offset
            if zone is None:  # the log is as new as this process; what differs by more is the time zone
                zone = round((moment - time.monotonic_ns()) / _QUARTER_HOUR_NS) * _QUARTER_HOUR_NS
            found.setdefault(int(match["session"]), []).append(Mark(moment - zone, match["text"][:120]))
    for marks in found.values():
        marks.sort(key=lambda mark: mark.time)
    return found


def phases(marks: Sequence[Mark], start: int, end: int, before: str = "set up") -> list[Phase]:
    """The phases of one creation, without gaps from `start` to `end`.

    Args:
        marks: the session's marks in their order; those outside of the creation are left aside.
        start: when the creation began.
        end: when it ended, or was given up.
        before: the cause of what comes before the first mark.
    """
    found: list[Phase] = []
    inside = [mark for mark in marks if start <= mark.time <= end]
    previous, left = start, (before, "set up")
    for mark, ended, following in _tell(inside):
        if mark.time > previous:
            cause, name = ended or left
            if found and (found[-1].cause, found[-1].name) == (cause, name):
                found[-1] = Phase(cause, name, found[-1].start, mark.time)
            else:
                found.append(Phase(cause, name, previous, mark.time))
            previous = mark.time
        left = following
    if end > previous:
        found.append(Phase(*left, previous, end))
    return found


_Told = tuple[str, str]


def _tell(marks: Sequence[Mark]) -> Iterator[tuple[Mark, _Told | None, _Told]]:
    """Each mark that ends a phase, with the cause and name of that phase (None: as was said before), and of what comes
    next as far as is known then."""
    level = "optimization level 1"
    last: _Told = ("set up", "set up")
    transforming = inlined = False
    for mark in marks:
        text = mark.text
        transformer = _TRANSFORMER.match(text)
        if transformer is not None:
            name = transformer[1]
            if name == _FIRST_TRANSFORMER and not transforming:
                # Since 1.31 the weights in the model's file become tensors just before.
                ended: _Told = ("read weights", "weights to tensors") if inlined else last
                transforming = True
                last = (level, "optimize")
            else:
                if name == _FIRST_OF_LEVEL_2:
                    level = "optimization level 2"
                cause = level
                if name in _LAYOUT or (name.startswith("TransposeOptimizer_") and level != "optimization level 2"):
                    cause = "optimization level 3"
                elif name in _REQUIRED:
                    cause = "other optimization"
                ended = last = (cause, "optimize" if cause != "other optimization" else name)
                transforming = True
            # What a change entails is done after its line, and belongs to it; else what comes next says what it was.
            yield mark, ended, ("planning", "plan")
        elif text.startswith(_CLEANING) and transforming:
            yield mark, last, ("planning", "plan")
        elif text.startswith("Running graph optimizations in loop"):
            ended = ("planning", "partition") if level == "optimization level 1" else last
            level = "optimization level 2"
            yield mark, ended, (level, "optimize")
        elif text.startswith(("Dynamic block base", "Creating and using per session threadpools")):
            yield mark, None, ("read model", "read the model")
        elif text.startswith("Session Options"):
            yield mark, None, ("set up", "thread pools")
        elif text.startswith("Initializing session"):
            yield mark, None, ("set up", "providers")
        elif text.startswith("This model does not have any local functions") or "AOT" in text:
            inlined = True
            yield mark, None, ("read weights", "weights to tensors")
        elif "DeviceBasedPartition" in text:
            yield mark, ("planning", "plan"), ("planning", "plan")
        elif text.startswith("Saving initialized tensors"):
            yield mark, ("planning", "plan"), ("read weights", "read weights")
        elif text.startswith("Done saving initialized tensors"):
            yield mark, None, ("prepacking", "make kernels")
        elif text.startswith("Session successfully initialized"):
            yield mark, None, ("set up", "finish")
