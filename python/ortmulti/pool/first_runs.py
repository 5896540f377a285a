"""The runs of a model's sessions before they take requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from ortmulti._runtime import native
from ortmulti.pool.configuration import Serving, Warmup

if TYPE_CHECKING:
    from ortmulti.interface.session import InferenceSession

__all__ = ["FirstRuns"]

LOGGER = logging.getLogger("ortmulti")

Run = Callable[[list[Mapping[str, Any]], int], object]


class FirstRuns:
    """The warm-up of a model's sessions. They may run at the same time, from any thread.

    Args:
        serving: How the sessions serve.
        model: The model, for messages.
    """

    def __init__(self, serving: Serving, model: str) -> None:
        self.serving = serving
        self._model = model
        self._lock = native.Lock()
        self._first = 0  # number of the inputs that fitted
        self._none_fits = False

    def run(self, session: InferenceSession, run: Run) -> None:
        """Call ``run`` with the inputs and the number of runs, for random inputs also with larger ones.

        If no random inputs fit, and nobody asked for more than a try: warn once, and call it without inputs.

        Raises:
            Error: As ``run``.
        """
        if not self.serving.warmup or self._none_fits:
            run([], 0)
            return
        warmup = self.serving.warmup if isinstance(self.serving.warmup, Warmup) else Warmup()
        from ortmulti.create.sample_inputs import MISFITS, first_fit  # which `import ortmulti` shall not load

        def attempt(numbered: tuple[int, list[Mapping[str, Any]]]) -> int:
            number, feeds = numbered
            run(feeds, warmup.runs)
            return number

        try:
            self._first = first_fit(islice(enumerate(warmup.feeds(session)), self._first, None), attempt)
        except MISFITS as error:
            if self.serving.warmup is not True:
                raise
            run([], 0)  # raises an error that the inputs did not cause
            with self._lock:
                warned, self._none_fits = self._none_fits, True
            if not warned:
                LOGGER.warning(
                    "%s was loaded without a first run, since it takes no random inputs: %s. Give "
                    "warmup=Warmup(samples=...) with inputs of yours, or warmup=False",
                    self._model,
                    error,
                )
