"""What sessions are created from, and waiting until they are."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ortmulti import providers as _providers
from ortmulti._create import creation, onnxruntime_sessions
from ortmulti._create.creation import Model
from ortmulti._create.foreign_options import to_session_options
from ortmulti.devices import Device, parse_devices
from ortmulti.errors import InvalidArgument, InvalidType
from ortmulti.options import SessionOptions

if TYPE_CHECKING:
    from ortmulti.pool.configuration import Batching
    from ortmulti.pool.external.requests import Worker

__all__ = ["Order", "Reports", "Told", "await_reports", "make_orders"]

Reports: TypeAlias = "queue.SimpleQueue[tuple[Worker, BaseException | None]]"
Told: TypeAlias = Callable[[int, int, str], object]
"""Called as ``told(ready, total, device)`` whenever a session is ready."""


@dataclass(frozen=True)
class Order:
    """What one session is created from; another process can be sent it.

    Attributes:
        model: An absolute path, or bytes.
        text: The model, for messages.
        device: ``"cpu"`` or ``"cuda:N"``.
        providers: onnxruntime's providers and their options.
        options: What `make_options` takes.
        batching: How requests are joined, if they are.
    """

    model: str | bytes
    text: str
    device: str
    providers: Sequence[_providers.Provider]
    options: dict[str, Any]
    batching: Batching | None


def make_orders(
    model: Model,
    devices: str | int | Device | Iterable[str | int | Device],
    sessions_per_device: int,
    options: SessionOptions | None,
    provider_options: Mapping[str, Any] | None,
    batching: Batching | None,
) -> list[Order]:
    """One for each session, those of the first device first; arguments as for `load`.

    Raises:
        As `load`.
    """
    if isinstance(sessions_per_device, bool) or not isinstance(sessions_per_device, int):
        raise InvalidType(f"sessions_per_device is an int, not {sessions_per_device!r}")
    if sessions_per_device < 1:
        raise InvalidArgument(f"sessions_per_device is 1 or more, not {sessions_per_device}")
    given = to_session_options(options) or SessionOptions()
    onnxruntime_sessions.check_additions(given._core)
    _providers.check_cuda_options(provider_options)
    checked = creation.check_model(model)
    targets = parse_devices(devices)
    if provider_options and not any(device.kind == "cuda" for device in targets):
        raise InvalidArgument("provider_options are the CUDA provider's, and no device is a GPU")
    wanted = {device: _providers.for_device(device, provider_options) for device in targets}
    _providers.check_usable([provider for providers in wanted.values() for provider in providers])
    # A worker may come to start when this process is in another folder.
    source = str(Path(checked).absolute()) if isinstance(checked, str) else bytes(checked)
    text = f"'{checked}'" if isinstance(checked, str) else f"a model of {len(checked)} bytes"
    on_cpu = sum(device.kind == "cpu" for device in targets) * sessions_per_device
    return [
        Order(
            source,
            text,
            str(device),
            wanted[device],
            onnxruntime_sessions.read_options(given, device, on_cpu),
            batching,
        )
        for device in targets
        for _ in range(sessions_per_device)
    ]


def await_reports(reports: Reports, total: int, told: Told) -> None:
    """Returns when so many workers have said that they are ready.

    Raises:
        BaseException: What the first said that is not.
    """
    for ready in range(1, total + 1):
        worker, error = reports.get()
        if error is not None:
            raise error
        told(ready, total, worker.device)
