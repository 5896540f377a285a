"""What the files of an exported model of texts say."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ortmulti import _core, checks
from ortmulti.errors import InvalidArgument, NoSuchFile
from ortmulti.pool.row_rules import QUANTIZING
from ortmulti.text import files
from ortmulti.text.files import Fields
from ortmulti.text.modules import (
    VECTOR,
    Activation,
    Layer,
    Module,
    Pooling,
    Poolings,
    check_pooling,
    read_activation,
    read_layers,
    read_modules,
    read_pooling,
)

__all__ = ["Settings", "Side", "Task", "find_files", "is_export", "read_settings"]

Task: TypeAlias = Literal["embedding", "ranking", "classification"]
Side: TypeAlias = Literal["right", "left"]

_TASKS: tuple[Task, ...] = ("embedding", "ranking", "classification")
_SIDES: dict[str, Side] = {"right": "right", "left": "left"}

_MODEL = "model.onnx"
_TOKENIZER = "tokenizer.json"
_OF_TOKENS = ("last_hidden_state", "token_embeddings")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
# Of these the first position is that behind the padding token's number.
_SHIFTED = {"camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta"}
_SHIFTED |= {"roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
_FLOAT16 = 10  # of ONNX's element types
_LENGTH = 512  # where nothing says how long texts may be
_TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


@dataclass(frozen=True)
class Settings:
    """An exported model of texts: its files, and what is to be made of its outputs.

    Attributes:
        folder: The export.
        name: The folder's name; in the Hub's cache that of the repository there.
        model: The ONNX file.
        tokenizer: The file ``tokenizer.json``.
        task: What the model is for.
        max_length: The most tokens of a text, special ones included.
        inputs: The names of the model's inputs.
        packed: Whether the model computes real tokens alone, as `ortmulti.text.fuse` makes it for GPUs, so that padding
            costs nothing. With float32 it does: ONNX Runtime's attention has scores of padding then.
        output: The name of the output that is used.
        pooling: How a text's vector is made of those of its tokens; several: the vectors of each, joined; None: the
            output is the vector, or the logits.
        layers: The linear layers that follow.
        normalize: Whether vectors are brought to the length 1.
        include_prompt: Whether a prompt's tokens are pooled, too.
        prompts: Texts that are put before each text, by name.
        default_prompt: The name of the one that is used where none is asked for.
        dimensions: So many first elements of a vector are kept where no number is asked for; None: all.
        lower_case: Whether texts are made lower case before they are tokenized.
        labels: The names of the classes.
        activation: What makes scores of logits: ``"sigmoid"``, ``"softmax"``, ``"tanh"``, ``"relu"``, ``"none"``. Any
            other name is of one that is not computed here.
        pad_token: The token that fills up.
        pad_side: Where shorter texts are filled up.
        truncation_side: Where longer texts are cut.
        quantizes: Whether the model scales all texts of a run together, as those of `quantize_dynamic` do.
        model_type: The architecture, such as ``"bert"``; empty where nothing says so.
    """

    folder: Path
    name: str
    model: Path
    tokenizer: Path
    task: Task
    max_length: int
    inputs: tuple[str, ...]
    packed: bool
    output: str
    pooling: Poolings | None
    layers: tuple[Layer, ...]
    normalize: bool
    include_prompt: bool
    prompts: Mapping[str, str]
    default_prompt: str | None
    dimensions: int | None
    lower_case: bool
    labels: tuple[str, ...]
    activation: Activation
    pad_token: int
    pad_side: Side
    truncation_side: Side
    quantizes: bool
    model_type: str

    def __str__(self) -> str:
        """Say what the model does: ``"embedding, mean of the tokens, 256 tokens at most"``."""
        how = [f"the output {self.output!r}" if self.pooling is None else f"{self.pooling_text} of the tokens"]
        how += [f"a layer to {layer.outputs}" for layer in self.layers]
        if self.task == "embedding":
            how += ["normalized"] * self.normalize
        else:
            how = [f"{len(self.labels)} label{'s' * (len(self.labels) != 1)}", self.activation]
        how.append(f"{self.max_length} tokens at most")
        if self.prompts:
            how.append(f"prompts {', '.join(map(repr, self.prompts))}")
        return ", ".join([self.task, *how])

    @property
    def pooling_text(self) -> str:
        """The pooling: ``"mean"``, ``"cls+mean"``; empty where the model has it."""
        return self.pooling or "" if isinstance(self.pooling, str | None) else "+".join(self.pooling)

    def facts(self) -> dict[str, Any]:
        """Return the attributes for `json.dumps`."""
        paths = {"folder": str(self.folder), "model": str(self.model), "tokenizer": str(self.tokenizer)}
        layers = [{**layer._asdict(), "file": str(layer.file)} for layer in self.layers]
        return {**asdict(self), **paths, "layers": layers}


class Found(NamedTuple):
    """What a folder has of an export.

    Attributes:
        models: Its ONNX files, the one that is used first.
        tokenizer: The file ``tokenizer.json``.
        modules: The classes of modules.json.
    """

    models: list[Path]
    tokenizer: Path | None
    modules: list[str]


def find_files(folder: str | os.PathLike[str]) -> Found:
    """Return what a folder has of an export, whether it can be loaded or not."""
    root = Path(folder)
    modules: list[Module] = []
    with contextlib.suppress(InvalidArgument, NoSuchFile):
        modules = read_modules(root)
    places = _places(root, modules)
    models = sorted(_models(places), key=lambda file: file != _find(places, _MODEL))
    return Found(models, _find(places, _TOKENIZER), [one.kind for one in modules])


def is_export(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder looks like an exported model of texts: it has a tokenizer.json and an ONNX file."""
    try:
        found = find_files(folder)
    except OSError:
        return False
    return found.tokenizer is not None and bool(found.models)


