"""``ortmulti devices``: the devices and libraries, and whether sessions on a GPU will work."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ortmulti import _core
from ortmulti._runtime import cuda_libraries as _cuda
from ortmulti._runtime import libraries as _libraries
from ortmulti._runtime import startup
from ortmulti._runtime.machine import cpu_model, describe_memory
from ortmulti.bench.measure.nvml import Gpu, Nvml
from ortmulti.devices import plugins
from ortmulti.devices.provider_options import CUDA
from ortmulti.errors import DeviceError, Error, LibraryError

from .options import AsJson
from .output import print_json, stdout


def devices_command(as_json: AsJson = False) -> None:
    """Show the devices, the driver, ONNX Runtime and the CUDA libraries, and whether GPU sessions will work."""
    facts = collect()
    if as_json:
        print_json(facts)
    else:
        show(facts, stdout())


def collect() -> dict[str, Any]:
    """Collect the facts of ``ortmulti devices``.

    Returns:
        A dictionary for `json.dumps`: ``devices``, ``peer_access`` (row and column: CUDA's numbers), ``driver``,
        ``onnxruntime`` (its ``cuda_provider`` is ``"built-in"``, ``"plug-in"`` or ``"none"``) and
        ``cuda_libraries``. ``plugin_devices`` are those of plug-ins, ``plugin_packages`` the installed packages of
        plug-ins, each with its ``problem``. ``hidden_gpus`` are GPUs that CUDA does not show to this process.
        ``cuda_sessions`` has ``usable`` and, if False, the ``reasons``. Sizes are in bytes.
    """
    nvml = Nvml.open()
    try:
        cuda, problem = _cuda_devices()
        driver = _core.cuda_driver_version()
        matched = [nvml.gpu(device.uuid, device.pci_bus_id) if nvml else None for device in cuda]
        shown = {device.pci_bus_id.lower() for device in cuda}
        gpus = nvml.gpus() if nvml else []
        hidden = [gpu for gpu in gpus if gpu.pci_bus_id is not None and gpu.pci_bus_id not in shown]
        facts: dict[str, Any] = {
            "devices": [_describe_cpu(), *(_describe_gpu(d, gpu) for d, gpu in zip(cuda, matched, strict=True))],
            "peer_access": [
                [a.index == b.index or _core.cuda_peer_access(a.index, b.index) for b in cuda] for a in cuda
            ],
            "hidden_gpus": [{"name": gpu.name, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id} for gpu in hidden],
            "driver": {
                "version": nvml.driver_version if nvml else None,
                "cuda": None if driver is None else f"{driver // 1000}.{driver % 1000 // 10}",
                "problem": problem,
            },
        }
    finally:
        if nvml:
            nvml.close()
    return facts | _describe_libraries(driver, problem, bool(cuda), bool(hidden)) | _describe_plugins()


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


def _describe_cpu() -> dict[str, Any]:
    return {
        "device": "cpu",
        "name": cpu_model(),
        "cores": _core.usable_cores(),
        "memory_total": describe_memory()["total"],
    }


def _describe_gpu(device: _core.CudaDevice, gpu: Gpu | None) -> dict[str, Any]:
    free = gpu.memory_free if gpu else None
    if free is None:
        free = _core.cuda_memory(device.index)[0]
    return {
        "device": f"cuda:{device.index}",
        "name": device.name,
        "memory_total": device.total_memory,
        "memory_free": free,
        "compute_capability": "{}.{}".format(*device.compute_capability),
        "pci_bus_id": device.pci_bus_id,
        "uuid": device.uuid,
        "persistence_mode": gpu.persistence_mode if gpu else None,
    }


def _describe_libraries(driver: int | None, problem: str | None, any_device: bool, any_hidden: bool) -> dict[str, Any]:
    reasons: list[str] = []
    libraries: dict[str, Any] = {"found": [], "missing": [], "missing_optional": []}
    try:
        runtime = _libraries.find_onnxruntime()
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
        startup.ensure_library()
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
            libraries["found"].append(
                {
                    "path": str(path),
                    "source": source,
                    "distribution": _cuda.owner(path) or None,
                    "problem": failure,
                }
            )
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
        "cuda_sessions": {"usable": not reasons, "reasons": reasons},
    }


def _why_not_opened(path: Path) -> str | None:
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return None


def show(facts: dict[str, Any], console: Console) -> None:
    """Print the facts of `collect`.

    Args:
        facts: what `collect` gave.
        console: where to.
    """
    gpus = facts["devices"][1:]
    console.print(_device_table(facts["devices"]))
    if not gpus:
        console.print("There is no GPU that this process can use.")
    for gpu in facts["hidden_gpus"]:
        console.print(f"Not shown to this process: {_text(gpu['name'])}, {gpu['pci_bus_id']}, {gpu['uuid']}")
    if len(gpus) > 1:
        console.print(_peer_table(facts["peer_access"]))
    console.print(_library_table(facts))
    for package in facts["plugin_packages"]:
        if package["problem"]:
            console.print(f"Not usable: {escape(package['problem'])}", soft_wrap=True, highlight=False)
    if facts["plugin_devices"]:
        console.print(_plugin_table(facts["plugin_devices"]))
    verdict = facts["cuda_sessions"]
    if verdict["usable"]:
        console.print("[green]Sessions on the GPUs will work.[/green]")
    else:
        console.print("The CPU is ready. [yellow]Sessions on a GPU will not work:[/yellow]")
        for reason in verdict["reasons"]:
            console.print(f"  - {escape(reason)}", soft_wrap=True, highlight=False)


def _device_table(devices: list[dict[str, Any]]) -> Table:
    table = Table("device", "name", title="Devices", title_justify="left")
    only_cpu = len(devices) == 1
    table.add_column("memory" if only_cpu else "memory free / total", justify="right")
    for name in () if only_cpu else ("capability", "PCI address", "UUID", "persistence"):
        table.add_column(name)
    for device in devices:
        if device["device"] == "cpu":
            table.add_row(
                "cpu", f"{_text(device['name'])}, {device['cores']} cores usable", _gib(device["memory_total"])
            )
        else:
            table.add_row(
                device["device"],
                _text(device["name"]),
                f"{_gib(device['memory_free'])} / {_gib(device['memory_total'])}",
                device["compute_capability"],
                device["pci_bus_id"],
                device["uuid"],
                {True: "on", False: "off", None: "unknown"}[device["persistence_mode"]],
            )
    return table


def _plugin_table(devices: list[dict[str, Any]]) -> Table:
    table = Table("device", "provider", "version", "vendor", title="Devices of plug-ins", title_justify="left")
    table.add_column("where", overflow="fold")
    for device in devices:
        values = (device["provider"], _text(device["version"]), _text(device["hardware"]), _text(device["library"]))
        table.add_row(device["device"], *values)
    return table


def _peer_table(access: list[list[bool]]) -> Table:
    table = Table("", title="Peer access (the row's GPU reads the column's memory)", title_justify="left")
    for column in range(len(access)):
        table.add_column(f"cuda:{column}", justify="center")
    for row, cells in enumerate(access):
        texts = ["" if row == column else "yes" if cell else "no" for column, cell in enumerate(cells)]
        table.add_row(f"cuda:{row}", *texts)
    return table


def _library_table(facts: dict[str, Any]) -> Table:
    table = Table("what", "which", title="Driver and libraries", title_justify="left")
    table.add_column("where", overflow="fold")
    driver, onnxruntime, libraries = facts["driver"], facts["onnxruntime"], facts["cuda_libraries"]
    if driver["cuda"] is None:
        table.add_row("NVIDIA driver", "none", "")
    else:
        release = f"{driver['version']}, " if driver["version"] else ""
        table.add_row("NVIDIA driver", f"{release}CUDA {driver['cuda']}", "")
    if onnxruntime["problem"]:
        table.add_row("ONNX Runtime", "none", "")
    else:
        cuda = f", for CUDA {onnxruntime['cuda']}" if onnxruntime["cuda"] else ", without CUDA"
        if onnxruntime["cuda_provider"] == "plug-in":
            cuda += " as a plug-in"
        name = onnxruntime["distribution"] or "ONNX Runtime"
        table.add_row("ONNX Runtime", f"{name} {_text(onnxruntime['version'], '')}{cuda}", _text(onnxruntime["path"]))
    for library in libraries["found"]:
        path = Path(library["path"])
        source = library["distribution"] or library["source"]
        table.add_row(path.name, _text(library["problem"] or source), _text(str(path.parent)))
    for name in libraries["missing"]:
        table.add_row(name, "[red]missing[/red]", "")
    for name in libraries["missing_optional"]:
        use = _cuda.run_time_use(name)
        table.add_row(name, "[yellow]missing[/yellow]", f"needed for {use}" if use else "")
    return table


def _text(value: str | None, otherwise: str = "unknown") -> str:
    return otherwise if value is None else escape(value)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
