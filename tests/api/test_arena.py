"""Arenas that sessions share (`configure(arena=...)`), each in a process of its own; and another malloc below all."""

from __future__ import annotations

import ctypes.util
import os
from typing import Any

import pytest

import ortmulti
from ortmulti import ArenaConfig
from ortmulti.options.arena import to_core
from tests.support import onnx_models
from tests.support.processes import lines

MB = 2**20


@pytest.mark.parametrize(
    ("config", "core"),
    [
        (ArenaConfig(), {"max_mem": 0}),
        (
            ArenaConfig(64 * MB, "kSameAsRequested", max_dead_bytes_per_chunk=1),
            {"max_mem": 64 * MB, "arena_extend_strategy": 1, "max_dead_bytes_per_chunk": 1},
        ),
        (
            ArenaConfig(2**40, "kNextPowerOfTwo", MB, 2 * MB, 3 * MB, 2**40),
            {
                "max_mem": 2**40,
                "arena_extend_strategy": 0,
                "initial_chunk_size_bytes": MB,
                "max_dead_bytes_per_chunk": 2 * MB,
                "initial_growth_chunk_size_bytes": 3 * MB,
                "max_power_of_two_extend_bytes": 2**40,
            },
        ),
    ],
)
def test_configurations(config: ArenaConfig, core: dict[str, int]) -> None:
    assert to_core(config) == {"": core}
    assert to_core({"cpu": config, "cuda:3": config}) == {"cpu": core, "cuda:3": core}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_mem": -1}, "max_mem"),
        ({"max_mem": 1.5}, "max_mem"),
        ({"max_mem": True}, "max_mem"),
        ({"max_mem": None, "initial_chunk_size_bytes": 2**31}, "initial_chunk_size_bytes"),
        ({"initial_chunk_size_bytes": 0}, "initial_chunk_size_bytes"),
        ({"max_dead_bytes_per_chunk": -1}, "max_dead_bytes_per_chunk"),
        ({"initial_growth_chunk_size_bytes": "1"}, "initial_growth_chunk_size_bytes"),
        ({"arena_extend_strategy": "kSame"}, "kNextPowerOfTwo"),
        ({"arena_extend_strategy": 1}, "arena_extend_strategy"),
        ({"max_mem": 100, "initial_chunk_size_bytes": 101}, "more than max_mem"),
        ({"arena_extend_strategy": "kSameAsRequested", "initial_chunk_size_bytes": MB}, "initial_chunk_size_bytes"),
        ({"arena_extend_strategy": "kSameAsRequested", "max_power_of_two_extend_bytes": MB}, "extend_bytes"),
    ],
)
def test_configurations_that_cannot_be_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ortmulti.InvalidArgument, match=named):
        ArenaConfig(**given)


@pytest.mark.parametrize(
    "arena", [{}, {"gpu": ArenaConfig()}, {"cpu": 3}, {3: ArenaConfig()}, "cpu", 64, [ArenaConfig()]]
)
def test_arguments_that_cannot_be_are_refused(arena: Any) -> None:
    with pytest.raises(ortmulti.InvalidArgument):
        ortmulti.configure(arena=arena)
    with pytest.raises(ortmulti.InvalidArgument, match="nothing"):
        ortmulti.configure()


MODEL = onnx_models.one_node("Neg")
COMMON = """
    import logging

    logging.getLogger("ortmulti.onnxruntime").setLevel(logging.CRITICAL)
    MB = 2**20
    x = np.ones(10 * MB, np.float32)  # 40 MB, as the output

    def shared(share=True, **changes):
        return session({"session.use_env_allocators": str(int(share))}, **changes)

    def kind_of(call, *arguments, **named):
        return error_of(call, *arguments, **named).split(":")[0]
"""


def printed(code: str) -> list[str]:
    return lines(COMMON + code, MODEL)


def test_two_sessions_have_one_arena() -> None:
    """What one session's output takes is missing to the other one, until that is freed; a third has its own."""
    assert printed(
        """
    om.configure(arena=om.ArenaConfig(64 * MB, "kSameAsRequested"))
    first, second, apart = shared(), shared(), shared(False)
    held = first.run(None, {"x": x})
    print(kind_of(second.run, None, {"x": x}), kind_of(apart.run, None, {"x": x}))
    del held
    print(kind_of(second.run, None, {"x": x}), kind_of(first.run, None, {"x": np.ones(20 * MB, np.float32)}))
    second.close()
    print(kind_of(first.run, None, {"x": x}))
    """
    ) == ["OutOfMemory none", "none OutOfMemory", "none"]


