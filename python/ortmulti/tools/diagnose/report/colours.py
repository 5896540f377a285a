"""One colour for each cause, the same in the terminal, on the page and in the plot.

Causes of one kind have one of Okabe and Ito's hues, which people with any colour vision tell apart, in steps of
lightness. Waiting and what is unexplained are hatched too. No report depends on colours alone: each names its causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ortmulti.tools.diagnose.causes import CAUSES


class Style(NamedTuple):
    """How a cause is drawn: "#rrggbb", and whether it is hatched."""

    colour: str
    hatched: bool = False

    @property
    def ink(self) -> str:
        """Black or white, whichever is read more easily on the colour."""
        return "#000000" if luminance(self.colour) > 0.18 else "#ffffff"


_STYLES = {
    # Python
    "interpreter": Style("#4a4f52"),
    "processes": Style("#37789f"),
    "imports": Style("#85a0a7"),
    "libraries": Style("#bac8e4"),
    # the driver
    "cuInit": Style("#c34805"),
    "context": Style("#eea675"),
    # the model and its graph
    "read model": Style("#f2e641"),
    "set up": Style("#9a8922"),
    "optimization level 1": Style("#0a3966"),
    "optimization level 2": Style("#147cc6"),
    "optimization level 3": Style("#6ec3f6"),
    "other optimization": Style("#195186"),
    "optimized model": Style("#6591c1"),
    "planning": Style("#c0e2fb"),
    # weights
    "read weights": Style("#08523a"),
    "stage weights": Style("#73c6a4"),
    "copy weights": Style("#369e5b"),
    "prepacking": Style("#ccf1dc"),
    # the first run
    "first use": Style("#a459a6"),
    "handles": Style("#692952"),
    "algorithm search": Style("#db809e"),
    "load kernels": Style("#9e4e84"),
    "run": Style("#f4c4c5"),
    # waiting
    "wait for the GIL": Style("#e0900c", hatched=True),
    "wait for another session": Style("#986c24", hatched=True),
    "wait": Style("#ffc57c", hatched=True),
    # neither
    "measurement": Style("#d6dadf"),
    "unexplained": Style("#eeeeee", hatched=True),
}
# For causes that a newer release knows and this one does not.
_OTHERS = tuple(Style(colour) for colour in ("#7f7f7f", "#b79f00", "#5f9ea0", "#a0522d", "#708090", "#bc8f8f"))


def style(cause: str) -> Style:
    """How `cause` is drawn."""
    return _STYLES.get(cause) or _OTHERS[sum(map(ord, cause)) % len(_OTHERS)]


def ordered(causes: Iterable[str]) -> list[str]:
    """The causes in the vocabulary's order, in which bars are stacked; unknown ones before what is unexplained."""
    places = {cause: place for place, cause in enumerate(CAUSES)}
    places["unexplained"] = len(places) + 1
    return sorted(causes, key=lambda cause: (places.get(cause, len(CAUSES)), cause))


def title(cause: str) -> str:
    """What a report calls `cause`."""
    known = CAUSES.get(cause)
    return known.title if known else cause


def explanation(cause: str) -> str:
    """What is counted as `cause`; empty for an unknown one."""
    known = CAUSES.get(cause)
    return known.explanation if known else ""


def luminance(colour: str) -> float:
    """The relative luminance of "#rrggbb" as WCAG 2 defines it, 0 to 1."""
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
