"""Redirects of a URL with a query, which may be signed.

obstore's client would give the whole URL to the next host, as Referer.
"""

from __future__ import annotations

import base64
import http.client
import string
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from ortmulti.remote.remote_errors import Problem, problem_of

_SECONDS = 10.0  # for a connection, and for each part of an answer
_MOST = 10  # as browsers and obstore's client


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def follow(url: str) -> str:
    """Return the URL that redirects lead to: itself where there are none, or where the answer is an error.

    Raises:
        Problem: There is no answer, or the redirects lead to no place.
    """
    opener = urllib.request.build_opener(_Stay)
    for _ in range(_MOST):
        target = _next(opener, url)
        if target is None:
            return url
        before, after = urlsplit(url), urlsplit(target)
        if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
            raise Problem(f"it is redirected from {before.scheme}:// to {after.scheme}://: use the URL that is meant")
        host = before.netloc.rpartition("@")[2]
        if (before.scheme, host) == (after.scheme, after.netloc):  # user and password are for this host alone
            target = after._replace(netloc=before.netloc).geturl()
        url = target
    raise Problem("it is redirected again and again: check the URL")


def _next(opener: urllib.request.OpenerDirector, url: str) -> str | None:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    plain = parts._replace(
        netloc=host, path=quote(parts.path, string.punctuation), query=quote(parts.query, string.punctuation)
    )
    request = urllib.request.Request(plain.geturl(), headers={"Range": "bytes=0-0"})
    if at:
        name, _, password = user.partition(":")
        request.add_header(
            "Authorization", "Basic " + base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        )
    problem = None
    try:
        with opener.open(request, timeout=_SECONDS):
            return None
    except urllib.error.HTTPError as answer:
        with answer:
            location = answer.headers.get("Location")
            if answer.code not in (301, 302, 303, 307, 308) or not location:
                return None
            return urljoin(plain.geturl(), quote(location, string.punctuation, encoding="iso-8859-1"))
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = problem_of(error)
    raise problem  # not within `except`: the error may have the URL
