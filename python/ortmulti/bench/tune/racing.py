"""Measures configurations in turns against a reference; losers leave."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ortmulti.bench.measure.rounds import Interval, alternating, round_numbers
from ortmulti.bench.tune.space import DEFAULTS, Configuration, RejectedError

_REFERENCE_EVERY = 3

_LEAST_FIGURES = 6
"""Of fewer, no interval between two of them has 95% confidence."""

_PROMISING = 0.95
"""Of the reference's cost: what seems that good does not leave because others seem better."""


class Sampler(Protocol):
    """Measures configurations."""

    def sample(self, configuration: Configuration) -> float:
        """Return the cost of one block; less is better.

        Raises:
            RejectedError: The configuration cannot be used.
        """

    def prepare(self, configurations: Sequence[Configuration]) -> None:
        """Prepare for the measurement of these configurations."""

    def release(self, configuration: Configuration) -> None:
        """Release a configuration that is not measured for a while."""


class OutOfTime(Exception):  # noqa: N818  (no error, but the way out)
    """There is no time for another round."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rungs: Numbers of samples after which the worse half leaves, ascending.
        pairs: Pairs of the final measurement, of the best in turns with the defaults.
        restarts: Number of successive processes for the pairs; 1: each measurement has its own.
        explore: Number of random combinations, when no neighbour of the best is better.
        hopeless: Multiple of the reference's cost; a choice that costs more is not combined with others.
    """

    rungs: tuple[int, ...]
    pairs: int
    restarts: int = 1
    explore: int = 0
    hopeless: float = 1.1


@dataclass
class Trial:
    """A configuration, and the ratios of its costs to those of its reference."""

    configuration: Configuration
    ratios: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the ratios; infinite without any."""
        return statistics.median(self.ratios) if self.ratios else math.inf

    @property
    def interval(self) -> Interval:
        """The median with its confidence interval; there must be a ratio."""
        interval = Interval.of(self.ratios)
        assert interval is not None
        return interval


class Racing:
    """Holds contests with one sampler.

    Attributes:
        deadline: End of the time for measurements; infinite at first.
        rejected: Configurations that cannot be used.
    """

    def __init__(
        self,
        sampler: Sampler,
        clock: Callable[[], float],
        order: random.Random,
        tell: Callable[[str, str], None],
    ) -> None:
        self._sampler = sampler
        self._clock = clock
        self._order = order
        self._tell = tell
        self.deadline = math.inf
        self.rejected: dict[Configuration, RejectedError] = {}

    def hold(
        self,
        reference: Configuration,
        trials: Sequence[Trial],
        rungs: Sequence[int],
        stage: str,
        halve: bool = True,
    ) -> None:
        """Measure `trials` against `reference`, until each has left or reached the last rung.

        Raises:
            OutOfTime: The deadline is near.
            RejectedError: The reference cannot be used.
        """
        alive = [trial for trial in trials if trial.configuration not in self.rejected]
        done = 0
        self._tell(stage, f"{len(alive)} configurations")
        try:
            for number, rung in enumerate(rungs):
                while done < rung and alive:
                    self._round(reference, alive, stage)
                    done += 1
                    alive = [trial for trial in alive if trial.configuration not in self.rejected]
                if halve and number + 1 < len(rungs):
                    kept = _survivors(alive, _PROMISING)
                    for trial in alive:
                        if trial not in kept:
                            self._sampler.release(trial.configuration)
                    alive = kept
        finally:
            for trial in trials:
                self._sampler.release(trial.configuration)

    def in_turns(
        self, reference: Configuration, configuration: Configuration, pairs: int, restarts: int = 1
    ) -> list[float]:
        """Return costs of `configuration` over those of `reference`, measured in turns.

        A process may be faster than another one of the same configuration during its whole life. So a pair of processes
        gives one figure: with ``restarts``, the median of its pairs.

        Raises:
            OutOfTime: The deadline is near, and there are fewer than six figures.
            RejectedError: One of the two cannot be used.
        """
        figures: list[float] = []
        ratios: list[float] = []
        self._tell("confirmation", str(configuration))
        both = (reference, configuration)
        number = 0
        for number in round_numbers(pairs, self.deadline - self._clock(), clock=self._clock):
            self._sampler.prepare(both)
            # The first one may be at a disadvantage, or at an advantage.
            costs = {one: self._measure(one) for one in alternating(both[::-1], number)}
            ratios.append(costs[configuration] / costs[reference])
            if restarts == 1 or (number + 1) * restarts // pairs != number * restarts // pairs:
                figures.append(statistics.median(ratios))
                ratios.clear()
                if restarts > 1:
                    for one in both:
                        self._sampler.release(one)
        if number + 1 < pairs and len(figures) < _LEAST_FIGURES:
            raise OutOfTime
        return figures

    def _round(self, reference: Configuration, trials: Sequence[Trial], stage: str) -> None:
        """One sample of each, with the reference between them."""
        begin = self._clock()
        if begin > self.deadline:
            raise OutOfTime
        order = list(trials)
        self._order.shuffle(order)
        before = None
        for first in range(0, len(order), _REFERENCE_EVERY):
            if self._clock() > self.deadline:
                raise OutOfTime
            group = order[first : first + _REFERENCE_EVERY]
            self._sampler.prepare([reference, *(trial.configuration for trial in group)])
            before = self._measure(reference) if before is None else before
            costs: list[tuple[Trial, float]] = []
            for trial in group:
                try:
                    costs.append((trial, self._measure(trial.configuration)))
                except RejectedError:
                    self._tell(stage, f"left out: {trial.configuration}")
            after = self._measure(reference) if len(order) > 1 else before
            for trial, cost in costs:
                trial.ratios.append(cost / ((before + after) / 2))
            before = after

    def _measure(self, configuration: Configuration) -> float:
        if configuration in self.rejected:
            raise self.rejected[configuration]
        try:
            return self._sampler.sample(configuration)
        except RejectedError as error:
            if configuration != DEFAULTS:
                self.rejected[configuration] = error
            raise


def _survivors(trials: Sequence[Trial], promising: float) -> list[Trial]:
    """Return the better half and equally promising trials, but none that is surely worse."""
    ordered = sorted(trials, key=lambda trial: trial.median)
    kept = []
    for place, trial in enumerate(ordered):
        # Of two values the interval is hardly one.
        worse = trial.interval.low > (1 if len(trial.ratios) > 2 else 1.1)
        if not worse and (place < (len(ordered) + 1) // 2 or trial.median <= promising):
            kept.append(trial)
    return kept
