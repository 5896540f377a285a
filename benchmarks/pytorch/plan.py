"""The comparison with PyTorch: its settings, and the ways that are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ortmulti.bench.strategies.base import Array
from ortmulti.errors import InvalidArgument

PRECISIONS = ("fp32", "tf32", "fp16")
PLACES = ("host", "device")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

ROUNDS = 11

TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "fp16": 0.05}
"""The largest difference to PyTorch's fp32 output, as a part of that output's largest value."""


@dataclass(frozen=True)
class Setting:
    """What both sides have in common.

    Attributes:
        precision: "fp32" (without TF32), "tf32" (fp32 with TF32) or "fp16".
        batch: images a run.
        place: "host": NumPy arrays in and out; "device": inputs and outputs lie on the device.
    """

    precision: str
    batch: int
    place: str

    @property
    def name(self) -> str:
        return f"{self.precision}, batch {self.batch}, {self.place}"


@dataclass(frozen=True)
class TorchPlan:
    """A whole comparison.

    Attributes:
        device: "cuda:N", or "cpu" for trying it out: there is no TF32, no graph and no fp16 then.
        precisions, batches, places: the settings; every combination is compared.
        compile_modes: torch.compile's modes that are tried; where it does not work, the result says so.
        rounds: of blocks of runs, every contender's in each.
        block_seconds: how long a block lasts at least.
        timeout: seconds that one setting may take, compilation included.
        budget: seconds that all settings may take; none begins that would take longer, going by the longest before it,
            and the result names those that are left out. The first is always measured. None: any number.
    """

    device: str = "cuda:0"
    precisions: Sequence[str] = PRECISIONS
    batches: Sequence[int] = (1, 32)
    places: Sequence[str] = PLACES
    compile_modes: Sequence[str] = ("default", "reduce-overhead")
    rounds: int = ROUNDS
    block_seconds: float = 0.2
    timeout: float = 600.0
    budget: float | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidArgument: an empty list, a name that is none, a number that is too small, or what the CPU has not.
        """
        allowed = {"precisions": PRECISIONS, "places": PLACES, "compile_modes": COMPILE_MODES}
        for what, names in allowed.items():
            if unknown := [name for name in getattr(self, what) if name not in names]:
                raise InvalidArgument(f"{what.replace('_', ' ')} are {', '.join(names)}, not {', '.join(unknown)}")
        for what in ("precisions", "batches", "places"):
            if not getattr(self, what):
                raise InvalidArgument(f"nothing to compare: no {what}")
        if min(self.batches) < 1 or self.rounds < 1 or not self.block_seconds > 0:
            raise InvalidArgument(
                f"batches, rounds and the seconds of a block are positive, not {min(self.batches)}, {self.rounds} and "
                f"{self.block_seconds:g}"
            )
        if self.device == "cpu" and set(self.precisions) != {"fp32"}:
            raise InvalidArgument("on the CPU the comparison is of fp32 alone")

    def settings(self) -> list[Setting]:
        """All of them, in the order of the table."""
        return [
            Setting(precision, batch, place)
            for precision in self.precisions
            for batch in self.batches
            for place in self.places
        ]

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON can carry it."""
        return {
            "device": self.device,
            "precisions": list(self.precisions),
            "batches": list(self.batches),
            "places": list(self.places),
            "compile_modes": list(self.compile_modes),
            "rounds": self.rounds,
            "block_seconds": self.block_seconds,
            "tolerances": {precision: TOLERANCES[precision] for precision in self.precisions},
            "timeout": self.timeout,
            "budget": self.budget,
        }


@dataclass(frozen=True)
class Way:
    """What is timed.

    Attributes:
        run: one inference, done on return; gives its output.
        array: a run's output as an array.
    """

    run: Callable[[], Any]
    array: Callable[[Any], Array]


@dataclass(frozen=True)
class Contender:
    """One line of a setting's table.

    Attributes:
        side: "ortmulti" or "pytorch".
        name: what is done there.
        open: makes it ready; what it returns is left open while it is measured.
    """

    side: str
    name: str
    open: Callable[[], AbstractContextManager[Way]]
