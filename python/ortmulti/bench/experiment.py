"""The engine under the commands of `ortmulti bench`, and under the scripts of `benchmarks`.

A command or a script declares an `Experiment`: its cases, how one case is measured once, and the rows of its table.
The engine takes the cases in turns, round after round, and makes the result.
"""

from __future__ import annotations

import abc
import itertools
import math
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ortmulti.bench.measure import page_cache, results
from ortmulti.bench.measure.rounds import Interval, failure, of_case, ratios
from ortmulti.bench.reports.tables import Column, Report, figures
from ortmulti.checks import was_url
from ortmulti.errors import Error, InvalidArgument, NoSuchFile

Case = TypeVar("Case", bound=Hashable)
Json = Mapping[str, Any]

Step = Callable[[int, int, str], None]
"""Receives the number of finished measurements, the number of all, and the next one ("" at the end)."""


class Experiment(abc.ABC, Generic[Case]):
    """What a command measures. A subclass is a dataclass of its settings.

    Attributes:
        kind: the kind of the result, see `ortmulti.bench.measure.results.document`.
        report: shows the result.
        columns: the figures of the rows that come from the measurements, see `rows`.
        models: .onnx files.
        repeat: number of rounds. Each measures every case once, unless `rounds` says another number.
    """

    kind: ClassVar[str]
    report: ClassVar[Report]
    columns: ClassVar[Sequence[Column]] = ()
    models: Sequence[Path]
    repeat: int

    @property
    def rounds(self) -> int:
        """How often every case is measured."""
        return self.repeat

    @abc.abstractmethod
    def cases(self, number: int = 0) -> Sequence[Case]:
        """Return every case, in the order of round `number`. Round 0 has the order of the table."""

    def describe(self, case: Case) -> dict[str, Any]:
        """Return the fields of a measurement that say which case it is: by default those of the case, or its name."""
        if isinstance(case, str):
            return {"case": case}
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in (case._asdict() if isinstance(case, tuple) else vars(case)).items()  # type: ignore[attr-defined]
        }

    def prepare(self, folder: Path, step: Callable[[str], None]) -> None:
        """Do what comes before the first round, with a temporary folder that is there until the last one has ended.
        `step` is called with a text before each step that takes long.
        """

    @abc.abstractmethod
    def measure(self, case: Case, number: int) -> dict[str, Any]:
        """Measure a case once, in a fresh process.

        Raises:
            Error: it failed. The error becomes part of the result, and the other cases go on.
        """

    def settings(self) -> dict[str, Any]:
        """Return the settings for the result: the fields without the models."""
        values = asdict(self)  # type: ignore[call-overload]
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in values.items() if name != "models"
        }

    def rows(self, rounds: Sequence[Mapping[Case, Json]]) -> list[dict[str, Any]]:
        """Return a row of the table for each case: what `describe` returns, "measured" (how many measurements there
        are), "errors" (of those that failed), the figures of `columns`, and what `beside` returns.

        Args:
            rounds: the results of each round by case. A failed one has "error".
        """
        rows = []
        for case in self.cases():
            found = of_case(rounds, case)
            good = worked(found)
            outcome = {"measured": len(good), "errors": [one["error"] for one in found if "error" in one]}
            made = figures(self.columns, good)
            rows.append({**self.describe(case), **outcome, **made, **self.beside(case, good, rounds)})
        return rows

    def beside(self, case: Case, good: Sequence[Json], rounds: Sequence[Mapping[Case, Json]]) -> dict[str, Any]:  # noqa: ARG002
        """Return further fields of a case's row; `good` are its measurements that worked."""
        return {}

    @classmethod
    def over(cls, case: Case, base: Case, rounds: Sequence[Mapping[Case, Json]], key: str) -> dict[str, float] | None:
        """Return the interval of a case's figure over that of another case, within the rounds."""
        return Interval.json(ratios(rounds, case, base, lambda one: one.get(key)))

    @classmethod
    def where(cls, measurement: Json) -> str:
        """Name a measurement of a result, or what `describe` returns: for the progress and for failures."""
        return ", ".join(str(value) for key, value in measurement.items() if key in cls.labels(measurement))

    @classmethod
    def labels(cls, described: Json) -> list[str]:
        """Return the fields of a measurement or a row that `describe` returned: they are the first ones."""
        return list(itertools.takewhile(lambda key: key not in ("round", "measured"), described))

    @classmethod
    def complaints(cls, measurement: Json) -> list[str]:
        """Return what is wrong with a measurement of a result, a text each."""
        return [measurement["error"]] if "error" in measurement else []

    @classmethod
    def failures(cls, document: Json) -> list[str]:
        """Return what is wrong with the measurements of a result, a text each."""
        return [f"{cls.where(one)}: {text}" for one in document["measurements"] for text in cls.complaints(one)]

    def check_not_empty(self, *names: str) -> None:
        """Raise `InvalidArgument` if a list is empty."""
        for name in names:
            if not getattr(self, name):
                raise InvalidArgument(f"nothing to compare: no {name.replace('_', ' ')}")

    def check_at_least(self, **least: float) -> None:
        """Raise `InvalidArgument` if a setting is below its lower limit, or not finite; None is allowed."""
        for name, limit in least.items():
            value = getattr(self, name)
            if value is not None and not limit <= value < math.inf:
                raise InvalidArgument(f"{name} is at least {limit}, not {value}")

    def check_positive(self, *names: str) -> None:
        """Raise `InvalidArgument` if a setting is not above 0, or not finite; None is allowed."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidArgument(f"{name} is more than 0, not {value:g}")

    def check_models(self) -> None:
        """Raise `NoSuchFile` if a model does not exist."""
        for model in self.models:
            if not model.is_file():
                hint = ": it is measured as a file, so download it" if was_url(str(model)) else ""
                raise NoSuchFile(f"model {model} does not exist{hint}")

    def run(self, progress: Step | None = None) -> dict[str, Any]:
        """Measure every case `repeat` times, and return the result, see `ortmulti.bench.measure.results.document`.

        A measurement that fails becomes part of the result, and the others go on. Ctrl-C ends the measurements, not the
        call: "partial" is "interrupted" then.

        Args:
            progress: called before each measurement and at the end.

        Raises:
            NoSuchFile: a model, or a file that it names, does not exist.
            InvalidProtobuf: a file is not an ONNX model.
        """
        self.check_models()
        step: Step = progress or (lambda _done, _total, _text: None)
        done, total = itertools.count(), self.rounds * len(self.cases())

        def measure(case: Case, number: int) -> dict[str, Any]:
            step(next(done), total, self.where(self.describe(case)))
            try:
                return self.measure(case, number)
            except Error as error:
                return failure(error)

        facts = [results.model_facts(model, page_cache.external_files(model)) for model in self.models]
        partial: str | None = None
        with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder:
            self.prepare(Path(folder), lambda text: step(0, total, text))
            rounds: list[dict[Case, dict[str, Any]]] = []
            try:
                for number in range(self.rounds):
                    rounds.append({})
                    for case in self.cases(number):
                        rounds[-1][case] = measure(case, number)
                step(total, total, "")
            except KeyboardInterrupt:
                rounds, partial = [one for one in rounds if one], "interrupted"
                if not rounds:
                    raise
        return results.document(
            self.kind,
            settings={**self.settings(), "rounds": len(rounds)},
            models=facts,
            measurements=[
                {**self.describe(case), "round": number, **result}
                for number, found in enumerate(rounds)
                for case, result in found.items()
            ],
            rows=self.rows(rounds),
            partial=partial,
        )


def worked(found: Iterable[Json]) -> list[Json]:
    """Return the measurements that neither failed nor were skipped."""
    return [one for one in found if not {"error", "skipped"} & one.keys()]
