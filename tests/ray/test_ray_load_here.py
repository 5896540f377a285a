"""`load_here` and `broadcast` in actors: devices, threads, and models from the object store."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortmulti
from ortmulti import _core
from tests.ray.conftest import get, plain, rows
from tests.support import onnx_models
from tests.support.http_store import HttpStore

ray = pytest.importorskip("ray", reason='needs Ray: pip install "ortmulti[ray]"')
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]  # Ray has its own warnings


class Holder:
    """An actor with a pool."""

    def load(self, model: Any, devices: str = "all", **arguments: Any) -> tuple[list[str], int]:
        """Return the devices and the threads of a session."""
        self.pool = ortmulti.ray.load_here(model, devices, **arguments)
        return self.pool.devices, self.pool.sessions[0]._core.intra_op_num_threads()

    def run(self, x: np.ndarray) -> np.ndarray:
        [y] = self.pool.run({"x": x})
        return y

    def replace(self, model: str) -> None:
        self.pool.replace_model(model)


def holder(**options: Any) -> Any:
    return ray.remote(Holder).options(**options).remote()


def test_it_is_not_for_the_driver(model: Path) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=r"in a Ray actor or task: elsewhere call ortmulti\.load"):
        ortmulti.ray.load_here(model)


def test_what_is_no_model_cannot_be_broadcast(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ortmulti.InvalidProtobuf, match=re.escape(str(path))):
        ortmulti.ray.broadcast(path)


def test_sessions_have_the_assigned_cpus(model: Path) -> None:
    """Without GPUs on the host, "all" is the CPU."""
    for cpus, threads in ((2, 2), (1, 1), (0, 1)):
        assert get(holder(num_cpus=cpus).load.remote(model)) == (["cpu"], threads)


def test_assigned_gpus_that_cuda_does_not_show_are_an_error(model: Path) -> None:
    with pytest.raises(ortmulti.DeviceError, match=r"assigned 1 GPUs to this actor \(ids \d\), and CUDA sees 0 GPUs"):
        get(holder(num_gpus=1).load.remote(model))


@pytest.mark.parametrize("outside", [True, False], ids=["external data", "one file"])
def test_a_broadcast_model_needs_no_file(outside: bool, model: Path, tmp_path: Path) -> None:
    x, path = rows(model), tmp_path / "model.onnx"
    onnx.save(onnx.load(model), path, save_as_external_data=outside, location="model.data")
    expected = plain(path, x, 20)
    given = ortmulti.ray.broadcast(path)
    assert 0 < given.size <= sum(file.stat().st_size for file in tmp_path.iterdir())
    for file in tmp_path.iterdir():
        file.unlink()
    for _ in range(2):  # a host each
        actor = holder(num_gpus=4, num_cpus=1)
        get(actor.load.remote(given, "cpu"))
        np.testing.assert_array_equal(get(actor.run.remote(x)), expected)


def test_a_model_of_a_store_is_read_once_for_the_cluster(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    x, path = rows(model), tmp_path / "model.onnx"
    onnx.save(onnx.load(model), path, save_as_external_data=True, location="model.data", size_threshold=0)
    with HttpStore().served() as store:
        store.put("model.data", (tmp_path / "model.data").read_bytes())
        given = ortmulti.ray.broadcast(store.put("model.onnx", path.read_bytes()))
        assert sum(end - begin for _, begin, end in store.ranges) == sum(map(len, store.objects.values()))
    for _ in range(2):  # a host each, without the store
        actor = holder(num_gpus=4, num_cpus=1)
        get(actor.load.remote(given, "cpu"))
        np.testing.assert_array_equal(get(actor.run.remote(x)), plain(path, x, 20))


def test_a_lost_object_is_read_from_the_file(model: Path) -> None:
    """Its owner, the process that called `broadcast`, has ended."""
    x = rows(model)

    class Owner:
        def broadcast(self, path: str) -> list[Any]:
            return [ortmulti.ray.broadcast(path)]

    owner, actor = ray.remote(Owner).options(num_cpus=0).remote(), holder(num_cpus=1)
    [given] = get(owner.broadcast.remote(str(model)))
    ray.kill(owner)
    get(actor.load.remote(given, "cpu"))
    np.testing.assert_array_equal(get(actor.run.remote(x)), plain(model, x, 20))


def test_a_broadcast_model_is_replaced_with_its_weights(model: Path, other_model: Path) -> None:
    """The other model has the same names: the weights in memory must not be used for it."""
    x, actor = rows(model), holder(num_cpus=1)
    get(actor.load.remote(ortmulti.ray.broadcast(model), "cpu"))
    get(actor.replace.remote(other_model))
    np.testing.assert_array_equal(get(actor.run.remote(x)), plain(other_model, x, 20))


@pytest.mark.parametrize("place", ["attribute", "sub-graph", "sparse initializer"])
def test_external_data_that_cannot_be_given_is_refused(place: str, tmp_path: Path) -> None:
    onnx.save(onnx_models.external_places()[place], tmp_path / "model.onnx")
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(bytes(64))
    with pytest.raises(ortmulti.InvalidArgument, match=r"cannot be broadcast: .*a\.bin.* use weights='files'"):
        ortmulti.ray.broadcast(tmp_path / "model.onnx")


def outside(folder: Path, elements: int, file_bytes: int) -> Path:
    """ "y" is a weight in a file of this size, whose length the model declares as that of the file."""
    tensor = onnx_models.external_tensor("weight", "w.bin", elements)
    tensor.external_data.add(key="length", value=str(file_bytes))
    nodes = [onnx.helper.make_node("Identity", ["weight"], ["y"])]
    path = folder / "model.onnx"
    onnx.save(onnx_models.model(nodes, [], [("y", onnx.TensorProto.FLOAT, [elements])], [tensor]), path)
    (folder / "w.bin").write_bytes(bytes(file_bytes))
    return path


@pytest.mark.parametrize("file_bytes", [16, 48])
def test_a_weight_that_is_not_as_long_as_its_shape_is_refused(file_bytes: int, tmp_path: Path) -> None:
    """Sessions would read what lies behind it in the object store."""
    message = f"cannot be broadcast: .* 'weight': it has {file_bytes} bytes where its type and shape need 32"
    with pytest.raises(ortmulti.InvalidArgument, match=message):
        ortmulti.ray.broadcast(outside(tmp_path, 8, file_bytes))


def test_a_weight_with_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = outside(tmp_path, 8, 32)
    path.write_bytes(path.read_bytes().replace(b"weight", b"w\xffight"))
    with pytest.raises(ortmulti.InvalidArgument, match=r"the weight 'w\\\\xffight': its name is not UTF-8"):
        ortmulti.ray.broadcast(path)


def test_a_short_weight_in_the_object_store_is_refused(tmp_path: Path) -> None:
    path = outside(tmp_path, 8, 32)
    parts = [ray.put({"weight": (onnx.TensorProto.FLOAT, [8], np.zeros(16, np.uint8))})]
    given = ortmulti.ray.BroadcastModel(str(path), 16, ray.put((path.read_bytes(), parts)))
    with pytest.raises(ortmulti.InvalidArgument, match="it has 16 bytes where its type and shape need 32"):
        get(holder(num_cpus=1).load.remote(given, "cpu"))


def test_a_weight_of_no_bytes_is_broadcast(tmp_path: Path) -> None:
    given, actor = ortmulti.ray.broadcast(outside(tmp_path, 0, 0)), holder(num_cpus=1)
    get(actor.load.remote(given, "cpu"))
    assert given.size == 0


def test_a_file_that_is_shortened_meanwhile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, find = outside(tmp_path, 8, 32), _core.external_files

    def find_and_shorten(*arguments: Any) -> Any:
        found = find(*arguments)
        os.truncate(tmp_path / "w.bin", 0)
        return found

    monkeypatch.setattr(_core, "external_files", find_and_shorten)
    with pytest.raises(ortmulti.WeightsError, match=r"w\.bin' was changed or replaced"):
        ortmulti.ray.broadcast(path)


def test_weights_are_broadcast_in_parts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the calling process never has all of them in its memory."""
    monkeypatch.setattr(ortmulti.ray, "_PART_BYTES", 1)
    given = ortmulti.ray.broadcast(model)
    _, parts = get(given._object)
    outside = [each for each in _core.index_model(model.read_bytes()).initializers if each.storage == "external"]
    assert len(parts) == len(outside) > 1
    x, actor = rows(model), holder(num_cpus=1)
    get(actor.load.remote(given, "cpu"))
    np.testing.assert_array_equal(get(actor.run.remote(x)), plain(model, x, 20))
