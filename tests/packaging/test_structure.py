"""The arrows between the parts of the code: each part knows only those before it."""

from __future__ import annotations

import ast
import graphlib
import re
import textwrap
from pathlib import Path

import pytest

import ortmulti
from ortmulti import _core

pytestmark = pytest.mark.essential

CPP = Path(__file__).parents[2] / "cpp"
# What each room may include beside itself. The bindings may include all.
CPP_ROOMS = {
    "base": (),
    "memory": ("base",),
    "onnx": ("base",),
    "cuda": ("base", "memory"),
    "ort": ("base", "memory", "onnx", "cuda"),
    "weights": ("base", "memory", "onnx", "cuda", "ort"),
    "create": ("base", "memory", "onnx", "cuda", "ort", "weights"),
    "policy": ("base",),
    "pool": ("base", "memory", "onnx", "cuda", "ort", "weights", "policy"),
    "repository": ("base", "memory", "ort", "weights", "policy", "pool"),
    "serve": ("base", "onnx", "ort", "pool"),
}


def code_of(file: Path) -> str:
    """Its text without comments."""
    return re.sub(r"//.*", "", file.read_text())


HAS_SOURCES = pytest.mark.skipif(not CPP.is_dir(), reason="needs the sources")


@HAS_SOURCES
@pytest.mark.parametrize("room", CPP_ROOMS)
def test_a_cpp_room_includes_only_what_it_may(room: str) -> None:
    allowed = (room, *CPP_ROOMS[room])
    files = [file for file in (CPP / "core" / room).rglob("*") if file.suffix in {".cpp", ".hpp"}]
    assert files
    wrong = [
        f"{file.relative_to(CPP)} includes {include}"
        for file in files
        for include in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE)
        if not include.startswith(tuple(f"core/{name}/" for name in allowed))
    ]
    assert not wrong


@HAS_SOURCES
def test_every_folder_of_the_core_is_a_room_and_arrows_go_down() -> None:
    assert all(list(CPP_ROOMS).index(name) < index for index, room in enumerate(CPP_ROOMS) for name in CPP_ROOMS[room])
    assert {folder.name for folder in (CPP / "core").iterdir() if folder.is_dir()} == set(CPP_ROOMS)


@HAS_SOURCES
def test_rules_have_no_clock_lock_or_thread() -> None:
    folder = CPP / "core" / "policy"
    wrong = re.compile(
        r"\bnow\(\)|Mutex|std::(atomic|j?thread|this_thread|mutex|async|lock_guard|unique_lock|condition_variable)|Condition|OnnxRuntime|CudaStartup"
    )
    found = [f"{file.name}: {match.group()}" for file in folder.iterdir() for match in wrong.finditer(code_of(file))]
    assert not found


@HAS_SOURCES
def test_numbers_are_called_as_in_the_code() -> None:
    text = (CPP / "core" / "policy" / "numbers.hpp").read_text()
    pairs = re.findall(r"^inline const \w+ (\w+)\{\s*\"([^\"]+)\"", text, re.MULTILINE)
    assert [name for name, _ in pairs] == [called.replace(".", "_") for _, called in pairs]
    assert [called for _, called in pairs] == [number[0] for number in _core.numbers()]
    code = "".join(code_of(file) for file in CPP.rglob("*.[ch]pp") if file.name != "numbers.hpp")
    assert [name for name, _ in pairs if not re.search(rf"\bnumbers::{name}\b", code)] == [], "no rule has it"


# --- Python -----------------------------------------------------------------------------------------------------------

