"""Sessions over the model as it is."""

from __future__ import annotations

import logging

from ortmulti import _core
from ortmulti.create.request import without_optimization
from ortmulti.loading.attempt import Attempt

LOGGER = logging.getLogger("ortmulti")


def create_native(attempt: Attempt, reason: str = "", *, one_session_each: bool = False) -> None:
    """Create sessions that load the model by themselves.

    Args:
        attempt: The request.
        reason: Why they do not share weights, if they should.
        one_session_each: As for `core_sessions.create`.
    """
    if attempt.request.model.external.weights:
        with attempt.span("read weights"):
            attempt.options = attempt.request.model.with_weights(attempt.options, attempt.weights_read)
    if attempt.options.external_initializers and attempt.request.strategy == "shared":
        from ortmulti.loading.over_values import create_over_values

        if create_over_values(attempt):
            return
    if reason:
        attempt.note(f"not shared: {reason}")
        LOGGER.info("each session loads the model by itself: %s", reason)
    attempt.create(attempt.request.model.graph, attempt.options, one_session_each=one_session_each)


def create_over_model(attempt: Attempt) -> None:
    """Create sessions that share the weights of the model as it is."""
    model, weights = attempt.request.model, attempt.weights
    options = without_optimization(attempt.options)
    if model.external.weights:
        from ortmulti.loading.over_values import share

        if problem := share(attempt, model.graph, _core.index_model(model.graph), model.external, options):
            create_native(attempt, problem)
    elif not model.path:
        create_native(attempt, "the model is in memory and is not optimized")
    elif weights is None or not weights.weights:
        create_native(attempt, "the model has no weights that can be shared")
    else:
        attempt.create(model.graph, options, weights)
