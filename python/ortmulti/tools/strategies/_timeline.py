"""What a comparison takes from ortmulti's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmulti.timeline import Span, Timeline

# The timeline's names for what one thread does for its session, and for making a device's context.
_SESSION = "create session"
_CONTEXT = "context"


def session_seconds(spans: Sequence[Span], devices: Sequence[str]) -> tuple[float, ...]:
    """Each session's own seconds, in the order of `devices`; of one device's sessions, the one first done is first.

    A device's last spans are those of its sessions; one before them made an optimized model. Sessions beyond the spans
    are further handles of the last one, and were ready when that was.
    """
    left: dict[str, list[float]] = {}
    for device in devices:
        found = [span.seconds for span in spans if (span.name, span.device) == (_SESSION, device)]
        left[device] = found[-devices.count(device) :]
    return tuple(left[device].pop(0) if len(left[device]) > 1 else left[device][0] for device in devices)


def describe(timeline: Timeline, begin_ns: int, end_ns: int) -> dict[str, Any]:
    """A creation's timeline in short.

    Args:
        timeline: of the creation's sessions.
        begin_ns: when the creation began, as `time.monotonic_ns` gives it.
        end_ns: when its sessions were ready.

    Returns:
        "spans": for each name and device ("context cuda:0") the "count", the "begin" of the first and the "end" of the
        last in seconds after the creation began, and their "seconds" altogether.
        "after_contexts": seconds from the last context until all was ready; None where no context was made.
        "not_shared": why weights were not shared, or not all of them.
    """
    spans = timeline.spans
    summary: dict[str, dict[str, float]] = {}
    for span in spans:
        begin, end = ((time - begin_ns) / 1e9 for time in (span.start_ns, span.end_ns))
        whole = summary.setdefault(
            f"{span.name} {span.device}".rstrip(), {"count": 0, "begin": begin, "end": end, "seconds": 0.0}
        )
        whole["count"] += 1
        whole["begin"] = min(whole["begin"], begin)
        whole["end"] = max(whole["end"], end)
        whole["seconds"] += span.seconds
    contexts = [span.end_ns for span in spans if span.name == _CONTEXT and span.end_ns > begin_ns]
    last_context = max(contexts, default=None)
    return {
        "spans": summary,
        "after_contexts": None if last_context is None else (end_ns - last_context) / 1e9,
        "not_shared": timeline.not_shared,
    }
