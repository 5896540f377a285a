"""onnxruntime's interface, word for word; what is not is in docs/differences.md, and what is there does differ."""

from __future__ import annotations

import enum
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import onnxruntime
import pytest

import ortmulti
from tests.support.processes import ROOT
from tests.support.signatures import Parameter, differences, of_function, parameters

DOCUMENT = (ROOT / "docs" / "differences.md").read_text("utf-8")
DIFFERENT, MISSING = DOCUMENT.split("\n## Missing\n")
ROWS = re.findall(r"(?m)^\| `([\w.]+)` \| (\w+)[^|]*\| ([^|]+) \|$", DIFFERENT)
ROWS += [
    (name, "missing", reason)
    for names, reason in re.findall(r"(?m)^\| (`[\w.]+`(?:, `[\w.]+`)*) \| ([^|]+) \|$", MISSING)
    for name in re.findall(r"`([\w.]+)`", names)
]
RELEASE = re.search(r"onnxruntime (\d+\.\d+)\.\d+", DOCUMENT)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    assert RELEASE is not None
    if not onnxruntime.__version__.startswith(f"{RELEASE[1]}."):
        pytest.skip(f"docs/differences.md is about onnxruntime {RELEASE[1]}")
    return differences(onnxruntime, ortmulti)


def test_every_difference_is_listed(found: dict[str, str]) -> None:
    listed = {name: how for name, how, _ in ROWS}
    unlisted = {name: how for name, how in found.items() if listed.get(name) != how}
    assert not unlisted, "add to docs/differences.md, with the reason, or make them the same"


def test_everything_listed_differs(found: dict[str, str]) -> None:
    outdated = {name: how for name, how, _ in ROWS if found.get(name) != how}
    assert not outdated, "no longer so: delete from docs/differences.md"


def test_the_tables_are_read_whole() -> None:
    names = re.findall(r"(?m)^\| `([\w.]+)", DIFFERENT)
    names += [name for row in re.findall(r"(?m)^\| (`[^|]+)", MISSING) for name in re.split("[`, ]+", row) if name]
    assert [name for name, _, _ in ROWS] == names, "a row of docs/differences.md has another form"
    assert len(ROWS) == len({name for name, _, _ in ROWS}), "listed twice"
    assert all(reason.strip() for _, _, reason in ROWS)


def test_what_is_the_same_is_walked_too(found: dict[str, str]) -> None:
    """So that nothing is the same for not having been compared."""
    for name in ("get_inputs", "get_outputs", "end_profiling"):
        assert parameters(getattr(onnxruntime.InferenceSession, name)) is not None
        assert f"InferenceSession.{name}" not in found
    assert parameters(onnxruntime.SessionOptions.add_session_config_entry) == [
        Parameter(None, "POSITIONAL_OR_KEYWORD"),
        Parameter(None, "POSITIONAL_OR_KEYWORD"),
    ]
    assert parameters(onnxruntime.set_global_thread_pool_sizes) == [
        Parameter("intra_op_num_threads", "POSITIONAL_OR_KEYWORD", "0"),
        Parameter("inter_op_num_threads", "POSITIONAL_OR_KEYWORD", "0"),
    ]


# --- The comparison itself --------------------------------------------------------------------------------------------


def theirs(a: int, b: int = 1, *, c: str = "x") -> None: ...


def same(a: Any, b: Any = 1, *, c: Any = "x") -> str:
    return f"{a}{b}{c}"


def other_name(a: int, bb: int = 1, *, c: str = "x") -> None: ...
def other_default(a: int, b: int = 2, *, c: str = "x") -> None: ...
def one_less(a: int, b: int = 1) -> None: ...
def one_more(a: int, b: int = 1, *, c: str = "x", d: int = 0) -> None: ...
def other_kind(a: int, b: int = 1, c: str = "x") -> None: ...


def test_functions() -> None:
    assert of_function(theirs, same) is None
    assert of_function(theirs, other_default) == "default"
    for ours in (other_name, one_less, one_more, other_kind):
        assert of_function(theirs, ours) == "parameters"


def none() -> None: ...
def key_alone(key: str) -> None: ...
def key_and_value(key: str, value: int) -> None: ...
def value_of_default(key: str, value: int | None = None) -> None: ...


def described(line: str) -> Any:
    return SimpleNamespace(__doc__=f"{line}\n\nMore.", __call__=None)


def test_functions_of_pybind11() -> None:
    line = "add(self: m.C, arg0: collections.abc.Mapping[str, tuple[int, int]], arg1: int | None = None) -> None"
    assert parameters(described(line)) == [
        Parameter(None, "POSITIONAL_OR_KEYWORD"),
        Parameter(None, "POSITIONAL_OR_KEYWORD", "None"),
    ]
    assert of_function(described(line), value_of_default) is None
    assert of_function(described(line), key_and_value) == "default"
    assert of_function(described(line), key_alone) == "parameters"
    assert of_function(described("get() -> str"), none) is None
    assert of_function(described("get() -> str"), key_alone) == "parameters"


class TheirLevel(enum.IntEnum):
    LOW = 1
    HIGH = 2


class OurLevel(enum.IntEnum):
    LOW = 3


class TheirClass:
    def __init__(self, a: int = 0) -> None:
        self._b = 5 + a

    @property
    def b(self) -> int:
        return self._b

    @staticmethod
    def make(x: int) -> None: ...
    def run(self, x: int) -> None: ...
    def gone(self) -> None: ...
    def shape(self) -> None: ...
    def _private(self) -> None: ...


class OurClass:
    def __init__(self) -> None:
        self._b = 6

    @property
    def b(self) -> int:
        return self._b

    def make(self, x: int) -> None: ...
    def run(self, x: int, y: int) -> None: ...
    @property
    def shape(self) -> None: ...


def test_modules() -> None:
    their_module, our_module = ModuleType("theirs"), ModuleType("ours")
    vars(their_module).update(Level=TheirLevel, C=TheirClass, f=theirs, g=theirs, _h=theirs, re=re, number=1)
    vars(our_module).update(Level=OurLevel, C=OurClass, f=same)
    assert differences(their_module, our_module) == {
        "Level.LOW": "value",
        "Level.HIGH": "missing",
        "C.__init__": "parameters",
        "C.b": "default",
        "C.make": "kind",
        "C.run": "parameters",
        "C.gone": "missing",
        "C.shape": "kind",
        "g": "missing",
    }
    assert differences(their_module, their_module) == {}
