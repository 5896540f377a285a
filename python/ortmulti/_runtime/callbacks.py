"""The thread that calls the callbacks of asynchronous runs.

The core's threads never wait for the GIL. Finished runs wait in the core, and this thread takes all of them at once.
"""

from __future__ import annotations

from ortmulti import _core
from ortmulti._runtime.threads import BackgroundThread


def _deliver() -> None:
    while _core.deliver_completions():
        pass


_thread = BackgroundThread(_deliver, "ortmulti-callbacks", prepare=_core.open_completions)


def start() -> bool:
    """Start the thread, unless it runs in this process already; return False where the interpreter is ending.

    Raises:
        RuntimeException: The thread cannot be started.
    """
    return _thread.start()


def stop() -> None:
    """End the thread for good after it has delivered all results: at the interpreter's end, without sessions."""
    _thread.stop(_core.close_completions)
