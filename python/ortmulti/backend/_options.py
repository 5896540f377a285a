"""Which options a backend's caller may set by keyword."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ortmulti.errors import RuntimeException


def apply(options: object, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Set those of ``given`` that are in ``allowed``. What is no attribute of ``options`` is left out, since the same
    keywords go to the session and to the run.

    Raises:
        RuntimeException: An attribute that is not in ``allowed``: one that writes files or ends runs.
    """
    for name, value in given.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(options, name):
            raise RuntimeException(
                f"{name} of {type(options).__name__} is not permitted as an argument of the backend; "
                f"permitted: {', '.join(sorted(allowed))}"
            )
