"""The plan of a comparison: its cases and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortmulti.bench.measure.rounds import rotated
from ortmulti.bench.strategies import SessionSettings, check_name, names
from ortmulti.errors import InvalidArgument

Before = Literal["nothing", "contexts", "model"]


@dataclass(frozen=True)
class Case:
    """One line of the table: a model on devices, by a strategy."""

    model: Path
    devices: tuple[str, ...]
    strategy: str


@dataclass(frozen=True)
class Options:
    """Options of sessions beyond the usual ones.

    Attributes:
        provider: options of the CUDA provider.
        config_entries: session configuration entries.
    """

    provider: Mapping[str, str] = field(default_factory=dict)
    config_entries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A whole comparison.

    Attributes:
        models: .onnx files.
        device_sets: the devices of each number of sessions that is compared.
        strategies: names, see `ortmulti.bench.strategies.names`.
        repeat: how often each case is measured.
        cold: whether the model is removed from the page cache before each measurement; otherwise it is read into it.
        entry: whether measurements find the model's entry in the cache of optimized models. Otherwise the cache, a
            temporary one, is emptied before each, as for the first load ever.
        before: state of each measured process before the creation: nothing, the devices' CUDA contexts, or sessions of
            a small model (with contexts and all libraries).
        intra_op_num_threads: CPU threads of each session; None shares the cores among the sessions of a case.
        cores: the cores to share.
        options: options of every session.
        strategy_options: further options of one strategy's sessions, by its name.
        timeout: seconds that one measurement may take.
    """

    models: Sequence[Path]
    device_sets: Sequence[tuple[str, ...]]
    strategies: Sequence[str] = field(default_factory=names)
    repeat: int = 5
    cold: bool = False
    entry: bool = True
    before: Before = "nothing"
    intra_op_num_threads: int | None = None
    cores: int = 1
    options: Options = field(default_factory=Options)
    strategy_options: Mapping[str, Options] = field(default_factory=dict)
    timeout: float = 1800.0

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an empty list, an unknown strategy, or a number below one.
        """
        for what in ("models", "device_sets", "strategies"):
            if not getattr(self, what):
                raise InvalidArgument(f"nothing to compare: no {what.replace('_', ' ')}")
        for strategy in (*self.strategies, *self.strategy_options):
            check_name(strategy)
        if self.repeat < 1:
            raise InvalidArgument(f"each case is measured at least once, not {self.repeat} times")
        if self.intra_op_num_threads is not None and self.intra_op_num_threads < 0:
            raise InvalidArgument(f"the number of threads is {self.intra_op_num_threads}, but must not be negative")

    def settings(self, devices: tuple[str, ...], strategy: str) -> SessionSettings:
        """Return the session options of a case: the same for every strategy, except its own further options."""
        own = self.strategy_options.get(strategy, Options())
        options: dict[str, Any] = {
            "provider_options": {**self.options.provider, **own.provider},
            "config_entries": {**self.options.config_entries, **own.config_entries},
        }
        if self.intra_op_num_threads is not None:
            return SessionSettings(self.intra_op_num_threads, **options)
        return SessionSettings.side_by_side(devices, self.cores, **options)

    def cases(self) -> list[Case]:
        """Return every case, in the order of the table."""
        return [
            Case(model, devices, strategy)
            for model in self.models
            for devices in self.device_sets
            for strategy in self.strategies
        ]

    def round(self, number: int) -> list[Case]:
        """Return the cases of one round, in their order: each round begins with another strategy."""
        return [
            Case(model, devices, strategy)
            for model in self.models
            for devices in self.device_sets
            for strategy in rotated(self.strategies, number)
        ]
