"""Which models a server has: files, folders as Triton has them, or a TOML file that says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti import checks
from ortmulti.create.model import Model
from ortmulti.errors import InvalidArgument, NoSuchFile, NotFound
from ortmulti.serve import pbtxt
from ortmulti.serve.datatypes import Declared
from ortmulti.serve.pbtxt import Tensor
from ortmulti.serve.service import Defaults

if TYPE_CHECKING:
    from ortmulti.create.model import ModelLike
    from ortmulti.pool.pool import Pool

__all__ = ["Models", "ServedModel"]

_CONFIG = "config.pbtxt"
_MODEL = "model.onnx"
_FILES = {"token_file", "tls_certificate", "tls_key"}


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
    """

    name: str
    path: Path | str
    version: str = "1"
    options: dict[str, Any] = field(default_factory=dict)
    keep: Any = None
    defaults: Defaults = field(default_factory=Defaults)
    stated: list[Tensor] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def model(self) -> ModelLike:
        """Return what is loaded; from an object store, as it is now.

        Raises:
            NoSuchFile, InvalidArgument: It is in a store, and cannot be read, or ``keep`` is none of `Model`.
        """
        return str(self.path) if self.keep is None else Model(str(self.path), keep=self.keep)

    def check(self, pool: Pool) -> None:
        """Compare the loaded model with its configuration.

        Raises:
            InvalidArgument: It is another one.
        """
        present = {"input": pool.get_inputs(), "output": pool.get_outputs()}
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
            folder = Path(self.path).parents[1].name
            raise InvalidArgument(
                f"{_CONFIG} of {folder!r}: the {tensor.kind} {tensor.name!r} {wrong}: mend the file, or leave the "
                f"{tensor.kind} out"
            )


def _fits(dims: list[int], shape: list[int]) -> bool:
    return len(dims) == len(shape) and all(-1 in pair or pair[0] == pair[1] for pair in zip(dims, shape, strict=True))


