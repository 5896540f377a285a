"""The requests that wait, and which of them are next."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from ortmulti.pool.external.requests import Request

__all__ = ["RequestQueue"]


class RequestQueue:
    """Requests in the order in which they were asked for, those for one device apart. Guarded by the dispatcher's lock.

    Args:
        most: The largest size of a batch; 1: there are none.
        delay_ns: How long the first of a batch waits for others.
    """

    def __init__(self, most: int = 1, delay_ns: int = 0) -> None:
        self._most = most
        self._delay = delay_ns
        self._queues: dict[str, OrderedDict[Request, None]] = {"": OrderedDict()}
        self._sizes: Counter[object] = Counter()  # by what they have alike
        self._next = 0
        self.hurry = False
        """Whether nothing waits for a batch to grow."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, request: Request) -> bool:
        return request in self._queues.get(request.device, ())

    def of(self, device: str) -> int:
        """How many wait for this device alone; for any, where it is empty."""
        return len(self._queues.get(device, ()))

    def add(self, request: Request) -> int | None:
        """Adds it as the last one; returns until when it may wait for others of its kind."""
        self._next += 1
        request.number = self._next
        self._queues.setdefault(request.device, OrderedDict())[request] = None
        if request.key is None:
            return None
        self._sizes[request.device, request.key] += request.size
        # Also where there are enough: others may be taken without it.
        return request.submitted + self._delay if self._delay else None

    def put_back(self, request: Request) -> None:
        """Adds what was asked for before the others; it runs alone."""
        request.key = None
        queue = self._queues.setdefault(request.device, OrderedDict())
        queue[request] = None
        queue.move_to_end(request, last=False)

    def remove(self, request: Request) -> bool:
        """Takes it out, and says whether it was here."""
        queue = self._queues.get(request.device)
        if queue is None or request not in queue:
            return False
        del queue[request]
        if request.key is not None:
            kind = (request.device, request.key)
            self._sizes[kind] -= request.size
            if not self._sizes[kind]:
                del self._sizes[kind]
        return True

    def take(self, device: str, now: int) -> list[Request]:
        """What a session of this device runs next: a request, several that run together, or none."""
        firsts = [first for queue in ("", device) if (first := self._first(queue, now)) is not None]
        if not firsts:
            return []
        first = min(firsts, key=lambda request: request.number)
        taken = [first, *self._like(first)]
        for request in taken:
            self.remove(request)
        return taken

    def take_all(self, device: str | None = None) -> list[Request]:
        """All that wait for this device alone, for any where it is empty; without a device all."""
        queues = list(self._queues) if device is None else [device]
        taken = [request for queue in queues for request in self._queues.get(queue, ())]
        for request in taken:
            self.remove(request)
        return taken

    def _ripe(self, request: Request, now: int) -> bool:
        return (
            request.key is None
            or self.hurry
            or now >= request.submitted + self._delay
            or self._sizes[request.device, request.key] >= self._most
        )

    def _first(self, queue: str, now: int) -> Request | None:
        return next((request for request in self._queues.get(queue, ()) if self._ripe(request, now)), None)

    def _like(self, first: Request) -> Iterator[Request]:
        if first.key is None:
            return
        size = first.size
        for looked_at, request in enumerate(self._queues[first.device]):
            if size >= self._most or looked_at > 4 * self._most:  # requests of other shapes could be many
                return
            if request is not first and request.key == first.key and size + request.size <= self._most:
                size += request.size
                yield request
