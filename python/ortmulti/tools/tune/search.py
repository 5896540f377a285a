"""The search: what is measured next, and what is better. It knows no processes and no clock of its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ortmulti.errors import Fail
from ortmulti.tools.measure.rounds import CONFIDENCE, Interval
from ortmulti.tools.tune.racing import Effort, OutOfTime, Racing, Sampler, Trial
from ortmulti.tools.tune.space import DEFAULTS, Choice, Configuration, RejectedError, Space

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
    """What a search has found.

    Attributes:
        best: The best configuration, and how much its cost is of the defaults'; None: nothing is better.
        confirmation: The candidate that was measured again, in turns with the defaults, whether or not it held up.
        trials: What was tried against the defaults, in the order of the first time.
        parts: Of the best one's choices: the cost without it over the cost with it.
        rejected: What cannot be used, and why.
        partial: Why the search has not ended; None: it has.
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

    Each choice alone is tried against the defaults; those that are surely worse, and after each rung the worse half of
    those that promise nothing, leave. The winners are combined, and the combinations are tried the same way. That is
    repeated from the best combination as long as something is better, with those of its neighbours that cost no more
    when they were tried last. Then others are drawn at random. What of the best gives nothing is removed. At last it is
    measured in turns with the defaults: it is better only if the confidence interval of the median of the ratios
    excludes none.

    Args:
        space: What there is to try.
        sampler: Measures.
        clock: The time in seconds.
        effort: How much is measured.
        budget: Seconds for all; None: as many as it takes.
        minimum_gain: The part of the cost below which a gain is none.
        seed: Of the order of the measurements.
        tell: Is told what comes next.
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
        """Searches. What was found until an exception, such as KeyboardInterrupt, is in `so_far`.

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
        """What each of these gives on top of the best: the cost with it over the cost without it.

        Those for which there is no time, or that cannot be used, are missing.
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
        """What is confirmed when the search is ended before its time, and why it is."""
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
        """What is better than `best`: one of its neighbours, or several of them combined; else `best`."""
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
        """What is better than `best` among others far from it: settings may help only together; else `best`."""
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
        """Return trials of these against one, without those that cannot be used; None: the one cannot be used any more.

        Raises:
            Fail: That is the defaults.
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
        """`best` without the choices that give nothing; what each of the others gives is kept."""
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
        """Of each choice of `best`: what is left without it, measured against all of it; nothing for one alone."""
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
        """Confirm the first of these that can be used: with each further try, chance would have another one, too."""
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
        """What seems better than the defaults, the best first."""
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
