"""`import ortmulti` loads little, and every name of the package is there when it is asked for."""

from __future__ import annotations

import ast
import collections.abc
import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import sysconfig
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing
import pytest

import ortmulti
from ortmulti import _core
from tests.support.processes import check_child, run_child

pytestmark = pytest.mark.essential

PACKAGES = {package.__name__: package for package in (ortmulti, ortmulti.pool, ortmulti.text)}
# `__init__.pyi`, which type checkers read in place of `__init__.py`, has no `__all__`.
NAMES = [(package, name) for package, module in PACKAGES.items() for name in vars(module)["__all__"]]


def listed(package: str) -> dict[str, str]:
    """The names that type checkers see in a package, and from which module each is."""
    stub = ast.parse(Path(str(PACKAGES[package].__file__)).with_suffix(".pyi").read_text("utf-8"))
    seen = {}
    for node in stub.body[1:]:
        assert isinstance(node, ast.ImportFrom)
        [alias] = node.names
        assert (alias.asname, node.lineno) == (alias.name, node.end_lineno)  # `as` makes it public
        assert alias.name not in seen
        seen[alias.name] = str(node.module)
    return seen


# Their imports take milliseconds; what needs them imports them.
SLOW = {"argparse", "asyncio", "concurrent", "ctypes", "dataclasses", "difflib", "email", "hashlib", "hmac", "inspect"}
SLOW |= {"json", "logging", "multiprocessing", "pathlib", "platform", "queue", "random", "secrets", "shutil", "socket"}
SLOW |= {"statistics", "subprocess", "tempfile", "threading", "traceback", "unittest", "urllib", "zipfile"}
OTHERS = {"click", "google", "matplotlib", "ml_dtypes", "onnx", "onnxruntime", "psutil"}
OTHERS |= {"pynvml", "ray", "rich", "torch", "typer"}


def imported(code: str) -> set[str]:
    """The modules that `code` adds to those of NumPy, in a new interpreter."""
    before = "import numpy, sys; before = set(sys.modules)"
    return set(check_child(f"{before}; {code}; print(*(set(sys.modules) - before))").split())


def test_the_import_loads_the_core_alone() -> None:
    loaded = imported("import ortmulti")
    assert {name for name in loaded if name.partition(".")[0] == "ortmulti"} == {
        "ortmulti",
        "ortmulti._core",
        "ortmulti._lazy",
    }
    assert loaded.isdisjoint(SLOW)
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(OTHERS)


def test_numbers_of_the_rules_can_be_others_for_a_measurement() -> None:
    numbers = {name: value for name, value, *_ in _core.numbers()}
    asked = "in_flight.most_on_cpu=1e6,batch_wait.share=0.25,"
    code = (
        "from ortmulti import _core; print(dict(number[:2] for number in _core.numbers()), _core.max_in_flight_on_cpu)"
    )
    found = check_child(code, environment={"ORTMULTI_NUMBERS": asked})
    assert found.split() == f"{numbers | {'in_flight.most_on_cpu': 1e6, 'batch_wait.share': 0.25}} 1000000".split()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("in_flight.mos=1", "has 'in_flight.mos=1': no number has this name; docs/inside/numbers.md lists them"),
        ("in_flight.most", "has 'in_flight.most=': give a whole number from 1 to 1e9"),
        ("average.runs=0", "has 'average.runs=0': give a whole number from 1 to 1e9"),
        ("average.runs=2.5", "has 'average.runs=2.5': give a whole number from 1 to 1e9"),
        ("average.runs=2,batch_wait.share=-1", "has 'batch_wait.share=-1': give a number from 0 to 1e9"),
        ("suspension.longest_pause=1e10", "has 'suspension.longest_pause=1e10': give a number from 0 to 1e9"),
        ("batch_wait.share=nan", "has 'batch_wait.share=nan': give a number from 0"),
        ("batch_wait.share=1 ", "has 'batch_wait.share=1 ': give a number from 0"),
        ("batch_wait.share=1,batch_wait.share=1", "has 'batch_wait.share=1': it is there twice: leave one"),
    ],
)
def test_a_wrong_number_is_named(asked: str, message: str) -> None:
    done = run_child("import ortmulti", environment={"ORTMULTI_NUMBERS": asked})
    assert done.returncode == 1
    assert f"ImportError: ORTMULTI_NUMBERS {message}" in done.stderr


def test_load_is_there_without_what_it_uses() -> None:
    """It imports the rest while the driver starts."""
    loaded = imported("import ortmulti; ortmulti.load")
    ours = {name for name in loaded if name.partition(".")[0] == "ortmulti"}
    assert len(ours) <= 9
    assert loaded - ours <= {"__future__", "importlib._abc", "importlib.util"}, "which an editable install imports"
    assert loaded.isdisjoint(SLOW)


