"""Texts to tokens: the tokenizer of an export, in blocks of texts, and in threads of its own beside an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import InvalidArgument, InvalidType, LibraryError

if TYPE_CHECKING:
    from tokenizers import Encoding

    from ortmulti.text.settings import Settings, Side

__all__ = ["BLOCK", "Text", "Tokenizer", "Tokens", "Truncate", "blocks"]

Text: TypeAlias = str | tuple[str, str] | Sequence[int]
"""A text, a pair of texts, or tokens with the special ones."""
Truncate: TypeAlias = bool | Literal["right", "left"]

BLOCK = 64
"""Texts are tokenized so many at a time, so that those of other callers come in between."""
_THREADS = 4
_AT_ONCE = 1000  # characters: what takes less than handing it to another thread and back


class Tokens(NamedTuple):
    """The tokens of a text, and their types where these are not all 0."""

    ids: Sequence[int] | NDArray[Any]
    types: Sequence[int] | None = None


def blocks(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Cut texts into blocks."""
    rest = iter(texts)
    while block := list(islice(rest, BLOCK)):
        yield block


class Tokenizer:
    """The tokenizer of an export. It cuts texts, and never pads them. All methods may be called from any thread.

    Raises:
        LibraryError: The package tokenizers is missing.
        InvalidArgument: The file is no tokenizer.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._by_side: dict[Side | None, Any] = {}
        cutting = self._cutting(settings.truncation_side)
        if settings.max_length <= (most := cutting.num_special_tokens_to_add(settings.task != "embedding")):
            raise InvalidArgument(
                f"max_length is {settings.max_length}, and {settings.tokenizer} adds {most} special tokens: give more"
            )
        self._special: int = cutting.num_special_tokens_to_add(False)
        self._count: int = cutting.get_vocab_size()
        self._has_types = "token_type_ids" in settings.inputs
        self._types_of_one = self._has_types and any(cutting.encode("a").type_ids)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def encode(self, texts: Sequence[Text], first: int = 0, truncate: Truncate = True) -> list[Tokens]:
        """Tokenize texts, of which the first one has this number in messages.

        Raises:
            InvalidArgument: A text is too long with ``truncate=False``, or has no tokens.
            InvalidType: One is no text.
        """
        written = [text for text in texts if _is_written(text)]
        side = self._settings.truncation_side if isinstance(truncate, bool) else truncate
        found = iter(self._encode(self._cutting(side), written, first, texts))
        return [
            self._checked(next(found), first + i, text, truncate)
            if _is_written(text)
            else Tokens(self._ids(text, first + i, truncate))
            for i, text in enumerate(texts)
        ]

    async def encode_async(self, texts: Sequence[Text], first: int = 0, truncate: Truncate = True) -> list[Tokens]:
        """The same, in another thread if it may take long."""
        if sum(map(_size, texts)) <= _AT_ONCE:
            return self.encode(texts, first, truncate)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor(), self.encode, texts, first, truncate)

    def encodings(self, texts: Sequence[Any], special_tokens: bool = True) -> list[Encoding]:
        """Tokenize texts without cutting them."""
        try:
            found: list[Encoding] = self._cutting(None).encode_batch(texts, add_special_tokens=special_tokens)
        except Exception as error:  # of no narrower class
            raise _wrong(texts, 0, error) from None
        return found

    async def encodings_async(self, texts: Sequence[str], special_tokens: bool = True) -> list[Encoding]:
        """The same, in another thread."""
        found: list[Encoding] = []
        for block in blocks(texts):
            found += await asyncio.get_running_loop().run_in_executor(
                self._executor(), self.encodings, block, special_tokens
            )
        return found

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut."""
        found = self._encode(self._cutting(self._settings.truncation_side), texts, 0, texts)
        return [self._uncut(one) for one in found]

    def length_of_prompt(self, prompt: str) -> int:
        """Return how many tokens a prompt has before a text: without the special ones behind it."""
        if not prompt:
            return 0
        encoding = self._cutting(self._settings.truncation_side).encode(prompt)
        return len(encoding.ids) - bool(encoding.special_tokens_mask[-1])

    def close(self) -> None:
        """End the threads when they have done what they were asked for."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None and threads[0] == os.getpid():
            threads[1].shutdown(wait=False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None or self._threads[0] != os.getpid():  # a forked child has none of these threads
                count = min(_THREADS, len(os.sched_getaffinity(0)))
                self._threads = os.getpid(), ThreadPoolExecutor(count, "ortmulti-text")
            return self._threads[1]

    def _cutting(self, side: Side | None) -> Any:
        """Return the tokenizer that cuts at this side; None: at none. A second one is loaded at its first use."""
        with self._lock:
            if side not in self._by_side:
                self._by_side[side] = _load(self._settings, side)
            return self._by_side[side]

    def _encode(self, tokenizer: Any, texts: Sequence[Any], first: int, among: Sequence[Any]) -> list[Encoding]:
        try:
            found: list[Encoding] = tokenizer.encode_batch_fast(texts)  # without the GIL, on several cores
        except Exception as error:
            raise _wrong(among, first, error) from None
        return found

    def _checked(self, encoding: Encoding, number: int, text: Text, truncate: Truncate) -> Tokens:
        ids = encoding.ids
        if truncate is False and encoding.overflowing:
            count = self._uncut(encoding) if isinstance(text, str) else self._of_pair(text)
            raise InvalidArgument(
                f"text {number} has {count} tokens, and the model takes {self._settings.max_length}: shorten it, or "
                "have it cut by truncate=True"
            )
        if not ids:
            raise InvalidArgument(f"text {number} has no tokens: leave it out")
        typed = self._types_of_one if isinstance(text, str) else self._has_types
        return Tokens(ids, encoding.type_ids if typed else None)

    def _uncut(self, encoding: Encoding) -> int:
        rest: list[Encoding] = encoding.overflowing
        return len(encoding.ids) + sum(len(one.ids) - self._special for one in rest)

    def _of_pair(self, pair: Any) -> int:
        tokenizer = self._cutting(self._settings.truncation_side)
        special: int = tokenizer.num_special_tokens_to_add(True)
        return sum(self.count(pair)) - 2 * self._special + special

    def _ids(self, given: Any, number: int, truncate: Truncate) -> NDArray[Any]:
        if not isinstance(given, Sequence | np.ndarray) or isinstance(given, bytes | bytearray):
            raise InvalidType(f"text {number} is a text or a list of tokens, not {type(given).__name__}")
        try:
            ids = np.asarray(given)
        except (ValueError, OverflowError):
            ids = np.asarray(None)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidType(f"the tokens of text {number} are ints; a pair of texts is a tuple")
        if not ids.size:
            raise InvalidArgument(f"text {number} has no tokens: leave it out")
        if ids.min() < 0 or ids.max() >= self._count:
            wrong = ids[(ids < 0) | (ids >= self._count)][0]
            raise InvalidArgument(f"text {number} has the token {wrong}, and tokens are 0 to {self._count - 1}")
        most = self._settings.max_length
        if len(ids) > most:
            if truncate is False:
                raise InvalidArgument(f"text {number} has {len(ids)} tokens, and the model takes {most}")
            side = self._settings.truncation_side if truncate is True else truncate
            ids = ids[-most:] if side == "left" else ids[:most]
        return ids


def _load(settings: Settings, side: Side | None) -> Any:
    try:
        from tokenizers import Tokenizer, normalizers
    except ImportError as error:
        raise LibraryError(
            f'models of texts need tokenizers ({error}): pip install "ortmulti[text]"', name="tokenizers"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(settings.tokenizer))
    except Exception as error:  # of no narrower class
        raise InvalidArgument(f"{settings.tokenizer} is no tokenizer: {error}") from None
    tokenizer.no_padding()  # the pool pads, and only as far as a run needs
    tokenizer.no_truncation()
    if side is not None:
        try:
            tokenizer.enable_truncation(settings.max_length, strategy="longest_first", direction=side)
        except Exception as error:
            raise InvalidArgument(f"texts cannot be cut to max_length {settings.max_length}: {error}") from None
    if settings.lower_case:
        given = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *given])
    return tokenizer


def _is_written(text: Any) -> bool:
    """Whether it is a text or a pair of texts, and not tokens."""
    return isinstance(text, str) or (isinstance(text, tuple) and any(isinstance(part, str) for part in text))


def _size(text: Any) -> int:
    if isinstance(text, tuple):
        return sum(len(part) if isinstance(part, str) else 1 for part in text)
    return len(text) if hasattr(text, "__len__") else 1


def _wrong(texts: Sequence[Any], first: int, error: Exception) -> InvalidArgument:
    """Return the error for what the tokenizer did not take."""
    for number, text in enumerate(texts, first):
        parts = text if isinstance(text, tuple) else (text,)
        if isinstance(text, tuple) and len(text) != 2:
            return InvalidType(f"text {number} is a pair of {len(text)} texts: give two")
        for part in parts:
            if not isinstance(part, str):
                if isinstance(text, tuple):
                    return InvalidType(f"text {number} is a pair with a {type(part).__name__}: give two texts")
                continue
            try:
                part.encode()
            except UnicodeEncodeError as half:
                return InvalidArgument(
                    f"text {number} has half of a surrogate pair at {half.start}, which is no character: leave it out"
                )
    return InvalidArgument(f"the tokenizer does not take these texts: {error}")
