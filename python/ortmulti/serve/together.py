"""Short requests of vectors, answered together: those that are there at the same moment, and want the same, are one
block of texts.

The core reads them, and writes their answers. So one request costs the interpreter little more than its tokens. What
is not simple, or not right, is answered alone, as any other request of texts.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from ortmulti import _core
from ortmulti.serve.service import Service
from ortmulti.serve.text_models import ServedTexts
from ortmulti.serve.text_routes import ROUTES, bytes_of_vector, chosen, root, written
from ortmulti.text.tokenizing import BLOCK

__all__ = ["start"]

_THREADS = 2  # the one's texts are tokenized while the other's tokens are taken


def start(service: Service, core: _core.Front, most: int) -> list[threading.Thread]:
    """Start the threads that have them run, until the core's server ends; ``most``: texts that a request may have."""
    threads = [
        threading.Thread(
            target=_run_all,
            args=(service, core, min(most, BLOCK)),
            name=f"ortmulti-serve-vectors_{number}",
            daemon=True,
        )
        for number in range(_THREADS)
    ]
    for thread in threads:
        thread.start()
    return threads


def _run_all(service: Service, core: _core.Front, most: int) -> None:
    while (group := core.take_vectors(min([most, *map(_most, [*service.texts.values()])]))) is not None:
        try:
            if not _run(service, group):
                group.leave()
        except BaseException:  # a text that is too long, for example: each answer says what is wrong
            group.leave()
        del group  # its calls count in the memory for clients


def _most(found: ServedTexts) -> int:
    """Return how many texts are run together: with more, a short queue has no room for any."""
    return min(BLOCK, found.model.pool.together)


def _run(service: Service, group: _core.VectorGroup) -> bool:
    """Have a group's texts run. Returns whether they are answered together."""
    route = ROUTES[group.path.strip("/") or root(service, {"model": group.model})]
    if route.tasks != ("embedding",):
        return False
    found = chosen(service, route.tasks, group.model)
    model, settings, prompt = found.model, found.model.settings, group.prompt or None
    dimensions = group.dimensions or settings.dimensions or 0
    texts = group.take_texts()
    if (
        not model.rows_are_vectors
        or len(texts) > _most(found)
        or dimensions > found.width
        or (prompt is not None and prompt not in settings.prompts)
        or not group.reserve(bytes_of_vector(found, dimensions, group.base64))
    ):
        return False
    head, tail, around = written(found.name, "\0", route.form)
    block = partial(
        group.block,
        name=found.name,
        normalize=found.normalize if group.normalize is None else group.normalize,
        dimensions=dimensions,
        head=head,
        tail=tail,
        around=around,
    )
    timeout = service.defaults_of(found.name).timeout
    model.run_as(block, texts, prompt, group.truncate or False, timeout, time.monotonic())
    return True
