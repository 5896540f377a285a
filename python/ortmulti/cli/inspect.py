"""`ortmulti inspect` and `ortmulti run`: the first questions about a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.markup import escape

import ortmulti
from ortmulti import _core
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.create.sample_inputs import (
    LARGER,
    SEQUENCE,
    first_fit,
    growing_inputs,
    has_named_integers,
    sample_inputs,
)
from ortmulti.errors import Error, InvalidArgument, InvalidProtobuf, InvalidType
from ortmulti.loading.plan import why_not_worth_it
from ortmulti.pool.rows import Rows, RowVerdict, check_inputs
from ortmulti.remote.model import INLINE
from ortmulti.text.settings import find_files, read_settings

from .options import AsJson, Batch, CustomOps, ModelOrUrl, session_options
from .output import print_json, say, size_text, stderr, steps, table, working

_MOST_REASONS = 5
_MOST_BYTES_RUN = 1 << 30
"""Of the weights of a model that `inspect` runs."""

# What keeps runs from being CUDA graphs, unless it is computed when the model is optimized for fixed shapes.
_NO_GRAPH = {
    "control flow": {"If", "Loop", "Scan", "SequenceMap"},
    "random numbers": {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
    },
    "sizes that the run finds": {"NonZero", "NonMaxSuppression", "Unique", "Compress"},
}


def inspect_command(
    model: ModelOrUrl,
    batching: Annotated[
        bool, typer.Option("--batching", help="Compare answers of random requests, alone and together.")
    ] = False,
    custom_ops: CustomOps = None,
    as_json: AsJson = False,
) -> None:
    """Show a model's inputs, outputs, weights and opset, whether GPUs can share its weights and capture CUDA graphs,
    and for which outputs requests can be joined.

    MODEL may also be the folder of an exported model of texts, with a tokenizer.json. The model is opened on the CPU
    without optimization, and run if its weights take at most 1 GiB. The exit status is 1 if a folder does not load, or
    if --batching finds requests that cannot be joined, or could not try.
    """
    texts = _texts(model) if Path(model).is_dir() else None
    with working(f"opening {model}"):
        opened = ortmulti.Model(texts.file if texts else model)
        facts = describe_model(opened, session_options(custom_ops))
    facts["texts"] = texts.facts if texts else None
    verdict = _declared_rows(opened, facts)
    refused = _why_not_joined(opened, facts)
    if batching:
        with working("joining requests"):
            facts["batching"], verdict = _describe_batching(opened, verdict, refused, session_options(custom_ops))
    facts["rows"] = {name: asdict(one) for name, one in verdict.outputs.items()} if verdict else {}
    facts["advice"] = _advice(facts, verdict, refused)
    if as_json:
        print_json(facts)
    else:
        _show_model(facts)
        if texts:
            say(escape(texts.text))
    if texts and texts.problem:
        raise texts.problem
    if batching and not facts["batching"]["independent"]:
        raise typer.Exit(1)


class _Texts(NamedTuple):
    """What is said of an export: its ONNX file, facts for JSON, a line, and why it does not load."""

    file: Path
    facts: dict[str, Any]
    text: str
    problem: Error | None = None


def _texts(folder: ModelOrUrl) -> _Texts:
    try:
        settings = read_settings(folder)
    except Error as error:
        found = find_files(folder)
        if not found.models:
            raise
        names = [str(one.relative_to(folder)) for one in (*found.models, found.tokenizer) if one is not None]
        text = f"Texts: not to be loaded by ortmulti.text. There are {', '.join(names)}"
        text += f", and the modules {', '.join(found.modules)}" * bool(found.modules)
        facts = {"problem": str(error), "files": names, "modules": found.modules}
        return _Texts(found.models[0], facts, f"{text}.", error)
    return _Texts(settings.model, settings.facts(), f"Texts: {settings}. ortmulti.text.load('{folder}')")


def describe_model(model: ortmulti.Model, options: ortmulti.SessionOptions | None = None) -> dict[str, Any]:
    """Collect the facts of ``ortmulti inspect``. The options may have libraries of custom operators, and are changed.

    Returns:
        A dictionary for `json.dumps`. "inputs" and "outputs" are empty if ONNX Runtime cannot open the model on the
        CPU; "problem" then has the reason. Sizes are in bytes.
    """
    try:
        index = _core.index_model(model.graph)
    except InvalidProtobuf:
        ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"]).close()  # its error says what to do
        raise
    shareable = _core.shareable_weights(model.path) if model.path else model.external
    facts: dict[str, Any] = {
        "model": model.path or model.url,
        "bytes": model.size,
        "external_files": [
            location.decode(errors="replace") for location in index.external_locations if location != INLINE.encode()
        ],
        "ir_version": index.ir_version,
        "opsets": dict(sorted(index.opsets.items())),
        "operators": sorted(index.operators),
        "weights": {
            "tensors": len(index.initializers),
            "bytes": sum(one.length for one in index.initializers),
            "attribute_bytes": index.attribute_bytes,
            "shared_tensors": len(shareable.weights),
            "shared_bytes": sum(weight.length for weight in shareable.weights),
            "not_shared": [{"name": one.name, "reason": one.reason} for one in shareable.left_out],
            "not_worth_sharing": why_not_worth_it(model, 1),
        },
        "inputs": [],
        "outputs": [],
        "problem": None,
        "request": None,
    }
    options = options or ortmulti.SessionOptions()
    options.graph_optimization_level = ortmulti.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        with ortmulti.InferenceSession(model, options, ["CPUExecutionProvider"]) as session:
            facts["inputs"] = _declarations(session.get_inputs())
            facts["outputs"] = _declarations(session.get_outputs())
            facts["producer"] = session.get_modelmeta().producer_name
            facts["request"] = _request(session, facts["weights"]["bytes"])
    except Error as error:
        facts["problem"] = str(error)
    facts["against_cuda_graphs"] = [
        f"{name}: {why}" for why, names in _NO_GRAPH.items() for name in sorted(names & set(index.operators))
    ] + [
        f"{one['name']}: {one['type']}"
        for one in (*facts["inputs"], *facts["outputs"])
        if "string" in one["type"] or not one["type"].startswith("tensor(")
    ]
    dimensions = [size for one in facts["inputs"] for size in one["shape"] if not isinstance(size, int)]
    facts["dynamic_dimensions"] = list(dict.fromkeys(size or "(unnamed)" for size in dimensions))
    return facts


def _declared_rows(model: ortmulti.Model, facts: Mapping[str, Any]) -> RowVerdict | None:
    """Return what the graph and the declaration say of the outputs' rows; None: the model cannot be opened."""
    if not facts["outputs"]:
        return None
    inputs, outputs = ([SimpleNamespace(**one) for one in facts[what]] for what in ("inputs", "outputs"))
    session = SimpleNamespace(get_inputs=lambda: inputs, get_outputs=lambda: outputs)
    return Rows(model, lambda: session, lambda _names, _feed: ()).of_batches(ortmulti.Batching(8), "none")


