"""What ONNX Runtime saved, split into a small graph and the weights that the original's files do not have."""

from __future__ import annotations

import copy
import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, external_data_helper, helper, numpy_helper

import ortmulti
from ortmulti import _core
from tests.support import onnx_models
from tests.support.generated_models import NAMES, initializers, models, value
from tests.support.processes import check_child
from tests.support.weight_lists import bytes_of

ALIGNMENT = 256


def put_outside(tensor: TensorProto, file: Path, padding: int = 0) -> None:
    """Moves a tensor's raw_data to the end of a file."""
    with file.open("ab") as data:
        data.write(bytes(padding))
        offset = data.tell()
        data.write(tensor.raw_data)
    external_data_helper.set_external_data(tensor, file.name, offset, len(tensor.raw_data))
    tensor.ClearField("raw_data")


def load(tensor: TensorProto, folder: Path) -> bytes:
    """A tensor's bytes, as the onnx package finds them."""
    return numpy_helper.to_array(tensor, str(folder)).tobytes()


class Folders:
    """An original model with its data, and the folder of a split one."""

    def __init__(self, parent: Path) -> None:
        self.original, self.saved, self.entry = (parent / name for name in ("original", "saved", "entry"))
        for folder in (self.original, self.saved, self.entry):
            folder.mkdir()

    def save(self, original: onnx.ModelProto | None, saved: onnx.ModelProto) -> None:
        if original is not None:
            (self.original / "model.onnx").write_bytes(original.SerializeToString())
        (self.saved / "model.onnx").write_bytes(saved.SerializeToString())

    def split(self, *unshared: str, from_bytes: bool = False) -> tuple[_core.WeightList, int]:
        original = "" if from_bytes else str(self.original / "model.onnx")
        saved = str(self.saved / "model.onnx")
        return _core.split_optimized_model(saved, original, str(self.original), str(self.entry), unshared)

    def model(self) -> onnx.ModelProto:
        return onnx.load(self.entry / "model.onnx", load_external_data=False)

    def files(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.entry.iterdir()}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@given(models(), st.data())
def test_a_split_model_has_every_value_and_stores_none_twice(
    tmp_path_factory: pytest.TempPathFactory, saved: onnx.ModelProto, data: st.DataObject
) -> None:
    folders = Folders(tmp_path_factory.mktemp("split"))
    wanted = [numpy_helper.to_array(tensor).tobytes() for tensor in initializers(saved)]
    for tensor in initializers(saved):
        if tensor.HasField("raw_data") and data.draw(st.booleans()):
            put_outside(tensor, folders.original / "w.bin", data.draw(st.integers(0, 5)))
    original = data.draw(st.none() | st.just(copy.deepcopy(saved)) | models())
    folders.save(original, saved)
    unshared = data.draw(st.sets(st.sampled_from(NAMES)))

    weights, own_bytes = folders.split(*unshared, from_bytes=original is None)

    shared = bytes_of(weights)
    names = [tensor.name for tensor in initializers(saved)]
    assert len(weights.weights) == len(shared)
    assert not unshared & shared.keys()
    # What is only read from the original's files is not in weights.bin; all in it is aligned.
    assert folders.files().get("weights.bin", 0) == own_bytes
    for tensor, content in zip(initializers(folders.model()), wanted, strict=True):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.name in shared:
            assert names.count(tensor.name) == 1
            assert shared[tensor.name] == content
            assert len(content) >= _core.MIN_SHARED_BYTES
            if entries["location"] != "shared":  # it lies in the entry, where a session finds it
                assert entries["location"] == "weights.bin"
                assert load(tensor, folders.entry) == content
        else:
            assert entries.get("location", "weights.bin") == "weights.bin"
            assert int(entries.get("offset", 0)) % ALIGNMENT == 0
            assert load(tensor, folders.entry) == content
    own = str((folders.entry / "weights.bin").resolve())
    assert all(w.offset % ALIGNMENT == 0 for w in weights.weights if weights.sources[w.source].name == own)
    assert (folders.entry / "shared").stat().st_size == 0
    # And nothing else is another than before.
    split = folders.model()
    for tensor in (*initializers(saved), *initializers(split)):
        for field in ("raw", "external", "float", "int32", "int64", "double"):
            tensor.ClearField(f"{field}_data")
        tensor.ClearField("data_location")
    assert split == saved
    assert sorted(folders.files()) == sorted({"model.onnx", "shared"} | ({"weights.bin"} if own_bytes else set())) or (
        own_bytes == 0 and folders.files()["weights.bin"] == 0
    )


