"""`Predictor` and `map_options` in Ray Data: rows, order, errors, and processes that end."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortmulti
from tests.ray.conftest import lose_device, plain
from tests.support.pools import HANG

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]  # Ray has its own warnings

ROWS, BLOCKS = 4_000, 40


def pixels_of(ids: np.ndarray, width: int) -> np.ndarray:
    return np.sin(ids[:, None] * np.arange(1, width + 1)).astype(np.float32)


def table(model: Path) -> tuple[Any, np.ndarray]:
    """A dataset with the columns "id" and "pixels", and the pixels."""
    [x] = ortmulti.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    width = int(x.shape[1])
    dataset = ray.data.range(ROWS, override_num_blocks=BLOCKS).map_batches(
        lambda batch: {"id": batch["id"], "pixels": pixels_of(batch["id"], width)}
    )
    return dataset, pixels_of(np.arange(ROWS), width)


@contextmanager
def another_host(cluster: Any, **resources: int) -> Iterator[None]:
    """A further host. On return Ray has noticed that it left."""
    node = cluster.add_node(**resources)
    try:
        yield
    finally:
        cluster.remove_node(node)
        cluster.wait_for_nodes(HANG)


def collect(dataset: Any) -> dict[str, np.ndarray]:
    batches = list(dataset.iter_batches(batch_size=None))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def check_rows(result: dict[str, np.ndarray], model: Path, pixels: np.ndarray) -> None:
    """Every row once, with the bits of plain onnxruntime."""
    order = np.argsort(result["id"], kind="stable")
    np.testing.assert_array_equal(result["id"][order], np.arange(ROWS))
    np.testing.assert_array_equal(result["y"][order], plain(model, pixels, 20))


def options_of(model: Path, **more: Any) -> Any:
    """Options with which the rows of `table` go through an actor for 4 of the pretended GPUs."""
    usual = {"rows": 20, "gpus": 4, "devices": "cpu", "inputs": {"x": "pixels"}, "keep_columns": ["id"]}
    return ortmulti.ray.map_options(model, **{**usual, **more})


class Marked(ortmulti.ray.Predictor):
    """Adds the column "process"."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        return super().__call__(batch) | {"process": np.full(len(batch["id"]), os.getpid())}


class Breaking(Marked):
    """The first process loses its only device at its first batch."""

    def __init__(self, model: Any, first: str, **arguments: Any) -> None:
        super().__init__(model, **arguments)
        self._first = Path(first)

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        try:
            self._first.touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(batch)
        lose_device(self._pool)
        return super().__call__(batch)


@pytest.fixture(autouse=True)
def actors_end() -> Iterator[None]:
    """A failed job's actors keep their GPUs as long as there is its error, which is part of a cycle."""
    yield
    gc.collect()


@pytest.mark.parametrize("weights", ["files", "broadcast"])
def test_rows_are_those_of_a_plain_loop(weights: Any, model: Path) -> None:
    dataset, pixels = table(model)
    result = collect(dataset.map_batches(ortmulti.ray.Predictor, **options_of(model, weights=weights)))
    assert set(result) == {"id", "y"}
    check_rows(result, model, pixels)


def test_options_follow_from_the_hosts(model: Path) -> None:
    options = ortmulti.ray.map_options(model, rows=8, sessions_per_device=2, in_flight=3)
    assert (options["num_gpus"], options["batch_size"]) == (4, 8 * 4 * 2 * 3)
    assert (options["compute"].min_size, options["compute"].max_size) == (1, 2)  # the head has no GPU
    options = ortmulti.ray.map_options(model, rows=8, devices="cpu")
    assert (options["num_gpus"], options["num_cpus"], options["batch_size"]) == (0, 1, 8)
    assert options["compute"].max_size == 3


def test_a_killed_actor_loses_and_doubles_no_row(model: Path) -> None:
    dataset, pixels = table(model)
    options = options_of(model, hosts=1)
    options["batch_size"] = 20
    batches = []
    for batch in dataset.map_batches(Marked, **options).iter_batches(batch_size=None, prefetch_batches=0):
        if not batches:
            os.kill(int(batch["process"][0]), signal.SIGKILL)
        batches.append(batch)
    result = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    check_rows(result, model, pixels)
    assert len(set(result["process"])) == 2


