"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. Its sessions have onnxruntime's interface
(`InferenceSession`, `SessionOptions`, `RunOptions`). `create_sessions` returns such sessions without a pool. The
package opens the library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import.
It also imports its own modules at the first use: `__init__.pyi` lists the public names and their modules.
"""

from __future__ import annotations

from ortmulti._core import __version__ as __version__
from ortmulti._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
