"""Where the time goes, from the start of a process to the first answer on every device, and what would shorten it.

from ortmulti.bench.diagnose import diagnose

document = diagnose("model.onnx", devices=[0, 1])
print(document["findings"][0]["title"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis import diagnose

__all__ = ["diagnose"]

# A measured process imports modules of this package. The time of the others must not count.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .diagnosis import diagnose

        return diagnose
