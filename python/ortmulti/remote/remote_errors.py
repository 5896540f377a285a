"""What goes wrong with a store, in words without secrets."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from ortmulti.errors import Error, InvalidArgument, NoSuchFile, RuntimeException, WeightsError

CHANGED = "it was changed or replaced since it was opened; load again, or give a pool the new one by replace_model"

NO_DESCRIPTORS = "this process has no free file descriptors: close files, or raise its limit (ulimit -n)"

_REGION = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "InvalidToken")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")


def without_secrets(url: str) -> str:
    """Return a URL without its query, fragment, user and password: signed URLs have their secret in the query."""
    scheme, _, rest = url.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    name, colon, port = host.rpartition(":")
    if "@" not in host and colon and not port.isdecimal() and not name.startswith("["):
        rest = rest.rpartition("@")[2]  # a password with a character that ends the host's name
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    return shown(f"{scheme}://{host.rpartition('@')[2]}{slash}{path}")


def shown(name: str) -> str:
    """Return a name in one line that can be printed: other characters as in a URL."""
    return "".join(each if each.isprintable() else quote(each, errors="surrogateescape") for each in name)


class Problem(Exception):  # noqa: N818  (a state, which callers act on)
    """Why a range did not come.

    Attributes:
        error: The class of the error that it is, where the object is opened.
        passing: It may go away, so that another try is worth it.
        overloaded: The store asks for fewer requests.
        without_ranges: The server answers a range with the whole object.
        empty: The object has no bytes.
    """

    def __init__(self, text: str, error: type[Error] = WeightsError, **kinds: bool) -> None:
        super().__init__(text)
        self.error = error
        self.passing = kinds.get("passing", False)
        self.overloaded = kinds.get("overloaded", False)
        self.without_ranges = kinds.get("without_ranges", False)
        self.empty = kinds.get("empty", False)


def problem_of(error: Exception) -> Problem:
    """Return an error of obstore in our words. Its own text has the URL with its query, and the answer's body."""
    kind, text = type(error).__name__, str(error)
    status = _status(text)
    code = (re.search(r"<Code>(\w{1,60})</Code>", text) or ["", ""])[1]
    named = f" ({code})" if code else ""
    if re.search(r"/latest/(api/token|meta-data)|computeMetadata|/oauth2/token|token request", text):
        return Problem(
            "no credentials were found, and the machine has no role: set those of the store, such as "
            "AWS_ACCESS_KEY_ID or GOOGLE_APPLICATION_CREDENTIALS, or give store=. For a public bucket of S3 set "
            "AWS_SKIP_SIGNATURE=true",
            NoSuchFile,
        )
    if isinstance(error, FileNotFoundError) or status == 410:
        where = "bucket" if code == "NoSuchBucket" else "object"
        return Problem(f"there is no such {where}{named}: check the name, which is that of an .onnx file", NoSuchFile)
    if kind == "PreconditionError":
        return Problem(CHANGED)
    if kind == "NotSupportedError" and "Range" in text:
        return Problem("the server has no ranges: it answers one with the whole object", without_ranges=True)
    if code in _REGION or "redirect without LOCATION" in text:
        return Problem(
            f"the bucket is in another region, or behind another endpoint{named}: set AWS_REGION, check the endpoint",
            InvalidArgument,
        )
    if code == "RequestTimeTooSkewed":
        return Problem(f"the clock of this machine differs too much from the store's{named}: set it")
    if code in _EXPIRED:
        return Problem(f"the credentials have expired{named}: get new ones", NoSuchFile)
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return Problem(
            f"permission denied: the store answers {status or 403}{named}; check the credentials, and what they may "
            "read. A signed URL may have expired",
            NoSuchFile,
        )
    if status == 416:
        return Problem("it has no bytes from there (416)", InvalidArgument, empty=True)
    if status is not None:
        overloaded = status in (429, 503)
        passing = overloaded or status in (408, 500, 502, 504)
        error_class = WeightsError if passing or status >= 500 else NoSuchFile
        return Problem(f"the store answers {status}{named}", error_class, passing=passing, overloaded=overloaded)
    lower = text.lower()
    if "dns error" in lower or "lookup address" in lower or "name resolution" in lower:
        return Problem(f"the name of the host cannot be resolved{_through_proxy()}", passing=True)
    if "certificate" in lower:
        return Problem(
            "the certificate of the server is not valid here: name the file of its authority in SSL_CERT_FILE, or give "
            "root_certificate to a store of your own"
        )
    if "timedout" in lower or "timed out" in lower or "kind: timeout" in lower:
        return Problem("no answer in time", passing=True)
    if "unexpected range" in lower or "unexpectedrange" in lower:
        return Problem("the store answers with another range than was asked for", passing=True)
    if "builder error" in lower and "http://" in lower:
        return Problem(
            "its address is http:// without TLS: set AWS_ALLOW_HTTP=true, or use https://. A store of your own has "
            "client_options={'allow_http': True}",
            InvalidArgument,
        )
    if "too many open files" in lower:
        return Problem(NO_DESCRIPTORS, RuntimeException, passing=True)
    if "following redirect" in lower:
        return Problem("it is redirected again and again: check the URL")
    if isinstance(error, ValueError) and "parse path" in lower:
        return Problem(f"no object can have this name: {first_line(text)}", InvalidArgument)
    if "kind: connect" in lower:
        return Problem(f"cannot connect{_through_proxy()}", passing=True)
    if "body error" in lower or "sending request" in lower or "connection" in lower or "incomplete" in lower:
        return Problem("the connection broke off", passing=True)
    return Problem(first_line(text))


def first_line(text: str) -> str:
    """Return what obstore says, without what may be secret."""
    line = re.sub(r"//[^/@\s]*@", "//", text.partition("\n")[0])
    return re.sub(r"\?[^\s)\"']*", "", line)[:300]


def _status(text: str) -> int | None:
    found = re.search(r"status code: (\d{3})|status: (\d{3})", text)
    return int(found[1] or found[2]) if found else None


def _through_proxy() -> str:
    """Name the variable of a proxy, if there is one, without its value: this may have a password."""
    name = next((name for name in _PROXIES if os.environ.get(name)), "")
    return f" (through the proxy of {name})" if name else ""
