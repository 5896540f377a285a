"""Reports of a diagnosis: in the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortmulti._runtime.regular_file import read_json
from ortmulti.bench.measure import results
from ortmulti.errors import InvalidArgument, NoSuchFile

_MAX_BYTES = 1 << 26


def load_document(path: Path) -> dict[str, Any]:
    """Read a diagnosis that `ortmulti diagnose --json` has written.

    Args:
        path: the file.

    Returns:
        The document; the reports take it as it is. They raise `InvalidArgument` if a field is missing or wrong.

    Raises:
        NoSuchFile: there is no such file.
        InvalidArgument: it is not a diagnosis, has more than 64 MiB, or is of another release.
    """
    try:
        document = read_json(path, _MAX_BYTES)
        json.dumps(document, allow_nan=False)
    except FileNotFoundError as error:
        raise NoSuchFile(f"result file {path} does not exist") from error
    except OSError as error:
        raise NoSuchFile(f"result file {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not a result file: {error}") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != "diagnose":
        raise InvalidArgument(f"{path} is a result of kind {kind!r}, not a diagnosis")
    if (version := document.get("schema_version")) != results.SCHEMA_VERSION:
        raise InvalidArgument(f"{path} has schema version {version}; this release reads {results.SCHEMA_VERSION}")
    return document  # type: ignore[no-any-return]
