"""Entries that are made behind a load, for the next one: the end of the process does not wait for them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ortmulti._runtime import background
from ortmulti.cache.entries import StagedEntry
from ortmulti.errors import Error

_SMALL = 4 << 20
"""Bytes that are split, checked and published within milliseconds."""

_LOGGER = logging.getLogger("ortmulti")

wait_for_entries = background.wait


def keep(staged: StagedEntry, make: Callable[[Callable[[], object]], object]) -> None:
    """Make an entry of what a session has saved, in the background if that is much. Failures are logged.

    Args:
        staged: It is removed if it was not published by the end, or by the end of the process.
        make: Makes and publishes it. Its argument is to be called in short intervals, and raises to end it.
    """

    def run(poll: Callable[[], object]) -> None:
        try:
            with staged:
                make(poll)
        except (Error, OSError) as error:
            _LOGGER.info("the optimized model is not kept: %s", error)

    if staged.saved.stat().st_size <= _SMALL:
        run(background.poll)
    else:
        background.do(run, "ortmulti-entry", staged.discard)
