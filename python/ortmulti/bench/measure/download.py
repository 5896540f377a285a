"""A model of an object store as files, which other strategies than ortmulti's need."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ortmulti import _core
from ortmulti.remote.copies import copy_range, ranges
from ortmulti.remote.file import RemoteFile, side_by_side
from ortmulti.remote.place import Place, place_of


def download(url: str, folder: Path) -> Path:
    """Download a model and its external data, in ranges of 8 MiB side by side.

    Returns:
        The model's path in the folder.

    Raises:
        As `RemoteFile`; InvalidProtobuf: It is not an ONNX model.
    """
    place = place_of(url)
    model = folder / place.name.rpartition("/")[2]
    _fetch(place, model)
    locations = [*map(os.fsdecode, _core.index_model(_core.file_source(str(model))).external_locations)]
    for location, beside in zip(locations, place.beside(locations), strict=True):
        file = folder / location
        file.parent.mkdir(parents=True, exist_ok=True)
        _fetch(beside, file)
    return model


def _fetch(place: Place, path: Path) -> None:
    file = RemoteFile.at(place)
    path.touch()
    os.truncate(path, file.size)  # a size that the disk cannot have is an error here
    side_by_side([partial(copy_range, file, path, *part) for part in ranges(0, file.size)], place.link)
