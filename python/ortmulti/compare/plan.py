"""What a comparison measures, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ortmulti.errors import InvalidArgument
from ortmulti.strategies import SessionSettings, names


@dataclass(frozen=True)
class Case:
    """One line of the table: a model on devices, by a strategy."""

    model: Path
    devices: tuple[str, ...]
    strategy: str


@dataclass(frozen=True)
class Plan:
    """A whole comparison.

    Attributes:
        models: .onnx files.
        device_sets: the devices of each number of sessions that is compared.
        strategies: names, see `ortmulti.strategies.names`.
        repeat: how often each case is measured.
        cold: whether the model is put out of the page cache before each measurement; otherwise it is read into it.
        intra_op_num_threads: CPU threads of each session; None shares the cores among the sessions of a case.
        cores: the cores to share.
        provider_options: options of the CUDA provider.
        timeout: seconds that one measurement may take.
    """

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    strategies: Sequence[str] = field(default_factory=names)
    repeat: int = 5
    cold: bool = False
    intra_op_num_threads: int | None = None
    cores: int = 1
    provider_options: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an empty list, an unknown strategy, or a number below one.
        """
        for what in ("models", "device_sets", "strategies"):
            if not getattr(self, what):
                raise InvalidArgument(f"nothing to compare: no {what.replace('_', ' ')}")
        for strategy in self.strategies:
            if strategy not in names():
                raise InvalidArgument(f"unknown strategy {strategy!r}; there are {', '.join(names())}")
        if self.repeat < 1:
            raise InvalidArgument(f"each case is measured at least once, not {self.repeat} times")
        if self.intra_op_num_threads is not None and self.intra_op_num_threads < 0:
            raise InvalidArgument(f"the number of threads is {self.intra_op_num_threads}, but must not be negative")

    def settings(self, devices: tuple[str, ...]) -> SessionSettings:
        """The session options of a case on `devices`, the same for every strategy."""
        if self.intra_op_num_threads is not None:
            return SessionSettings(self.intra_op_num_threads, self.provider_options)
        return SessionSettings.side_by_side(devices, self.cores, provider_options=self.provider_options)

    def cases(self) -> list[Case]:
        """Every case, in the order of the table."""
        return [
            Case(model, devices, strategy)
            for model in self.models
            for devices in self.device_sets
            for strategy in self.strategies
        ]

    def order(self) -> list[Case]:
        """The cases in the order in which they are measured, each `repeat` times.

        The strategies take turns, so that what changes with time (clock speed, other load) meets all of them alike,
        and each repetition begins with another one, so that none always follows the same.
        """
        measured = []
        for repetition in range(self.repeat):
            turn = repetition % len(self.strategies)
            rotated = [*self.strategies[turn:], *self.strategies[:turn]]
            measured += [
                Case(model, devices, strategy)
                for model in self.models
                for devices in self.device_sets
                for strategy in rotated
            ]
        return measured
