"""Values on a GPU in the order of PyTorch's streams, where the program does not wait: in one thread and in many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmulti
from ortmulti import InferenceSession, OrtValue, RunOptions
from tests.support import onnx_models
from tests.support.gpus import cuda_session, needs_gpus
from tests.support.torch import LONG, WIDTH, bound, late, numbers

pytestmark = pytest.mark.gpu

make = OrtValue.ortvalue_from_numpy


def not_synchronized() -> RunOptions:
    options = RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


Use = Callable[[InferenceSession, OrtValue], np.ndarray]


def by_binding(session: InferenceSession, value: OrtValue) -> np.ndarray:
    binding = bound(session, value, value)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def by_values(session: InferenceSession, value: OrtValue) -> np.ndarray:
    return session.run_with_ort_values(["sum"], {"a": value, "b": value})[0].numpy()


def by_feed(session: InferenceSession, value: OrtValue) -> np.ndarray:
    return session.run(["sum"], {"a": value, "b": value})[0]


def by_vector(session: InferenceSession, value: OrtValue) -> np.ndarray:
    fetches = ortmulti.OrtValueVector()
    session.run_with_ortvaluevector(
        None, ["a", "b"], [value, value], ["sum"], fetches, [ortmulti.OrtDevice.make("cuda", 0)]
    )
    return fetches[0].numpy()


def by_update(session: InferenceSession, value: OrtValue) -> np.ndarray:
    copy = session.create_ortvalue_from_shape_and_type(value.shape(), np.float32, "cuda")
    copy.update_inplace(value)
    return 2 * copy.numpy()


def by_copies(_: InferenceSession, value: OrtValue) -> np.ndarray:
    target = np.zeros(value.shape(), np.float32)
    ortmulti.copy_tensors([value], [OrtValue.ortvalue_from_numpy(target)])
    return 2 * target


def by_array(_: InferenceSession, value: OrtValue) -> np.ndarray:
    return 2 * value.numpy()


@pytest.mark.parametrize("use", [by_binding, by_values, by_feed, by_vector, by_update, by_copies, by_array])
def test_what_a_stream_has_not_written_yet_is_waited_for(torch: Any, session: InferenceSession, use: Use) -> None:
    wanted = numbers(torch)
    expected = 2 * wanted.cpu().numpy()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = late(torch, stream, wanted)
        value = OrtValue.from_dlpack(tensor)
    np.testing.assert_array_equal(use(session, value), expected)


def test_what_the_current_stream_waits_for_is_waited_for(torch: Any, session: InferenceSession) -> None:
    """The protocol is about the stream that is current; PyTorch's own way leads there from another."""
    wanted = numbers(torch)
    expected = 2 * wanted.cpu().numpy()
    stream = torch.cuda.Stream()
    tensor = late(torch, stream, wanted)
    torch.cuda.current_stream().wait_stream(stream)
    np.testing.assert_array_equal(by_binding(session, OrtValue.from_dlpack(tensor)), expected)


def test_outputs_are_there_for_any_stream(torch: Any, session: InferenceSession) -> None:
    wanted = numbers(torch)
    expected = 2 * wanted
    producing, consuming = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(producing):
        value = OrtValue.from_dlpack(late(torch, producing, wanted))
    binding = bound(session, value, value)
    session.run_with_iobinding(binding)
    with torch.cuda.stream(consuming):
        taken = torch.from_dlpack(binding.get_outputs()[0])
        right = torch.equal(taken, expected)
    assert right


def test_outputs_of_runs_that_do_not_wait_are_there_once_they_are_synchronized(torch: Any) -> None:
    """Matrix products that keep the session's own stream busy; of permutations and small integers, so exact."""
    size, layers = 4096, 24
    nodes = [
        helper.make_node("MatMul", [f"x{i}", "w"], ["y" if i == layers - 1 else f"x{i + 1}"]) for i in range(layers)
    ]
    shape = ["n", "n"]
    model = onnx_models.model(
        nodes, [("x0", TensorProto.FLOAT, shape), ("w", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)]
    ).SerializeToString()
    permutation = torch.randperm(size, device="cuda")
    inverse = torch.argsort(permutation)
    weight = torch.eye(size, device="cuda")[permutation]
    torch.cuda.synchronize()
    producing, consuming = torch.cuda.Stream(), torch.cuda.Stream()
    with cuda_session(model) as session:
        binding = session.io_binding()
        binding.bind_ortvalue_input("w", OrtValue.from_dlpack(weight))
        binding.bind_output("y", "cuda")
        for offset in range(4):  # the first one loads kernels
            wanted = (torch.arange(size * size, device="cuda") % 1000 + offset).float().reshape(size, size)
            expected = wanted
            for _ in range(layers):
                expected = expected[:, inverse]
            torch.cuda.synchronize()
            with torch.cuda.stream(producing):
                value = OrtValue.from_dlpack(late(torch, producing, wanted))
            binding.bind_ortvalue_input("x0", value)
            session.run_with_iobinding(binding, not_synchronized())
            binding.synchronize_outputs()
            with torch.cuda.stream(consuming):
                right = torch.equal(torch.from_dlpack(binding.get_outputs()[0]), expected)
            assert right, offset


