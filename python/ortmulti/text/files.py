"""JSON files of an export. They are strangers': each value is checked, and an error names file and field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ortmulti._runtime.regular_file import read_json
from ortmulti.errors import InvalidArgument, NoSuchFile

__all__ = ["Fields", "inside", "pad_token", "read", "read_value"]

_Value = TypeVar("_Value")

_BYTES = 32 << 20
"""Of such a file, at most; that of a tokenizer is no such file."""
_LARGE = 2**31
"""From here on a length says that there is no limit: transformers writes 1e30."""
_SHOWN = 80  # characters of a wrong value


class Fields:
    """The fields of a JSON object. None stands for a field that is not there, as it does in these files.

    Args:
        file: The file, for errors.
        values: The object.
    """

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = values

    def wrong(self, name: str, what: str) -> InvalidArgument:
        """Return the error for a field that is not what it has to be."""
        found = repr(self._values.get(name))
        found = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."
        return InvalidArgument(f"{self.file}: {name!r} is {what}, not {found}: mend the file")

    def _get(self, name: str, fits: Callable[[Any], bool], what: str, default: _Value) -> Any | _Value:
        value = self._values.get(name)
        if value is None:
            return default
        if not fits(value):
            raise self.wrong(name, what)
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return a text."""
        found: str = self._get(name, lambda value: isinstance(value, str), "a text", default)
        return found

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        found: bool = self._get(name, lambda value: isinstance(value, bool), "true or false", default)
        return found

    def size(self, name: str, least: int = 1) -> int | None:
        """Return a whole number; None also where it says that there is no limit."""

        def fits(value: object) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and least <= value

        found = self._get(name, fits, f"a number of {least} or more", None)
        if found is None or found >= _LARGE:
            return None
        if found != int(found):
            raise self.wrong(name, "a whole number")
        return int(found)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""

        def fits(value: object) -> bool:
            return isinstance(value, list) and all(isinstance(one, str) for one in value)

        return list(self._get(name, fits, "a list of texts", []))

    def named_texts(self, name: str) -> dict[str, str]:
        """Return texts by their names."""

        def fits(value: object) -> bool:
            return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())

        return dict(self._get(name, fits, "an object of texts", {}))

    def inner(self, name: str) -> Fields:
        """Return the fields of an object within."""
        return Fields(self.file, self._get(name, lambda value: isinstance(value, dict), "an object", {}))

    def one_of(self, name: str, known: Mapping[str, _Value], default: _Value) -> _Value:
        """Return what one of some texts stands for."""
        text = self.text(name)
        if not text:
            return default
        if text not in known:
            raise self.wrong(name, f"one of {', '.join(map(repr, known))}")
        return known[text]

    def any(self, name: str) -> Any:
        """Return what is there; None where nothing is."""
        return self._values.get(name)

    def names(self) -> list[str]:
        """Return the names of all fields."""
        return list(self._values)


def read(file: Path) -> Fields:
    """Read a JSON object; without fields, if there is no such file.

    Raises:
        InvalidArgument: It is none.
        NoSuchFile: It cannot be read.
    """
    values = read_value(file, {})
    if not isinstance(values, dict):
        raise InvalidArgument(f"{file} is a JSON object, not {values!r:.50}: mend the file")
    return Fields(file, values)


def read_value(file: Path, default: Any) -> Any:
    """The same for any JSON value."""
    try:
        return read_json(file, _BYTES)
    except FileNotFoundError:
        return default
    except OSError as error:
        raise NoSuchFile(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{file} is no JSON file: {error}") from None


def inside(folder: Path, path: str, file: Path) -> Path:
    """Return a folder within an export, which one of its files names.

    Raises:
        InvalidArgument: It is elsewhere.
    """
    parts = PurePosixPath(path).parts
    if "\0" in path or path.startswith("/") or ".." in parts:
        raise InvalidArgument(f"{file}: the path {path[:_SHOWN]!r} is not within the folder: mend the file")
    return folder.joinpath(*parts)


def pad_token(config: Fields, of_tokenizer: Fields) -> int:
    """Return the padding token's number: the tokenizer's, else the model's, else 0: what it is hardly matters then."""
    text = _content(of_tokenizer, "pad_token")
    added = of_tokenizer.inner("added_tokens_decoder")
    for number in added.names() if text else ():
        if number.isdecimal() and _content(added, number) == text:
            return int(number)
    return config.size("pad_token_id", 0) or 0


def _content(fields: Fields, name: str) -> str:
    """Return a token, which is a text or an object with one."""
    value: Any = fields.any(name)
    return fields.inner(name).text("content") if isinstance(value, dict) else fields.text(name)
