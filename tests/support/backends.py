"""The backends of pools, for tests of what they have in common."""

from __future__ import annotations

import pytest

BACKENDS = ("core", "threads", "processes")

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)