PACKAGE = Path(ortmulti.__file__).parent
# The lazy attributes of the package: name -> module.
MODULE_OF = {
    name: module
    for module, name in re.findall(r"(?m)^from (\S+) import (\S+) as", (PACKAGE / "__init__.pyi").read_text("utf-8"))
    if module != "ortmulti"
}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str, source: str, *, package: bool) -> set[str]:
    """The modules of ortmulti that `source` imports, at any place: in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + package] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                public = MODULE_OF.get(alias.name) if origin == "ortmulti" else None
                member = f"{origin}.{alias.name}"
                found.add(public or (member if member in FILES else origin))
    return {name for name in found if name.partition(".")[0] == "ortmulti"} - {module}


def import_graph() -> dict[str, set[str]]:
    return {
        name: imports(name, file.read_text("utf-8"), package=file.name == "__init__.py") for name, file in FILES.items()
    }


def cycles(graph: dict[str, set[str]]) -> list[str]:
    sorter = graphlib.TopologicalSorter({name: targets & graph.keys() for name, targets in graph.items()})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def above_the_library(module: str) -> bool:
    return f"{module}.".startswith(("ortmulti.bench.", "ortmulti.cli."))


def test_imports_are_found_wherever_they_are() -> None:
    source = """
    import ortmulti.errors
    from . import io_binding
    from ..pool import load
    if TYPE_CHECKING:
        from ortmulti import SessionOptions
    def function():
        from ortmulti.cli import main
    """
    assert imports("ortmulti.interface.session", textwrap.dedent(source), package=False) == {
        "ortmulti.errors",
        "ortmulti.interface.io_binding",
        "ortmulti.pool.load",
        "ortmulti.options.session_options",
        "ortmulti.cli",
    }
    assert imports("ortmulti.pool", "from .load import load; from .. import errors", package=True) == {
        "ortmulti.errors",
        "ortmulti.pool.load",
    }


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in (["b", "c", "b"], ["c", "b", "c"])


def test_the_library_imports_neither_bench_nor_cli() -> None:
    """Public names that live in `bench` are lazy attributes."""
    wrong = [
        f"{name} imports {target}"
        for name, targets in import_graph().items()
        if not above_the_library(name)
        for target in targets
        if above_the_library(target)
    ]
    assert not wrong


def test_the_library_names_no_module_of_bench_or_cli() -> None:
    """Neither for `import_module` nor for `python -m`. The list of public names has those that live there."""
    wrong = [
        f"{name}:{node.lineno} names {node.value}"
        for name, file in FILES.items()
        if name != "ortmulti" and not above_the_library(name)
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in FILES and above_the_library(node.value)
    ]
    assert not wrong


# From bottom to top.
PYTHON_ROOMS = (
    *("errors", "checks", "timeline", "_runtime", "_pyinstaller", "cache", "remote", "devices", "values", "options"),
    *("create", "optimized", "loading"),
    *("interface", "pool", "repository", "otel", "text", "serve", "ray", "bench", "cli"),
)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("room", PYTHON_ROOMS)
def test_a_python_room_imports_only_earlier_rooms(room: str) -> None:
    earlier = {*PYTHON_ROOMS[: PYTHON_ROOMS.index(room) + 1], "_core", "_lazy", ""}
    graph = {name: targets for name, targets in import_graph().items() if room_of(name) == room}
    assert graph
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if room_of(target) not in earlier
    ]
    assert not wrong


# Private names that any room may use, and why.
FOR_ALL_ROOMS = {
    "_core": "the core's object in one of Python's, and the module of the bindings",
    "_from_core": "makes such an object",
    "_of_runtime": "errors with onnxruntime's prefix",
    "_sess": "an attribute of onnxruntime's sessions",
    **dict.fromkeys(("_asdict", "_fields", "_make", "_replace"), "of named tuples"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in FOR_ALL_ROOMS


def private_names(source: str) -> set[str]:
    """The private names that a module defines: functions, classes, variables and attributes of ``self``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            of = getattr(node, "value", None)
            if of is None or getattr(of, "id", "") in ("self", "cls"):
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name for name in found if is_private(name)}


def foreign_private_names(source: str, room: str, own: set[str], earlier: set[str]) -> list[str]:
    """The private names of earlier rooms that a module of a room uses.

    An attribute is one of an earlier room if only that defines the name, or if it is looked up in what was imported.
    """
    tree = ast.parse(source)
    found, imported = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ortmulti"):
            for alias in node.names:
                if room_of(f"{node.module}.{alias.name}") != room:
                    imported.add(alias.asname or alias.name)
                    if is_private(alias.name) and alias.name not in PYTHON_ROOMS:
                        found.append(f"{node.lineno}: {alias.name}")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in earlier
            and (node.attr not in own or getattr(node.value, "id", "") in imported)
        ):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_a_private_name_of_another_room_is_found() -> None:
    source = """
    from ortmulti._runtime import native
    from ortmulti.pool.pool import Pool, _wait
    class Own(Pool):
        def __init__(self):
            self._own, self._members, other._unknown = 1, other._core, other._asdict()
    Pool._own
    other._own
    other._members._version
    """
    found = foreign_private_names(textwrap.dedent(source), "serve", {"_own", "_members"}, {"_own", "_version"})
    assert found == ["3: _wait", "7: Pool._own", "9: other._members._version"]
    assert private_names(textwrap.dedent(source)) == {"_own", "_members"}


