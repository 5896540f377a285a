"""Has ONNX Runtime save a model as it has optimized it, for what loading that takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import _session

# protobuf's messages end at 2 GiB; tensors from this size on go into a file beside the model.
_EXTERNAL_BYTES = 1 << 10


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Saves the optimized model.

    Args:
        spec: "model" and "target" (paths), "device" and "settings" (the fields of `SessionSettings`).

    Returns:
        "bytes": what it takes on the disk.
    """
    from ortmulti import SessionOptions

    target = Path(spec["target"])

    def change(options: SessionOptions) -> None:
        options.optimized_model_filepath = str(target)
        name = f"{target.stem}.data"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", name)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_EXTERNAL_BYTES)
        )

    _session.create(spec, change)
    return {"bytes": sum(file.stat().st_size for file in target.parent.iterdir())}
