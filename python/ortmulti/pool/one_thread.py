"""A session on the CPU whose runs have one thread each, made beside one whose runs have all cores."""

from __future__ import annotations

import dataclasses
from contextlib import closing, suppress

from ortmulti import _core
from ortmulti._runtime import background
from ortmulti._runtime.machine import available_memory, resident_memory
from ortmulti.create.model import Model
from ortmulti.create.request import CreationRequest, core_options
from ortmulti.devices.device import parse_devices
from ortmulti.errors import InvalidProtobuf
from ortmulti.loading import ways
from ortmulti.loading.creation import Creation
from ortmulti.options.session_options import SessionOptions
from ortmulti.pool.configuration import MoreSessions
from ortmulti.timeline import Timeline

__all__ = ["make_behind", "may_be_made"]

_ERROR = 3  # ONNX Runtime's severity


def may_be_made(request: CreationRequest) -> bool:
    """Return whether the pool's one session on the CPU has the cores to itself, and nobody chose its threads."""
    options = core_options(request.options)
    return (
        request.sessions_per_device == 1
        and [str(device) for device in parse_devices(request.devices)] == ["cpu"]
        and options.intra_op_num_threads == 0
        and options.use_per_session_threads
        and not (options.enable_profiling or options.optimized_model_filepath)  # a file of one session
        and not any(entry.startswith("session.intra_op") for entry in options.config_entries)
    )


def why_not(model: Model) -> str:
    """Return why there cannot be a second session of the model; empty if there can."""
    has, free = resident_memory(), available_memory()
    if free < 2 * has:
        return f"it may take as much memory as the process has, {has} bytes, and {free} are free"
    with suppress(InvalidProtobuf), model.content() as content:
        if name := _core.index_model(content).stateful_operator:
            return f"operator {name} may keep something from run to run"
    return ""


def make_behind(more: MoreSessions, request: CreationRequest, sessions: _core.CpuSessions) -> None:
    """Begin to make the session, in a thread of its own. `_core` calls this.

    Args:
        more: May forbid it for now, and gets what makes it.
        request: How the pool's session was created.
        sessions: They get the session, or the reason why there is none.
    """

    def make(check: background.Poll) -> None:
        options = SessionOptions()
        options._core = core_options(request.options).copy()
        options.intra_op_num_threads = 1
        if options.log_severity_level in (-1, 2):
            options.log_severity_level = _ERROR  # the other session has logged the model's warnings
        try:
            if reason := more.why_not("cpu") or why_not(request.model):
                sessions.not_made(reason)
                return
            wanted = dataclasses.replace(request, options=options)
            with closing(Creation(wanted, Timeline(), poll=check)) as creation:
                ways.create(creation)
                sessions.add(creation.sessions.pop(0))
        except Exception as error:
            sessions.not_made(str(error) or "the process ends")

    more.make(
        make,
        "ortmulti-one-thread",
        sessions.ended,
        lambda: sessions.not_made("the thread that makes it did not start"),
    )
