"""One creation: the request is attempt, and goes the way that its devices, options and model allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortmulti import _core
from ortmulti._runtime import startup
from ortmulti.create.request import Progress
from ortmulti.devices import providers
from ortmulti.devices.device import Device, parse_devices
from ortmulti.errors import Error
from ortmulti.loading import early_start
from ortmulti.loading.attempt import Attempt
from ortmulti.loading.native import create_native, create_over_model
from ortmulti.loading.sharing import why_not_shared, why_not_worth_it
from ortmulti.options.session_options import GraphOptimizationLevel


class Collector:
    """A receiver that keeps the sessions, by their places in the request."""

    def __init__(self, progress: Progress | None = None, poll: Callable[[], object] = lambda: None) -> None:
        self.progress = progress
        self.poll = poll
        self.bytes_loaded: Callable[[int, int], object] | None = None
        self.sessions: dict[int, _core.Session] = {}

    def on_devices(self, devices: Sequence[Device]) -> None:
        """Do nothing."""

    def on_failure(self, index: int, error: BaseException) -> None:
        """Do nothing."""

    def on_session(self, index: int, session: _core.Session) -> None:
        """Keep a session."""
        self.sessions[index] = session

    def close(self) -> None:
        """Close the sessions."""
        while self.sessions:
            self.sessions.popitem()[1].close()


def create(attempt: Attempt) -> None:
    """Create the sessions of a request, and return when the receiver has them all.

    A ready session waits until it is confirmed. Over a cache entry it waits until the entry's checksums were compared,
    over a new entry until this is published.

    Raises:
        As `create_sessions`. Sessions that the receiver did not get are closed.
    """
    prepare(attempt)
    if attempt.request.model.copied:
        attempt.note("the store's objects are read from copies on the disk")
    try:
        _choose_way(attempt)
    except BaseException:
        attempt.close()
        raise
    attempt.request.model.keep_copies()


def prepare(attempt: Attempt) -> None:
    """Start the driver, open the libraries, and find the devices and their providers."""
    request = attempt.request
    named = request.named
    if request.strategy == "shared" and early_start.begin_driver(named):
        # The disk comes first: it may be slower than all other steps together.
        if request.model.path:
            with attempt.span("index model"):
                ahead = attempt.beside is None and not (request.share and _others_offer())
                attempt.weights, attempt.prefetch = _begin_reading(request.model.path, ahead=ahead)
        with attempt.span("open libraries"):
            early_start.open_libraries()
            from ortmulti.loading import over_entry  # noqa: F401  # this import, too, takes time while the driver starts
    with attempt.span("wait for driver and check"):
        devices = parse_devices("all" if named is None else named)
        request.check_provider_options(devices)
        attempt.devices = [device for device in devices for _ in range(request.sessions_per_device)]
        attempt.providers = [providers.for_device(device, request.provider_options) for device in attempt.devices]
        startup.ensure_open()
        providers.check_usable([provider for session in attempt.providers for provider in session])
    attempt.poll()
    attempt.receiver.on_devices(attempt.devices)


def _others_offer() -> bool:
    """Whether other processes offer weights, which then need not be read."""
    try:
        return bool(_core.offered_weights())
    except Error:
        return False  # the timeline will say why nothing is shared


def _begin_reading(path: str, *, ahead: bool) -> tuple[_core.WeightList | None, _core.Prefetch | None]:
    """List the model's weights, and with `ahead` read their files while the driver starts."""
    try:
        weights = _core.shareable_weights(path)
    except Error:
        return None, None  # ONNX Runtime says what is wrong with the model
    parts: dict[int, tuple[int, int]] = {}
    for weight in weights.weights:
        begin, end = parts.get(weight.source, (weight.offset, weight.offset))
        parts[weight.source] = (min(begin, weight.offset), max(end, weight.offset + weight.length))
    ranges = [(weights.sources[file], begin, end - begin) for file, (begin, end) in sorted(parts.items())]
    return weights, _core.Prefetch(ranges) if ranges and ahead else None


def _choose_way(attempt: Attempt) -> None:
    request, options = attempt.request, attempt.options
    if request.strategy != "shared":
        create_native(attempt)
        return
    # Most creations need no cache entry, and not the modules for it.
    if not attempt.on_gpu:
        compiles = any(device.is_plugin for device in attempt.devices) and not request.model.external.weights
        if request.optimize != "never" and compiles:
            from ortmulti.loading.over_contexts import create_over_contexts

            create_over_contexts(attempt)
        else:
            create_native(attempt, one_session_each=True)
    elif reason := why_not_shared(attempt.devices, options):
        create_native(attempt, reason)
    elif request.optimize == "never" or options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
        create_over_model(attempt)
    elif request.optimize == "auto" and (reason := why_not_worth_it(request.model, request.sessions_per_device)):
        create_native(attempt, reason)
    else:
        from ortmulti.loading.over_entry import create_over_entry

        create_over_entry(attempt)
