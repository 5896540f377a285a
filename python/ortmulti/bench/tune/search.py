"""The search: it chooses the next measurement and the best configuration, without processes or a clock of its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ortmulti.bench.measure.rounds import CONFIDENCE, Interval
from ortmulti.bench.tune.racing import Effort, OutOfTime, Racing, Sampler, Trial
from ortmulti.bench.tune.space import DEFAULTS, Choice, Configuration, RejectedError, Space
from ortmulti.errors import Fail

__all__ = ["Outcome", "Search"]

_MOST_WINNERS = 6
_MOST_STEPS = 6
_SEARCH_PART = 0.75
"""Of the budget; the rest is for the confirmation."""


@dataclass(frozen=True)
class Confirmed:
    """A configuration that was measured in turns with the defaults.

    Attributes:
        configuration: Which.
        ratio: Its cost over the defaults'.
    """

    configuration: Configuration
    ratio: Interval


@dataclass
class Outcome:
    """The result of a search.

    Attributes:
        best: The best configuration, and the ratio of its cost to the defaults'; None: nothing is better.
        confirmation: The candidate that was measured again in turns with the defaults, confirmed or not.
        trials: The trials against the defaults, in the order of their first measurement.
        parts: For each choice of the best: the cost without it divided by the cost with it.
        rejected: Configurations that cannot be used, with the reasons.
        partial: Reason why the search did not finish; None if it did.
    """

    best: Confirmed | None = None
    confirmation: Confirmed | None = None
    trials: list[Trial] = field(default_factory=list)
    parts: dict[Choice, Interval] = field(default_factory=dict)
    rejected: dict[Configuration, RejectedError] = field(default_factory=dict)
    partial: str | None = None


@dataclass(frozen=True)
class Change:
    """One setting of a configuration, changed: to a choice, or to its default."""

    setting: str
    choice: Choice | None

    def made_to(self, configuration: Configuration) -> Configuration:
        """Return the changed configuration."""
        return configuration.without(self.setting) if self.choice is None else configuration.with_choice(self.choice)


class Search:
    """Looks for the configuration with the least cost.

    Each choice alone is tried against the defaults. Choices that are surely worse leave; after each rung the worse half
    of the others without promise leaves, too. The winners are combined, and the combinations are tried in the same way.
    This is repeated from the best combination while something is better. It uses neighbours that cost no more at their
    last trial. Then random combinations follow. Choices that gain nothing are removed from the best. Finally it is
    measured in turns with the defaults. It is better only if the confidence interval of the ratios' median excludes "no
    gain".

    Args:
        space: The configurations to try.
        sampler: Measures.
        clock: The time in seconds.
        effort: How much is measured.
        budget: Seconds for all; None: no limit.
        minimum_gain: The smallest part of the cost that counts as a gain.
        seed: Of the order of the measurements.
        tell: Called with the next step.
    """

    def __init__(
        self,
        space: Space,
        sampler: Sampler,
        clock: Callable[[], float],
        effort: Effort,
        budget: float | None = None,
        minimum_gain: float = 0.01,
        seed: int = 0,
        tell: Callable[[str, str], None] | None = None,
    ) -> None:
        self._space = space
        self._effort = effort
        self._minimum_gain = minimum_gain
        self._tell = tell or (lambda _stage, _text: None)
        self._budget = budget
        self._random = random.Random(seed)
        self._racing = Racing(sampler, clock, self._random, self._tell)
        self._begin = clock()
        self._best = DEFAULTS  # so far, before it is confirmed
        self._ratios: dict[Change, float] = {}  # what each change made of the cost when it was tried last
        self._around: tuple[Configuration, dict[Configuration, Trial]] = DEFAULTS, {}  # what was last stepped from
        self.outcome = Outcome(rejected=self._racing.rejected)

    def run(self) -> Outcome:
        """Search. After an exception, such as KeyboardInterrupt, `so_far` has the result.

        Raises:
            Fail: The defaults themselves cannot be measured.
        """
        if self._budget is not None:
            self._racing.deadline = self._begin + self._budget * _SEARCH_PART
        try:
            order = self._find()
        except OutOfTime:
            self.outcome.partial = "budget"
            order = [one for one in (self._best, *self._ranked()) if one != DEFAULTS]
        if self._budget is not None:
            self._racing.deadline = self._begin + self._budget
        return self._end(order)

    def run_grid(self, at_once: int) -> Outcome:
        """Try every configuration instead, `at_once` of them beside each other.

        Raises:
            Fail: The defaults themselves cannot be measured.
        """
        if self._budget is not None:
            self._racing.deadline = self._begin + self._budget * _SEARCH_PART
        configurations = [one for one in self._space.grid() if one != DEFAULTS]
        try:
            for first in range(0, len(configurations), max(1, at_once)):
                chunk = configurations[first : first + max(1, at_once)]
                name = f"grid {first + 1}-{first + len(chunk)} of {len(configurations)}"
                self._against(DEFAULTS, chunk, name, halve=False)
        except OutOfTime:
            self.outcome.partial = "budget"
        if self._budget is not None:
            self._racing.deadline = self._begin + self._budget
        return self._end(self._ranked())

    def on_top(self, choices: Iterable[Choice], pairs: int) -> dict[Choice, Interval]:
        """Measure choices on top of the best: the cost with each divided by the cost without it.

        Choices without time, or that cannot be used, are missing.
        """
        best = self.outcome.best.configuration if self.outcome.best is not None else DEFAULTS
        found = {}
        for choice in choices:
            try:
                restarts = min(pairs, self._effort.restarts)
                interval = Interval.of(self._racing.in_turns(best, best.with_choice(choice), pairs, restarts))
            except OutOfTime:
                break
            except RejectedError:
                continue
            if interval is not None:
                found[choice] = interval
        return found

    def so_far(self, partial: str) -> Outcome:
        """Return the confirmed result of a search that ends early; `partial` is the reason."""
        self.outcome.partial = partial
        if self.outcome.best is None:
            for trial in sorted(self.outcome.trials, key=lambda one: one.median):
                interval = trial.interval
                if interval.confidence >= CONFIDENCE and self._is_gain(interval) and not self._is_rejected(trial):
                    self.outcome.best = Confirmed(trial.configuration, interval)
                    break
        return self.outcome

    def _find(self) -> list[Configuration]:
        """Return the configurations that are worth confirming, the best first."""
        hopeless: set[Choice] = set()
        explored = False
        for number in range(_MOST_STEPS):
            found = self._step(self._best, hopeless, number)
            if found == self._best and not explored:
                found, explored = self._explore(self._best, hopeless), True
            if found == self._best:
                break
            self._best = found
        self._best = self._pruned(self._best)
        return [one for one in dict.fromkeys([self._best, *self._ranked()]) if one != DEFAULTS]

    def _step(self, best: Configuration, hopeless: set[Choice], number: int) -> Configuration:
        """Return a configuration better than `best`: a neighbour, or several combined; else `best`."""
        stage = "around the best" if number else "each setting alone"
        changes = [Change(choice.setting, choice) for choice in self._space.choices if choice not in hopeless]
        changes += [Change(choice.setting, None) for choice in best.choices]
        changes = [change for change in changes if self._ratios.get(change, 0.0) <= 1 + self._minimum_gain]
        neighbours = {change.made_to(best): change for change in changes}
        for known in (best, DEFAULTS):
            neighbours.pop(known, None)
        singles = self._against(best, list(neighbours), stage)
        if singles is None:
            return DEFAULTS
        self._around = best, {trial.configuration: trial for trial in singles}
        self._ratios |= {neighbours[trial.configuration]: trial.median for trial in singles}
        hopeless |= {
            change.choice
            for trial in singles
            if (change := neighbours[trial.configuration]).choice is not None and self._is_hopeless(trial)
        } | {choice for choice in self._space.choices if DEFAULTS.with_choice(choice) in self.outcome.rejected}
        winners: dict[str, Change] = {}
        for trial in sorted(singles, key=lambda one: one.median):
            if trial.median <= 1 - self._minimum_gain:
                change = neighbours[trial.configuration]
                winners.setdefault(change.setting, change)
        if len(winners) < 2:
            # Measured against the best already.
            return next((change.made_to(best) for change in winners.values()), best)
        first, *others = list(winners.values())[:_MOST_WINNERS]
        alone = combination = first.made_to(best)
        combinations = []
        for change in others:
            combination = change.made_to(combination)
            combinations.append(combination)
        trials = self._against(best, combinations, "combinations")
        if trials is None:
            return DEFAULTS
        trials += [trial for trial in singles if trial.configuration == alone]
        better = [trial for trial in trials if trial.median <= 1 - self._minimum_gain and trial.interval.low < 1]
        return min(better, key=lambda one: one.median).configuration if better else best

    def _explore(self, best: Configuration, hopeless: set[Choice]) -> Configuration:
        """Return a configuration better than `best` far from it, since settings may help only together; else `best`."""
        drawn = []
        for _ in range(self._effort.explore):
            configuration = best
            for one in self._space.settings:
                choices = [choice for choice in one.choices if choice not in hopeless]
                # Half of the settings stay as they are in the best.
                if choices and self._random.random() < 0.5:
                    configuration = configuration.with_choice(self._random.choice(choices))
            drawn.append(configuration)
        known = {best, DEFAULTS, *(trial.configuration for trial in self.outcome.trials)}
        trials = self._against(best, [one for one in drawn if one not in known], "several settings at once")
        better = [trial for trial in trials or () if self._is_gain(trial.interval)]
        return min(better, key=lambda one: one.median).configuration if better else best

    def _against(
        self, reference: Configuration, configurations: Sequence[Configuration], stage: str, halve: bool = True
    ) -> list[Trial] | None:
        """Return trials of these against a reference, without unusable ones; None if the reference has become unusable.

        Raises:
            Fail: The reference is the defaults.
        """
        rungs = self._effort.rungs if halve else self._effort.rungs[-1:]
        trials = [Trial(configuration) for configuration in dict.fromkeys(configurations)]
        try:
            self._racing.hold(reference, trials, rungs, stage, halve)
        except RejectedError as error:
            if reference == DEFAULTS:
                raise Fail(f"the model cannot be measured with the defaults: {error}") from error
            return None
        finally:
            if reference == DEFAULTS:
                self.outcome.trials += [trial for trial in trials if trial.ratios]
        return [trial for trial in trials if trial.ratios and not self._is_rejected(trial)]

    def _pruned(self, best: Configuration) -> Configuration:
        """Return `best` without choices that gain nothing, and keep the gain of each other choice."""
        parts = self._parts(best)
        idle = sorted(
            (choice for choice, trial in parts.items() if self._is_idle(trial)), key=lambda c: parts[c].median
        )
        pruned = best
        for choice in idle:
            pruned = pruned.without(choice.setting)
        if idle and (pruned == DEFAULTS or not self._is_as_good(pruned, best)):
            # Two of them may each do what the other does, so that one has to stay.
            pruned = best
            for choice in idle:
                fewer = pruned.without(choice.setting)
                if fewer != DEFAULTS and (pruned == best or self._is_as_good(fewer, best)):
                    pruned = fewer
            parts = self._parts(pruned)
        self.outcome.parts = {
            choice: trial.interval for choice, trial in parts.items() if choice in pruned.choices and trial.ratios
        }
        return pruned

    def _parts(self, best: Configuration) -> dict[Choice, Trial]:
        """Measure `best` without each of its choices against all of it; nothing for a single choice."""
        if len(best.choices) < 2:
            return {}
        reference, neighbours = self._around
        enough = self._effort.rungs[-2:][0]
        trials = {}
        for choice in best.choices:
            without = best.without(choice.setting)
            trial = neighbours.get(without) if reference == best else None
            trials[choice] = trial if trial is not None and len(trial.ratios) >= enough else Trial(without)
        unknown = [trial for trial in trials.values() if not trial.ratios]
        if unknown:
            with contextlib.suppress(RejectedError):  # which the confirmation finds, too
                rungs = self._effort.rungs[-1:]
                self._racing.hold(best, unknown, rungs, "what each setting gives", halve=False)
        return trials

    def _is_as_good(self, configuration: Configuration, best: Configuration) -> bool:
        trial = Trial(configuration)
        with contextlib.suppress(RejectedError):
            self._racing.hold(best, [trial], self._effort.rungs[-1:], "what each setting gives", halve=False)
        return self._is_idle(trial)

    def _is_idle(self, trial: Trial) -> bool:
        return bool(trial.ratios) and trial.median < 1 + self._minimum_gain

    def _end(self, order: Sequence[Configuration]) -> Outcome:
        """Confirm the first usable one of these, and only one: further tries would be further chances for an
        accident.
        """
        for configuration in order:
            try:
                ratios = self._racing.in_turns(DEFAULTS, configuration, self._effort.pairs, self._effort.restarts)
            except OutOfTime:
                return self.so_far("budget")
            except RejectedError:
                continue
            interval = Interval.of(ratios)
            if interval is not None:
                self.outcome.confirmation = Confirmed(configuration, interval)
                if self._is_gain(interval):
                    self.outcome.best = self.outcome.confirmation
            break
        if self.outcome.best is not None:
            kept = self.outcome.best.configuration.choices
            self.outcome.parts = {choice: part for choice, part in self.outcome.parts.items() if choice in kept}
        return self.outcome

    def _ranked(self) -> list[Configuration]:
        """Return configurations that seem better than the defaults, the best first."""
        trials = sorted(self.outcome.trials, key=lambda one: one.median)
        return [
            trial.configuration
            for trial in trials
            if trial.median <= 1 - self._minimum_gain and not self._is_rejected(trial)
        ]

    def _is_gain(self, ratio: Interval) -> bool:
        return ratio.high < 1 and ratio.median <= 1 - self._minimum_gain

    def _is_rejected(self, trial: Trial) -> bool:
        return trial.configuration in self.outcome.rejected

    def _is_hopeless(self, trial: Trial) -> bool:
        return trial.median > self._effort.hopeless and trial.interval.low > 1
