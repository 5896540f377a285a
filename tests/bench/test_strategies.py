"""Every strategy over real sessions and real processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest
from onnx import TensorProto

import ortmulti
from ortmulti.bench import models, strategies
from ortmulti.bench.strategies import SessionSettings
from ortmulti.bench.strategies.base import Array
from ortmulti.bench.strategies.core import session_seconds
from ortmulti.bench.strategies.onnxruntime_sessions import create_session
from ortmulti.bench.strategies.processes import Processes, SessionProcess
from ortmulti.errors import DeviceError, Error, InvalidArgument
from ortmulti.optimized import comparison
from tests.support import onnx_models
from tests.support.processes import check_child

TWO = ("cpu", "cpu")
ONE_THREAD = SessionSettings(intra_op_num_threads=1)


@pytest.fixture(scope="module")
def feeds(model: Path) -> Mapping[str, Array]:
    return models.sample_inputs(model)


def test_names_are_those_of_the_strategies() -> None:
    for name in strategies.names():
        assert type(strategies.open_strategy(name, "m.onnx", ["cpu"])).__name__.lower() == name
    with pytest.raises(InvalidArgument, match=r"'magic'.*sequential, threads, processes, native, shared"):
        strategies.open_strategy("magic", "m.onnx", ["cpu"])
    for wrong in ([], ["cpu", "cuda:-1"]):
        with pytest.raises(InvalidArgument, match="device"):
            strategies.open_strategy("sequential", "m.onnx", wrong)


@pytest.mark.parametrize("name", strategies.names())
def test_every_session_gives_the_outputs_of_the_model_that_was_set_last(
    name: str, model: Path, feeds: Mapping[str, Array], tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    [expected] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))
    with strategies.open_strategy(name, models.make("identity", tmp_path), TWO, ONE_THREAD) as strategy:
        assert strategy.start() >= 0
        strategy.create()
        strategy.model = model
        creation = strategy.create()
        first_run = strategy.first_run(feeds)
    assert len(creation.sessions) == 2
    assert all(0 < seconds <= creation.wall for seconds in creation.sessions)
    assert first_run.wall > 0
    assert all(comparison.same_bits(outputs, [expected]) for outputs in first_run.outputs)
    assert len(first_run.outputs) == 2


@pytest.mark.parametrize("name", strategies.names())
def test_libraries_are_opened_by_creation_and_not_before(name: str, model: Path) -> None:
    """In a process of its own, since this one has opened all of them; so do the processes of `processes`."""
    code = """
        import os, sys
        from pathlib import Path
        from ortmulti.bench import strategies
        from ortmulti.bench.measure.memory import process_tree

        def opened():
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in process_tree(os.getpid())]
            return ["libonnxruntime.so" in text or "onnxruntime_pybind11_state" in text for text in maps]

        if __name__ == "__main__":
            with strategies.open_strategy(sys.argv[1], sys.argv[2], ("cpu", "cpu")) as strategy:
                strategy.start()
                strategy.make_contexts()
                before = opened()
                strategy.create()
                print(sum(before), sum(opened()))
    """
    assert check_child(code, name, model) == ("0 2\n" if name == "processes" else "0 1\n")


@pytest.mark.parametrize("name", strategies.names())
def test_what_cannot_be_created_or_run_is_an_error_that_names_it(name: str, model: Path) -> None:
    for path, devices in (("absent.onnx", TWO), (model, ("cpu", "cuda:99"))):
        with strategies.open_strategy(name, path, devices) as strategy:
            strategy.start()
            with pytest.raises(Error, match=r"absent\.onnx|cuda:99"):
                strategy.create()
    with strategies.open_strategy(name, model, TWO) as strategy:
        strategy.start()
        strategy.create()
        with pytest.raises(Error, match=r"cpu.*: the first run failed"):
            strategy.first_run({"not an input": np.zeros(1)})


SECOND = 1_000_000_000


def timeline(*spans: tuple[str, float, float, str]) -> ortmulti.Timeline:
    made = ortmulti.Timeline()
    for name, begin, end, device in spans:
        made.add(name, int(begin * SECOND), int(end * SECOND), device)
    return made


def test_sessions_seconds_are_those_of_each_devices_last_spans() -> None:
    ends = (("cuda:1", 11), ("cuda:0", 12), ("cuda:0", 14), ("cpu", 15))
    making = ("create session", 0, 9, "cuda:0")  # the optimized model
    spans = timeline(making, *(("create session", 10, end, device) for device, end in ends)).spans
    assert session_seconds(spans, ("cuda:0", "cuda:1", "cuda:0")) == (2.0, 1.0, 4.0)
    assert session_seconds(spans, ("cpu", "cuda:1", "cpu")) == (5.0, 1.0, 5.0)  # two handles of one session


def test_sessions_side_by_side_share_the_cores() -> None:
    for devices, cores, threads in ((1, 8, 8), (3, 8, 2), (3, 2, 1)):
        assert SessionSettings.side_by_side(("cpu",) * devices, cores).intra_op_num_threads == threads
    assert SessionSettings.side_by_side(("cuda:0", "cuda:1"), cores=64).intra_op_num_threads == 1


def test_settings_reach_the_session(model: Path) -> None:
    settings = SessionSettings(intra_op_num_threads=3, config_entries={"session.use_env_allocators": "1"})
    options = create_session(onnxruntime, model, "cpu", settings).get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.use_env_allocators") == "1"


@pytest.mark.parametrize("doing", ["while its session was created", "during a run"])
def test_a_killed_process_is_named_and_the_others_end(doing: str, model: Path, feeds: Mapping[str, Array]) -> None:
    strategy = Processes(model, TWO, ONE_THREAD)
    strategy.start()
    processes = [psutil.Process(each.call("before", os.getpid)) for each in strategy._sessions]
    if doing == "during a run":
        strategy.create()
    processes[1].kill()
    with pytest.raises(DeviceError, match=rf"cpu \(process 2 of 2\): its process ended {doing}"):
        _ = strategy.create() if doing == "while its session was created" else strategy.first_run(feeds)
    strategy.close()
    assert not any(process.is_running() for process in processes)
    strategy.close()


def test_a_process_gets_inputs_of_any_type_and_size(tmp_path: Path) -> None:
    for element_type, arrays in (
        (TensorProto.FLOAT, [np.zeros((rows, 1000), np.float32) + rows for rows in (1, 500, 0, 7)]),
        (TensorProto.STRING, [np.array(["a", "\N{SNOWMAN}" * 1000], object)]),
    ):
        path = tmp_path / f"{element_type}.onnx"
        path.write_bytes(onnx_models.identity(element_type))
        with SessionProcess("cpu") as process:
            process.create(path, "cpu", ONE_THREAD)
            assert [each.name for each in process.get_inputs()] == ["x"]
            for array in arrays:
                np.testing.assert_array_equal(process.run(None, {"x": array})[0], array)
