"""Which outputs of a model have a row for each row of its inputs: known from its graph, or tried."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ortmulti import _core
from ortmulti.errors import InvalidArgument
from ortmulti.pool.row_axes import FOUND, NONE, Walk, has_rows
from ortmulti.pool.row_dependence import Graph, read_graph, walk

if TYPE_CHECKING:
    from ortmulti.create.model import Model
    from ortmulti.pool.answers import OutputCheck
    from ortmulti.pool.configuration import Batching
    from ortmulti.pool.row_trial import Run, Trial

__all__ = ["OutputRows", "RowVerdict", "Rows", "check_inputs", "warn"]

LOGGER = logging.getLogger("ortmulti")

_MOST_TOLD = 3


@dataclass(frozen=True)
class OutputRows:
    """What is known of the rows of one output.

    Attributes:
        verdict: ``"rows"``: it has a row for each row of the inputs, which depends on that row alone. ``"none"``: it
            has no rows there, or they depend on each other. ``"unknown"``: nobody knows.
        reason: Why, for ``"none"`` and ``"unknown"``; it follows the output's name.
        depends: Whether the reason is that its rows depend on each other.
    """

    verdict: Literal["rows", "none", "unknown"]
    reason: str = ""
    depends: bool = False


_ROWS = OutputRows("rows")


@dataclass(frozen=True)
class RowVerdict:
    """What is known of the rows of a model's outputs.

    Attributes:
        outputs: Of each output, by name.
        random: The operators that make random numbers.
        of_random: The outputs that these reach.
        checks: By how much the rows of outputs differed that were tried, by name.
    """

    outputs: Mapping[str, OutputRows]
    random: Sequence[str] = ()
    of_random: Collection[str] = ()
    checks: Mapping[str, OutputCheck] = field(default_factory=dict)

    def reasons(self, verdict: Literal["none", "unknown"] = "none") -> dict[str, str]:
        """Return why outputs have this verdict, by name: sentences."""
        return {name: f"output '{name}' {one.reason}" for name, one in self.outputs.items() if one.verdict == verdict}

    def dependent(self) -> list[str]:
        """Return of each output whose rows depend on each other why: sentences."""
        return [text for name, text in self.reasons().items() if self.outputs[name].depends]

    def __str__(self) -> str:
        """Return all of it as one text."""
        rows = [f"'{name}'" for name, one in self.outputs.items() if one.verdict == "rows"]
        texts = [*self.reasons().values(), *self.reasons("unknown").values()]
        if rows:
            texts.insert(
                0, f"{', '.join(rows)} {'has its' if len(rows) == 1 else 'have their'} own row for each request"
            )
        return "; ".join(texts) or "the model has no outputs"


class Rows:
    """Finds out which outputs of one model have rows.

    Args:
        model: The model.
        session: Called for its inputs and outputs, where they are needed: anything with `get_inputs` and `get_outputs`.
        run: Runs it.
        known: Whether a session is there, so that nothing waits for it.
    """

    def __init__(self, model: Model | None, session: Callable[[], Any], run: Run, known: bool = True) -> None:
        self._graph = None if model is None else read_graph(model)
        self._session, self._run, self._known = session, run, known

    def of_batches(self, batching: Batching, tries: Literal["none", "open", "all"] = "open") -> RowVerdict:
        """Judge all outputs, for requests that are joined as this says.

        Args:
            batching: How they are joined.
            tries: Which outputs are tried that may have rows: those of which the graph shows nothing, or all of them.
        """
        axis, names = batching.axis, self._names()
        fixed = self._fixed(batching)
        known = walk(self._graph, axis) if self._graph else None
        found = {name: _of_graph(known, name, axis, True) for name in names}
        if fixed:  # a constant of this size may be another number for each row
            found = {name: None if one is _ROWS else one for name, one in found.items()}
        if self._known or None in found.values():
            self._declared(found, axis)
        trial = [
            name for name, one in found.items() if one is None or (tries == "all" and (one is _ROWS or one.depends))
        ]
        random = self._graph.random() if self._graph else []
        of_random = self._graph.random_outputs() if self._graph else set()
        if tries == "none" or not trial:
            return RowVerdict(self._complete(found, axis, "unknown", "the graph does not show it"), random, of_random)
        tried = self._try(found, trial, axis, batching.max_size, fixed, bool(random))
        complete = self._complete(found, axis, "none", _untried(tried))
        for name in of_random:  # which nobody could compare later
            if complete[name].verdict == "unknown":
                complete[name] = OutputRows("none", f"{complete[name].reason}, and it has random numbers")
        return RowVerdict(complete, random, of_random, tried.checks)

    def of_table(self, names: Iterable[str]) -> RowVerdict:
        """Judge these outputs, for the rows of tables along dimension 0. Their rows may depend on each other: then the
        log warns.
        """
        known = walk(self._graph, 0) if self._graph else None
        found = {name: _of_graph(known, name, 0, False) for name in names}
        for name, one in found.items():
            if one is not None and one.verdict == "rows" and one.depends:
                LOGGER.warning(
                    "output '%s' %s. So answers of map_rows change with the rows of each run, which follow its time: "
                    "give rows=, or use map",
                    name,
                    one.reason,
                )
        left = [name for name, one in found.items() if one is None]
        if not left:
            return RowVerdict({name: one for name, one in found.items() if one is not None})
        sizes = {one.shape[0] if one.shape else None for one in self._session().get_inputs()}
        [size] = sizes if len(sizes) == 1 else [None]
        tried = self._try(found, left, 0, None, size if isinstance(size, int) else 0)
        open_ = OutputRows("unknown", f"may have rows or not: {_untried(tried)}")  # the caller looks at each answer
        return RowVerdict({name: one or open_ for name, one in found.items()})

    def _names(self) -> list[str]:
        if self._graph and not self._known:
            return list(self._graph.nodes.outputs)
        return [one.name for one in self._session().get_outputs()]

    def _fixed(self, batching: Batching) -> int:
        """The only number of rows that the model takes; 0: it takes any."""
        if len(batching.sizes) != 1:
            return 0
        sizes = {
            one.shape[batching.axis] for one in self._session().get_inputs() if batching.axis < len(one.shape or ())
        }
        return batching.max_size if sizes == {batching.max_size} else 0

    def _declared(self, found: dict[str, OutputRows | None], axis: int) -> None:
        """Note outputs of a type, or of so few dimensions, that none has rows."""
        for one in self._session().get_outputs():
            if one.name in found and (problem := _of_type(one.type)):
                found[one.name] = OutputRows("none", problem)
            elif found.get(one.name, _ROWS) is None and one.shape and len(one.shape) <= axis:
                found[one.name] = _too_few(len(one.shape), axis)

    def _try(
        self,
        found: dict[str, OutputRows | None],
        names: Sequence[str],
        axis: int,
        most: int | None,
        fixed: int,
        random: bool = False,
    ) -> Trial:
        """Try outputs, and note what was found. ``most`` rows are run; None: a few, whose values are not compared."""
        from ortmulti.pool.row_trial import try_rows  # which needs NumPy's random numbers

        types = {one.name: one.type for one in self._session().get_outputs() if one.name in names}
        tried = try_rows(self._run, self._session().get_inputs(), types, axis, most, fixed=fixed)
        for name in () if tried.failed else names:
            check = tried.checks.get(name)
            is_known = getattr(found[name], "verdict", "") == "none"
            differs = "" if check is None or (random and check.repeats) else check.problem
            if problem := tried.problems.get(name) or differs:
                found[name] = found[name] if is_known else OutputRows("none", problem, problem == differs)
            elif name not in tried.unseen and not is_known:
                found[name] = _ROWS
        return tried

    def _complete(
        self, found: Mapping[str, OutputRows | None], axis: int, suspected: Literal["none", "unknown"], why: str
    ) -> dict[str, OutputRows]:
        """Judge outputs of which nothing was found: ``suspected`` is the verdict on those with a suspicious shape."""
        suspicious = _suspicious(self._session(), axis) if None in found.values() else {}
        complete = {}
        for name, one in found.items():
            open_ = OutputRows("unknown", f"may have rows or not: {why}")
            if name in suspicious:
                open_ = OutputRows(suspected, f"{suspicious[name]}, and {why}")
            complete[name] = one or open_
        return complete


def _untried(tried: Trial) -> str:
    return f"no random inputs run: {tried.failed}" if tried.failed else "random inputs did not show it"


def _of_graph(known: Walk | None, name: str, axis: int, own: bool) -> OutputRows | None:
    """What the graph shows of an output; None: nothing.

    Args:
        known: None: the graph cannot be read.
        name: The output's.
        axis: The rows'.
        own: Whether each row must be independent of the others.
    """
    if known is None:
        return None
    at, mixing, rank = known.axis(name), known.mixing(name), known.rank(name)
    why = ", ".join(mixing[:_MOST_TOLD])
    why += f", and {len(mixing) - _MOST_TOLD} nodes more" if len(mixing) > _MOST_TOLD else ""
    if at == NONE:
        return OutputRows("none", f"has no rows: {why or 'it does not depend on the rows of the inputs'}")
    if at == FOUND and axis == 0:
        return OutputRows("none", f"has as many entries as {known.finder(name)} finds, not one for each row")
    if rank is not None and rank <= axis:
        return _too_few(rank, axis)
    if has_rows(at) and at != axis:
        return OutputRows("none", f"has the rows along dimension {at}, not {axis}")
    if why and (own or at == axis):
        return OutputRows("none" if own else "rows", f"depends on the other rows: {why}", depends=True)
    return _ROWS if at == axis else None


def _too_few(rank: int, axis: int) -> OutputRows:
    many = "no dimension" if rank == 0 else "one dimension" if rank == 1 else f"{rank} dimensions"
    return OutputRows("none", f"has {many}, and so no rows along dimension {axis}")


def _of_type(kind: str) -> str:
    """Why values of a type cannot be joined or split; empty: they can."""
    element = _core.element_types.get(kind)
    if element is None or element.bits == 0:
        return f"is of type {kind}, and only tensors of numbers are joined and split"
    return f"is of type {kind}, whose elements are smaller than a byte" if element.bits < 8 else ""


def _suspicious(session: Any, axis: int) -> dict[str, str]:
    """What the declaration of outputs says against rows. Exporters also declare what is wrong."""
    rows = {one.shape[axis] for one in session.get_inputs() if axis < len(one.shape or ())}
    names = {size for size in rows if isinstance(size, str)}
    found = {}
    for one in session.get_outputs():
        shape = list(one.shape or ())
        if axis < len(shape) and isinstance(shape[axis], int):
            found[one.name] = f"has the fixed size {shape[axis]} along dimension {axis}"
        elif elsewhere := [place for place, size in enumerate(shape) if size in names and place != axis]:
            found[one.name] = f"has the rows' dimension '{shape[elsewhere[0]]}' at place {elsewhere[0]}"
    return found


def check_inputs(
    core: _core.Pool, batching: Batching, model: Model, inputs: Sequence[Any], initializers: Sequence[Any] = ()
) -> None:
    """Refuse a model of which no two requests can ever be joined. Requests with these initializers are not.

    Raises:
        InvalidArgument: It has such an input.
    """
    graph: Graph | None = None
    for one in inputs:
        problem = _of_type(one.type)
        if not problem and not one.shape:  # without dimensions, or of unknown shape
            graph = graph or read_graph(model)
            problem = "is a scalar, without rows" if graph and one.name in graph.scalars() else ""
        if problem:
            raise InvalidArgument(
                f"batching joins requests along dimension {batching.axis}, but input '{one.name}' {problem}: export "
                "the model without this input or with rows in it, or load it without batching "
                "(batching=None, or batching = false in a TOML file)"
            )
    core.check_inputs([(one.name, one.shape) for one in inputs])
    if initializers:
        core.set_apart_inputs({one.name: f"input '{one.name}' is an initializer, without rows" for one in initializers})


def warn(model: object, verdict: RowVerdict) -> None:
    """Log a warning if outputs have no rows, or may have none."""
    if unknown := verdict.reasons("unknown"):
        LOGGER.warning(
            "%s: %s. The first joint runs are compared with single ones. Give ortmulti.check_batching your samples",
            model,
            "; ".join(unknown.values()),
        )
    if reasons := verdict.reasons():
        LOGGER.warning(
            "%s: requests for %s run alone, not joined: %s. Ask for other outputs, load it without batching, or give "
            "Batching(trust=True) if you know that each row is answered by itself",
            model,
            ", ".join(f"'{name}'" for name in reasons),
            "; ".join(reasons.values()),
        )
