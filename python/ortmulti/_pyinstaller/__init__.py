"""What PyInstaller collects of ortmulti beside the modules that it sees imported."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the folder of the hook. PyInstaller calls this by the package's entry point."""
    return [os.path.dirname(__file__)]  # noqa: PTH120
