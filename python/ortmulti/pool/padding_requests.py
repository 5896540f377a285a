"""Requests of all kinds of values, by which the padding of a model is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortmulti.create.sample_inputs import has_named_integers
from ortmulti.errors import InvalidArgument
from ortmulti.pool.padding import Padded, Padding
from ortmulti.values import floats

__all__ = [
    "ORDINARY",
    "ROWS",
    "Feed",
    "Values",
    "counting",
    "is_mask",
    "lengths_to_try",
    "make_request",
    "random_requests",
    "resized",
]

_LARGE = 30.0
"""Products of two such numbers stay above -10,000, with which many models mask attention."""

Feed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Values:
    """The values of one request.

    Attributes:
        said: For messages.
        sign: 1 or -1: of this sign alone; 0: of both.
        scale: Standard deviation of floats. 0.0: all but the first element along the length are 0, since a request of
            nothing but the value that pads may count as none.
        beside_pad: Whether they begin at the value that pads, so that it is the smallest or the largest one.
        ids: Which token ids: ``"any"``, ``"small"`` or ``"large"`` ones.
        masked: Whether the request's own mask leaves some elements out.
    """

    said: str
    sign: int = 0
    scale: float = 1.0
    beside_pad: bool = False
    ids: str = "any"
    masked: bool = False

    @property
    def ties(self) -> bool:
        """Whether elements are equal, so that rounding decides which one is the largest."""
        return not self.scale

    def of(self, x: NDArray[np.float64], pad: float) -> NDArray[np.float64]:
        """Convert normally distributed numbers."""
        made = self.scale * (self.sign * np.abs(x) if self.sign else x)
        return pad + max(1.0, abs(pad)) * made if self.beside_pad else made


ORDINARY = Values("random values")
_OUTLIER = Values("an outlier", scale=100.0)
ROWS = (
    ORDINARY,
    Values("values below the one that pads", -1, beside_pad=True, ids="large"),
    Values("values above the one that pads", 1, beside_pad=True, ids="small"),
    Values("large negative values", -1, _LARGE),
    Values("large positive values", 1, _LARGE, ids="large", masked=True),
    Values("zeros", scale=0.0, ids="small", masked=True),
    Values("a mask of its own", masked=True),
    Values("large values", scale=_LARGE),
)


def random_requests(padded: Padded) -> list[Feed]:
    """Make three requests of different lengths for `check_pool`. The third one's floats are 100 times as large."""
    lengths = lengths_to_try(padded.padding.length(padded.feed))
    values = (ORDINARY, ORDINARY, _OUTLIER)
    return [
        make_request(padded, one, length, seed) for seed, (one, length) in enumerate(zip(values, lengths, strict=True))
    ]


def lengths_to_try(longest: int) -> list[int]:
    if longest < 4:
        raise InvalidArgument(f"random inputs have the length {longest}: too short to try padding")
    return [longest * 3 // 4, longest, longest // 2]


def _counts(feed: Mapping[str, NDArray[Any]], padding: Padding) -> list[str]:
    """Return the inputs with one integer for each request, which may be its length."""
    return [
        name
        for name, array in feed.items()
        if name not in padding.axes and array.dtype.kind in "iu" and 0 < array.ndim <= 2
        if array.size == array.shape[min(padding.batching.axis, array.ndim - 1)]
    ]


def counting(feeds: Iterator[Feed], padding: Padding) -> Iterator[Feed]:
    """Yield each request with its length where it may have one, and then as it is."""
    for feed in feeds:
        if counts := _counts(feed, padding):
            yield feed | {name: np.full_like(feed[name], padding.length(feed)) for name in counts}
        yield feed


def resized(padding: Padding, feed: Mapping[str, NDArray[Any]], length: int) -> Feed:
    """Cut a request, and change the length that it says."""
    own = padding.length(feed)
    said = {name: np.full_like(feed[name], length) for name in _counts(feed, padding) if (feed[name] == own).all()}
    return padding.resized(feed, length) | said


def is_mask(padding: Padding, name: str) -> bool:
    return name == padding.batching.mask or "mask" in name.lower()


def make_request(padded: Padded, values: Values, length: int, seed: int) -> Feed:
    """Make a request of one row."""
    padding, random = padded.padding, np.random.default_rng([seed, length])
    feed = resized(padding, padded.feed, length)
    kept = np.ones(length, np.bool_)
    if values.masked and length > 2:  # the first and the last are real: models may read those
        kept[1:-1] = random.integers(2, size=length - 2)
        kept[random.integers(1, length - 1)] = False
    for name, axes in padding.axes.items():
        array, pad = feed[name], padding.values[name]
        if is_mask(padding, name):
            real = 1 if name == padding.batching.mask or not pad else 0
            made = np.full(array.shape, real, array.dtype)
            if array.ndim == 2 and len(axes) == 1:
                np.moveaxis(made, axes[0], -1)[..., ~kept] = pad
        elif floats.is_floating(array.dtype):
            x = random.standard_normal(array.shape)
            with np.errstate(over="ignore", invalid="ignore"):
                made = values.of(x, float(pad)).astype(array.dtype)
            made = np.where(np.isfinite(floats.as_float64(made)), made, x.astype(array.dtype))  # where the type ends
            if values.ties:
                first = (slice(None),) * axes[0] + (0,)
                made[first] = x[first].astype(array.dtype)
        elif array.dtype.kind == "b":
            made = random.integers(2, size=array.shape).astype(array.dtype)
        elif has_named_integers(name) or array.dtype.kind not in "iu":
            continue
        else:
            made = _integers(values, random, array, int(pad), int(padded.feed[name].max()) + 1)
        feed[name] = made
    return feed


def _integers(values: Values, random: np.random.Generator, array: NDArray[Any], pad: int, bound: int) -> NDArray[Any]:
    """Make numbers of small types, and token ids of others: different ones below ``bound``, without the one that pads.

    The model took those below it. Operators that take ids as places take so many negative ones, too.
    """
    if array.dtype in (np.int8, np.int16):
        x = random.standard_normal(array.shape) * (bound / 3)
        return np.clip(np.rint(values.of(x, pad)), -bound, bound - 1).astype(array.dtype)
    allowed = np.setdiff1d(np.arange(bound), [pad])
    if not allowed.size:
        return array
    ids = random.permutation(array.size if values.ids != "any" else max(array.size, allowed.size))[: array.size]
    ids %= allowed.size
    made = allowed[::-1][ids] if values.ids == "large" else allowed[ids]
    return np.asarray(made).reshape(array.shape).astype(array.dtype)