def _declared(facts: Mapping[str, Any]) -> list[SimpleNamespace]:
    return [SimpleNamespace(**{**one, "shape": [size or "any" for size in one["shape"]]}) for one in facts["inputs"]]


def _why_not_joined(model: ortmulti.Model, facts: Mapping[str, Any]) -> str:
    """Return why no two requests can be joined; empty: some may be, or the model cannot be opened."""
    from ortmulti.pool.configuration import batching_argument

    batching = ortmulti.Batching(8)
    try:
        check_inputs(_core.Pool(None, batching_argument(batching)), batching, model, _declared(facts))
    except Error as error:
        return str(error.public)
    return ""


def _advice(facts: Mapping[str, Any], verdict: RowVerdict | None, refused: str) -> list[str]:
    """Say how requests can run together, with what is known of the outputs' rows, and what they may look like."""
    if not facts["inputs"] or verdict is None:
        return []
    from ortmulti.pool.padding import paddable

    advice = []
    if refused:
        if "batching" not in facts:  # which says so
            advice.append(f"Requests cannot be joined: {refused}.")
    else:
        alone, unknown = verdict.reasons(), verdict.reasons("unknown")
        joined = [f"'{name}'" for name in verdict.outputs if name not in {*alone, *unknown}]
        if joined:
            which = f" for {', '.join(joined)} and no other output" if alone or unknown else ""
            advice.append(
                f"Requests{which} can be joined along dimension 0: ortmulti.load(..., batching=ortmulti.Batching(8))."
            )
        advice += [f"Requests for {name!r} run alone: {reason}." for name, reason in alone.items()]
        tries = "load tries it" if "batching" in facts else "--batching tries it, and so does load"
        advice += [
            f"It is open whether requests for {name!r} can be joined: {reason}; {tries}."
            for name, reason in unknown.items()
        ]
        for size, names in paddable({one.name: one.shape for one in _declared(facts)}).items():
            pad = ", ".join(f'"{name}": 0' for name in names)
            advice.append(
                f"Requests of different {size} can be joined if the model ignores what is padded, which load tries: "
                f"Batching(8, pad={{{pad}}})."
            )
    return [*advice, facts["request"]]


