"""Sessions that share the weights of the model's cache entry, which is made if necessary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ortmulti import _core, optimized
from ortmulti._runtime.threads import Task
from ortmulti.create.empty_files import DATA_FOLDER
from ortmulti.errors import Error, NotOptimizable
from ortmulti.loading.creation import Creation


class _Stopped(Exception):  # noqa: N818  (no error, but the end of a comparison whose result nobody needs)
    pass


def create_from_cache(creation: Creation) -> str | None:
    """Create sessions that share the weights of the model's cache entry. The entry is made if necessary.

    Returns:
        Why there are no sessions; None: they exist.
    """
    request = creation.request
    providers, devices = creation.providers[0], creation.devices
    wanted = optimized.CacheRequest(request.model, providers, request.options, devices, creation.span)
    try:
        wanted.find_or_build(
            partial(_over_found, creation),
            partial(_without_entry, creation, wanted),
            offline=request.loading.optimize == "offline",
        )
    except NotOptimizable as problem:
        return str(problem)
    return None


def _create(creation: Creation, entry: optimized.Entry, confirm: Callable[..., bool]) -> None:
    options = optimized.entry_options(creation.options)
    if problem := creation.run(entry.model_path, options, entry.weights, confirm=confirm):
        raise optimized.not_loadable(problem)


def _over_found(creation: Creation, entry: optimized.Entry) -> None:
    """Create the sessions over an entry, and compare its checksums meanwhile."""
    stopped = False
    failures: list[BaseException] = []

    def poll() -> None:
        if stopped:
            raise _Stopped

    def verify() -> None:
        try:
            entry.verify(poll)
        except BaseException as error:
            failures.append(error)

    def verified(*_: object) -> bool:
        task.wait()  # Ctrl-C ends it at any moment and leaves no lock taken, unlike the wait of a Future
        if failures:
            raise failures[0]
        return True

    task = Task(verify, "ortmulti-verify")
    with entry:
        try:
            task.start()
            try:
                _create(creation, entry, verified)
            except Error:
                if not creation.confirmed:  # else the entry is right: others have sessions over it
                    verified()  # a damaged entry explains the error
                raise
            finally:
                creation.drop()
        finally:
            stopped = True  # after Ctrl-C the rest of the files is not needed
            if not task.revoke():
                task.wait()


def _without_entry(creation: Creation, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> None:
    """Let the sessions optimize the model themselves over shared weights, or else optimize it before."""
    try:
        if _over_weights(creation, wanted, staged):
            return
    except BaseException:
        staged.discard()
        raise
    creation.drop()
    staged.signature = None
    _over_new(creation, wanted, staged)


def _over_weights(creation: Creation, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> bool:
    """Let the sessions optimize the model themselves, over shared weights.

    The first session's optimized model shows whether the sessions are right, and becomes the entry.

    Returns:
        False if they cannot do this, or are not right.
    """
    model, options = creation.request.model, creation.options
    settings = ("ep.", "session.optimized_model")  # about saved models themselves
    if not model.path or any(key.startswith(settings) for key in options.config_entries):
        return False
    with creation.span("index model"):
        try:
            content, folder, weights = _core.put_weights_outside(model.path)
        except Error:
            return False  # ONNX Runtime says what is wrong with the model
    if not weights.weights:
        return False
    if content:
        options = options.copy()
        options.config_entries = {**options.config_entries, DATA_FOLDER: folder}
    else:
        folder = model.folder
    refused: set[str] = set()

    def unchanged(index: int, session: _core.Session) -> bool:
        if index != 0:
            return False
        with creation.span("check optimized model"):
            refused.update(session.weight_use()[1])
            changed = set(_core.changed_weights(str(staged.saved), model.path, folder, weights)) - refused
            staged.signature = optimized.signature(session)
        if changed:
            creation.note(f"the model is optimized before its sessions: that changes the weight {min(changed)}")
        return not changed

    creation.note("each session optimizes the model, over shared weights; the next load has the cache entry")
    staged.saved.parent.mkdir(mode=0o700)
    problem = creation.run(
        content or model.path, options, weights, confirm=unchanged, made_of=model.path, save_optimized=str(staged.saved)
    )
    if problem:
        creation.note(f"the model is optimized before its sessions: {problem}")
    if creation.confirmed:
        optimized.keep(staged, partial(_finish, wanted, staged, sorted(refused), folder))
    return creation.confirmed


def _finish(
    wanted: optimized.CacheRequest,
    staged: optimized.StagedEntry,
    refused: Sequence[str],
    folder: str,
    poll: Callable[[], object],
) -> None:
    """Make an entry from a session's saved model."""
    with wanted.span("publish optimized model"):
        optimized.build(
            staged, wanted.model, wanted.providers, wanted.options, refused, data_folder=folder, poll=poll
        ).close()
        staged.publish().close()


def _over_new(creation: Creation, wanted: optimized.CacheRequest, staged: optimized.StagedEntry) -> None:
    """Optimize the model, create the sessions over the result, and publish it when they exist."""
    if creation.hold is not None:
        creation.hold.release()
    with staged:

        def create(entry: optimized.Entry) -> tuple[None, set[str]]:
            entry.weights.hold_files()  # for wakes: they are elsewhere when it is published
            _create(creation, entry, lambda *_: False)
            ready = creation.waiting.values()
            refused = {name for session in ready for name in session.weight_use()[1]}
            changed = any(optimized.signature(session) != entry.facts["signature"] for session in ready)
            if refused or changed:
                creation.drop()
            if changed:
                raise NotOptimizable("the optimized model has other inputs or outputs than the model")
            return None, refused

        try:
            wanted.build(staged, create)
            if staged.timeline is not None:
                creation.timeline.extend(staged.timeline)
            with creation.span("publish optimized model"):
                staged.publish().close()
            creation.hand_over()
        finally:
            creation.drop()
