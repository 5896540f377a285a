"""The result of a rule: a cause, the time that a change would save, and how to run this change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ModelKind = Literal["as it is", "optimized", "in memory"]


@dataclass(frozen=True)
class Start:
    """A start of sessions that can be run again.

    Attributes:
        way: the strategy.
        devices: one for each session.
        cache: the page cache's state, "warm" or "cold".
        model: the model's own file; one that ONNX Runtime has optimized before; or a copy in memory.
        settings: changes of the session settings.
        environment: variables to set.
    """

    way: str
    devices: tuple[str, ...]
    cache: Literal["warm", "cold"] = "warm"
    model: ModelKind = "as it is"
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverStart:
    """A start of the CUDA driver alone.

    Attributes:
        gpus: whose contexts are made.
        only_these: whether the process sees no others.
        held: whether something keeps the driver loaded meanwhile, as persistence mode does.
    """

    gpus: tuple[str, ...]
    only_these: bool = False
    held: bool = False


@dataclass(frozen=True)
class Recipe:
    """A change that can be verified: starts before and after it are run in turns.

    Attributes:
        before, after: what to run.
        what: description of the comparison.
        until: end of the measured time: all sessions created, the same without the start of worker processes, or the
            first answers.
    """

    before: Start | DriverStart
    after: Start | DriverStart
    what: str
    until: Literal["created", "created by workers", "answered"] = "created"

    @classmethod
    def between(
        cls,
        devices: tuple[str, ...],
        before: str,
        after: str,
        what: str = "",
        *,
        until: Literal["created", "created by workers", "answered"] = "created",
        **changes: Any,
    ) -> Recipe:
        """Compare a start in one way with a start in another, or with one that has these fields of `Start`."""
        text = what or f"{before} against {after}"
        return cls(Start(before, devices), Start(after, devices, **changes), text, until)


@dataclass(frozen=True)
class Finding:
    """One thing that costs time.

    Attributes:
        id: the rule's name.
        title: one sentence with its figures.
        cause: one of `ortmulti.bench.diagnose.causes.CAUSES`, or another text.
        seconds: saving of a start on all devices; 0 if unknown.
        share: saving as a share of what it is a part of; `find` fills in that of the creation.
        evidence: the sources of the figures, a sentence each.
        change: what to do, one sentence.
        command: a command, or a line of Python, that does it.
        recipe: how to verify it; None if nothing can be run.
        verified: result of the verification, see `verify`.
    """

    id: str
    title: str
    cause: str
    seconds: float
    evidence: list[str]
    change: str
    command: str | None = None
    share: float = 0.0
    recipe: Recipe | None = None
    verified: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as the document has it."""
        content = dataclasses.asdict(dataclasses.replace(self, recipe=None))
        del content["recipe"]
        return content
