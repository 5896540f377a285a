"""`ortmulti optimize`: models optimized ahead, and the cache in which they are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column

import ortmulti
from ortmulti.cache.entries import Stored
from ortmulti.errors import InvalidArgument
from ortmulti.loading.tuning_options import LEVELS
from ortmulti.optimized import Cache
from ortmulti.optimized.optimize import OptimizedModel

from .options import AsJson, CustomOps, name_values, path_or_url, session_options
from .output import print_json, say, size_text, table, working

_LEVELS = {name: level for name, level in LEVELS.items() if name != "disabled"}


def optimize_command(
    model: Annotated[
        Path | None,
        typer.Argument(help="An .onnx file, or its URL: s3://, gs://, az:// or https://.", parser=path_or_url),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:N or openvino:CPU (default: a GPU, or else the CPU).")
    ] = None,
    provider_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the device's provider. Repeatable.")
    ] = None,
    level: Annotated[str, typer.Option(help="Level of optimization: basic, extended, layout or all.")] = "all",
    custom_ops: CustomOps = None,
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Compare the outputs' bits with random inputs."),
    ] = True,
    list_entries: Annotated[bool, typer.Option("--list", help="List the cache instead.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Empty the cache instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Optimize a model ahead of loading, or list or clear the cache of optimized models."""
    if sum((model is not None, list_entries, clear)) != 1:
        raise typer.BadParameter("name one .onnx file, or give --list or --clear")
    if list_entries:
        _list(Cache.default(), as_json)
    elif clear:
        _clear(Cache.default(), as_json)
    elif model is not None:
        result = _optimize(model, device, level, provider_option, custom_ops, compare)
        if as_json:
            print_json(dataclasses.asdict(result))
        else:
            _show(result)


def _optimize(
    model: Path,
    device: str | None,
    level: str,
    option_texts: Sequence[str] | None,
    custom_ops: Sequence[Path] | None,
    compare: bool,
) -> OptimizedModel:
    if level not in _LEVELS:
        raise typer.BadParameter(f"--level is one of {', '.join(_LEVELS)}, not {level!r}")
    options = session_options(custom_ops)
    options.graph_optimization_level = _LEVELS[level]
    try:
        provider_options = name_values(option_texts)
    except InvalidArgument as error:
        raise typer.BadParameter(f"--provider-option: {error}") from None
    with working(f"optimizing {model}"):
        return ortmulti.optimize(model, device, options, provider_options or None, compare=compare)


def _show(result: OptimizedModel) -> None:
    verb = "made" if result.made else "was there already"
    say(
        f"{verb} in {result.seconds:.2f} s for {result.device}: {escape(result.path)}",
        f"{size_text(result.bytes)} on the disk, of which {size_text(result.own_bytes)} are new tensors of the "
        f"optimization; the sessions of a device share {size_text(result.shared_bytes)} of weights in {result.shared} "
        f"tensor{'s' * (result.shared != 1)}",
    )
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out:
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        say(f"not shared: {escape(', '.join(names[:3]))}{more}: {escape(reason)}")
    if result.compared:
        say("[green]its outputs are the model's, bit for bit[/green]")
    elif result.not_compared:
        say(f"[yellow]not compared: {escape(result.not_compared)}[/yellow]")


def _list(cache: Cache, as_json: bool) -> None:
    listed = [_facts(entry) for entry in cache.entries()]
    total = sum(entry["bytes"] for entry in listed)
    if as_json:
        print_json({"folder": str(cache.folder), "bytes": total, "limit": cache.limit, "entries": listed})
        return
    rows = [
        (
            entry["model"] or "(in memory)",
            "damaged" if entry["damaged"] else entry["device"],
            entry["onnxruntime"] or "",
            size_text(entry["bytes"]),
            f"{datetime.fromisoformat(entry['last_used']).astimezone():%Y-%m-%d %H:%M}",
            Path(entry["path"]).name[:12],
        )
        for entry in listed
    ]
    if rows:
        path = Column("model", overflow="fold")
        say(table([path, "device", "ONNX Runtime", "size", "last used", "key"], rows))
    say(f"{len(rows)} in {escape(str(cache.folder))}: {size_text(total)} of at most {size_text(cache.limit)}")


def _facts(entry: Stored) -> dict[str, Any]:
    device = release = None
    if entry.facts is not None and "form" in entry.facts:
        device = f"fused, {entry.facts['form']}"
    elif entry.facts is not None:
        made_of = entry.facts["made_of"]
        capability = made_of["compute_capability"]
        if "plugin" in made_of:
            device = made_of["providers"][0][0]
        else:
            device = "cpu" if capability is None else f"GPU {capability[0]}.{capability[1]}"
        device = "copy" if "copy" in made_of else device
        release = " ".join(str(part) for part in made_of["onnxruntime"][:2])
    return {
        "model": entry.model,
        "path": str(entry.folder),
        "device": device,
        "onnxruntime": release,
        "bytes": entry.bytes,
        "last_used": datetime.fromtimestamp(entry.last_used, UTC).isoformat(timespec="seconds"),
        "damaged": entry.facts is None,
    }


def _clear(cache: Cache, as_json: bool) -> None:
    cleared = cache.clear()
    if as_json:
        print_json({"folder": str(cache.folder), **dataclasses.asdict(cleared)})
        return
    in_use = f"; {cleared.in_use} are being loaded and stay" if cleared.in_use else ""
    say(f"removed {cleared.entries} of {size_text(cleared.bytes)} from {escape(str(cache.folder))}{in_use}")
