"""Models in object stores: S3, Google Cloud Storage, Azure, and behind HTTP.

`load` and the others take a URL such as ``s3://bucket/path/model.onnx`` as they take a path. docs/how-to/remote.md has
credentials, copies on the disk, and what a load costs.
"""

from __future__ import annotations

from ortmulti.remote.file import RemoteFile

__all__ = ["RemoteFile"]
