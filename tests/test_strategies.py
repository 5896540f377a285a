"""Every strategy over real sessions and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest

from ortmulti import models, strategies
from ortmulti.errors import Error, InvalidArgument
from ortmulti.strategies import SessionSettings, StrategyError
from ortmulti.strategies._onnxruntime import create_session
from ortmulti.strategies.base import Array
from ortmulti.strategies.processes import Processes

TWO = ("cpu", "cpu")
ONE_THREAD = SessionSettings(intra_op_num_threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("matmul", tmp_path_factory.mktemp("models"), megabytes=2)


@pytest.fixture(scope="module")
def feeds(model: Path) -> Mapping[str, Array]:
    return models.sample_inputs(model)


def test_names_are_those_of_the_strategies() -> None:
    assert strategies.names() == ("sequential", "threads", "processes", "native")
    assert all(strategies.load(name).name == name for name in strategies.names())


def test_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"'magic'.*sequential, threads, processes, native"):
        strategies.load("magic")


@pytest.mark.parametrize("devices", [(), ("gpu",), ("cuda",), ("cpu", "cuda:-1")])
def test_what_is_no_device_is_refused(devices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="device"):
        strategies.open_strategy("sequential", "model.onnx", devices)


@pytest.mark.parametrize("name", strategies.names())
def test_every_session_gives_the_models_outputs(name: str, model: Path, feeds: Mapping[str, Array]) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    expected = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))
    with strategies.open_strategy(name, model, TWO, ONE_THREAD) as strategy:
        assert strategy.start() > 0
        creation = strategy.create()
        first_run = strategy.first_run(feeds)
    assert len(creation.sessions) == 2
    assert all(0 < seconds <= creation.wall for seconds in creation.sessions)
    assert first_run.wall > 0
    assert len(first_run.outputs) == 2
    for outputs in first_run.outputs:
        assert len(outputs) == len(expected)
        for output, wanted in zip(outputs, expected, strict=True):
            assert output.dtype == wanted.dtype
            np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("name", strategies.names())
def test_missing_model_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    with strategies.open_strategy(name, tmp_path / "absent.onnx", TWO) as strategy:
        strategy.start()
        with pytest.raises(Error, match=r"absent\.onnx"):
            strategy.create()


@pytest.mark.parametrize("name", strategies.names())
def test_one_of_two_devices_missing_is_an_error_that_names_it(name: str, model: Path) -> None:
    with strategies.open_strategy(name, model, ("cpu", "cuda:99")) as strategy:
        strategy.start()
        with pytest.raises(Error, match="cuda:99"):
            strategy.create()


@pytest.mark.parametrize("name", strategies.names())
def test_wrong_input_is_an_error_of_the_first_run(name: str, model: Path, feeds: Mapping[str, Array]) -> None:
    wrong = {f"{key}-not": value for key, value in feeds.items()}
    with strategies.open_strategy(name, model, TWO) as strategy:
        strategy.start()
        strategy.create()
        with pytest.raises(StrategyError, match="cpu: the first run failed"):
            strategy.first_run(wrong)


def test_sessions_side_by_side_share_the_cores() -> None:
    assert SessionSettings.side_by_side(("cpu",), cores=8).intra_op_num_threads == 8
    assert SessionSettings.side_by_side(("cpu",) * 3, cores=8).intra_op_num_threads == 2
    assert SessionSettings.side_by_side(("cpu",) * 3, cores=2).intra_op_num_threads == 1
    assert SessionSettings.side_by_side(("cuda:0", "cuda:1"), cores=64).intra_op_num_threads == 1


def test_settings_reach_the_session(model: Path) -> None:
    settings = SessionSettings(intra_op_num_threads=3, config_entries={"session.use_env_allocators": "1"})
    options = create_session(onnxruntime, model, "cpu", settings).get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.use_env_allocators") == "1"


def test_workers_live_until_the_strategy_is_closed(model: Path, feeds: Mapping[str, Array]) -> None:
    strategy = Processes(model, TWO, ONE_THREAD)
    strategy.start()
    workers = [psutil.Process(pid) for pid in strategy.pids]
    strategy.create()
    first = strategy.first_run(feeds)
    second = strategy.first_run(feeds)
    assert len(workers) == 2
    assert [worker.pid for worker in workers] == list(strategy.pids)
    np.testing.assert_array_equal(first.outputs[1][0], second.outputs[1][0])
    strategy.close()
    assert not any(worker.is_running() for worker in workers)
    strategy.close()


@pytest.mark.parametrize("doing", ["creating the session", "the first run"])
def test_killed_worker_is_named_and_the_others_end(doing: str, model: Path, feeds: Mapping[str, Array]) -> None:
    strategy = Processes(model, TWO, ONE_THREAD)
    strategy.start()
    workers = [psutil.Process(pid) for pid in strategy.pids]
    if doing == "the first run":
        strategy.create()
    os.kill(strategy.pids[1], signal.SIGKILL)
    with pytest.raises(StrategyError, match=rf"cpu \(worker 2 of 2\).*signal 9 \(SIGKILL\) during {doing}"):
        _ = strategy.create() if doing == "creating the session" else strategy.first_run(feeds)
    strategy.close()
    assert not any(worker.is_running() for worker in workers)


def test_stopped_worker_does_not_keep_close_waiting_forever(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortmulti.strategies.processes._PATIENCE_SECONDS", 0.1)
    strategy = Processes(model, ("cpu",), ONE_THREAD)
    strategy.start()
    [worker] = [psutil.Process(pid) for pid in strategy.pids]
    os.kill(worker.pid, signal.SIGSTOP)
    strategy.close()
    assert not worker.is_running()


def test_workers_end_with_their_parent(model: Path) -> None:
    """The end of the pipe ends a worker even where nobody closed the strategy."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ortmulti.strategies.processes import Processes\n"
        "from ortmulti.strategies import SessionSettings\n"
        "if __name__ == '__main__':\n"
        "    strategy = Processes(Path(sys.argv[1]), ('cpu', 'cpu'), SessionSettings())\n"
        "    strategy.start()\n"
        "    print(*strategy.pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(model)]
    parent = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    with parent:
        parent.kill()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []
