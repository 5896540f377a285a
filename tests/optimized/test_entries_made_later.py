"""Entries that are made behind a load: by the time of the next one, and never half of one."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ortmulti import Model
from ortmulti._runtime import background
from ortmulti.cache.entries import StagedEntry
from ortmulti.optimized import Cache, key_of, wait_for_entries
from tests.support import creations, fake_driver
from tests.support.cached_models import CPU
from tests.support.optimized_models import run_ordinary, with_new_weights, write
from tests.support.processes import check_child, child_environment

X = np.random.default_rng(1).standard_normal((3, 256), dtype=np.float32)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """One whose entry has 8 MB of its own."""
    model = write(tmp_path / "model", with_new_weights(8192), "external")
    assert isinstance(model, str)
    return model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return creations.own_cache(tmp_path, monkeypatch)


def load(model: str) -> list[str]:
    """Creates a session as one on a GPU is created, and runs it; the names of the spans."""
    made = creations.over_entry(model, 1)
    assert made.sessions[0].run(None, {"x": X})[0].shape == (3, 8192)
    made.close()
    return [span.name for span in made.timeline.spans]


def test_the_load_does_not_wait_for_the_entry(model: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()
    publish = StagedEntry.publish

    def wait_for_load(staged: StagedEntry) -> object:
        assert loaded.wait(60)
        return publish(staged)

    monkeypatch.setattr(StagedEntry, "publish", wait_for_load)
    assert "publish optimized model" not in load(model)
    assert cache.entries() == []
    loaded.set()
    wait_for_entries()
    assert len(cache.entries()) == 1
    assert not {"optimize model", "check optimized model"} & set(load(model))


def test_an_entry_that_cannot_be_made_is_no_error(model: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: StagedEntry) -> object:
        raise OSError("the disk is full")

    monkeypatch.setattr(StagedEntry, "publish", fail)
    load(model)
    wait_for_entries()
    assert list((cache.folder / "staging").iterdir()) == []


CODE = """
    import sys
    from tests.optimized import test_entries_made_later as helpers

    helpers.load(sys.argv[1])
"""


@pytest.mark.process
def test_the_end_of_the_process_leaves_a_whole_entry_or_none(model: str, cache: Cache) -> None:
    check_child(CODE, model, environment={"ORTMULTI_CACHE": str(cache.folder)})
    assert list((cache.folder / "staging").iterdir()) == []
    for stored in cache.entries():
        entry = cache.find(key_of(Model(model), CPU), verify=True)
        assert entry is not None
        assert entry.folder == stored.folder
        entry.close()


@pytest.mark.process
def test_a_forked_child_ends_while_its_parent_makes_an_entry(model: str, cache: Cache) -> None:
    code = """
        import os, sys, threading
        from ortmulti.optimized import wait_for_entries
        from ortmulti.cache.entries import StagedEntry
        from tests.optimized import test_entries_made_later as helpers

        forked, publish = threading.Event(), StagedEntry.publish
        def wait_for_fork(staged):
            assert forked.wait(60)
            return publish(staged)
        StagedEntry.publish = wait_for_fork
        helpers.load(sys.argv[1])
        child = os.fork()
        if child == 0:
            wait_for_entries()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        forked.set()
        wait_for_entries()
    """
    check_child(code, model, environment={"ORTMULTI_CACHE": str(cache.folder)})
    assert len(cache.entries()) == 1


@pytest.mark.process
@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("processes", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_processes_killed_at_random_moments_leave_no_broken_entry(
    tmp_path: Path, model: str, cache: Cache, processes: int, driver: bool
) -> None:
    """With a driver, CUDA starts and the first run's kernels are sought meanwhile."""
    expected = run_ordinary(model, {"x": X})[0]
    gpus = fake_driver.build(tmp_path).environment if driver else {}
    environment = child_environment({"ORTMULTI_CACHE": str(cache.folder), **gpus})
    code = (
        "import sys, ortmulti; ortmulti.prewarm(model=sys.argv[1]); "
        "from tests.optimized import test_entries_made_later as helpers; helpers.load(sys.argv[1])"
    )
    moments = random.Random(processes)
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", code, model], check=True, env=environment, timeout=60)
    longest = 1.2 * (time.monotonic() - begin)
    for _ in range(processes):
        cache.clear()
        child = subprocess.Popen([sys.executable, "-c", code, model], env=environment)
        try:
            child.wait(moments.uniform(0.2, 1.0) * longest)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        entry = cache.find(key_of(Model(model), CPU), verify=True)  # removes and names what is damaged
        if entry is not None:
            entry.close()
        assert len(cache.entries()) == (entry is not None)
    cache.clear()  # the last one may have been killed when its entry was there, and the lock of its folder still, too
    load(model)
    wait_for_entries()
    assert list((cache.folder / "staging").iterdir()) == []
    made = creations.over_entry(model, 1)
    np.testing.assert_array_equal(made.sessions[0].run(None, {"x": X})[0], expected)
    made.close()


def test_work_that_has_ended_keeps_nothing_of_it() -> None:
    """It may hold memory of GPUs, which the garbage collector does not know of."""

    class Held:
        pass

    held = Held()
    kept = weakref.ref(held)
    gc.disable()
    try:
        background.do(partial(lambda _, poll: poll(), held), "work", lambda: None)
        del held
        wait_for_entries()
        for thread in threading.enumerate():
            if thread.name == "work":
                thread.join(60)
        assert kept() is None
    finally:
        gc.enable()
