"""A file in an object store: a source of bytes, read in ranges."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmulti.errors import Error, InvalidArgument, OutOfMemory, WeightsError
from ortmulti.remote import redirects, requests
from ortmulti.remote.concurrency import Interrupted, Link
from ortmulti.remote.place import Place, http_store, place_of
from ortmulti.remote.remote_errors import CHANGED, Problem, problem_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["RemoteFile"]

RANGE = 8 << 20
"""Bytes that are asked for at once."""

_AT_ONCE = 32
_TOO_LARGE = 1 << 60
_PATIENCE = 60.0  # seconds of one range, and of the first answer: a wrong address needs no minute
_FIRST_PATIENCE = 10.0
_BACKOFF = 0.1, 5.0  # seconds before the second try, and at most


class RemoteFile:
    """An object of an object store, or a file behind HTTP, as a source of weights for `Model`.

    Its bytes are those of the first answer. Each range is asked for with ``If-Match``, and its answer's ETag, version,
    size and time are compared. So an object that changes is an error, and never a mixture. A range that breaks off, or
    is answered by 408, 429 or 5xx, is asked for again, after a pause that doubles, for a minute.

    Args:
        url: ``s3://bucket/path``, ``gs://``, ``az://`` or ``https://``; or signed. With ``store``: a path there.
        store: A store of obstore, with credentials and options. Default: made from the URL and environment variables
            such as ``AWS_ACCESS_KEY_ID``, with a connection in 5 s, a byte each 15 s, and a range in 120 s.

    Attributes:
        name: The URL without query, user and password.
        identity: The name, with the object's version, ETag, size, and time.
        size: Bytes.
        reads_at_once: Ranges that are worth asking for at the same time, at most.
        range_bytes: Bytes of a range.

    Raises:
        NoSuchFile: There is no such object, or it may not be read.
        WeightsError: It does not come, such as over a connection that breaks off.
        InvalidArgument: It is no such URL, the object is empty, or the store has another region.
        OutOfMemory: The object comes as a whole, and is larger than the memory.
        RuntimeException: This process has no free file descriptors, or no further thread.
        LibraryError: The package obstore is missing.
    """

    reads_at_once = _AT_ONCE
    range_bytes = RANGE

    def __init__(self, url: str, store: ObjectStore | None = None) -> None:
        self._open(place_of(url, store), 1)

    @classmethod
    def at(cls, place: Place, first: int = 1) -> RemoteFile:
        """Return the file at a place, of which the first bytes are there already."""
        self = cls.__new__(cls)
        self._open(place, first)
        return self

    def _open(self, place: Place, first: int) -> None:
        self._place = place
        self.name = place.name
        self._meta: dict[str, Any] | None = None
        self._moved: ObjectStore | None = None  # over the address that redirects lead to
        self._whole = False
        self._first: memoryview | None = None
        try:
            try:
                self._first = memoryview(self._range(0, first))
            except Problem as problem:
                if not problem.without_ranges:
                    raise
                self._whole = True
                self._first = memoryview(self._range(0, None))
        except Problem as problem:
            what = "is empty: 0 bytes. Upload it again" if problem.empty else f"cannot be read: {problem}"
            raise problem.error(f"'{self.name}' {what}") from None
        meta: dict[str, Any] = self._meta  # type: ignore[assignment]  # of the range that came
        self.size = int(meta["size"])
        self.identity = _identity(self.name, meta)

    @property
    def whole(self) -> memoryview | None:
        """All bytes, if they came with the first answer."""
        return self._first if self._first is not None and len(self._first) == self.size else None

    def read_into(self, buffer: memoryview, offset: int) -> memoryview:
        """Return the bytes from ``offset``, as many as the buffer has, for the core to copy.

        Raises:
            WeightsError: They do not come, or the object was changed.
        """
        end = offset + len(buffer)
        if (first := self._first) is not None and end <= len(first):
            if end == len(first) and not self._whole:
                self._first = None
            return first[offset:end]
        try:
            return memoryview(self._range(offset, end))
        except Problem as problem:
            raise WeightsError(str(problem)) from None  # the core adds where

    def _range(self, begin: int, end: int | None) -> Any:
        """Ask for a range until it comes; None: for all.

        Raises:
            Problem: It does not come.
        """
        link = self._place.link
        interrupts = link.interrupts
        until = time.monotonic() + (_FIRST_PATIENCE if self._meta is None else _PATIENCE)
        pause = _BACKOFF[0]
        moved = self._moved
        while True:
            try:
                with link.place(interrupts):
                    return self._ask(begin, end, interrupts)
            except Interrupted:
                raise Problem("the reading was given up") from None
            except Problem as problem:
                if moved not in (None, self._place.store) and not problem.passing:
                    moved = self._moved = None  # an address that a redirect gives may be for some minutes alone
                    continue
                if problem.overloaded:
                    link.refused()
                wait = pause * random.uniform(0.5, 1)
                if not problem.passing or time.monotonic() + wait > until:
                    raise
            link.wait(wait, interrupts)
            pause = min(2 * pause, _BACKOFF[1])

    def interrupt(self) -> None:
        """End the reads that are under way, of all files of a model."""
        self._place.link.interrupt()

    def _ask(self, begin: int, end: int | None, interrupts: int) -> Any:
        options: Any = {} if end is None else {"range": (begin, end)}
        known = self._meta
        if known is not None:
            if known["version"]:
                options["version"] = known["version"]
            if _is_strong(known["e_tag"]):
                options["if_match"] = known["e_tag"]

        def given_up() -> bool:
            return self._place.link.interrupts != interrupts

        problem: Problem | None = None
        try:
            store = self._followed(given_up)
            meta, body = requests.wait_for(self._get(store, begin, end, options), given_up)
        except (Problem, Interrupted, Error):
            raise
        except Exception as error:
            problem = problem_of(error)
        if problem is not None:  # not within `except`: obstore's error has the URL with its secrets
            raise problem
        if known is None:
            self._meta = meta
        self._place.link.came(len(body))
        return body

    def _followed(self, given_up: Callable[[], bool]) -> ObjectStore:
        """Return the store, over the address that redirects lead to."""
        place, store = self._place, self._moved
        if "?" not in place.url:
            return place.store
        if store is None:
            url = requests.wait_for_call(lambda: redirects.follow(place.url), given_up)
            moved = url != place.url
            store = http_store(url, place.name, allow_http=url.startswith("http://")) if moved else place.store
            self._moved = store
        return store

    async def _get(self, store: ObjectStore, begin: int, end: int | None, options: Any) -> tuple[dict[str, Any], Any]:
        import obstore

        path = self._place.path if store is self._place.store else ""
        answer = await obstore.get_async(store, path, options=options)
        meta: dict[str, Any] = dict(answer.meta)
        known = self._meta
        if known is not None and any(meta[name] != known[name] for name in ("size", "e_tag", "last_modified")):
            raise Problem(CHANGED)
        if meta["size"] == 0:
            raise Problem("it has no bytes", InvalidArgument, empty=True)
        if meta["size"] >= _TOO_LARGE:
            raise Problem(f"the store says that it has {meta['size']} bytes, as no object has")
        wanted = (meta["size"] if end is None else min(end, meta["size"])) - begin
        if known is None or end is None:
            return meta, await _in_pieces(answer, wanted)
        # Three times as fast: obstore copies pieces with the GIL. It takes the memory of the range that was asked for.
        body = await answer.bytes_async()
        _check_length(len(body), wanted)
        return meta, body


async def _in_pieces(answer: Any, wanted: int) -> Any:
    """Return the bytes of an answer, no more than are wanted. At once obstore takes the memory that is announced."""
    body: Any = b""
    came = 0
    async for piece in answer.stream(min_chunk_size=max(1, min(wanted, RANGE))):
        begin, came = came, came + len(piece)
        if came > wanted:
            break
        if len(piece) == wanted:
            body = piece
            continue
        if begin == 0:
            body = _memory(wanted)
        body[begin:came] = piece
    _check_length(came, wanted)
    return body


def _check_length(came: int, wanted: int) -> None:
    if came != wanted:
        more = " or more" if came > wanted else ""
        raise Problem(f"{came} bytes{more} came instead of {wanted}", passing=True)


def _memory(size: int) -> memoryview:
    """Return memory, of which no page is used before it is written."""
    try:
        return np.empty(size, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise Problem(f"the store announces {size} bytes, for which there is no memory", OutOfMemory) from error


def _is_strong(tag: str | None) -> bool:
    return bool(tag) and not str(tag).startswith("W/")


def _identity(name: str, meta: dict[str, Any]) -> str:
    known = [f"{meta['size']} bytes"]
    if meta["version"]:
        known.append(f"version {meta['version']}")
    if meta["e_tag"]:
        known.append(f"ETag {meta['e_tag']}")
    if meta["last_modified"].timestamp() > 0:
        known.append(f"modified at {meta['last_modified'].isoformat()}")
    if len(known) == 1:  # nothing tells it from another of this size: it is found in no cache
        known.append(f"read at {time.time_ns()}")
    return f"{name} ({', '.join(known)})"


def side_by_side(calls: list[Callable[[], Any]], link: Link, at_once: int = 16) -> list[Any]:
    """Make calls that read over a link in threads, and return their results. Ctrl-C ends the reads.

    Raises:
        Error: The first that a call raised.
    """
    from ortmulti._runtime.threads import Task

    results: list[Any] = [None] * len(calls)
    failures: list[BaseException] = []
    left = list(enumerate(calls))
    stopped = False

    def work() -> None:
        while not failures and not stopped:
            try:
                place, call = left.pop(0)
            except IndexError:
                return
            try:
                results[place] = call()
            except BaseException as error:  # obstore's panics too
                failures.append(error)
                link.interrupt()

    tasks = [Task(work, "ortmulti-remote") for _ in range(min(at_once, len(calls)))]
    try:
        for task in tasks:
            task.start()
        for task in tasks:
            task.wait()
    except BaseException:
        stopped = True
        link.interrupt()
        for task in tasks:
            task.revoke()
        raise
    if failures:
        raise failures[0]
    return results
