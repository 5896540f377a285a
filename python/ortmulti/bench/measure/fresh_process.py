"""Runs a function in a fresh Python process and returns its result."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti._runtime.child_process import ChildProcess, tail
from ortmulti.errors import Error

# numpy is loaded beforehand: onnxruntime and ortmulti both need it, and neither's import should be charged with it.
# The import of ortmulti is timed here because nothing of this package can run before it.
_LAUNCH = """
import json, sys, time
sys.path.extend(path for path in {path!r} if path and path not in sys.path)
import numpy
begin = time.perf_counter()
import ortmulti
{first}
import_seconds = time.perf_counter() - begin
from {module} import measure
from ortmulti.bench.measure.fresh_process import answer
sys.exit(answer(measure, import_seconds))
"""


class MeasurementError(Error):
    """A measurement's process failed.

    Attributes:
        stderr: the end of the process's standard output and error.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


def run(
    module: str,
    spec: dict[str, Any],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    first: str = "",
) -> dict[str, Any]:
    """Call ``measure(spec)`` of a module in a fresh process and return its result.

    The result is passed in a file, so a library's output cannot damage it. The process has its own process group, which
    is ended with it, so no child outlives this call.

    Args:
        module: the module's full name.
        spec: the argument, as data for JSON.
        timeout: seconds after which the process is killed.
        environment: variables to set, besides this process's own.
        first: a statement behind `import ortmulti`, whose time counts as that of the import.

    Raises:
        MeasurementError: `measure` raised, the process died, or it took longer than `timeout`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ortmulti-") as folder,
        (log := Path(folder, "output")).open("wb") as output,
    ):
        Path(folder, "spec.json").write_text(json.dumps(spec))
        code = _LAUNCH.format(module=module, path=sys.path, first=first)
        process = ChildProcess(code, [folder], output=output, environment=environment)
        try:
            in_time = process.wait(timeout)
        finally:
            process.kill_group()
        stderr = tail(log)
        if not in_time:
            raise MeasurementError(f"took longer than {timeout:g} seconds and was ended", stderr)
        if not (result_file := Path(folder, "result.json")).exists():
            raise MeasurementError(f"the measuring process {process.ending(log)}", stderr)
        result: dict[str, Any] = json.loads(result_file.read_text())
        if "error" in result:
            raise MeasurementError(result["error"], stderr)
        return result


def answer(measure: Any, import_seconds: float) -> int:
    """Serve `run` in the fresh process: read `spec`, call `measure`, write its result. Return the exit status."""
    folder = Path(sys.argv[1])
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()
    try:
        result = measure({**json.loads((folder / "spec.json").read_text()), "import_seconds": import_seconds})
    except Error as error:
        result = {"error": str(error)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        import traceback

        traceback.print_exc()
    (folder / "result.json").write_text(json.dumps(result))
    return 1 if "error" in result else 0


def _end_after(waiting: int) -> None:
    """End this process and its children with the one that waits for them, which may be killed."""
    try:
        process = os.pidfd_open(waiting)
    except OSError:  # a kernel before 5.3
        return
    select.select([process], [], [])
    os.killpg(0, signal.SIGKILL)
