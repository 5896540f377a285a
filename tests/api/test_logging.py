"""ONNX Runtime's log in Python's logging."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import _core
from ortmulti._runtime import log as ort_log
from tests.support import onnx_models
from tests.support.pools import in_threads
from tests.support.processes import lines, run_child

LOGGER = logging.getLogger("ortmulti.onnxruntime")


class Collector(logging.Handler):
    """Keeps records, and wakes who waits for one: they are emitted by another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._arrived = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._arrived:
            self.records.append(record)
            self._arrived.notify_all()

    def wait_for(self, wanted: Callable[[Any], bool]) -> logging.LogRecord:
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(map(wanted, self.records)), timeout=60)
            return next(filter(wanted, self.records))


@pytest.fixture
def log() -> Iterator[Collector]:
    collector = Collector()
    level, propagate = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(collector)
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    yield collector
    LOGGER.removeHandler(collector)
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


def warning_model(name: str = "overridable") -> bytes:
    """ONNX Runtime warns about its initializer of this name that is also an input."""
    return onnx_models.model(
        [helper.make_node("Add", ["x", name], ["y"])],
        [("x", TensorProto.FLOAT, [2]), (name, TensorProto.FLOAT, [2])],
        [("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), name)],
    ).SerializeToString()


def options(severity: int, logid: str = "") -> ortmulti.SessionOptions:
    return onnx_models.options(log_severity_level=severity, logid=logid)


@pytest.mark.parametrize("severity", [-1, 0, 1, 2, 3])
def test_levels_are_mapped_and_bounded_by_the_options(severity: int, log: Collector) -> None:
    name = f"levels {severity}"
    onnx_models.cpu_session(warning_model(), options(severity, name))
    # What a failed run logs as an error, the exception says. It ends what this session may have logged.
    with pytest.raises(ortmulti.Error):
        run_wrong(options(severity, name))
    log.wait_for(lambda record: record.ort_logger == name and "Non-zero status" in record.message)
    levels = {record.levelno for record in log.records if getattr(record, "ort_logger", None) == name}
    everything = [logging.DEBUG, logging.INFO, logging.WARNING, None]
    assert levels == {logging.DEBUG, *everything[2 if severity < 0 else severity : 3]}


def test_sessions_have_the_default_severity(log: Collector) -> None:
    try:
        for severity, levels in ((0, {logging.DEBUG, logging.INFO}), (1, {logging.INFO}), (2, set())):
            ortmulti.set_default_logger_severity(severity)
            onnx_models.cpu_session(onnx_models.matmul()).close()
            ort_log.flush()
            assert {record.levelno for record in log.records} == levels
            log.records.clear()
    finally:
        ortmulti.set_default_logger_severity(2)


def run_wrong(session_options: ortmulti.SessionOptions) -> None:
    """A run that fails in a node, which ONNX Runtime also logs as an error."""
    proto = onnx_models.model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", TensorProto.FLOAT, ["n"]), ("shape", TensorProto.INT64, [1])],
        [("y", TensorProto.FLOAT, None)],
    )
    session = onnx_models.cpu_session(proto.SerializeToString(), session_options)
    session.run(None, {"x": np.ones(3, np.float32), "shape": np.array([2])})


def test_a_run_that_was_ended_on_purpose_is_no_error(log: Collector) -> None:
    with ortmulti.load(onnx_models.endless(), "cpu") as pool:
        with pytest.raises(ortmulti.DeadlineExceeded):
            pool.run(None, {"x": np.zeros(1, np.float32), "count": np.array(onnx_models.LONG)}, timeout=0.05)
        ended = log.wait_for(lambda record: "terminate flag" in record.getMessage())
    assert "Loop" in ended.getMessage()
    ort_log.flush()
    assert {record.levelno for record in log.records} <= {logging.DEBUG, logging.INFO}


def test_records_say_where_they_come_from_and_keep_the_text(log: Collector) -> None:
    begin = time.monotonic_ns()
    onnx_models.cpu_session(warning_model("100% é漢"), options(-1, "this session"))
    end = time.monotonic_ns()
    record: Any = log.wait_for(lambda record: "100% é漢" in record.getMessage())
    assert record.name == "ortmulti.onnxruntime"
    assert record.levelname == "WARNING"
    assert record.ort_logger == "this session"
    assert ".cc" in record.ort_location
    assert record.ort_category
    assert begin <= record.ort_time_ns <= end
    assert record.ort_thread > 0


@pytest.mark.parametrize("through", ["session", "pool", "optimize"])
def test_without_a_configuration_of_logging_a_warning_names_onnxruntime_and_the_model(
    through: str, tmp_path: Path
) -> None:
    model = tmp_path / "é model.onnx"
    model.write_bytes(warning_model())
    child = run_child(
        """
        import sys
        import ortmulti as om

        path, through = sys.argv[1:]
        options = om.SessionOptions()
        if through == "session":
            om.InferenceSession(path, providers=["CPUExecutionProvider"])
        elif through == "pool":
            om.load(path, "cpu").close()
        else:
            options.log_severity_level = 1
            om.optimize(path, "cpu", options=options)
        assert options.logid == ""
        """,
        model,
        through,
        environment={"ORTMULTI_CACHE": str(tmp_path / "cache")},
    )
    said = [line for line in child.stderr.splitlines() if "overridable" in line]
    assert said, child.stderr
    assert all(line.startswith("ONNX Runtime (") for line in said), said
    assert any(f"({model}): " in line for line in said), said  # the optimized model has another path


def test_a_model_in_memory_has_no_name_in_the_log(log: Collector) -> None:
    onnx_models.cpu_session(warning_model("nameless"))
    record: Any = log.wait_for(lambda record: "nameless" in record.getMessage())
    assert record.getMessage() == f"ONNX Runtime: {record.ort_message}"
    assert record.ort_logger == ""


def test_a_models_name_that_is_no_utf8_is_logged(tmp_path: Path, log: Collector) -> None:
    path = f"{tmp_path}/\udcff.onnx"
    Path(path).write_bytes(warning_model("odd"))
    ortmulti.InferenceSession(path, providers=["CPUExecutionProvider"])
    log.wait_for(lambda record: record.getMessage().startswith(f"ONNX Runtime ({tmp_path}/\\udcff.onnx): "))


def test_sessions_of_many_threads_log_at_once(log: Collector) -> None:
    def create(number: int) -> None:
        onnx_models.cpu_session(warning_model(), options(0, f"thread {number}")).close()

    in_threads(8, create)
    for number in range(8):
        log.wait_for(
            lambda record, name=f"thread {number}": (  # type: ignore[misc]
                record.ort_logger == name and "overridable" in record.getMessage()
            )
        )


def test_a_handler_that_waits_for_another_session_stops_nobody(log: Collector) -> None:
    """Records are emitted by no thread of ONNX Runtime's, so a handler may create and run sessions itself."""
    results: list[list[float]] = []
    done = threading.Event()

    class Nested(logging.Handler):
        def emit(self, record: Any) -> None:
            if record.ort_logger == "outer" and not results:
                results.append([])
                session = onnx_models.cpu_session(onnx_models.one_node("Neg"))
                with ThreadPoolExecutor(1) as pool:
                    [y] = pool.submit(session.run, None, {"x": np.ones(2, np.float32)}).result()
                results.append(y.tolist())
                done.set()

    nested = Nested()
    LOGGER.addHandler(nested)
    try:
        ortmulti.create_sessions(warning_model(), "cpu", 2, options(0, "outer")).close()
        assert done.wait(60)
    finally:
        LOGGER.removeHandler(nested)
    assert results[-1] == [-1, -1]
    assert log.records


@pytest.mark.parametrize(
    ("severity", "configured", "warns", "informs"),
    [(0, False, True, False), (3, False, False, False), (0, True, True, True)],
    ids=["by default", "errors alone", "configured"],
)
def test_what_was_logged_before_exit_goes_where_pythons_logging_says(
    severity: int, configured: bool, warns: bool, informs: bool
) -> None:
    """Which is warnings to stderr without any configuration."""
    child = run_child(
        """
        import logging, sys
        if sys.argv[3] == "True":
            logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
        import ortmulti
        options = ortmulti.SessionOptions()
        options.log_severity_level = int(sys.argv[2])
        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]), options)
        """,
        warning_model().hex(),
        severity,
        configured,
    )
    assert (child.returncode, child.stdout) == (0, "")
    assert child.stderr.count("overridable appears in graph inputs") == warns
    assert ("ortmulti.onnxruntime INFO ONNX Runtime: Session successfully initialized." in child.stderr) == informs
    assert ("GraphTransformer" in child.stderr) == informs
    assert bool(child.stderr) == warns


def test_more_records_than_can_be_kept_are_counted_and_nobody_waits() -> None:
    """The handler holds back all emitting until far more than the queue keeps have been logged."""
    code = """
        import logging, threading

        go, seen, dropped = threading.Event(), [], threading.Event()

        class Held(logging.Handler):
            def emit(self, record):
                go.wait()
                seen.append(record.getMessage())
                if "dropped" in seen[-1]:
                    dropped.set()

        logger = logging.getLogger("ortmulti.onnxruntime")
        logger.propagate = False
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Held())
        options = om.SessionOptions()
        options.log_severity_level = 0
        sessions = [[("CPUExecutionProvider", {})]] * 200
        request = om._core.CreationRequest(model=model, sessions=sessions, options=options._core, serialize="all")
        om.RunOptions()
        worker = threading.Thread(target=list, args=(om._core.CreationEvents(request),))
        worker.start()
        worker.join()
        go.set()
        print(dropped.wait(60))
    """
    assert lines(code, onnx_models.matmul(8)) == ["True"]


class Slow(logging.Handler):
    """Has the emitting thread wait in its first record, and notes whether `flushed` was set meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.flushed = threading.Event(), threading.Event()
        self.early: bool | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)  # without the lock, which would have others wait for this one
        return True

    def emit(self, _: logging.LogRecord) -> None:
        if self.early is None and threading.current_thread().name == "ortmulti-log":
            self.entered.set()
            self.early = self.flushed.wait(0.5)


def test_what_another_thread_emits_has_come_when_a_session_is_there() -> None:
    slow = Slow()
    verbose = ortmulti.SessionOptions()
    verbose.log_severity_level = 0
    request = _core.CreationRequest(
        model=onnx_models.matmul(), sessions=[[("CPUExecutionProvider", {})]], options=verbose._core, serialize="all"
    )
    level = LOGGER.level
    LOGGER.addHandler(slow)
    LOGGER.setLevel(logging.DEBUG)
    try:
        list(_core.CreationEvents(request))  # which waits for no record
        assert slow.entered.wait(60)
        onnx_models.cpu_session(onnx_models.matmul(), options(4)).close()  # which has nothing to say itself
        slow.flushed.set()
        assert slow.early is False
    finally:
        LOGGER.removeHandler(slow)
        LOGGER.setLevel(level)


# --- A callback -------------------------------------------------------------------------------------------------------


@pytest.fixture
def said() -> Iterator[list[tuple[Any, ...]]]:
    """What the callback was given; afterwards there is none."""
    messages: list[tuple[Any, ...]] = []
    ortmulti.set_default_logger_callback(lambda *message: messages.append(message))
    yield messages
    ortmulti.set_default_logger_callback(None)


def of(messages: list[tuple[Any, ...]], logid: str) -> list[tuple[Any, ...]]:
    """This session's, when all that was logged is emitted."""
    ort_log.flush()
    return [message for message in messages if message[2] == logid]


def test_a_callback_gets_what_the_logger_would(said: list[tuple[Any, ...]], log: Collector) -> None:
    onnx_models.cpu_session(warning_model(), options(2, "called")).close()
    [(severity, category, _, location, message)] = of(said, "called")
    assert (severity, category) == (2, "onnxruntime")
    assert "overridable" in message
    assert ".cc:" in location
    assert log.records == []
    ortmulti.set_default_logger_callback(None)
    onnx_models.cpu_session(warning_model(), options(2, "logged")).close()
    log.wait_for(lambda record: record.ort_logger == "logged" and record.ort_message == message)
    assert of(said, "logged") == []


def test_a_callback_that_raises_loses_nothing(log: Collector, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    ortmulti.set_default_logger_callback(fail)
    try:
        onnx_models.cpu_session(warning_model(), options(2, "raised")).close()
        ort_log.flush()
    finally:
        ortmulti.set_default_logger_callback(None)
    log.wait_for(lambda record: record.ort_logger == "raised" and "overridable" in record.getMessage())
    [told] = {record.exc_info[0] for record in caplog.records if record.exc_info}
    assert told is ZeroDivisionError


def test_a_callback_may_create_sessions(said: list[tuple[Any, ...]]) -> None:
    def create(severity: int, category: str, logid: str, location: str, message: str) -> None:
        said.append((severity, category, logid, location, message))
        if logid == "outer":
            onnx_models.cpu_session(warning_model(), options(2, "inner")).close()

    ortmulti.set_default_logger_callback(create)
    onnx_models.cpu_session(warning_model(), options(2, "outer")).close()
    assert len(of(said, "inner")) == len(of(said, "outer")) == 1


@pytest.mark.parametrize(
    ("callback", "severity"),
    [(3, 2), ("print", 2), (print, 5), (print, -1), (None, 9), (print, "x"), (print, None), (print, 2.0)],
)
def test_callbacks_and_severities_that_cannot_be(callback: Any, severity: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument) as error:
        ortmulti.set_default_logger_callback(callback, severity)
    if callback is print:
        with pytest.raises(type(error.value)):
            ortmulti.set_default_logger_severity(severity)
        assert isinstance(error.value, TypeError) == (not isinstance(severity, int))


def test_the_severity_of_a_callback_is_the_default_one() -> None:
    code = """
        from ortmulti._runtime import log

        def count(severity):
            said = []
            om.set_default_logger_callback(lambda *message: said.append(message[0]), severity)
            session().close()
            log.flush()
            return sorted(set(said))

        print(count(0), count(1), count(2), count(3))
    """
    assert lines(code, warning_model()) == ["[0, 1, 2] [1, 2] [2] []"]
