"""Random inputs for any model, from its declaration."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortmulti import _core
from ortmulti.errors import Fail, InvalidArgument, NotImplemented, OutOfMemory, RuntimeException
from ortmulti.values import floats

SEQUENCE = 16
LARGER = (64, 512)
"""Sizes for models that refuse `SEQUENCE`: images that are halved several times, windows of audio."""
MISFITS = (InvalidArgument, Fail, RuntimeException, NotImplemented)
"""What ONNX Runtime raises for inputs of a shape or value that the model does not take."""
TOKENS = 100
"""Token ids stay below this by default."""
FEWER_TOKENS = (30, 4, 2)
"""For models that refuse `TOKENS`: vocabularies of amino acids or letters, of nucleotides, of two classes."""

_IMAGE_SIDE = 224
_MOST_ELEMENTS = 1 << 22
"""Of an input with a larger size: four open dimensions of 512 would be 64 GiB."""
_INTEGERS = {
    name: np.dtype(kind.dtype)
    for name, kind in _core.element_types.items()
    if kind.dtype and not kind.is_of_ml_dtypes and np.dtype(kind.dtype).kind in "iu"
}

_Inputs = TypeVar("_Inputs")
_Result = TypeVar("_Result")


class Declaration(Protocol):
    """An input in a session's description, ortmulti's or onnxruntime's."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Any: ...


def sample_inputs(
    declarations: Iterable[Declaration],
    batch: int = 1,
    sequence: int = SEQUENCE,
    seed: int = 0,
    *,
    dimensions: Mapping[str, int] | None = None,
    tokens: int = TOKENS,
) -> dict[str, NDArray[Any]]:
    """Make an array for each input that a model declares.

    The first rule that fits gives the size of a dynamic dimension. `dimensions` has its name: that size. The name says
    batch, or it is the first dimension: `batch`. The name says past: 0 (an empty cache). The name says height or width:
    224. Otherwise: `sequence`.

    Floats are normally distributed. Integers are below `tokens`, except that masks are 1, positions count up, type and
    segment ids are 0, and sampling rates are 16,000. uint8 has its whole range (images). Booleans are random, masks
    true. Strings are words.

    Args:
        declarations: A session's `get_inputs()`.
        batch: Size of the dynamic batch dimension.
        sequence: Size of the other dynamic dimensions.
        seed: Seed of the values. An input's values depend only on it, on the input's name and on its shape.
        dimensions: Sizes of dynamic dimensions by their names in the model.
        tokens: Upper bound of integers.

    Returns:
        C-contiguous arrays of the declared types, by the inputs' names.

    Raises:
        ortmulti.errors.InvalidArgument: An input is not a tensor, NumPy lacks its type, `dimensions` has an unknown
            name, or a size is negative.
    """
    declarations = list(declarations)
    given = dict(dimensions or {})
    known = {size for declaration in declarations for size in declaration.shape or () if isinstance(size, str)}
    if unknown := sorted(given.keys() - known):
        names = ", ".join(sorted(known)) or "none"
        raise InvalidArgument(
            f"the model has no dynamic dimension called {', '.join(unknown)}; its dimensions: {names}"
        )
    sizes = {"batch": batch, "sequence": sequence, **given}
    for key, size in sizes.items():
        if size < 0:
            raise InvalidArgument(f"the size of {key} must be at least 0, not {size}")
    if tokens < 1:
        raise InvalidArgument(f"tokens must be at least 1, not {tokens}")
    result = {}
    for declaration, shape in zip(declarations, _shapes(declarations, batch, sequence, given), strict=True):
        generator = np.random.Generator(np.random.SFC64([seed, zlib.crc32(declaration.name.encode())]))
        result[declaration.name] = _values(declaration, shape, generator, tokens)
    return result


