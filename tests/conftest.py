"""Which tests this machine can run, and what many of them share."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from ortmulti._runtime import libraries
from ortmulti.bench import models
from ortmulti.errors import LibraryError

# Whoever runs the tests in the background (`... &` in a script) starts them with SIGINT ignored, and every process that
# a test starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-timeout fails a test that hangs, by a signal. C code takes no signal, and no second one ends a fixture. So much
# later the process ends and prints the stacks of its threads, also where one holds the GIL.
PATIENCE = 60.0
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # which is captured during tests


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    given = item.config.getoption("timeout")
    limit = marker.args[0] if marker else float(item.config.getini("timeout") if given is None else given)
    if limit:
        faulthandler.dump_traceback_later(limit + PATIENCE, exit=True, file=item.config.stash[STDERR])


# For each phase, since pytest takes the limit back when one fails.
pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def pytest_runtest_logfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure(config: pytest.Config) -> None:
    # A thread that hangs keeps the interpreter. A worker of pytest-xdist waits for the others.
    if not hasattr(config, "workerinput"):
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=config.stash[STDERR])


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The names of tests are the same in every process: bytes may be random, or hold the time."""
    return argname if isinstance(val, bytes) else None


hypothesis.settings.register_profile("ortmulti", deadline=None, max_examples=60)
hypothesis.settings.load_profile("ortmulti")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Optimized models are kept apart from the user's, by the processes that tests start too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMULTI_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 512 MB of weights: input "x", float32 [batch, width]."""
    return models.make("matmul", tmp_path_factory.mktemp("matmul"), megabytes=512)


@pytest.fixture
def torch() -> Any:
    """PyTorch, with the first GPU as the current one; see `_torch.torch_on_gpu`."""
    from tests.support.torch import torch_on_gpu

    return torch_on_gpu()


@pytest.fixture
def silent() -> Iterator[None]:
    """Without what ONNX Runtime logs of runs that fail or are ended."""
    logger = logging.getLogger("ortmulti.onnxruntime")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


pytest.register_assert_rewrite("tests.support.pools", "tests.support.processes", "tests.support.torch")


def _why_no_gpu() -> str | None:
    # Without the CUDA driver, so that the process that collects the tests does not start it.
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not Path("/dev/nvidiactl").exists():
        return "needs an NVIDIA GPU"
    try:
        runtime = libraries.find_onnxruntime()
    except LibraryError as error:
        return str(error)
    return None if runtime.has_cuda else "needs onnxruntime-gpu"


# The folders whose tests have the folder's name as a marker.
FAMILIES = {"bench", "process", "packaging", "ray"}


# Before pytest selects by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in FAMILIES:
            item.add_marker(item.path.parent.name)
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    reason = _why_no_gpu()
    if reason is not None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
