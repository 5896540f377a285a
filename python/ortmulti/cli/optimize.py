"""`ortmulti optimize`: models optimized ahead, and the cache in which they are kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

import ortmulti
from ortmulti.loading.tuning_options import LEVELS
from ortmulti.optimized import Cache
from ortmulti.optimized.entries import Stored

from .output import print_json, size_text, stdout, working

_LEVELS = {name: level for name, level in LEVELS.items() if name != "disabled"}


def optimize_command(
    model: Annotated[Path | None, typer.Argument(help="An .onnx file.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:N or openvino:CPU (default: a GPU, or else the CPU).")
    ] = None,
    provider_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the device's provider. Repeatable.")
    ] = None,
    level: Annotated[
        str, typer.Option(help="Optimization level of the sessions that load it: basic, extended, layout or all.")
    ] = "all",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare", help="Run both models with random inputs and compare the outputs' bits."
        ),
    ] = True,
    list_entries: Annotated[bool, typer.Option("--list", help="List the cache instead.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Empty the cache instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Optimize a model ahead of loading, or list or clear the cache of optimized models."""
    if sum((model is not None, list_entries, clear)) != 1:
        raise typer.BadParameter("name one .onnx file, or give --list or --clear")
    if list_entries:
        _list(Cache.default(), as_json)
    elif clear:
        _clear(Cache.default(), as_json)
    elif model is not None:
        _optimize(model, device, _parse_options(provider_option or []), _parse_level(level), compare, as_json)


def _parse_level(name: str) -> ortmulti.SessionOptions:
    if name not in _LEVELS:
        raise typer.BadParameter(f"--level is one of {', '.join(_LEVELS)}, not {name!r}")
    options = ortmulti.SessionOptions()
    options.graph_optimization_level = _LEVELS[name]
    return options


def _parse_options(texts: Sequence[str]) -> dict[str, str]:
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--provider-option is NAME=VALUE, not {text!r}")
        options[name] = value
    return options


def _optimize(
    model: Path,
    device: str | None,
    provider_options: dict[str, str],
    options: ortmulti.SessionOptions,
    compare: bool,
    as_json: bool,
) -> None:
    with working(f"optimizing {model}"):
        result = ortmulti.optimize(model, device, options, provider_options or None, compare=compare)
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    console = stdout()
    verb = "made" if result.made else "was there already"
    console.print(f"{verb} in {result.seconds:.2f} s for {result.device}: {escape(result.path)}", soft_wrap=True)
    console.print(
        f"{size_text(result.bytes)} on the disk, of which {size_text(result.own_bytes)} are new tensors of the "
        "optimization; "
        f"the sessions of a device share {size_text(result.shared_bytes)} of weights in {result.shared} "
        f"tensor{'s' * (result.shared != 1)}",
        soft_wrap=True,
    )
    if result.left_out:
        reasons: dict[str, list[str]] = {}
        for name, reason in result.left_out:
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            console.print(f"not shared: {escape(', '.join(names[:3]))}{more}: {escape(reason)}", soft_wrap=True)
    if result.compared:
        console.print("[green]its outputs are the model's, bit for bit[/green]")
    elif result.not_compared:
        console.print(f"[yellow]not compared: {escape(result.not_compared)}[/yellow]", soft_wrap=True)


def _list(cache: Cache, as_json: bool) -> None:
    entries = cache.entries()
    total = sum(entry.bytes for entry in entries)
    if as_json:
        listed = [_as_json(entry) for entry in entries]
        print_json({"folder": str(cache.folder), "bytes": total, "limit": cache.limit, "entries": listed})
        return
    console = stdout()
    if entries:
        path = Column("model", overflow="fold")
        table = Table(path, "device", "ONNX Runtime", "size", "last used", "key", box=None, pad_edge=False)
        for entry in entries:
            facts = entry.facts
            device, release = _made_for(facts) if facts is not None else ("damaged", "")
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
            table.add_row(escape(entry.model or "(in memory)"), device, release, size_text(entry.bytes), used,
                          entry.folder.name[:12])  # fmt: skip
        if not console.is_terminal:
            console.width = 10_000  # whole paths, for grep
        console.print(table)
    console.print(
        f"{len(entries)} in {escape(str(cache.folder))}: {size_text(total)} of at most {size_text(cache.limit)}",
        soft_wrap=True,
    )


def _as_json(entry: Stored) -> dict[str, Any]:
    device, release = _made_for(entry.facts) if entry.facts is not None else (None, None)
    return {
        "model": entry.model,
        "path": str(entry.folder),
        "device": device,
        "onnxruntime": release,
        "bytes": entry.bytes,
        "last_used": datetime.fromtimestamp(entry.last_used, UTC).isoformat(timespec="seconds"),
        "damaged": entry.facts is None,
    }


def _made_for(facts: Any) -> tuple[str, str]:
    made_of = facts["made_of"]
    capability = made_of["compute_capability"]
    if "plugin" in made_of:
        device = made_of["providers"][0][0]
    else:
        device = "cpu" if capability is None else f"GPU {capability[0]}.{capability[1]}"
    return device, " ".join(str(part) for part in made_of["onnxruntime"][:2])


def _clear(cache: Cache, as_json: bool) -> None:
    cleared = cache.clear()
    if as_json:
        print_json({"folder": str(cache.folder), **dataclasses.asdict(cleared)})
        return
    in_use = f"; {cleared.in_use} are being loaded and stay" if cleared.in_use else ""
    stdout().print(
        f"removed {cleared.entries} of {size_text(cleared.bytes)} from {escape(str(cache.folder))}{in_use}",
        soft_wrap=True,
    )
