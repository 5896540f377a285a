"""The cache entry for new sessions: found, or built.

ONNX Runtime saves the optimized model; the core splits it into a graph and weights.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ortmulti import _core
from ortmulti.cache.entries import Cache, StagedEntry
from ortmulti.cache.entry import Damaged, Entry
from ortmulti.cache.staging import remove_tree
from ortmulti.create import core_sessions
from ortmulti.create.empty_files import DATA_FOLDER, over_empty_files
from ortmulti.create.model import Model
from ortmulti.create.request import without_optimization
from ortmulti.devices.device import Device
from ortmulti.devices.providers import Provider
from ortmulti.errors import Error, NotFound, NotOptimizable
from ortmulti.optimized.key import compute_capability, key_of
from ortmulti.options.session_options import SessionOptions

LARGE = "large.bin"
"""All tensors of an optimized model that is too large to be saved as one file."""

_ERROR = 3  # ONNX Runtime's severity

# The model's inputs and outputs, and the spans of its creation.
_Saved: TypeAlias = tuple[Any, _core.Timeline]


def build(
    staged: StagedEntry,
    model: Model,
    providers: Sequence[Provider],
    options: SessionOptions | None = None,
    refused: Sequence[str] = (),
    *,
    data_folder: str | None = None,
    poll: Callable[[], object] | None = None,
) -> Entry:
    """Optimize a model and make an unpublished cache entry from it.

    The model is not optimized again if the staged entry already has a signature and a saved model, such as from an
    earlier call.

    Args:
        staged: Where.
        model: The model of the staged entry's key.
        providers: The providers of the sessions that will use it, with their options.
        options: The options of these sessions.
        refused: Names of weights that must not be shared.
        data_folder: Where the external data of the saved model lies; default: as that of the model.
        poll: Called in short intervals. Its exceptions end the call.

    Raises:
        NotOptimizable: ONNX Runtime cannot create or save it, or a file of the model changed meanwhile.
    """
    start = time.monotonic()
    try:
        core = _core.SessionOptions() if options is None else options._core
        large = staged.folder / LARGE
        if large.exists():
            large.rename(staged.saved.with_name(LARGE))
        if staged.signature is None or not staged.saved.exists():
            staged.signature, staged.timeline = _optimize(staged.saved, model, providers, core)
        is_large = staged.saved.with_name(LARGE).exists()
        if is_large:
            original, folder, sources = "", str(staged.saved.parent), {}
        else:
            original, sources = model.path, model.sources
            folder = data_folder or model.folder or core.config_entries.get(DATA_FOLDER, "")
        try:
            inputs = [name for name, *_ in staged.signature[0]]
            weights, own_bytes = _core.split_optimized_model(
                str(staged.saved), original, folder, str(staged.folder), list(refused), poll, sources, inputs
            )
        except Error as error:
            raise NotOptimizable(f"what ONNX Runtime saved cannot be used: {error}") from error
        if is_large:
            weights = _move_large(staged, weights)
            own_bytes += large.stat().st_size
        facts = {"signature": staged.signature, "seconds": round(time.monotonic() - start, 6)}
        return staged.finish(weights, own_bytes, refused, facts)
    except OSError as error:
        raise NotOptimizable(f"the optimized model cannot be written: {error}") from error


def entry_options(options: _core.SessionOptions) -> _core.SessionOptions:
    """Return the options for a session over an entry: the same, but without further optimization."""
    result = without_optimization(options)
    result.optimized_model_filepath = ""
    result.config_entries = {key: value for key, value in result.config_entries.items() if key != DATA_FOLDER}
    return result


def not_loadable(reason: Error | str) -> NotOptimizable:
    """Return the error for an entry that ONNX Runtime cannot load: it does not load all models that it saves."""
    return NotOptimizable(f"the optimized model cannot be loaded: {reason}")


def _optimize(saved: Path, model: Model, providers: Sequence[Provider], options: _core.SessionOptions) -> _Saved:
    """Let ONNX Runtime save the optimized model."""
    saving = options.copy()
    saving.optimized_model_filepath = str(saved)
    # Each session makes weights in another layout again; saving them would only add bytes.
    saving.config_entries = {**saving.config_entries, "session.disable_prepacking": "1"}
    saving.enable_profiling = False
    if saving.log_severity_level in (-1, 2):
        # ONNX Runtime warns that the result fits only this hardware, as intended.
        saving.log_severity_level = _ERROR
    try:
        return _save(saved, model, providers, saving)
    except Error as error:
        if not _is_too_large(error):
            raise NotOptimizable(f"ONNX Runtime cannot save the optimized model: {error}") from error
    # A file of this format holds 2 GB at most.
    saving.config_entries = {
        **saving.config_entries,
        "session.optimized_model_external_initializers_file_name": LARGE,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_core.MIN_SHARED_BYTES),
    }
    try:
        return _save(saved, model, providers, saving)
    except Error as error:
        raise NotOptimizable(f"ONNX Runtime cannot save the optimized model: {error}") from error


def _save(saved: Path, model: Model, providers: Sequence[Provider], saving: _core.SessionOptions) -> _Saved:
    found: list[_Saved] = []

    def create(options: _core.SessionOptions, weights: _core.WeightList) -> str:
        _clear(saved.parent)
        # ONNX Runtime reads from the files only those weights that it computes others from.
        try:
            found.append(_create(saved, model, providers, options, _core.SharedWeights(weights, fill=False)))
        except Error as error:
            if _is_too_large(error):
                raise
            return str(error)
        return ""

    if model.external.weights:
        over_empty_files(_core.index_model(model.graph), model.external, saving, create)
    elif (weights := _unread_weights(model)) is not None:
        create(saving, weights)
    if found:
        return found[0]
    _clear(saved.parent)
    return _create(saved, model, providers, model.with_weights(saving))


def _create(
    saved: Path,
    model: Model,
    providers: Sequence[Provider],
    saving: _core.SessionOptions,
    weights: _core.SharedWeights | None = None,
) -> _Saved:
    [session], timeline = core_sessions.create(model.graph, [providers], saving, weights=weights, logged_as=model.url)
    try:
        if not saved.exists() or saved.stat().st_size == 0:
            raise NotOptimizable("ONNX Runtime has not saved the optimized model")
        return signature(session), timeline
    finally:
        session.close()


def signature(session: _core.Session) -> Any:
    """Return names, types and shapes of a session's inputs and outputs, as JSON can carry them."""
    return [
        [[value.name, value.type, list(value.shape)] for value in values]
        for values in (session.inputs(), session.outputs())
    ]


