"""`import ortmulti` loads little, and every name of the package is there when it is asked for."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ortmulti
from tests.support.processes import check_child

# `__init__.pyi`, which type checkers read in place of `__init__.py`, has not these.
MODULE_OF: dict[str, str] = vars(ortmulti)["_MODULE_OF"]
MODULES: set[str] = vars(ortmulti)["_MODULES"]
NAMES: list[str] = vars(ortmulti)["__all__"]
pytestmark = pytest.mark.essential

STUB = ast.parse(Path(ortmulti.__file__).with_suffix(".pyi").read_text("utf-8"))

# Their imports take milliseconds; what needs them imports them.
SLOW = {"argparse", "asyncio", "concurrent", "ctypes", "dataclasses", "difflib", "email", "hashlib", "hmac", "inspect"}
SLOW |= {"json", "logging", "multiprocessing", "pathlib", "platform", "queue", "random", "secrets", "shutil", "socket"}
SLOW |= {"statistics", "subprocess", "tempfile", "threading", "traceback", "unittest", "urllib", "zipfile"}
OTHERS = {"click", "google", "matplotlib", "ml_dtypes", "onnx", "onnxruntime", "platformdirs", "psutil"}
OTHERS |= {"pynvml", "rich", "torch", "typer"}


def imported(code: str) -> set[str]:
    """The modules that `code` adds to those of NumPy, in a new interpreter."""
    before = "import numpy, sys; before = set(sys.modules)"
    return set(check_child(f"{before}; {code}; print(*(set(sys.modules) - before))").split())


def test_the_import_loads_the_core_alone() -> None:
    loaded = imported("import ortmulti")
    assert {name for name in loaded if name.partition(".")[0] == "ortmulti"} == {"ortmulti", "ortmulti._core"}
    assert loaded.isdisjoint(SLOW)
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(OTHERS)


def test_a_session_needs_no_other_package_and_nothing_of_pools_or_adapters() -> None:
    loaded = imported("import ortmulti; ortmulti.InferenceSession")
    assert "ortmulti.session" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(OTHERS)
    assert loaded.isdisjoint({"asyncio", "json", "difflib", "secrets", "inspect"})
    assert not {
        name for name in loaded if name.startswith(("ortmulti.pool", "ortmulti.lora", "ortmulti._create.adapter"))
    }


def test_the_package_finds_the_names_that_type_checkers_see() -> None:
    """`__init__.pyi` as Python reads it, and as `__init__.py` does: one import a line."""
    seen: dict[str | None, set[str]] = {}
    for node in STUB.body[1:]:
        assert isinstance(node, ast.ImportFrom)
        [alias] = node.names
        assert (alias.asname, node.lineno) == (alias.name, node.end_lineno)  # `as` makes it public for type checkers
        seen.setdefault(node.module, set()).add(alias.name)
    assert seen.pop("ortmulti") == MODULES
    assert {name: module for module, names in seen.items() for name in names} == MODULE_OF
    assert sorted(MODULE_OF) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_what_its_module_defines(name: str) -> None:
    value = getattr(ortmulti, name)
    assert value is getattr(ortmulti, name)
    assert value is getattr(importlib.import_module(MODULE_OF[name]), name)
    if isinstance(value, type) and value.__module__ != "ortmulti._core":
        assert pickle.loads(pickle.dumps(value)) is value


def test_the_package_lists_its_names_before_they_are_used() -> None:
    check_child(
        """
        import ortmulti
        assert {*ortmulti.__all__, "errors", "pool", "providers", "__doc__"} <= set(dir(ortmulti))
        everything = {}
        exec("from ortmulti import *", everything)
        assert set(ortmulti.__all__) <= set(everything)
        """
    )


def test_modules_are_attributes_without_being_imported() -> None:
    check_child(
        """
        import ortmulti
        assert ortmulti.errors.Error is ortmulti.Error
        assert ortmulti.provider_options.__name__ == "ortmulti.provider_options"
        from ortmulti import timeline
        assert timeline.__name__ == "ortmulti.timeline"
        """
    )


@pytest.mark.parametrize("name", ["nothing", "interop", "__wrapped__"])
def test_what_there_is_not_is_an_attribute_error(name: str) -> None:
    code = f"import ortmulti; assert not hasattr(ortmulti, {name!r}); ortmulti.{name}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"AttributeError: module 'ortmulti' has no attribute '{name}'" in child.stderr


def test_many_threads_may_be_the_first_to_use_a_name() -> None:
    check_child(
        """
        import threading
        import ortmulti

        names = [*ortmulti.__all__] * 4
        barrier = threading.Barrier(16)
        failed = []

        def use(first):
            barrier.wait()
            for name in names[first:] + names[:first]:
                try:
                    getattr(ortmulti, name)
                except BaseException as error:
                    failed.append((name, repr(error)))

        threads = [threading.Thread(target=use, args=(7 * i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        """
    )


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs free-threaded Python")
def test_free_threaded_python_stays_without_its_lock() -> None:
    """A warning would be an error, and the lock switched on, where the extension asked for it."""
    code = "import sys, numpy, ortmulti; ortmulti.load; print(sys._is_gil_enabled())"
    assert check_child(code, environment={"PYTHON_GIL": None}) == "False\n"
