"""Why a configuration cannot be used."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ortmulti.errors import Error

Why: TypeAlias = Literal["failed", "crashed", "hung", "outputs"]


class RejectedError(Error):
    """A configuration cannot be used.

    Attributes:
        why: ``"failed"``: an error; ``"crashed"``: its process died; ``"hung"``: it took too long; ``"outputs"``: it
            changes the model's outputs by more than the tolerance.
    """

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why
