"""Configuration entries: what their values may be, from which release on there are such, and what contradicts them."""

from __future__ import annotations

import contextlib
import itertools
import logging
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ortmulti
from ortmulti import _core, checks
from ortmulti._runtime.libraries import release_of
from ortmulti.options import config_entries
from ortmulti.options.config_entries import check_options, check_run_entry, check_session_entry
from tests.support import onnx_models

AFFINITIES = "session.intra_op_thread_affinities"
SHRINKAGE = "memory.enable_memory_arena_shrinkage"
KNOWN = {*config_entries.SESSION, *config_entries.RUN}


def never() -> str:
    raise AssertionError("the release was asked for")


def core(**entries: str) -> _core.SessionOptions:
    made = _core.SessionOptions()
    made.config_entries = {key.replace("__", "."): value for key, value in entries.items()}
    return made


# --- Values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "values", "wrong"),
    [
        ("session.intra_op.allow_spinning", ["0", "1"], ["", "2", "true", "True", " 1", "1 ", "-1", "01"]),
        (
            "session.intra_op.spin_duration_us",
            ["0", "1000", str(2**31 - 1)],
            ["", "-1", "1.5", "1ms", str(2**31), "\u0661"],
        ),
        ("session.inter_op.spin_backoff_max", ["1", "8"], ["0", "-8", "x", ""]),
        ("session.dynamic_block_base", ["0", "4"], ["-1", "four"]),
        ("session.load_model_format", ["ORT", "ONNX"], ["ort", ""]),
        ("optimization.minimal_build_optimizations", ["", "save", "apply"], ["Save", "0"]),
        (AFFINITIES, ["1", "1,2;3-4", "1-8;8-16"], ["", "0", "1;", "1,,2", "2-1", "a", "1;0-3", "1 ;2", "\uff11"]),
        ("custom.key", ["", "anything at all"], []),
        ("session.not_one_of_theirs", ["x"], []),
    ],
)
def test_values_are_checked_when_they_are_set(key: str, values: list[str], wrong: list[str]) -> None:
    options = ortmulti.SessionOptions()
    for value in values:
        options.add_session_config_entry(key, value)
        assert options.get_session_config_entry(key) == value
    for value in wrong:
        with pytest.raises(ortmulti.InvalidArgument, match=key):
            options.add_session_config_entry(key, value)
        assert options.get_session_config_entry(key) == values[-1]


@pytest.mark.parametrize(
    ("key", "values", "wrong"),
    [
        (
            SHRINKAGE,
            ["cpu:0", "gpu:0", "cpu:0;gpu:0", "gpu:0;gpu:11", ""],
            ["cpu", "cpu:x", "disk:0", "cuda:0", "cpu:0;", "cpu:0; gpu:0", "CPU:0", "cpu:-1"],
        ),
        ("gpu_graph_id", ["-1"], []),
        ("disable_synchronize_execution_providers", ["1"], ["yes"]),
    ],
)
def test_values_for_runs_are_checked_when_they_are_set(key: str, values: list[str], wrong: list[str]) -> None:
    options = ortmulti.RunOptions()
    for value in wrong:
        with pytest.raises(ortmulti.InvalidArgument, match=f"{key}.*cpu:0;gpu:0" if key == SHRINKAGE else key):
            options.add_run_config_entry(key, value)
        with pytest.raises(ortmulti.InvalidArgument, match=key):
            options.get_run_config_entry(key)
    for value in values:
        options.add_run_config_entry(key, value)
        assert options.get_run_config_entry(key) == value
    bad: list[Any] = [(1, "x"), (key, 1), (None, "x")]
    for arguments in bad:
        with pytest.raises(ortmulti.InvalidType):
            options.add_run_config_entry(*arguments)


@pytest.mark.parametrize(("value", "power"), [("3", 2), ("6", 4), ("100", 64)])
def test_what_is_no_power_of_two_is_said(value: str, power: int, caplog: pytest.LogCaptureFixture) -> None:
    options = ortmulti.SessionOptions()
    with caplog.at_level(logging.WARNING, "ortmulti"):
        for right in ("1", "2", "64"):
            options.add_session_config_entry("session.intra_op.spin_backoff_max", right)
        assert caplog.messages == []
        options.add_session_config_entry("session.intra_op.spin_backoff_max", value)
    assert caplog.messages == [
        f"session.intra_op.spin_backoff_max={value} is not a power of two: ONNX Runtime uses {power}"
    ]