def big(name: str, seed: int, size: int = 1000) -> TensorProto:
    return numpy_helper.from_array(value([size], np.float32, seed), name)


def model_of(*weights: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "graph", [], [], list(weights)), ir_version=8)


def test_an_unchanged_model_is_stored_as_its_graph_alone(folders: Folders) -> None:
    outside = big("outside", 1)
    put_outside(outside, folders.original / "w.bin", 3)
    model = model_of(outside, big("inside", 2), big("tiny", 3, 10))
    folders.save(model, model)

    weights, own_bytes = folders.split()

    assert own_bytes == 0
    assert sorted(folders.files()) == ["model.onnx", "shared"]
    assert folders.files()["model.onnx"] < 500
    assert bytes_of(weights) == {"outside": value([1000], np.float32, 1).tobytes(), "inside": big("", 2).raw_data}
    paths = {weight.name: weights.sources[weight.source].name for weight in weights.weights}
    assert paths == {
        "outside": str((folders.original / "w.bin").resolve()),
        "inside": str((folders.original / "model.onnx").resolve()),
    }


def test_changed_and_new_weights_are_stored(folders: Folders) -> None:
    folders.save(
        model_of(big("changed", 1), big("longer", 1), big("same", 2)),
        model_of(big("changed", 3), big("longer", 1, 1001), big("same", 2), big("new", 4)),
    )
    weights, own_bytes = folders.split()
    assert bytes_of(weights) == {
        "changed": big("", 3).raw_data,
        "longer": big("", 1, 1001).raw_data,
        "same": big("", 2).raw_data,
        "new": big("", 4).raw_data,
    }
    assert own_bytes == 4096 + 4096 + 4000


def test_a_model_of_bytes_has_all_its_own_weights_stored(folders: Folders) -> None:
    folders.save(None, model_of(big("a", 1)))
    weights, own_bytes = folders.split(from_bytes=True)
    assert own_bytes == 4000
    assert bytes_of(weights) == {"a": big("", 1).raw_data}


def test_weights_that_were_refused_before_lie_where_onnx_runtime_reads_them(folders: Folders) -> None:
    outside = big("outside", 1)
    put_outside(outside, folders.original / "w.bin")
    model = model_of(outside, big("inside", 2), big("shared", 3))
    folders.save(model, model)
    weights, own_bytes = folders.split("outside", "inside")
    assert list(bytes_of(weights)) == ["shared"]
    assert own_bytes == 4096 + 4000
    left_out = sorted((one.name, one.reason) for one in weights.left_out)
    assert left_out == [(name, "it was not taken before") for name in ("inside", "outside")]


def test_a_second_splitting_replaces_the_first(folders: Folders) -> None:
    folders.save(None, model_of(big("a", 1), big("b", 2)))
    folders.split(from_bytes=True)
    folders.save(None, model_of(big("tiny", 1, 3)))
    weights, own_bytes = folders.split(from_bytes=True)
    assert (weights.weights, own_bytes) == ([], 0)
    assert sorted(folders.files()) == ["model.onnx", "shared"]


def test_a_data_file_that_is_missing_or_short_leaves_nothing_behind(folders: Folders) -> None:
    outside = big("outside", 1)
    put_outside(outside, folders.original / "w.bin")
    folders.save(None, model_of(big("new", 1), outside))
    data = folders.original / "w.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ortmulti.Fail, match=r"external data of 'outside' in 'w\.bin'"):
        folders.split(from_bytes=True)
    data.unlink()
    with pytest.raises(ortmulti.NoSuchFile, match=r"external data of 'outside' in 'w\.bin'"):
        folders.split(from_bytes=True)
    assert folders.files() == {}


def test_a_saved_model_with_data_in_attributes_is_refused(folders: Folders) -> None:
    folders.save(None, onnx_models.external_places()["attribute"])
    (folders.original / "a.bin").write_bytes(bytes(64))
    with pytest.raises(ortmulti.Fail, match=r"a\.bin.*attributes"):
        folders.split(from_bytes=True)
    assert folders.files() == {}


@given(st.binary(max_size=100))
def test_a_saved_model_that_is_none_leaves_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folders = Folders(tmp_path_factory.mktemp("none"))
    (folders.saved / "model.onnx").write_bytes(b"\x07" + content)
    with pytest.raises(ortmulti.InvalidProtobuf):
        folders.split(from_bytes=True)
    assert folders.files() == {}