def test_an_actor_without_devices_ends_and_another_one_goes_on(model: Path, tmp_path: Path) -> None:
    dataset, pixels = table(model)
    options = options_of(model, hosts=1)
    options["fn_constructor_kwargs"]["first"] = str(tmp_path / "first")
    options["compute"] = ray.data.ActorPoolStrategy(size=1)  # no other batch is under way when the device is lost
    result = collect(dataset.map_batches(Breaking, **options))
    assert (tmp_path / "first").exists()
    check_rows(result, model, pixels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the batch has no column 'x', it has 'id', 'pixels'"),
        ({"inputs": {"z": "pixels"}}, "inputs: 'z' is no input of the model, only 'x'"),
        ({"outputs": ["z"]}, "outputs: 'z' is no output of the model, only 'y'"),
        ({"keep_columns": ["y"]}, "the column 'y' of keep_columns is also an output"),
        ({"inputs": {"x": "pixels"}, "keep_columns": ["z"]}, "no column 'z', .*: keep_columns names columns"),
        ({"devices": "all"}, r"Ray has assigned 4 GPUs to this actor \(ids 0, 1, 2, 3\), and CUDA sees 0 GPUs"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_mistake_ends_the_job_with_its_reason(arguments: Any, message: str, model: Path) -> None:
    dataset, _ = table(model)
    options = ortmulti.ray.map_options(model, gpus=4, **{"devices": "cpu", **arguments})
    with pytest.raises(ray.exceptions.RayError, match=message):
        dataset.map_batches(ortmulti.ray.Predictor, **options).take(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "rows is 1 or more, not 0"),
        ({"hosts": 0}, "hosts is 1 or more, not 0"),
        ({"gpus": -1}, "gpus is 0 or more, not -1"),
        ({"weights": "copy"}, "weights is 'files' or 'broadcast', not 'copy'"),
        ({"warmpu": True}, "there is no argument 'warmpu'"),
    ],
)
def test_wrong_options_are_refused_before_the_job(arguments: Any, message: str, model: Path) -> None:
    with pytest.raises(TypeError if "argument" in message else ortmulti.InvalidArgument, match=message):
        ortmulti.ray.map_options(model, **arguments)


@pytest.mark.parametrize("ragged", [False, True])
def test_columns_of_lists_are_arrays(ragged: bool, model: Path) -> None:
    """As `ray.data.read_parquet` has them."""
    import pyarrow

    dataset, pixels = table(model)
    rows = [row.tolist() for row in pixels[:60]]
    if ragged:
        rows[-1].pop()
    column = pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))
    dataset = ray.data.from_arrow(pyarrow.table({"x": column}))
    options = ortmulti.ray.map_options(model, rows=20, gpus=4, devices="cpu")
    scored = dataset.map_batches(ortmulti.ray.Predictor, **options)
    if ragged:
        with pytest.raises(ray.exceptions.RayError, match="the lists of the column 'x' have different lengths"):
            scored.materialize()
    else:
        np.testing.assert_array_equal(collect(scored)["y"], plain(model, pixels[:60], 20))


def test_more_hosts_than_there_are_do_not_hold_the_job_up(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset, pixels = table(model)
    check_rows(collect(dataset.map_batches(ortmulti.ray.Predictor, **options_of(model, hosts=5))), model, pixels)
    assert "no host of the cluster" not in caplog.text
    ortmulti.ray.map_options(model, gpus=5)
    assert "no host of the cluster has 5 GPUs and 1 CPUs for an actor (at most 4 and 2)" in caplog.text


def test_hosts_that_differ_are_named(cluster: Any, model: Path) -> None:
    with another_host(cluster, num_cpus=2, num_gpus=8):
        with pytest.raises(ortmulti.InvalidArgument, match=r"gpus \(2 with 4, 1 with 8\): give gpus="):
            ortmulti.ray.map_options(model)
        assert ortmulti.ray.map_options(model, gpus=4)["compute"].max_size == 3


def test_of_hosts_with_different_cpus_the_least_counts(
    cluster: Any, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The head nearly always has fewer."""
    with another_host(cluster, num_cpus=5):
        options = ortmulti.ray.map_options(model, devices="cpu")
        assert (options["num_cpus"], options["compute"].max_size) == (1, 4)
        assert "different numbers of cpus (3 with 2, 1 with 5): actors are sized for hosts with 2" in caplog.text
        caplog.clear()
        assert ortmulti.ray.map_options(model, devices="cpu", cpus=4)["num_cpus"] == 4
        assert ortmulti.ray.deployment(model, devices="cpu", cpus=4).ray_actor_options["num_cpus"] == 4
        assert not [record for record in caplog.records if record.name.startswith("ortmulti")]  # Ray logs, too
