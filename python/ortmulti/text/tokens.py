"""Texts to tokens: the tokenizer of an export, in blocks of texts, and in threads of its own beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortmulti.errors import Error, InvalidArgument, InvalidType, LibraryError
from ortmulti.pool.tokens import Tokens
from ortmulti.text.tokenizing import BLOCK, CHARACTERS, Job, Tokenizing

if TYPE_CHECKING:
    from tokenizers import Encoding

    from ortmulti.text.settings import Settings, Side

__all__ = ["Text", "Tokenizer", "Truncate", "blocks"]

Text: TypeAlias = str | tuple[str, str] | Sequence[int]
"""A text, a pair of texts, or tokens with the special ones."""
Truncate: TypeAlias = bool | Literal["right", "left"]

# Characters of a text that are tokenized, at least and for each token that the model takes. To tokenize more would take
# a hundred times its memory, for tokens that are cut off.
_LEAST_CHARACTERS, _OF_TOKEN = 16 << 10, 64


def blocks(texts: Iterable[Text], most: int, times: int = 1) -> Iterator[list[Text]]:
    """Cut texts into blocks of so many, and of so many times the characters after which others have their turn."""
    characters = times * CHARACTERS
    block: list[Text] = []
    size = 0
    try:
        for text in texts:
            of_text = min(size_of(text), CHARACTERS)
            if block and (len(block) >= most or size + of_text > characters):
                yield block
                block, size = [], 0
            block.append(text)
            size += of_text
    except Exception:  # is raised behind the texts before it
        if block:
            yield block
        raise
    if block:
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
        self._types_of_one = self._has_types and any(self._encode(cutting, ["a"], 0, ["a"])[0].type_ids)
        self._most_characters = max(_LEAST_CHARACTERS, _OF_TOKEN * settings.max_length)
        self._tokenizing = Tokenizing(self._encode_jobs)

    def encode(self, texts: Sequence[Text], first: int = 0, truncate: Truncate = True) -> list[Tokens]:
        """Tokenize texts, of which the first one has this number in messages.

        Raises:
            InvalidArgument: A text is too long with ``truncate=False``, or has no tokens.
            InvalidType: One is no text.
        """
        side = self._side(truncate)
        found = self._encode(self._cutting(side), self._written(texts, first, truncate), first, texts)
        return self._tokens(texts, iter(found), first, truncate)

    def encode_later(
        self,
        texts: Sequence[Text],
        first: int,
        truncate: Truncate,
        then: Callable[[list[Tokens] | Exception], None],
        timeout: float | None,
        begin: float,
    ) -> None:
        """The same in another thread, together with texts of other callers. ``then`` gets the tokens there, or an
        error: also where ``timeout`` has passed, in seconds since ``begin``, before it is their turn.
        """
        size = sum(min(size_of(text), self._most_characters) for text in texts)
        self._tokenizing.add(Job(texts, size, first, truncate, then, timeout, begin))

    def encodings(self, texts: Sequence[Any], special_tokens: bool = True) -> list[Encoding]:
        """Tokenize texts without cutting them."""
        with _told(lambda error: _wrong(texts, 0, error)):
            found: list[Encoding] = self._cutting(None).encode_batch(texts, add_special_tokens=special_tokens)
        return found

    async def encodings_async(self, texts: Sequence[str], special_tokens: bool = True) -> list[Encoding]:
        """The same, in other threads."""
        found: list[Encoding] = []
        for block in blocks(texts, BLOCK):
            found += await asyncio.to_thread(self.encodings, block, special_tokens)
        return found

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, uncut."""
        found = self._encode(self._cutting(self._settings.truncation_side), texts, 0, texts)
        return [self._uncut(one) for one in found]

    def length_of_prompt(self, prompt: str) -> int:
        """Return how many tokens a prompt has before a text: without the special ones behind it."""
        if not prompt:
            return 0
        [encoding] = self._encode(self._cutting(self._settings.truncation_side), [prompt], 0, [prompt])
        return len(encoding.ids) - bool(encoding.special_tokens_mask[-1])

    def close(self) -> None:
        """End the threads when they have done what they were asked for."""
        self._tokenizing.close()

    def _encode_jobs(self, jobs: list[Job]) -> list[list[Tokens] | Exception]:
        """Tokenize what several callers wait for. An error is one caller's."""
        found: dict[int, Iterator[Encoding]] = {}
        for side in {self._side(job.truncate) for job in jobs} if len(jobs) > 1 else ():
            these = [job for job in jobs if self._side(job.truncate) == side]
            try:
                written = [self._written(job.texts, job.first, job.truncate) for job in these]
                encodings = self._encode(self._cutting(side), [text for each in written for text in each], 0, [])
            except Exception:  # then one by one
                continue
            end = 0
            for job, each in zip(these, written, strict=True):
                first, end = end, end + len(each)
                found[id(job)] = iter(encodings[first:end])  # not one for all: an error leaves some unread
        return [self._of_job(job, found.get(id(job))) for job in jobs]

    def _of_job(self, job: Job, found: Iterator[Encoding] | None) -> list[Tokens] | Exception:
        try:
            if found is None:
                return self.encode(job.texts, job.first, job.truncate)
            return self._tokens(job.texts, found, job.first, job.truncate)
        except Exception as error:
            error.__traceback__ = None if isinstance(error, Error) else error.__traceback__
            return error

    def _side(self, truncate: Truncate) -> Side:
        return self._settings.truncation_side if isinstance(truncate, bool) else truncate

    def _written(self, texts: Sequence[Text], first: int, truncate: Truncate) -> list[Any]:
        """Return those that are to be tokenized, without what of a text is beyond the characters that are read."""
        most = self._most_characters
        return [
            self._cut(text, first + i, truncate) if size_of(text) > most else text
            for i, text in enumerate(texts)
            if _is_written(text)
        ]

    def _cut(self, text: Any, number: int, truncate: Truncate) -> Any:
        if isinstance(text, tuple):
            return tuple(self._cut(part, number, truncate) for part in text)
        most = self._most_characters
        if not isinstance(text, str) or len(text) <= most:
            return text
        if truncate is False:
            raise InvalidArgument(
                f"text {number} has {len(text)} characters, and the model takes {most} at most: shorten it, or have it "
                "cut by truncate=True"
            )
        return text[-most:] if self._side(truncate) == "left" else text[:most]

    def _tokens(self, texts: Sequence[Text], found: Iterator[Encoding], first: int, truncate: Truncate) -> list[Tokens]:
        return [
            self._checked(next(found), first + i, text, truncate)
            if _is_written(text)
            else Tokens(self._ids(text, first + i, truncate))
            for i, text in enumerate(texts)
        ]

    def _cutting(self, side: Side | None) -> Any:
        """Return the tokenizer that cuts at this side; None: at none. A second one is loaded at its first use."""
        with self._lock:
            if side not in self._by_side:
                self._by_side[side] = _load(self._settings, side)
            return self._by_side[side]

    def _encode(self, tokenizer: Any, texts: Sequence[Any], first: int, among: Sequence[Any]) -> list[Encoding]:
        with _told(lambda error: _wrong(among, first, error)):
            found: list[Encoding] = tokenizer.encode_batch_fast(texts)  # without the GIL, on several cores
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


