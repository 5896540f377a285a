"""A file in an object store: a source of bytes, read in ranges."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ortmulti.errors import InvalidArgument, InvalidType, LibraryError, NoSuchFile, WeightsError
from ortmulti.remote import requests
from ortmulti.remote.link import Interrupted, Link
from ortmulti.remote.problems import CHANGED, Problem, first_line, problem_of, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["RemoteFile"]

RANGE = 8 << 20
"""Bytes that are asked for at once."""

_AT_ONCE = 32
_PATIENCE = 60.0  # seconds of one range, and of the first answer: a wrong address needs no minute
_FIRST_PATIENCE = 10.0
_BACKOFF = 0.1, 5.0  # seconds before the second try, and at most

# A range of 8 MiB that takes longer than 2 minutes has less than 70 kB a second.
_CLIENT = {"connect_timeout": "5s", "read_timeout": "15s", "timeout": "120s"}


class Place(NamedTuple):
    """Where an object is.

    Attributes:
        store: obstore's client.
        path: The object's path in it.
        name: Its URL without secrets, for messages and keys.
        link: The limit on ranges under way, of all objects of a model.
    """

    store: ObjectStore
    path: str
    name: str
    link: Link

    def beside(self, location: str) -> Place:
        """Return the place of a model's external data, which is below the model's folder.

        Raises:
            InvalidArgument: The name leads elsewhere.
        """
        parts = location.split("/")
        if not location or location.startswith("/") or "\\" in location or not {"", ".", ".."}.isdisjoint(parts):
            raise InvalidArgument(
                f"the external data {location!r} of '{self.name}' is no name below the model's folder: save the model "
                "with such a name"
            )
        folder = self.path.rpartition("/")[0]
        path = f"{folder}/{location}" if folder else location
        return self._replace(path=path, name=f"{self.name.rpartition('/')[0]}/{location}")


def place_of(url: str, store: ObjectStore | None = None) -> Place:
    """Return the place that a URL names; with ``store`` it is a path there.

    Raises:
        LibraryError: obstore is missing.
        InvalidArgument: It is no URL of a store.
    """
    try:
        from obstore import store as stores
    except ImportError as error:
        raise LibraryError(
            f"'{without_secrets(url)}' is in an object store, which needs obstore: pip install 'ortmulti[remote]'"
        ) from error
    if store is not None:
        kinds = (stores.S3Store, stores.GCSStore, stores.AzureStore, stores.HTTPStore, stores.LocalStore)
        if not isinstance(store, (*kinds, stores.MemoryStore)):
            raise InvalidType(f"store is one of obstore.store, such as S3Store('bucket'), not {type(store).__name__}")
        if "://" in url:
            raise InvalidArgument(f"with store= a model is a path in the store, not '{without_secrets(url)}'")
        return Place(store, url, f"{_name_of(store)}/{url}", Link())
    if url.startswith("file://"):
        raise InvalidArgument(f"'{url}' is a file here: give its path, '{url.removeprefix('file://')}'")
    url = url.strip()  # as read from a file
    name = without_secrets(url)
    if problem := _problem_with(url):
        raise InvalidArgument(f"'{name}' names no model in a store: {problem}")
    address, _, query = url.partition("?")
    folder, _, path = address.rpartition("/")
    client: Any = dict(_CLIENT)
    retry: Any = {"max_retries": 0}  # a range is tried again here, its body too
    try:
        if url.startswith(("http://", "https://")):
            client["allow_http"] = url.startswith("http://")
            found: Any = stores.HTTPStore.from_url(
                f"{folder}?{query}" if query else folder, client_options=client, retry_config=retry
            )
        else:
            client["allow_http"] = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
            found = stores.from_url(folder, client_options=client, retry_config=retry)
    except Exception as error:
        problem = first_line(str(error)).replace(folder, name) or type(error).__name__
    if problem:  # not within `except`: obstore's error has the URL with its secrets
        raise InvalidArgument(f"'{name}' cannot be opened: {problem}")
    return Place(found, path, name, Link())


_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")


def _problem_with(url: str) -> str:
    """Return what is wrong with a URL of a store; empty if nothing is known."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        return "it is such as s3://bucket/path/model.onnx, gs://, az:// or https://"
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    if scheme.startswith("http"):
        name, colon, port = host.rpartition("@")[2].rpartition(":")
        if colon and not port.isdecimal() and not port.endswith("]") and not name.startswith("["):
            return "the port is no number. Characters such as / # ? of a password are written as %2F, %23, %3F"
    elif scheme not in ("abfs", "abfss") and "@" in host:
        return "credentials do not belong into it: set variables such as AWS_ACCESS_KEY_ID, or give store="
    elif re.search("[?#]", rest):
        return "it has no query, and names the newest version"
    if not slash or not path or path.endswith("/"):
        return "it is that of a folder or a bucket: name the .onnx file in it"
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or "http://"
    if scheme.startswith("s3") and "://" not in endpoint:
        return f"AWS_ENDPOINT is {endpoint!r}, and needs http:// or https://"
    return ""


def _name_of(store: ObjectStore) -> str:
    """Return what tells a store from others, without its credentials."""
    config: Any = getattr(store, "config", None) or {}
    prefix = getattr(store, "prefix", None)
    url = getattr(store, "url", None)
    if isinstance(url, str):
        return without_secrets(url).rstrip("/")
    names = ("endpoint", "account_name", "bucket", "container_name")
    known = [str(config[name]) for name in names if config.get(name)]
    if not known:
        known = [hex(id(store))]  # such as one in memory: another one may have other bytes
    return "/".join([type(store).__name__, *known, *([str(prefix)] if prefix else [])])


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
        NoSuchFile: There is no such object, or it cannot be read.
        InvalidArgument: It is no such URL.
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
        self._whole = False
        self._first: memoryview | None = None
        try:
            self._first = memoryview(self._range(0, first))
        except Problem as problem:
            if problem.empty:
                raise InvalidArgument(f"'{self.name}' is empty: 0 bytes. Upload it again") from None
            if not problem.without_ranges:
                raise NoSuchFile(f"'{self.name}' cannot be read: {problem}") from None
            self._whole = True
            try:
                self._first = memoryview(self._range(0, None))
            except Problem as again:
                raise NoSuchFile(f"'{self.name}' cannot be read: {again}") from None
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
        while True:
            try:
                with link.place(interrupts):
                    return self._ask(begin, end, interrupts)
            except Interrupted:
                raise Problem("the reading was given up") from None
            except Problem as problem:
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
        problem: Problem | None = None
        try:
            meta, body = requests.wait_for(self._get(options), lambda: self._place.link.interrupts != interrupts)
        except (Problem, Interrupted):
            raise
        except Exception as error:
            problem = problem_of(error)
        if problem is not None:  # not within `except`: obstore's error has the URL with its secrets
            raise problem
        wanted = (meta["size"] if end is None else min(end, meta["size"])) - begin
        if len(body) != wanted:
            raise Problem(f"{len(body)} bytes came instead of {wanted}", passing=True)
        if known is None:
            self._meta = meta
        self._place.link.came(len(body))
        return body

    async def _get(self, options: Any) -> tuple[dict[str, Any], Any]:
        import obstore

        answer = await obstore.get_async(self._place.store, self._place.path, options=options)
        meta: dict[str, Any] = dict(answer.meta)
        known = self._meta
        if known is not None and any(meta[name] != known[name] for name in ("size", "e_tag", "last_modified")):
            raise Problem(CHANGED)
        return meta, await answer.bytes_async()


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
            except Exception as error:
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
