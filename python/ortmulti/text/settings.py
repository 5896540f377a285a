"""What the files of an exported model of texts say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Activation", "Pooling", "Settings", "Task", "is_export", "read_settings"]

Task: TypeAlias = Literal["embedding", "ranking", "classification"]
Pooling: TypeAlias = Literal["cls", "mean", "last", "max", "mean_sqrt_len", "weightedmean"]
Activation: TypeAlias = Literal["sigmoid", "softmax", "none"]


@dataclass(frozen=True)
class Settings:
    """An exported model of texts: its files, and what is to be made of its outputs.

    Attributes:
        folder: The export.
        name: The folder's name.
        model: The ONNX file.
        tokenizer: The file ``tokenizer.json``.
        task: What the model is for.
        max_length: The most tokens of a text, special ones included.
        inputs: The names of the model's inputs.
        output: The name of the output that is used.
        pooling: How a text's vector is made of those of its tokens; None: the output is the vector, or the logits.
        normalize: Whether vectors are brought to the length 1.
        include_prompt: Whether a prompt's tokens are pooled, too.
        prompts: Texts that are put before each text, by name.
        default_prompt: The name of the one that is used where none is asked for.
        lower_case: Whether texts are made lower case before they are tokenized.
        labels: The names of the classes.
        activation: What makes scores of logits.
        pad_token: The token that fills up.
        pad_side: Where shorter texts are filled up.
        model_type: The architecture, such as ``"bert"``; empty where nothing says so.
    """

    folder: Path
    name: str
    model: Path
    tokenizer: Path
    task: Task
    max_length: int
    inputs: tuple[str, ...]
    output: str
    pooling: Pooling | None
    normalize: bool
    include_prompt: bool
    prompts: Mapping[str, str]
    default_prompt: str | None
    lower_case: bool
    labels: tuple[str, ...]
    activation: Activation
    pad_token: int
    pad_side: Literal["right", "left"]
    model_type: str


def is_export(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder looks like an exported model of texts: it has a tokenizer.json and an ONNX file."""
    raise NotImplementedError


def read_settings(
    folder: str | os.PathLike[str],
    *,
    file: str | None = None,
    task: Task | None = None,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
) -> Settings:
    """Read the settings of an export; arguments take the place of what its files say.

    Raises:
        NoSuchFile: The folder or a file that is needed is missing.
        InvalidArgument: A file says what cannot be; the message names file and field.
    """
    raise NotImplementedError