def test_what_is_free_of_it_goes_back_to_the_system() -> None:
    """A run's own outputs stay; the first small region is for these."""
    assert printed(
        """
    from tests.support.processes import resident

    om.configure(arena={"cpu": om.ArenaConfig(arena_extend_strategy="kSameAsRequested")})
    with shared() as first, shared() as second:
        small = np.ones(10, np.float32)
        first.run(None, {"x": small})
        before = resident()
        first.run(None, {"x": x})
        kept = resident() - before
        options = om.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        second.run(None, {"x": small}, options)
        print(kept > 36 * MB, resident() - before < 8 * MB)
    """
    ) == ["True True"]


def test_contradictions_are_refused() -> None:
    assert printed(
        """
    om.configure(arena={"cuda:1": om.ArenaConfig()})
    shared(enable_cpu_mem_arena=False).close()  # there is none for the CPU
    print(kind_of(om.configure, arena=om.ArenaConfig()))
    """
    ) == ["Fail"]
    found = printed(
        """
    om.configure(arena=om.ArenaConfig())
    print(error_of(shared, enable_cpu_mem_arena=False))
    print(error_of(shared), error_of(shared, share=False, enable_cpu_mem_arena=False))
    cuda = [("CUDAExecutionProvider", {"device_id": "1", "gpu_mem_limit": "5"})]
    options = om.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    from ortmulti.options.config_entries import check_providers
    print(error_of(check_providers, options._core, cuda))
    """
    )
    assert found[0].startswith("InvalidArgument: enable_cpu_mem_arena is False, but session.use_env_allocators")
    assert found[1] == "none none"
    assert found[2].startswith("InvalidArgument: gpu_mem_limit of CUDAExecutionProvider is for an arena of the session")


def test_a_shared_arena_must_have_been_asked_for() -> None:
    [found] = printed("\n    print(error_of(shared))\n")
    assert found.startswith("InvalidArgument")
    assert "configure(arena=...)" in found


def test_pools_and_arenas_are_configured_together_or_one_after_the_other() -> None:
    assert printed(
        """
    om.configure(arena=om.ArenaConfig(8 * MB))
    om.configure(global_thread_pools=om.GlobalThreadPools(2, 1))
    print(kind_of(om.configure, arena=7, global_thread_pools=om.GlobalThreadPools(4, 1)))
    om.configure(arena=om.ArenaConfig(48 * MB), global_thread_pools=om.GlobalThreadPools(3, 1, threads=om.Threads()))
    one = shared(use_per_session_threads=False)
    print(error_of(one.run, None, {"x": x}), om.thread_counts()[0].alive)
    """
    ) == ["InvalidType", "none 2"]


# --- Another malloc ---------------------------------------------------------------------------------------------------

MIMALLOC = ctypes.util.find_library("mimalloc")


@pytest.mark.skipif(MIMALLOC is None, reason="needs libmimalloc (apt-get install libmimalloc2.0)")
def test_sessions_over_mimalloc() -> None:
    """Preloaded, it gives the memory of outputs, which ONNX Runtime allocates, and results are the same."""
    code = """
        import ctypes

        options = om.SessionOptions()
        options.enable_cpu_mem_arena = False
        with om.create_sessions(model, "cpu", 2, options) as sessions:
            x = np.linspace(-1, 1, 1 << 20, dtype=np.float32)
            outputs = [each.run(None, {"x": x})[0] for each in sessions]
        own = ctypes.CDLL(None)
        own.mi_is_in_heap_region.restype = ctypes.c_bool
        print(all((y == -x).all() and own.mi_is_in_heap_region(ctypes.c_void_p(y.ctypes.data)) for y in outputs))
    """
    preload = f"{MIMALLOC}:{os.environ['LD_PRELOAD']}" if os.environ.get("LD_PRELOAD") else MIMALLOC
    assert lines(code, MODEL, environment={"LD_PRELOAD": preload}) == ["True"]
