"""Threads of sessions on GPUs, and arenas that these share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import ortmulti
from ortmulti import ThreadCounts, Threads, _core
from tests.support import onnx_models
from tests.support.gpus import check_gpu_child

pytestmark = pytest.mark.gpu

SYSFS = Path("/sys")


def near(index: int) -> tuple[int, ...]:
    """The CPUs of the node that a GPU is attached to which this process may use; none where that says nothing."""
    [address] = [gpu.pci_bus_id.lower() for gpu in _core.cuda_devices() if gpu.index == index]
    nodes = SYSFS / "devices/system/node"
    if not nodes.is_dir() or len([path for path in nodes.iterdir() if path.name[4:].isdecimal()]) < 2:
        return ()
    if len(address.partition(":")[0]) == 8:
        address = address[4:]
    device = SYSFS / "bus/pci/devices" / address / "numa_node"
    node = int(device.read_text()) if device.is_file() else -1
    if node < 0:
        return ()
    cpus: set[int] = set()
    for part in (nodes / f"node{node}/cpulist").read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus & os.sched_getaffinity(0)))


def names() -> set[str]:
    return {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}


def test_threads_are_near_their_gpus() -> None:
    options = ortmulti.SessionOptions()
    options.intra_op_num_threads = 3
    options.threads = Threads(numa_node="near")
    with ortmulti.create_sessions(onnx_models.matmul(8), "all", options=options) as sessions:
        for index, session in enumerate(sessions):
            assert session.device == f"cuda:{index}"
            assert session.thread_counts == ThreadCounts("ort", f"cuda:{index}", 2, 2, near(index))
            assert {f"ort-cuda:{index}-1", f"ort-cuda:{index}-2"} <= names()
            assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 8)
    assert ortmulti.thread_counts() == []


def test_there_are_none_unless_a_number_is_given() -> None:
    options = ortmulti.SessionOptions()
    options.threads = Threads()
    with ortmulti.create_sessions(onnx_models.matmul(8), "cuda:0", options=options) as [session]:
        assert session.thread_counts == ThreadCounts("ort", "cuda:0", 0, 0, ())


COMMON = """
    import logging, sys
    import numpy as np
    import ortmulti as om

    logging.getLogger("ortmulti.onnxruntime").setLevel(logging.CRITICAL)
    model = bytes.fromhex(sys.argv[1])
    MB = 2**20
    feed = om.OrtValue.ortvalue_from_numpy  # makes the environment: only to be called after configure

    def session(share=True, **cuda):
        options = om.SessionOptions()
        options.add_session_config_entry("session.use_env_allocators", str(int(share)))
        return om.InferenceSession(model, options, providers=[("CUDAExecutionProvider", {"device_id": 0, **cuda})])

    def run(session):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_output("y", "cuda", 0)
        session.run_with_iobinding(binding)
        return binding

    def error_of(call, *arguments, **named):
        try:
            call(*arguments, **named)
        except om.Error as error:
            return type(error).__name__
        return "none"
"""


def lines(code: str) -> list[str]:
    return check_gpu_child(COMMON + code, onnx_models.one_node("Neg").hex()).splitlines()


@pytest.mark.parametrize("arena", ['{"cuda:0": config}', "config"])
def test_sessions_of_a_gpu_have_one_arena(arena: str) -> None:
    """What one session's output takes is missing to the other one, until that is freed; a third has its own."""
    assert lines(
        f"""
    config = om.ArenaConfig(64 * MB, "kSameAsRequested")
    om.configure(arena={arena})
    x = feed(np.ones(10 * MB, np.float32), "cuda", 0)  # 40 MB, as the output
    first, second, apart = session(), session(), session(False)
    held = run(first)
    print(error_of(run, second), error_of(run, apart))
    held.clear_binding_outputs()
    del held
    print(error_of(run, second))
    print(error_of(session, gpu_mem_limit=64 * MB), error_of(session, False, gpu_mem_limit=64 * MB))
    """
    ) == ["OutOfMemory none", "none", "InvalidArgument none"]


def test_an_arena_of_the_cpu_leaves_gpus_their_own() -> None:
    assert lines(
        """
    om.configure(arena={"cpu": om.ArenaConfig(64 * MB)})
    x = feed(np.ones(10 * MB, np.float32), "cuda", 0)
    first, second = session(), session(gpu_mem_limit=256 * MB)
    held = run(first)
    print(error_of(run, second))
    """
    ) == ["none"]


def test_threads_that_end_and_inputs_that_are_bound_beside_captures() -> None:
    """Each may wait for the device, beside which the driver ends a process that captures."""
    code = """
    import sys, threading
    import numpy as np
    import ortmulti as om

    gpu = {"providers": ["CUDAExecutionProvider"]}
    convolutions = om.InferenceSession(bytes.fromhex(sys.argv[1]), **gpu)
    plain = om.InferenceSession(bytes.fromhex(sys.argv[2]), **gpu)
    x = np.ones((2, 64), np.float32)
    [wanted] = plain.run(None, {"x": x})
    runs, problems, over = [0], [], threading.Event()

    def capture():
        while not over.is_set():
            rows = 1 + runs[0] % 3  # other shapes than the run before
            convolutions.run(None, {"x": np.ones((rows, 64), np.float32)})
            runs[0] += 1

    def bind():
        binding = plain.io_binding()
        binding.bind_cpu_input("x", x)
        binding.synchronize_inputs()
        binding.bind_output("y")
        plain.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], wanted, rtol=1e-3)

    def guarded(call):
        try:
            call()
        except BaseException as error:
            problems.append(error)

    def begin_threads():
        for _ in range(150):
            thread = threading.Thread(target=guarded, args=(bind,))
            thread.start()
            thread.join()

    capturing = [threading.Thread(target=guarded, args=(capture,)) for _ in range(2)]
    others = [threading.Thread(target=begin_threads) for _ in range(3)]
    for thread in capturing + others:
        thread.start()
    for thread in others:
        thread.join()
    over.set()
    for thread in capturing:
        thread.join()
    print(runs[0] > 10, problems)
    """
    models = (onnx_models.convolutions().hex(), onnx_models.matmul().hex())
    assert check_gpu_child(code, *models).splitlines() == ["True []"]