def read_settings(
    folder: str | os.PathLike[str],
    *,
    file: str | os.PathLike[str] | None = None,
    task: Task | None = None,
    pooling: Pooling | Sequence[Pooling] | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
) -> Settings:
    """Read the settings of an export; arguments take the place of what its files say.

    Args:
        folder: As Hugging Face's tools lay it out: ``model.onnx`` or ``onnx/model.onnx``, ``tokenizer.json``,
            ``config.json``, and what sentence-transformers adds.
        file: The ONNX file, where there are several: ``"onnx/model_quantized.onnx"``. Default: ``model.onnx``.
        task: What the model is for. Default: as ``config.json`` and ``modules.json`` say.
        pooling: How a text's vector is made; a list joins several. Default: as the pooling's ``config.json`` says;
            without that the model's own output ``sentence_embedding``, or the mean.
        normalize: Whether vectors are brought to the length 1. Default: as ``modules.json`` says.
        max_length: The most tokens of a text. Default: the least that the files say.

    Raises:
        NoSuchFile: The folder, the model or the tokenizer is missing.
        InvalidArgument: A file says what cannot be; the message names file and field.
    """
    if task is not None:
        checks.choice("task", task, _TASKS)
    checks.boolean_or_none("normalize", normalize)
    root = Path(folder)
    if not root.is_dir():
        what = "give its folder, and the file by file=" if root.exists() else "give that of an exported model of texts"
        raise NoSuchFile(f"there is no folder '{root}': {what}")
    modules = read_modules(root)
    places = _places(root, modules)
    model = _model(root, places, file)
    tokenizer = _find(places, _TOKENIZER)
    if tokenizer is None:
        raise NoSuchFile(
            f"'{root}' has no {_TOKENIZER}: export the model with its tokenizer, or save that by "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    config = files.read(_find(places, "config.json") or root / "config.json")
    of_tokenizer = files.read(tokenizer.parent / "tokenizer_config.json")
    of_transformer = _of_transformer(places)
    of_library = files.read(root / "config_sentence_transformers.json")
    chosen = task or _task(config, of_library, bool(modules))
    nodes = _core.read_nodes(str(model))
    if unknown := [name for name in nodes.inputs if name not in _INPUTS]:
        raise InvalidArgument(
            f"{model} has the input {unknown[0]!r}, and texts give {', '.join(_INPUTS)}: run it by ortmulti.load"
        )
    if "input_ids" not in nodes.inputs:
        raise InvalidArgument(f"{model} has no input 'input_ids': run it by ortmulti.load")
    output, pooled, include_prompt = _output(chosen, nodes.outputs, check_pooling(pooling), modules, model)
    prompts = of_library.named_texts("prompts")
    labels = _labels(config, chosen)
    return Settings(
        folder=root,
        name=_name(root.resolve()),
        model=model,
        tokenizer=tokenizer,
        task=chosen,
        max_length=_max_length(config, of_tokenizer, of_transformer, max_length),
        inputs=tuple(nodes.inputs),
        packed=_is_packed(model, nodes),
        output=output,
        pooling=pooled,
        layers=() if pooled is None else read_layers(modules, model),
        normalize=any(one.kind == "Normalize" for one in modules) if normalize is None else normalize,
        include_prompt=include_prompt,
        prompts=prompts,
        default_prompt=of_library.one_of("default_prompt_name", {name: name for name in prompts}, None),
        dimensions=of_library.size("truncate_dim"),
        lower_case=of_transformer.flag("do_lower_case", False),
        labels=labels,
        activation=_activation(config, of_library, chosen, len(labels)),
        pad_token=files.pad_token(config, of_tokenizer),
        pad_side=of_tokenizer.one_of("padding_side", _SIDES, "right"),
        truncation_side=of_tokenizer.one_of("truncation_side", _SIDES, "right"),
        quantizes=any(node.type in QUANTIZING for node in nodes.nodes),
        model_type=config.text("model_type"),
    )


def _is_packed(model: Path, nodes: _core.Nodes) -> bool:
    if all(node.type != "com.microsoft:RemovePadding" for node in nodes.nodes):
        return False
    return any(tensor.data_type == _FLOAT16 for tensor in _core.index_model(str(model)).initializers)


def _name(root: Path) -> str:
    cached = root.parent.parent.name  # models--OWNER--NAME/snapshots/REVISION
    return (
        cached.rpartition("--")[2] if root.parent.name == "snapshots" and cached.startswith("models--") else root.name
    )


def _places(root: Path, modules: list[Module]) -> list[Path]:
    """Return the folders in which the transformer's files may be."""
    of_transformer = [one.folder for one in modules[:1] if one.folder != root]
    return [place for base in (*of_transformer, root) for place in (base, base / "onnx")]


def _find(places: list[Path], name: str) -> Path | None:
    return next((file for place in places if (file := place / name).is_file()), None)


def _models(places: list[Path]) -> list[Path]:
    return sorted(file for place in places if place.is_dir() for file in place.glob("*.onnx") if file.is_file())


def _model(root: Path, places: list[Path], file: str | os.PathLike[str] | None) -> Path:
    if file is not None:
        checks.text("file", file)
        if (found := _find([root, *places], os.fspath(file))) is None:
            raise NoSuchFile(f"'{root}' has no file '{file}'; it has {_listed(root, places)}")
        return found
    if (found := _find(places, _MODEL)) is not None:
        return found
    models = _models(places)
    if not models:
        raise NoSuchFile(
            f"'{root}' has no ONNX file, {_MODEL} or onnx/{_MODEL}: export the model, for example by "
            "optimum-cli export onnx"
        )
    if len(models) > 1:
        raise InvalidArgument(f"'{root}' has several ONNX files, {_listed(root, places)}: choose one by file=")
    return models[0]


def _listed(root: Path, places: list[Path]) -> str:
    return ", ".join(str(file.relative_to(root)) for file in _models(places)) or "no ONNX file"


def _of_transformer(places: list[Path]) -> Fields:
    """Return sentence-transformers' settings of the transformer."""
    names = [f"sentence_{name}_config.json" for name in _TRANSFORMERS]
    return files.read(next((file for name in names if (file := _find(places, name))), places[0] / names[0]))


def _task(config: Fields, of_library: Fields, has_modules: bool) -> Task:
    kind = of_library.text("model_type")
    if kind not in ("", "SentenceTransformer", "CrossEncoder"):
        raise of_library.wrong("model_type", "'SentenceTransformer' or 'CrossEncoder'")
    classifies = any(one.endswith("ForSequenceClassification") for one in config.texts("architectures"))
    if kind == "CrossEncoder" or (classifies and (kind == "" or not has_modules)):
        return "ranking" if len(_labels(config, "classification")) == 1 else "classification"
    return "embedding"


def _labels(config: Fields, task: Task) -> tuple[str, ...]:
    """Return the classes' names, in the order of the logits."""
    if task == "embedding":
        return ()
    names = config.named_texts("id2label")
    if not names:
        count = config.size("num_labels") or (1 if task == "ranking" else 2)  # transformers leaves out its default
        return tuple(f"LABEL_{i}" for i in range(min(count, 1 << 20)))
    try:
        return tuple(names[str(i)] for i in range(len(names)))
    except KeyError:
        raise config.wrong("id2label", f"an object of the names of '0' to '{len(names) - 1}'") from None


def _activation(config: Fields, of_library: Fields, task: Task, labels: int) -> Activation:
    if task == "embedding":
        return "none"
    fields = config.inner("sentence_transformers")
    for name, place in (
        ("activation_fn", of_library),
        ("activation_fn", fields),
        ("sbert_ce_default_activation_function", config),
    ):
        if found := read_activation(place, name):
            if task == "ranking" or found != "none":  # written for every model; a class has a probability all the same
                return found
            break
    if task == "ranking" or labels == 1 or config.text("problem_type") == "multi_label_classification":
        return "sigmoid"
    return "softmax"


def _output(
    task: Task, outputs: list[str], pooling: Poolings | None, modules: list[Module], model: Path
) -> tuple[str, Poolings | None, bool]:
    """Return the output that is used, how it is pooled, and whether with a prompt's tokens."""
    if not outputs:
        raise InvalidArgument(f"{model} has no output")
    if task != "embedding":
        if pooling is not None:
            raise InvalidArgument(f"pooling is for embeddings, and the task is {task}")
        return "logits" if "logits" in outputs else outputs[0], None, True
    if VECTOR in outputs and pooling is None:
        return VECTOR, None, True  # with all modules
    of_tokens = next((name for name in _OF_TOKENS if name in outputs), outputs[0])
    if of_tokens == "logits":
        raise InvalidArgument(
            f"{model} has the output 'logits' and no vectors: export it for feature-extraction, or say what it is for "
            "by task="
        )
    return of_tokens, *read_pooling(modules, pooling)


def _max_length(config: Fields, of_tokenizer: Fields, of_transformer: Fields, given: int | None) -> int:
    positions = config.size("max_position_embeddings", -1)  # -1 is XLNet's
    positions = None if positions is not None and positions < 1 else positions
    if positions is not None and config.text("model_type") in _SHIFTED:
        positions = max(1, positions - (config.size("pad_token_id", 0) or 0) - 1)
    if given is not None:
        return checks.integer("max_length", given, 1, checks.INT_MAX if positions is None else positions)
    said = of_transformer.size("max_seq_length") or of_tokenizer.size("model_max_length")
    return min((one for one in (said, positions) if one is not None), default=_LENGTH)
