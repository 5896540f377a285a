"""DLPack between values on a GPU and PyTorch's tensors, onnxruntime's values and CuPy's arrays: copies, lifetimes."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import ortmulti
from ortmulti import InferenceSession, OrtValue
from tests.support import onnx_models
from tests.support.gpus import CUDA, VISIBLE, cuda_session
from tests.support.processes import run_child
from tests.support.torch import WIDTH, bound, numbers

pytestmark = pytest.mark.gpu


# --- Without a copy ---------------------------------------------------------------------------------------------------

TYPES = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}


@pytest.mark.parametrize("shape", [(2, 3), (), (1, 7, 1), (0, 3)], ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_every_type_and_shape_go_both_ways(torch: Any, name: str, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    tensor = (torch.arange(count, device="cuda") % 2).reshape(shape).to(getattr(torch, name))
    value = OrtValue.from_dlpack(tensor)
    assert (value.data_type(), value.shape()) == (f"tensor({TYPES[name]})", list(shape))
    assert (value.device_name(), value.__dlpack_device__()) == ("cuda", (2, 0))
    assert value.data_ptr() == tensor.data_ptr()
    back = torch.from_dlpack(value)
    assert back.data_ptr() == tensor.data_ptr()
    assert (tuple(back.shape), back.device) == (shape, tensor.device)
    assert torch.equal(back.view(torch.bool) if name == "bool" else back, tensor)


def test_runs_read_and_write_pytorchs_memory(torch: Any, session: InferenceSession) -> None:
    a, b = numbers(torch), torch.full((256, WIDTH), 2.0, device="cuda")
    target = torch.zeros_like(a)
    binding = bound(session, OrtValue.from_dlpack(a), OrtValue.from_dlpack(b), "product")
    binding.bind_ortvalue_output("sum", OrtValue.from_dlpack(target))
    session.run_with_iobinding(binding)
    product, total = binding.get_outputs()
    assert total.data_ptr() == target.data_ptr()
    assert torch.equal(target, a + b)
    taken = torch.from_dlpack(product)
    assert taken.data_ptr() == product.data_ptr()
    assert torch.equal(taken, a * b)


def test_vectors_and_values_of_a_sessions_memory_go_to_pytorch(torch: Any, session: InferenceSession) -> None:
    a = session.create_ortvalue_from_shape_and_type([4, WIDTH], np.float32, "cuda")
    assert a.device_name() == "cuda"
    tensor = torch.from_dlpack(a)
    assert tensor.data_ptr() == a.data_ptr()
    tensor.copy_(numbers(torch, 4))
    torch.cuda.synchronize()
    fetches, devices = ortmulti.OrtValueVector(), [ortmulti.OrtDevice.make(name, 0) for name in ("cuda", "cpu", "gpu")]
    session.run_with_ortvaluevector(None, ["a", "b"], [a, a], ["sum", "product", "first"], fetches, devices)
    assert [value.device_name() for value in fetches] == ["cuda", "cpu", "cuda"]
    taken = fetches.to_dlpacks(torch.utils.dlpack.from_dlpack)
    assert [value.data_ptr() for value in fetches] == [output.data_ptr() for output in taken]
    assert torch.equal(taken[0], tensor * 2)
    assert torch.equal(taken[1], (tensor * tensor).cpu())
    assert torch.equal(taken[2], tensor)
    targets = [OrtValue.ortvalue_from_shape_and_type([4, WIDTH], np.float32, name) for name in ("cuda", "cpu", "cuda")]
    ortmulti.copy_tensors([fetches[1], fetches[0], fetches[2]], targets)
    for target, wanted in zip(targets, (tensor * tensor, tensor * 2, tensor), strict=True):
        np.testing.assert_array_equal(target.numpy(), wanted.cpu().numpy())


# --- Lifetimes --------------------------------------------------------------------------------------------------------


def test_a_tensor_lives_as_long_as_its_value_is_used(torch: Any, session: InferenceSession) -> None:
    tensor = numbers(torch)
    expected = 2 * tensor
    pointer, watched = tensor.data_ptr(), weakref.ref(tensor)
    value = OrtValue.from_dlpack(tensor)
    del tensor
    gc.collect()
    junk = [torch.full_like(expected, -1) for _ in range(8)]  # takes what was freed
    torch.cuda.synchronize()
    assert pointer not in [other.data_ptr() for other in junk]
    binding = bound(session, value, value)
    del value
    gc.collect()
    session.run_with_iobinding(binding)
    assert torch.equal(torch.from_dlpack(binding.get_outputs()[0]), expected)
    assert watched() is not None
    del binding
    gc.collect()
    assert watched() is None


def test_an_output_lives_as_long_as_its_tensor(torch: Any) -> None:
    a = numbers(torch)
    expected = 2 * a
    session = cuda_session(onnx_models.add_mul(WIDTH))
    value = OrtValue.from_dlpack(a)
    binding = bound(session, value, value)
    session.run_with_iobinding(binding)
    taken = torch.from_dlpack(binding.get_outputs()[0])
    session.close()
    del session, binding, value
    gc.collect()
    with cuda_session(onnx_models.add_mul(WIDTH)) as other:  # would write where the freed output was
        junk = OrtValue.from_dlpack(torch.full_like(a, -1))
        bindings = [bound(other, junk, junk) for _ in range(4)]
        for each in bindings:
            other.run_with_iobinding(each)
        assert taken.data_ptr() not in [each.get_outputs()[0].data_ptr() for each in bindings]
        assert torch.equal(taken, expected)
    assert torch.equal(taken, expected)


def test_values_of_a_sessions_gpu_memory_go_on_without_it(torch: Any) -> None:
    session = cuda_session(onnx_models.add_mul(WIDTH))
    value = session.create_ortvalue_from_shape_and_type([256, WIDTH], np.float32, "cuda")
    session.close()
    del session
    gc.collect()
    array = np.arange(256 * WIDTH, dtype=np.float32).reshape(256, WIDTH)
    value.update_inplace(array)
    taken = torch.from_dlpack(value)
    del value
    gc.collect()
    np.testing.assert_array_equal(taken.cpu().numpy(), array)


@pytest.mark.gpu_memory
def test_a_values_memory_is_freed_with_the_last_tensor_over_it(torch: Any) -> None:
    size = 256 << 20

    def free() -> int:
        gc.collect()
        return int(torch.cuda.mem_get_info()[0])

    before = free()
    value = OrtValue.ortvalue_from_shape_and_type([size], np.uint8, "cuda")
    pointer = value.data_ptr()
    first, second = torch.from_dlpack(value), torch.from_dlpack(value)
    assert first.data_ptr() == second.data_ptr() == pointer
    del value
    assert free() < before - size + (32 << 20)
    del first
    assert free() < before - size + (32 << 20)
    second.fill_(7)
    assert int(second[-1]) == 7
    del second
    assert free() > before - (32 << 20)


def test_what_lives_to_the_end_of_the_process_does_not_crash(torch: Any) -> None:
    del torch  # the child needs it
    child = run_child(
        """
        import sys
        import numpy as np
        import torch
        import ortmulti
        from ortmulti import OrtValue

        session = ortmulti.InferenceSession(bytes.fromhex(sys.argv[1]), providers=["CUDAExecutionProvider"])
        tensor = torch.ones(2, 8, device="cuda")
        value = OrtValue.from_dlpack(tensor)
        binding = session.io_binding()
        binding.bind_ortvalue_input("a", value)
        binding.bind_ortvalue_input("b", value)
        binding.bind_output("sum", "cuda")
        session.run_with_iobinding(binding)
        output = binding.get_outputs()[0]
        own = OrtValue.ortvalue_from_numpy(np.ones(3), "cuda")
        arena = session.create_ortvalue_from_shape_and_type([3], np.float32, "cuda")
        sys.kept = [session, tensor, value, binding, output, torch.from_dlpack(output), output.__dlpack__()]
        sys.kept += [own, torch.from_dlpack(own), own.__dlpack__(), arena, torch.from_dlpack(arena)]
        print(sys.kept[5].sum().item())
        """,
        onnx_models.add_mul(8).hex(),
        environment=VISIBLE,
    )
    assert (child.returncode, child.stdout) == (0, "32.0\n"), child.stderr


# --- Other packages ---------------------------------------------------------------------------------------------------


def test_onnxruntimes_values_on_a_gpu_are_taken(torch: Any, session: InferenceSession) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA")
    theirs = onnxruntime.OrtValue
    array = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    value = theirs.ortvalue_from_numpy(array, "cuda", 0)
    target = theirs.ortvalue_from_shape_and_type([2, WIDTH], np.float32, "cuda", 0)
    taken = ortmulti.OrtValueVector()
    taken.push_back(value)
    assert (taken[0].device_name(), taken[0].data_ptr()) == ("cuda", value.data_ptr())
    np.testing.assert_array_equal(session.run(["sum"], {"a": value, "b": array})[0], 2 * array)
    [total] = session.run_with_ort_values(["sum"], {"a": value, "b": taken[0]})
    np.testing.assert_array_equal(total.numpy(), 2 * array)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", value)
    binding.bind_ortvalue_input("b", value._ortvalue)
    binding.bind_ortvalue_output("product", target)
    pointer = value.data_ptr()
    del value, taken
    gc.collect()
    junk = [theirs.ortvalue_from_numpy(np.zeros_like(array), "cuda", 0) for _ in range(4)]
    assert pointer not in [other.data_ptr() for other in junk]
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), array * array)
    copy = OrtValue.ortvalue_from_shape_and_type([2, WIDTH], np.float32, "cuda")
    copy.update_inplace(target)
    np.testing.assert_array_equal(copy.numpy(), array * array)
    ortmulti.copy_tensors([OrtValue.ortvalue_from_numpy(array)], [target])
    np.testing.assert_array_equal(target.numpy(), array)
    if hasattr(theirs, "from_dlpack"):  # not in old releases
        back = theirs.from_dlpack(copy)
        assert back.data_ptr() == copy.data_ptr()
    assert torch.from_dlpack(copy).data_ptr() == copy.data_ptr()


def test_cupys_arrays_go_in_and_out(torch: Any, session: InferenceSession) -> None:
    del torch  # which has made the first GPU the current one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own, when it is imported
        cupy: Any = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.arange(2 * WIDTH, dtype=cupy.float32).reshape(2, WIDTH)
        value = OrtValue.from_dlpack(array)
    assert value.data_ptr() == array.data.ptr
    binding = bound(session, value, value)
    session.run_with_iobinding(binding)
    output = binding.get_outputs()[0]
    taken = cupy.from_dlpack(output)
    assert taken.data.ptr == output.data_ptr()
    expected = 2 * np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    np.testing.assert_array_equal(cupy.asnumpy(taken), expected)
