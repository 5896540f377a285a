"""Tensors of the types that NumPy has not, and ml_dtypes has, in and out of a run, beside onnxruntime's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from tests.support import onnx_models
from tests.support.arrays import LAYOUTS
from tests.support.processes import lines
from tests.support.values import assert_same, casting, model, pair, tensor

# (element type, its dtype in ml_dtypes); those that ONNX Runtime 1.21 has.
SMALL = [
    (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    (TensorProto.UINT4, ml_dtypes.uint4),
    (TensorProto.INT4, ml_dtypes.int4),
]
small = pytest.mark.parametrize(("element", "dtype"), SMALL, ids=[np.dtype(dtype).name for _, dtype in SMALL])


def every_value(dtype: Any) -> Any:
    """Every finite value of a type; of bfloat16, some of each exponent."""
    name = np.dtype(dtype).name
    if "int" in name:
        info = ml_dtypes.iinfo(dtype)
        return np.arange(info.min, info.max + 1).astype(dtype)
    bits = np.arange(0, 1 << 16, 37, dtype=np.uint16) if name == "bfloat16" else np.arange(256).astype(np.uint8)
    values = bits.view(dtype)
    return values[np.isfinite(values.astype(np.float32))]


@small
def test_small_types_arrive(element: int, dtype: Any) -> None:
    """onnxruntime's run takes no such array; the model's result is what ml_dtypes says."""
    theirs, ours = pair(casting(element, back=True))
    values = every_value(dtype)
    even = values[: values.size // 2 * 2].reshape(-1, 2)
    layouts = [change(even) for name, change in LAYOUTS.items() if name != "other byte order"]
    for array in (values, values[1:], values[::-1], values[:0], values[1], values.reshape(1, -1, 1), *layouts):
        [result] = ours.run(None, {"x": array})
        assert_same(result, np.asarray(array).astype(np.float32))
    with pytest.raises(RuntimeError):
        theirs.run(None, {"x": values})


@small
def test_small_types_return(element: int, dtype: Any) -> None:
    """As from onnxruntime, where it returns them."""
    theirs, ours = pair(casting(element, back=False))
    for values in (every_value(dtype), every_value(dtype)[1:], every_value(dtype)[:0].reshape(3, 0)):
        feed = {"x": values.astype(np.float32)}
        [result] = ours.run(None, feed)
        try:
            assert_same([result], theirs.run(None, feed))
        except RuntimeError as error:
            assert "No corresponding Numpy type" in str(error)  # noqa: PT017 - which types it has differs by release
        if element == TensorProto.FLOAT8E4M3FN:
            assert result.dtype == np.uint8
            result = result.view(dtype)
        assert_same(result, values)
        assert result.flags.writeable


@small
def test_other_dtypes_for_small_types(element: int, dtype: Any) -> None:
    """Lists and numbers are converted."""
    _, ours = pair(casting(element, back=True))
    for value in ([[1, 2], [3, 4]], 3):
        assert_same(ours.run(None, {"x": value})[0], np.array(value, np.float32))
    other = ml_dtypes.float8_e5m2 if dtype is not ml_dtypes.float8_e5m2 else ml_dtypes.bfloat16
    for wrong in (np.uint8, np.uint16, np.int8, np.float16, np.float32, object, other):
        with pytest.raises(ortmulti.InvalidType, match=rf"'x'.*dtype ml_dtypes\.{np.dtype(dtype).name}; got"):
            ours.run(None, {"x": np.ones(2).astype(wrong)})


@pytest.mark.parametrize("count", range(9))
def test_packed_types_of_every_length_pass_through(count: int) -> None:
    type_ = tensor(TensorProto.INT4)
    _, ours = pair(model([], {"x": type_}, {"x": type_}, opset=21))
    values = np.arange(-4, count - 4).astype(ml_dtypes.int4)
    [result] = ours.run(None, {"x": values})
    assert_same(result, values)


def test_an_input_of_a_small_type_that_is_also_an_output_is_copied() -> None:
    type_ = tensor(TensorProto.BFLOAT16)
    _, ours = pair(model([], {"x": type_}, {"x": type_}, opset=21))
    x = np.arange(5).astype(ml_dtypes.bfloat16)
    for array in (x, x[::-1], x.astype(x.dtype.newbyteorder())):
        [result] = ours.run(None, {"x": array})
        assert_same(result, array.astype(ml_dtypes.bfloat16))
        assert not np.shares_memory(result, array)


def test_ml_dtypes_is_imported_when_it_is_needed_and_missed_by_name() -> None:
    code = """
        session().run(None, {"x": x})
        print("ml_dtypes" in sys.modules)
        sys.modules["ml_dtypes"] = None  # as if it were not installed
        for text, value in ((sys.argv[2], np.ones(2, np.float32)), (sys.argv[3], [1, 2])):
            print(error_of(om.InferenceSession(bytes.fromhex(text)).run, None, {"x": value}))
    """
    others = casting(TensorProto.BFLOAT16, back=False).hex(), casting(TensorProto.INT4, back=True).hex()
    loaded, bfloat16, int4 = lines(code, onnx_models.one_node("Neg"), *others)
    assert loaded == "False"
    for line, kind in ((bfloat16, "tensor(bfloat16)"), (int4, "tensor(int4)")):
        assert line.startswith("NotImplemented: ")
        assert kind in line
        assert "pip install" in line


@pytest.mark.parametrize("back", [True, False], ids=["in", "out"])
@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        *SMALL,
        *(
            (getattr(TensorProto, name), getattr(ml_dtypes, name.lower()))
            for name in ("UINT2", "INT2")
            if hasattr(TensorProto, name)
        ),
    ],
    ids=lambda value: "" if isinstance(value, int) else np.dtype(value).name,
)
def test_a_pool_takes_and_returns_what_a_session_does(element: int, dtype: Any, back: bool) -> None:
    newer = np.dtype(dtype).name in ("uint2", "int2")
    types = tensor(element), tensor(TensorProto.FLOAT)
    x, y = types if back else types[::-1]
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT if back else element)
    content = model([cast], {"x": x}, {"y": y}, opset=25) if newer else casting(element, back=back)
    values = every_value(dtype).reshape(-1, 1)
    feed = {"x": values if back else values.astype(np.float32)}
    try:
        session = ortmulti.InferenceSession(content, providers=["CPUExecutionProvider"])
    except ortmulti.Error as error:
        pytest.skip(f"this ONNX Runtime has no such cast: {error}")
    expected = session.run(None, feed)
    parts_of_bytes = back and np.dtype(dtype).name in ("uint4", "int4", "uint2", "int2")  # which are not joined
    batching = None if parts_of_bytes else ortmulti.Batching(8)
    with ortmulti.load(content, "cpu", batching=batching) as pool:
        assert_same(pool.run(None, feed), expected)
        for future in [pool.submit(None, feed) for _ in range(4)]:
            assert_same(future.result(), expected)
