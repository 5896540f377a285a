"""Experiments of a diagnosis, each in a process of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmulti import _core
from ortmulti.bench.diagnose.trace.observer import Driver
from ortmulti.bench.measure.rounds import alternating, round_numbers
from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.devices.device import check_devices_exist, name_devices, parse_devices
from ortmulti.interface.session_observer import SessionObserver, observe

if TYPE_CHECKING:
    from ortmulti import SessionOptions


class _Changed(SessionObserver):
    """Changes the options of sessions before they are created."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        self._change = change

    def options(self, options: Any) -> None:
        self._change(options)


def _create(spec: dict[str, Any], change: Callable[[SessionOptions], object]) -> float:
    """Create a session of ortmulti, and close it.

    Args:
        spec: "model" (path), "device" and "settings" (the fields of `SessionSettings`).
        change: called with the session's options.

    Returns:
        Seconds of the creation.
    """
    observe(_Changed(change))
    with open_strategy("native", spec["model"], [spec["device"]], SessionSettings(**spec["settings"])) as strategy:
        strategy.start()
        return strategy.create().wall


def devices(spec: dict[str, Any]) -> dict[str, Any]:
    """Find the devices.

    Args:
        spec: "devices": names, or None for all.

    Returns:
        "devices": names, one for each session. "visible": how many GPUs this process sees, None where no session is on
        one. "gpus": for each GPU among the devices its "device", "uuid" and "pci_bus_id".
    """
    if spec["devices"] is None:
        names = tuple(str(device) for device in parse_devices("all"))
    else:
        named = name_devices(spec["devices"]) or []
        check_devices_exist(named)
        names = tuple(map(str, named))
    used = {int(name.removeprefix("cuda:")) for name in names if name.startswith("cuda:")}
    gpus = [device for device in _core.cuda_devices() if device.index in used] if used else []
    return {
        "devices": list(names),
        "visible": _core.cuda_device_count() if used else None,
        "gpus": [{"device": f"cuda:{gpu.index}", "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id} for gpu in gpus],
    }


def contexts(spec: dict[str, Any]) -> dict[str, Any]:
    """Start the driver, and then make all contexts by a thread each.

    Args:
        spec: "devices": the GPUs, "cuda:<index>".

    Returns:
        Seconds: "cuInit"; "at_once", from the first context's begin to the last one's end; "contexts", each one's own.

    Raises:
        DeviceError: the driver cannot be opened, or refuses.
    """
    spans: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def span(cause: str, _name: str, device: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        spans.setdefault(device or cause, (begin, time.perf_counter()))

    driver = Driver(span, hold_gil=False)
    driver.init()
    gate = threading.Barrier(len(spec["devices"]))

    def make(device: str) -> None:
        gate.wait()
        driver.start(int(device.removeprefix("cuda:")))

    with ThreadPoolExecutor(len(spec["devices"])) as executor:
        list(executor.map(make, spec["devices"]))
    made = [spans[device] for device in spec["devices"]]
    return {
        "cuInit": spans["cuInit"][1] - spans["cuInit"][0],
        "at_once": max(end for _, end in made) - min(start for start, _ in made),
        "contexts": [end - start for start, end in made],
    }


LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""ONNX Runtime's names of the levels of graph optimization."""

_LEVEL_ROUNDS = 5


def levels(spec: dict[str, Any]) -> dict[str, Any]:
    """Create sessions at each level.

    Args:
        spec: "model" (path), "device", "settings" (the fields of `SessionSettings`), and "seconds", after which no
            further round begins.

    Returns:
        For each of `LEVELS` the seconds of its creations.
    """
    from ortmulti import GraphOptimizationLevel

    def create(level: str) -> float:
        chosen = getattr(GraphOptimizationLevel, LEVELS[level])
        return _create(spec, lambda options: setattr(options, "graph_optimization_level", chosen))

    create("none")
    taken: dict[str, list[float]] = {level: [] for level in LEVELS}
    for number in round_numbers(_LEVEL_ROUNDS, spec["seconds"], estimate="none"):
        for level in alternating(tuple(LEVELS), number):
            taken[level].append(create(level))
    return taken


_COPIED_BYTES = 64 << 20
_COPIES = 4


def bandwidth(spec: dict[str, Any]) -> dict[str, Any]:
    """Copy beside each other; NumPy releases the GIL meanwhile.

    Args:
        spec: "threads": N.

    Returns:
        Bytes copied in a second: "one" by one thread, "all" by N at once.
    """
    sources = [np.ones(_COPIED_BYTES // 8) for _ in range(spec["threads"])]
    targets = [source.copy() for source in sources]  # the pages are there from now on

    def copy(number: int) -> None:
        for _ in range(_COPIES):
            np.copyto(targets[number], sources[number])

    def rate(count: int) -> float:
        with ThreadPoolExecutor(count) as executor:
            begin = time.perf_counter()
            list(executor.map(copy, range(count)))
            return count * _COPIES * _COPIED_BYTES / (time.perf_counter() - begin)

    return {"one": rate(1), "all": rate(spec["threads"])}


# protobuf's messages end at 2 GiB; tensors from this size on go into a file beside the model.
_EXTERNAL_BYTES = 1 << 10


def optimized(spec: dict[str, Any]) -> dict[str, Any]:
    """Save the optimized model.

    Args:
        spec: "model" and "target" (paths), "device" and "settings" (the fields of `SessionSettings`).

    Returns:
        "bytes": its size on the disk.
    """
    target = Path(spec["target"])

    def change(options: SessionOptions) -> None:
        options.optimized_model_filepath = str(target)
        name = f"{target.stem}.data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_EXTERNAL_BYTES)
        )

    _create(spec, change)
    return {"bytes": sum(file.stat().st_size for file in target.parent.iterdir())}


_PROBES: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    probe.__name__: probe for probe in (devices, contexts, levels, bandwidth, optimized)
}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the probe that the spec names, with the spec as its argument."""
    return _PROBES[spec["probe"]](spec)
