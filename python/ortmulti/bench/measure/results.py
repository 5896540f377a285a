"""Result files: their content, and writing them."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmulti._runtime.regular_file import write_atomically
from ortmulti.bench.measure import machine
from ortmulti.remote.remote_errors import without_secrets

# Raised when a field that a report reads changes its meaning or goes; new fields alone do not raise it.
SCHEMA_VERSION = 3


def model_facts(model: Path, external: Sequence[Path]) -> dict[str, Any]:
    """Return a model's facts for a result.

    Args:
        model: the .onnx file.
        external: the files of weights that it names.
    """
    return {
        "name": model.stem,
        "path": str(model),
        "bytes": model.stat().st_size,
        "external_bytes": sum(file.stat().st_size for file in external),
    }


def document(kind: str, **content: Any) -> dict[str, Any]:
    """Return a result with the fields that every result has.

    Args:
        kind: the kind of measurement: "create", "gil", "repository", "run", "sleep" or "torch".
        content: the fields of that kind.

    Returns:
        "schema_version", "kind", "created" (UTC), "command", "machine", "releases" (see
        `ortmulti.bench.measure.machine.describe`)
        and `content`. Results are published: paths in "command", "path" and "model" keep only the last part, or enough
        parts to distinguish the models. URLs lack what may be secret.
    """
    description = machine.describe()
    whole = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["ortmulti", *sys.argv[1:]],
        "releases": {"python": description["python"]["version"], **description.pop("releases")},
        "machine": description,
        **content,
    }
    short = _short_names([model["path"] for model in content.get("models", [])])
    return {key: _without_folders(value, key, short) for key, value in whole.items()}


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the shortest ends of the paths that differ from each other."""
    parts = 1
    while True:
        short = {path: "/".join(Path(path).parts[-parts:]) for path in paths}
        if len(set(short.values())) == len(short):
            return short
        parts += 1


def _without_folders(value: Any, key: str, short: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {inner: _without_folders(item, inner, short) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_folders(item, key, short) for item in value]
    if isinstance(value, str) and key == "command" and "://" in value:
        return without_secrets(value)
    if isinstance(value, str) and key in ("command", "path", "model"):
        if value in short or value.startswith("/"):
            return short.get(value, Path(value).name)
        name, equals, path = value.partition("=")  # an option with its value: VERSION=FOLDER, --json=FILE
        return f"{name}{equals}{Path(path).name}" if path.startswith("/") else value
    return value


def save(result: dict[str, Any], path: Path) -> None:
    """Write a result as JSON."""
    text = json.dumps(result, indent=1) + "\n"
    write_atomically(path, lambda file: file.write_text(text))
