"""Outputs kept in a file and compared; what is tried on which machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortmulti.bench.tune import outputs
from ortmulti.bench.tune.candidate import seconds_per_answer
from ortmulti.bench.tune.space import OBJECTIVES, Host, space, thread_counts
from ortmulti.loading.tuning_options import check, known_to


def compared(tmp_path: Path, expected: Any, found: Any, **arguments: Any) -> outputs.Difference:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    outputs.save(expected, first)
    outputs.save(found, second)
    return outputs.compare(first, second, arguments.pop("tolerance", None), **arguments)


def test_equal_outputs(tmp_path: Path) -> None:
    values = [
        np.array([1.5, np.nan, np.inf], np.float32),
        np.array(["a", "b"], object),
        [{1: np.array([2.0])}],
        np.array([1, 2], ml_dtypes.bfloat16),
        None,
    ]
    assert compared(tmp_path, values, values) == outputs.Difference(0.0, "equal", True)


@pytest.mark.parametrize(
    ("dtype", "error", "on_gpu", "allowed"),
    [
        (np.float64, 1e-8, False, False),
        (np.float32, 5e-5, False, True),
        (np.float32, 5e-4, False, False),
        (np.float32, 2e-3, True, True),
        (np.float32, 2e-2, True, False),
        (np.float16, 5e-3, False, True),
        (np.float16, 5e-2, False, False),
        (ml_dtypes.bfloat16, 0.02, False, True),
        (ml_dtypes.bfloat16, 0.2, False, False),
    ],
)
def test_floats_may_differ_by_a_part_of_the_largest(
    tmp_path: Path, dtype: Any, error: float, on_gpu: bool, allowed: bool
) -> None:
    expected = np.array([-100.0, 3.0, 0.0])
    difference = compared(
        tmp_path, [expected.astype(dtype)], [(expected + np.array([100 * error, 0, 0])).astype(dtype)], on_gpu=on_gpu
    )
    assert difference.allowed == allowed
    assert difference.error == pytest.approx(error, rel=0.3)
    assert f"{np.dtype(dtype).name}" in difference.text


def test_the_tolerance_that_is_given_counts(tmp_path: Path) -> None:
    first, second = [np.array([1.0], np.float32)], [np.array([1.001], np.float32)]
    assert not compared(tmp_path, first, second, tolerance=1e-4).allowed
    assert compared(tmp_path, first, second, tolerance=1e-2).allowed
    assert compared(tmp_path, first, first, tolerance=0.0).allowed


@pytest.mark.parametrize(
    ("expected", "found", "text"),
    [
        (np.zeros(2), np.zeros(3), "has the shape"),
        (np.array([1, 2]), np.array([1, 3]), "output 0 is not equal"),
        (np.array([True]), np.array([False]), "is not equal"),
        (np.array(["a"], object), np.array(["b"], object), "is not equal"),
        (np.array(["a"], object), np.array(["a\0"], object), "is not equal"),
        (np.array([1.0, np.nan]), np.array([np.nan, 1.0]), "infinite or no number elsewhere"),
        (np.array([1.0, 2.0]), np.array([1.0, np.inf]), "infinite or no number elsewhere"),
        (np.zeros(1, np.float32), np.zeros(1, np.float64), "other outputs"),
    ],
)
def test_what_is_never_allowed(tmp_path: Path, expected: Any, found: Any, text: str) -> None:
    difference = compared(tmp_path, [expected], [found], tolerance=1.0)
    assert not difference.allowed
    assert text in difference.text


def test_the_worst_output_counts(tmp_path: Path) -> None:
    expected = [np.ones(2, np.float32), np.ones(2, np.float32)]
    found = [np.ones(2, np.float32) * 1.5, np.ones(2, np.float32) * 2]
    assert compared(tmp_path, expected, found).text.startswith("output 1 (float32) differs by 1 of its largest value")


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


def test_candidates_depend_on_the_machine() -> None:
    def names(objective: Any, host: Host, through: Any = "pool") -> set[str]:
        return {name for one in space(objective, through, host) for choice in one.choices for name, _ in choice}

    one, old, large, gpu = HOSTS
    assert "spin_duration_us" in names("latency", one)
    assert "spin_duration_us" not in names("latency", old)
    assert "allow_spinning" in names("latency", old)
    assert "execution_mode" not in names("latency", one)
    assert {"cuda_graph", "use_tf32", "prefer_nhwc"} <= names("latency", gpu)
    assert not {"cuda_graph", "use_tf32"} & names("latency", large)
    assert "cuda_graph" not in names("latency", gpu, "session")
    assert {"sessions_per_device", "in_flight"} <= names("throughput", gpu)
    assert "sessions_per_device" not in names("latency", large)
    assert "gpu_mem_limit" in names("memory", gpu)
    weights = "use_device_allocator_for_initializers"
    assert [weights in names(objective, old) for objective in OBJECTIVES] == [False, False, True, True]
    [affinity] = (one for one in space("latency", "pool", large) if one.name == "thread_affinity")
    assert [dict(choice)["thread_affinity"] for choice in affinity.choices] == ["cores", "node:0", "node:1"]


def test_numbers_of_threads() -> None:
    assert thread_counts(1) == ()
    assert thread_counts(2) == (1,)
    assert thread_counts(8) == (1, 2, 4, 6)
    assert thread_counts(64) == (1, 2, 4, 8, 16, 32, 48)


def test_a_moment_without_answers_is_left_out() -> None:
    second = 10**9
    steady = [number * second // 1000 for number in range(1000)]
    assert seconds_per_answer(steady, 0, second) == pytest.approx(1e-3, rel=0.02)
    stopped = [moment for moment in steady if not 0.3 * second < moment < 0.5 * second]
    assert seconds_per_answer(stopped, 0, second) == pytest.approx(1e-3, rel=0.02)
    # Of few answers all of the time counts.
    assert seconds_per_answer(steady[::100], 0, second) == pytest.approx(0.1)
    assert seconds_per_answer([], 0, second) == 1.0
