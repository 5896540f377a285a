"""What a diagnosis measures: the arguments, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmulti.devices import name_devices
from ortmulti.errors import InvalidArgument, NoSuchFile
from ortmulti.tools.strategies import SessionSettings, check_name, names

BUDGET_SECONDS = 50.0
QUICK_SECONDS = 20.0
REPEAT = 5
_PARTS_OF_BUDGET = {"accounts": 0.5, "experiments": 0.75}


@dataclass(frozen=True)
class DiagnosisPlan:
    """The arguments of a diagnosis.

    Attributes:
        model: an .onnx file.
        devices: one for each session; None: every GPU, or two sessions on the CPU on a machine without NVIDIA hardware.
        ways: strategies, see `strategies.names`. Findings say what would be saved of the first one's time.
        repeat: how often each way is measured at most.
        budget: seconds after which no further repetition begins. Each way is measured once at least.
        quick: one repetition, and experiments that take long are left out.
        batch, sequence: sizes of the dynamic dimensions of inputs that are made up.
        inputs: arrays by the inputs' names, in place of those.
        settings: fields of `SessionSettings` that every session gets; the threads default to the cores divided by the
            sessions.
        timeout: seconds that one measurement may take.
    """

    model: Path
    devices: tuple[str, ...] | None = None
    ways: Sequence[str] = field(default_factory=names)
    repeat: int = REPEAT
    budget: float = BUDGET_SECONDS
    quick: bool = False
    batch: int = 1
    sequence: int = 16
    inputs: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an unknown way, device or setting, or a number that is none.
            NoSuchFile: the model does not exist.
        """
        if not self.ways:
            raise InvalidArgument(f"no way to create sessions was named; there are {', '.join(names())}")
        for way in self.ways:
            check_name(way)
        if len(set(self.ways)) < len(self.ways):
            raise InvalidArgument(f"a way is named twice: {', '.join(self.ways)}")
        if self.devices is not None:
            name_devices(self.devices)
        for what in ("budget", "timeout"):
            value = getattr(self, what)
            if not (math.isfinite(value) and value > 0):
                raise InvalidArgument(f"{what} is a number of seconds above 0, not {value}")
        for what in ("repeat", "batch", "sequence"):
            if getattr(self, what) < 1:
                raise InvalidArgument(f"{what} is at least 1, not {getattr(self, what)}")
        unknown = set(self.settings) - set(SessionSettings.__dataclass_fields__)
        if unknown:
            known = ", ".join(SessionSettings.__dataclass_fields__)
            raise InvalidArgument(f"unknown settings {', '.join(sorted(unknown))}; there are {known}")
        if not self.model.is_file():
            raise NoSuchFile(f"model {self.model} does not exist")

    def settings_for(self, devices: Sequence[str], cores: int) -> dict[str, Any]:
        """The settings of sessions side by side on `devices`, as the fields of `SessionSettings`."""
        shared = SessionSettings.side_by_side(devices, cores)
        return {"intra_op_num_threads": shared.intra_op_num_threads, **self.settings}

    def part_of_budget(self, part: str) -> float:
        """Seconds after the beginning until which a part of the diagnosis may begin something."""
        return self.budget * _PARTS_OF_BUDGET.get(part, 1.0)