def test_a_session_in_pytorchs_stream_is_in_its_order(torch: Any) -> None:
    """Nothing is waited for but by `synchronize_outputs`: shown by a kernel that is still running behind the run."""
    stream = torch.cuda.Stream()
    wanted = numbers(torch)
    expected = 2 * wanted
    tensor = torch.zeros_like(wanted)
    value = OrtValue.from_dlpack(tensor)
    torch.cuda.synchronize()
    with cuda_session(onnx_models.add_mul(WIDTH), user_compute_stream=stream.cuda_stream) as session:
        binding = bound(session, value, value)
        session.run_with_iobinding(binding)  # loads kernels and allocates
        with torch.cuda.stream(stream):
            late_again = late(torch, stream, wanted)
            tensor.copy_(late_again)
        session.run_with_iobinding(binding, not_synchronized())
        assert not stream.query(), "the run waited for the stream by itself"
        with torch.cuda.stream(stream):
            in_order = torch.from_dlpack(binding.get_outputs()[0]) + 0
        binding.synchronize_outputs()
        assert stream.query()
        assert torch.equal(torch.from_dlpack(binding.get_outputs()[0]), expected)
        assert torch.equal(in_order, expected)


def test_outputs_of_another_gpu_are_synchronized_from_any_thread(torch: Any) -> None:
    needs_gpus(2)
    with torch.cuda.device(1):
        wanted = numbers(torch).to("cuda:1")
        expected = 2 * wanted
        stream = torch.cuda.Stream()
        tensor = torch.zeros_like(wanted)
        value = OrtValue.from_dlpack(tensor)
        torch.cuda.synchronize()
    with cuda_session(onnx_models.add_mul(WIDTH), device_id=1, user_compute_stream=stream.cuda_stream) as session:
        binding = session.io_binding()
        for name in "ab":
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("sum", "cuda", 1)
        session.run_with_iobinding(binding)
        with torch.cuda.device(1), torch.cuda.stream(stream):
            for cycles in (1, LONG):  # the first one loads kernels, which waits
                stream.synchronize()
                torch.cuda._sleep(cycles)
                tensor.copy_(wanted)
        session.run_with_iobinding(binding, not_synchronized())
        with ThreadPoolExecutor(1) as pool:  # where the other GPU is the current one
            pool.submit(torch.cuda.set_device, 0).result()
            pool.submit(binding.synchronize_outputs).result()
            assert pool.submit(torch.cuda.current_device).result() == 0
        assert stream.query()
        with torch.cuda.device(1):
            assert binding.get_outputs()[0].__dlpack_device__() == (2, 1)
            assert torch.equal(torch.from_dlpack(binding.get_outputs()[0]), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_many_threads_and_streams_at_once(torch: Any, count: int) -> None:
    """Over one session and over several. Each tensor is late, and each thread's numbers are its own."""
    sessions = [cuda_session(onnx_models.add_mul(WIDTH)) for _ in range(count)]
    on_host = np.full((16, WIDTH), 3, np.float32)
    shared = torch.from_numpy(on_host).cuda()
    torch.cuda.synchronize()
    start = threading.Barrier(6)

    def work(thread: int) -> int:
        session = sessions[thread % count]
        stream = torch.cuda.Stream()
        own = session.io_binding()
        own.bind_output("sum", "cuda")
        wrong = 0
        start.wait()
        with torch.cuda.stream(stream):
            for i in range(40):
                number = 100 * thread + i
                mine = torch.zeros((16, WIDTH), device="cuda")
                torch.cuda._sleep(500_000)
                mine += number
                own.bind_ortvalue_input("a", OrtValue.from_dlpack(mine))
                own.bind_ortvalue_input("b", OrtValue.from_dlpack(shared) if i % 2 else OrtValue.from_dlpack(mine))
                session.run_with_iobinding(own)
                total = torch.from_dlpack(own.get_outputs()[0])
                wrong += int((total != number + (3 if i % 2 else number)).sum())
                mine += 1
                [product] = session.run(["product"], {"a": OrtValue.from_dlpack(mine), "b": on_host})
                wrong += int((product != 3 * (number + 1)).sum())
                [first] = session.run_with_ort_values(["first"], {"a": OrtValue.from_dlpack(mine), "b": make(on_host)})
                del mine
                wrong += int((torch.from_dlpack(first) != number + 1).sum())
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [0] * 6
    for session in sessions:
        session.close()
