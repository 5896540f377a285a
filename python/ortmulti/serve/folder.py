"""Which models a server has: files, folders as Triton has them, or a TOML file that says so."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ortmulti.create.model import Model
from ortmulti.errors import Error, InvalidArgument, NoSuchFile, NotFound
from ortmulti.pool.pool import rows_of
from ortmulti.serve import pbtxt, toml
from ortmulti.serve.pbtxt import Tensor
from ortmulti.serve.service import Declared, Defaults
from ortmulti.text.settings import find_files, is_export

if TYPE_CHECKING:
    from ortmulti.create.model import ModelLike
    from ortmulti.pool.pool import Pool
    from ortmulti.text.settings import Settings

__all__ = ["Models", "ServedModel"]

LOGGER = logging.getLogger("ortmulti.serve")

_CONFIG = "config.pbtxt"
_MODEL = "model.onnx"
# /v2/models/stats are the counts of all models.
_TAKEN = {"stats"}


@dataclass
class ServedModel:
    """A model and how it is loaded.

    Attributes:
        name: Its name.
        path: Its file, or its URL in an object store.
        version: Its label.
        options: Of `ModelRepository.add`.
        keep: Of `Model`, for one in an object store.
        defaults: Of its requests.
        stated: Inputs and outputs of its configuration.
        ignored: What its configuration says and has no meaning here.
        texts: Of an exported model of texts.
        normalize: Whether vectors of texts are brought to the length 1 where a request does not say.
    """

    name: str
    path: Path | str
    version: str = "1"
    options: dict[str, Any] = field(default_factory=dict)
    keep: Any = None
    defaults: Defaults = field(default_factory=Defaults)
    stated: list[Tensor] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    texts: Settings | None = None
    normalize: bool = True

    def ways(self) -> list[dict[str, Any]]:
        """Return options of `ModelRepository.add`, the best first. One that the model does not allow is an
        `InvalidArgument` of the load; then the next one is taken.
        """
        options = {"version": self.version, **self.options}
        if self.texts is None:
            return [options]
        from ortmulti.text.loading import load_options

        return load_options(self.texts, **options)

    def model(self) -> ModelLike:
        """Return what is loaded; from an object store, as it is now.

        Raises:
            NoSuchFile, InvalidArgument: It is in a store, and cannot be read, or ``keep`` is none of `Model`.
        """
        return str(self.path) if self.keep is None else Model(str(self.path), keep=self.keep)

    def check(self, pool: Pool) -> None:
        """Compare the loaded model with its configuration.

        Raises:
            InvalidArgument: It is another one, or its requests are to be joined and the rows of an output depend on
                each other.
        """
        rows = rows_of(pool)
        if rows is not None and (dependent := rows.dependent()):
            raise InvalidArgument(
                f"the requests of {self.name!r} are to be joined, but {'; '.join(dependent)}: serve it without "
                "batching, or trust it (trust = true of batching in a TOML file, or the parameter trust_batching of a "
                "config.pbtxt)"
            )
        initializers = pool.get_overridable_initializers()  # optional inputs, in Triton's words
        present = {"input": [*pool.get_inputs(), *initializers], "output": pool.get_outputs()}
        batch = " with the batch's" * (self.defaults.max_batch_size > 0)
        for tensor in self.stated:
            values = {value.name: Declared(value) for value in present[tensor.kind]}
            value = values.get(tensor.name)
            # A shape that the model does not state is empty, too.
            dims = tensor.dims if value and value.shape else []
            if value is None:
                wrong = f"is none of the model's: {', '.join(values)}"
            elif tensor.data_type not in ("", value.data_type):
                wrong = f"has data_type {tensor.data_type}, and the model's is {value.data_type}"
            elif dims and not _fits(dims, value.shape):
                wrong = f"has the dims {dims}{batch}, and the model's are {value.shape}"
            else:
                continue
            raise InvalidArgument(
                f"config.pbtxt of {self.name!r}: the {tensor.kind} {tensor.name!r} {wrong}: mend the file, or leave "
                f"the {tensor.kind} out"
            )


def _fits(dims: list[int], shape: list[int]) -> bool:
    return len(dims) == len(shape) and all(-1 in pair or pair[0] == pair[1] for pair in zip(dims, shape, strict=True))


class _Place(NamedTuple):
    """Where a model may be, and what reads it; that returns None where there is none."""

    name: str
    path: Path | str
    read: Callable[[str], ServedModel | None]


class Models:
    """The models of several places, looked up again at each `find`.

    Args:
        places: Files, a model's folder ``NAME/VERSION/model.onnx``, folders of either, URLs, or a TOML file.
        options: Of `ModelRepository.add`, for models whose configuration does not say otherwise; `options` may be
            changed, and so may `name`, of the only model; `custom_ops`, libraries of custom operators; `fuse` and
            `devices`, as for `ortmulti.text.load`.

    Raises:
        InvalidArgument, NoSuchFile: A place that has none, or a TOML file that cannot be read.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        self.name = ""
        self.custom_ops: Sequence[str] = ()
        self.fuse: Literal["fp32", "fp16"] | None = None
        self.devices: Any = "all"
        self.settings: dict[str, Any] = {}
        self._looked_up: list[Callable[[], list[_Place]]] = []
        for place in places:
            url, path = str(place), Path(place)
            if "://" in url:
                self._looked_up.append(partial(self._at, url))
            else:
                self._looked_up += self._from_toml(path) if path.suffix == ".toml" else [partial(self._in, path)]
        self._without_model: list[str] = []  # folders
        self._places()

    def all(self) -> tuple[dict[str, ServedModel], dict[str, Error]]:
        """Return every model that is there now, and why each of the others cannot be served, by name.

        Raises:
            NoSuchFile: There are folders, and none of them has a model.
        """
        found: dict[str, ServedModel] = {}
        refused: dict[str, Error] = {}
        left_out: list[str] = []
        self._without_model.clear()
        for name, places in self._places().items():
            try:
                found[name] = self._read(name, places)
            except NotFound as error:
                left_out.append(str(error))
            except Error as error:
                refused[name] = error
        if left_out and not found and not refused:
            raise NoSuchFile(f"there is no model: {'; '.join(left_out)}")
        for text in [*left_out, *map(_without_version, self._without_model)]:
            LOGGER.warning("left out: %s", text)
        return found, refused

    def find(self, name: str) -> ServedModel:
        """Return a model as it is there now. No other one's configuration is read.

        Raises:
            NotFound: There is no such model.
            InvalidArgument, NoSuchFile: It cannot be served.
        """
        places = self._places().get(name)
        if places is None:
            raise NotFound(f"there is no model {name!r}")
        return self._read(name, places)

    def _places(self) -> dict[str, list[_Place]]:
        found: dict[str, list[_Place]] = {}
        for look_up in self._looked_up:
            for place in look_up():
                found.setdefault(place.name, []).append(place)
        if not self.name:
            return found
        if len(found) != 1:
            raise InvalidArgument(f"the name {self.name!r} is for one model, and there are {len(found)}: name no model")
        return {self.name: next(iter(found.values()))}

    def _read(self, name: str, places: Sequence[_Place]) -> ServedModel:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(f"the name of the file or folder {name!r} is not UTF-8: rename it") from None
        if name in _TAKEN or "/" in name or not name:
            raise InvalidArgument(
                f"the name {name!r} has another meaning in the protocol's addresses: rename the model"
            )
        try:
            found = [(place.path, model) for place in places if (model := place.read(name)) is not None]
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise NoSuchFile(f"{error.filename!r} cannot be read: {error.strerror}") from error
        if not found:
            raise NotFound(_without_version(name))
        if len(found) > 1:
            two = " and ".join(repr(str(path).partition("?")[0]) for path, _ in found[:2])
            raise InvalidArgument(f"two models have the name {name!r}, {two}: rename one")
        [(_, model)] = found
        if self.custom_ops:
            from ortmulti.options.session_options import SessionOptions

            options = model.options.setdefault("options", SessionOptions())
            for library in self.custom_ops:
                options.register_custom_ops_library(library)
        return model

    def _at(self, url: str) -> list[_Place]:
        return [_Place(Path(url.partition("?")[0]).stem, url, partial(self._file, url))]

    def _in(self, place: Path) -> list[_Place]:
        if not place.is_dir():
            if not place.exists():
                raise NoSuchFile(f"there is no model file or folder '{place}': check the path")
            return [_Place(place.stem, place, partial(self._file, place))]
        if is_export(place):
            name = Path(os.path.abspath(place)).name  # noqa: PTH100  # a link keeps its name, "." gets one
            return [_Place(name, place, partial(self._export, place))]
        versions = _versions(place)
        if any((each / _MODEL).exists() or is_export(each) for each in versions) or (
            versions and (place / _CONFIG).is_file()
        ):
            name = Path(os.path.abspath(place)).name  # noqa: PTH100  # a link keeps its name, "." gets one
            return [_Place(name, place, partial(self._model_in, place))]
        found = []
        for each in sorted(place.iterdir()):
            if each.name.startswith("."):
                continue  # hidden files are of editors, and of macOS: ._model.onnx
            if each.is_dir():
                if is_export(each):
                    found.append(_Place(each.name, each, partial(self._export, each)))
                elif _may_be_model(each):
                    found.append(_Place(each.name, each, partial(self._model_in, each)))
                else:
                    self._without_model.append(each.name)
            elif each.suffix == ".onnx":
                found.append(_Place(each.stem, each, partial(self._file, each)))
        if not found:
            raise NoSuchFile(
                f"'{place}' has no model: NAME.onnx, NAME/VERSION/{_MODEL} as Triton has it, or an export with its "
                "tokenizer.json"
            )
        return found

    def _file(self, path: Path | str, name: str) -> ServedModel:
        return ServedModel(name, path, options=dict(self.options))

    def _export(self, folder: Path, name: str, **given: Any) -> ServedModel:
        """Return an exported model of texts; ``given`` takes the place of what its files say."""
        from ortmulti.text.loading import chosen_settings

        settings = chosen_settings(folder, given.pop("fuse", self.fuse), self.devices, **given)
        options = {each: value for each, value in self.options.items() if each != "batching"}  # these have padding
        normalize = given.get("normalize", True)
        return ServedModel(name, settings.model, options=options, texts=settings, normalize=normalize)

    def _export_in(self, version: Path, name: str) -> ServedModel | None:
        try:
            return self._export(version, name) if is_export(version) else None
        except Error as error:  # it may be meant for others
            LOGGER.warning("the model %r is served without its tokenizer: %s", name, error)
            return None

    def _model_in(self, folder: Path, name: str) -> ServedModel | None:
        """Return the model of a folder with folders of versions in it; the newest one."""
        config = folder / _CONFIG
        try:
            read = pbtxt.read(config.read_text(encoding="utf-8") if config.is_file() else "")
            if read.name not in ("", folder.name, name):
                raise InvalidArgument(
                    f"the name is {read.name!r}, and the folder's another one: rename the folder, or leave the name out"
                )
            if "/" in read.file or read.file == "..":
                raise InvalidArgument(f"default_model_filename is a file's name, not {read.file!r}")
            known = {Path(library).name for library in self.custom_ops}
            if unknown := [library for library in read.libraries if Path(library).name not in known]:
                raise InvalidArgument(
                    f"model_operations names the library {unknown[0]!r}, whose code would run: name it with "
                    "--custom-ops, too"
                )
        except (InvalidArgument, UnicodeDecodeError) as error:
            raise InvalidArgument(f"config.pbtxt of {folder.name!r}: {error}") from None
        versions = _versions(folder)
        files = {
            version: file
            for version in versions
            if (file := _model_file(version / read.file) or _of_export(version)) is not None
            and (read.versions is None or int(version.name) in read.versions)
        }
        if not files:
            if read.versions:
                raise InvalidArgument(f"config.pbtxt of {folder.name!r}: none of the versions {read.versions} is there")
            return None
        newest = max(files, key=_number)
        export = self._export_in(newest, name)
        ignored = read.ignored + [
            f"version {each.name}, which has no {read.file}"
            for each in versions
            if _number(each) > _number(newest) and not (_model_file(each / read.file) or _of_export(each))
        ]
        options = {**(export or self).options, **read.options}
        defaults = Defaults(read.timeout, read.priority, read.may_override or read.timeout is None, read.max_batch_size)
        path, texts = (files[newest], None) if export is None else (export.path, export.texts)
        return ServedModel(name, path, newest.name, options, None, defaults, read.tensors, ignored, texts)

    def _declared(self, path: Path | str, table: Mapping[str, Any], name: str) -> ServedModel:
        """Return a model of a TOML file; of a folder, the newest version."""
        says = toml.Table.of(table)
        folder = path if isinstance(path, Path) and path.is_dir() else None
        found = None
        if folder and is_export(folder):
            found = replace(self._export(folder, name, **says.texts), version=says.version)
        elif says.texts:
            raise InvalidArgument(
                f"{', '.join(says.texts)} of {name!r}: these are for the folder of an exported model of texts, which "
                f"has a tokenizer.json and an ONNX file, and '{path}' is none"
            )
        elif folder:
            found = self._model_in(folder, name)
            if found is None:
                raise NoSuchFile(f"'{path}' has no version with a {_MODEL}")
        model = found or ServedModel(name, path, says.version, dict(self.options))
        defaults = model.defaults
        if says.timeout is not None:
            defaults = defaults._replace(timeout=says.timeout)
        return replace(model, options={**model.options, **says.options}, keep=says.keep, defaults=defaults)

    def _from_toml(self, path: Path) -> list[Callable[[], list[_Place]]]:
        settings, models = toml.read(path)
        self.settings.update(settings)
        found = []
        for name, table in models.items():
            given = table["path"]
            place = given if "://" in given else path.parent / given
            found.append(_Place(name, place, partial(self._declared, place, table)))
        return [lambda: found]


def _without_version(name: str) -> str:
    return f"the folder {name!r} has no version with a model's file, NAME/VERSION/{_MODEL}"


def _versions(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.name.isdecimal()]


def _number(version: Path) -> int:
    return int(version.name)


def _may_be_model(folder: Path) -> bool:
    try:
        return (folder / _CONFIG).is_file() or bool(_versions(folder))
    except OSError:
        return True  # its reader says why it cannot be read


def _of_export(version: Path) -> Path | None:
    """Return the ONNX file of a version that is an export of texts in a layout of its own."""
    return find_files(version).models[0] if is_export(version) else None


def _model_file(path: Path) -> Path | None:
    """Return the file of a version. In Triton's form for several files it lies in a folder of that name."""
    return next((file for file in (path, path / _MODEL) if file.is_file()), None)
