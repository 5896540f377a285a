"""ONNX models on every GPU of a host, created at once and off the GIL.

`load` makes one model ready on several devices and returns a `Pool`. The interface of its sessions is onnxruntime's own
(`InferenceSession`, `SessionOptions`, `RunOptions`); `create_sessions` makes them alone. The package opens the ONNX
Runtime library of the installed onnxruntime-gpu or onnxruntime distribution at the first use, not at import. Its own
modules are imported at the first use, too: `__init__.pyi` lists the public names and their modules.
"""

from __future__ import annotations

from ortmulti._core import __version__ as __version__


def _read_stub() -> tuple[dict[str, str], set[str]]:
    """The module of each public name, and the public modules."""
    module_of, modules = {}, set()
    with open(f"{__file__.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:  # noqa: PTH123  # pathlib takes 3 ms
        for words in map(str.split, stub):
            if words[:1] != ["from"]:
                continue
            _, module, _, name, *_ = words
            if module == "ortmulti":
                modules.add(name)
            else:
                module_of[name] = module
    return module_of, modules


_MODULE_OF, _MODULES = _read_stub()

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"ortmulti.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'ortmulti' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
