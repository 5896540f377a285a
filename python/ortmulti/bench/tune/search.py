"""What is measured, and what is chosen: without processes or a clock of its own."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ortmulti.bench.measure.rounds import Interval, alternating
from ortmulti.bench.tune.measurements import Measure
from ortmulti.bench.tune.space import DEFAULTS, Options, RejectedError, Settings, describe

PAIRS = 6  # of processes in the confirmation: of fewer figures, no interval has 95% confidence

MINIMUM_GAIN = 0.01  # the smallest part of the cost that counts as a gain

_CHOICES_PART = 0.75  # of the budget; the rest is for the confirmation


class Effort(NamedTuple):
    """How much is measured: `least` measurements of a choice, or `most` if it seems to gain by then. In the
    confirmation, as many `pairs` of processes, with `repeat` measurements of each pair.
    """

    least: int
    most: int
    repeat: int = 1
    pairs: int = PAIRS


class Trial(NamedTuple):
    """A candidate, and pairs of another one's cost, mostly the defaults', and its own; there is at least one."""

    options: Options
    costs: tuple[tuple[float, float], ...]

    @property
    def interval(self) -> Interval:
        """The median of its costs over the other one's, with its confidence interval."""
        interval = Interval.of(map(_ratio, self.costs))
        assert interval is not None
        return interval


def _ratio(pair: tuple[float, float]) -> float:
    return pair[1] / pair[0]


@dataclass
class Search:
    """Measures each choice alone against the defaults, combines those that gain, and confirms the combination.

    Every measurement is in turns with another one. The best choices of the settings are combined, the best one first;
    one stays only if the combination is better with it. The combination is measured again, in pairs of new processes
    with the defaults. It is better only if the confidence interval of their ratios excludes "no gain".
    """

    settings: Settings
    candidate: Callable[[Options], contextlib.AbstractContextManager[Measure]]  # as `measurements.Bench.candidate`
    clock: Callable[[], float]  # the time in seconds
    effort: Effort
    budget: float | None = None  # seconds for all
    tell: Callable[[str, str], object] = lambda _stage, _text: None  # receives the stage and the next candidate
    best: Trial | None = field(default=None, init=False)  # None: nothing is better than the defaults
    # The candidate that was measured again, confirmed or not; with fewer pairs if it ended early.
    confirmation: Trial | None = field(default=None, init=False)
    trials: list[Trial] = field(default_factory=list, init=False)  # of each choice alone against the defaults
    rejected: dict[Options, RejectedError] = field(default_factory=dict, init=False)  # that cannot be used
    partial: str | None = field(default=None, init=False)  # why not everything was measured

    def run(self) -> None:
        """Measure. After an exception, such as KeyboardInterrupt, call `end_early`.

        Raises:
            Fail: The defaults themselves cannot be measured.
        """
        budget = float("inf") if self.budget is None else self.budget
        begin = self.clock()
        self._deadline = begin + budget * _CHOICES_PART
        with self.candidate(DEFAULTS) as defaults:
            for options in itertools.chain(*self.settings.values()):
                if trial := self._tried("each setting alone", options, defaults):
                    self.trials.append(trial)
        best = self._combined()
        self._deadline = begin + budget
        if best != DEFAULTS:
            with self._naming_rejected(best):
                self._confirm(best)

    def end_early(self, partial: str) -> None:
        """Take what is certain as the result; `partial` is the reason."""
        self.partial = partial
        # What seemed a gain at first, and is none when it is measured again, is not certain.
        if self.best is None and (self.confirmation is None or self._is_gain(self.confirmation)):
            certain = (one for one in self._gaining() if len(one.costs) >= PAIRS and self._is_gain(one))
            self.best = next(certain, None)

    @contextlib.contextmanager
    def _naming_rejected(self, options: Options) -> Iterator[None]:
        try:
            yield
        except RejectedError as error:
            self.rejected[options] = error

    def _tried(self, stage: str, options: Options, reference: Measure) -> Trial | None:
        """Measure a candidate against another one, less often if the time ends meanwhile. None: it is rejected, or the
        time is over.
        """
        if self.partial is None:
            self.tell(stage, describe(dict(options)))
            with self._naming_rejected(options), self.candidate(options) as candidate:
                costs = [*self._costs(reference, candidate, self.effort.least)]
                if costs and statistics.median(map(_ratio, costs)) < 1:
                    costs += self._costs(reference, candidate, self.effort.most - self.effort.least)
                if costs:
                    return Trial(options, tuple(costs))
                self.partial = "budget"
        return None

    def _combined(self) -> Options:
        """Return the best combination: the settings' best choices are added one by one, while there is time."""
        winners: dict[str, Options] = {}
        names = {choice: name for name, choices in self.settings.items() for choice in choices}
        for trial in self._gaining():
            winners.setdefault(names[trial.options], trial.options)
        best = DEFAULTS
        for winner in winners.values():
            together = best + winner
            if best == DEFAULTS:  # it was measured against the defaults already
                best = together
            elif self.partial is None:
                with self._naming_rejected(together), self.candidate(best) as reference:
                    tried = self._tried("combinations", together, reference)
                    if tried and tried.interval.median <= 1 - MINIMUM_GAIN:
                        best = together
        return best

    def _confirm(self, options: Options) -> None:
        """Measure one candidate again. Only one: further tries would be further chances for an accident.

        A process may be faster than its equal for as long as it lives. So of each pair of processes one measurement
        counts: that with the median ratio.
        """
        costs: list[tuple[float, float]] = []
        for number in range(self.effort.pairs):
            self.tell("confirmation", f"{describe(dict(options))}, {number + 1} of {self.effort.pairs}")
            with self.candidate(DEFAULTS) as defaults, self.candidate(options) as candidate:
                # Pairs with one measurement each take turns, too.
                found = sorted(self._costs(defaults, candidate, self.effort.repeat, first=number), key=_ratio)
            if not found:
                break
            costs.append(found[len(found) // 2])
            self.confirmation = Trial(options, tuple(costs))
        if self.confirmation is None or len(costs) < PAIRS:
            self.end_early("budget")
        elif self._is_gain(self.confirmation):
            self.best = self.confirmation

    def _costs(
        self, reference: Measure, candidate: Measure, count: int, first: int = 0
    ) -> Iterator[tuple[float, float]]:
        """Yield costs of another candidate and of this one, measured in turns, while there is time."""
        for number in range(first, first + count):
            if self.clock() > self._deadline:
                return
            # The first one may be at a disadvantage, or at an advantage.
            costs = {one: one() for one in alternating((reference, candidate), number)}
            yield costs[reference], costs[candidate]

    def _is_gain(self, trial: Trial) -> bool:
        return trial.interval.high < 1 and trial.interval.median <= 1 - MINIMUM_GAIN

    def _gaining(self) -> list[Trial]:
        """Trials that seem a gain, the best first: by the interval's end, since luck makes the lowest medians."""
        gaining = [trial for trial in self.trials if trial.interval.median <= 1 - MINIMUM_GAIN]
        return sorted(gaining, key=lambda one: one.interval.high)