def _is_too_large(error: Error) -> bool:
    return "protobuf serialization failed" in str(error).lower()


def _unread_weights(model: Model) -> _core.WeightList | None:
    if not model.path:
        return None
    try:
        weights = _core.shareable_weights(model.path)
    except Error:
        return None  # ONNX Runtime says what is wrong
    return weights if weights.weights else None


def _clear(folder: Path) -> None:
    remove_tree(folder)
    folder.mkdir(mode=0o700)


def _move_large(staged: StagedEntry, weights: _core.WeightList) -> _core.WeightList:
    """Move the file with all tensors into the entry."""
    moved = staged.folder / LARGE
    staged.saved.with_name(LARGE).rename(moved)
    moved.chmod(0o600)
    source = _core.file_source(str(moved))
    files = [source if Path(file.name).name == LARGE else file for file in weights.sources]
    return _core.WeightList(files, weights.weights, weights.left_out)


_T = TypeVar("_T")
_Span: TypeAlias = Callable[[str], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class CacheRequest:
    """A request for a model's optimized form, for certain sessions.

    Attributes:
        model: The model.
        providers: The sessions' providers, with their options.
        options: The sessions' options.
        devices: The sessions' devices.
        span: Returns a context manager that measures a named step; the default measures nothing.
    """

    model: Model
    providers: Sequence[Provider]
    options: SessionOptions | None
    devices: Sequence[Device]
    span: _Span = contextlib.nullcontext

    def find_or_build(self, use: Callable[[Entry], _T], make: Callable[[StagedEntry], _T], *, offline: bool) -> _T:
        """Use the entry in the cache, or make one.

        Args:
            use: Receives the open entry, whose checksums were not compared. If it raises `Damaged`, the entry is
                removed and another one is made.
            make: Receives a staged entry, and fills it by `build`.
            offline: Whether to raise `NotFound` instead of making one.

        Returns:
            The result of ``use`` or ``make``.

        Raises:
            NotOptimizable: The model has no optimized form that could be used; the message says why.
            NotFound: The cache has no entry, with ``offline``.
        """
        with self.span("find optimized model"):
            capability = compute_capability(self.devices)
            key = key_of(self.model, self.providers, self.options, compute_capability=capability)
            cache = Cache.default()
            entry = cache.find(key)
        if entry is not None:
            try:
                return use(entry)
            except Damaged as damage:
                cache.remove(key, damage)
        if offline:
            raise NotFound(
                f"there is no optimized form of {self.model} for these options, and optimize='offline' "
                "makes none: run `ortmulti optimize` first"
            )
        return make(cache.stage(key))

    def build(self, staged: StagedEntry, create: Callable[[Entry], tuple[_T, Collection[str]]]) -> _T:
        """Fill a staged entry whose shared weights are all used by ONNX Runtime.

        ONNX Runtime does not take weights that it plans on the CPU, for example.

        Args:
            staged: Where.
            create: Creates sessions over the entry. Returns them, and the weights that were not taken. If there are
                any, it is called again for an entry that does not share these.

        Returns:
            The last result of ``create``, without the weights.

        Raises:
            NotOptimizable: As `build`, or weights that are no longer shared are still not taken.
        """
        refused: tuple[str, ...] = ()
        while True:
            with self.span("optimize model"):
                entry = build(staged, self.model, self.providers, self.options, refused)
            created, found = create(entry)
            if not found:
                return created
            if set(found) <= set(refused):
                raise NotOptimizable(f"ONNX Runtime does not take the weights {', '.join(sorted(found)[:3])}")
            refused = tuple(sorted({*refused, *found}))