@given(models(), st.data())
def test_a_damaged_model_is_split_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, model: onnx.ModelProto, data: st.DataObject
) -> None:
    content = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    folders = Folders(tmp_path_factory.mktemp("damaged"))
    (folders.saved / "model.onnx").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        folders.split(from_bytes=True)
    except ortmulti.Error:
        assert folders.files() == {}
        return
    before, after = (_core.index_model(str(folder / "model.onnx")) for folder in (folders.saved, folders.entry))
    assert [each.name for each in after.initializers] == [each.name for each in before.initializers]


def test_without_a_folder_data_lies_in_the_working_folder(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = big("outside", 1)
    put_outside(outside, folders.original / "w.bin")
    folders.save(None, model_of(outside))
    arguments = (str(folders.saved / "model.onnx"), "", "", str(folders.entry), [])
    monkeypatch.chdir(folders.entry)
    with pytest.raises(ortmulti.NoSuchFile, match=r"cannot open './w\.bin'"):
        _core.split_optimized_model(*arguments)
    monkeypatch.chdir(folders.original)
    assert bytes_of(_core.split_optimized_model(*arguments)[0]) == {"outside": big("", 1).raw_data}


def save_zeros(folders: Folders, size: int) -> Path:
    """Saves a model with one tensor of zeros in a file of its own, which takes no room on the disk. The file's path."""
    data = folders.original / "w.bin"
    with data.open("wb") as file:
        file.truncate(size)
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[size], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    folders.save(None, model_of(tensor))
    return data


@pytest.mark.parametrize("change", ["shrinks", "is written to"])
def test_a_data_file_that_changes_while_it_is_copied_is_one_error(folders: Folders, change: str) -> None:
    size = 512 << 20
    data = save_zeros(folders, size)

    def change_it() -> None:
        copied = folders.entry / "weights.bin"
        while not ended.is_set() and not (copied.exists() and copied.stat().st_size > 0):
            pass
        with data.open("r+b") as file:
            if change == "shrinks":
                file.truncate(size // 2)
            else:
                file.write(b"x")

    os.utime(data, (0, 0))  # changed long ago: file systems' clocks are coarse
    ended = threading.Event()
    thread = threading.Thread(target=change_it)
    thread.start()
    with pytest.raises(ortmulti.WeightsError, match=r"w\.bin' (ends at byte|was changed or replaced)"):
        folders.split("w", from_bytes=True)
    ended.set()
    thread.join()
    assert folders.files() == {}


def test_ctrl_c_ends_a_split(folders: Folders) -> None:
    save_zeros(folders, 4 << 30)  # a second's work, or more

    def interrupt() -> None:
        while not folders.files().get("weights.bin"):
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        folders.split("w", from_bytes=True)
    thread.join()
    assert folders.files() == {}


def test_a_folder_that_is_not_there_is_named(folders: Folders) -> None:
    folders.save(None, model_of(big("new", 1)))
    folders.entry.rmdir()
    with pytest.raises(ortmulti.Fail, match=r"cannot write '.*/entry/weights.bin': No such file or directory"):
        folders.split(from_bytes=True)


@pytest.mark.parametrize(("room", "file"), [(1_000_000, "weights.bin"), (1, "weights.bin"), (4_100_000, "model.onnx")])
def test_a_full_disk_is_one_error_and_leaves_nothing_behind(folders: Folders, room: int, file: str) -> None:
    # A limit on files' sizes makes writes short and then fail, as a full disk does.
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [1_100_000], np.ones(1_100_000, np.float32))
    folders.save(None, model_of(big("new", 1, 1_000_000), typed))
    code = """
        import resource, sys
        from ortmulti import _core
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]),) * 2)
        try:
            _core.split_optimized_model(sys.argv[1], "", sys.argv[2], sys.argv[3], [])
        except Exception as error:
            print(type(error).__name__, error)
    """
    printed = check_child(code, folders.saved / "model.onnx", folders.original, folders.entry, room)
    assert printed == f"Fail [ONNXRuntimeError] : 1 : FAIL : cannot write '{folders.entry / file}': File too large\n"
    assert folders.files() == {}


def test_copying_takes_little_memory(folders: Folders) -> None:
    # 256 MB are copied from the data file; pages of files that are mapped or cached are nobody's memory.
    save_zeros(folders, 256 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, own_bytes = folders.split("w", from_bytes=True)
    assert own_bytes == 256 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
