"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. The interface of its sessions is onnxruntime's own
(`InferenceSession`, `SessionOptions`, `RunOptions`); `create_sessions` makes them alone. The package opens the ONNX
Runtime library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import. Its own
modules are imported at the first use, too: `__init__.pyi` lists the public names and their modules.
"""

from __future__ import annotations

from ortmulti._core import __version__ as __version__
from ortmulti._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
