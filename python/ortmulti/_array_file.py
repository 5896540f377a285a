"""Files of arrays: a model's inputs, by their names."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmulti.errors import InvalidArgument, NoSuchFile


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file.

    Raises:
        NoSuchFile: it cannot be read.
        InvalidArgument: it is no such file, is damaged, or holds Python objects.
    """
    try:
        with path.open("rb") as file:  # np.load would leave it open where it fails
            content = np.load(file)
            if isinstance(content, np.lib.npyio.NpzFile):
                return {name: content[name] for name in content.files}
        reason = "it holds one array without a name"
    except OSError as error:
        raise NoSuchFile(f"the inputs '{path}' cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error)
    raise InvalidArgument(f"'{path}' is no .npz file with an array for each input: {reason}")
