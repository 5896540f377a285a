"""Many models behind one budget of memory, on the CPU: there a model that sleeps has closed its sessions."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti._runtime import log
from tests.support import onnx_models
from tests.support.pools import ENDLESS, HANG, counted_bytes, endless_feed, outcomes
from tests.support.processes import check_child

COUNT = 6
SIZE = len(onnx_models.matmul())
X = {"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return onnx_models.write_matmuls(tmp_path_factory.mktemp("models"), COUNT)


@pytest.fixture(scope="module")
def expected(files: list[Path]) -> list[np.ndarray]:
    return [ortmulti.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, X)[0] for path in files]


@pytest.fixture
def two(files: list[Path]) -> Iterator[ortmulti.ModelRepository]:
    """All models, and memory for two of them."""
    with ortmulti.ModelRepository("cpu", host_memory=int(2.5 * SIZE)) as repository:
        for path in files:
            repository.add(path.stem, path)
        yield repository


def awake(repository: ortmulti.ModelRepository) -> set[str]:
    return {name for name, model in repository.stats().models.items() if model.devices[0].state == "awake"}


def test_requests_wake_models_within_the_budget(two: ortmulti.ModelRepository, expected: list[np.ndarray]) -> None:
    assert len(awake(two)) == 2
    for index in [0, 1, 2, 3, 4, 5, 0, 0, 3]:
        np.testing.assert_array_equal(two.run(f"m{index}", X)[0], expected[index])
        assert f"m{index}" in awake(two)
        [device] = two.stats().devices
        assert device.used <= device.budget
    assert {(status.name, status.state, status.reason) for status in two.index()} == {
        (f"m{index}", "READY", "") for index in range(COUNT)
    }


def test_every_way_of_calling_gives_the_same_answer(two: ortmulti.ModelRepository, expected: list[np.ndarray]) -> None:
    for index in (0, 3):
        name = f"m{index}"
        answers: list[list[np.ndarray]] = [
            two.run(name, None, X),
            two.submit(name, X).result(),
            asyncio.run(two.run_async(name, X)),
            *two.map(name, [X, X]),
        ]
        for [y] in answers:
            np.testing.assert_array_equal(y, expected[index])


def test_a_pinned_model_stays_awake(two: ortmulti.ModelRepository) -> None:
    two.pin("m5")
    for index in range(5):
        two.run(f"m{index}", X)
        assert "m5" in awake(two)
    assert two.stats().models["m5"].pinned
    two.pin("m4")
    with pytest.raises(
        ortmulti.OutOfMemory, match=r"'m0' needs \d+ kB on cpu.*pinned: 'm[45]', 'm[45]': raise the budget"
    ):
        two.run("m0", X)
    two.pin("m4", False)
    two.run("m0", X)
    assert {"m0", "m5"} <= awake(two)


def test_a_model_larger_than_the_budget_is_refused_with_both_sizes(files: list[Path]) -> None:
    with ortmulti.ModelRepository("cpu", host_memory=3 * SIZE) as repository:
        repository.add("small", files[0])
        with pytest.raises(ortmulti.OutOfMemory, match=r"'large' takes [\d.]+ MB, and the budget is \d+ kB"):
            repository.add("large", onnx_models.matmul(512))
        assert [status.name for status in repository.index()] == ["small"]
        repository.run("small", X)


def test_a_model_is_unloaded_loaded_and_removed(two: ortmulti.ModelRepository, expected: list[np.ndarray]) -> None:
    two.unload("m0")
    with pytest.raises(ortmulti.NotFound, match=r"the model 'm0' is not loaded \(unloaded\): load it first"):
        two.run("m0", X)
    assert two.index()[0] == ortmulti.ModelStatus("m0", "UNAVAILABLE", "unloaded", "")
    assert "m0" not in two.stats().models
    two.load("m0")
    np.testing.assert_array_equal(two.run("m0", X)[0], expected[0])
    two.remove("m0")
    for call in (two.run, two.submit):
        with pytest.raises(ortmulti.NotFound, match=r"there is no model 'm0': there are 'm1'"):
            call("m0", X)


def test_a_model_has_all_calls_of_a_pool(two: ortmulti.ModelRepository, expected: list[np.ndarray]) -> None:
    model = two["m0"]
    assert ("m0" in two, "m7" in two, list(two), len(two)) == (True, False, [each.name for each in two.index()], COUNT)
    assert isinstance(model.pool, ortmulti.Pool)
    assert [each.name for each in model.get_inputs()] == ["x"]
    for [y] in (
        model.run(X),
        model.submit(X).result(HANG),
        asyncio.run(model.run_async(X)),
        *model.map([X]),
        *(future.result() for _, future in model.as_completed([X])),
    ):
        np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(model.map_rows(X)[0], expected[0])
    assert model.stats().devices[0].done == 6
    with pytest.raises(ortmulti.InvalidArgument, match=r"the devices of add\(\), not 'cpu': remove 'm0'"):
        model.add_devices("cpu")
    del model
    np.testing.assert_array_equal(two["m0"].run(X)[0], expected[0])  # the pool is the repository's
    two["m0"].close()
    with pytest.raises(ortmulti.NotFound, match=r"'m0' is not loaded \(unloaded\)"):
        two["m0"].run(X)
    with pytest.raises(ortmulti.NotFound, match=r"no model 'm9': there are 'm0'"):
        two["m9"]


def test_another_model_takes_a_place_by_its_own_or_a_checked_way(
    two: ortmulti.ModelRepository, files: list[Path], expected: list[np.ndarray]
) -> None:
    model = two["m0"]
    two.load("m0", files[1], version="2")
    np.testing.assert_array_equal(model.run(X)[0], expected[1])
    assert two.index()[0].version == "2"
    two.unload("m0")
    two.load("m0")  # the same again
    np.testing.assert_array_equal(model.run(X)[0], expected[1])
    for arguments, message in (
        ({"model": ENDLESS}, "another interface than 'm0': input 'count' is new"),
        ({"model": files[2], "verify": lambda pool: pool.run(X)[0].all() & False}, "verify has returned .*'m0' keeps"),
        ({"model": files[2], "verify": lambda pool: pool.run(X)[0]}, "verify returns True, False or None, not ndarray"),
        ({"model": b"no model"}, "(?i)protobuf"),
    ):
        with pytest.raises(ortmulti.Error, match=message):
            model.replace_model(**arguments)
        np.testing.assert_array_equal(model.run(X)[0], expected[1])
        assert two.index()[0].state == "READY"
    done = model.stats().devices[0].done
    model.replace_model(files[2], version="3", verify=lambda pool: pool.run(X), warmup=False)
    assert model.stats().devices[0].done == done + 1  # with verify's
    np.testing.assert_array_equal(model.run(X)[0], expected[2])
    assert two.index()[0].version == "3"


def test_a_model_is_replaced_while_it_answers(tmp_path: Path, files: list[Path], expected: list[np.ndarray]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(files[0].read_bytes())
    with ortmulti.ModelRepository("cpu", host_memory=4 * SIZE) as repository:
        repository.add("m", path, version="1")
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                [y] = repository.run("m", X)
                assert any(np.array_equal(y, one) for one in expected[:2])

        def batch() -> None:
            while not over.is_set():
                answers = list(repository["m"].map([X] * 20))
                assert len(answers) == 20
                assert all(any(np.array_equal(y, one) for one in expected[:2]) for [y] in answers)

        with ThreadPoolExecutor(3) as threads:
            clients = [threads.submit(each) for each in (client, client, batch)]
            try:
                new = tmp_path / "new.onnx"
                new.write_bytes(files[1].read_bytes())
                new.replace(path)
                repository.load("m")
                np.testing.assert_array_equal(repository.run("m", X)[0], expected[1])
                path.write_bytes(b"no model")
                with pytest.raises(ortmulti.Error):
                    repository.load("m")
                np.testing.assert_array_equal(repository.run("m", X)[0], expected[1])
            finally:
                over.set()
            for each in clients:
                each.result()
        assert repository.index()[0].state == "READY"


def test_a_model_whose_random_inputs_do_not_fit_is_loaded_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx_models.model(
        [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", onnx.TensorProto.FLOAT, [3, 5]), ("shape", onnx.TensorProto.INT64, [1])],
        [("y", onnx.TensorProto.FLOAT, None)],
    ).SerializeToString()
    with ortmulti.ModelRepository("cpu", host_memory="1GiB") as repository:
        repository.add("m", model)
        assert "was loaded without a first run" in caplog.text
        x = np.arange(15, dtype=np.float32).reshape(3, 5)
        [y] = repository.run("m", {"x": x, "shape": np.array([15])})
        np.testing.assert_array_equal(y, x.reshape(15))
        with pytest.raises(ortmulti.Error):
            repository.add("n", model, warmup=ortmulti.Warmup())


def test_a_model_whose_file_was_replaced_does_not_keep_others_waiting(
    tmp_path: Path, files: list[Path], expected: list[np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(files[0].read_bytes())
    with ortmulti.ModelRepository("cpu", host_memory=int(1.5 * SIZE)) as repository:
        repository.add("old", path)
        repository.add("other", files[1])
        repository.run("old", X)
        new = tmp_path / "new.onnx"
        new.write_bytes(files[2].read_bytes())
        new.replace(path)
        with pytest.raises(ortmulti.OutOfMemory, match=r"'other' needs.*the log names models that failed to sleep"):
            repository.run("other", X)
        log.flush()
        assert "'old' could not make room on cpu" in caplog.text
        assert "changed or deleted" in repository.stats().models["old"].devices[0].refusal
        np.testing.assert_array_equal(repository.run("old", X)[0], expected[0])
        with pytest.raises(ortmulti.OutOfMemory, match="to load without room for both, unload it before"):
            repository.load("old")
        repository.unload("old")
        repository.load("old")
        np.testing.assert_array_equal(repository.run("old", X)[0], expected[2])
        np.testing.assert_array_equal(repository.run("other", X)[0], expected[1])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"gpu_memory": 0.0},
            ortmulti.InvalidArgument,
            r"gpu_memory as a float is a share above 0 and up to 1.0, not 0",
        ),
        ({"gpu_memory": 1.5}, ortmulti.InvalidArgument, r"up to 1.0, not 1.5: bytes are an int"),
        ({"gpu_memory": "1.5"}, ortmulti.InvalidArgument, r"up to 1.0, not 1.5"),
        ({"gpu_memory": "8 apples"}, ortmulti.InvalidArgument, r"or a size such as '8GiB', not '8 apples'"),
        ({"host_memory": True}, ortmulti.InvalidType, r"host_memory is a share, bytes, or a size.*not True"),
        ({"host_memory": 1 << 60}, ortmulti.InvalidArgument, r"host_memory is 1 to \d+ bytes here"),
        ({"host_memory": -1}, ortmulti.InvalidArgument, r"host_memory is 1 to"),
    ],
)
def test_bad_budgets_are_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ortmulti.ModelRepository(**{"devices": "cpu", **arguments})


def test_bad_models_are_refused_and_leave_nothing(two: ortmulti.ModelRepository, files: list[Path]) -> None:
    before, background = two.index(), ortmulti.Loading(wait="none")
    for call, error, text in (
        (lambda: two.add("m1", files[0]), ortmulti.InvalidArgument, "there is a model 'm1'"),
        (lambda: two.add("new", files[0], wait="first"), ortmulti.InvalidArgument, "'all' or 'none', not 'first'"),
        (
            lambda: two.add("new", files[0], loading=background),
            ortmulti.InvalidArgument,
            "wait of a Loading is for load, and a repository",
        ),
        (lambda: two.add("new", files[0], idle_timeout=-1), ortmulti.InvalidArgument, "idle_timeout is 0 or more"),
        (lambda: two.add("new", files[0], protect=1), ortmulti.InvalidType, "protect is True or False"),
        (lambda: two.add("new", files[0], warmup=5), ortmulti.InvalidType, "warmup is an ortmulti.Warmup or a bool"),
        (lambda: two.add("new", files[0], devices="cuda:7"), ortmulti.InvalidArgument, "cuda:7 has no budget"),
        (lambda: two.add("new", files[0], bathcing=1), ortmulti.InvalidType, "did you mean 'batching'"),
        (lambda: two.add("new", "missing.onnx"), ortmulti.NoSuchFile, "missing.onnx"),
        (lambda: two.add("new", b"no model"), ortmulti.InvalidProtobuf, "protobuf"),
        (lambda: two.add(3, files[0]), ortmulti.InvalidType, "name is"),
        (lambda: two.run("m1", {"y": X["x"]}), ortmulti.InvalidArgument, "x"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            call()
    assert two.index() == before
    two.add("new", files[0])
    two.run("new", X)


def test_the_metrics_name_the_model_in_every_line(two: ortmulti.ModelRepository) -> None:
    two.run("m0", X)
    lines = two.stats().prometheus({"host": "a"}).splitlines()
    kinds = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    assert 'ortmulti_requests_total{host="a",model="m0",device="cpu",outcome="done"} 1' in lines
    assert 'ortmulti_requests_total{host="a",model="m1",device="cpu",outcome="done"} 0' in lines
    budget = two.stats().devices[0].budget
    assert f'ortmulti_repository_budget_bytes{{host="a",device="cpu"}} {budget}' in lines
    evictions = two.stats().models["m5"].devices[0].evictions
    assert f'ortmulti_repository_evictions_total{{host="a",model="m5",device="cpu"}} {evictions}' in lines
    names = [re.sub("_(bucket|sum|count)$", "", line.partition("{")[0]) for line in lines if not line.startswith("#")]
    together = [name for name, _ in itertools.groupby(names)]
    assert len(together) == len(set(names))


def test_what_waits_is_answered_by_close_or_cancelled(files: list[Path]) -> None:
    for cancel in (False, True):
        repository = ortmulti.ModelRepository("cpu", host_memory=int(1.5 * SIZE))
        for path in files[:3]:
            repository.add(path.stem, path)
        futures = [repository.submit(f"m{index % 3}", X) for index in range(12)]
        repository.close(cancel_pending=cancel)
        ended = outcomes(futures)
        assert ended.total() == 12
        assert set(ended) <= {"done", "cancelled", "ClosedError"} if cancel else ended == {"done": 12}, ended
        repository.close()
        with pytest.raises(ortmulti.ClosedError, match="the repository is closed"):
            repository.run("m0", X)
        with pytest.raises(ortmulti.ClosedError, match="the repository is closed"):
            repository.add("n", files[0])


def test_a_repository_without_references_frees_its_pools(files: list[Path]) -> None:
    repository = ortmulti.ModelRepository("cpu", host_memory=4 * SIZE)
    repository.add("m", files[0])
    repository.run("m", X)
    pool = weakref.ref(repository._entries["m"].state.loaded.pool)  # type: ignore[union-attr]
    del repository
    gc.collect()
    assert pool() is None


def test_a_model_is_loaded_in_the_background(two: ortmulti.ModelRepository, files: list[Path]) -> None:
    with two._loading:  # none is loaded meanwhile
        two.add("late", files[0], wait="none")
        two.add("bad", b"no model", wait="none")
        assert [model.state for model in two.index()[-2:]] == ["LOADING", "LOADING"]
        with pytest.raises(ortmulti.NotFound, match="'late' is still being loaded") as caught:
            two.run("late", X)
        assert caught.value.http_status == 503
    while "LOADING" in (states := [model.state for model in two.index()[-2:]]):
        pass
    assert states == ["READY", "UNAVAILABLE"]
    assert "not an ONNX model" in two.index()[-1].reason
    two.run("late", X)


def test_an_idle_model_sleeps_after_its_time(files: list[Path]) -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("idle", files[0], idle_timeout=0.02)
        repository.add("stays", files[1])
        for name in repository:
            repository.run(name, X)
        for _ in range(2):  # a request wakes it, and then it sleeps again
            while repository.stats().models["idle"].devices[0].state == "awake":
                pass
            repository.run("idle", X)
        assert repository.stats().models["stays"].devices[0].state == "awake"
        assert repository.stats().models["idle"].devices[0].evictions == 0


def test_a_protected_model_sleeps_where_others_do_not_suffice(files: list[Path]) -> None:
    one = counted_bytes(files[0])
    with ortmulti.ModelRepository("cpu", host_memory=int(2.5 * one)) as repository:
        repository.add("dear", files[0], protect=True)
        for name, path in zip("abc", files[1:4], strict=True):
            repository.add(name, path)
        repository.run("dear", X)
        for name in "abc" * 3:
            repository.run(name, X)
        states = {name: model.devices[0] for name, model in repository.stats().models.items()}
        assert (states["dear"].state, states["dear"].evictions) == ("awake", 0)
        repository.pin("c")
        repository.run("a", X)
        assert repository.stats().models["dear"].devices[0].evictions == 1


def test_a_model_that_cannot_wake_is_not_ready(tmp_path: Path, files: list[Path]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(files[0].read_bytes())
    with ortmulti.ModelRepository("cpu", host_memory=int(1.5 * SIZE)) as repository:
        repository.add("m", path)
        repository.add("other", files[1])
        repository.run("other", X)  # the first one sleeps
        path.write_bytes(files[2].read_bytes())
        with pytest.raises(ortmulti.WeightsError, match="and load of a repository"):
            repository.run("m", X)
        [status, other] = repository.index()
        assert (status.state, other.state) == ("UNAVAILABLE", "READY")
        assert "it sleeps and cannot wake" in status.reason
        assert 'ortmulti_repository_model_ready{model="m"} 0' in repository.stats().prometheus()
        repository.load("m")
        assert repository.index()[0].state == "READY"
        repository.run("m", X)


def test_a_budget_of_gpus_that_are_not_there_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ortmulti.ModelRepository("cpu", gpu_memory="1GB", host_memory="1GB").close()
    assert caplog.text == ""
    ortmulti.ModelRepository("cpu", gpu_memory="1GB").close()
    assert "gpu_memory='1GB' limits nothing: the budget is host_memory, here" in caplog.text
    with pytest.raises(ortmulti.InvalidArgument, match=r"'gpu_memry' \(did you mean 'gpu_memory'\?\)"):
        ortmulti.ModelRepository("cpu", gpu_memry=1)  # type: ignore[call-arg]


def test_the_process_ends_while_models_wait(files: list[Path]) -> None:
    printed = check_child(
        """
        import sys
        import numpy as np
        import ortmulti

        repository = ortmulti.ModelRepository("cpu", host_memory=int(sys.argv[1]))
        for index, path in enumerate(sys.argv[2:]):
            repository.add(f"m{index}", path)
        x = {"x": np.ones((2, 64), np.float32)}
        futures = [repository.submit(f"m{index % 3}", x) for index in range(30)]
        futures[0].result()
        print("ends")
        """,
        int(1.5 * SIZE),
        *files[:3],
    )
    assert printed.strip() == "ends"


def test_models_are_unloaded_and_removed_while_an_add_waits_for_room(files: list[Path]) -> None:
    memory = counted_bytes(files[1])  # without room for the other one
    with ortmulti.ModelRepository("cpu", host_memory=memory) as repository, ThreadPoolExecutor() as threads:
        repository.add("endless", ENDLESS, warmup=False)
        repository.add("idle", files[1])
        run = repository.submit("endless", endless_feed())
        while not repository.stats().models["endless"].pool.devices[0].busy:  # its own wake is over
            pass
        adding = threads.submit(repository.add, "new", files[0])
        while not repository.stats().devices[0].waking:
            pass
        repository.unload("idle")
        repository.remove("new")
        assert [status.name for status in repository.index()] == ["endless", "idle"]
        assert not adding.done()
        run.cancel()
        with pytest.raises(ortmulti.ClosedError, match="'new' was removed while it was being loaded"):
            adding.result()
        repository.load("idle")
        repository.run("idle", X)


def test_ctrl_c_ends_an_add_that_waits_for_room() -> None:
    printed = check_child(
        """
        import os, signal, threading
        import numpy as np
        import ortmulti
        from tests.support import onnx_models
        from tests.support.pools import ENDLESS, counted_bytes, endless_feed

        matmul = onnx_models.matmul()
        memory = counted_bytes(matmul)
        repository = ortmulti.ModelRepository("cpu", host_memory=memory)
        repository.add("endless", ENDLESS, warmup=False)
        run = repository.submit("endless", endless_feed())
        while not repository.stats().models["endless"].pool.devices[0].busy:  # its own wake is over
            pass

        def interrupt():
            while not repository.stats().devices[0].waking:
                pass
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            repository.add("m", matmul)
        except KeyboardInterrupt:
            print("interrupted", [status.name for status in repository.index()], run.done())
        run.cancel()
        repository.add("m", matmul)
        print(repository.run("m", {"x": np.ones((1, 64), np.float32)})[0].shape)
        """
    )
    assert printed.splitlines() == ["interrupted ['endless'] False", "(1, 64)"]


def test_a_model_that_is_being_removed_cannot_be_loaded_and_its_name_is_free(
    files: list[Path], expected: list[np.ndarray]
) -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", ENDLESS, warmup=False)
        run = repository.submit("m", endless_feed())
        try:
            removing = threading.Thread(target=repository.remove, args=("m",))
            removing.start()
            while any(status.state == "READY" for status in repository.index()):
                pass
            with pytest.raises(ortmulti.NotFound, match="there is no model 'm'"):
                repository.load("m")
            repository.add("m", files[0])
        finally:
            run.cancel()
            removing.join()
        np.testing.assert_array_equal(repository.run("m", X)[0], expected[0])
        assert [status.state for status in repository.index()] == ["READY"]


def test_a_model_that_verify_refuses_takes_no_request(files: list[Path], expected: list[np.ndarray]) -> None:
    def refuse(pool: ortmulti.Pool) -> bool:
        asked.append(pool.run(X)[0])
        return False

    asked: list[np.ndarray] = []
    with ortmulti.ModelRepository("cpu") as repository:
        with pytest.raises(ortmulti.InvalidArgument, match=r"verify has returned False for the new model: it is not"):
            repository.add("m", files[0], verify=refuse)
        assert "m" not in repository
        repository.add("m", files[0], version="1")
        with pytest.raises(ortmulti.InvalidArgument, match="'m' keeps its model"):
            repository.load("m", files[1], options={"version": "2"}, verify=refuse)
        np.testing.assert_array_equal(asked, [expected[0], expected[1]])
        np.testing.assert_array_equal(repository.run("m", X)[0], expected[0])
        assert repository.index() == [ortmulti.ModelStatus("m", "READY", "", "1")]


def test_options_of_load_take_the_place_of_those_of_add(files: list[Path]) -> None:
    with ortmulti.ModelRepository("cpu") as repository:
        repository.add("m", files[0], batching=ortmulti.Batching(4), version="1")
        repository.load("m", options={"version": "2"})
        assert (repository["m"].batching, repository["m"].version) == (None, "2")
        with pytest.raises(ortmulti.InvalidArgument, match="are loaded without 'protect'"):
            repository.load("m", options={"protect": True})


def test_run_async_asks_the_new_model_if_the_old_one_is_closed() -> None:
    async def ask() -> None:
        running = repository.submit("m", endless_feed())
        waiting = asyncio.create_task(repository.run_async("m", endless_feed(3)))
        while old.stats().waiting < 1:
            await asyncio.sleep(0)
        loading = asyncio.create_task(asyncio.to_thread(repository.load, "m"))
        while repository["m"].pool is old:
            await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(old.close, cancel_pending=True))
        await asyncio.wait([waiting])
        running.cancel()
        await asyncio.gather(loading, closing)
        np.testing.assert_array_equal((await waiting)[0], [3])

    with ortmulti.ModelRepository("cpu", host_memory="1GiB") as repository:
        repository.add("m", ENDLESS, warmup=False)
        old = repository["m"].pool
        asyncio.run(ask())
