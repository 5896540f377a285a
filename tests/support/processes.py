"""Child interpreters, and what a process holds of the system."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_PF_EXITING = 4  # of a thread's flags, proc(5); linux/sched.h

# CPython's advice, from 3.12 on, against forks beside threads; ONNX Runtime and CUDA have threads.
FORKS_AT_EASE = ("-W", "ignore:This process:DeprecationWarning")


def child_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment with `changes` (None removes one), without GPUs, and the tests importable."""
    environment = dict(os.environ)
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["PYTHONWARNINGS"] = "ignore:this machine has:RuntimeWarning"  # GPUs, and they are hidden
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(ROOT)]))
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def run_child(
    code: str,
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    options: tuple[str, ...] = (),
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a new interpreter, which gets `arguments` as sys.argv[1:]; a hang is an error."""
    try:
        return subprocess.run(
            [sys.executable, *FORKS_AT_EASE, *options, "-c", textwrap.dedent(code), *map(str, arguments)],
            env=child_environment(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        printed = [(stream or b"").decode() for stream in (expired.stdout, expired.stderr)]
        raise AssertionError(f"still running after {timeout} s, having printed {printed}") from None


def check_child(code: str, *arguments: object, **kwargs: Any) -> str:
    """As `run_child`, and asserts a clean end: exit status 0 and nothing on stderr. Returns what it printed."""
    child = run_child(code, *arguments, **kwargs)
    assert (child.returncode, child.stderr) == (0, ""), child.stdout + child.stderr
    return child.stdout


def lines(code: str, model: bytes, *arguments: object, **kwargs: Any) -> list[str]:
    """What a child prints that runs `code` with the names of `child_sessions`, this model and sys.argv[2:]."""
    code = f"from tests.support.child_sessions import *\n{textwrap.dedent(code)}"
    return check_child(code, model.hex(), *arguments, **kwargs).splitlines()


def check_children(code: str, *arguments: Sequence[object]) -> list[str]:
    """Runs `code` at once in as many interpreters as there are lists of arguments, as `check_child`.

    It prints "ready", and waits for a line, which each gets when all are ready. Returns what they printed afterwards.
    """
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, each)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment(),
        )
        for each in arguments
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    ends = [child.communicate("go\n", timeout=60) for child in children]
    for child, (stdout, stderr) in zip(children, ends, strict=True):
        assert (child.returncode, stderr) == (0, ""), stdout + stderr
    return [stdout for stdout, _ in ends]


def resident() -> int:
    """Bytes of memory that this process has in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads() -> set[str]:
    """This process's threads by their numbers. Those past their last instruction, which may be listed for an instant
    after they were joined, are left out, and that which has memory given back until the process ends."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            if not int(fields[6]) & _PF_EXITING and (task / "comm").read_text() != "ortmulti-memory\n":
                found.add(task.name)
    return found


def threads_called(prefix: str) -> dict[str, set[int]]:
    """The names of this process's threads that begin so, and the CPUs that each may run on."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name.startswith(prefix):
            found[name] = os.sched_getaffinity(int(task.name))
    return found


def files(process: int | str = "self") -> list[str]:
    """What a process's file descriptors refer to, that of this listing left out."""
    found = []
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return sorted(found)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Asserts that the body leaves no thread and no file descriptor behind."""
    faulthandler.cancel_dump_traceback_later()  # the thread of the test's limit, another one in each phase of a test
    threads_before, files_before = threads(), Counter(files())

    def left() -> tuple[set[str], Counter[str]]:
        return threads() - threads_before, Counter(files()) - files_before

    yield
    faulthandler.cancel_dump_traceback_later()
    # An exception's traceback may still hold what the body used; a thread that nobody joins may do so until its end. A
    # library's own thread may just have a file open.
    deadline = time.monotonic() + 30
    gc.collect()
    while any(left()) and time.monotonic() < deadline:
        gc.collect()
    threads_left, files_left = left()
    assert not threads_left, [Path(f"/proc/self/task/{thread}/comm").read_text() for thread in threads_left]
    assert not files_left


def held(folder: Path) -> Counter[str]:
    """How much this process holds: threads, open files, staged cache entries, and files in `folder`/temporary."""
    from ortmulti.cache.staging import StagingDir

    cache, temporary = Path(os.environ["ORTMULTI_CACHE"]), folder / "temporary"
    drafts, scratch = cache / "staging", StagingDir(cache)
    if drafts.exists():
        with scratch.locked():
            scratch.remove_abandoned()  # as the next staged entry does: what is left is held
    return Counter(
        threads=len(threads()),
        files=len(files()),
        drafts=len(list(drafts.iterdir())) if drafts.exists() else 0,
        # Less the cache that is used where the chosen one cannot be written.
        temporary=len([path for path in temporary.iterdir() if not path.name.startswith("ortmulti-")]),
    )


def check_held(before: Counter[str], folder: Path) -> None:
    """Asserts that this process holds no more than `held` said before."""
    gc.collect()
    end = time.monotonic() + 10
    while held(folder) - before and time.monotonic() < end:
        gc.collect()  # a thread may be at its end, and have held something until then
    more = held(folder) - before
    assert not more, (more, [thread.name for thread in threading.enumerate()], files())