def _request(session: ortmulti.InferenceSession, weight_bytes: int) -> str:
    """Return a request to copy, which was run unless the model is large; or why there is none."""
    try:
        feed = sample_inputs(session.get_inputs())
    except Error as error:
        return f"No inputs can be made up: {error.public}."
    not_run = f", not run here since the weights take {size_text(weight_bytes)}" * (weight_bytes > _MOST_BYTES_RUN)

    def run(feed: dict[str, Any]) -> dict[str, Any]:
        session.run(None, {name: _plain(name, value) for name, value in feed.items()})
        return feed

    if not not_run:
        try:
            feed = first_fit(growing_inputs(session.get_inputs()), run)
        except Error as error:
            return f"No made-up inputs run: {error.public}."
    arrays = [f'"{name}": {_plain_text(_plain(name, value))}' for name, value in feed.items()]
    return f"A request to try{not_run}: pool.run({{{', '.join(arrays)}}})"


def _plain(name: str, value: Any) -> Any:
    """Return an array of one value, which is easily written: 1, but of a scalar whose name says which it is."""
    if value.dtype == object:
        return np.full(value.shape, "text", object)
    return value if value.size == 1 and has_named_integers(name) else np.ones_like(value)


def _plain_text(value: Any) -> str:
    if value.dtype == object:
        return f'np.full({value.shape}, "text", object)'
    if (value == 1).all():
        return f'np.ones({value.shape}, "{value.dtype}")'
    return f'np.full({value.shape}, {value.flat[0]}, "{value.dtype}")'


def _describe_batching(
    model: ortmulti.Model, verdict: RowVerdict | None, refused: str, options: ortmulti.SessionOptions
) -> tuple[dict[str, Any], RowVerdict | None]:
    """Try it, unless it is refused. Return the result, and what is known of the outputs' rows then."""
    if refused:
        return {"independent": None, "text": f"requests cannot be joined: {refused}", "outputs": {}}, verdict
    try:
        found = ortmulti.check_batching(model, ortmulti.Batching(8), options=options)
    except Error as error:
        text = f"it could not be tried with random inputs: {error.public}. Give ortmulti.check_batching your samples"
        return {"independent": None, "text": text, "outputs": {}}, verdict
    outputs = {name: asdict(output) for name, output in found.outputs.items()}
    return {"independent": found.independent, "text": str(found), "outputs": outputs}, found.rows


