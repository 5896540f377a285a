"""Processes that share weights on a GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_memory]

LOAD = """
import sys
import numpy as np
import ortmulti

pool = ortmulti.load(sys.argv[1], "cuda:0", share="host")
names = [span.name for span in pool.timeline.spans]
ids = np.arange(1, 33, dtype=np.int64)[None]
feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
[expected] = pool.run(["sentence_embedding"], feed)
how = "mapped" if any(name.startswith("map weights of process") for name in names) else "read"
print(how, expected.tobytes().hex()[:64], flush=True)
for line in sys.stdin:
    if line == "sleep\\n":
        pool.sleep()
        pool.wake()
    [answer] = pool.run(["sentence_embedding"], feed)
    print(bool((answer == expected).all()), flush=True)
"""


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORTMULTI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


def test_weights_are_held_once_and_answers_are_the_same() -> None:
    command = [sys.executable, "-m", "benchmarks.shared_weights", "--sizes", "tiny,base", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


class Process:
    def __init__(self, model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOAD, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, line: str = "") -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if line:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.communicate()


def test_weights_stay_when_processes_are_killed_sleep_and_wake() -> None:
    from ortmulti.bench import models

    model = str(models.make("encoder", "models", layers=2, hidden=768, precision="fp32"))
    first = Process(model)
    read, answer = first.says().split()
    assert read == "read"
    second = Process(model)
    assert second.says() == f"mapped {answer}"
    assert second.says("run") == "True"
    first.end(signal.SIGKILL)
    assert second.says("run") == "True"
    third = Process(model)
    assert third.says() == f"mapped {answer}"
    assert second.says("sleep") == "True"
    third.end(signal.SIGKILL)
    assert second.says("sleep") == "True"
    second.end()
    fourth = Process(model)
    assert fourth.says() == f"read {answer}"
    fourth.end()
