"""The command line, in a process of its own or in the test's."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

COMMAND = (sys.executable, "-m", "ortmulti.cli")
TERMINAL = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}

PNG = b"\x89PNG\r\n\x1a\n"  # how pictures begin that commands write


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **TERMINAL}, check=False)


def invoke(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which takes milliseconds: for help, arguments and their errors.

    Unlike typer's CliRunner this includes how the command ends on errors. Not for `devices`: it registers the plug-ins
    of installed packages, and OpenVINO's keeps what it found then.
    """
    from ortmulti.cli import app

    command = ["ortmulti", *map(str, arguments)]
    stdout, stderr = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, TERMINAL),
        mock.patch.object(sys, "argv", command),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            app.run()
        except SystemExit as end:
            status = end.code or 0
        finally:
            logging.captureWarnings(False)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(command, status, stdout.getvalue(), stderr.getvalue())