def _declarations(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": one.name, "type": one.type, "shape": list(one.shape)} for one in values]


def _show_model(facts: Mapping[str, Any]) -> None:
    weights = facts["weights"]
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    say(
        f"[bold]{escape(facts['model'])}[/bold]: {size_text(weights['bytes'])} of weights in {weights['tensors']} "
        f"tensors{_in_nodes(weights)}, opset {escape(opsets) or 'unknown'}, IR version {facts['ir_version']}"
    )
    if facts["problem"]:
        stderr().print(f"ONNX Runtime cannot open it on the CPU: {escape(facts['problem'])}", style="yellow")
    else:
        rows = [
            (what[:-1] if number == 0 else "", one["name"], one["type"], shape_text(one["shape"]))
            for what in ("inputs", "outputs")
            for number, one in enumerate(facts[what])
        ]
        dynamic = ", ".join(facts["dynamic_dimensions"]) or "none"
        say(table(["", "name", "type", "shape"], rows), f"Dynamic dimensions of the inputs: {escape(dynamic)}")
    say(f"Operators: {escape(', '.join(facts['operators'])) or 'none'}")
    if facts["external_files"]:
        say(f"Data files beside it: {escape(', '.join(facts['external_files']))}")
    say(*_sharing(weights))
    against = ", ".join(facts["against_cuda_graphs"])
    say(
        f"CUDA graphs: probably none, since the model has {escape(against)}."
        if against
        else "CUDA graphs: nothing against them was found; a pool on GPUs tries them."
    )
    if "batching" in facts:
        say(f"Batching along dimension 0: {escape(facts['batching']['text'])}.")
    say(*map(escape, facts["advice"]))


def _in_nodes(weights: Mapping[str, Any]) -> str:
    """Return how much lies in large attributes: of tree ensembles, Constant nodes, branches with these."""
    size = weights["attribute_bytes"]
    return f", and {size_text(size)} in attributes of nodes" if size else ""


def _sharing(weights: Mapping[str, Any]) -> Iterator[str]:
    """Yield which weights are shared, and which are not, as texts with rich's markup."""
    reasons = weights["not_shared"]
    if not weights["tensors"] and weights["attribute_bytes"]:
        yield "Sharing: the weights are in attributes of nodes, which each session has for itself."
    elif not weights["tensors"]:
        yield "Sharing: the model has no weights."
    elif not weights["shared_tensors"]:
        why = ":" if reasons else ", since each weight is smaller than 1 KiB."
        yield f"Sharing: sessions on a GPU cannot share the weights. Each one has its own copy{why}"
    elif weights["not_worth_sharing"]:
        yield f"Sharing: each session loads the model by itself: {escape(weights['not_worth_sharing'])}."
        return
    else:
        shared = f"{size_text(weights['shared_bytes'])} of {size_text(weights['bytes'])} of weights"
        yield f"Sharing: sessions on a GPU share {shared}.{' Not shared:' if reasons else ''}"
    for one in reasons[:_MOST_REASONS]:
        yield f"  - {escape(one['name'])}: {escape(one['reason'])}"
    if len(reasons) > _MOST_REASONS:
        yield f"  and {len(reasons) - _MOST_REASONS} more (--json)"


def shape_text(shape: Sequence[Any]) -> str:
    """Return a shape as Python writes a tuple, with the names of dynamic dimensions: (batch, 64)."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def run_command(
    model: ModelOrUrl,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="[NAME=]FILE",
            help="An .npy file for one input, or an .npz file with several (default: random). Repeatable.",
        ),
    ] = None,
    dimensions: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a dynamic dimension. Repeatable."),
    ] = None,
    batch: Batch = 1,
    sequence: Annotated[
        int | None,
        typer.Option(
            help=f"Size of other dynamic dimensions of random inputs (default: {SEQUENCE}, else "
            f"{' or '.join(map(str, LARGER))})."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:N, openvino:CPU, or all: the first GPU, or else the CPU.")
    ] = "all",
    repeat: Annotated[int, typer.Option(help="Runs that are timed, after a first one.")] = 20,
    output: Annotated[
        Path | None, typer.Option("--output", "--out", metavar="FILE", help="Write the outputs to an .npz file.")
    ] = None,
    custom_ops: CustomOps = None,
    as_json: AsJson = False,
) -> None:
    """Run a model with random or given inputs, and show its outputs and its latency."""
    if repeat < 1:
        raise InvalidArgument(f"--repeat is 1 or more, not {repeat}")
    if output is not None and output.suffix != ".npz":
        raise InvalidArgument(f"--output is an .npz file, not {str(output)!r}")
    given, sizes = _given(inputs or []), _sizes(dimensions or [])
    named = ortmulti.parse_devices(device)[0]
    begin = time.perf_counter()
    with working(f"loading {model}"):
        pool = ortmulti.load(model, named, options=session_options(custom_ops) if custom_ops else None)
    with pool, steps() as step:
        loading = time.perf_counter() - begin
        [session, *_] = pool.sessions
        given = _named(given, [one.name for one in session.get_inputs()])
        feeds = _feeds(session.get_inputs(), given, batch, sequence, sizes)

        def run(feed: dict[str, Any]) -> tuple[dict[str, Any], list[Any], float]:
            begin = time.perf_counter()
            outputs = pool.run(None, feed)
            return feed, outputs, time.perf_counter() - begin

        feed, outputs, first = first_fit(feeds, run)
        timed = []
        for number in range(repeat):
            step(number, repeat, "")
            _, outputs, seconds = run(feed)
            timed.append(seconds)
        results = dict(zip((one.name for one in session.get_outputs()), outputs, strict=True))
    if output is not None:
        for name, value in results.items():
            if not isinstance(value, np.ndarray):
                raise InvalidType(f"output {name!r} is a {type(value).__name__}, which an .npz file cannot hold")
        write_arrays(output, results)
    document = {
        "model": str(model),
        "device": str(named),
        "inputs": [_array_facts(name, array, name in given) for name, array in feed.items()],
        "outputs": [_array_facts(name, value) for name, value in results.items()],
        "seconds": {
            "loading": loading,
            "first_run": first,
            "median": statistics.median(timed),
            "p99": float(np.percentile(timed, 99)),
            "runs": len(timed),
        },
    }
    if as_json:
        print_json(document)
    else:
        _show_run(document, results)
    if output is not None:
        stderr().print(f"outputs: {output}", markup=False)


def _given(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals:
            name, file = "", text
        if not Path(file).is_file():
            raise InvalidArgument(f"the input file {file!r} does not exist")
        if file.endswith(".npz"):
            found.update(read_arrays(file))
        elif file.endswith(".npy"):
            found[name] = np.load(file, allow_pickle=False)
        else:
            raise InvalidArgument(f"--input is [NAME=]FILE.npy or FILE.npz, not {text!r}")
    return found


def _named(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a file without a name is for the only input."""
    if "" in given and len(names) != 1:
        raise InvalidArgument(f"--input needs NAME=FILE.npy: the model has the inputs {', '.join(names)}")
    return {name or names[0]: value for name, value in given.items()}


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not name or not size.isdecimal():
            raise InvalidArgument(f"--dim is NAME=SIZE, such as batch=8, not {text!r}")
        sizes[name] = int(size)
    return sizes


def _feeds(
    declared: Sequence[Any], given: Mapping[str, Any], batch: int, sequence: int | None, sizes: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the inputs of a run in the model's order: the given ones, and random ones for the others. Without a size
    in ``sequence``, larger ones follow.
    """
    names = [one.name for one in declared]
    if unknown := sorted(given.keys() - set(names)):
        raise InvalidArgument(f"the model has no input {', '.join(unknown)}; it has {', '.join(names)}")
    others = [one for one in declared if one.name not in given]
    if sequence is None:
        tries = growing_inputs(others, batch, dimensions=sizes)
    else:
        tries = iter([sample_inputs(others, batch, sequence, dimensions=sizes)])
    for made in tries:
        yield {name: given[name] if name in given else made[name] for name in names}


def _array_facts(name: str, value: Any, given: bool | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name, "type": type(value).__name__, "shape": None}
    if isinstance(value, np.ndarray):
        facts |= {"type": str(value.dtype), "shape": list(value.shape)}
    return facts if given is None else facts | {"given": given}


def _show_run(document: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    seconds = document["seconds"]
    say(
        f"[bold]{escape(document['model'])}[/bold] on {document['device']}: a run takes "
        f"{seconds['median'] * 1e3:.3g} ms (median of {seconds['runs']}; p99 {seconds['p99'] * 1e3:.3g} ms). Loading "
        f"took {seconds['loading']:.3g} s, the first run {seconds['first_run'] * 1e3:.3g} ms."
    )
    rows = []
    for what in ("inputs", "outputs"):
        for number, one in enumerate(document[what]):
            shape = "" if one["shape"] is None else shape_text(one["shape"])
            values = _values_text(results[one["name"]]) if what == "outputs" else "given" if one["given"] else "random"
            rows.append(("" if number else what[:-1], one["name"], one["type"], shape, values))
    say(table(["", "name", "type", "shape", "values"], rows))


def _values_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = np.array2string(value.ravel(), threshold=4, edgeitems=2, precision=4)
    return " ".join(str(value).split())[:60]