def test_a_session_needs_no_other_package_and_nothing_of_pools_or_adapters() -> None:
    loaded = imported("import ortmulti; ortmulti.InferenceSession")
    assert "ortmulti.interface.session" in loaded
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(OTHERS)
    assert loaded.isdisjoint({"asyncio", "json", "difflib", "secrets", "inspect"})
    assert not {
        name
        for name in loaded
        if name.startswith(("ortmulti.pool", "ortmulti.interface.lora", "ortmulti.interface.adapter"))
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_the_names_that_type_checkers_see(package: str) -> None:
    names = sorted(name for name, module in listed(package).items() if module != package)
    assert vars(PACKAGES[package])["__all__"] == names
    assert dir(PACKAGES[package]) == names


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_modules_that_type_checkers_see(package: str) -> None:
    for name, module in listed(package).items():
        if module == package and (name != "ray" or importlib.util.find_spec("ray") is not None):
            assert getattr(PACKAGES[package], name) is importlib.import_module(f"{package}.{name}")


def test_no_stub_is_read() -> None:
    """Images and frozen programs leave stubs out."""
    check_child(
        """
        import sys
        opened = []
        sys.addaudithook(lambda event, arguments: event == "open" and opened.append(str(arguments[0])))
        import ortmulti.pool
        ortmulti.Pool, ortmulti.pool.Pool
        assert opened and not [path for path in opened if path.endswith(".pyi")]
        """
    )


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_name_is_what_its_module_defines(package: str, name: str) -> None:
    value = getattr(PACKAGES[package], name)
    assert value is getattr(importlib.import_module(listed(package)[name]), name)
    assert value is vars(PACKAGES[package])[name]
    if isinstance(value, type) and value.__module__ != "ortmulti._core":
        assert pickle.loads(pickle.dumps(value)) is value


def test_names_and_modules_are_there_before_they_are_used() -> None:
    check_child(
        """
        import ortmulti
        assert dir(ortmulti) == ortmulti.__all__
        assert ortmulti.errors.Error is ortmulti.Error
        assert ortmulti.options.__name__ == "ortmulti.options"
        from ortmulti import timeline
        assert timeline.__name__ == "ortmulti.timeline"
        everything = {}
        exec("from ortmulti import *", everything)
        assert set(ortmulti.__all__) <= set(everything)
        """
    )


@pytest.mark.parametrize(("module", "package"), [("ray", "ray"), ("otel", "opentelemetry")])
def test_an_adapter_names_its_extra(module: str, package: str) -> None:
    check_child(
        f"""
        import sys
        sys.modules["{package}"] = None  # as if it were not installed
        import ortmulti
        try:
            ortmulti.{module}
        except ortmulti.LibraryError as error:
            assert 'pip install "ortmulti[{module}]"' in str(error), error
        else:
            raise AssertionError("there is a module without {package}")
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


@pytest.mark.parametrize(("wrong", "meant"), [("laod", "load"), ("Session", "Sessions"), ("batching", "Batching")])
def test_a_wrong_name_is_an_error_with_the_right_one(wrong: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute '{wrong}' \(did you mean '{meant}'\?\)"):
        getattr(ortmulti, wrong)


def public_annotations() -> Iterator[tuple[str, str]]:
    """The annotations of public functions and methods, as `help` shows them."""
    for name in vars(ortmulti)["__all__"]:
        value = getattr(ortmulti, name)
        members = [(name, value)]
        if isinstance(value, type):
            members = [(f"{name}.{key}", one) for key, one in vars(value).items() if not key.startswith("_")]
        for path, member in members:
            function = inspect.unwrap(member.fget if isinstance(member, property) else member)
            if inspect.isfunction(function) and function.__module__.startswith("ortmulti"):
                yield from ((path, text) for text in function.__annotations__.values() if isinstance(text, str))


def test_annotations_name_what_a_reader_can_look_up() -> None:
    """Public names of ortmulti, of typing, collections.abc, os and numpy.typing; no aliases of private modules."""
    names = {**vars(typing), **vars(collections.abc), **vars(numpy.typing), "os": os, "np": np}
    names.update((name, getattr(ortmulti, name)) for name in vars(ortmulti)["__all__"])
    unknown = set()
    for path, text in public_annotations():
        try:
            eval(text, dict(names))
        except NameError as error:
            unknown.add((path.partition(".")[0], error.name))
    # matplotlib's, which may be absent; of methods for the package itself.
    assert unknown <= {("Timeline", "Figure"), ("Timeline", "_core"), ("Model", "_core")}


@pytest.mark.parametrize(
    "code",
    ["pool = ortmulti.load('m')\npool.r", "with ortmulti.load('m') as pool:\n    pool.r"],
    ids=["assignment", "with"],
)
def test_an_interactive_shell_completes_the_methods_of_a_pool(code: str) -> None:
    """By jedi, as IPython and Jupyter do."""
    jedi = pytest.importorskip("jedi")
    found = {one.name for one in jedi.Interpreter(code, [{"ortmulti": ortmulti}]).complete()}
    assert {"run", "run_async", "ready", "remove_devices", "replace_model"} <= found
