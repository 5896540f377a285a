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
    from collections.abc import Iterable, Mapping, Sequence

    from ortmulti.create.loading import Loading, OnLoadProgress
    from ortmulti.create.model import Model
    from ortmulti.create.request import CreationRequest
    from ortmulti.devices.device import Device
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
        from ortmulti.create.loading import LoadProgress
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
    batching: Batching | None = None,
    warmup: Warmup | bool = False,
    max_queue: int | None = None,
    in_flight: int | Literal["auto"] = "auto",
    cuda_graph: CudaGraph | bool | Literal["auto"] = "auto",
    share: Literal["host"] | None = None,
    loading: Loading | None = None,
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
        batching: How requests are joined into one run, for example ``Batching(max_size=8)``; default: one at a time.
        warmup: What each session runs before it takes requests. True: random inputs, as `Warmup()` has; if the model
            takes none of them, the load warns and goes on without. Default: nothing.
        max_queue: How many requests may wait; default: any number. With 0, a request must begin at once, or join a
            batch that waits for others. `Pool.submit` says what happens to requests without room. `Pool.run` is not
            limited.
        in_flight: How many requests a session on a GPU handles at the same time. ``"auto"``, the default: 3, and
            while further requests wait, more (12 at most) as long as that gives more answers a second;
            `DeviceStats.why_in_flight` has the figures. It grows only while a quarter of the GPU's memory is free, and
            to three quarters of the process's cores for all GPUs together. With ``Batching(pad=...)``, ``"auto"`` is 3.
            On the CPU, ``"auto"`` has one run at a time, and tries runs of one thread each side by side while requests
            wait: docs/how-to/runs-at-a-time.md. A number keeps one.
        cuda_graph: Whether runs on GPUs are captured as CUDA graphs. ``"auto"``, the default: shapes that come 20 times
            in at most 400 runs of a session are, in sessions of their own beside the pool's, after a test of each
            graph. With ``Batching(pad=...)`` they are only if it has ``lengths`` too. False: none. True or a
            `CudaGraph`: those that were run once, however rare, with any batching that is not ``packed``:
            docs/how-to/cuda-graphs.md.
        share: ``"host"``: all processes of this user that ask for it have the weights on each GPU once. The first one
            loads them, the others map its memory, which stays until the last of them ends: docs/how-to/processes.md.
            Where that cannot be, the weights are loaded as without it, and the timeline says why. On the CPU it changes
            nothing. Default: not.
        loading: How sessions are made and when this returns, and what few pools need, for example
            ``Loading(wait="first")``: see there. Default: ``Loading()``.

    Returns:
        The pool.

    Raises:
        Error: As `create_sessions`. After an error nothing of the load is left.
        NoSuchFile, InvalidArgument: ``tuning`` of ``loading`` cannot be read, or is for another model.

    Warns:
        TuningWarning: ``tuning`` of ``loading`` was measured on another machine or with other releases.
    """
    start = time.monotonic()
    _check_types(max_queue, in_flight)
    plain = options is None and provider_options is None and batching is None
    plain = plain and isinstance(warmup, bool) and (cuda_graph is False or cuda_graph == "auto")
    request = early_start.begin_request(
        plain, model, devices, sessions_per_device, options, provider_options, share, loading, of_pool=True
    )
    # Arguments that are not plain are checked before the driver starts. These imports take milliseconds.
    from functools import partial

    from ortmulti.pool.configuration import Batching, Serving, Warmup, batching_argument
    from ortmulti.pool.members import Members
    from ortmulti.pool.pool import Pool

    _check_options(request.options)
    checks.instance("batching", batching, Batching, optional=True, example="ortmulti.Batching(max_size=8)")
    chosen = request.loading
    if chosen.tuning is not None:
        import dataclasses

        from ortmulti.loading.tuning import use_for_request

        arguments = {"sessions_per_device": sessions_per_device, "in_flight": in_flight, "cuda_graph": cuda_graph}
        request, tuned = use_for_request(chosen.tuning, request, arguments)
        sessions, in_flight, cuda_graph = (tuned[name] for name in arguments)
        request = dataclasses.replace(request, sessions_per_device=sessions)
    graphs = _graph_limit(cuda_graph)
    if not isinstance(warmup, bool | Warmup):
        raise InvalidType(f"warmup is an ortmulti.Warmup or a bool, not {warmup!r}")
    make_core = partial(
        _core.Pool, max_queue, batching_argument(batching), chosen.trim_after, chosen.when_late == "reject"
    )
    _check_graphs(request, batching, graphs is not None and cuda_graph != "auto")
    padded = batching if batching is not None and batching.pad is not None else None
    if cuda_graph == "auto" and padded and not padded.lengths:
        graphs = None  # padded to any length, shapes come again by chance alone
    serving = Serving(0 if in_flight == "auto" else in_flight, graphs, warmup, batching)
    members = Members(request, make_core, serving, chosen.version, max_queue)
    pool = Pool(members, batching)
    if chosen.progress is None:
        members.start()
    else:
        reporter = _Reporter(chosen.progress, start, request)
        members.start(reporter.session_ready, reporter.bytes_loaded)
    try:
        pool._begin_batching(chosen.wait != "none")
    except BaseException as error:
        if chosen.wait == "none" and error is members.error and not padded:
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


def _check_types(max_queue: object, in_flight: object) -> None:
    if max_queue is not None:
        checks.integer("max_queue", max_queue, 0, checks.SIZE_MAX)
    if not isinstance(in_flight, str):
        checks.integer("in_flight", in_flight, 1)
    elif in_flight != "auto":
        raise InvalidArgument(f"in_flight is a number of requests, 1 or more, or 'auto', not {in_flight!r}")


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


def _check_graphs(request: CreationRequest, batching: Batching | None, wanted: bool) -> None:
    """Refuse ONNX Runtime's own captures, and graphs that were asked for where there can be none."""
    if str((request.provider_options or {}).get("enable_cuda_graph", "0")).lower() in ("1", "true"):
        raise InvalidArgument("a pool does not take the provider option enable_cuda_graph: give load cuda_graph=True")
    if not wanted:
        return
    if batching is not None and batching.packed:
        raise InvalidArgument(
            "runs of models for Batching(packed=True) wait for the GPU within, so that no CUDA graph has them: leave "
            "cuda_graph out"
        )
    from ortmulti.devices.device import parse_devices

    asked = parse_devices("all") if request.named is None else request.named
    if any(device.kind != "cuda" for device in asked):
        raise InvalidArgument(f"cuda_graph is for GPUs; the devices are {', '.join(map(str, asked))}")
