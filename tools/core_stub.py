"""Write python/ortmulti/_core.pyi from the signatures that pybind11 writes into the docstrings of the compiled core.

python -m tools.core_stub
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from ortmulti import _core

STUB = Path(__file__).resolve().parent.parent / "python/ortmulti/_core.pyi"
WIDTH = 120
METHODS = ("instancemethod", "method_descriptor")  # not Python's own ones
SPECIAL = ("__init__", "__int__", "__iter__", "__next__")
BEGINNING = '''\
# Made by `python -m tools.core_stub`.
from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np

from ortmulti.pool.call import CoreCall
from ortmulti.pool.futures import Timing
from ortmulti.pool.tokens import Tokens

class PythonSource(Protocol):
    """An object of Python's as a source: see ``cpp/bindings/python_source.hpp``. The core has no such class."""

    @property
    def identity(self) -> str: ...
    @property
    def size(self) -> int: ...
    def read_into(self, buffer: memoryview, offset: int, /) -> int | bytes | bytearray | memoryview: ...
'''
# What pybind11 writes, and what a caller gives or gets.
WORDS = {
    r"ortmulti::Value\b": "OrtValue",
    r"ortmulti(\._core\.|::)": "",
    r"collections\.abc\.": "",
    r"typing\.SupportsInt( \| typing\.SupportsIndex)?": "int",
    r"typing\.SupportsFloat( \| typing\.SupportsIndex)?": "float",
    r"(types|typing_extensions)\.CapsuleType": "object",
    r"numpy\.ndarray$": "np.ndarray[Any, Any]",
    r"numpy\.dtype$": "np.dtype[Any]",
}
# Types that pybind11 does not know: of arguments by their name, then of one function's argument or result.
ARGUMENTS = {
    "feeds": "list[Mapping[str, Any]]",
    "input_feed": "Mapping[str, Any]",
    "poll": "Callable[[], object] | None",
    "run_options": "RunOptions | None",
}
BYTES = "bytes | bytearray | memoryview"
ARRAY_OF_BYTES = "np.ndarray[Any, np.dtype[np.uint8]]"
TYPES = {
    "CreationEvent.error": "BaseException | None",
    "CreationEvent.session": "Session | None",
    "CreationEvents.__iter__": "CreationEvents",
    "CreationRequest.__init__(model)": f"str | {BYTES}",
    "ShapeGraphs.add(key)": "bytes",
    "ShapeGraphs.not_made(key)": "bytes",
    "ShapeGraphs.not_now(key)": "bytes",
    "ModelIndex.operators": "set[str]",
    "ModelIndex.opsets": "dict[str, int]",
    "Node.integers": "dict[str, list[int]]",
    "NodeArg.dtype": "np.dtype[Any] | None",
    "NodeArg.shape": "list[int | str | None]",
    "Nodes.constants": "dict[str, list[int]]",
    "Nodes.ranks": "dict[str, int]",
    "OrtValue.numpy": "np.ndarray[Any, Any]",
    "Pool.add(graph_wanted)": "Callable[[ShapeGraphs, bytes, int], object] | None",
    "Pool.add(one_thread_wanted)": "Callable[[CpuSessions], object] | None",
    "Pool.check_inputs(inputs)": "Sequence[tuple[str, Sequence[int | str | None]]]",
    "Pool.run": "list[Any]",
    "Pool.sleep_sessions(make)": "Callable[[Callable[[BaseException | None], None]], None]",
    "Pool.states": "dict[str, tuple[str, str]]",
    "Pool.stats": "dict[str, Any]",
    "Pool.submit_async": "tuple[Future[list[Any]], object] | None",
    "Pool.submit_many(requests)": "list[PoolRequest | Exception]",
    "Pool.warm_up(timeline)": "Timeline | None",
    "PoolRequest.follow(complete)": "Callable[..., None]",
    "PoolRequest.take": "tuple[list[Any] | None, BaseException | None, bool, Timing | None]",
    "Prefetch.__init__(ranges)": "Sequence[tuple[Source | PythonSource, int, int]]",
    "Repository.devices": "list[dict[str, Any]]",
    "Repository.residents": "list[dict[str, Any]]",
    "ResidencyPolicy.decide": "tuple[str, list[tuple[int, str]], float | None]",
    "RunOptions.add_active_adapter(adapter)": "LoraAdapter",
    "Session.run": "list[Any]",
    "Session.run(output_names)": "Iterable[str] | None",
    "SessionOptions.custom_op_libraries": "list[tuple[str, Source | None]]",
    "Source.read": ARRAY_OF_BYTES,
    "Tenant.enter(close)": "Callable[[str, str, float], None]",
    "Timeline.spans": "list[tuple[str, int, int, int, str, str]]",
    "TokenBlock.fill(items)": "list[tuple[Any, Any]] | list[Tokens]",
    "TokenBlock.follow(follower)": "Callable[..., object]",
    "TokenBlock.future": "Future[np.ndarray[Any, Any]] | None",
    "TokenBlock.take": "tuple[np.ndarray[Any, Any] | None, list[tuple[int, BaseException | None]]]",
    "WeightList.__init__(sources)": "Sequence[Source | PythonSource]",
    "WeightList.read(progress)": "Callable[[int], object] | None",
    "bytes_of": ARRAY_OF_BYTES,
    "gpu_memory": "dict[str, Any]",
    "element_types": "dict[str, ElementType]",
    "index_model(model)": f"str | {BYTES} | Source",
    "json_rows": "bytes | None",
    "memory_source(buffer)": f"{BYTES} | np.ndarray[Any, Any]",
    "read_nodes(model)": f"str | {BYTES} | Source",
    "run_async(callback)": "Callable[[list[Any], Any, str], object]",
    "run_async(output_names)": "Iterable[str] | None",
    "set_running_loop(get_running_loop)": "Callable[[], object]",
    "set_value_reader(reader)": "Callable[[object], OrtValue | None]",
    "sleep_levels": "dict[Any, bool]",
    "normalize(table)": "np.ndarray[Any, Any]",
    "take_all": "list[list[Any] | BaseException | None]",
    "take_all(requests)": "Sequence[PoolRequest | Exception]",
    "take_log": "tuple[list[tuple[int, str, str, str, str, int, int]], int, bool]",
    "Front.take": "list[tuple[FrontCall, bool, Any, Any]]",
    "VectorGroup.take_texts": "list[str]",
    "VectorGroup.truncate": 'Literal["right", "left"] | None',
}


def plain(kind: str) -> str:
    """The type in the stub's words."""
    for pattern, word in WORDS.items():
        kind = re.sub(pattern, word, kind)
    return kind


def split(text: str) -> list[str]:
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class Stub:
    """The stub's text, as it is made."""

    def __init__(self) -> None:
        self.unused = set(TYPES)

    def given(self, name: str, kind: str) -> str:
        self.unused.discard(name)
        return TYPES.get(name, kind)

    def argument(self, function: str, text: str) -> str:
        name, colon, rest = text.partition(": ")
        if not colon or name == "self":
            return name
        kind, _, default = rest.partition(" = ")
        kind = self.given(f"{function}({name})", ARGUMENTS.get(name, plain(kind)))
        if not default:
            return f"{name}: {kind}"
        if default == "None" and not kind.endswith("| None") and kind != "object":
            kind += " | None"
        simple = re.fullmatch(r"None|True|False|-?[\d.]+|''|'[\w ]+'", default)
        return f"{name}: {kind} = " + (default.replace("'", '"') if simple else "...")

    def function(self, owner: str, name: str, value: Any, decorator: str = "", doc: str | None = "") -> Iterator[str]:
        signature = (value.__doc__ or "").strip()
        found = re.fullmatch(r"(?:\w+)?\((.*)\) -> (.*)", signature)
        assert found is not None, f"{owner}{name} has no signature: {signature!r}"
        path = owner + name
        tab = "    " if owner else ""
        arguments = [self.argument(path, text) for text in split(found[1])]
        if owner and decorator != "staticmethod":
            arguments = ["self", *arguments[1:]] if arguments[1:] != ["/"] else ["self"]
        assert "arg0" not in "".join(arguments), f"{path} has arguments without py::arg"
        result = self.given(path, plain(found[2]))
        if decorator:
            yield f"{tab}@{decorator}"
        end = f") -> {result}:" + ("" if doc else " ...")
        line = f"{tab}def {name}(" + ", ".join(arguments) + end
        if len(line) <= WIDTH:
            yield line
        else:
            yield f"{tab}def {name}("
            inner = f"{tab}    " + ", ".join(arguments)
            if len(inner) <= WIDTH:
                yield inner
            else:
                yield from (f"{tab}    {text}," for text in arguments)
            yield tab + end
        if doc:
            yield f'{tab}    """{doc}"""'

    def members(self, name: str, kind: type) -> Iterator[str]:
        entries = getattr(kind, "__entries", {})
        doc = (kind.__doc__ or "").partition("Members:\n")[0].strip()
        if doc:
            yield indent(f'"""{doc}\n"""' if "\n" in doc else f'"""{doc}"""', "    ") + "\n"
        for key, value in vars(kind).items():
            owner = f"{name}."
            if key in entries:
                yield f"    {key}: ClassVar[{name}]"
                yield f'    """{entries[key][1]}"""'
            elif isinstance(value, property):
                if value.fset is not None:
                    result = re.sub(r".* -> ", "", str(value.fget.__doc__).strip())
                    yield f"    {key}: {self.given(owner + key, plain(result))}"
                elif not entries:
                    yield from self.function(owner, key, value.fget, "property", value.__doc__)
            elif isinstance(value, staticmethod):
                yield from self.function(owner, key, getattr(kind, key), "staticmethod")
            elif type(value).__name__ in METHODS and (key in SPECIAL or not key.startswith(("__", "_pybind11"))):
                yield from self.function(owner, key, value)

    def lines(self) -> Iterator[str]:
        for name, value in vars(_core).items():
            if isinstance(value, type):
                body = list(self.members(name, value))
                yield ""
                yield f"class {name}:" + ("" if body else " ...")
                yield from body
                yield ""
            elif callable(value):
                yield from self.function("", name, value)
            elif not name.startswith("__") or name == "__version__":
                yield f"\n{name}: Final[{self.given(name, type(value).__name__)}]\n"


def stub() -> str:
    """The whole stub."""
    made = Stub()
    text = BEGINNING + "\n".join(made.lines()) + "\n"
    assert not made.unused, f"these are not in the core any more: {sorted(made.unused)}"
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    STUB.write_text(stub(), "utf-8")
