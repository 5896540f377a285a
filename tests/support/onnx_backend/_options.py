"""Which options a backend's caller may set by keyword."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ortmulti.errors import RuntimeException


def apply(options: object, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Set the attributes of ``given`` that are in ``allowed``.

    Other names than attributes of ``options`` are ignored, because the session and the run get the same keywords.

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
