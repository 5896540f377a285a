"""IOBinding and runs with values, against onnxruntime's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

import ortmulti
from ortmulti import OrtValue
from tests.support import gpus, onnx_models
from tests.support.bindings import A, B, bound, make
from tests.support.lifetimes import alive
from tests.support.pools import in_threads


@given(st.permutations(["sum", "product", "first"]), st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_bound_runs_give_onnxruntimes_results(
    session: ortmulti.InferenceSession, theirs: Any, names: list[str], count: int, rows: int, by_address: bool
) -> None:
    random = np.random.default_rng(rows)
    a, b = random.standard_normal((2, rows, 3), dtype=np.float32)
    found = []
    for each in (session, theirs):
        binding = each.io_binding()
        binding.bind_cpu_input("a", a)
        if by_address and rows:  # onnxruntime has an address for no empty array
            binding.bind_input("b", "cpu", 0, np.float32, b.shape, b.ctypes.data)
        else:
            binding.bind_cpu_input("b", b)
        for name in names[:count]:
            binding.bind_output(name)
        binding.synchronize_inputs()
        each.run_with_iobinding(binding)
        binding.synchronize_outputs()
        outputs = binding.get_outputs()
        assert [output.shape() for output in outputs] == [[rows, 3]] * count
        copies = binding.copy_outputs_to_cpu()
        for output, copy in zip(outputs, copies, strict=True):
            np.testing.assert_array_equal(output.numpy(), copy)
        found.append(copies)
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, wanted)
        assert ours.dtype == wanted.dtype


def test_inputs_and_outputs_are_used_where_they_are(session: ortmulti.InferenceSession) -> None:
    """A copy of the outputs does not change with the next run."""
    a, total, product = A.copy(), np.zeros_like(A), np.zeros_like(A)
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_ortvalue_input("b", make(B))
    binding.bind_ortvalue_output("sum", make(total))
    binding.bind_output("product", "cpu", 0, np.float32, product.shape, product.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(total, A + B)
    np.testing.assert_array_equal(product, A * B)
    assert [output.data_ptr() for output in binding.get_outputs()] == [total.ctypes.data, product.ctypes.data]
    copied = binding.copy_outputs_to_cpu()
    a += 1
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(total, A + 1 + B)
    np.testing.assert_array_equal(copied, [A + B, A * B])


def test_strings_can_be_bound() -> None:
    session = ortmulti.InferenceSession(onnx_models.identity(TensorProto.STRING, ["n"]))
    texts = np.array(["x", "yé"], object)
    binding = session.io_binding()
    binding.bind_cpu_input("x", texts)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], texts)
    [output] = session.run_with_ort_values(None, {"x": make(texts)})
    np.testing.assert_array_equal(output.numpy(), texts)


def test_what_is_bound_lives_as_long_as_it_is(session: ortmulti.InferenceSession) -> None:
    arrays = [np.ones((2, 3), np.float32) for _ in range(4)]
    watched = [weakref.ref(array) for array in arrays]
    binding = session.io_binding()
    binding.bind_cpu_input("a", arrays[0])
    binding.bind_ortvalue_input("b", make(arrays[1]))
    binding.bind_ortvalue_output("sum", make(arrays[2]))
    binding.bind_ortvalue_output("product", make(arrays[3]))
    arrays.clear()
    assert alive(*watched) == [True] * 4
    binding.bind_cpu_input("a", A)
    assert alive(*watched) == [False, True, True, True]
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs()
    del binding
    assert alive(*watched) == [False, False, True, True]
    assert (outputs[1].numpy() == A).all()
    array = outputs[0].numpy()
    del outputs
    assert alive(*watched) == [False, False, True, False]
    assert (array == A + 1).all()


def test_a_binding_keeps_its_session() -> None:
    session = ortmulti.InferenceSession(onnx_models.add_mul(3))
    core = session._core
    binding = bound(session)
    watched = weakref.ref(session)
    del session
    assert alive(watched) == [False]
    core_session = ortmulti.InferenceSession._from_core(core, ortmulti.Timeline(), None)
    core_session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], A + B)


def test_a_binding_is_shared_by_threads(session: ortmulti.InferenceSession) -> None:
    binding = bound(session)

    def work(seed: int) -> None:
        for i in range(50):
            binding.bind_cpu_input("a", np.full((2, 3), seed * 100 + i, np.float32))
            session.run_with_iobinding(binding)
            [output] = binding.get_outputs()
            [found] = np.unique(output.numpy() - 2)
            assert found % 1 == 0

    in_threads(4, work)


def test_objects_that_use_the_binding_when_they_are_freed(session: ortmulti.InferenceSession) -> None:
    binding = bound(session)
    freed: list[int] = []

    class Curious(np.ndarray):
        def __del__(self) -> None:
            freed.append(len(binding.get_outputs()))

    for _ in range(3):
        binding.bind_cpu_input("a", np.ones((2, 3), np.float32).view(Curious))
    binding.clear_binding_inputs()
    gc.collect()
    assert freed == [1, 1, 1]


@pytest.mark.gpu
def test_outputs_stay_on_the_gpu() -> None:
    with gpus.cuda_session(onnx_models.add_mul(3)) as session:
        binding = session.io_binding()
        a = make(A, "cuda")
        binding.bind_ortvalue_input("a", a)
        binding.bind_cpu_input("b", B)
        target = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cuda")
        binding.bind_output("sum", "cuda")
        binding.bind_ortvalue_output("product", target)
        session.run_with_iobinding(binding)
        total, product = binding.get_outputs()
        assert (total.device_name(), product.data_ptr()) == ("cuda", target.data_ptr())
        np.testing.assert_array_equal(total.numpy(), A + B)
        np.testing.assert_array_equal(target.numpy(), A * B)
        a.update_inplace(A + 1)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], A + 1 + B)
    np.testing.assert_array_equal(total.numpy(), A + 1 + B)  # later runs write there too, as with onnxruntime


@pytest.mark.gpu
def test_torchs_tensors_are_used_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    with gpus.cuda_session(onnx_models.add_mul(3)) as session:
        a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
        total = torch.empty_like(a)
        binding = session.io_binding()
        binding.bind_input("a", "cuda", 0, np.float32, tuple(a.shape), a.data_ptr())
        b_value = OrtValue.from_dlpack(b)
        assert b_value.data_ptr() == b.data_ptr()
        binding.bind_ortvalue_input("b", b_value)
        binding.bind_output("sum", "cuda", 0, np.float32, tuple(a.shape), total.data_ptr())
        binding.bind_output("product", "cuda")
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        assert torch.equal(total, a + b)
        product = binding.get_outputs()[1]
        taken = torch.from_dlpack(product)
        assert taken.data_ptr() == product.data_ptr()
        assert torch.equal(taken, a * b)
