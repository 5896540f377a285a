"""Runs one measurement of a diagnosis after the other, each in a fresh process, and keeps what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ortmulti.errors import Error
from ortmulti.tools.measure import fresh_process
from ortmulti.tools.strategies import SessionSettings

from .plan import DiagnosisPlan

# Where ortmulti keeps optimized models.
CACHE_VARIABLE = "ORTMULTI_CACHE"


class EndedError(Exception):
    """The diagnosis cannot go on; the text says why, for its reader."""


@dataclass
class Bench:
    """The measurements of one diagnosis.

    Attributes:
        plan: what to measure.
        devices: one for each session.
        cores: that this process may use.
        files: the model's.
        feeds: an .npz file with the inputs.
        cache: a folder for the model's optimized forms alone.
        progress: called before each measurement with how many are done, about how many there will be, and a text.
        check_devices: raises `EndedError` if a device is no longer there.
        held_open_helps: whether a GPU is without persistence mode, so that the driver is unloaded between processes.
        runs: what was measured, as the document has it.
    """

    plan: DiagnosisPlan
    devices: tuple[str, ...]
    cores: int
    files: tuple[Path, ...]
    feeds: Path
    cache: Path
    progress: Callable[[int, int, str], None]
    check_devices: Callable[[], None]
    held_open_helps: bool = False
    begin: float = field(default_factory=time.monotonic)
    runs: list[dict[str, Any]] = field(default_factory=list)
    _worked: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    _failures: int = 0
    _done: int = 0

    def elapsed(self) -> float:
        """Seconds since the diagnosis began."""
        return time.monotonic() - self.begin

    def say(self, text: str) -> None:
        """Tells how far the diagnosis is, and what comes next."""
        repetitions = 1 if self.plan.quick else 2
        expected = 3 + 3 * repetitions * len(self.plan.ways) + 20 * repetitions
        self.progress(self._done, max(expected, self._done + 1), text)
        self._done += 1

    def account(
        self,
        way: str,
        devices: Sequence[str],
        *,
        cache: Literal["warm", "cold"] = "warm",
        experiment: str = "account",
        model: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        counted: bool = True,
        instrumented: bool = True,
    ) -> dict[str, Any]:
        """Accounts for a start, see `ortmulti.tools.diagnose.trace`.

        Args:
            way: the strategy.
            devices: one for each session.
            cache: "warm" or "cold": whether the model's files are in the page cache beforehand.
            experiment: what the run is for.
            model: in place of the plan's.
            settings: changes of the session settings.
            environment: variables to set besides.
            counted: whether the run becomes part of the document.
            instrumented: False: nothing is watched, and there are no spans.

        Returns:
            The run; with "error" if it failed.

        Raises:
            EndedError: a device is gone, or what worked before fails again and again.
        """
        from ortmulti.tools.diagnose.trace import account

        chosen = {**self.plan.settings_for(devices, self.cores), **(settings or {})}
        self.say(f"{'' if counted else 'uncounted: '}{_text(experiment, way, devices, cache)}")

        def run() -> dict[str, Any]:
            return account(
                model or self.plan.model,
                way,
                devices,
                settings=SessionSettings(**chosen),
                cache=cache,
                feeds=self.feeds,
                timeout=self.plan.timeout,
                environment={CACHE_VARIABLE: str(self.cache), **(environment or {})},
                instrumented=instrumented,
                experiment=experiment,
            )

        described = {"experiment": experiment, "way": way, "devices": list(devices), "cache": cache, "settings": chosen}
        return self._keep(described, run, counted)

    def experiment(
        self,
        name: str,
        module: str,
        spec: dict[str, Any],
        *,
        way: str,
        devices: Sequence[str],
        environment: Mapping[str, str] | None = None,
        counted: bool = True,
        **fields: Any,
    ) -> dict[str, Any]:
        """Measures something else in a fresh process; its answer is the run's "measured".

        Args:
            name: the experiment's.
            module: the module whose `measure` is called.
            spec: its argument.
            way, devices: what it is about.
            environment: variables to set besides.
            counted: whether the run becomes part of the document.
            fields: what else the run shall say.

        Returns:
            The run; with "error" if it failed.

        Raises:
            EndedError: as `account`.
        """
        self.say(f"{name}, {way} on {', '.join(devices)}" if len(devices) < 5 else f"{name}, {way}")

        def run() -> dict[str, Any]:
            return {"measured": fresh_process.run(module, spec, self.plan.timeout, environment)}

        described = {
            "experiment": name,
            "way": way,
            "devices": list(devices),
            "cache": "warm",
            "settings": {},
            **fields,
        }
        return self._keep(described, run, counted)

    def here(
        self, name: str, work: Callable[[], dict[str, Any]], *, way: str, devices: Sequence[str], cache: str
    ) -> dict[str, Any]:
        """Measures something in this process; otherwise as `experiment`."""
        self.say(f"{name}, {way}")
        described = {"experiment": name, "way": way, "devices": list(devices), "cache": cache, "settings": {}}
        return self._keep(described, work, counted=True)

    def _keep(self, described: dict[str, Any], run: Callable[[], dict[str, Any]], counted: bool) -> dict[str, Any]:
        key = (described["way"], tuple(described["devices"]))
        try:
            result = run()
        except Error as error:  # of the measuring process, or of the page cache
            result = {"error": str(error) or type(error).__name__}
        result = {**described, **result, **described}  # the run's own names of these hold
        if counted:
            result["id"] = f"{described['experiment']}-{len(self.runs) + 1}"
            self.runs.append(result)
        if "error" not in result:
            self._worked.add(key)
            self._failures = 0
            return result
        self.check_devices()
        if key in self._worked:
            self._failures += 1
            if self._failures >= 2:
                where = ", ".join(dict.fromkeys(described["devices"]))
                raise EndedError(
                    f"{described['way']} on {where} worked before and does not any more: {result['error']}"
                )
        return result


def _text(experiment: str, way: str, devices: Sequence[str], cache: str) -> str:
    from ortmulti.tools.measure.devices import describe

    what = "" if experiment == "account" else f"{experiment}, "
    return f"{what}{way} on {describe(devices)}{', cold page cache' if cache == 'cold' else ''}"
