"""Requests of different lengths in one run: which dimensions have the length, and how they are filled up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core
from ortmulti.errors import InvalidArgument
from ortmulti.values.floats import is_floating

if TYPE_CHECKING:
    from ortmulti.options.session_options import RunOptions
    from ortmulti.pool.configuration import Batching

__all__ = ["Padded", "Padding", "paddable"]


@dataclass(frozen=True)
class Padding:
    """What `Batching` says of padding, for one model.

    Attributes:
        batching: As it was given.
        dimension: What has the length, for messages: ``'sequence'`` in quotes, or ``dimension 1``.
        axes: Of each padded input, those of its dimensions that have the length.
        values: Of each padded input, the element that fills it up: an array of its dtype without dimensions.
    """

    batching: Batching
    dimension: str
    axes: Mapping[str, Sequence[int]]
    values: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, batching: Batching, inputs: Sequence[Any]) -> Padding:
        """Find the dimensions in the model's declaration.

        Raises:
            InvalidArgument: ``batching`` does not fit the model.
        """
        assert batching.pad is not None
        declared = {one.name: one for one in inputs}
        given = batching.pad if isinstance(batching.pad, Mapping) else dict.fromkeys(declared, batching.pad)
        pad = {**given, **({batching.mask: given.get(batching.mask, 0)} if batching.mask else {})}
        for name in pad:
            if name not in declared:
                raise InvalidArgument(f"pad has '{name}', and the model's inputs are {', '.join(declared) or 'none'}")
        length = _the_dimension(batching, {name: declared[name].shape for name in pad})
        axes = {name: _places(one.shape, length, batching.axis) for name, one in declared.items()}
        if given is not batching.pad:
            pad = {name: value for name, value in pad.items() if axes[name] or name == batching.mask}
            if not pad:
                raise InvalidArgument(f"no input has {_said(length)}")
        for name, one in declared.items():
            if name in pad and not axes[name]:
                raise InvalidArgument(
                    f"input '{name}' is to be padded along {_said(length)}, and its shape is {tuple(one.shape)}"
                )
            if name not in pad and axes[name] and isinstance(length, str):
                raise InvalidArgument(
                    f"input '{name}' has {_said(length)}, too: say in pad with which value it is filled up"
                )
            for size in one.shape:
                if isinstance(length, str) and size != length and re.search(rf"\b{re.escape(length)}\b", str(size)):
                    raise InvalidArgument(
                        f"input '{name}' has the dimension '{size}', which changes with {_said(length)}: such inputs "
                        "cannot be padded. Load it without pad"
                    )
        values = {name: _element(name, declared[name], value) for name, value in pad.items()}
        if batching.mask and len(declared[batching.mask].shape) != 1 + len(axes[batching.mask]):
            raise InvalidArgument(
                f"a mask has the batch's dimension and the length alone, and '{batching.mask}' has the shape "
                f"{tuple(declared[batching.mask].shape)}: give it with each request, and in pad"
            )
        found = {name: axes[name] for name in pad}
        return cls(batching, _said(length), found, values)

    def length(self, feed: Mapping[str, NDArray[Any]]) -> int:
        """Return a request's length."""
        found = {feed[name].shape[axis] for name, axes in self.axes.items() for axis in axes if name in feed}
        if len(found) != 1:
            raise InvalidArgument(f"the inputs of a request have one size of {self.dimension}, not {sorted(found)}")
        return int(found.pop())

    def completed(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Add the mask that the pool would make."""
        mask = self.batching.mask
        given = dict(feed)
        if mask is not None and mask not in given:
            length = self.length(given)
            shape = [length] * (1 + len(self.axes[mask]))
            shape[self.batching.axis] = next(iter(given.values())).shape[self.batching.axis]
            given[mask] = np.ones(shape, self.values[mask].dtype)
        return given

    def about(self, feed: Any) -> int:
        """Return the length of what may be no request; then 0."""
        if not isinstance(feed, dict | Mapping):  # the class first, which is looked at faster
            return 0
        try:
            for name, axes in self.axes.items():
                value = feed.get(name, 0)
                shape = getattr(value, "shape", None)
                if not isinstance(shape, tuple):
                    shape = shape() if callable(shape) else np.shape(value)  # of an OrtValue, or of a list
                if (axis := axes[0]) < len(shape):
                    return int(shape[axis])
        except Exception:  # the core refuses it, in its place
            return 0
        return 0

    def resized(self, feed: Mapping[str, NDArray[Any]], length: int) -> dict[str, NDArray[Any]]:
        """Cut a request to its first elements, or fill it up."""
        own = self.length(feed)
        resized = dict(feed)
        for name, axes in self.axes.items():
            for axis in axes:
                resized[name] = resized[name].take(range(min(own, length)), axis)
            widths = [(0, 0)] * resized[name].ndim
            for axis in axes:
                more = max(0, length - own)
                widths[axis] = (more, 0) if self.batching.pad_side == "left" else (0, more)
            resized[name] = np.pad(resized[name], widths, constant_values=self.values[name])
        return resized

    def cut(self, answer: NDArray[Any], axes: Sequence[int], length: int) -> NDArray[Any]:
        """Cut a request's output of a padded run to the request's length."""
        for axis in axes:
            size = answer.shape[axis]
            begin = size - length if self.batching.pad_side == "left" else 0
            answer = answer.take(range(begin, begin + length), axis)
        return answer

    def for_core(self, outputs: Mapping[str, Sequence[int]]) -> _core.Padding:
        """Convert it, with the dimensions of the outputs that have the length."""
        batching, core = self.batching, _core.Padding()
        core.axis, core.dimension, core.at_front = batching.axis, self.dimension, batching.pad_side == "left"
        core.inputs = [
            _core.PaddedTensor(name, list(axes), self.values[name].tobytes()) for name, axes in self.axes.items()
        ]
        core.outputs = [_core.PaddedTensor(name, list(axes), b"") for name, axes in outputs.items() if axes]
        if isinstance(batching.lengths, int):
            core.multiple = batching.lengths
        else:
            core.lengths = list(batching.lengths)
        core.max_tokens, core.max_waste, core.packed = batching.max_tokens, batching.max_waste, batching.packed
        if batching.mask:
            one = np.ones_like(self.values[batching.mask])
            type_ = _core.element_type_of(one.dtype)
            core.make_mask(type_, _core.PaddedTensor(batching.mask, [], one.tobytes()))
        return core


@dataclass(frozen=True)
class Padded:
    """What is padded, and what is cut.

    Attributes:
        padding: Of the inputs.
        axes: Of each output, those of its dimensions that have the length.
        feed: Random inputs of one row that the model takes.
        run_options: With which requests run alone, and at once; None: they are filled up with rows.
    """

    padding: Padding
    axes: Mapping[str, Sequence[int]]
    feed: Mapping[str, NDArray[Any]]
    run_options: RunOptions | None


def paddable(shapes: Mapping[str, Sequence[object]], axis: int = 0) -> dict[str, list[str]]:
    """Return the names of open dimensions, besides the batch's, and the inputs that have each of them."""
    found: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        for place, size in enumerate(shape):
            if isinstance(size, str) and place != axis and name not in found.setdefault(size, []):
                found[size].append(name)
    return found


def _the_dimension(batching: Batching, shapes: Mapping[str, Sequence[object]]) -> str | int:
    if batching.along is not None:
        return batching.along
    names = list(paddable(shapes, batching.axis))
    if len(names) == 1:
        return names[0]
    if names:
        raise InvalidArgument(
            f"the inputs in pad have several open dimensions, {', '.join(map(repr, names))}: say which one has the "
            f"length, such as along={names[0]!r}, or its place, such as along=1"
        )
    places = {i for shape in shapes.values() for i, size in enumerate(shape) if size is None and i != batching.axis}
    if len(places) != 1:
        raise InvalidArgument(
            "no dimension of the inputs in pad has a name: say which one has the length by its place, such as along=1"
        )
    return places.pop()


def _places(shape: Sequence[object], length: str | int, axis: int) -> list[int]:
    if isinstance(length, int):
        return [length] if length < len(shape) and not isinstance(shape[length], int) else []
    return [place for place, size in enumerate(shape) if size == length and place != axis]


def _said(length: str | int) -> str:
    return f"the dimension '{length}'" if isinstance(length, str) else f"dimension {length}"


def _element(name: str, declared: Any, value: float) -> NDArray[Any]:
    dtype = declared.dtype
    if dtype is None or dtype.hasobject:
        raise InvalidArgument(f"input '{name}' is a {declared.type}: only tensors of numbers can be padded")
    element = np.asarray(value).astype(dtype)
    if dtype.kind != "b" and not is_floating(dtype) and element != value:
        raise InvalidArgument(f"pad['{name}'] is {value}, and {dtype} cannot hold it")
    return element