@contextlib.contextmanager
def _told(as_: Callable[[BaseException], Error]) -> Iterator[None]:
    """Raise an error of ours in place of the package's: of no narrower class, or a panic of Rust, which is not even an
    `Exception`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise as_(error) from None


def _load(settings: Settings, side: Side | None) -> Any:
    try:
        from tokenizers import Tokenizer, normalizers
    except ImportError as error:
        raise LibraryError(
            f'models of texts need tokenizers ({error}): pip install "ortmulti[text]"', name="tokenizers"
        ) from None
    with _told(lambda error: InvalidArgument(f"{settings.tokenizer} is no tokenizer: {error}")):
        tokenizer = Tokenizer.from_file(str(settings.tokenizer))
    tokenizer.no_padding()  # the pool pads, and only as far as a run needs
    tokenizer.no_truncation()
    if side is not None:
        with _told(lambda error: InvalidArgument(f"texts cannot be cut to max_length {settings.max_length}: {error}")):
            tokenizer.enable_truncation(settings.max_length, strategy="longest_first", direction=side)
    if settings.lower_case:
        given = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *given])
    return tokenizer


def _is_written(text: Any) -> bool:
    """Whether it is a text or a pair of texts, and not tokens."""
    return isinstance(text, str) or (isinstance(text, tuple) and any(isinstance(part, str) for part in text))


def size_of(text: Any) -> int:
    """Return the characters of a text, or its tokens."""
    if isinstance(text, tuple):
        return sum(len(part) if isinstance(part, str) else 1 for part in text)
    return len(text) if hasattr(text, "__len__") else 1


def _wrong(texts: Sequence[Any], first: int, error: BaseException) -> InvalidArgument:
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
