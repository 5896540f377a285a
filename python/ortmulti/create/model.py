"""The model of a request: a file, bytes, or a graph in memory whose weights come from sources."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti.errors import Fail, InvalidArgument, InvalidType, NoSuchFile, NotOptimizable, WeightsError

# `load` makes a model before the driver starts.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Literal, TypeAlias

    from obstore.store import ObjectStore

    ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Model"
    Keep: TypeAlias = Literal["disk"]

__all__ = ["Model"]


class Model:
    """A model: a file, bytes, an object of an object store, or bytes whose weights are read from sources.

    It takes the place of a path. Only sources need it, and options of a store (docs/how-to/remote.md). A source is any
    object with

    - ``identity``: a str that no other bytes have, such as an address with a version. The cache's keys contain it, and
      it is compared again at each read.
    - ``size``: the number of bytes.
    - ``read_into(buffer, offset)``: fills the writable buffer and returns the number of bytes that it wrote. Or it
      returns the bytes, which are copied without the GIL. Several threads call it at the same time.
    - ``reads_at_once`` and ``range_bytes``, if it has them: how many ranges are read at the same time, at most, and the
      bytes of each. Default: as from a file.
    - ``name``, if it has it: a str for messages. Default: the identity.
    - ``interrupt()``, if it has it: ends the calls of ``read_into`` that are under way, from another thread.

    Args:
        graph: The path of a file, or its bytes. Or a URL: ``s3://bucket/path/model.onnx``, ``gs://``, ``az://``,
            ``https://``. Its external data lies beside it.
        weights: The source of each file of external data, by its name in the graph, which then is bytes. Default: the
            files lie beside the model.
        store: A store of obstore, with credentials and options; ``graph`` is a path there.
        keep: "disk": of what is read from a store, a copy is made in the cache, within its bounds, and used by later
            loads as long as the object is the same. Default: none.

    Attributes:
        graph: The path or the bytes: what ONNX Runtime opens.
        path: The path; empty for a model in memory.
        url: Where the model is in a store, without secrets; empty for others.
        copied: Whether a copy on the disk takes the place of an object.
        external: The weights with external data that ONNX Runtime does not find by itself.
        sources: The sources by their names in the graph.

    Raises:
        NoSuchFile: There is no such file or object, or it may not be read.
        LibraryError: The package obstore is missing, which URLs need.
        InvalidType: An argument has another type, or an object is no source.
        InvalidArgument: There are no bytes, or a source is missing. Or no source can give some external data: it is not
            of the main graph's initializers, or does not have the bytes that its type and shape need.
        InvalidProtobuf: The graph is not an ONNX model, and there are sources.
        WeightsError: A source is too short, or an object does not come.
        OutOfMemory, RuntimeException: As of `remote.RemoteFile`.
    """

    __slots__ = ("_kept", "copied", "external", "graph", "path", "sources", "url")

    def __init__(
        self,
        graph: ModelLike,
        weights: Mapping[str, _core.Source | _core.PythonSource] | None = None,
        *,
        store: ObjectStore | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.graph: Any = graph
        self.path = self.url = ""
        self._kept: list[Any] = []
        self.copied = False
        self.external = _core.WeightList()
        self.sources: dict[str, _core.Source] = {}
        if isinstance(graph, str) and weights is None and (store is not None or "://" in graph):
            self._open(graph, store, keep)
        elif store is not None or keep is not None:
            raise InvalidArgument("store= and keep= are for a URL or a path in the store, without weights=")
        elif isinstance(graph, (bytes, bytearray, memoryview)):
            if len(graph) == 0:
                raise InvalidArgument._of_runtime("the model is empty: 0 bytes; give the bytes of an .onnx file")
            if weights is not None:
                self._take(weights)
        elif weights is not None:
            raise InvalidType(f"the graph of a model with sources is bytes, not {type(graph).__name__}: read its file")
        elif isinstance(graph, (str, os.PathLike)):
            self.graph = self.path = _checked_path(graph)
        else:
            proto = hasattr(graph, "SerializeToString")
            hint = ": give its SerializeToString(), or the path of its file" if proto else ""
            if hasattr(graph, "state_dict") and hasattr(graph, "forward"):  # PyTorch's
                hint = ": export it with torch.onnx.export(model, example_inputs, 'model.onnx'), and give that file"
            raise InvalidType(f"a model is a path or bytes, not {type(graph).__name__}{hint}")

    @staticmethod
    def of(value: object) -> Model:
        """Return a `Model`, or make one of a path or bytes."""
        return value if isinstance(value, Model) else Model(value)  # type: ignore[arg-type]

    def _open(self, url: str, store: ObjectStore | None, keep: Keep | None) -> None:
        """Read the graph from a store."""
        from ortmulti import checks
        from ortmulti.create.empty_files import MIN_SHARED_BYTES
        from ortmulti.remote.model import open_model
        from ortmulti.remote.place import SCHEMES
        from ortmulti.remote.remote_errors import without_secrets

        checks.choice("keep", keep, (None, "disk"))
        scheme, _, place = url.strip().partition("://")
        if store is None and scheme not in SCHEMES:
            near = "" if scheme == "file" else checks.did_you_mean(scheme, SCHEMES)
            advice = (
                f"give its path, '{place}'"
                if scheme == "file"
                else "it is such as s3://bucket/path/model.onnx, gs://, az:// or https://"
            )
            raise InvalidArgument(f"'{without_secrets(url)}' has the unknown scheme '{scheme}'{near}: {advice}")
        opened = open_model(url, store, keep=keep is not None, large=MIN_SHARED_BYTES)
        self.url, self.graph, weights, self._kept, self.copied = opened
        if weights:
            self._take(weights)

    def keep_copies(self) -> None:
        """Complete the copies of what a load has read from a store, in the background."""
        while self._kept:
            self._kept.pop().complete()

    def _take(self, given: Mapping[str, _core.Source | _core.PythonSource]) -> None:
        """Find all external data in these sources."""
        index = _core.index_model(self.graph)
        outside = [each for each in index.initializers if each.storage == "external"]
        in_main_graph = {each.location for each in outside} - {each.location for each in outside if each.graph}
        places = {location: place for place, location in enumerate(index.external_locations)}
        if elsewhere := places.keys() - in_main_graph:
            raise InvalidArgument(
                f"no source can give the data of {os.fsdecode(min(elsewhere))!r}: it belongs to no initializer of the "
                "main graph; save the model with that data in its own file"
            )
        names = [os.fsdecode(location) for location in places]
        if missing := [name for name in names if name not in given]:
            known = ", ".join(map(repr, given)) or "none"
            raise InvalidArgument(f"there is no source for the model's external data {missing[0]!r}, only for {known}")
        found = _core.WeightList([given[name] for name in names]).sources
        weights = []
        for each in outside:
            if not each.used and not each.overridable:  # ONNX Runtime drops it, and takes no value for it
                continue
            name, place = each.name.decode(errors="backslashreplace"), places[each.location]
            if problem := each.tensor_problem or ("" if name.encode() == each.name else "its name is not UTF-8"):
                raise InvalidArgument(f"no source can give the weight {name!r}: {problem}; save the model again")
            if each.offset + each.length > found[place].size:
                raise WeightsError(
                    f"the weight {name!r} is {each.length} bytes from {each.offset} of '{found[place].name}', which "
                    f"has {found[place].size} bytes"
                )
            weights.append(_core.Weight(name, each.data_type, each.shape, place, each.offset, each.length))
        self.external = _core.WeightList(found, weights)
        self.sources = dict(zip(names, found, strict=True))

    def __str__(self) -> str:
        place = self.path or self.url
        return f"'{place}'" if place else f"a model of {self.size} bytes"

    @property
    def folder(self) -> str:
        """The folder of the file; empty for a model in memory."""
        return (os.path.dirname(self.path) or ".") if self.path else ""  # noqa: PTH120  # pathlib takes 3 ms to import

    @property
    def file(self) -> _core.Source | None:
        """The file as it is now; None for a model in memory."""
        return _core.file_source(self.path) if self.path else None

    @property
    def size(self) -> int:
        """Bytes of the file or of the graph in memory, without external data."""
        with self.content() as content:
            return content.nbytes if isinstance(content, memoryview) else content.size

    @contextlib.contextmanager
    def content(self) -> Iterator[_core.Source | memoryview]:
        """Give access to the bytes of the file, or of the graph in memory."""
        if file := self.file:
            yield file
        else:
            with memoryview(self.graph) as view:
                yield view

    def external_data(self, index: _core.ModelIndex, folder: str | None) -> list[_core.Source]:
        """Return the sources of external data, in the order of ``index.external_locations``. That of a model in memory
        lies in ``folder``.

        Raises:
            NotOptimizable: It cannot be identified, or is outside of the model's folder.
            NoSuchFile: A file is missing.
        """
        if self.sources or not index.external_locations:
            return list(self.sources.values())
        if not self.path and (folder is None or self.external.weights):
            raise NotOptimizable("the model is in memory and has external data, and no folder is named for it")
        try:
            return _core.external_files(index, self.folder or folder or "", self.path)
        except Fail as error:
            raise NotOptimizable(str(error)) from error

    def with_weights(
        self, options: _core.SessionOptions, progress: Callable[[int], object] | None = None
    ) -> _core.SessionOptions:
        """Return options with which ONNX Runtime can open the graph: weights that are not in files are read.

        Args:
            options: The options.
            progress: Called with the number of bytes that were read so far.
        """
        if not self.external.weights:
            return options
        from ortmulti._runtime import startup

        startup.ensure_open()  # before values are made
        if both := {weight.name for weight in self.external.weights} & set(options.external_initializers):
            raise InvalidArgument(
                f"the session options and the model's sources have the external data of {min(both)!r}"
            )
        changed: _core.SessionOptions = options.copy()
        changed.add_external_weights(self.external.read(progress))
        if progress is not None:
            progress(sum(weight.length for weight in self.external.weights))
        return changed


def _example_in(folder: str) -> str:
    """Return a model's file in a folder, or in a version's folder of it as Triton has them, as words; or nothing."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208  # pathlib takes 3 ms to import
    except OSError:
        return ""
    for name in names:
        file = f"{folder}/{name}/model.onnx" if name.isdigit() else f"{folder}/{name}"
        if file.endswith(".onnx") and os.path.isfile(file):  # noqa: PTH113  # as before
            return f", such as '{file}'"
    return ""