@given(st.sampled_from(sorted(KNOWN)), st.text())
@example(AFFINITIES, "1-999999999;1")
@example(AFFINITIES, "9" * 5000)
def test_anything_is_taken_or_refused(key: str, value: str) -> None:
    for check in (check_session_entry, check_run_entry):
        with contextlib.suppress(ortmulti.InvalidArgument):
            check(key, value)


# --- Releases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "since", "before"),
    [
        ("session.intra_op.spin_duration_us", "1.26", "1.25.1"),
        ("session.inter_op.spin_backoff_max", "1.26", "1.21.1"),
        ("session.disable_model_compile", "1.22", "1.21.1"),
        ("session.prepack.enable_parallel", "1.27", "1.26.0"),
        ("mlas.use_lut_gemm", "1.24", "1.23.2"),
    ],
)
def test_an_entry_of_a_later_release_is_an_error(key: str, since: str, before: str) -> None:
    options = core(**{key.replace(".", "__"): "1"})
    with pytest.raises(ortmulti.InvalidArgument, match=rf"{key}.* {since} and newer.*{before}"):
        check_options(options, lambda: before)
    for release in (f"{since}.0", "1.31.1", "2.0.0", ""):
        check_options(options, partial(str, release))


def test_the_release_is_asked_only_where_it_matters() -> None:
    check_options(core(session__use_env_allocators="0", other="x"), never)


def test_releases_are_in_their_order() -> None:
    releases = [release_of(text) for text in config_entries.SESSION.values()]
    assert releases == sorted(releases)
    assert all(len(numbers) == 2 for numbers in releases)


def test_a_session_with_an_entry_of_the_installed_release() -> None:
    """The installed release has the entry, or the error names the first one that has."""
    entries = {"session.intra_op.spin_duration_us": "1000", "session.intra_op.spin_backoff_max": "8"}
    options = onnx_models.options(entries, intra_op_num_threads=2)
    if release_of(ortmulti.get_version_string()) >= (1, 26):
        onnx_models.cpu_session(onnx_models.matmul(), options).close()
    else:
        with pytest.raises(ortmulti.InvalidArgument, match=r"spin_\w+'? is one of ONNX Runtime 1\.26"):
            onnx_models.cpu_session(onnx_models.matmul(), options)


# --- Contradictions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_affinities_are_one_for_each_thread_but_the_calling_one(threads: int) -> None:
    options = onnx_models.options({AFFINITIES: "1;1-2"}, intra_op_num_threads=threads)
    model = onnx_models.matmul()
    for create in (
        lambda: onnx_models.cpu_session(model, options),
        lambda: ortmulti.create_sessions(model, "cpu", 2, options),
        lambda: ortmulti.load(model, "cpu", options=options),
    ):
        with pytest.raises(ortmulti.InvalidArgument, match=f"{AFFINITIES}.* 2 threads .*is 3 with it, not {threads}"):
            create()
    options.intra_op_num_threads = 3
    onnx_models.cpu_session(model, options).close()


def test_affinities_need_threads_of_the_sessions_own() -> None:
    options = core(session__intra_op_thread_affinities="1")
    options.intra_op_num_threads = 2
    options.use_per_session_threads = False
    with pytest.raises(ortmulti.InvalidArgument, match=r"use_per_session_threads.*GlobalThreadPools"):
        check_options(options, never)


@given(st.lists(st.lists(st.integers(1, 4096), min_size=1), min_size=1, max_size=20))
def test_any_processors_fit_as_many_threads(groups: list[list[int]]) -> None:
    text = ";".join(",".join(map(str, group)) for group in groups)
    checks.affinities("it", text, len(groups) + 1)
    for threads in itertools.chain(range(len(groups) + 1), [len(groups) + 2]):
        with pytest.raises(ortmulti.InvalidArgument, match="it is for"):
            checks.affinities("it", text, threads)
