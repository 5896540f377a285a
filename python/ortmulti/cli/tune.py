"""`ortmulti tune`: find settings that suit a model on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import ortmulti
from ortmulti.bench.measure import results
from ortmulti.bench.tune.space import describe
from ortmulti.bench.tune.tuner import BUDGET, check_writable
from ortmulti.errors import InvalidArgument

from .bench import INTERRUPTED
from .options import Model
from .output import is_stdout, print_json, say, stderr, table

_MOST_TRIALS = 12


def tune_command(
    model: Model,
    inputs: Annotated[
        Path | None, typer.Option("--input", help="An .npz file with the inputs (default: random).")
    ] = None,
    objective: Annotated[
        str, typer.Option("--for", help="What to improve: latency, throughput, creation or memory.")
    ] = "latency",
    devices: Annotated[
        str, typer.Option("--devices", "--device", help="all, cpu, cuda:1, or a list such as 0,1.")
    ] = "all",
    through: Annotated[str, typer.Option(help="What runs the model: pool (ortmulti.load) or session.")] = "pool",
    budget: Annotated[float, typer.Option(help="Seconds for all measurements.")] = BUDGET,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference of outputs from the defaults', as a share of the largest value (default: by type, "
            "1e-4 for float32 on the CPU)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file for the tuning (default: MODEL.tuning.json beside the model).")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Try only this setting. Repeatable.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Leave this setting out. Repeatable.")] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="Requests in flight, for throughput (default: twice the cores, or 8 for each GPU)."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds in which a candidate must start and answer (default: ten times the defaults' time, "
            "at least 20)."
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all measurements as JSON. - prints them instead."),
    ] = None,
) -> None:
    """Find settings that make a model faster or smaller on this machine, and write them for `Loading(tuning=)`.

    After Ctrl-C it writes the settings that were confirmed so far.
    """
    target = out or model.with_suffix(".tuning.json")
    if json is not None and not is_stdout(json):
        check_writable(json)
        if json.absolute() == target.absolute():
            raise InvalidArgument("--out and --json name the same file")
    interrupted = False
    with _progress() as tell:
        try:
            result = ortmulti.tune(
                model,
                objective,  # type: ignore[arg-type]  # checked there
                inputs=inputs,
                devices=devices if devices == "all" else [name.strip() for name in devices.split(",")],
                through=through,  # type: ignore[arg-type]
                budget=budget,
                tolerance=tolerance,
                only=only or None,
                skip=skip or (),
                out=target,
                clients=clients,
                timeout=timeout,
                progress=tell,
            )
        except ortmulti.TuningInterrupted as error:
            interrupted, result = True, error.result
        except KeyboardInterrupt:
            stderr().print("[yellow]interrupted before anything was measured[/yellow]")
            raise typer.Exit(INTERRUPTED) from None
    document = result.document
    if json is not None and not is_stdout(json):
        results.save(document, json)
    if is_stdout(json):
        print_json(document)
    else:
        say(*_lines(document))
        written = not result.tuning.partial or result.tuning.settings
        empty = "" if result.tuning.settings else ", with no settings: the defaults are best"
        say(
            f"written to {escape(str(target))}{empty}: "
            f"ortmulti.load(..., loading=ortmulti.Loading(tuning={str(target)!r}))"
            if written
            else f"nothing was confirmed, and {escape(str(target))} is not written"
        )
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _lines(document: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the result as texts with rich's markup, and a table."""
    best, objective = document["best"], document["settings"]["objective"]
    if document["partial"] is not None:
        yield f"[yellow]partial ({document['partial']}): not everything was measured[/yellow]"
    again = document["confirmation"]
    if best is None:
        found = f"[bold]nothing better than the defaults[/bold] for {objective}"
        if again is not None:
            name = escape(describe(again["settings"]))
            found += f": the best candidate, {name}, {_held_up(again)} of the defaults' cost"
        yield found
    else:
        yield (
            f"[bold]{escape(describe(best['settings']))}[/bold] wins: {objective} {_times(best['gain'])} times as good "
            f"as the defaults: {_cost(objective, best['defaults'])} -> {_cost(objective, best['cost'])}"
        )
        if best["outputs"]:
            yield f"its outputs differ from the defaults' by {best['outputs']:.2g} of the largest value"
    for one in document["rejected"]:
        yield f"[yellow]left out: {escape(describe(one['settings']))}: {one['why']}: {escape(one['text'])}[/yellow]"
    if not document["outputs_repeat"]["compared"]:
        yield (
            "[yellow]outputs were not compared: those of the defaults change from run to run: "
            f"{escape(document['outputs_repeat']['text'])}[/yellow]"
        )
    if document["trials"]:
        yield _table(document["trials"], again)


def _cost(objective: str, value: float) -> str:
    """Return a cost with its unit."""
    if objective == "memory":
        return f"{value / 1e6:.4g} MB"
    if objective == "throughput":
        return f"{1 / value:.4g}/s"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def _held_up(again: Mapping[str, Any]) -> str:
    if again["held_up"] is None:
        how = f"measured again in {again['pairs']} pairs only"
    else:
        how = f"{'held up' if again['held_up'] else 'did not hold up'} when measured again"
    return f"{how}: {_times(again['ratio'])}"


def _times(gain: Mapping[str, float]) -> str:
    return f"{gain['median']:.3f} ({gain['low']:.3f} to {gain['high']:.3f})"


def _table(trials: Sequence[Mapping[str, Any]], again: Mapping[str, Any] | None) -> Table:
    def is_confirmed(one: Mapping[str, Any]) -> bool:
        return again is not None and one["settings"] == again["settings"]

    rows = []
    # The confirmed candidate comes first: of many candidates, the luckiest look best at their trial.
    for one in sorted(trials, key=lambda one: (not is_confirmed(one), one["ratio"]["median"]))[:_MOST_TRIALS]:
        verdict = "no gain" if one["ratio"]["high"] >= 1 else "not measured again"
        if again is not None and is_confirmed(one):
            verdict = _held_up(again)
        outputs = "" if one["outputs"] is None else f"{one['outputs']:.2g}"
        rows.append((describe(one["settings"]), _times(one["ratio"]), one["samples"], outputs, verdict))
    if len(trials) > _MOST_TRIALS:
        rows.append((f"and {len(trials) - _MOST_TRIALS} more (--json)", "", "", "", ""))
    return table(["tried", "cost, at first\n(defaults: 1)", "samples", "outputs\ndiffer by", "verdict"], rows)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, str], None]]:
    console = stderr()
    if not console.is_terminal:
        yield lambda stage, text: console.print(f"{stage}: {text}", markup=False)
        return
    with console.status("") as status:
        yield lambda stage, text: status.update(escape(f"{stage}: {text}"))