def test_no_room_uses_a_private_name_of_another_one() -> None:
    """What a room is to give to those above it has a public name, also where no user needs it."""
    names: dict[str, set[str]] = {room: set() for room in (*PYTHON_ROOMS, "_lazy", "")}
    for module, file in FILES.items():
        names[room_of(module)] |= private_names(file.read_text("utf-8"))
    of_the_core = private_names((PACKAGE / "_core.pyi").read_text("utf-8"))
    wrong = [
        f"{module}:{found}"
        for module, file in FILES.items()
        if (room := room_of(module)) in PYTHON_ROOMS
        for found in foreign_private_names(
            file.read_text("utf-8"),
            room,
            names[room],
            set().union(*(names[each] for each in PYTHON_ROOMS[: PYTHON_ROOMS.index(room)])) - of_the_core,
        )
    ]
    assert not wrong


# From bottom to top: instruments first, then what several experiments share, then the experiments.
BENCH_ROOMS = (
    *("measure", "files", "reports", "models", "strategies", "experiment"),
    *("gil", "serve", "batching", "sleep", "repository", "create", "tune", "diagnose", "script"),
)


@pytest.mark.parametrize("room", BENCH_ROOMS)
def test_a_room_of_bench_imports_only_earlier_rooms(room: str) -> None:
    def room_in_bench(module: str) -> str:
        return module.split(".")[2] if module.startswith("ortmulti.bench.") else ""

    earlier = {*BENCH_ROOMS[: BENCH_ROOMS.index(room) + 1], ""}
    graph = import_graph()
    assert {room_in_bench(name) for name in graph} == {*BENCH_ROOMS, ""}
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if room_in_bench(name) == room and room_in_bench(target) not in earlier
    ]
    assert not wrong


def test_every_part_of_the_package_is_a_room() -> None:
    assert {room_of(name) for name in FILES} == {*PYTHON_ROOMS, "_lazy", ""}


def test_the_library_raises_no_error_of_a_private_class() -> None:
    public = set(ortmulti.errors.__all__)
    wrong = [
        f"{name}: {node.name}: put it in errors.py, or raise its base"
        for name, file in FILES.items()
        if not above_the_library(name) and name != "ortmulti.errors"
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and public & {getattr(base, "attr", getattr(base, "id", "")) for base in node.bases}
    ]
    assert not wrong


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    assert not cycles(import_graph())


# --- Tests ------------------------------------------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]
TEST_MODULES = {file.stem for file in TESTS.rglob("test_*.py")}


def imported_tests(source: str) -> set[str]:
    """The test modules that a module imports, also by programs in its strings."""
    statements = re.findall(r"\b(?:from|import)\s+(?:tests\b|\.)[^\n;(]*(?:\([^)]*\))?", source)
    return set(re.findall(r"\btest_\w+", " ".join(statements))) & TEST_MODULES


@pytest.mark.parametrize(
    "source",
    [
        "from tests.packaging import test_structure as helpers",
        "from tests.packaging.test_structure import TESTS",
        "import tests.packaging.test_structure",
        "from . import test_structure",
        "from .test_structure import (\n    TESTS,\n)",
        "from tests.packaging import (\n    test_structure,\n)",
        """run("import sys; from tests.packaging.test_structure import TESTS")""",
    ],
)
def test_an_imported_test_is_found(source: str) -> None:
    assert imported_tests(source) == {"test_structure"}


def test_no_test_module_is_imported() -> None:
    """Helpers of several test modules are in tests/support. A program in a test may import the test's own module."""
    wrong = [
        f"{file.relative_to(TESTS)} imports {name}"
        for file in TESTS.rglob("*.py")
        for name in imported_tests(file.read_text("utf-8")) - {file.stem}
    ]
    assert not wrong


# --- Layout -----------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_the_architectures_folders_are_those_of_the_layout() -> None:
    page = (ROOT / "docs/inside/architecture.md").read_text("utf-8")
    tables = re.split(r"^\| folder of `([\w/]+)` \|.*$", page, flags=re.M)
    said = {
        name: set(re.findall(r"^\| `([\w/]+)/` \|", table, re.M))
        for name, table in zip(tables[1::2], tables[2::2], strict=True)
    }
    assert said["cpp/core"] == set(CPP_ROOMS)
    packages = {str(file.parent.relative_to(PACKAGE)) for file in FILES.values() if file.name == "__init__.py"}
    parts_of_bench = {name for name in packages if name.startswith("bench/")}
    assert said["python/ortmulti"] == packages - {"."} - parts_of_bench
