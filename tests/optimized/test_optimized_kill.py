"""kill -9 of a process at every step of filling the cache: nothing is lost, and nothing is left for the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ortmulti.cache.entries import Cache
from ortmulti.cache.key import CacheKey
from tests.support.cached_models import key, left, store, write_model
from tests.support.processes import child_environment

pytestmark = pytest.mark.process

# Runs one step; at the file system event number `stop` in the folder it says so and waits to be killed.
CODE = """
import os, sys, time
from pathlib import Path
from ortmulti.cache.entries import Cache
from tests.support.cached_models import fill, key

folder, model, step, stop = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
cache, made_of = Cache(folder), key(Path(sys.argv[2]))
seen = 0

def hook(event, arguments):
    global seen
    watched = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "shutil.rmtree")
    if watched and any(isinstance(a, (str, Path)) and str(folder) in str(a) for a in arguments):
        seen += 1
        if seen == stop:
            os.write(1, f"{event} {arguments[0]}\\n".encode())
            while True:
                os.read(0, 1)

sys.addaudithook(hook)
if step.startswith("publish"):
    with cache.stage(made_of) as staged:
        staged.saved.parent.mkdir()
        staged.saved.write_bytes(b"saved by ONNX Runtime")
        fill(staged)
        staged.publish().close()
elif step == "find a damaged one":
    assert cache.find(made_of) is None
elif step == "clear":
    cache.clear()
elif step == "give up":
    cache.stage(made_of).discard()
os.write(1, b"done\\n")
"""


STEPS = [
    "publish",
    "find a damaged one",
    *(pytest.param(step, marks=pytest.mark.slow) for step in ("publish over a damaged one", "clear", "give up")),
]


def kill_at(folder: Path, model: str, step: str, stop: int) -> str:
    """Kills a process at its event number ``stop``; what it was doing, or "done"."""
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), model, step, str(stop)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        said = child.stdout.readline().strip()
        child.kill()
        child.wait()
    return said


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_any_point_leaves_nothing(tmp_path: Path, step: str) -> None:
    model, _ = write_model(tmp_path / "model")
    made_of = key(model)
    events = []
    for stop in range(1, 200):
        cache = Cache(tmp_path / f"cache{stop}")
        if step != "give up":
            folder = store(cache, made_of)
        if "damaged" in step:
            (folder / "weights.bin").write_bytes(b"")
        elif step == "publish":
            cache.clear()
        events.append(kill_at(cache.folder, made_of.model, step, stop))
        if events[-1] == "done":
            break
        check(cache, made_of)
    assert events[-1] == "done"
    assert len(events) > 5


def check(cache: Cache, made_of: CacheKey) -> None:
    # Whatever is there is whole, or is known not to be.
    entry = cache.find(made_of)
    if entry is not None:
        with entry:
            entry.verify()
    # The next process that writes removes what was left, and only that.
    store(cache, made_of)
    assert left(cache.folder / "staging") == []
    assert [path.name for path in (cache.folder / "staging").iterdir()] == []
    entry = cache.find(made_of)
    assert entry is not None
    with entry:
        assert left(entry.folder) == ["manifest.json", "model.onnx", "shared", "weights.bin"]
    assert len(cache.entries()) == 1
    assert cache.clear().entries == 1
    assert left(cache.folder) == []
