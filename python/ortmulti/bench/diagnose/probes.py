"""Experiments of a diagnosis, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortmulti import _core
from ortmulti.bench.diagnose.trace.traced_process import make_context, open_driver, start_driver
from ortmulti.bench.measure.floor import cuda_devices
from ortmulti.bench.strategies import SessionSettings, open_strategy
from ortmulti.devices.device import parse_devices
from ortmulti.interface.session_observer import SessionObserver, observe

if TYPE_CHECKING:
    from ortmulti import SessionOptions


def devices(spec: dict[str, Any]) -> dict[str, Any]:
    """Find the devices of "devices": names, or None for all.

    Returns:
        "devices": names, one for each session. "visible": how many GPUs this process sees, None where no session is on
        one. "gpus": for each GPU among the devices its "device", "uuid" and "pci_bus_id".
    """
    names = list(map(str, parse_devices("all" if spec["devices"] is None else spec["devices"])))
    used = cuda_devices(names)
    return {
        "devices": names,
        "visible": _core.cuda_device_count() if used else None,
        "gpus": [
            {"device": f"cuda:{gpu.index}", "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id}
            for gpu in (_core.cuda_devices() if used else ())
            if f"cuda:{gpu.index}" in used
        ],
    }


def contexts(spec: dict[str, Any]) -> dict[str, Any]:
    """Start the driver, and then make the contexts of "devices" at once, by a thread each.

    Returns seconds: "cuInit"; "at_once", from the first context's begin to the last one's end; "contexts", each one's.
    """
    driver = open_driver(hold_gil=False)

    def timed(call: Callable[..., None], *arguments: Any) -> float:
        begin = time.perf_counter()
        call(driver, *arguments)
        return time.perf_counter() - begin

    started = timed(start_driver)
    with ThreadPoolExecutor(len(spec["devices"])) as executor:
        begin = time.perf_counter()
        made = list(executor.map(lambda device: timed(make_context, device), spec["devices"]))
        return {"cuInit": started, "at_once": time.perf_counter() - begin, "contexts": made}


# protobuf's messages end at 2 GiB; tensors from this size on go into a file beside the model.
_EXTERNAL_BYTES = 1 << 10


def optimized(spec: dict[str, Any]) -> dict[str, Any]:
    """Save the optimized model as "target", a path. Nothing is returned.

    The spec also has "model" (path), "device" and "settings" (the fields of `SessionSettings`).
    """
    target = Path(spec["target"])
    external = "session.optimized_model_external_initializers"

    class Saving(SessionObserver):
        def options(self, options: SessionOptions) -> None:
            options.optimized_model_filepath = str(target)
            options.add_session_config_entry(f"{external}_file_name", f"{target.stem}.data")
            options.add_session_config_entry(f"{external}_min_size_in_bytes", str(_EXTERNAL_BYTES))

    observe(Saving())
    with open_strategy("native", spec["model"], [spec["device"]], SessionSettings(**spec["settings"])) as strategy:
        strategy.start()
        strategy.create()
    return {}


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the probe that the spec names, with the spec as its argument."""
    probe: Callable[[dict[str, Any]], dict[str, Any]] = globals()[spec["probe"]]
    return probe(spec)
