"""Models whose weights come from sources that are written in Python, in every way to load them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti import Loading
from ortmulti.optimized import Cache
from tests.support import creations, onnx_models
from tests.support.processes import nothing_leaks
from tests.support.python_sources import Stored

SIZE = 512
X = np.random.default_rng(1).standard_normal((3, SIZE), dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return creations.own_cache(tmp_path, monkeypatch)


def proto() -> onnx.ModelProto:
    """Two products with weights of 1 MiB; one with 1.25 MiB, which ONNX Runtime transposes; a small bias."""
    made, random = onnx_models.matmul_proto(SIZE, 2), np.random.default_rng(2)
    made.graph.node[-1].output[0] = "v"
    made.graph.node.extend(
        [
            helper.make_node("Transpose", ["turned"], ["straight"], perm=[1, 0]),
            helper.make_node("MatMul", ["v", "straight"], ["w"]),
            helper.make_node("Add", ["w", "bias"], ["y"]),
        ]
    )
    for name, shape in (("turned", (640, SIZE)), ("bias", (640,))):
        made.graph.initializer.append(numpy_helper.from_array(random.random(shape, np.float32), name))
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 640
    return made


class Given:
    """A model, its source, and its answer as a file."""

    def __init__(self, folder: Path, made: onnx.ModelProto) -> None:
        path, data = onnx_models.write_external(folder / "files", made)
        [self.expected] = onnx_models.cpu_session(path).run(None, {"x": X})
        self.graph, content = path.read_bytes(), data.read_bytes()
        path.unlink()
        data.unlink()
        self.source = Stored({data.name: content}, data.name)

    @property
    def model(self) -> ortmulti.Model:
        return ortmulti.Model(self.graph, {"model.data": self.source})

    def check(self, session: Any) -> None:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], self.expected)

    def read(self) -> int:
        """Bytes that were read since the last call."""
        count = sum(size for _, size in self.source.ranges)
        self.source.ranges.clear()
        return count


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path, proto())


def test_sessions_of_a_pool_read_each_byte_once_and_are_those_over_the_file(given: Given) -> None:
    with ortmulti.load(given.model, "cpu", 2) as pool:
        assert given.read() == given.source.size
        for session in pool.sessions:
            given.check(session)
        assert pool.timeline.not_shared == []
        pool.sleep(level="session")
        given.check(pool)  # wakes
        assert given.read() == given.source.size
        pool.replace_model(given.model)
        given.check(pool)


@pytest.mark.parametrize("loading", [Loading(strategy="native"), Loading(optimize="never"), Loading(wait="none")])
def test_every_way_to_load_takes_sources(loading: Loading, given: Given) -> None:
    with ortmulti.load(given.model, "cpu", loading=loading) as pool:
        np.testing.assert_allclose(pool.run(None, {"x": X})[0], given.expected, rtol=1e-3)
    assert given.read() == given.source.size


def test_a_session_and_a_repository_take_sources(given: Given) -> None:
    given.check(onnx_models.cpu_session(given.model))
    with ortmulti.ModelRepository("cpu") as models:
        models.add("it", given.model)
        np.testing.assert_array_equal(models.run("it", None, {"x": X})[0], given.expected)


def test_an_entry_of_the_cache_has_only_weights_that_an_optimization_changes(given: Given) -> None:
    """Sessions that share weights over an entry are on GPUs; here the same code creates them on the CPU."""
    optimized = ortmulti.optimize(given.model, "cpu")
    assert (optimized.made, optimized.compared, optimized.shared) == (True, True, 4)
    assert optimized.own_bytes == 640 * (SIZE + 1) * 4
    given.read()
    made = creations.over_entry(given.model)
    assert "optimize model" not in [span.name for span in made.timeline.spans]
    assert given.read() == 2 * SIZE * SIZE * 4
    for session in made.sessions.values():
        given.check(session)
    made.close()
    given.source.identity = "memory://other version"
    assert ortmulti.optimize(given.model, "cpu", compare=False).made


def test_sessions_share_the_weights_of_a_model_that_is_not_optimized(given: Given, cache: Cache) -> None:
    made = creations.over_entry(given.model, optimize="never")
    assert given.read() == given.source.size
    for session in made.sessions.values():
        np.testing.assert_allclose(session.run(None, {"x": X})[0], given.expected, rtol=1e-3)
        assert session.weight_use() == (3, [])
    made.close()
    assert cache.entries() == []


def test_sessions_make_the_entry_of_sources(given: Given, cache: Cache) -> None:
    made = creations.over_entry(given.model)
    for session in made.sessions.values():
        given.check(session)
    made.close()
    assert len(cache.entries()) == 1
    assert not ortmulti.optimize(given.model, "cpu").made


def lost(*_: object) -> Any:
    raise ConnectionError("lost")


def short(source: Stored, buffer: memoryview, offset: int) -> Any:
    return source.content[offset : offset + len(buffer) - 1]


def changing(source: Stored, buffer: memoryview, offset: int) -> Any:
    source.identity = "memory://other version"
    return source.content[offset : offset + len(buffer)]


@pytest.mark.parametrize(
    ("read_into", "message"),
    [
        (lost, "failed: ConnectionError: lost$"),
        (short, "bytes came instead of"),
        (changing, "it was changed while it was loaded; load again$"),
    ],
)
@pytest.mark.parametrize("over_entry", [False, True])
def test_an_error_of_a_source_ends_the_load(
    read_into: Callable[..., Any], message: str, over_entry: bool, given: Given
) -> None:
    model = given.model
    if over_entry:
        ortmulti.optimize(model, "cpu")
    given.source.read_into = lambda *arguments: read_into(given.source, *arguments)  # type: ignore[method-assign]
    load = creations.over_entry if over_entry else partial(ortmulti.load, devices="cpu")
    with nothing_leaks(), pytest.raises(ortmulti.Error, match=f"reading 'memory://model.data' at byte .*{message}"):
        load(model)


def test_a_source_that_changed_does_not_wake(given: Given) -> None:
    with ortmulti.load(given.model, "cpu") as pool:
        pool.sleep(level="session")
        given.source.identity = "memory://other version"
        with pytest.raises(ortmulti.WeightsError, match="it was changed while it was loaded"):
            pool.run(None, {"x": X})


def test_a_model_whose_sources_do_not_fit_is_refused(given: Given) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match="only for 'other'"):
        ortmulti.Model(given.graph, {"other": given.source})
    with pytest.raises(ortmulti.InvalidType, match="a source has identity, size and read_into, unlike str"):
        ortmulti.Model(given.graph, {"model.data": "a path"})  # type: ignore[dict-item]
    with pytest.raises(ortmulti.InvalidType, match="graph of a model with sources is bytes, not str: read its file"):
        ortmulti.Model("model.onnx", {})
    with pytest.raises(ortmulti.InvalidProtobuf):
        ortmulti.Model(b"no model", {})
    given.source.size -= 1
    with pytest.raises(ortmulti.WeightsError, match=r"of 'memory://model.data', which has \d+ bytes"):
        ortmulti.Model(given.graph, {"model.data": given.source})


@pytest.mark.parametrize("place", ["attribute", "sub-graph", "sparse initializer"])
def test_external_data_for_which_onnxruntime_takes_no_value_is_refused(place: str) -> None:
    graph = onnx_models.external_places()[place].SerializeToString()
    with pytest.raises(ortmulti.InvalidArgument, match=r"no source can give the data of 'a\.bin': it belongs to no"):
        ortmulti.Model(graph, {})


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_that_no_node_uses_are_not_read(ir_version: int, tmp_path: Path) -> None:
    made = onnx_models.matmul_proto(SIZE, 1)
    made.ir_version = ir_version
    for name, shape in (("small", (64,)), ("large", (SIZE, SIZE)), ("empty", (0,)), ("given", (64,))):
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    for each in made.graph.initializer:
        if (
            ir_version == 3 or each.name == "given"
        ):  # in old models each is one, in newer ones those that a run may give
            made.graph.input.append(helper.make_tensor_value_info(each.name, TensorProto.FLOAT, each.dims))
    given = Given(tmp_path, made)
    with ortmulti.load(given.model, "cpu", 2) as pool:
        given.check(pool)
    assert given.read() == (SIZE * SIZE + (64 if ir_version == 8 else 0)) * 4
    assert ortmulti.optimize(given.model, "cpu").compared


def test_weights_that_only_a_branch_a_function_or_an_output_uses_are_read(tmp_path: Path) -> None:
    made = onnx_models.parsed(
        """
        (float[4] x, bool c) => (float[4] y, float[4] z, float[4] shown, float[0] nothing)
        {
            y = If (c) <
                then_branch = a () => (float[4] s) { s = Add (x, branch) },
                else_branch = b () => (float[4] t) { t = Sub (x, branch) }
            >
            z = d.F (x, argument)
        }
        <domain: "d", opset_import: ["": 17]> F (a, b) => (c) { c = Mul (a, b) }
        """,
        *(
            numpy_helper.from_array(np.full(size, value, np.float32), name)
            for name, size, value in (("branch", 4, 2), ("argument", 4, 3), ("shown", 4, 4), ("nothing", 0, 0))
        ),
    )
    path, data = onnx_models.write_external(tmp_path / "files", made)
    model = ortmulti.Model(path.read_bytes(), {data.name: Stored({data.name: data.read_bytes()}, data.name)})
    with ortmulti.load(model, "cpu") as pool:
        answers = pool.run(None, {"x": np.ones(4, np.float32), "c": np.array(False)})
    assert [answer.tolist() for answer in answers] == [[-1.0] * 4, [3.0] * 4, [4.0] * 4, []]


def test_options_with_weights_that_the_sources_have_are_refused(given: Given) -> None:
    options = ortmulti.SessionOptions()
    options.add_external_initializers(["bias"], [ortmulti.OrtValue.ortvalue_from_numpy(np.zeros(640, np.float32))])
    with pytest.raises(ortmulti.InvalidArgument, match="the model's sources have the external data of 'bias'"):
        ortmulti.load(given.model, "cpu", options=options)
