"""One measurement from the beginning: what a process takes to its first answer, and what memory it needs then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.tools.tune import outputs
from ortmulti.tools.tune.target import Subject


def first_answer(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the model ready and runs it once, in a process that has done nothing else.

    Args:
        spec: That of `Subject`, with "outputs" (where they are written) and "spawned" (when the process was started, in
            seconds of `time.monotonic`).

    Returns:
        Seconds: "first_answer", since the process was started.
    """
    with Subject(spec) as subject:
        answer = subject.run()
        answered = time.monotonic() - spec["spawned"]
        outputs.save(answer, Path(spec["outputs"]))
        return {"first_answer": answered}


def memory(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the model ready and runs it a few times.

    Args:
        spec: That of `Subject`, with "outputs".

    Returns:
        Bytes: "pss", by how much the process has grown since it had imported the package; by device "gpu_memory", by
        how much that in use has grown, and "gpu_free".
    """
    from ortmulti import _core
    from ortmulti.tools.measure.memory import gpu_memory_growth, gpu_memory_used, process_memory

    pss = process_memory().pss
    used = gpu_memory_used()
    with Subject(spec) as subject:
        outputs.save(subject.warm_up(), Path(spec["outputs"]))
        grown = process_memory().pss - pss
        gpus = [device for device in spec["devices"] if device != "cpu"]
        return {
            "pss": grown,
            "gpu_memory": gpu_memory_growth(used, gpu_memory_used(), spec["devices"]),
            "gpu_free": {device: _core.cuda_memory(int(device.partition(":")[2]))[0] for device in gpus},
        }
