"""Creates the sessions of a request: goes the ways of a plan, until one of them leads to sessions."""

from __future__ import annotations

import logging

from ortmulti import _core
from ortmulti.create.request import without_optimization
from ortmulti.loading.creation import Creation
from ortmulti.loading.plan import Plan, plan

LOGGER = logging.getLogger("ortmulti")


def create(creation: Creation) -> None:
    """Create the sessions of a request, and return when all were received.

    A ready session waits until it is confirmed. Over a cache entry it waits until the entry's checksums were compared,
    over a new entry until this is published.

    Raises:
        As `create_sessions`. Sessions that were not received are closed, and so are those in ``creation.sessions``.
    """
    creation.prepare()
    follow(creation, plan(creation.request, creation.devices, creation.options))


def follow(creation: Creation, planned: Plan) -> None:
    """Same as `create`, by this plan for devices that are known."""
    model, reason = creation.request.model, planned.reason
    if model.copied:
        creation.note("the store's objects are read from copies on the disk")
    try:
        for way in planned.ways:
            problem = _go(way, creation, reason)
            if problem is None:
                break
            reason = problem
    except BaseException:
        creation.close()
        raise
    model.keep_copies()


def _go(way: str, creation: Creation, reason: str) -> str | None:
    """Create the sessions in one way. Return why this cannot be, for the next way; None: they exist."""
    # Most creations need no cache entry, and not the modules for it.
    if way == "entry":
        from ortmulti.loading.from_cache import create_from_cache

        return create_from_cache(creation)
    if way == "contexts":
        from ortmulti.loading.from_compiled import create_from_compiled

        return create_from_compiled(creation)
    if way == "values":
        from ortmulti.loading.from_values import create_from_values

        creation.read_weights()
        return None if create_from_values(creation) else reason
    if way == "model":
        return _create_over_model(creation)
    creation.read_weights()
    if reason:
        creation.note(f"not shared: {reason}")
        LOGGER.info("each session loads the model by itself: %s", reason)
    creation.run(creation.request.model.graph, creation.options, one_session_each=creation.one_session_each)
    return None


def _create_over_model(creation: Creation) -> str | None:
    """Create sessions that share the weights of the model as it is."""
    model, weights = creation.request.model, creation.weights
    options = without_optimization(creation.options)
    if model.external.weights:
        from ortmulti.loading.from_values import share

        return share(creation, model.graph, _core.index_model(model.graph), model.external, options) or None
    if not model.path:
        return "the model is in memory and is not optimized"
    if weights is None or not weights.weights:
        return "the model has no weights that can be shared"
    creation.run(model.graph, options, weights)
    return None
