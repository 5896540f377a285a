"""Threads of the system, and their locks, also where gevent or eventlet has replaced Python's.

Both make greenlets of the threads of `threading`: they take turns in one thread of the system. A greenlet that waits in
the core stops all others. A lock of theirs need not wake a thread of the system. So this is another instance of the
built-in module `_thread`, which neither can find, whether it patches before or after this import. Locks of `threading`
are right where user code may run while they are held: another greenlet may wait for them.
"""

from __future__ import annotations

from _queue import SimpleQueue  # of which `queue` has another one where threads are greenlets
from collections.abc import Callable
from importlib.machinery import BuiltinImporter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

__all__ = ["Lock", "RLock", "SimpleQueue", "get_ident", "start_thread"]


def _instance() -> Any:
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None
    module = BuiltinImporter.create_module(spec)
    assert module is not None
    BuiltinImporter.exec_module(module)
    return module


_thread = _instance()

Lock: Callable[[], threading.Lock] = _thread.allocate_lock
RLock: Callable[[], threading._RLock] = _thread.RLock
get_ident: Callable[[], int] = _thread.get_ident


def start_thread(call: Callable[[], object], name: str) -> None:
    """Call a function in a thread of its own, which does not keep the process from ending.

    Args:
        call: The function.
        name: The thread's name, except where threads are greenlets.

    Raises:
        RuntimeError: The system gives no thread.
    """
    import threading  # not by `import ortmulti`

    if threading.get_ident() == get_ident():
        threading.Thread(target=call, name=name, daemon=True).start()
    else:  # of a greenlet
        _thread.start_new_thread(call, ())
