"""The file that tuning writes: which settings, for which model and machine, found by what."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ortmulti import providers
from ortmulti._create.fingerprint import describe_machine, describe_model, differences
from ortmulti._create.tuning_apply import Applied, apply
from ortmulti._create.tuning_options import Scalar, check, known_to, of_sessions, since
from ortmulti._runtime.regular_file import read_json, write_atomically
from ortmulti.errors import InvalidArgument, InvalidType, NoSuchFile
from ortmulti.options import SessionOptions

__all__ = ["Tuning", "TuningWarning"]

_KIND = "ortmulti tuning"
_VERSION = 1
_MAX_BYTES = 1 << 20


class TuningWarning(UserWarning):
    """A tuning is used where it was not measured, or not all of it can be used."""


@dataclass(frozen=True)
class Tuning:
    """Settings that suit a model on a machine, as `tune` found them.

    Attributes:
        settings: Options by their names in docs/tune.md; empty: nothing was better than the defaults.
        objective: ``"latency"``, ``"throughput"``, ``"creation"`` or ``"memory"``.
        devices: Where it was measured, such as ``("cpu",)``.
        model: What tells the model from others: digests of its ``shapes`` and its ``graph``, and its ``name``.
        machine: The machine, driver and releases that it was measured with.
        gain: How much better than the defaults: ``ratio`` (the defaults' cost over this one's), its 95% confidence
            interval ``low`` and ``high``; empty where nothing was better.
        partial: Why the search has not ended, such as ``"interrupted"``; None: it has.
        created: When, in ISO 8601.
    """

    settings: Mapping[str, Scalar]
    objective: str
    devices: tuple[str, ...]
    model: Mapping[str, Any]
    machine: Mapping[str, Any]
    gain: Mapping[str, float] = field(default_factory=dict)
    partial: str | None = None
    created: str = ""

    @property
    def kind(self) -> str:
        """``"cpu"`` or ``"cuda"``."""
        return "cuda" if any(device.startswith("cuda") for device in self.devices) else "cpu"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a file.

        Raises:
            NoSuchFile: There is none.
            InvalidArgument: It is damaged, of another kind or a later version, or has settings that there are not.
        """
        name = os.fspath(path)
        try:
            content = read_json(name, _MAX_BYTES)
        except OSError as error:
            raise NoSuchFile(f"the tuning '{name}' cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise InvalidArgument(f"'{name}' is no tuning: {error}") from error
        try:
            return cls._checked(content)
        except (InvalidArgument, KeyError, TypeError, ValueError) as error:
            what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidArgument(f"the tuning '{name}' cannot be used: {what}") from error

    @classmethod
    def _checked(cls, content: Any) -> Self:
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise InvalidArgument("it is no tuning")
        if content.get("version") != _VERSION:
            raise InvalidArgument(f"its version is {content.get('version')!r}, and this release reads {_VERSION}")
        names = [one.name for one in fields(cls)]
        unknown = sorted(set(content) - {"kind", "version", *names})
        if unknown:
            raise InvalidArgument(f"there is no field {', '.join(map(repr, unknown))} in a tuning")
        values = {name: content[name] for name in names}
        for name, kind in _TYPES.items():
            if not isinstance(values[name], kind):
                raise InvalidType(f"{name} cannot be {values[name]!r}")
        if not values["devices"] or not all(isinstance(device, str) for device in values["devices"]):
            raise InvalidType(f"devices cannot be {values['devices']!r}")
        values["settings"] = {name: check(name, value) for name, value in values["settings"].items()}
        values["devices"] = tuple(values["devices"])
        return cls(**values)

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {"kind": _KIND, "version": _VERSION, **asdict(self), "devices": list(self.devices)}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """

        text = json.dumps(self.as_json(), indent=1) + "\n"
        write_atomically(Path(path), lambda file: file.write_text(text, "utf-8"))


_TYPES: Mapping[str, Any] = {
    "settings": dict,
    "objective": str,
    "devices": list,
    "model": dict,
    "machine": dict,
    "gain": dict,
    "partial": str | None,
    "created": str,
}


def use(
    tuning: str | os.PathLike[str] | Tuning,
    model: str | bytes | bytearray | memoryview,
    kinds: Sequence[str],
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    stacklevel: int = 3,
) -> Applied:
    """What to create sessions with, by a tuning; options that the caller gives himself win.

    Args:
        tuning: The tuning, or its file.
        model: The model.
        kinds: ``"cpu"`` and ``"cuda"``, whichever the sessions are on.
        options, provider_options, load: What the caller gave, as for `apply`.
        stacklevel: Which function's caller a warning is about.

    Raises:
        NoSuchFile, InvalidArgument: As `Tuning.read`; or the model's weights have other names, types or shapes.
        InvalidType: ``tuning`` is something else.
    """
    if isinstance(tuning, (str, os.PathLike)):
        name, tuning = f"the tuning '{os.fspath(tuning)}'", Tuning.read(tuning)
    elif isinstance(tuning, Tuning):
        name = "the tuning"
    else:
        raise InvalidType(f"tuning is the path of a file or an ortmulti.Tuning, not {tuning!r}")
    here = describe_model(model)
    shapes = tuning.model.get("shapes")
    if shapes is not None and here["shapes"] is not None and shapes != here["shapes"]:
        raise InvalidArgument(
            f"{name} is for another model, {tuning.model.get('name', 'unnamed')}: this one's weights have other names, "
            "types or shapes"
        )
    if set(kinds) != {tuning.kind}:
        here_on = " and ".join(sorted({_WHERE.get(kind, kind) for kind in kinds}))
        _warn(f"{name} is for {_WHERE[tuning.kind]} and not used: these sessions are on {here_on}", stacklevel)
        return apply({}, options, provider_options, load)
    elsewhere = differences(tuning.machine, describe_machine(tuning.kind))
    if tuning.model.get("graph") != here["graph"]:
        elsewhere.insert(0, "another graph or other small weights")
    if elsewhere:
        _warn(
            f"{name} was measured elsewhere, and other settings may be better here: {'; '.join(elsewhere)}", stacklevel
        )
    release = providers.loaded_release()
    settings = of_sessions(tuning.settings)
    new = [key for key, value in settings.items() if not known_to(release, key, value)]
    applied = apply({key: value for key, value in settings.items() if key not in new}, options, provider_options, load)
    left_out = [
        *(f"{key}: needs onnxruntime {'.'.join(map(str, since(key, settings[key])))}, not {release}" for key in new),
        *applied.left_out,
    ]
    if left_out:
        _warn(f"{name} is used without {'; '.join(left_out)}", stacklevel)
    return applied


def use_for_session(
    tuning: str | os.PathLike[str] | Tuning,
    model: str | bytes | bytearray | memoryview,
    options: SessionOptions | None,
    names: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
) -> tuple[SessionOptions, list[providers.Provider]]:
    """As `use`, for an `InferenceSession` with these arguments: its options and its providers."""
    # Without ONNX Runtime's environment, of which the tuning may have to say something.
    asked = providers.preferred() if names is None else providers.normalize(names, provider_options)
    given = dict(asked).get(providers.CUDA)
    applied = use(tuning, model, [providers.kind_of(asked)], options, given, stacklevel=4)
    checked = {key: str(value) for key, value in applied.provider_options.items()}
    return applied.options, [(name, checked if name == providers.CUDA else values) for name, values in asked]


_WHERE = {"cpu": "the CPU", "cuda": "GPUs"}


def _warn(text: str, stacklevel: int) -> None:
    warnings.warn(text, TuningWarning, stacklevel=stacklevel + 1)
