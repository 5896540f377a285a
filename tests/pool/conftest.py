"""What tests of pools share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ortmulti
from ortmulti import Batching
from tests.support import pools


@pytest.fixture(autouse=True, scope="session")
def everything_that_stays_is_there() -> None:
    """The first answer of a process starts the library's own threads, which are no leak of a test."""
    with ortmulti.load(pools.rows(), "cpu") as made:
        made.submit(None, pools.row(0), timeout=pools.HANG).result()


@pytest.fixture(params=[None, Batching(4), Batching(4, max_delay_ms=2)], ids=["alone", "joined", "delayed"])
def pool(request: pytest.FixtureRequest) -> Iterator[ortmulti.Pool]:
    """Two sessions of `pools.rows`."""
    with ortmulti.load(pools.rows(), "cpu", 2, batching=request.param) as made:
        yield made


@pytest.fixture
def endless() -> Iterator[ortmulti.Pool]:
    """One session whose runs do not end by themselves."""
    with ortmulti.load(pools.ENDLESS, "cpu", max_queue=2) as made:
        yield made
        made.close(cancel_pending=True)
