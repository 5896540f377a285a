"""``python -m ortmulti.cli``: the same as the command `ortmulti`."""

from __future__ import annotations

from . import main

if __name__ == "__main__":
    main()
