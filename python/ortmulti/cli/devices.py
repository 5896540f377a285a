"""``ortmulti devices``: the devices and libraries, and whether sessions on a GPU will work."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from ortmulti import _core
from ortmulti._runtime import cuda_libraries as _cuda
from ortmulti._runtime import libraries as _libraries
from ortmulti._runtime import startup
from ortmulti._runtime.machine import cpu_model, describe_memory
from ortmulti.devices import plugins
from ortmulti.devices.nvml import Nvml
from ortmulti.devices.provider_options import CUDA
from ortmulti.errors import DeviceError, Error, LibraryError

from .options import AsJson
from .output import print_json, say, size_text, table


def devices_command(as_json: AsJson = False) -> None:
    """Show devices, the driver, ONNX Runtime and the CUDA libraries, whether sessions will work, and shared weights.

    The exit status is 1 if no session can be created, not even on the CPU.
    """
    facts = collect()
    if as_json:
        print_json(facts)
    else:
        say(*report(facts))
    if not facts["cpu_sessions"]["usable"]:
        raise typer.Exit(1)


def collect() -> dict[str, Any]:
    """Collect the facts of ``ortmulti devices``.

    Returns:
        A dictionary for `json.dumps`: ``devices``, ``peer_access`` (row and column: CUDA's numbers), ``driver``,
        ``onnxruntime`` (its ``cuda_provider`` is ``"built-in"``, ``"plug-in"`` or ``"none"``) and
        ``cuda_libraries``. ``plugin_devices`` are those of plug-ins, ``plugin_packages`` the installed packages of
        plug-ins, each with its ``problem``. ``hidden_gpus`` are GPUs that CUDA does not show to this process.
        ``cpu_sessions`` and ``cuda_sessions`` have ``usable`` and, if False, the ``reasons``. ``shared_weights`` are
        those that processes of this user offer each other: the model's file, the GPU, bytes, and the process. A GPU's
        ``processes`` are those that NVML sees, with the ``bytes`` of its memory that each has. Sizes are in bytes.
    """
    with Nvml.open() or contextlib.nullcontext() as nvml:
        cuda, problem = _cuda_devices()
        driver = _core.cuda_driver_version()
        cpu = {"device": "cpu", "name": cpu_model(), "cores": _core.usable_cores()}
        gpus = [_describe_gpu(one, nvml) for one in cuda]
        shown = {device.pci_bus_id.lower() for device in cuda}
        hidden = [
            {"name": gpu.name, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id}
            for gpu in (nvml.gpus() if nvml else [])
            if gpu.pci_bus_id is not None and gpu.pci_bus_id not in shown
        ]
        facts: dict[str, Any] = {
            "devices": [{**cpu, "memory_total": describe_memory()["total"]}, *gpus],
            "peer_access": [
                [a.index == b.index or _core.cuda_peer_access(a.index, b.index) for b in cuda] for a in cuda
            ],
            "hidden_gpus": hidden,
            "driver": {
                "version": nvml.driver_version if nvml else None,
                "cuda": None if driver is None else f"{driver // 1000}.{driver % 1000 // 10}",
                "problem": problem,
            },
        }
    facts["shared_weights"] = _describe_offers({device.uuid: f"cuda:{device.index}" for device in cuda})
    return facts | _describe_libraries(driver, problem, bool(cuda), bool(hidden)) | _describe_plugins()


def _describe_offers(names: dict[str, str]) -> list[dict[str, Any]]:
    try:
        offers = _core.offered_weights()
    except Error:
        return []  # a load says what is wrong with the folder
    return [
        {
            "model": offer.model,
            "device": names.get(offer.uuid, offer.uuid),
            "bytes": offer.bytes,
            "process": offer.process,
        }
        for offer in offers
    ]


def _describe_plugins() -> dict[str, Any]:
    """Describe the devices of plug-ins; those of installed packages are registered for it."""
    packages: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    for package in _libraries.plugin_packages():
        problem = None
        try:
            provider = plugins.register_package(package)
            if not any(one._name and one.ep_name.startswith(provider) for one in plugins.get_ep_devices()):
                problem = f"the package {package} supports no hardware of this machine"
        except Error as error:
            problem = str(error)
        packages.append({"package": package, "problem": problem})
    if packages:
        with contextlib.suppress(Error):  # the problem of each of them
            for device in plugins.get_ep_devices():
                if device._name and not device._name.startswith("cuda:"):
                    devices.append(
                        {
                            "device": device._name,
                            "provider": device.ep_name,
                            "version": device.ep_metadata.get("version"),
                            "hardware": device.device.vendor or None,
                            "library": device._library,
                        }
                    )
    return {"plugin_devices": devices, "plugin_packages": packages}


def _cuda_devices() -> tuple[list[_core.CudaDevice], str | None]:
    try:
        devices = list(_core.cuda_devices())
    except DeviceError as error:
        return [], str(error)
    return devices, (None if _core.cuda_driver_version() is not None else _core.cuda_driver_problem() or None)


def _describe_gpu(device: _core.CudaDevice, nvml: Nvml | None) -> dict[str, Any]:
    gpu = nvml.gpu(device.uuid, device.pci_bus_id) if nvml else None
    processes = nvml.processes(device.uuid, device.pci_bus_id) if nvml else {}
    free = gpu.memory_free if gpu else None
    return {
        "device": f"cuda:{device.index}",
        "name": device.name,
        "memory_total": device.total_memory,
        "memory_free": _core.cuda_memory(device.index)[0] if free is None else free,
        "compute_capability": "{}.{}".format(*device.compute_capability),
        "pci_bus_id": device.pci_bus_id,
        "uuid": device.uuid,
        "persistence_mode": gpu.persistence_mode if gpu else None,
        "processes": [{"process": process, "bytes": size} for process, size in processes.items()],
    }


def _describe_libraries(driver: int | None, problem: str | None, any_device: bool, any_hidden: bool) -> dict[str, Any]:
    reasons: list[str] = []
    libraries: dict[str, Any] = {"found": [], "missing": [], "missing_optional": []}
    try:
        runtime = _libraries.find_onnxruntime()
        startup.ensure_library()
    except LibraryError as error:
        onnxruntime: dict[str, Any] = {"problem": str(error)}
        reasons.append(str(error))
    else:
        onnxruntime = {
            "distribution": runtime.distribution or None,
            "version": runtime.version or None,
            "path": str(runtime.path),
            "cuda": _cuda.cuda_major(runtime),
            "cuda_provider": None,
            "problem": None,
        }
        built_in = "built-in" if CUDA in startup.get_available_providers() else "none"
        onnxruntime["cuda_provider"] = "plug-in" if _core.cuda_plugin() else built_in
        found = _cuda.find_cuda_libraries(runtime)
        libraries["missing"] = list(found.missing)
        libraries["missing_optional"] = list(found.missing_optional)
        if not problem:  # without a driver no library helps, and the CPU needs none
            reasons += _cuda.why_no_cuda(runtime)
        for path, source in zip(found.found, found.sources, strict=True):
            # Opening them is the one proof that they work; without a GPU it would prove nothing and cost memory.
            failure = _why_not_opened(path) if any_device and not found.missing else None
            owner = _cuda.owner(path) or None
            libraries["found"].append({"path": str(path), "source": source, "distribution": owner, "problem": failure})
            if failure:
                reasons.append(f"{path} cannot be opened: {failure}")
        if driver is not None and (too_old := _cuda.why_driver_too_old(runtime, driver)):
            reasons.append(too_old)
    if problem:
        reasons.insert(0, f"{problem}: install the NVIDIA driver; the CPU works without it")
    elif not any_device:
        hint = ": CUDA_VISIBLE_DEVICES leaves none of this machine's" if any_hidden else ""
        reasons.append(f"this process sees no GPU{hint}")
    return {
        "onnxruntime": onnxruntime,
        "cuda_libraries": libraries,
        "cpu_sessions": {"usable": not onnxruntime["problem"], "reasons": [*filter(None, [onnxruntime["problem"]])]},
        "cuda_sessions": {"usable": not reasons, "reasons": reasons},
    }


def _why_not_opened(path: Path) -> str | None:
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return None


def report(facts: dict[str, Any]) -> Iterator[str | Table]:
    """Yield the facts of `collect` as texts with rich's markup, and tables."""
    gpus = facts["devices"][1:]
    yield _device_table(facts["devices"])
    if not gpus:
        yield "There is no GPU that this process can use."
    for gpu in facts["hidden_gpus"]:
        yield f"Not shown to this process: {escape(gpu['name'] or 'unknown')}, {gpu['pci_bus_id']}, {gpu['uuid']}"
    if processes := [
        (gpu["device"], str(one["process"]), _gib(one["bytes"])) for gpu in gpus for one in gpu["processes"]
    ]:
        columns: list[str | Column] = ["device", "process", Column("memory", justify="right")]
        yield table(
            columns, processes, "GPU memory by process; in a process ortmulti.gpu_memory says what its own is for"
        )
    if len(gpus) > 1:
        names = [gpu["device"] for gpu in gpus]
        peers: list[str | Column] = ["", *(Column(name, justify="center") for name in names)]
        access = (
            [name, *("" if row == column else "yes" if cell else "no" for column, cell in enumerate(cells))]
            for row, (name, cells) in enumerate(zip(names, facts["peer_access"], strict=True))
        )
        yield table(peers, access, "Peer access (the row's GPU reads the column's memory)")
    where = partial(Column, "where", overflow="fold")
    yield table(["what", "which", where()], _libraries_found(facts), "Driver and libraries")
    for package in facts["plugin_packages"]:
        if package["problem"]:
            yield f"Not usable: {escape(package['problem'])}"
    if facts["plugin_devices"]:
        keys = ("device", "provider", "version", "hardware", "library")
        rows = ([one[key] for key in keys] for one in facts["plugin_devices"])
        yield table(["device", "provider", "version", "vendor", where()], rows, "Devices of plug-ins")
    if facts["shared_weights"]:
        offers = facts["shared_weights"]
        held = ((one["model"], one["device"], size_text(one["bytes"]), str(one["process"])) for one in offers)
        size = Column("size", justify="right")
        yield table([Column("model", overflow="fold"), "device", size, "process"], held, "Weights that processes share")
    if not facts["cpu_sessions"]["usable"]:
        yield "[red]No session can be created, not even on the CPU:[/red]"
        yield from (f"  - {escape(reason)}" for reason in facts["cpu_sessions"]["reasons"])
    elif facts["cuda_sessions"]["usable"]:
        yield "[green]Sessions on the GPUs will work.[/green]"
    else:
        yield "The CPU is ready. [yellow]Sessions on a GPU will not work:[/yellow]"
        yield from (f"  - {escape(reason)}" for reason in facts["cuda_sessions"]["reasons"])


def _device_table(devices: list[dict[str, Any]]) -> Table:
    [cpu, *gpus] = devices
    memory = Column("memory free / total" if gpus else "memory", justify="right")
    name = f"{cpu['name'] or 'unknown'}, {cpu['cores']} cores usable"
    rows: list[Sequence[str | None]] = [("cpu", name, _gib(cpu["memory_total"]))]
    for gpu in gpus:
        free = f"{_gib(gpu['memory_free'])} / {_gib(gpu['memory_total'])}"
        persistence = {True: "on", False: "off", None: None}[gpu["persistence_mode"]]
        facts = (gpu[key] for key in ("compute_capability", "pci_bus_id", "uuid"))
        rows.append((gpu["device"], gpu["name"], free, *facts, persistence))
    more = ["capability", "PCI address", "UUID", "persistence"] if gpus else []
    return table(["device", "name", memory, *more], rows, "Devices")


def _libraries_found(facts: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """Yield rows: what, which, where."""
    driver, runtime, libraries = facts["driver"], facts["onnxruntime"], facts["cuda_libraries"]
    release = f"{driver['version']}, " if driver["version"] else ""
    yield "NVIDIA driver", "none" if driver["cuda"] is None else f"{release}CUDA {driver['cuda']}", ""
    if runtime["problem"]:
        yield "ONNX Runtime", Text("not usable", "red"), ""
    else:
        cuda = f", for CUDA {runtime['cuda']}" if runtime["cuda"] else ", without CUDA"
        plugin = " as a plug-in" if runtime["cuda_provider"] == "plug-in" else ""
        name = f"{runtime['distribution'] or 'ONNX Runtime'} {runtime['version'] or ''}"
        yield "ONNX Runtime", f"{name}{cuda}{plugin}", runtime["path"]
    for library in libraries["found"]:
        path = Path(library["path"])
        yield path.name, library["problem"] or library["distribution"] or library["source"], path.parent
    for name in libraries["missing"]:
        yield name, Text("missing", "red"), ""
    for name in libraries["missing_optional"]:
        use = _cuda.run_time_use(name)
        yield name, Text("missing", "yellow"), f"needed for {use}" if use else ""


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