def example_feed(model: Any, batch: int = 1, *, dimensions: Mapping[str, int] | None = None) -> dict[str, NDArray[Any]]:
    """Make random inputs that a model takes, each tried with one run: for a first look, and for tests.

    Open dimensions of 16 are tried first, then of 64 and of 512; images are 224 wide and high. Integers are below 100,
    or below 30, 4 or 2 if the model takes no larger ones. Masks are 1, positions count up, sampling rates are
    16,000, and caches of the past are empty.

    Args:
        model: A `Pool`, a repository's model, or a session, ortmulti's or onnxruntime's.
        batch: Size of the batch dimension, where it is open.
        dimensions: Sizes of open dimensions by their names in the model.

    Returns:
        An array for each input, by its name, of the declared dtype; the same ones each time.

    Raises:
        InvalidArgument: An input's type is not supported, or ``dimensions`` names none of the model.
        Error: As the run with the first inputs, if the model takes none.
    """

    def run(feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        model.run(None, feed)
        return feed

    return first_fit(growing_inputs(model.get_inputs(), batch, dimensions=dimensions), run)


def growing_inputs(
    declarations: Iterable[Declaration], batch: int = 1, *, dimensions: Mapping[str, int] | None = None
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield `sample_inputs` with the default size of dynamic dimensions, then with larger ones.

    Some models accept their dynamic dimensions only from some size on. In the state of a recurrent model, [layers,
    batch, width], the open dimension is the batch: all sizes follow once more with that. Where integers are random, all
    follow with smaller ones. `first_fit` finds the inputs that a model takes.
    """
    declared, given = list(declarations), dict(dimensions or {})
    states = [_with_batch(one, batch) for one in declared]
    has_tokens = any(one.type in _INTEGERS and not has_named_integers(one.name) for one in declared)
    for tokens in (TOKENS, *(FEWER_TOKENS if has_tokens else ())):
        yield from _growing(declared, batch, given, tokens)
        if states != declared:
            yield from _growing(states, batch, given, tokens)


def has_named_integers(name: str) -> bool:
    """Return whether an input's name says which integers it has: a mask, positions or types."""
    return _named_values(name.lower(), ()) is not None


def _growing(
    declared: list[Declaration], batch: int, given: dict[str, int], tokens: int
) -> Iterator[dict[str, NDArray[Any]]]:
    yield sample_inputs(declared, batch, dimensions=given, tokens=tokens)
    before = _shapes(declared, batch, SEQUENCE, given)
    for size in LARGER:
        shapes = _shapes(declared, batch, size, given)
        if shapes == before or max(map(prod, shapes)) > _MOST_ELEMENTS:
            return
        yield sample_inputs(declared, batch, size, dimensions=given, tokens=tokens)


def _with_batch(declared: Declaration, batch: int) -> Declaration:
    """Return an input that may be a state, with the batch where its declaration has an open dimension."""
    shape = list(declared.shape or ())
    if [isinstance(size, int) for size in shape] == [True, False, True]:
        return SimpleNamespace(name=declared.name, type=declared.type, shape=[shape[0], batch, shape[2]])
    return declared


def first_fit(tries: Iterable[_Inputs], run: Callable[[_Inputs], _Result]) -> _Result:
    """Call `run` with one input after another, and return the result of the first that the model takes.

    Raises:
        Error: As `run` for the first inputs, if it takes none.
    """
    first: Exception | None = None
    for inputs in tries:
        try:
            return run(inputs)
        except MISFITS as error:
            first = first or error
        except OutOfMemory:
            if first is None:
                raise
    assert first is not None
    try:
        raise first
    finally:
        del first  # its traceback has this frame


def _shapes(
    declarations: Iterable[Declaration], batch: int, sequence: int, given: Mapping[str, int]
) -> list[tuple[int, ...]]:
    return [
        tuple(_size(size, axis, given, batch, sequence) for axis, size in enumerate(declaration.shape or ()))
        for declaration in declarations
    ]


def _size(size: int | str | None, axis: int, given: Mapping[str, int], batch: int, sequence: int) -> int:
    if isinstance(size, int) and size >= 0:
        return size
    name = size.lower() if isinstance(size, str) else ""
    if isinstance(size, str) and size in given:
        return given[size]
    if "batch" in name:
        return batch
    if "past" in name and "total" not in name and "+" not in name:
        return 0
    if "height" in name or "width" in name:
        return _IMAGE_SIDE
    if axis == 0 and "seq" not in name:
        return batch
    return sequence


def _values(
    declaration: Declaration, shape: tuple[int, ...], generator: np.random.Generator, tokens: int
) -> NDArray[Any]:
    name = declaration.name.lower()
    mask = "mask" in name
    if (dtype := floats.dtype_of(declaration.type)) is not None:
        return np.ones(shape, dtype) if mask else generator.standard_normal(shape, dtype=np.float32).astype(dtype)
    if declaration.type in _INTEGERS:
        return _integers(name, _INTEGERS[declaration.type], shape, generator, tokens)
    if declaration.type == "tensor(bool)":
        return np.ones(shape, np.bool_) if mask else generator.integers(2, size=shape).astype(np.bool_)
    if declaration.type == "tensor(string)":
        words = np.array(["alpha", "beta", "gamma", "delta"], dtype=object)
        return np.asarray(words[generator.integers(len(words), size=shape)], dtype=object).reshape(shape)
    message = f"no sample values for input {declaration.name!r} of type {declaration.type}; pass your own"
    raise InvalidArgument(message)


def _integers(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], generator: np.random.Generator, tokens: int
) -> NDArray[Any]:
    if (values := _named_values(name, shape)) is not None:
        return values.astype(dtype)
    bound = 256 if dtype == np.uint8 else min(tokens, int(np.iinfo(dtype).max) + 1)
    return np.asarray(generator.integers(bound, size=shape)).astype(dtype)


def _named_values(name: str, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the integers that an input's name stands for, if it does."""
    if "mask" in name:
        return np.ones(shape, np.int64)
    if "position" in name:
        return np.asarray(np.arange(shape[-1]) + np.zeros(shape, np.int64) if shape else 0)
    if "token_type" in name or "segment" in name:
        return np.zeros(shape, np.int64)
    if name in ("sr", "sample_rate", "sampling_rate"):
        return np.full(shape, 16_000)
    return None
