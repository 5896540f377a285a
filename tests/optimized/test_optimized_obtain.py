"""Entries for sessions that are being created: found, made, made again, and what sessions over weights do with them.

Sessions that share weights are on GPUs; here the same code creates them on the CPU.
"""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import _core
from ortmulti._runtime.threads import Task
from ortmulti.bench.models import sample_inputs
from ortmulti.devices.device import Device
from ortmulti.loading.creation import Creation
from ortmulti.loading.plan import why_not_worth_it
from ortmulti.optimized import Cache, CacheRequest, Entry, StagedEntry, compute_capability, key_of
from tests.support import creations, onnx_models
from tests.support.cached_models import CPU, add_endless_file
from tests.support.optimized_models import PROTOS, run_ordinary, same_bits, write
from tests.support.processes import check_child, nothing_leaks

X = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return creations.own_cache(tmp_path, monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(onnx_models.write_external(tmp_path)[0])


def request_of(model: str) -> CacheRequest:
    return CacheRequest(ortmulti.Model(model), CPU, None, [Device("cpu")])


def load(model: str | bytes, **arguments: Any) -> tuple[list[str], list[str]]:
    """Creates two sessions and runs them; the names of the spans of that, and why nothing was shared."""
    made = creations.over_entry(model, **arguments)
    with onnx_models.cpu_session(model) as usual:
        expected = usual.run(None, {"x": X})[0]
    for session in made.sessions.values():
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
        session.close()
    return [span.name for span in made.timeline.spans], made.timeline.not_shared


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_is_made_once_is_found(tmp_path: Path, cache: Cache, in_memory: bool) -> None:
    model = onnx_models.matmul() if in_memory else str(onnx_models.write_external(tmp_path)[0])
    message = "a model of .* bytes" if in_memory else r"'/.*model\.onnx'"
    with pytest.raises(ortmulti.NotFound, match=f"^there is no optimized form of {message} for .*ortmulti optimize"):
        load(model, optimize="offline")
    assert cache.entries() == []
    spans, not_shared = load(model)
    assert not_shared == []
    assert {"find optimized model", "publish optimized model"} <= set(spans)
    assert ("optimize model" in spans) == in_memory  # of a file, the sessions do it themselves
    for optimize in ("auto", "offline"):
        spans, not_shared = load(model, optimize=optimize)
        assert not_shared == []
        assert "find optimized model" in spans
        assert not {"optimize model", "publish optimized model"} & set(spans)
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("how", ["external", "inline"])
@pytest.mark.parametrize("name", PROTOS)
def test_the_first_load_and_the_next_compute_the_same_bits(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    model = write(tmp_path / "model", PROTOS[name](), how)
    assert isinstance(model, str)
    feeds = sample_inputs(model, 3)
    both = [feeds, {**feeds, "c": np.array(~feeds["c"])}] if "c" in feeds else [feeds]
    expected = [run_ordinary(model, each) for each in both]
    log = logging.getLogger("ortmulti.onnxruntime")
    with caplog.at_level(logging.INFO, log.name):
        for source in ("made", "found"):
            made = creations.over_entry(model)
            for session in made.sessions.values():
                assert all(map(same_bits, [session.run(None, each) for each in both], expected)), source
                session.close()
            assert made.timeline.not_shared == []
    [stored] = cache.entries()
    assert {path.name for path in stored.folder.iterdir()} - {"weights.bin"} == {
        "manifest.json",
        "model.onnx",
        "shared",
    }
    assert [path.name for path in (cache.folder / "staging").iterdir()] == []
    assert not any("Serializing optimized model" in record.getMessage() for record in caplog.records)


def test_a_weight_that_the_optimization_changes_under_its_name_is_noticed(tmp_path: Path) -> None:
    model = write(tmp_path / "model", PROTOS["with_changed_constants"](), "external")
    spans = [span.name for span in creations.over_entry(model, 1).timeline.spans]
    assert "the model is optimized before its sessions: that changes the weight c" in spans
    assert "optimize model" in spans


@pytest.mark.parametrize("linked", ["model", "both"])
def test_a_model_behind_links_is_made_and_found(tmp_path: Path, cache: Cache, linked: str) -> None:
    """As the caches of model hubs keep them: links in one folder, the files in another."""
    proto = onnx_models.matmul_proto()
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    snapshot.mkdir()
    write(blobs, proto, "inline" if linked == "model" else "external")
    names = ["model.onnx"] if linked == "model" else ["model.onnx", "model.data"]
    for name in names:
        (blobs / name).rename(blobs / f"0{name}")
        (snapshot / name).symlink_to(blobs / f"0{name}")
    model = str(snapshot / "model.onnx")
    assert load(model)[1] == []
    assert "publish optimized model" not in load(model)[0]
    assert len(cache.entries()) == 1


def test_a_graph_too_large_for_its_weights_is_loaded_by_each_session(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(3000)]
    value = (TensorProto.FLOAT, [3, 64])
    large = onnx_models.model(nodes, [("v0", *value)], [("v3000", *value)])
    (tmp_path / "large.onnx").write_bytes(large.SerializeToString())
    for model, sessions in ((large.SerializeToString(), 2), (str(tmp_path / "large.onnx"), 1)):
        reason = why_not_worth_it(ortmulti.Model(model), sessions)
        assert reason == "0.0 MB of weights are too little to share for a graph of 3000 nodes"
    assert why_not_worth_it(ortmulti.Model(onnx_models.matmul()), 1) == ""
    assert why_not_worth_it(ortmulti.Model(b"no model"), 1) == ""


def test_a_large_model_in_memory_is_loaded_by_each_session_unless_several_share_a_device(tmp_path: Path) -> None:
    model = onnx_models.matmul(size=3500, layers=3)
    (tmp_path / "model.onnx").write_bytes(model)
    reason = "finding the entry of a model of 147.0 MB in memory takes longer than sharing saves"
    assert why_not_worth_it(ortmulti.Model(model), 1) == reason
    assert why_not_worth_it(ortmulti.Model(model), 2) == ""
    assert why_not_worth_it(ortmulti.Model(tmp_path / "model.onnx"), 1) == ""


@pytest.mark.parametrize("how", ["load", "optimize"])
def test_ctrl_c_ends_the_comparison_of_checksums(model: str, cache: Cache, how: str) -> None:
    load(model)
    [stored] = cache.entries()
    add_endless_file(stored.folder)
    printed = check_child(
        """
        import os, signal, sys, threading
        import ortmulti
        from tests.optimized import test_optimized_obtain as helpers
        from tests.support.processes import files, nothing_leaks

        def interrupt():
            while not any(name.endswith("endless") for name in files()):
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)

        ortmulti.RunOptions()  # starts the thread that emits the log
        with nothing_leaks():
            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                helpers.load(sys.argv[1]) if sys.argv[2] == "load" else ortmulti.optimize(sys.argv[1], "cpu")
            except KeyboardInterrupt:
                print("interrupted")
            thread.join()
        """,
        model,
        how,
    )
    assert printed == "interrupted\n"
    assert [entry.folder for entry in cache.entries()] == [stored.folder]


def test_ctrl_c_at_each_line_of_the_wait_for_the_checksums(model: str, cache: Cache) -> None:
    load(model)
    add_endless_file(cache.entries()[0].folder)
    waits: set[int] = set()  # lines of the wait itself, which repeats them until the comparison has ended

    def interrupted_at(line: int) -> bool:
        left = line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if left == line and frame.f_code is not Creation.arrived.__code__:
                return None
            left -= event == "line"
            if event == "line" and left == 0:
                if frame.f_code is Task.wait.__code__:
                    repeated.append(frame.f_lineno in waits)
                    waits.add(frame.f_lineno)
                raise KeyboardInterrupt
            return trace

        repeated: list[bool] = []
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                load(model)
        finally:
            sys.settrace(None)
        return any(repeated)

    with nothing_leaks():
        lines = next(line for line in itertools.count(1) if interrupted_at(line))
    assert lines > len(waits) > 3


def test_an_entry_that_cannot_be_read_is_made_anew(model: str, cache: Cache) -> None:
    """A file is as large as it should be; reading it is an error of the system."""
    load(model)
    [stored] = cache.entries()
    entry = cache.find(key_of(ortmulti.Model(model), CPU))
    assert entry is not None
    (stored.folder / "shared").unlink()
    (stored.folder / "shared").mkdir()

    def use(_: Entry) -> str:
        with entry:
            entry.verify()
        return "used"

    def make(staged: StagedEntry) -> str:
        staged.discard()
        return "made"

    assert request_of(model).find_or_build(use, make, offline=False) == "made"


def test_what_cannot_be_optimized_is_loaded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(*_: object) -> None:
        raise ortmulti.Fail("of no use")

    monkeypatch.setattr(_core, "split_optimized_model", split)
    assert load(onnx_models.matmul())[1] == ["what ONNX Runtime saved cannot be used: of no use"]


def test_weights_that_are_not_taken_are_left_out(model: str, cache: Cache) -> None:
    seen: list[tuple[str, ...]] = []

    def create(entry: Entry) -> tuple[Entry, list[str]]:
        seen.append(entry.refused)
        return entry, [weight.name for weight in entry.weights.weights[:1]] if len(seen) < 3 else []

    with cache.stage(key_of(ortmulti.Model(model), CPU)) as staged:
        entry = request_of(model).build(staged, create)
        shared = [weight.name for weight in entry.weights.weights]
    assert [len(refused) for refused in seen] == [0, 1, 2]
    assert not set(shared) & set(entry.refused)


def test_weights_that_are_never_taken_are_named(model: str, cache: Cache) -> None:
    with (
        cache.stage(key_of(ortmulti.Model(model), CPU)) as staged,
        pytest.raises(ortmulti.NotOptimizable, match=r"does not take the weights one, two$"),
    ):
        request_of(model).build(staged, lambda _: (None, ["two", "one"]))


def test_gpus_of_one_key_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(index=index, compute_capability=(9, index // 2)) for index in range(3)]
    monkeypatch.setattr(_core, "cuda_devices", lambda: gpus)
    assert compute_capability([Device("cpu")]) is None
    assert compute_capability([Device("cuda", 0), Device("cpu"), Device("cuda", 1)]) == (9, 0)
    with pytest.raises(ortmulti.NotOptimizable, match="different compute capabilities"):
        compute_capability([Device("cuda", 1), Device("cuda", 2)])
