"""The spans of ortmulti's own timeline under the causes of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .events import RawSpan
from .marks import Mark

CREATION = "create session"
"""The span of ONNX Runtime's own work for a session, which its log divides further."""

# name -> cause, and the causes of what is waited for where the span is a wait.
_CAUSES: Mapping[str, tuple[str | None, tuple[str, ...]]] = {
    "cuInit": ("cuInit", ()),
    "context": ("context", ()),
    "open CUDA libraries": ("libraries", ()),
    "open the CUDA provider": ("libraries", ()),
    "open libraries": ("libraries", ()),
    "open libraries and check": ("libraries", ()),
    "wait for driver and check": ("libraries", ("cuInit", "context", "libraries")),
    "wait for CUDA libraries": ("libraries", ("libraries", "cuInit", "context")),
    "wait for context": ("wait for another session", ("context", "cuInit", "libraries")),
    "wait for weights": ("wait for another session", ("copy weights", "stage weights", "context", "cuInit")),
    "wait for turn": ("wait for another session", ()),
    "index model": ("read model", ()),
    "prepare session": ("set up", ()),
    "allocate weights": ("stage weights", ()),
    "load weights": ("stage weights", ()),
    CREATION: (None, ()),
}


def convert(events: Sequence[Mapping[str, Any]], devices: Sequence[str]) -> list[RawSpan]:
    """The timeline's spans; those of sessions have their numbers.

    Args:
        events: the spans as the process wrote them.
        devices: those of all sessions. Where there are more of a device than spans, the last are handles of the one
            before them.
    """
    left: dict[str, list[int]] = {}
    for number, device in enumerate(devices):
        left.setdefault(device, []).append(number)
    created: dict[str, int] = {}
    for event in events:
        if event["name"] == CREATION:
            created[event["device"]] = created.get(event["device"], 0) + 1
    spans = []
    for event in sorted(events, key=lambda event: (event["start"], -event["end"])):
        name, device = event["name"], event["device"]
        if event["start"] == event["end"]:  # a remark, not a stretch of time
            continue
        session = None
        cause, targets = _cause(name)
        if name == CREATION:
            # A device's last creations are those of its sessions; one before them made an optimized model.
            if created[device] <= len(left.get(device, ())):
                session = left[device].pop(0)
            created[device] -= 1
        spans.append(
            RawSpan(
                cause,
                name,
                event["start"],
                event["end"],
                event["pid"],
                event["thread"],
                session,
                device,
                waits_for=targets,
            )
        )
    return spans


def unfinished(marks: Mapping[int, Sequence[Mark]], devices: Sequence[str], pid: int, end: int) -> list[RawSpan]:
    """The creations of a process that did not come to give its timeline away, from ONNX Runtime's log alone.

    Args:
        marks: those of each thread.
        devices: those of all sessions, which are taken to have begun in this order.
        pid: the process.
        end: until when the creations went on.
    """
    begun = sorted((found[0].time, thread) for thread, found in marks.items())
    return [
        RawSpan(None, CREATION, start, max(start, end), pid, thread, number, device)
        for number, ((start, thread), device) in enumerate(zip(begun, devices, strict=False))
    ]


def _cause(name: str) -> tuple[str | None, tuple[str, ...]]:
    if name in _CAUSES:
        return _CAUSES[name]
    if name.startswith("copy weights"):
        return "copy weights", ()
    if "optimized model" in name:
        return "optimized model", ()
    return "set up", ()
