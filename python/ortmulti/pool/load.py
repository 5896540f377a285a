"""Making one model ready on several devices."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Literal

from ortmulti import _core, checks
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.loading import early_start

# Other modules are imported by `load`, while the driver starts.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ortmulti.create.loader import LoaderOptions, LoadProgress, OnLoadProgress
    from ortmulti.create.model import Model
    from ortmulti.create.request import CreationRequest
    from ortmulti.devices.device import Device
    from ortmulti.loading.tuning import Tuning
    from ortmulti.options.session_options import SessionOptions
    from ortmulti.pool.batching_check import BatchingCheck
    from ortmulti.pool.configuration import Batching, CudaGraph, GraphLimit, Warmup
    from ortmulti.pool.pool import Pool

__all__ = ["check_batching", "load"]


class _Reporter:
    """Combines the core's two reports, of sessions and of bytes."""

    def __init__(self, progress: OnLoadProgress, start: float, request: CreationRequest) -> None:
        self._progress = progress
        self._start = start
        self._request = request
        self._bytes = (0, 0)
        self._sessions: tuple[int, int] | None = None

    def session_ready(self, ready: int, total: int, device: str) -> None:
        self._sessions = (ready, total)
        self._report(device)

    def bytes_loaded(self, loaded: int, total: int) -> None:
        self._bytes = (loaded, total)
        self._report("")

    def _report(self, device: str) -> None:
        from ortmulti.create.loader import LoadProgress
        from ortmulti.devices.device import parse_devices

        if self._sessions is None:
            named = self._request.named
            devices = parse_devices("all") if named is None else named
            self._sessions = (0, len(devices) * self._request.sessions_per_device)
        self._progress(LoadProgress(*self._bytes, time.monotonic() - self._start, *self._sessions, device))


