"""Comparison of two models' inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortmulti.errors import InvalidArgument

__all__ = ["check_same", "differences"]


def check_same(name: str, model: Any, present_name: str, present: Any) -> None:
    """Compare a model with the one whose place it is to take.

    Raises:
        InvalidArgument: It has `differences`.
    """
    if found := differences(present, model):
        raise InvalidArgument(
            f"{name} has another interface than {present_name}: {'; '.join(found)}; pass same_interface=False to "
            "accept it"
        )


def differences(before: Any, after: Any) -> list[str]:
    """Compare the inputs and outputs of two sessions.

    Returns:
        The differences that callers of the first would notice. These are names, types, ranks, the order of the outputs,
        dimensions that both fix, and inputs' open dimensions that the second fixes.
    """
    return [
        *_differences("input", before.get_inputs(), after.get_inputs(), open_stays_open=True),
        *_differences("output", before.get_outputs(), after.get_outputs(), open_stays_open=False),
        *_order(before.get_outputs(), after.get_outputs()),
    ]


def _differences(what: str, before: Sequence[Any], after: Sequence[Any], *, open_stays_open: bool) -> list[str]:
    old = {each.name: each for each in before}
    new = {each.name: each for each in after}
    found = [f"{what} {name!r} is missing" for name in old if name not in new]
    found += [f"{what} {name!r} is new" for name in new if name not in old]
    for name in [name for name in old if name in new]:
        if old[name].type != new[name].type:
            found.append(f"{what} {name!r} is {new[name].type}, not {old[name].type}")
        elif not _fits(old[name].shape, new[name].shape, open_stays_open):
            found.append(f"{what} {name!r} has shape {new[name].shape}, not {old[name].shape}")
    return found


def _fits(before: Sequence[object], after: Sequence[object], open_stays_open: bool) -> bool:
    def same(old: object, new: object) -> bool:
        if isinstance(old, int) and isinstance(new, int):
            return old == new
        return not (open_stays_open and isinstance(new, int))

    return len(before) == len(after) and all(map(same, before, after))


def _order(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    old, new = ([each.name for each in declared] for declared in (before, after))
    if old == new or set(old) != set(new):
        return []
    return [f"the outputs come in the order {', '.join(new)}, not {', '.join(old)}"]


def check_verified(result: object, new: str, outcome: str) -> None:
    """Raise `InvalidArgument` where ``verify`` has returned something else than None or what is true."""
    try:
        passed = result is None or bool(result)
    except ValueError as error:  # an array of several
        raise InvalidArgument(f"verify returns True, False or None, not {type(result).__name__}: {error}") from error
    if not passed:
        raise InvalidArgument(f"verify has returned {result!r} for {new}: {outcome}")