class Models:
    """The models of several places, looked up again at each `find`.

    Args:
        places: Files, a model's folder ``NAME/VERSION/model.onnx``, folders of either, URLs, or a TOML file.
        options: Of `ModelRepository.add`, for models whose configuration does not say otherwise; `options` may be
            changed.

    Raises:
        InvalidArgument, NoSuchFile: A place that has none, a configuration that cannot be read, or a name twice.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})
        self.settings: dict[str, Any] = {}
        self._places: list[Callable[[], list[ServedModel]]] = []
        for place in places:
            url, path = str(place), Path(place)
            if "://" in url:
                self._places.append(partial(self._at, url))
            else:
                self._places += self._from_toml(path) if path.suffix == ".toml" else [partial(self._in, path)]
        self.all()

    def all(self) -> dict[str, ServedModel]:
        """Return every model that is there now, by name."""
        found: dict[str, ServedModel] = {}
        for place in self._places:
            for model in place():
                if model.name in found:
                    one, other = (str(each.path).partition("?")[0] for each in (found[model.name], model))
                    raise InvalidArgument(f"two models have the name {model.name!r}, {one} and {other}: rename one")
                found[model.name] = model
        return found

    def find(self, name: str) -> ServedModel:
        """Return a model as it is there now.

        Raises:
            NotFound: There is no such model.
        """
        model = self.all().get(name)
        if model is None:
            raise NotFound(f"there is no model {name!r}")
        return model

    def _at(self, url: str) -> list[ServedModel]:
        return [ServedModel(Path(url.partition("?")[0]).stem, url, options=dict(self.options))]

    def _in(self, place: Path) -> list[ServedModel]:
        if not place.is_dir():
            if not place.exists():
                raise NoSuchFile(f"there is no model file or folder '{place}': check the path")
            return [ServedModel(place.stem, place, options=dict(self.options))]
        if (alone := self._model_in(place)) is not None:
            return [alone]
        models = []
        for each in sorted(place.iterdir()):
            if each.is_dir():
                models += [] if (model := self._model_in(each)) is None else [model]
            elif each.suffix == ".onnx":
                models.append(ServedModel(each.stem, each, options=dict(self.options)))
        if not models:
            raise NoSuchFile(f"'{place}' has no model: NAME.onnx, or NAME/VERSION/{_MODEL} as Triton has it")
        return models

    def _model_in(self, folder: Path) -> ServedModel | None:
        """Return the model of a folder with folders of versions in it; the newest one."""
        config = folder / _CONFIG
        try:
            read = pbtxt.read(config.read_text(encoding="utf-8") if config.is_file() else "")
            if read.name not in ("", folder.name):
                raise InvalidArgument(f"the name is {read.name!r}, and the folder's another one")
            if Path(read.file).name != read.file:
                raise InvalidArgument(f"default_model_filename is a file's name, not {read.file!r}")
        except InvalidArgument as error:
            raise InvalidArgument(f"config.pbtxt of {folder.name!r}: {error}") from None
        numbered = [each for each in folder.iterdir() if each.name.isdecimal()]
        versions = [
            each
            for each in numbered
            if (each / read.file).is_file() and (read.versions is None or int(each.name) in read.versions)
        ]
        if not versions:
            if read.versions:
                raise InvalidArgument(f"config.pbtxt of {folder.name!r}: none of the versions {read.versions} is there")
            return None
        newest = max(versions, key=lambda each: int(each.name))
        ignored = read.ignored + [
            f"version {each.name}, which has no {read.file}"
            for each in numbered
            if int(each.name) > int(newest.name) and not (each / read.file).is_file()
        ]
        options = {**self.options, **read.options}
        defaults = Defaults(read.timeout, read.priority, read.may_override or read.timeout is None, read.max_batch_size)
        return ServedModel(folder.name, newest / read.file, newest.name, options, None, defaults, read.tensors, ignored)

    def _declared(
        self, name: str, path: Path | str, version: str, options: dict[str, Any], timeout: float | None, keep: Any
    ) -> list[ServedModel]:
        """Return a model of a TOML file; of a folder, the newest version."""
        is_folder = isinstance(path, Path) and path.is_dir()
        found = self._model_in(Path(path)) if is_folder else None
        if is_folder and found is None:
            raise NoSuchFile(f"'{path}' has no version with a {_MODEL}")
        model = found or ServedModel(name, path, version, dict(self.options))
        defaults = model.defaults if timeout is None else model.defaults._replace(timeout=timeout)
        return [replace(model, name=name, options={**model.options, **options}, keep=keep, defaults=defaults)]

    def _from_toml(self, path: Path) -> list[Callable[[], list[ServedModel]]]:
        import tomllib

        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NoSuchFile(f"there is no file '{path}': check the path") from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidArgument(f"{path}: {error}") from None
        models = read.pop("models", {})
        for name in _FILES & read.keys():  # beside the TOML file, as the models are
            read[name] = str(path.parent / str(read[name]))
        self.settings.update(read)
        if not isinstance(models, dict) or not all(isinstance(model, dict) for model in models.values()):
            raise InvalidArgument(f"{path}: each model is a table, such as [models.bert] with path = 'bert.onnx'")
        found: list[Callable[[], list[ServedModel]]] = []
        for name, table in models.items():
            options = dict(table)
            if not isinstance(given := options.pop("path", None), str):
                raise InvalidArgument(f"{path}: [models.{name}] has no path")
            timeout = options.pop("timeout", None)
            version = str(options.pop("version", "1"))
            keep = options.pop("keep", None)
            try:
                if timeout is not None:
                    checks.number("timeout", timeout)
                made = _objects(options)
            except (AttributeError, TypeError, InvalidArgument) as error:
                raise InvalidArgument(f"{path}: [models.{name}]: {error}") from None
            place = given if "://" in given else path.parent / given
            found.append(partial(self._declared, name, place, version, made, timeout, keep))
        return found


def _objects(options: dict[str, Any]) -> dict[str, Any]:
    """Make the objects of ortmulti that tables stand for."""
    from ortmulti.options.session_options import SessionOptions
    from ortmulti.pool.configuration import Batching, CudaGraph, Warmup

    kinds: dict[str, Any] = {"batching": Batching, "cuda_graph": CudaGraph, "warmup": Warmup}
    made: dict[str, Any] = {}
    for name, value in options.items():
        if name in kinds and isinstance(value, dict):
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
