"""A full disk at every point of filling the cache: the model is not optimized, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import optimized_models
from tests.support.processes import child_environment

pytestmark = pytest.mark.process

# For a cache in a file system of so many kilobytes and files.
CODE = """
import json, sys
from pathlib import Path
from ortmulti import Model
from ortmulti.optimized import Cache, build, key_of
from ortmulti.bench.models import sample_inputs
from ortmulti.errors import NotOptimizable
from tests.support.cached_models import CPU
from tests.support.optimized_models import run_entry, run_ordinary, same_bits

cache, model = Cache(Path(sys.argv[1])), sys.argv[2]
made_of = key_of(Model(model), CPU)
try:
    with cache.stage(made_of) as staged:
        build(staged, Model(model), CPU)
        entry = staged.publish()
        feeds = sample_inputs(model, 3)
        assert same_bits(run_entry(entry, feeds), run_ordinary(model, feeds))
        in_cache = entry.folder.parent == cache.folder / "entries"
        entry.close()
except NotOptimizable as error:
    print(error, file=sys.stderr)
    in_cache = False
left = [str(path) for path in cache.folder.rglob("*") if path.is_file() and path.name != "lock"]
found = cache.find(made_of, verify=True)
assert (found is not None) == in_cache
print(json.dumps([in_cache, [] if in_cache else left]))
"""

# In a name space of its own, for which the user needs no rights where Linux allows it.
MOUNTED = 'mount -t tmpfs -o "mode=0700,$1" none "$2" && shift && exec "$0" -c "$CODE" "$@"'


def fill(folder: Path, options: str, model: str) -> tuple[bool, str]:
    """Optimizes the model into a small cache; whether it got there, and what was said."""
    (folder / "cache").mkdir(parents=True)
    (folder / "tmp").mkdir()
    child = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", MOUNTED, sys.executable, options, str(folder / "cache"), model],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=child_environment({"TMPDIR": str(folder / "tmp"), "CODE": CODE}),
    )
    assert child.returncode == 0, child.stderr
    in_cache, left = json.loads(child.stdout)
    assert left == []
    # The onnxruntime package has a file of its own there.
    assert [path for path in (folder / "tmp").glob("ortmulti*/**/*") if path.is_file() and path.name != "lock"] == []
    return in_cache, child.stderr


@pytest.fixture(scope="module", autouse=True)
def _mounts_are_allowed() -> None:
    try:
        tried = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    except OSError:
        pytest.skip("there is no unshare")
    if tried.returncode != 0:
        pytest.skip("this system does not let users mount a file system")


def test_a_full_disk_is_an_error_of_optimizing(tmp_path: Path) -> None:
    """The optimized model has 256 kB of new weights; ONNX Runtime saves them, and the entry has them again."""
    proto = optimized_models.with_new_weights(256)
    model = str(optimized_models.write(tmp_path / "model", proto, "external"))
    stored = []
    for size in (0, 4, 12, 40, 200, 260, 300, 420, 520, 540, 560, 580, 700):
        in_cache, said = fill(tmp_path / str(size), f"size={size + 4}k", model)
        stored.append(in_cache)
        if not in_cache:
            assert said
    # From some size on it fits.
    assert stored == sorted(stored)
    assert (stored[0], stored[-1]) == (False, True)
    assert sum(stored) < 7


@pytest.mark.slow
def test_a_disk_that_takes_no_more_files_is_an_error_of_optimizing(tmp_path: Path) -> None:
    model = str(optimized_models.write(tmp_path / "model", optimized_models.with_folded_weights(), "external"))
    stored = [fill(tmp_path / str(files), f"nr_inodes={files}", model)[0] for files in range(1, 16)]
    assert stored == sorted(stored)
    assert (stored[0], stored[-1]) == (False, True)
