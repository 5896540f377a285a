"""What is measured, and what is chosen: without processes or a clock of its own."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ortmulti.bench.measure.rounds import Interval, alternating
from ortmulti.bench.tune.measurements import Measure
from ortmulti.bench.tune.space import DEFAULTS, Options, RejectedError, Setting, describe

PAIRS = 6
"""Pairs of processes of the confirmation: of fewer figures, no interval has 95% confidence."""

_CHOICES_PART = 0.75
"""Of the budget; the rest is for the confirmation."""


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        least: Measurements of a choice; it gets no more if the median is no gain by then.
        most: Measurements of a choice that seems to gain.
        repeat: Measurements of each pair of processes in the confirmation.
        pairs: Pairs of processes in the confirmation.
    """

    least: int
    most: int
    repeat: int = 1
    pairs: int = PAIRS


@dataclass(frozen=True)
class Trial:
    """A candidate, and the ratios of its costs to another one's, mostly the defaults'; there is at least one."""

    options: Options
    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def interval(self) -> Interval:
        """The median with its confidence interval."""
        interval = Interval.of(self.ratios)
        assert interval is not None
        return interval


@dataclass
class Outcome:
    """What was found.

    Attributes:
        best: The best candidate; None: nothing is better than the defaults.
        confirmation: The candidate that was measured again, confirmed or not: a ratio for each pair of processes.
        trials: The trials of each choice alone against the defaults, in order.
        rejected: Candidates that cannot be used, with the reasons.
        partial: Why not everything was measured; None if it was.
    """

    best: Trial | None = None
    confirmation: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    rejected: dict[Options, RejectedError] = field(default_factory=dict)
    partial: str | None = None


class _OutOfTime(Exception):  # noqa: N818  (no error, but the way out)
    pass


class Search:
    """Measures each choice alone against the defaults, combines those that gain, and confirms the combination.

    Every measurement is in turns with another one. The best choices of the settings are combined, the best one first;
    one stays only if the combination is better with it. The combination is measured again, in pairs of new processes
    with the defaults. It is better only if the confidence interval of their ratios excludes "no gain".

    Args:
        settings: What to try.
        candidate: As `ortmulti.bench.tune.measurements.Bench.candidate`.
        clock: The time in seconds.
        effort: How much is measured.
        budget: Seconds for all; None: no limit.
        minimum_gain: The smallest part of the cost that counts as a gain.
        tell: Called with the stage and the next candidate.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        candidate: Callable[[Options], contextlib.AbstractContextManager[Measure]],
        clock: Callable[[], float],
        effort: Effort,
        budget: float | None = None,
        minimum_gain: float = 0.01,
        tell: Callable[[str, str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._candidate = candidate
        self._clock = clock
        self._effort = effort
        self._minimum_gain = minimum_gain
        self._tell = tell or (lambda _stage, _text: None)
        self._begin = clock()
        self._budget = float("inf") if budget is None else budget
        self._deadline = self._begin + self._budget * _CHOICES_PART
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Measure. After an exception, such as KeyboardInterrupt, `so_far` has the result.

        Raises:
            Fail: The defaults themselves cannot be measured.
        """
        outcome, best = self.outcome, None
        try:
            with self._candidate(DEFAULTS) as defaults:
                for options in (choice for one in self._settings for choice in one.choices):
                    with self._naming_rejected(options):
                        outcome.trials.append(self._tried("each setting alone", options, defaults))
            for better in self._combinations():
                best = better
        except _OutOfTime:
            outcome.partial = "budget"
            if best is None and (gaining := self._gaining()):
                best = gaining[0].options
        self._deadline = self._begin + self._budget
        if best is not None:
            try:
                with self._naming_rejected(best):
                    self._confirm(best)
            except _OutOfTime:
                return self.so_far("budget")
        return outcome

    def so_far(self, partial: str) -> Outcome:
        """Return what is certain if the measuring ends early; `partial` is the reason."""
        self.outcome.partial = partial
        if self.outcome.best is None:
            certain = (one for one in self._gaining() if len(one.ratios) >= PAIRS and self._is_gain(one))
            self.outcome.best = next(certain, None)
        return self.outcome

    @contextlib.contextmanager
    def _naming_rejected(self, options: Options) -> Iterator[None]:
        try:
            yield
        except RejectedError as error:
            self.outcome.rejected[options] = error

    def _tried(self, stage: str, options: Options, reference: Measure) -> Trial:
        """Measure a candidate against another one, less often if the time ends meanwhile."""
        self._tell(stage, describe(dict(options)))
        with self._candidate(options) as candidate:
            ratios = [*self._ratios(reference, candidate, self._effort.least)]
            if ratios and statistics.median(ratios) < 1:
                ratios += self._ratios(reference, candidate, self._effort.most - self._effort.least)
        if not ratios:
            raise _OutOfTime
        return Trial(options, tuple(ratios))

    def _combinations(self) -> Iterator[Options]:
        """Yield the best choice, and each better combination: the settings' best choices are added one by one."""
        winners: dict[str, Options] = {}
        names = {choice: one.name for one in self._settings for choice in one.choices}
        for trial in self._gaining():
            winners.setdefault(names[trial.options], trial.options)
        best = DEFAULTS
        for winner in winners.values():
            together = best + winner
            if best == DEFAULTS:  # it was measured against the defaults already
                yield (best := together)
                continue
            with self._naming_rejected(together), self._candidate(best) as reference:
                if self._tried("combinations", together, reference).median <= 1 - self._minimum_gain:
                    yield (best := together)

    def _confirm(self, options: Options) -> None:
        """Measure one candidate again. Only one: further tries would be further chances for an accident.

        A process may be faster than its equal for as long as it lives. So each pair of processes gives one ratio.
        """
        ratios: list[float] = []
        for number in range(self._effort.pairs):
            self._tell("confirmation", f"{describe(dict(options))}, {number + 1} of {self._effort.pairs}")
            with self._candidate(DEFAULTS) as defaults, self._candidate(options) as candidate:
                # Pairs with one measurement each take turns, too.
                found = [*self._ratios(defaults, candidate, self._effort.repeat, first=number)]
            if not found:
                break
            ratios.append(statistics.median(found))
        if len(ratios) < PAIRS:
            raise _OutOfTime
        trial = Trial(options, tuple(ratios))
        self.outcome.confirmation = trial
        if self._is_gain(trial):
            self.outcome.best = trial

    def _ratios(self, reference: Measure, candidate: Measure, count: int, first: int = 0) -> Iterator[float]:
        """Yield costs of a candidate over those of another one, measured in turns, while there is time."""
        for number in range(first, first + count):
            if self._clock() > self._deadline:
                return
            # The first one may be at a disadvantage, or at an advantage.
            costs = {one: one() for one in alternating((reference, candidate), number)}
            yield costs[candidate] / costs[reference]

    def _is_gain(self, trial: Trial) -> bool:
        return trial.interval.high < 1 and trial.median <= 1 - self._minimum_gain

    def _gaining(self) -> list[Trial]:
        """Trials that seem a gain, the best first: by the interval's end, since luck makes the lowest medians."""
        gaining = [trial for trial in self.outcome.trials if trial.median <= 1 - self._minimum_gain]
        return sorted(gaining, key=lambda one: one.interval.high)
