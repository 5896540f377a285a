"""Short requests of vectors, answered together: those that are there at the same moment are one block of texts.

They need no event loop, and have no task of one: the thread that takes calls reads them, and one that writes answers
them. So one request costs the interpreter little more than to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ortmulti import _core
from ortmulti.errors import ClosedError
from ortmulti.serve import text_requests as requests
from ortmulti.serve.reply import JSON, Reply
from ortmulti.serve.service import Refused, Service
from ortmulti.serve.text_models import ServedTexts
from ortmulti.serve.text_requests import Asked
from ortmulti.serve.text_routes import (
    ROUTES,
    Route,
    chosen,
    failure,
    no_memory,
    not_finite,
    reserve,
    reserve_vectors,
    root,
    written,
)
from ortmulti.text.together import Part, embed_together
from ortmulti.text.together import Together as Run
from ortmulti.text.tokenizing import BLOCK

__all__ = ["Together"]

LOGGER = logging.getLogger("ortmulti.serve")

# Bytes of a body: read in some tens of microseconds.
_MOST_READ = 16 << 10
_ROUTES = {f"/{path}".encode(): route for path, route in ROUTES.items() if route.tasks == ("embedding",)}
_WRITERS = 2


def _most(found: ServedTexts) -> int:
    """Return how many texts of one caller are run together: with more, a short queue has no room for any."""
    return min(BLOCK, found.model.pool.together)


class _Member:
    """A request. ``call`` is None when it is answered, or its client has gone."""

    __slots__ = ("asked", "call", "group", "route")

    def __init__(self, call: _core.FrontCall, route: Route, asked: Asked) -> None:
        self.call: _core.FrontCall | None = call
        self.route = route
        self.asked = asked
        self.group: _Group | None = None


class _Group:
    """Requests that want the same of a model."""

    __slots__ = ("found", "members", "run", "texts")

    def __init__(self, found: ServedTexts) -> None:
        self.found = found
        self.members: list[_Member] = []
        self.texts = 0
        self.run: Run | None = None


_Groups = dict[Hashable, _Group]


class Together:
    """Answers short requests of vectors.

    Args:
        service: Which has the models of texts.
        most: Texts of a request at most.
        core: Sends calls' answers.
    """

    def __init__(self, service: Service, most: int, core: _core.Front) -> None:
        self._service = service
        self._most = most
        self._core = core
        self._groups: _Groups = {}  # the thread that takes calls alone has it
        self._members: dict[_core.FrontCall, _Member] = {}
        self._writers = ThreadPoolExecutor(_WRITERS, "ortmulti-serve-vectors")

    # In the thread that takes calls.

    def add(self, call: _core.FrontCall) -> bool:
        """Take a call, until `begin`. Returns whether it is one of these."""
        if call.grpc or call.method != "POST" or len(call.body) > _MOST_READ:
            return False
        if (route := self._route(call.path)) is None or any(name == b"content-encoding" for name, _ in call.headers):
            return False
        try:
            reserve(call)
            asked = requests.read(call.body, route.read, self._most)
            found = chosen(self._service, route.tasks, asked.model)
            if len(asked.items) > _most(found):
                return False
            member = _Member(call, route, asked)
            self._put(member, found, self._groups)
            self._members[call] = member
        except Exception as error:
            self._core.reply(call, *failure(error, call, route.form))
        return True

    def begin(self) -> None:
        """Have all that were taken answered."""
        groups, self._groups = self._groups, {}
        self._begin(groups.values())

    def drop(self, call: _core.FrontCall) -> bool:
        """Nobody waits for a call's answer any more. Returns whether it is one of these."""
        if (member := self._members.pop(call, None)) is None:
            return False
        member.call = None
        group = member.group
        if group is not None and group.run is not None and all(each.call is None for each in group.members):
            group.run.cancel()
        return True

    # In any.

    def end(self) -> None:
        """Forget all calls."""
        for call in [*self._members]:
            self.drop(call)

    def _route(self, path: bytes) -> Route | None:
        if path != b"/":
            return _ROUTES.get(path)
        try:
            return _ROUTES.get(f"/{root(self._service)}".encode())
        except Refused:
            return None

    def _put(self, member: _Member, found: ServedTexts, groups: _Groups) -> None:
        call, asked = member.call, member.asked
        if call is None:
            return
        reserve_vectors(call, found, asked)
        wanted = (asked.prompt, asked.truncate, asked.dimensions, asked.normalize, asked.base64)
        key = (found.name, id(found.model), member.route.form, wanted)
        group = groups.get(key)
        if group is not None and group.texts + len(asked.items) > _most(found):
            self._begin([group])
            group = None
        if group is None:
            group = groups[key] = _Group(found)
        group.members.append(member)
        group.texts += len(asked.items)
        member.group = group

    def _begin(self, groups: Iterable[_Group]) -> None:
        for group in groups:
            members = group.members = [member for member in group.members if member.call is not None]
            if not members:
                continue
            found, asked = group.found, members[0].asked
            try:
                group.run = embed_together(
                    found.model,
                    [text for member in members for text in member.asked.items],
                    [len(member.asked.items) for member in members],
                    partial(self._arrived, group),
                    prompt=asked.prompt,
                    dimensions=asked.dimensions,
                    normalize=found.normalize if asked.normalize is None else asked.normalize,
                    truncate=asked.truncate,
                    timeout=self._service.defaults_of(found.name).timeout,
                )
            except Exception as error:
                self._fail(group, [(member, error) for member in members])

    def _arrived(self, group: _Group, run: Run) -> None:
        if any(member.call is not None for member in group.members):
            self._writers.submit(self._answer, group, run)

    # In the threads that write.

    def _answer(self, group: _Group, run: Run) -> None:
        try:
            self._write(group, run)
        except BaseException as error:  # else clients would wait for ever, and their places be taken
            LOGGER.exception("answers of vectors failed")
            self._fail(group, [(member, error) for member in group.members])

    def _write(self, group: _Group, run: Run) -> None:
        pairs = [*zip(group.members, run.parts, strict=True)]
        answered = [(member, part) for member, part in pairs if isinstance(part, Part)]
        failed = [(member, part) for member, part in pairs if isinstance(part, Exception)]
        try:
            vectors: Any = run.vectors() if answered else None
        except Exception as error:
            failed += [(member, error) for member, _ in answered]
            answered = []
        texts = tokens = 0
        waiting = []
        replies = []
        for member, part in answered:
            if (call := member.call) is not None:
                rows, count = part.rows, len(member.asked.items)
                texts += count
                tokens += part.tokens
                head, tail, around = written(group.found.name, part.tokens, member.route.form)
                replies.append((call, rows.start, count, head, tail))
                waiting.append(member)
        if replies:
            left = dict(self._core.reply_rows(vectors, replies, [JSON], around, waiting[0].asked.base64))
            for index, member in enumerate(waiting):
                if index in left:
                    failed.append((member, no_memory() if left[index] else not_finite()))
                else:
                    self._done(member)
            self._service.texts.count(group.found.name, texts, tokens)
        self._fail(group, failed)

    def _fail(self, group: _Group, failed: list[tuple[_Member, Any]]) -> None:
        groups: _Groups = {}
        replaced = self._service.texts.get(group.found.name) is not group.found
        for member, error in failed:
            if (call := member.call) is None:
                continue
            if replaced and isinstance(error, ClosedError):  # another model has taken its place
                try:
                    self._put(member, chosen(self._service, member.route.tasks, member.asked.model), groups)
                    continue
                except Exception as own:
                    error = own
            self._reply(member, failure(error, call, member.route.form))
        self._begin(groups.values())

    def _reply(self, member: _Member, reply: Reply) -> None:
        if (call := self._done(member)) is not None:
            self._core.reply(call, *reply)

    def _done(self, member: _Member) -> _core.FrontCall | None:
        call, member.call, member.group = member.call, None, None
        if call is not None:
            self._members.pop(call, None)
        return call
