"""Lines of the access log: the logger ``ortmulti.serve.access``."""

from __future__ import annotations

import logging

__all__ = ["log_access", "shown"]

ACCESS = logging.getLogger("ortmulti.serve.access")


def log_access(
    host: str, method: str, path: str, status: int, size: int, seconds: float, sent_id: str, at: float | None = None
) -> None:
    """Make a record of an answer, with the id that its client gave the request, and the time of the answer."""
    if not ACCESS.isEnabledFor(logging.INFO):
        return
    arguments = (host or "-", method, path, status, size, seconds * 1e3, sent_id or "-")
    record = ACCESS.makeRecord(ACCESS.name, logging.INFO, __file__, 0, "%s %s %s %d %d %.1f ms %s", arguments, None)
    if at is not None:
        record.created, record.msecs = at, at % 1 * 1e3
    ACCESS.handle(record)


def shown(sent: bytes) -> str:
    """Return what a client sent, for a line of the log, which nothing in it ends."""
    return sent.decode("latin-1").encode("unicode_escape").decode("ascii")