@checks.known_arguments
def load(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
    devices: str | int | Device | Iterable[str | int | Device] = "all",
    sessions_per_device: int = 1,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
    *,
    strategy: Literal["shared", "native"] = "shared",
    optimize: Literal["auto", "never", "offline"] = "auto",
    serialize: Literal["none", "device", "all"] | None = None,
    progress: Callable[[LoadProgress], object] | None = None,
    loader: LoaderOptions | None = None,
    share: Literal["host"] | None = None,
    max_queue: int | None = None,
    batching: Batching | None = None,
    warmup: Warmup | bool = False,
    wait: Literal["all", "first", "none"] = "all",
    require: Literal["all", "any"] = "all",
    in_flight: int | Literal["auto"] = "auto",
    cuda_graph: CudaGraph | bool | Literal["auto"] = "auto",
    tuning: str | os.PathLike[str] | Tuning | None = None,
    version: str = "",
    trim_after: float | None = 10.0,
    when_late: Literal["try", "reject"] = "try",
) -> Pool:
    """Load one model on several devices: its weights are read once, and the sessions of a device use one copy.

    docs/loading.md says how, and in which cases weights are not shared.

    Args:
        model: Path of a model, or its bytes, see `InferenceSession`; or a `Model`, whose weights come from sources.
        devices: ``"all"`` (every GPU, or the CPU where there is no NVIDIA hardware), a device or several, as
            `parse_devices` takes them.
        sessions_per_device: Sessions on each device; default 1.
        options: Options of every session, as for `create_sessions`.
        provider_options: Options of the CUDA provider, the same for every GPU, without ``device_id``; or of the
            plug-in whose devices are named.
        strategy: ``"shared"`` or ``"native"``, as for `create_sessions`.
        optimize: ``"auto"``, ``"offline"`` or ``"never"``, as for `create_sessions`.
        serialize: Which creations wait for each other, as for `create_sessions`.
        progress: Called with a `LoadProgress` whenever a session is ready, and while weights are loaded. Called in
            this thread, or in the loading thread if ``wait`` is not ``"all"``.
        loader: How the weights are read.
        share: ``"host"``: all processes of this user that ask for it have the weights on each GPU once. The first one
            loads them, the others map its memory, which stays until the last of them ends: docs/how-to/processes.md.
            Where that cannot be, the weights are loaded as without it, and the timeline says why. On the CPU it changes
            nothing. Default: not.
        max_queue: How many requests may wait; default: any number. With 0, a request must begin at once. `Pool.submit`
            says what happens to requests without room. `Pool.run` is not limited.
        batching: How requests are joined into one run, for example ``Batching(max_size=8)``; default: one at a time.
        warmup: What each session runs before it takes requests. True: random inputs, as `Warmup()` has; if the model
            takes none of them, the load warns and goes on without. Default: nothing.
        wait: When to return. ``"all"``: when all sessions take requests. ``"first"``: when one does. ``"none"``: after
            the arguments are checked. With `Batching` it returns when the first session is ready and has run random
            inputs, if padding is to be proven, or if the model's graph does not show which outputs have rows. Later
            sessions join the pool when they are ready. With ``"first"`` and the strategy ``"shared"``, the other GPUs
            start after the first one. So the first GPU is ready sooner, and the last one later: docs/pool.md.
        require: What happens if a session fails. ``"all"``: the load fails. If it has returned, the pool closes, and
            each request raises that error. ``"any"``: the pool goes on with the other sessions; `Pool.stats` and
            the log name the devices that failed. If no session works, the load fails. A device that does not exist is
            always an error.
        in_flight: How many requests a session on a GPU handles at the same time. ``"auto"``, the default: 3, and
            while further requests wait, more (12 at most) as long as that gives more answers a second;
            `DeviceStats.why_in_flight` has the figures. It grows only while a quarter of the GPU's memory is free, and
            to three quarters of the process's cores for all GPUs together. With ``Batching(pad=...)``, ``"auto"`` is 3.
        cuda_graph: Whether runs on GPUs are captured as CUDA graphs. ``"auto"``, the default: shapes that come 20 times
            are, in sessions of their own beside the pool's, after a test of each graph; with ``Batching(pad=...)`` only
            if it has ``lengths`` too. False: none. True or a `CudaGraph`: those that were run once, with any batching:
            docs/pool.md.
        tuning: Settings that `tune` found for this model, or the path of their file. Your own ``options``,
            ``provider_options``, ``sessions_per_device``, ``in_flight`` and ``cuda_graph`` win.
        version: Label of the model in `Pool.stats` and in Prometheus's text, such as ``"2"``; default: none.
        trim_after: Seconds after which memory comes back, default 10. When for so long no request was half as large as
            the largest, by the bytes of its inputs, what ONNX Runtime keeps and no run uses is given back. Less than
            16 MiB stays. None: never by itself. docs/memory.md.
        when_late: What to do with a request that would be answered after its ``timeout``, by the time that runs took of
            late and the requests before it. ``"try"``, the default: it waits, and may be lucky. ``"reject"``: it fails
            at once with `DeadlineExceeded`, so that its sender can ask elsewhere. Until each device has answered 8
            requests nobody knows how long a run takes, and none is refused.

    Returns:
        The pool.

    Raises:
        Error: As `create_sessions`. After an error nothing of the load is left.
        NoSuchFile, InvalidArgument: ``tuning`` cannot be read, or is for another model.

    Warns:
        TuningWarning: ``tuning`` was measured on another machine or with other releases.
    """
    start = time.monotonic()
    _check_types(progress, max_queue, in_flight, version)
    if trim_after is not None:
        trim_after = checks.number("trim_after (None: never)", trim_after)
    checks.choice("wait", wait, ("all", "first", "none"))
    checks.choice("when_late", when_late, ("try", "reject"))
    checks.choice("require", require, ("all", "any"))
    plain = all(given is None for given in (options, provider_options, batching, tuning))
    plain = plain and (cuda_graph is False or cuda_graph == "auto")
    plain = plain and isinstance(warmup, bool) and strategy == "shared"
    plain = plain and wait != "first"  # with which contexts begin later
    request = early_start.begin_request(
        plain,
        model,
        devices,
        sessions_per_device,
        options,
        provider_options,
        serialize,
        strategy,
        optimize,
        loader,
        share,
    )
    # Arguments that are not plain are checked before the driver starts. These imports take milliseconds.
    from functools import partial

    from ortmulti.pool.configuration import Batching, Serving, Warmup, batching_argument
    from ortmulti.pool.members import Members
    from ortmulti.pool.pool import Pool

    _check_options(request.options)
    checks.instance("batching", batching, Batching, optional=True, example="ortmulti.Batching(max_size=8)")
    if tuning is not None:
        import dataclasses

        from ortmulti.loading.tuning import use_for_request

        arguments = {"sessions_per_device": sessions_per_device, "in_flight": in_flight, "cuda_graph": cuda_graph}
        request, tuned = use_for_request(tuning, request, arguments)
        sessions, in_flight, cuda_graph = (tuned[name] for name in arguments)
        request = dataclasses.replace(request, sessions_per_device=sessions)
    graphs = _graph_limit(cuda_graph)
    if not isinstance(warmup, bool | Warmup):
        raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")
    make_core = partial(_core.Pool, max_queue, batching_argument(batching), trim_after, when_late == "reject")
    _check_graphs(request, graphs is not None and cuda_graph != "auto")
    padded = batching if batching is not None and batching.pad is not None else None
    if in_flight == "auto" and padded:
        # Answers a second say nothing of more in flight, where lengths differ; and joint runs keep a GPU busy.
        in_flight = _core.at_first_in_flight
    if cuda_graph == "auto" and padded and not padded.lengths:
        graphs = None  # padded to any length, shapes come again by chance alone
    serving = Serving(0 if in_flight == "auto" else in_flight, graphs, warmup, batching)
    members = Members(request, make_core, serving, version)
    pool = Pool(members, batching)
    if progress is None:
        members.start(wait, require == "any")
    else:
        reporter = _Reporter(progress, start, request)
        members.start(wait, require == "any", reporter.session_ready, reporter.bytes_loaded)
    try:
        pool._begin_batching(wait != "none")
    except BaseException as error:
        if wait == "none" and error is members.error and not padded:
            return pool  # no session came: each request says why
        pool.close()
        raise
    return pool


