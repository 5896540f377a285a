"""How colours look to people who see colours differently, and how far apart they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Linear = NDArray[np.float64]

# Machado, Oliveira and Fernandes 2009: what a person without one kind of cone sees, in linear RGB.
VISIONS: dict[str, Linear] = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Ottosson's Oklab: equal distances look about equally different.
_TO_CONES = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.6806995, 0.10739696], [0.08830246, 0.28171884, 0.62997870]]
)
_TO_LAB = np.array(
    [
        [0.21045426, 0.79361778, -0.00407205],
        [1.97799850, -2.42859220, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
)


def linear(colour: str) -> Linear:
    """ "#rrggbb" in linear RGB."""
    channels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def distance(one: str, other: str, vision: str) -> float:
    """How different two colours look, 0 to about 1; 0.02 is barely seen."""

    def lab(colour: str) -> Linear:
        seen = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
        return np.asarray(_TO_LAB @ np.cbrt(_TO_CONES @ seen))

    return float(np.linalg.norm(lab(one) - lab(other)))
