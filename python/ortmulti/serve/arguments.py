"""Checks of what a program, a command or a file gives a server."""

from __future__ import annotations

from collections.abc import Mapping

from ortmulti import checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.repository import ModelRepository
from ortmulti.serve.limits import Limits
from ortmulti.serve.text_models import ServedTexts

__all__ = ["check", "texts_of", "token_of"]


def check(models: object, limits: object, token: object) -> None:
    """Refuse what `ortmulti.serve.app` cannot serve: `InvalidType` or `InvalidArgument`."""
    checks.instance("models", models, ModelRepository, example='ortmulti.ModelRepository("cpu")')
    if not (limits is None or isinstance(limits, Limits)):
        raise InvalidType(
            f"limits is a Limits or None, not {limits!r}: for example ortmulti.serve.limits.Limits(body=16 << 20)"
        )
    if token is not None:
        token_of(token, "token")


def texts_of(given: object) -> dict[str, ServedTexts]:
    """Return models of texts as a service has them; `InvalidType` where they are none."""
    from ortmulti.text.model import TextModel

    checks.instance("texts", given, Mapping)
    assert isinstance(given, Mapping)
    for name, model in given.items():
        checks.instance("a name of texts", name, str)
        checks.instance(f"the model {name!r} of texts", model, TextModel, example="ortmulti.text.load(folder)")
    return {name: ServedTexts(name, model, model.dimensions) for name, model in given.items()}


def token_of(given: object, what: str) -> str:
    """Return a token that a header can have. ``what`` says whose it is; an error does not have the token."""
    if not isinstance(given, str):
        raise InvalidType(f"{what} is a str or None, not {type(given).__name__}")
    if not given:
        raise InvalidArgument(f"{what} is empty: give the token that clients have to send, or none at all")
    if any(letter.isspace() or not letter.isprintable() for letter in given):
        raise InvalidArgument(
            f"{what} has a blank, a line's end or a control character: a header cannot have such a token"
        )
    return given
