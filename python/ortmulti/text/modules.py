"""The modules of sentence-transformers that follow the model: pooling, linear layers, the length 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from ortmulti import checks
from ortmulti.errors import InvalidArgument, InvalidType, NoSuchFile
from ortmulti.text import files
from ortmulti.text.files import Fields

__all__ = [
    "ACTIVATIONS",
    "VECTOR",
    "Activation",
    "Layer",
    "Module",
    "Pooling",
    "Poolings",
    "check_pooling",
    "read_activation",
    "read_layers",
    "read_modules",
    "read_pooling",
]

Pooling: TypeAlias = Literal["cls", "mean", "last", "max", "mean_sqrt_len", "weightedmean"]
Poolings: TypeAlias = Pooling | tuple[Pooling, ...]
"""One, or several whose vectors are joined."""
Activation: TypeAlias = str
"""A key of `ACTIVATIONS`' values, or the name of one that is not computed here, as a file has it."""

_POOLINGS: tuple[Pooling, ...] = ("cls", "mean", "last", "max", "mean_sqrt_len", "weightedmean")
# The words of sentence-transformers' files: since 5.4 in one field, before in one for each. Joined in this order then.
_MODES: dict[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
ACTIVATIONS = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax", "Tanh": "tanh", "ReLU": "relu"}
"""Those of PyTorch that are computed here."""
_WEIGHTS = "model.safetensors"
VECTOR = "sentence_embedding"
"""The output that has all modules, and what sentence-transformers calls their result."""


class Module(NamedTuple):
    """One of modules.json: its class, and the folder with its configuration."""

    kind: str
    folder: Path


class Layer(NamedTuple):
    """A linear layer behind the pooling.

    Attributes:
        file: Its weights, as safetensors.
        inputs, outputs: The elements of a vector before and behind it.
        bias: Whether it adds something.
        activation: What follows it.
    """

    file: Path
    inputs: int
    outputs: int
    bias: bool
    activation: Activation


def read_modules(root: Path) -> list[Module]:
    """Read the modules of an export; none, if it has no modules.json."""
    file = root / "modules.json"
    values = files.read_value(file, [])
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise InvalidArgument(f"{file} is a list of objects, one for each module: mend the file")
    found = [Fields(file, one) for one in values]
    return [Module(one.text("type").rpartition(".")[2], files.inside(root, one.text("path"), file)) for one in found]


def check_pooling(pooling: object) -> Poolings | None:
    """Return the argument ``pooling``: one, or a list of several."""
    several = [pooling] if pooling is None or isinstance(pooling, str) else pooling
    if not isinstance(several, list | tuple) or not several:
        raise InvalidType(f"pooling is one of {', '.join(map(repr, _POOLINGS))}, or a list of several, not {pooling!r}")
    for one in several if pooling is not None else ():
        checks.choice("pooling", one, _POOLINGS)
    return several[0] if len(several) == 1 else tuple(several)


def read_pooling(modules: Sequence[Module], given: Poolings | None) -> tuple[Poolings, bool]:
    """Return how the tokens' vectors become one, and whether those of a prompt do, too."""
    file = next((one.folder / "config.json" for one in modules if one.kind == "Pooling"), None)
    if file is None:
        return given or "mean", True
    if given is None and not file.exists():
        raise NoSuchFile(f"there is no file '{file}', which modules.json names: get the whole export, or give pooling=")
    fields = files.read(file)
    include_prompt = fields.flag("include_prompt", True)
    if given is not None:
        return given, include_prompt
    if isinstance(fields.any("pooling_mode"), str):
        return fields.one_of("pooling_mode", _MODES, "mean"), include_prompt
    if not set(several := fields.texts("pooling_mode")) <= _MODES.keys():
        raise fields.wrong("pooling_mode", f"of {', '.join(map(repr, _MODES))}")
    modes = [_MODES[one] for one in several] or [mode for name, mode in _FLAGS.items() if fields.flag(name, False)]
    return (tuple(modes) if len(modes) > 1 else modes[0] if modes else "mean"), include_prompt


def read_activation(fields: Fields, name: str) -> Activation:
    """Return the activation that a field names by its class; ``""``: it names none."""
    text = fields.text(name)
    short = text.rpartition(".")[2]
    return ACTIVATIONS.get(short, short) if text.startswith("torch.") else text


def read_layers(modules: Sequence[Module], model: Path) -> tuple[Layer, ...]:
    """Return the linear layers behind the pooling.

    Raises:
        InvalidArgument: There is another module, which the model lacks, or a layer that is not computed here.
        NoSuchFile: A layer's weights are missing.
    """
    found = []
    for place, one in enumerate(modules):
        if place and one.kind not in ("Pooling", "Normalize", "Dropout", "Dense"):
            raise _lacks(one, model, "")
        if one.kind != "Dense":
            continue
        fields = files.read(one.folder / "config.json")
        inputs, outputs = fields.size("in_features"), fields.size("out_features")
        activation = read_activation(fields, "activation_function") or "tanh"  # as the class has it
        if activation not in ACTIVATIONS.values():
            raise _lacks(one, model, f", with the activation {activation}")
        if {fields.text(f"module_{way}put_name", VECTOR) for way in ("in", "out")} != {VECTOR}:
            raise _lacks(one, model, ", which is not for a text's vector")
        if any(before.kind == "Normalize" for before in modules[:place]):
            raise _lacks(one, model, " behind Normalize")
        if inputs is None or outputs is None:
            raise fields.wrong("in_features" if inputs is None else "out_features", "a number of 1 or more")
        if not (file := one.folder / _WEIGHTS).is_file():
            raise NoSuchFile(
                f"there is no file '{file}', with the weights of a module Dense: load and save the model by "
                "sentence-transformers, SentenceTransformer(...).save_pretrained(...), which writes it"
            )
        found.append(Layer(file, inputs, outputs, fields.flag("bias", True), activation))
    return tuple(found)


def _lacks(module: Module, model: Path, which: str) -> InvalidArgument:
    return InvalidArgument(
        f"modules.json has a module {module.kind} in '{module.folder.name}'{which}, which {model} lacks: export the "
        f"whole model, so that it has an output {VECTOR!r}"
    )
