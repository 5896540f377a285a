"""Sessions for the CUDA graphs of input shapes that come again, made beside a pool's ordinary ones."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import closing

from ortmulti import _core
from ortmulti._runtime import background
from ortmulti.create.request import CreationRequest, core_options
from ortmulti.devices.device import parse_devices
from ortmulti.errors import DeviceError, Error, Fail, InvalidArgument, OutOfMemory
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.options import config_entries
from ortmulti.options.session_options import SessionOptions
from ortmulti.pool.configuration import MoreSessions
from ortmulti.timeline import Timeline

__all__ = ["capturing", "make_behind"]

_FATAL = 4  # ONNX Runtime's severity
_CANNOT_CAPTURE = "cannot use the graph capture feature"  # of ONNX Runtime's message, which names no node

PROVIDER_OPTIONS = {"enable_cuda_graph": "1", "user_compute_stream": _core.own_compute_stream}
"""What sessions that capture need."""

_ONLY_WITH_SIZES = ("MatMulAddFusion",)
"""Optimizers of ONNX Runtime that do nothing to the ordinary session, and would slow a graph.

Where all sizes are known, this one makes a Gemm of a MatMul and an Add of more than two dimensions. The Add is then not
fused with what follows it, such as Gelu: BERT-base of 32 x 128 took 28% longer with a graph, and 15% without (H200).
"""


def make_behind(
    more: MoreSessions,
    request: CreationRequest,
    session: _core.Session,
    graphs: _core.ShapeGraphs,
    key: bytes,
    count: int,
) -> None:
    """Begin to make ``count`` sessions for a graph that is wanted, in a thread of their own. `_core` calls this.

    Args:
        more: May forbid it for now, and gets what makes them.
        request: How the pool's sessions were created.
        session: The ordinary session that the graphs are beside. The new ones use its weights.
        graphs: They get the sessions, or the reason why there are none.
        key: By which they know the shapes.
    """

    def make(check: background.Poll) -> None:
        wanted: CreationRequest | None = None
        try:
            if reason := more.why_not(session.device()):
                graphs.not_now(key, reason)
                return
            if reason := library_in_use():
                raise Fail(reason)
            wanted = capturing(request, session, dict(graphs.wanted_shapes()), count)
            with closing(Creation(wanted, Timeline(), beside=session, poll=check)) as creation:
                ways.create(creation)
                graphs.add(key, list(creation.sessions.values()), library_in_use)
                creation.sessions.clear()
        except Exception as error:  # else nobody would ever make another one
            # A device may sleep, or have no memory, for a while.
            later = isinstance(error, (OutOfMemory, DeviceError))
            reason = str(error) or "the process ends"
            if wanted and _CANNOT_CAPTURE in reason:
                reason += on_cpu(wanted, session, check)
            (graphs.not_now if later else graphs.not_made)(key, reason)

    more.make(
        make,
        "ortmulti-graphs",
        graphs.cancelled,
        lambda: graphs.not_made(key, "the thread that makes its sessions did not start"),
    )


def on_cpu(refused: CreationRequest, session: _core.Session, poll: Callable[[], object]) -> str:
    """Return words that name the nodes for whose place on the CPU ONNX Runtime refused to capture; empty if unknown."""
    options = SessionOptions()
    options._core = core_options(refused.options).copy()
    options.add_session_config_entry(_core.record_assignment, "1")
    given = {name: value for name, value in (refused.provider_options or {}).items() if name not in PROVIDER_OPTIONS}
    asked = dataclasses.replace(
        refused,
        sessions_per_device=1,
        options=options,
        provider_options=given or None,
        loading=dataclasses.replace(refused.loading, optimize="never"),
    )
    try:
        with closing(Creation(asked, Timeline(), beside=session, poll=poll)) as creation:
            ways.create(creation)
            nodes = creation.sessions[0].nodes_on_cpu()
    except Error:  # the release cannot tell, or something else is in the way now
        return ""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f" On the CPU: {', '.join(nodes[:3])}{more}." if nodes else ""


def waits_for_gpus() -> str:
    """Return a library in this process that waits for whole GPUs, as `torch.cuda.synchronize` does; empty for none.

    CUDA gives it an error where a stream of the GPU is captured in that moment.
    """
    torch = sys.modules.get("torch")
    if getattr(getattr(torch, "cuda", None), "is_initialized", bool)():
        return "PyTorch"
    others = {"cupy": "CuPy", "jax": "JAX", "tensorflow": "TensorFlow", "numba.cuda": "Numba"}
    return next((name for module, name in others.items() if module in sys.modules), "")


def library_in_use() -> str:
    """Return why nothing must be captured now: what `waits_for_gpus` found; empty for nothing."""
    library = waits_for_gpus()
    return f"{library} uses CUDA in this process: its waits for a whole GPU would fail in a capture" if library else ""


def capturing(
    request: CreationRequest, session: _core.Session, shapes: dict[str, list[int]], count: int
) -> CreationRequest:
    """Return how ``count`` sessions are created that capture a graph of these shapes.

    Sizes of dimensions with a name are options of theirs: ONNX Runtime then computes from them when it optimizes the
    model, and no run has to. What a run computes on the CPU and copies to the GPU cannot be part of a graph.

    Raises:
        InvalidArgument: Dimensions of one name have several sizes.
    """
    sizes: dict[str, int] = {}
    for declared in session.inputs():
        for name, size in zip(declared.shape, shapes.get(declared.name, ()), strict=False):
            if isinstance(name, str) and sizes.setdefault(name, size) != size:
                raise InvalidArgument(f"the dimension {name!r} is {sizes[name]} and {size}")
    options = SessionOptions()
    options._core = core_options(request.options).copy()
    if options.log_severity_level not in (0, 1):
        # The ordinary session has logged the model's warnings. A failed try is no error: `why_no_graph` has its reason.
        options.log_severity_level = _FATAL
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    config_entries.leave_out_optimizers(options._core, _ONLY_WITH_SIZES)
    return dataclasses.replace(
        request,
        devices=parse_devices(session.device()),
        sessions_per_device=count,
        options=options,
        provider_options={**(request.provider_options or {}), **PROVIDER_OPTIONS},
    )
