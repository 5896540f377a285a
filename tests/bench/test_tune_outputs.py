"""Outputs kept in a file and compared; what is tried on which machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.candidate import seconds_per_answer
from ortmulti.bench.tune.space import OBJECTIVES, Host, space, thread_counts
from ortmulti.loading.tuning_options import check, known_to


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., outputs.Difference]:
    def compare(expected: Any, found: Any, tolerance: float | None = None, on_gpu: bool = False) -> outputs.Difference:
        for name, values in (("expected", expected), ("found", found)):
            outputs.save(values, tmp_path / name)
        return outputs.compare(tmp_path / "expected", tmp_path / "found", tolerance, on_gpu)

    return compare


def test_equal_outputs(compared: Any) -> None:
    values = [
        np.array([1.5, np.nan, np.inf], np.float32),
        np.array(["a", "b"], object),
        [{1: np.array([2.0])}],
        np.array([1, 2], ml_dtypes.bfloat16),
        None,
    ]
    assert compared(values, values, 0.0) == outputs.Difference(0.0, "equal", True)


@pytest.mark.parametrize(
    ("dtype", "error", "limits", "allowed"),
    [
        (np.float64, 1e-8, {}, False),
        (np.float32, 5e-5, {}, True),
        (np.float32, 5e-4, {}, False),
        (np.float32, 2e-3, {"on_gpu": True}, True),
        (np.float32, 2e-2, {"on_gpu": True}, False),
        (np.float32, 1e-3, {"tolerance": 1e-2}, True),
        (np.float16, 5e-3, {}, True),
        (np.float16, 5e-2, {}, False),
        (np.float16, 5e-3, {"tolerance": 1e-4}, False),
        (ml_dtypes.bfloat16, 0.02, {}, True),
        (ml_dtypes.bfloat16, 0.2, {}, False),
    ],
)
def test_floats_may_differ_by_a_part_of_the_largest(
    dtype: Any, error: float, limits: dict[str, Any], allowed: bool, compared: Any
) -> None:
    expected, found = np.array([-100.0, 3.0, 0.0]), np.array([-100.0 + 100 * error, 3.0, 0.0])
    difference = compared([expected.astype(dtype)] * 2, [expected.astype(dtype), found.astype(dtype)], **limits)
    assert difference.allowed == allowed
    assert difference.error == pytest.approx(error, rel=0.3)
    # The worst output counts.
    assert difference.text.startswith(f"output 1 ({np.dtype(dtype).name}) differs by ")


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        (np.zeros(2), np.zeros(3), "has the shape"),
        (np.array([1, 2]), np.array([1, 3]), "output 0 is not equal"),
        (np.array([True]), np.array([False]), "is not equal"),
        (np.array(["a"], object), np.array(["a\0"], object), "is not equal"),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), "infinite or no number elsewhere"),
        (np.array([1.0, 2.0]), np.array([1.0, np.inf]), "infinite or no number elsewhere"),
        (np.zeros(1, np.float32), np.zeros(1, np.float64), "other outputs"),
    ],
)
def test_what_is_never_allowed(expected: Any, found: Any, text: str, compared: Any) -> None:
    difference = compared([expected], [found], tolerance=1.0)
    assert not difference.allowed
    assert text in difference.text


# --- What is tried ----------------------------------------------------------------------------------------------------

HOSTS = [
    Host("cpu", "1.31.1", 1),
    Host("cpu", "1.21.0", 2, {0: (0, 1)}),
    Host("cpu", "", 64, {0: tuple(range(32)), 1: tuple(range(32, 64))}),
    Host("cuda", "1.31.1", 16, {0: (0, 1)}, gpu_memory=10**9),
]


@pytest.mark.parametrize("host", HOSTS, ids=["one core", "old", "two nodes", "gpu"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_candidates_are_options_that_the_release_has(objective: Any, host: Host) -> None:
    found = space(objective, "pool", host)
    for name, value in (option for one in found for choice in one.choices for option in choice):
        assert check(name, value) == value
        assert known_to(host.release, name, value)
    assert len({one.name for one in found}) == len(found)


ONE, OLD, LARGE, GPU = HOSTS


@pytest.mark.parametrize(
    ("host", "objective", "through", "tried", "not_tried"),
    [
        (ONE, "latency", "pool", "spin_duration_us", "execution_mode use_device_allocator_for_initializers"),
        (OLD, "latency", "pool", "allow_spinning", "spin_duration_us"),
        (OLD, "creation", "pool", "use_device_allocator_for_initializers", "allow_spinning"),
        (LARGE, "latency", "pool", "thread_affinity", "cuda_graph use_tf32 sessions_per_device"),
        (GPU, "latency", "pool", "cuda_graph use_tf32 prefer_nhwc", "thread_affinity"),
        (GPU, "latency", "session", "use_tf32", "cuda_graph"),
        (GPU, "throughput", "pool", "sessions_per_device in_flight", "gpu_mem_limit"),
        (GPU, "memory", "pool", "gpu_mem_limit use_device_allocator_for_initializers", "cuda_graph"),
    ],
)
def test_candidates_depend_on_the_machine(host: Host, objective: Any, through: Any, tried: str, not_tried: str) -> None:
    found = {name for one in space(objective, through, host) for choice in one.choices for name, _ in choice}
    assert set(tried.split()) <= found
    assert not set(not_tried.split()) & found


def test_threads_are_bound_to_each_node() -> None:
    [affinity] = (one for one in space("latency", "pool", LARGE) if one.name == "thread_affinity")
    assert [dict(choice)["thread_affinity"] for choice in affinity.choices] == ["cores", "node:0", "node:1"]


@pytest.mark.parametrize(("cores", "counts"), [(1, ()), (2, (1,)), (8, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 48))])
def test_numbers_of_threads(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores) == counts


def test_a_moment_without_answers_is_left_out() -> None:
    second = 10**9
    steady = [number * second // 1000 for number in range(1000)]
    assert seconds_per_answer(steady, 0, second) == pytest.approx(1e-3, rel=0.02)
    stopped = [moment for moment in steady if not 0.3 * second < moment < 0.5 * second]
    assert seconds_per_answer(stopped, 0, second) == pytest.approx(1e-3, rel=0.02)
    # Of few answers all of the time counts.
    assert seconds_per_answer(steady[::100], 0, second) == pytest.approx(0.1)
    assert seconds_per_answer([], 0, second) == 1.0