def check_batching(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | Model,
    batching: Batching,
    devices: str | int | Device | Iterable[str | int | Device] = "cpu",
    *,
    samples: Sequence[Mapping[str, Any]] | None = None,
    options: SessionOptions | None = None,
    provider_options: Mapping[str, Any] | None = None,
) -> BatchingCheck:
    """Load a model, and find out whether requests that are joined get the answers that they get alone.

    The model's graph shows where the outputs have rows, and what mixes them: normalization or a softmax over the batch,
    a scale of `quantize_dynamic` for all rows. Then random rows are run alone, and in runs of several rows up to
    ``max_size`` (32 at most): numbers of both signs, positive ones, negative ones, large ones, and copies of one row.
    One run has a row of NaN, and one has ``max_size`` rows (256 at most). This cannot find what other inputs would do.

    Args:
        model, devices, options, provider_options: As for `load`.
        batching: How requests are joined.
        samples: Two requests or three, each an array for each input, which are compared instead of random ones. Along
            the batch's axis they may have any size, together at most ``max_size``. The first one is run alone, before
            and behind each of the others. Default third request: the second one's numbers, 100 times as large.

    Raises:
        InvalidArgument: The model cannot be batched so, or the samples do not fit together. Or no random inputs run.
        Error: As `load` and `Pool.run`.
    """
    import dataclasses

    from ortmulti.pool.batching_check import BatchingCheck, check_pool
    from ortmulti.pool.configuration import Batching

    checks.instance("batching", batching, Batching, example="ortmulti.Batching(max_size=8)")
    trusted = dataclasses.replace(batching, check=False, trust=True)
    with load(model, devices, 1, options, provider_options, batching=trusted) as pool:
        verdict = pool._judge_rows(batching, "open" if samples is not None or batching.pad is not None else "all")
        without = verdict.reasons()
        if batching.pad is not None:
            from ortmulti.pool.padding_proof import padded_outputs
            from ortmulti.pool.padding_requests import random_requests

            padded = padded_outputs(pool, batching)
            requests = random_requests(padded) if samples is None else samples
            return BatchingCheck(check_pool(pool, batching, requests, padded, without).outputs, verdict)
        if samples is not None:
            return BatchingCheck(check_pool(pool, batching, samples, None, without).outputs, verdict)
        if unknown := verdict.reasons("unknown"):
            raise InvalidArgument(f"{'; '.join(unknown.values())}. Give samples= with yours")
        return BatchingCheck(verdict.checks, verdict)


def _check_types(progress: object, max_queue: object, in_flight: object, version: object) -> None:
    if progress is not None and not callable(progress):
        raise InvalidType(f"progress is a function of a LoadProgress, not {progress!r}")
    if max_queue is not None:
        checks.integer("max_queue", max_queue, 0, checks.SIZE_MAX)
    if not isinstance(in_flight, str):
        checks.integer("in_flight", in_flight, 1)
    elif in_flight != "auto":
        raise InvalidArgument(f"in_flight is a number of requests, 1 or more, or 'auto', not {in_flight!r}")
    checks.instance("version", version, str)


def _check_options(options: SessionOptions | None) -> None:
    if options is not None and options.has_providers():
        raise InvalidArgument(
            "the session options have a provider (add_provider_for_devices), and load takes the device by its name: "
            "devices='openvino:CPU', for example"
        )


def _graph_limit(cuda_graph: CudaGraph | bool | Literal["auto"]) -> GraphLimit | None:
    from ortmulti.pool.configuration import CudaGraph, GraphLimit

    if isinstance(cuda_graph, CudaGraph):
        return GraphLimit(cuda_graph, after=1)
    if cuda_graph is True:
        return GraphLimit(after=1)
    if cuda_graph is False:
        return None
    if cuda_graph != "auto":
        raise InvalidType(f"cuda_graph is an ortmulti.CudaGraph, a bool or 'auto', not {cuda_graph!r}")
    return GraphLimit()


def _check_graphs(request: CreationRequest, wanted: bool) -> None:
    """Refuse ONNX Runtime's own captures, and graphs that were asked for on other devices than GPUs."""
    if str((request.provider_options or {}).get("enable_cuda_graph", "0")).lower() in ("1", "true"):
        raise InvalidArgument("a pool does not take the provider option enable_cuda_graph: give load cuda_graph=True")
    if not wanted:
        return
    from ortmulti.devices.device import parse_devices

    asked = parse_devices("all") if request.named is None else request.named
    if any(device.kind != "cuda" for device in asked):
        raise InvalidArgument(f"cuda_graph is for GPUs; the devices are {', '.join(map(str, asked))}")
