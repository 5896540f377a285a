"""Public names of a package, imported at the first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

__all__ = ["attach"]


def attach(
    package: str, names_of: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make a package's names its lazy attributes.

    Args:
        package: The package's ``__name__``.
        names_of: The names of each module, with blanks between them. Those of the package itself are its modules. Type
            checkers read the same names in the stub `__init__.pyi`; an installation need not have it.

    Returns:
        The package's ``__getattr__``, ``__dir__`` and ``__all__``, which has no modules.
    """
    module_of = {name: module for module, names in names_of.items() for name in names.split()}
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