def _checked_path(value: str | os.PathLike[str]) -> str:
    path = os.fspath(value)
    try:
        status = os.stat(path)  # noqa: PTH116  # pathlib takes 3 ms to import
    except FileNotFoundError:
        from ortmulti.checks import was_url

        advice = "check the path"
        try:
            here = repr(os.getcwd())  # noqa: PTH109  # pathlib takes 3 ms to import
        except FileNotFoundError:
            here = "a deleted working folder"
            if not path.startswith("/"):
                advice = "give the absolute path"
        if path.startswith("~"):
            advice = "'~' is no part of a path: os.path.expanduser() replaces it"
        elif was_url(path):
            advice = "a URL is a str with two slashes, such as s3://bucket/model.onnx"
            path = path.partition(":")[0] + ":..."  # it may have a password
        raise NoSuchFile._of_runtime(f"there is no model file '{path}' in {here}: {advice}") from None
    except OSError as error:
        raise NoSuchFile._of_runtime(f"the model file '{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL character, or one that cannot be encoded
        raise NoSuchFile._of_runtime(f"no file can have the path {path!r}: {error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise NoSuchFile._of_runtime(
            f"'{path}' is a directory, not a model file: name the .onnx file in it{_example_in(path)}"
        )
    if not os.access(path, os.R_OK):
        raise NoSuchFile._of_runtime(f"the model file '{path}' cannot be read: permission denied")
    if status.st_size == 0:
        raise InvalidArgument._of_runtime(f"the model file '{path}' is empty: 0 bytes. Copy or download it again")
    return path
