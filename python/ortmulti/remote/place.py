"""Where an object is: what a URL names, and what lies beside it."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ortmulti.errors import InvalidArgument, InvalidType, LibraryError
from ortmulti.remote import requests
from ortmulti.remote.concurrency import Link
from ortmulti.remote.remote_errors import first_line, shown, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# A range of 8 MiB that takes longer than 2 minutes has less than 70 kB a second.
_CLIENT = {"connect_timeout": "5s", "read_timeout": "15s", "timeout": "120s"}


class Place(NamedTuple):
    """Where an object is.

    Attributes:
        store: obstore's client.
        path: The object's path in it.
        name: Its URL without secrets, for messages and keys.
        link: The limit on ranges under way, of all objects of a model.
        url: Its whole URL, if that is one of HTTP; otherwise empty.
    """

    store: ObjectStore
    path: str
    name: str
    link: Link
    url: str = ""

    def beside(self, locations: Iterable[str]) -> list[Place]:
        """Return the places of a model's external data, which is below the model's folder.

        Raises:
            InvalidArgument: A name leads elsewhere.
        """
        paths = [self._below(location) for location in locations]
        if not paths:
            return []
        folder, name = self.path.rpartition("/")[0], self.name.rpartition("/")[0]
        if not self.url:
            prefix = f"{folder}/" if folder else ""
            return [self._replace(path=prefix + path, name=shown(f"{name}/{path}")) for path in paths]
        address, _, query = self.url.partition("?")
        folder, query = address.rpartition("/")[0], f"?{query}" if query else ""
        store = http_store(folder + query, name, allow_http=address.startswith("http://"))
        return [
            Place(store, path, shown(f"{name}/{path}"), self.link, f"{folder}/{quote(path)}{query}") for path in paths
        ]

    def _below(self, location: str) -> str:
        path = posixpath.normpath(location) if location else ""
        leads_away = path in ("", ".", "..") or path.startswith(("/", "../"))
        if leads_away or re.search(r"[\\\0-\x1f\x7f\ud800-\udfff]", location):  # which no name in a store has
            raise InvalidArgument(
                f"the external data {location!r} of '{self.name}' is no name below the model's folder: save the model "
                "with such a name"
            )
        return path


def place_of(url: str, store: ObjectStore | None = None) -> Place:
    """Return the place that a URL names; with ``store`` it is a path there.

    Raises:
        LibraryError: obstore is missing.
        InvalidArgument: It is no URL of a store.
        RuntimeException: This process has no free file descriptors.
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
        return Place(store, url, shown(f"{_name_of(store)}/{url}"), Link())
    if url.startswith("file://"):
        raise InvalidArgument(f"'{url}' is a file here: give its path, '{url.removeprefix('file://')}'")
    url = url.strip()  # as read from a file
    name = without_secrets(url)
    if problem := _problem_with(url):
        raise InvalidArgument(f"'{name}' names no model in a store: {problem}")
    if url.startswith(("http://", "https://")):
        url = url.partition("#")[0]
        # The address is the whole URL: obstore would encode a path once more.
        return Place(http_store(url, name, allow_http=url.startswith("http://")), "", name, Link(), url)
    scheme, _, rest = url.partition("://")
    root, _, path = rest.partition("/")
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes")
    # A folder in the address would be decoded, unlike the path.
    return Place(_opened(stores.from_url, f"{scheme}://{root}", name, allow_http=allow_http), path, name, Link())


def http_store(url: str, name: str, *, allow_http: bool) -> ObjectStore:
    """Return a client for what is at or below a URL of HTTP.

    Raises:
        InvalidArgument: It is no such URL.
        RuntimeException: This process has no free file descriptors.
    """
    from obstore.store import HTTPStore

    return _opened(HTTPStore.from_url, url, name, allow_http=allow_http)


def _opened(make: Callable[..., ObjectStore], url: str, name: str, *, allow_http: bool) -> ObjectStore:
    requests.check_descriptors()
    problem = ""
    retry = {"max_retries": 0}  # a range is tried again here, its body too
    try:
        return make(url, client_options={**_CLIENT, "allow_http": allow_http}, retry_config=retry)
    except Exception as error:
        problem = first_line(str(error)).replace(url, name) or type(error).__name__
    # Not within `except`: obstore's error has the URL with its secrets.
    raise InvalidArgument(f"'{name}' cannot be opened: {problem}")


SCHEMES = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https")


def _problem_with(url: str) -> str:
    """Return what is wrong with a URL of a store; empty if nothing is known."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
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
