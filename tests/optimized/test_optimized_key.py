"""Keys of optimized models: equal for what gives the same one, and for nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import ortmulti
from ortmulti import _core
from ortmulti._runtime import libraries
from ortmulti.optimized.key import key_of
from tests.support import onnx_models
from tests.support.cached_models import CPU, key, write_anew, write_model


def test_the_same_model_has_the_same_key(tmp_path: Path) -> None:
    model, _ = write_model(tmp_path)
    assert key(model) == key(model)
    assert len(key(model).digest) == 32
    assert key(model).changed_source() is None
    os.utime(model)  # its content counts, and nothing of it was left out
    assert key(model).digest == key(model).digest


def test_what_the_model_was_made_of_is_listed(tmp_path: Path) -> None:
    model, data = write_model(tmp_path)
    found = key(model, compute_capability=(9, 0))
    found_runtime = libraries.find_onnxruntime()
    assert [Path(source.name) for source in found.sources] == [model.resolve(), data.resolve()]
    assert found.model == str(model)
    assert found.facts["compute_capability"] == [9, 0]
    assert found.facts["onnxruntime"] == [found_runtime.distribution, found_runtime.version]


def _options(**changes: Any) -> ortmulti.SessionOptions:
    """Options with these attributes, and with what methods named "add_..." add."""
    options = ortmulti.SessionOptions()
    for name, value in changes.items():
        if name.startswith("add_"):
            getattr(options, name)(*value)
        else:
            setattr(options, name, value)
    return options


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({"compute_capability": (8, 0)}, False),
        ({"options": _options(graph_optimization_level=ortmulti.GraphOptimizationLevel.ORT_ENABLE_BASIC)}, False),
        ({"options": _options(use_deterministic_compute=True)}, False),
        (
            {"options": _options(add_session_config_entry=("optimization.disable_specified_optimizers", "X"))},
            False,
        ),
        ({"options": _options(add_free_dimension_override_by_name=("n", 4))}, False),
        ({"options": _options(add_free_dimension_override_by_denotation=("n", 4))}, False),
        ({"options": _options(intra_op_num_threads=3, logid="name", enable_cpu_mem_arena=False)}, True),
    ],
)
def test_what_changes_the_result_changes_the_key(tmp_path: Path, arguments: dict[str, Any], same: bool) -> None:
    model, _ = write_model(tmp_path)
    assert (key(model).digest == key(model, **arguments).digest) == same


def test_providers_count_with_their_options_and_without_the_device(tmp_path: Path) -> None:
    model = str(write_model(tmp_path)[0])
    cuda = "CUDAExecutionProvider"
    digests = [
        key_of(ortmulti.Model(model), providers).digest
        for providers in (
            CPU,
            [(cuda, {"device_id": "0"})],
            [(cuda, {"device_id": "1", "gpu_mem_limit": "1000"})],
            [(cuda, {"device_id": "0", "use_tf32": "0"})],
            [(cuda, {"device_id": "0"}), *CPU],
        )
    ]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 4


def test_a_data_file_that_changed_changes_the_key(tmp_path: Path) -> None:
    model, data = write_model(tmp_path)
    before = key(model)
    status = data.stat()
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert key(model).digest != before.digest
    assert before.changed_source() == str(data.resolve())
    copy = tmp_path / "copy"
    shutil.copy2(data, copy)
    copy.replace(data)  # same path, size, time and content; another file
    assert key(model).digest != before.digest


def test_a_data_file_written_anew_with_its_old_time_changes_the_key(tmp_path: Path) -> None:
    model, data = write_model(tmp_path)
    before = key(model)
    write_anew(data, b"others")
    assert key(model).digest != before.digest


@pytest.mark.parametrize("place", onnx_models.external_places())
def test_data_files_of_all_tensors_belong_to_the_key(tmp_path: Path, place: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.external_places()[place].SerializeToString())
    data = [tmp_path / name for name in (("a.bin", "b.bin") if "sparse" in place else ("a.bin",))]
    for file in data:
        file.write_bytes(bytes(64))
    for file in data:
        before = key(model)
        assert [Path(source.name) for source in before.sources] == [model.resolve(), *data]
        os.utime(file, ns=(0, 0))
        assert key(model).digest != before.digest
        assert before.changed_source() == str(file)
        before = key(model)


def test_weights_inside_the_model_count_by_its_identity(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(onnx_models.matmul(32))
    before = key(model)
    os.utime(model, ns=(0, 0))
    assert key(model).digest != before.digest


def test_a_model_in_memory_counts_by_its_bytes() -> None:
    model = bytearray(onnx_models.matmul(32))
    keys = [key_of(ortmulti.Model(source), CPU) for source in (bytes(model), model, memoryview(model))]
    assert len({key.digest for key in keys}) == 1
    assert (keys[0].sources, keys[0].model) == ((), "")
    model[len(model) // 2] ^= 1  # in a weight
    assert key_of(ortmulti.Model(model), CPU).digest != keys[0].digest


def test_a_model_in_memory_finds_its_data_where_the_options_say(tmp_path: Path) -> None:
    path, data = write_model(tmp_path)
    entry = "session.model_external_initializers_file_folder_path", str(tmp_path)
    options = _options(add_session_config_entry=entry)
    found = key_of(ortmulti.Model(path.read_bytes()), CPU, options).sources
    assert [source.name for source in found] == [str(data.resolve())]
    with pytest.raises(ortmulti.NotOptimizable, match="no folder is named"):
        key_of(ortmulti.Model(path.read_bytes()), CPU)
    with pytest.raises(ortmulti.NotOptimizable, match="names another folder"):
        key_of(ortmulti.Model(path), CPU, options)


def test_a_model_that_is_a_link_finds_its_data_beside_the_link(tmp_path: Path) -> None:
    """As ONNX Runtime does."""
    model, data = write_model(tmp_path / "real")
    link = tmp_path / "link.onnx"
    link.symlink_to(model)
    with pytest.raises(ortmulti.NoSuchFile, match=data.name):
        key(link)
    (tmp_path / data.name).symlink_to(data)
    assert [source.name for source in key(link).sources] == [str(model.resolve()), str(data.resolve())]
    assert key(link).digest == key(model).digest


def _names(folder: Path, location: str) -> Path:
    model = onnx_models.external_places()["attribute"]
    model.graph.node[0].attribute[0].t.external_data[0].value = location
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_data_files_are_regular_files_in_the_folder_of_the_model(tmp_path: Path) -> None:
    folder, outside = tmp_path / "model", tmp_path / "outside.bin"
    folder.mkdir()
    outside.write_bytes(bytes(64))
    (folder / "link").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    for location, problem in (
        ("../outside.bin", "outside of the model's folder"),
        ("link", "outside of the model's folder"),
        ("up/outside.bin", "outside of the model's folder"),
        (str(outside), "must be relative"),
        ("", "names no file"),
        ("a\0b", "names no file"),
        ("fifo", "not a regular file"),
        (".", "not a regular file"),
        ("none", "No such file"),
        ("x" * 5000, "File name too long"),
    ):
        with pytest.raises((ortmulti.NoSuchFile, ortmulti.NotOptimizable), match=problem):
            key(_names(folder, location))


def test_a_model_file_that_cannot_be_opened_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "model.onnx"
        path.write_bytes(onnx_models.matmul())
        model = ortmulti.Model(path)
        path.unlink()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            with pytest.raises(ortmulti.NoSuchFile, match=r"model\.onnx' is not a regular file"):
                key(model)
        path.unlink()
        path.write_bytes(onnx_models.matmul())
        path.chmod(0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # root may read everything
            with pytest.raises(ortmulti.NotOptimizable, match=r"model\.onnx': Permission denied"):
                key(model)
        finally:
            os.seteuid(user)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    model, data = write_model(tmp_path)
    data.unlink()
    with pytest.raises(ortmulti.NoSuchFile, match=data.name):
        key(model)
    with pytest.raises(ortmulti.NoSuchFile, match=r"none\.onnx"):
        key(tmp_path / "none.onnx")
    (tmp_path / "model.ort").write_bytes(b"\x20\0\0\0ORTM" + bytes(100))
    with pytest.raises(ortmulti.NotOptimizable, match="not an ONNX protobuf"):
        key(tmp_path / "model.ort")
    emptied = ortmulti.Model(tmp_path / "model.ort")
    (tmp_path / "model.ort").write_bytes(b"")
    with pytest.raises(ortmulti.NotOptimizable, match="is empty"):
        key(emptied)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_any_changed_byte_of_a_graph_changes_the_key(tmp_path: Path, data: st.DataObject) -> None:
    """All bytes outside of the weights: names, attributes, small tensors and where the weights begin and end."""
    proto = onnx_models.matmul_proto(32, 2)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(9, dtype=np.float32), "small"))
    for number, tensor in enumerate(proto.graph.initializer):
        if number < 2:
            tensor.raw_data = bytes([number + 1]) * 4096
    model = bytearray(proto.SerializeToString())
    weights = [model.index(bytes([number]) * 4096) for number in (1, 2)]
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    before = key(path).facts["graph"]
    outside = [place for place in range(len(model)) if not any(begin <= place < begin + 4096 for begin in weights)]
    place = data.draw(st.sampled_from(outside))
    model[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(model)
    with contextlib.suppress(ortmulti.NotOptimizable, ortmulti.NoSuchFile):  # no model any more
        assert key(path).facts["graph"] != before
    inside = weights[0] + data.draw(st.integers(0, 4095))
    model[place] = proto.SerializeToString()[place]
    model[inside] ^= 255
    path.write_bytes(model)
    assert key(path).facts["graph"] == before


def test_the_graph_of_a_large_model_is_hashed_without_its_weights(tmp_path: Path) -> None:
    """Weights that no hash function would get through in that time: a sparse file of 1.9 GB."""
    proto = onnx_models.matmul_proto(8, 1)
    tensor = onnx.TensorProto(name="large", data_type=onnx.TensorProto.UINT8, dims=[1_900_000_000])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="large")
    proto.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1_900_000_000)
    blocks = Path("/proc/self/io")
    before = int(blocks.read_text().split()[1])
    key(path)
    assert int(blocks.read_text().split()[1]) - before < 1_000_000


def test_a_model_is_indexed_where_it_lies() -> None:
    model = onnx_models.matmul(32)

    def names(source: Any) -> list[bytes]:
        return [initializer.name for initializer in _core.index_model(source).initializers]

    assert names(model) == names(bytearray(model)) == names(memoryview(model)) == [b"weight0", b"weight1"]
    for other in (np.zeros(8, np.float32), np.zeros((8, 8), np.uint8), np.zeros(8, np.uint8)[::2], None):
        with pytest.raises(TypeError):
            _core.index_model(other)


def test_somebodys_own_build_counts_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = write_model(tmp_path)
    installed = libraries.find_onnxruntime()
    before = key(model)
    monkeypatch.setenv(libraries.OVERRIDE, str(installed.path))
    found = key(model)
    assert found.digest != before.digest
    assert found.facts["onnxruntime"] == [installed.version, _core.file_source(str(installed.path)).identity]
