"""Session options for tests; apart, since child processes that need no models load it too."""

from __future__ import annotations

from collections.abc import Mapping

import ortmulti


def options(entries: Mapping[str, str] | None = None, **attributes: object) -> ortmulti.SessionOptions:
    """Session options with these attributes and configuration entries."""
    made = ortmulti.SessionOptions()
    for name, value in attributes.items():
        setattr(made, name, value)
    for key, entry in (entries or {}).items():
        made.add_session_config_entry(key, entry)
    return made
