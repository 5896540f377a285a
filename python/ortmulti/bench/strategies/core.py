"""ortmulti's sessions, created by C++ threads: each loads the model by itself, or they share the weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from ortmulti.interface.session_observer import observer

from .base import Creation, Strategy

if TYPE_CHECKING:
    from ortmulti.timeline import Span

_SESSION = "create session"  # the timeline's name for what one thread does for its session


class Native(Strategy):
    """ortmulti's own sessions, created at the same time by C++ threads; each loads the model by itself."""

    strategy: ClassVar[Literal["native", "shared"]] = "native"

    def _start(self) -> None:
        import ortmulti  # noqa: F401

    def create(self) -> Creation:
        with observer().importing("import ortmulti's sessions"):
            import ortmulti

            options, create_sessions = ortmulti.SessionOptions(), ortmulti.create_sessions
        options.intra_op_num_threads = self.settings.intra_op_num_threads
        for key, value in self.settings.config_entries.items():
            options.add_session_config_entry(key, value)
        for library in self.settings.custom_op_libraries:
            # Needs ONNX Runtime itself, and opens it.
            with observer().opening("open custom operators"):
                options.register_custom_ops_library(library)
        observer().options(options)
        on_cuda = any(device != "cpu" for device in self.devices)
        begin = time.monotonic_ns()
        sessions = create_sessions(
            self.model,
            list(self.devices),
            options=options,
            provider_options=dict(self.settings.provider_options) if on_cuda else None,
            loading=ortmulti.Loading(strategy=self.strategy),
        )
        end = time.monotonic_ns()
        if self._sessions:
            self._sessions.close()
        self._sessions = sessions
        timeline = sessions.timeline
        observer().created(list(sessions), self.devices, timeline)
        own = session_seconds(timeline.spans, self.devices)
        return Creation((end - begin) / 1e9, own, timeline.not_shared)

    def close(self) -> None:
        sessions = self._sessions
        super().close()
        if sessions:
            sessions.close()
            from ortmulti.optimized import wait_for_entries

            wait_for_entries()  # the next measurement may count on it


class Shared(Native):
    """ortmulti's sessions over one copy of the weights for each device, read once and in file order.

    If the model or the options do not allow this, they are created as by `Native`, and `Creation` has the reason.
    """

    strategy = "shared"


def session_seconds(spans: Sequence[Span], devices: Sequence[str]) -> tuple[float, ...]:
    """Return each session's own seconds, in the order of `devices`, the first finished session of a device first.

    A device's last spans belong to its sessions; an earlier one made an optimized model. Sessions without a span are
    handles of the last one, and were ready at the same time.
    """
    left: dict[str, list[float]] = {}
    for device in devices:
        found = [span.seconds for span in spans if (span.name, span.device) == (_SESSION, device)]
        left[device] = found[-devices.count(device) :]
    return tuple(left[device].pop(0) if len(left[device]) > 1 else left[device][0] for device in devices)
