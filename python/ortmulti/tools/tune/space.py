"""Settings, the choices that each has, and configurations: one choice of each setting, or its default."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortmulti._create.tuning_options import Scalar, describe, near
from ortmulti.errors import InvalidArgument


@dataclass(frozen=True)
class Choice:
    """What one choice of a setting sets.

    Attributes:
        setting: The setting's name.
        items: Options and their values, in order.
    """

    setting: str
    items: tuple[tuple[str, Scalar], ...]

    def __str__(self) -> str:
        return describe(dict(self.items))


@dataclass(frozen=True)
class Setting:
    """Options that act together, and the choices beside their defaults."""

    name: str
    choices: tuple[Choice, ...]


def setting(name: str, *choices: Mapping[str, Scalar]) -> Setting:
    """A setting whose choices set these options; equal ones count once."""
    return Setting(name, tuple(dict.fromkeys(Choice(name, tuple(choice.items())) for choice in choices)))


@dataclass(frozen=True)
class Configuration:
    """At most one choice of each setting; without any: the defaults."""

    choices: tuple[Choice, ...] = ()

    @property
    def options(self) -> dict[str, Scalar]:
        """Everything that it sets."""
        return dict(item for choice in self.choices for item in choice.items)

    def with_choice(self, choice: Choice) -> Configuration:
        """This one with another choice of that setting."""
        kept = [kept for kept in self.choices if kept.setting != choice.setting]
        return Configuration(tuple(sorted([*kept, choice], key=lambda one: one.setting)))

    def without(self, setting: str) -> Configuration:
        """This one with the setting at its default."""
        return Configuration(tuple(choice for choice in self.choices if choice.setting != setting))

    def __str__(self) -> str:
        return describe(self.options)


DEFAULTS = Configuration()


@dataclass(frozen=True)
class Space:
    """All configurations of some settings."""

    settings: tuple[Setting, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Those of all settings."""
        return tuple(choice for setting in self.settings for choice in setting.choices)

    @property
    def size(self) -> int:
        """How many configurations there are, the defaults included."""
        return math.prod(1 + len(setting.choices) for setting in self.settings)

    def grid(self) -> Iterator[Configuration]:
        """Every configuration, the defaults first."""
        for chosen in itertools.product(*[(None, *setting.choices) for setting in self.settings]):
            found = (choice for choice in chosen if choice is not None)
            yield Configuration(tuple(sorted(found, key=lambda one: one.setting)))

    def select(self, only: Sequence[str] | None, skip: Collection[str]) -> Space:
        """The part of it that is to be tried.

        Args:
            only: Names of settings, or of options in them: choices that set other options are left out; None: all.
            skip: Those that are left out.

        Raises:
            InvalidArgument: A name that is none, or that is both in `only` and in `skip`; or nothing is left.
        """
        names = {setting.name for setting in self.settings} | set(_options(self.choices))
        for name in [*(only or ()), *skip]:
            if name not in names:
                raise InvalidArgument(f"there is no setting {name!r} to tune here{near(name, names)}")
        if both := sorted(set(only or ()) & set(skip)):
            raise InvalidArgument(f"{', '.join(both)}: both asked for and left out")
        settings = []
        for one in self.settings:
            wanted = [
                choice
                for choice in one.choices
                if (only is None or one.name in only or set(_options([choice])) <= set(only))
                and one.name not in skip
                and not set(_options([choice])) & set(skip)
            ]
            if wanted:
                settings.append(Setting(one.name, tuple(wanted)))
        if not settings:
            raise InvalidArgument("no setting is left to be tuned")
        return Space(tuple(settings))


def _options(choices: Iterable[Choice]) -> Iterator[str]:
    return (name for choice in choices for name, _ in choice.items)
