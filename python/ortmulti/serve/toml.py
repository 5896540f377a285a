"""A server's TOML file: its settings, and the tables of its models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ortmulti import checks
from ortmulti.errors import Error, InvalidArgument, InvalidType, NoSuchFile
from ortmulti.serve.limits import Limits

__all__ = ["SETTINGS", "Table", "batching_of", "read"]


def _is(*kinds: type) -> Callable[[Any], bool]:
    # In TOML true is no number.
    return lambda value: isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))


_BOOLEAN = _is(bool), "true or false"
_ADDRESS = _is(str), '"HOST:PORT" or "off"'
_MEMORY = _is(str, int, float), 'a share such as 0.5, or a size such as "8GiB"'
_FILE = _is(str), "a file's path"
# What a value is, and how an error says that.
SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "http": _ADDRESS,
    "grpc": _ADDRESS,
    "devices": (_is(str, int, list), 'such as "all", "cpu" or [0, 1]'),
    "gpu_memory": _MEMORY,
    "host_memory": _MEMORY,
    "batching": (lambda value: value is False or _is(str, int, dict)(value), "a table, such as { max_size = 32 }"),
    "fuse": (lambda value: value in ("fp32", "fp16"), '"fp32" or "fp16"'),
    "model_control": (lambda value: value in ("none", "explicit"), '"none" or "explicit"'),
    "exit_on_error": _BOOLEAN,
    "id": (_is(str), "a text"),
    "share": _BOOLEAN,
    "token_file": _FILE,
    "allowed_hosts": (_texts, 'a list of names, such as ["models.example.org"]'),
    "tls_certificate": _FILE,
    "tls_key": _FILE,
    "access_log": _BOOLEAN,
    "limits": (_is(dict), "a table, such as { body = 16_000_000 }"),
    "custom_ops": (_texts, "a list of libraries' paths"),
}
_FILES = ("token_file", "tls_certificate", "tls_key")
# Of a model's table, beside the arguments of `ortmulti.load`.
_OF_MODELS = ("path", "version", "timeout", "keep", "protect", "idle_timeout", "wait")
# Of an exported model of texts, in place of what its files say.
_OF_TEXTS = ("file", "task", "pooling", "normalize", "max_length", "fuse")


def read(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings and the models' tables. Paths are those beside the file.

    Raises:
        InvalidArgument, InvalidType: It is no TOML, or says what is none of its words. The error names the file.
        NoSuchFile: There is no such file.
    """
    import tomllib

    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NoSuchFile(f"there is no file '{path}': check the path") from None
    except ValueError as error:  # tomllib.TOMLDecodeError, UnicodeDecodeError
        raise InvalidArgument(f"{path}: {error}") from None
    models = settings.pop("models", {})
    for name, value in settings.items():
        _check_setting(path, name, value)
    for name in _FILES & settings.keys():
        settings[name] = str(path.parent / settings[name])
    if libraries := settings.get("custom_ops"):
        libraries = [libraries] if isinstance(libraries, str) else libraries
        settings["custom_ops"] = [path.parent / library for library in libraries]
    if not isinstance(models, dict) or not all(isinstance(model, dict) for model in models.values()):
        raise InvalidArgument(f"{path}: each model is a table, such as [models.bert] with path = 'bert.onnx'")
    for name, table in models.items():
        if not isinstance(table.get("path"), str):
            raise InvalidArgument(f"{path}: [models.{name}] has no path")
        try:
            Table.of(table)
        except (AttributeError, TypeError, InvalidArgument) as error:
            raise InvalidArgument(f"{path}: [models.{name}]: {error}") from None
    return settings, models


def _check_setting(path: Path, name: str, value: Any) -> None:
    if name not in SETTINGS:
        hint = checks.did_you_mean(name, SETTINGS)
        known = ", ".join(sorted(SETTINGS))
        raise InvalidArgument(f"{path}: {name!r} is no setting of a server{hint}: they are {known}")
    fits, what = SETTINGS[name]
    if not fits(value):
        raise InvalidType(f"{path}: {name} is {what}, not {value!r}")
    try:
        if name == "limits":
            Limits(**value)
        elif name == "batching":
            batching_of(value)
    except (TypeError, Error) as error:
        raise type(error)(f"{path}: {name}: {error}") from None


class Table(NamedTuple):
    """What a model's table says; made anew for each load, since options of sessions can be changed."""

    options: dict[str, Any]
    version: str
    timeout: float | None
    keep: Any
    texts: dict[str, Any]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Table:
        """Read a table.

        Raises:
            AttributeError, InvalidArgument, TypeError: A key or a value that it cannot have.
        """
        _check_keys(table)
        options = {name: value for name, value in table.items() if name not in ("path", *_OF_TEXTS)}
        timeout = options.pop("timeout", None)
        version = str(options.pop("version", "1"))
        keep = options.pop("keep", None)
        if timeout is not None:
            checks.number("timeout", timeout)
        return cls(
            _objects(options), version, timeout, keep, {name: table[name] for name in _OF_TEXTS if name in table}
        )


def _check_keys(table: Mapping[str, Any]) -> None:
    from ortmulti.pool.load import load

    known = sorted({*_OF_MODELS, *_OF_TEXTS, *inspect.signature(load).parameters} - {"model", "progress"})
    for name in table:
        if name not in known:
            hint = checks.did_you_mean(name, known)
            raise InvalidArgument(f"a model's table has no {name!r}{hint}: it may have {', '.join(known)}")


def batching_of(given: Any) -> Any:
    """Return the `Batching` of a table, or of SIZE or SIZE:MS; False: None."""
    from ortmulti.pool.configuration import Batching

    if given is False:
        return None
    if isinstance(given, dict):
        return Batching(**given)
    size, _, delay = str(given).partition(":")
    try:
        if isinstance(given, (str, int)) and given is not True:
            return Batching(int(size), float(delay or 0))
        error = ValueError(f"it is of the type {type(given).__name__}")
    except ValueError as found:
        error = found
    raise InvalidArgument(
        f"batching is SIZE or SIZE:MS, such as 32:2, not {given!r} ({error}); in a TOML file also a table, such as "
        "{ max_size = 32, max_delay_ms = 2 }, and false for none"
    ) from None


def _objects(options: dict[str, Any]) -> dict[str, Any]:
    """Make the objects of ortmulti that tables stand for."""
    from ortmulti.create.loading import Loading
    from ortmulti.options.session_options import SessionOptions
    from ortmulti.pool.configuration import CudaGraph, Warmup

    kinds: dict[str, Any] = {"cuda_graph": CudaGraph, "loading": Loading, "warmup": Warmup}
    made: dict[str, Any] = {}
    for name, value in options.items():
        if name == "batching":
            made[name] = batching_of(value)
        elif name in kinds and isinstance(value, dict):
            made[name] = kinds[name](**value)
        elif name == "options" and isinstance(value, dict):
            made[name] = session = SessionOptions()
            for key, setting in value.items():
                if "." in key:
                    session.add_session_config_entry(key, str(setting))
                else:
                    setattr(session, key, setting)
        else:
            made[name] = value
    return made
