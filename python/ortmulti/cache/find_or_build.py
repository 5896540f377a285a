"""Entries for sessions that are being created: found in the cache, or made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ortmulti._create.creation import CheckedModel
from ortmulti.cache.entries import Cache, Draft
from ortmulti.devices import Device
from ortmulti.errors import NotFound, NotOptimizable
from ortmulti.options import SessionOptions
from ortmulti.providers import Provider

from .build import build
from .entry import Damaged, Entry
from .key import compute_capability, key_of

_T = TypeVar("_T")
_Span: TypeAlias = Callable[[str], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Wanted:
    """A model whose optimized form is wanted, and the sessions for which it is.

    Attributes:
        model: Path, or bytes.
        providers: The sessions' providers, with their options.
        options: The sessions' options.
        devices: The sessions' devices.
        span: Gives the context manager that measures what is done under a name; by default it measures nothing.
    """

    model: CheckedModel
    providers: Sequence[Provider]
    options: SessionOptions | None
    devices: Sequence[Device]
    span: _Span = contextlib.nullcontext

    def find_or_make(self, use: Callable[[Entry], _T], make: Callable[[Draft], _T], *, offline: bool) -> _T:
        """Uses the entry in the cache, or has one made.

        Args:
            use: Takes the entry over, open; its checksums were not compared. If it raises `Damaged`, the entry is
                removed and another one is made.
            make: Takes a draft over, and fills it by `build`.
            offline: Whether none is to be made.

        Returns:
            What ``use`` or ``make`` returned.

        Raises:
            NotOptimizable: The model has no optimized form that could be used; the message says why.
            NotFound: There is no entry, and none is to be made.
        """
        with self.span("find optimized model"):
            capability = compute_capability(self.devices)
            key = key_of(self.model, self.providers, self.options, compute_capability=capability)
            cache = Cache.default()
            entry = cache.find(key)
        if entry is not None:
            try:
                return use(entry)
            except Damaged as damage:
                cache.remove(key, damage)
        if offline:
            raise NotFound(
                f"there is no optimized form of {_describe(self.model)} for these options, and optimize='offline' "
                "makes none: run `ortmulti optimize` before"
            )
        return make(cache.draft(key))

    def build(self, draft: Draft, create: Callable[[Entry], tuple[_T, Collection[str]]]) -> _T:
        """Fills a draft with an entry of whose weights ONNX Runtime takes all; it plans some on the CPU, for example.

        Args:
            draft: Where.
            create: Creates sessions over the entry. Returns what they are, and the weights that were not taken: if
                there are any, it is called again for an entry that does not share them.

        Returns:
            What ``create`` returned at last.

        Raises:
            NotOptimizable: As `optimized.build`, or weights that are no longer shared are still not taken.
        """
        refused: tuple[str, ...] = ()
        while True:
            with self.span("optimize model"):
                entry = build(draft, self.model, self.providers, self.options, refused)
            created, found = create(entry)
            if not found:
                return created
            if set(found) <= set(refused):
                raise NotOptimizable(f"ONNX Runtime does not take the weights {', '.join(sorted(found)[:3])}")
            refused = tuple(sorted({*refused, *found}))


def _describe(model: CheckedModel) -> str:
    return f"'{model}'" if isinstance(model, str) else f"a model of {len(model)} bytes"
