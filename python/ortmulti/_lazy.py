"""Public names of a package, listed once in its stub and imported at the first use."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["attach"]


def attach(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Read the stub `__init__.pyi`, whose lines are ``from MODULE import NAME as NAME``.

    A name of the package itself is one of its modules. Type checkers see the same lines.

    Args:
        package: The package's ``__name__``.
        file: The ``__file__`` of its ``__init__.py``.

    Returns:
        The package's ``__getattr__``, ``__dir__`` and ``__all__``, which has no modules.
    """
    module_of: dict[str, str] = {}
    with open(f"{file.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:  # noqa: PTH123  # pathlib takes 3 ms
        for words in map(str.split, stub):
            if words[:1] == ["from"]:
                module_of[words[3]] = words[1]
    names = sorted(name for name, module in module_of.items() if module != package)

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            hint = "" if name.startswith("_") else _did_you_mean(name, names)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        from importlib import import_module

        if module == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: names, names


def _did_you_mean(name: str, names: list[str]) -> str:
    from ortmulti.checks import did_you_mean  # after an error only

    return did_you_mean(name, names)
