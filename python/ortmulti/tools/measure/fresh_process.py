"""Runs a function in a fresh Python process and brings back what it returns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmulti.errors import Error

# numpy is loaded beforehand: onnxruntime and ortmulti both need it, and neither's import should be charged with it.
# The import of ortmulti is timed here because nothing of this package can run before it.
_LAUNCH = """
import json, sys, time
sys.path.extend(path for path in {path!r} if path and path not in sys.path)
import numpy
begin = time.perf_counter()
import ortmulti
import_seconds = time.perf_counter() - begin
from {module} import measure
from ortmulti.tools.measure.fresh_process import answer
sys.exit(answer(measure, import_seconds))
"""

_STDERR_TAIL = 2000


class MeasurementError(Error):
    """A measurement's process failed.

    Attributes:
        stderr: the end of what the process wrote to its standard output and error.
    """

    def __init__(self, message: str, stderr: str = "") -> None:
        super().__init__(message)
        self.stderr = stderr


def run(
    module: str, spec: dict[str, Any], timeout: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Calls ``measure(spec)`` of a module in a fresh process.

    The result travels in a file, so that nothing that a library prints can damage it. The process leads a group of
    its own, which is ended with it: no child of it outlives this call.

    Args:
        module: the module's full name.
        spec: the argument, which JSON can carry.
        timeout: seconds after which the process is killed.
        environment: variables to set, besides this process's own.

    Returns:
        What `measure` returned.

    Raises:
        MeasurementError: `measure` raised, the process died, or it took longer than `timeout`.
    """
    with tempfile.TemporaryDirectory(prefix="ortmulti-") as folder, (Path(folder) / "stderr").open("w+b") as output:
        result_file = Path(folder) / "result.json"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _LAUNCH.format(module=module, path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        request = json.dumps({"spec": spec, "result_file": str(result_file)}).encode()
        timed_out = False
        try:
            process.communicate(request, timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        stderr = output.read().decode(errors="replace")[-_STDERR_TAIL:]
        if timed_out:
            raise MeasurementError(f"took longer than {timeout:g} seconds and was ended", stderr)
        if not result_file.exists():
            raise MeasurementError(death_text(process.returncode, stderr), stderr)
        result: dict[str, Any] = json.loads(result_file.read_text())
        if "error" in result:
            raise MeasurementError(result["error"], stderr)
        return result


def death_text(code: int, stderr: str) -> str:
    """How a process has ended that gave no result, from its return code and what it wrote."""
    how = f"ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
    lines = stderr.strip().splitlines()
    return f"the measuring process {how} without a result" + (f"; its last line: {lines[-1]}" if lines else "")


def answer(measure: Any, import_seconds: float) -> int:
    """The fresh process's side of `run`: reads the request, calls `measure`, writes its answer.

    Returns:
        The exit status.
    """
    request = json.load(sys.stdin)
    try:
        result = measure({**request["spec"], "import_seconds": import_seconds})
    except Error as error:
        result = {"error": str(error)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        import traceback

        traceback.print_exc()
    Path(request["result_file"]).write_text(json.dumps(result))
    return 1 if "error" in result else 0
