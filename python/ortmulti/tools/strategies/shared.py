"""C++ threads over weights that were read once: what `ortmulti.create_sessions` does by itself."""

from __future__ import annotations

from typing import ClassVar, Literal

from .native import Native


class Shared(Native):
    """ortmulti's sessions over one copy of the weights for each device, read once and in file order.

    Where the model or the options do not allow that, they are created as by `Native`; the details of `create` say why.
    """

    name: ClassVar[str] = "shared"
    _how: ClassVar[Literal["native", "shared"]] = "shared"
