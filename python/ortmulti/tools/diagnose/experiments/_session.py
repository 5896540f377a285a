"""One session of ortmulti's own, for experiments that change its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortmulti import SessionOptions


def create(spec: dict[str, Any], change: Callable[[SessionOptions], object]) -> None:
    """Creates a session, and closes it.

    Args:
        spec: "model" (path), "device" and "settings" (the fields of `SessionSettings`).
        change: is given the session's options.
    """
    import ortmulti
    from ortmulti.tools.strategies import SessionSettings

    settings = SessionSettings(**spec["settings"])
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    for key, value in settings.config_entries.items():
        options.add_session_config_entry(key, value)
    for library in settings.custom_op_libraries:
        options.register_custom_ops_library(library)
    change(options)
    on_cuda = spec["device"] != "cpu"
    ortmulti.create_sessions(
        spec["model"],
        [spec["device"]],
        options=options,
        provider_options=dict(settings.provider_options) if on_cuda else None,
        strategy="native",
    ).close()
