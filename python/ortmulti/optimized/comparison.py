"""Comparison of an entry with its model: the same inputs and outputs, and the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortmulti import _core
from ortmulti._runtime.closing import Closing
from ortmulti.cache.entry import Entry
from ortmulti.create import core_sessions
from ortmulti.create.model import Model
from ortmulti.create.sample_inputs import first_fit, growing_inputs
from ortmulti.devices.providers import Provider
from ortmulti.errors import Error, NotOptimizable
from ortmulti.optimized.build import entry_options, not_loadable, signature
from ortmulti.options.session_options import SessionOptions


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        equal: True for the same bits; None if the model's outputs cannot be compared.
        reason: Why they cannot.
    """

    equal: bool | None
    reason: str = ""


def compare(
    entry: Entry,
    model: Model,
    providers: Sequence[Provider],
    options: SessionOptions | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Run an ordinary session of the model and one over the entry with the same inputs.

    Args:
        entry: Made of the model.
        model: As `build` takes it.
        providers: As for `build`.
        options: As for `build`.
        inputs: An array for each input; default: sample inputs.

    Raises:
        NotOptimizable: Inputs, outputs or their values differ, or the entry cannot be loaded.
        Error: The model itself cannot be loaded.
    """
    given = _core.SessionOptions() if options is None else options._core.copy()
    given.optimized_model_filepath = ""
    given.enable_profiling = False
    with ComparedSession(model.graph, providers, model.with_weights(given)) as ordinary:
        with over_entry(entry, providers, given) as optimized:
            if ordinary.names != optimized.names:
                raise NotOptimizable(_why_other_names(optimized.names, ordinary.names))
            try:
                tries = growing_inputs(ordinary.core.inputs()) if inputs is None else [inputs]
                feeds, expected = first_fit(tries, lambda feeds: (feeds, ordinary.core.run(None, feeds)))
            except Error as error:
                if inputs is not None:
                    raise
                return Comparison(None, f"it does not run with sample inputs: {error}")
            found = optimized.core.run(None, feeds)
        if same_bits(found, expected):
            return Comparison(True)
    with ComparedSession(model.graph, providers, model.with_weights(given)) as again:
        if not same_bits(again.core.run(None, feeds), expected):
            return Comparison(None, "two ordinary sessions of the model differ, too")
    names = ", ".join(name for name, a, b in zip(ordinary.outputs, found, expected, strict=True) if not _same(a, b))
    raise NotOptimizable(
        f"the optimized model computes other values of {names} than the model. If the model draws random numbers, "
        "optimize it with compare=False"
    )


def _why_other_names(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Say how the optimized model's inputs and outputs differ from the model's, by one of them."""
    for what, has, wants in zip(("input", "output"), found, expected, strict=True):
        for verb, ones, others in (("has", has, wants), ("lacks", wants, has)):
            if different := [one for one in ones if one not in others]:
                [name, kind], *more = different
                also = f" and {len(more)} more" if more else ""
                return (
                    f"the optimized model {verb} the {what} {name!r} of type {kind}{also}, unlike the model, which is "
                    "loaded as it is"
                )
    return "the optimized model has the model's inputs or outputs in another order; the model is loaded as it is"


def check_loadable(entry: Entry, providers: Sequence[Provider], options: SessionOptions | None = None) -> None:
    """Create a session over an entry, without reading the shared weights.

    Raises:
        NotOptimizable: It cannot be created: ONNX Runtime does not load all models that it saves.
    """
    given = _core.SessionOptions() if options is None else options._core.copy()
    given.enable_profiling = False
    over_entry(entry, providers, given, fill=False).close()


def over_entry(
    entry: Entry, providers: Sequence[Provider], options: _core.SessionOptions, *, fill: bool = True
) -> ComparedSession:
    """Create a session over an entry. Without ``fill`` the shared weights are not read, and it cannot run.

    Raises:
        NotOptimizable: It cannot be created: ONNX Runtime does not load all models that it saves.
    """
    weights = _core.SharedWeights(entry.weights, fill=fill)
    return ComparedSession(entry.model_path, providers, entry_options(options), weights)


def same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether outputs have the same types, shapes and bytes."""
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return bool(one == other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()


class ComparedSession(Closing):
    """A session that is closed at the end."""

    def __init__(
        self,
        graph: Any,
        providers: Sequence[Provider],
        options: _core.SessionOptions,
        weights: _core.SharedWeights | None = None,
    ) -> None:
        try:
            [self.core], _ = core_sessions.create(graph, [providers], options, weights=weights)
        except Error as error:
            if weights is None:
                raise
            raise not_loadable(error) from error
        inputs, self._outputs = signature(self.core)
        # Shapes may be known better after optimization.
        self.names = [[value[:2] for value in inputs], [value[:2] for value in self._outputs]]

    @property
    def outputs(self) -> list[str]:
        return [str(name) for name, *_ in self._outputs]

    def close(self) -> None:
        self.core.close()
