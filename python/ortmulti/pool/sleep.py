"""Devices of a pool that sleep: their sessions are closed, and made again when the device wakes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ortmulti import _core
from ortmulti._runtime import callbacks, native
from ortmulti._runtime.threads import Task
from ortmulti.errors import DeadlineExceeded, NoSuchFile, NotOptimizable, WeightsError

if TYPE_CHECKING:
    from ortmulti.create.model import Model
    from ortmulti.interface.session import InferenceSession

__all__ = ["ModelFiles", "SessionSleep", "wait_until_awake"]


class ModelFiles:
    """The files of a model, to be the same at a later time.

    Args:
        model: The model; bytes cannot change.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loaded: _core.Source | None = None
        with contextlib.suppress(NoSuchFile):  # creating the sessions says so
            self._loaded = model.file

    def model(self) -> Model | None:
        """Return the model; None: its own file was changed or deleted since it was loaded."""
        return self._model if self._loaded is None or self._loaded.is_current() else None

    def now(self, config_entries: Mapping[str, str]) -> Sequence[_core.Source]:
        """Return the files, those of external data, too.

        Args:
            config_entries: The sessions'. They may say where the external data of a model in memory lies.

        Raises:
            WeightsError: The model's own file was changed or deleted since it was loaded.
        """
        from ortmulti.create.empty_files import DATA_FOLDER
        from ortmulti.optimized import key

        files: Sequence[_core.Source] = []
        try:
            files = key.read_content(self._model, config_entries.get(DATA_FOLDER)).sources
        except (NotOptimizable, NoSuchFile):
            files = [self._loaded] if self._loaded else []
        # Not the identities: other rights and links are no other content.
        if self._loaded and not (files[0].name == self._loaded.name and self._loaded.is_current()):
            raise WeightsError(
                f"'{self._loaded.name}' cannot sleep: it was changed or deleted since it was loaded, so it could not "
                "wake. Load the new file: Pool.replace_model does so, and load of a repository"
            )
        return files


def wait_until_awake(core: _core.Pool, devices: Sequence[str], timeout: float | None) -> None:
    """Wait until devices that were asked to wake take requests.

    Raises:
        DeadlineExceeded: They took longer than ``timeout`` seconds.
        Error: One could not wake.
    """
    end = None if timeout is None else time.monotonic() + timeout
    for device in devices:
        if not core.wait_until_awake(device, None if end is None else max(0.0, end - time.monotonic())):
            raise DeadlineExceeded(f"{device} did not wake within {timeout} s; it goes on waking")


class SessionSleep:
    """One sleep of a device. It holds no pool: the core's pool holds it.

    Args:
        files: What the sessions are made of.
        present: Returns the device's sessions.
        make: Makes others, which join the core's pool. Returns a function that puts them into the places of those.
    """

    def __init__(
        self,
        files: Sequence[_core.Source],
        present: Callable[[], Sequence[InferenceSession]],
        make: Callable[[], Callable[[], None]],
    ) -> None:
        self._files = files
        self._present = present
        self._make = make
        self._lock = native.Lock()
        self._over = False

    def begin(self, core: _core.Pool, level: str, device: str, auto_wake: bool, timeout: float | None) -> None:
        """Put the device of a core's pool to sleep at a level that closes its sessions, and close them. Nothing is done
        where it has none.
        """
        callbacks.start()  # its thread frees what the core's threads may not
        if core.sleep_sessions(device, level, self._begin_wake, auto_wake, timeout):
            with self._lock:
                sessions = [] if self._over else self._present()
            for session in sessions:
                session.close()

    def _begin_wake(self, done: Callable[[BaseException | None], None]) -> None:
        Task(partial(self._wake, done), "ortmulti-wake").start()

    def _wake(self, done: Callable[[BaseException | None], None]) -> None:
        try:
            for file in self._files:
                if not file.is_current():
                    raise WeightsError(
                        f"the model cannot wake: its file '{file.name}' was changed or deleted since it fell asleep. "
                        "Load the new file: Pool.replace_model does so, and load of a repository"
                    )
            place = self._make()
            with self._lock:
                self._over = True
                replaced = self._present()
                place()
            for session in replaced:
                session.close()
        except BaseException as error:
            done(error)
        else:
            done(None)
        # The last reference to the pool goes after `done`: freeing it waits for the thread that waits for `done`.
